#!/usr/bin/env bash
# threads.sh TROUPE: trains on two workers with a binary that is built with ThreadSanitizer; fails where it finds a data race.
set -euo pipefail
troupe=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'cat "$work"/race* 2>/dev/null || true; rm -rf "$work"' EXIT  # reports also where the job fails, by a race or not
[[ $(TSAN_OPTIONS=help=1 "$troupe" --help 2>&1) == *ThreadSanitizer* ]] || { echo "$troupe: built without ThreadSanitizer" >&2; exit 2; }
for i in $(seq 2000); do echo "sentence $((i * 7919 % 1000)) of a text"; done > "$work/text.txt"
export UCX_MEM_EVENTS=n  # UCX's hooks of memory calls run on threads that have ended for ThreadSanitizer: it would crash there
export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp log_path=$work/race"
for run in "--mesh dp=2" "--mesh pp=2 --threads 2" "--mesh tp=2" "--mesh tp=2 --set schedule.ahead=2" "--mesh dp=2 --zero 3"; do
  # shellcheck disable=SC2086  # words of the run
  "$troupe" train "$root/apps/configs/lm-tiny.toml" --data "$work/text.txt" --steps 6 --checkpoint-every 2 --quiet --out "$work/out" $run
  rm -r "$work/out"
done
if compgen -G "$work/race*" >/dev/null; then exit 1; fi  # a worker that has seen a race ends as ever
