#!/usr/bin/env bash
# Overlap of gradient reduction with computing: dp=2 on the paced device, links throttled so that a step's messages take
# 0.3, 0.5 and 0.8 of its computing. Each measured step (median of those after the first two) against `troupe sim --ideal`:
# unlimited slots and streams on the same links.
#
#   bench/overlap.sh DATA [TROUPE]       a training text; the command (default: build/apps/troupe)
#
# STEPS (12), SCALE (2: the paced device takes twice the predicted time), CONFIG, OUT (a folder) may be set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
data=$1 troupe=${2:-build/apps/troupe}
config=${CONFIG:-apps/configs/lm-10m.toml} steps=${STEPS:-12} scale=${SCALE:-2} out=${OUT:-$(mktemp -d)}
export XDG_CACHE_HOME=$out   # the cost model's defaults, whatever has been calibrated here

# ms NAME: the milliseconds in the simulation's line of that name, from stdin.
ms() { awk -v name="$1" '$1 == name { print $3 == "s" ? $2 * 1e3 : $3 == "us" ? $2 * 1e-3 : $2 }'; }

printf '%s, dp=2, %s steps, paced x %s\n' "$config" "$steps" "$scale"
printf '%12s %12s %14s %12s %12s %8s\n' microbatches messages bandwidth ideal measured ratio
for microbatch in 4 1; do
  common=("$config" --mesh dp=2 --paced "$scale" --set "schedule.microbatch=$microbatch" --set schedule.batch=8)
  fast=$("$troupe" sim "${common[@]}")
  slow=$("$troupe" sim "${common[@]}" --throttle bandwidth=1MB/s)
  compute=$(ms compute <<<"$fast")
  # Bytes that a place sends per step: what they take more at 1 MB/s.
  bytes=$(awk -v a="$(ms messages <<<"$fast")" -v b="$(ms messages <<<"$slow")" 'BEGIN { print (b - a) * 1e3 }')
  for share in 0.3 0.5 0.8; do
    rate=$(awk -v b="$bytes" -v c="$compute" -v s="$share" 'BEGIN { printf "%.1f", b / (c * 1e-3 * s) / 1e6 }')
    slow=(--throttle "latency=50us,bandwidth=${rate}MB/s")
    ideal=$("$troupe" sim "${common[@]}" "${slow[@]}" --ideal | ms step)
    "$troupe" train "${common[@]}" "${slow[@]}" --data "$data" --steps "$steps" --quiet --out "$out/run"
    measured=$(sed -n 's/.*"step_ms": *\([0-9.e+-]*\).*/\1/p' "$out/run/metrics.jsonl" | tail -n +3 | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
    awk -v m="$((8 / microbatch))" -v s="$share" -v r="$rate" -v i="$ideal" -v t="$measured" \
      'BEGIN { printf "%12d %12s %9s MB/s %9.1f ms %9.1f ms %8.3f\n", m, s " x", r, i, t, t / i }'
  done
done
