#!/usr/bin/env bash
# Runs seeds of simulated jobs (tests/README.md, "Scenarios"), and checks each against the undisturbed job.
#
#   tests/scenarios/run.sh 10000                       # seeds 1 to 10000, twice each
#   tests/scenarios/run.sh 2000 --machines             # of jobs on several machines
#   tests/scenarios/run.sh --seed 4711                 # one seed, with its story
#   tests/scenarios/run.sh --planted no_sync           # seeds 1 to 1000, until the planted error is found
#
# Further options go to build/tests/test_scenarios (--help lists them). Exits with 1 where a seed fails, and prints the
# command that replays it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ -f build/CMakeCache.txt ] || cmake -G Ninja -B build -DTROUPE_UNITY=ON >/dev/null
cmake --build build --target test_scenarios >build/scenarios.log 2>&1 || { cat build/scenarios.log >&2; exit 2; }
arguments=("$@")
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  arguments=(--seeds "1:$1" "${@:2}")
elif [[ " $* " == *" --planted "* && " $* " != *" --seed"* ]]; then
  arguments+=(--seeds 1:1000)
fi
exec build/tests/test_scenarios "${arguments[@]}"
