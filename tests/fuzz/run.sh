#!/usr/bin/env bash
# Fuzzes what reads files that others may have written: manifests, and headers of safetensors files. libFuzzer under
# AddressSanitizer and UndefinedBehaviorSanitizer; no part of the ordinary build. Wants clang (Debian: clang, libclang-rt-dev).
#
#   tests/fuzz/run.sh [SECONDS for each (600)]
#
# Exits with 0 if there was no finding. Inputs are kept in build-fuzz/, so that a later run goes on from them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-600}
build=build-fuzz
flags=(-std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -I. "-I$build")
libraries=(-lcapnp -lkj -lfmt -lpthread)

mkdir -p "$build"/{objects,checkpoint,manifest,safetensors}
capnp compile "-oc++:$build/checkpoint" --src-prefix=checkpoint checkpoint/manifest.capnp
mv "$build/checkpoint/manifest.capnp.c++" "$build/checkpoint/manifest_capnp.cpp"

objects=()
for source in checkpoint/*.cpp devices/base/*.cpp devices/sim/sim_storage.cpp devices/files/*.cpp devices/host_memory.cpp \
              placement/extent.cpp "$build/checkpoint/manifest_capnp.cpp"; do
  object=$build/objects/$(tr / _ <<<"$source").o
  objects+=("$object")
  [ "$object" -nt "$source" ] || clang++ "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
done

clang++ "${flags[@]}" tests/fuzz/seeds.cpp tests/checkpoint/sample.cpp "${objects[@]}" "${libraries[@]}" -o "$build/seeds"
"$build/seeds" "$build/manifest" "$build/safetensors"
for target in manifest safetensors; do
  clang++ "${flags[@]}" -fsanitize=fuzzer "tests/fuzz/${target}_fuzz.cpp" "${objects[@]}" "${libraries[@]}" -o "$build/${target}_fuzz"
done

fuzz() {  # TARGET
  "$build/$1_fuzz" -max_total_time="$seconds" -max_len=16384 -timeout=10 -artifact_prefix="$build/finding-$1-" -print_final_stats=1 "$build/$1" \
    >"$build/$1.log" 2>&1
}
declare -A jobs   # side by side: each has its own corpus and log
for target in manifest safetensors; do
  fuzz "$target" &
  jobs[$target]=$!
done
status=0
for target in manifest safetensors; do
  wait "${jobs[$target]}" || status=1
  echo "== $target, $seconds s"
  tail -n 15 "$build/$target.log"
done
exit $status
