#!/usr/bin/env bash
# shellcheck disable=SC2317  # phases are called by name
# Installs, builds, runs all tests, then runs the tests of the pure parts once more under AddressSanitizer and
# UndefinedBehaviorSanitizer, which are compiled beside the first ones. Exits with 0 only if everything passed. Prints
# what each phase took.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# Not the tests that start processes: they would test UCX's and the command's binaries, which are not instrumented.
sanitized='test_(placement|devices|kernels|comm|checkpoint|actors|runtime|apps|numbers)'
times=() summaries=() failed=0

# phase NAME COMMAND...: runs, keeps the time; `must` stops the script on failure, `may` notes it.
phase() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  times+=("$(printf '%-28s %5d s%s' "$name" $((SECONDS - begin)) "$([ $status -eq 0 ] || echo '  FAILED')")")
  return "$status"
}
# begin NAME COMMAND...: begins what the next phases need not wait for, where the processors have nothing else to do
# (SCHED_IDLE): most of the time of tests that run alone they wait. `finished NAME` waits for it, and prints what it said.
declare -A begun=()
logs=$(mktemp -d) || exit 1
begin() {
  local name=$1
  shift
  set -m  # a process group of its own, which ends with this script
  ( chrt --idle --pid 0 "$BASHPID" || renice -n 19 -p "$BASHPID"; "$@" ) >"$logs/$name" 2>&1 &
  begun[$name]=$!
  set +m
}
finished() {
  local status=0
  wait "${begun[$1]}" || status=$?
  unset "begun[$1]"
  cat "$logs/$1"
  return "$status"
}
end_begun() {
  local pid
  for pid in "${begun[@]}"; do kill -- "-$pid" 2>/dev/null; done
  rm -rf "$logs"
}
trap end_begun EXIT
trap 'exit 130' INT TERM HUP

must() { phase "$@" || { report; exit 1; }; }
may() { phase "$@" || failed=1; }

report() {
  printf '\n== times\n'
  printf '%s\n' "${times[@]}" "$(printf '%-28s %5d s' total $SECONDS)"
  [ ${#summaries[@]} -eq 0 ] || printf '%s\n' "${summaries[@]}"
}

build() { cmake -G Ninja -B "$@" >/dev/null; }

run_ctest() {  # DIR [further arguments of ctest]
  local dir=$1 log=$1/ctest.log status=0
  shift
  ctest --test-dir "$dir" --output-on-failure --no-tests=error "$@" | tee "$log" || status=$?
  # What could not run here: tests that ended with 77, and test cases within others, with their reasons.
  local all=$dir/Testing/Temporary/LastTest.log tests cases
  tests=$(grep -c '\*\*\*Skipped' "$log")
  cases=$(awk '/^skipped test cases: / { n += $4 } END { print n + 0 }' "$all")
  summaries+=("$dir: $(grep -E '% tests passed|No tests' "$log" | tail -n 1); skipped: $tests tests, $cases test cases")
  mapfile -t -O ${#summaries[@]} summaries < <(grep -aiE '^skipped: ' "$all" | sed 's/^/  /')
  return "$status"
}

build_sanitized() {
  # -O1: half the compile time of -O2 under sanitizers. In instrumented libstdc++ GCC 12 sees uninitialised values, and
  # GCC 14 reads and writes beyond initializer lists of one element; the build without sanitizers has these warnings.
  build build-asan -DTROUPE_SANITIZE=ON -DTROUPE_UNITY=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 -DCMAKE_BUILD_TYPE=Sanitized \
    -DCMAKE_CXX_FLAGS_SANITIZED="-O1 -g1 -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overread" || return 1
  local targets
  mapfile -t targets < <(ctest --test-dir build-asan -N | grep -oE " $sanitized(\.|\$)" | grep -oE "$sanitized" | sort -u)
  [ ${#targets[@]} -gt 0 ] || { echo "no test to build under sanitizers" >&2; return 1; }
  cmake --build build-asan --target "${targets[@]}"
}

# Data races in what has threads of its own. Frames of libraries that are not instrumented: tests/tsan.supp.
threaded='test_(devices|comm)'
build_threaded() {
  build build-tsan -DTROUPE_SANITIZE=thread -DTROUPE_UNITY=ON -DTROUPE_BENCH=OFF -DCMAKE_BUILD_TYPE=Sanitized \
    -DCMAKE_CXX_FLAGS_SANITIZED="-O1 -g1" || return 1
  cmake --build build-tsan --target test_devices test_comm
}
run_threaded() {  # REGEX of tests
  # UCX's hooks of memory calls run on threads that have ended for ThreadSanitizer: it would crash there.
  UCX_MEM_EVENTS=n TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1" run_ctest build-tsan -R "^$1(\.|\$)"
}

# Everything that takes too long for each change: real processes under both sanitizers, all pairs of topologies.
run_long() {
  cmake --build build-asan --target test_process test_command || return 1
  may "whole trainings, AddressSanitizer" run_ctest build-asan -R "$slow"
  may "processes, AddressSanitizer" run_ctest build-asan -R '^test_(process|command)(\.|$)'
  cmake --build build-tsan --target troupe test_checkpoint test_actors || return 1
  may "checkpoint and actors, ThreadSanitizer" run_threaded 'test_(checkpoint|actors)'
  may "two workers, ThreadSanitizer" tests/threads.sh build-tsan/apps/troupe
  may "soak" tests/soak.py build/apps/troupe
  may "scenarios, 10,000 seeds" tests/scenarios/run.sh 10000
  TROUPE_RESTORE_PAIRS=all may "restore, all pairs" run_ctest build -R '^test_numbers\.checkpoint$'
}

mapfile -t packages < <(grep -v '^#' tests/packages.txt)
must "install packages" cmake/install-packages.sh "${packages[@]}"
# From nothing, several files are compiled as one: half the time. A build that is there stays as it was configured.
unity=()
[ -f build/CMakeCache.txt ] || unity=(-DTROUPE_UNITY=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16)
must "configure" build build "${unity[@]}"
must "build" cmake --build build
each_file() {  # An ordinary build has shown it. A quarter of the files, another one at each commit; all of them with --long.
  local parts=(-DPARTS=4 "-DPART=$((0x0$(git rev-parse --short=4 HEAD 2>/dev/null) % 4))")
  [ "${1:-}" != --long ] || parts=()
  grep -q '^TROUPE_UNITY:BOOL=OFF' build/CMakeCache.txt ||
    cmake -DROOT="$PWD" -DBUILD="$PWD/build" "${parts[@]}" -P cmake/each_file.cmake
}
begin "each file" each_file "${1:-}"
begin "sanitizers" build_sanitized
may "tests" run_ctest build -j 2 -E '^each_file$'
may "each file on its own" finished "each file"
must "build with sanitizers" finished "sanitizers"
# Smaller draws: instrumented code is slow.
export TROUPE_RANDOM_PLANS=${TROUPE_RANDOM_PLANS:-1:60} TROUPE_PLAN_FUZZ=${TROUPE_PLAN_FUZZ:-1:300} TROUPE_ONE_IN=${TROUPE_ONE_IN:-8}
# The slowest two, whole trainings, are among the long tests: other tests run the same code.
slow='^test_numbers\.(zero|tensor_parallel)$'
may "tests with sanitizers" run_ctest build-asan -j 2 -R "^$sanitized(\.|\$)" -E "$slow"
must "build with TSan" build_threaded
may "tests with TSan" run_threaded "$threaded"
[ "${1:-}" != --long ] || may "long tests" run_long
report
exit $failed
