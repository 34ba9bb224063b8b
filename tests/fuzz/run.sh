#!/usr/bin/env bash
# Fuzzes what reads bytes that others may have made: manifests, headers of safetensors files, and all that comes over a
# link: frames, handshakes, and the messages of jobs, workers and agents; and what a store holds and answers. libFuzzer under AddressSanitizer and
# UndefinedBehaviorSanitizer; no part of the ordinary build. Wants clang (Debian: clang, libclang-rt-dev).
#
#   tests/fuzz/run.sh [SECONDS for each (600)] [TARGET ... (all)]
#
# Targets run one after the other, with the lowest priority. Exits with 0 if there was no finding. Inputs stay in
# build-fuzz/TARGET, so that a later run goes on from them; a finding is build-fuzz/finding-TARGET-*. A finding that is
# mended goes to tests/fuzz/kept/TARGET, which test_fuzz shows to the targets in the ordinary tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-600}
files=(manifest safetensors)
links=(frames handshake from_worker agent_messages to_worker)
stores=(store)
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=("${files[@]}" "${links[@]}" "${stores[@]}")
build=build-fuzz
flags=(-std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -I. "-I$build")
libraries=(-lcapnp -lkj -lfmt -lsodium -lxxhash -lspdlog -lpthread)

for target in "${targets[@]}"; do
  [ -e "tests/fuzz/${target}_fuzz.cpp" ] || { echo "fuzz: no target '$target': expected ${files[*]} ${links[*]} ${stores[*]}" >&2; exit 2; }
done
chosen() { [[ " ${targets[*]} " == *" $1 "* ]]; }

mkdir -p "$build"/{objects,checkpoint,runtime}
generate() {  # FOLDER SCHEMA...: FOLDER/X.capnp to $build/FOLDER/X_capnp.cpp
  local folder=$1
  for schema in "${@:2}"; do
    capnp compile "-oc++:$build/$folder" --src-prefix="$folder" "$folder/$schema.capnp"
    mv "$build/$folder/$schema.capnp.c++" "$build/$folder/${schema}_capnp.cpp.new"
    cmp -s "$build/$folder/${schema}_capnp.cpp"{.new,} || mv "$build/$folder/${schema}_capnp.cpp"{.new,}
  done
}
compile() {  # LIBRARY SOURCE...: those that have changed
  local library=$build/$1.a objects=() waits=()
  for source in "${@:2}"; do
    local object=$build/objects/${source//\//_}.o
    objects+=("$object")
    [ "$object" -nt "$source" ] || waits+=("$source" "$object")
  done
  [ ${#waits[@]} -eq 0 ] || printf '%s\0' "${waits[@]}" | xargs -0 -r -n 2 -P 2 nice -n 15 bash -c \
    'clang++ '"$(printf '%q ' "${flags[@]}")"' -fsanitize=fuzzer-no-link -c "$1" -o "$2"' clang++
  rm -f "$library"
  ar rcs "$library" "${objects[@]}"
}
link() {  # LIBRARY TARGET
  nice -n 15 clang++ "${flags[@]}" -fsanitize=fuzzer "tests/fuzz/$2_fuzz.cpp" "$build/$1.a" "${libraries[@]}" -o "$build/$2_fuzz"
}

if chosen manifest || chosen safetensors; then
  generate checkpoint manifest
  compile files checkpoint/*.cpp devices/base/*.cpp devices/sim/sim_storage.cpp devices/files/*.cpp devices/host_memory.cpp \
    placement/extent.cpp "$build/checkpoint/manifest_capnp.cpp"
  mkdir -p "$build"/{manifest,safetensors}
  clang++ "${flags[@]}" tests/fuzz/seeds.cpp tests/checkpoint/sample.cpp -fsanitize=fuzzer-no-link "$build/files.a" "${libraries[@]}" -o "$build/seeds"
  "$build/seeds" "$build/manifest" "$build/safetensors"
fi
for target in "${links[@]}"; do
  chosen "$target" || continue
  generate runtime plan/plan session/control agents/agent
  generate checkpoint manifest
  compile links devices/base/*.cpp devices/host_memory.cpp devices/ready_queue.cpp devices/sim/*.cpp placement/*.cpp actors/{actor_core,slots}.cpp \
    devices/files/secret_file.cpp checkpoint/*.cpp comm/route.cpp kernels/op.cpp runtime/graph/graph.cpp runtime/{plan,place,verify,simulate}/*.cpp \
    runtime/session/{control,decisions,decisions_text}.cpp runtime/worker/{kept_state,remains,state_pieces}.cpp \
    runtime/agents/{agent_messages,connection,control_link,handshake,sealed_link,token}.cpp "$build"/{runtime/*,checkpoint}/*_capnp.cpp
  break
done

if chosen store; then
  compile stores devices/base/{check,status}.cpp checkpoint/checksum.cpp runtime/store/{base64,claim_text,etcd_messages,store_url}.cpp
fi

status=0
for target in "${targets[@]}"; do
  chosen_library=links
  [[ " ${files[*]} " == *" $target "* ]] && chosen_library=files
  [[ " ${stores[*]} " == *" $target "* ]] && chosen_library=stores
  link "$chosen_library" "$target"
  inputs=("$build/$target")
  mkdir -p "$build/$target"
  [ -d "tests/fuzz/kept/$target" ] && inputs+=("tests/fuzz/kept/$target")
  nice -n 19 "$build/${target}_fuzz" -max_total_time="$seconds" -max_len=16384 -timeout=10 -artifact_prefix="$build/finding-$target-" \
    -print_final_stats=1 "${inputs[@]}" >"$build/$target.log" 2>&1 || status=1
  echo "== $target, $seconds s"
  grep ' cov: ' "$build/$target.log" | tail -n 1
  tail -n 15 "$build/$target.log"
done
exit $status
