#!/usr/bin/env bash
# Pipeline schedules with 4 and 8 worker processes on the paced device (kernels sleep, so a few cores will do): measured
# makespan of a step against the published one.
#
#   bench/schedules.sh [STEPS] [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${2:-build}
cmake --build "$build" --target bench_schedules >/dev/null
"$build/bench/bench_schedules" "${1:-9}"
