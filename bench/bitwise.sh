#!/bin/bash
# The same bits on every mesh: bench/bitwise.sh TEXT [BUILD] trains lm-tiny, 20 steps of 12 microbatches, with dropout and an
# active clip, tied and untied, on real processes; prints params_hash and a hash over all losses, norms and evaluations of each
# run. Exit code 1 where one differs from the first. Other work may go on beside it.
set -euo pipefail
text=$1 troupe=${2:-build}/apps/troupe
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
for tied in false true; do
  first=
  while read -r how; do
    # shellcheck disable=SC2086  # words
    "$troupe" train "$here/apps/configs/lm-tiny.toml" --data "$text" --steps 20 --set schedule.batch=12 --set model.tied=$tied \
      --quiet --out "$out/run" $how </dev/null || { echo "$0: $how failed" >&2; exit 1; }
    bits=$(python3 - "$out/run" <<'PYTHON'
import hashlib, json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
numbers = [[(key, line[key]) for key in ("step", "loss", "grad_norm", "eval_loss") if key in line] for line in lines]
print(json.load(open(sys.argv[1] + "/run.json"))["params_hash"], hashlib.md5(json.dumps(numbers).encode()).hexdigest(), len(lines))
PYTHON
    )
    first=${first:-$bits}
    [ "$bits" = "$first" ] && mark= || { mark='   DIFFERS' failed=1; }
    printf 'tied=%-5s %-52s %s%s\n' "$tied" "$how" "$bits" "$mark"
  done <<'RUNS'
--mesh dp=1
--mesh dp=1 --threads 2
--mesh dp=2
--mesh dp=3
--mesh dp=5
--mesh dp=7
--mesh dp=12
--mesh pp=2
--mesh pp=3
--mesh pp=4
--mesh dp=2,pp=2
--mesh dp=3/1,pp=2
--mesh dp=3 --zero 1
--mesh dp=3 --zero 2
--mesh dp=3 --zero 3
--mesh dp=2,pp=2 --zero 1
--mesh dp=2,pp=2 --zero 2
--mesh dp=2,pp=2 --zero 3
--mesh pp=2 --set schedule.pipeline=interleaved:2
--mesh pp=2 --set schedule.pipeline=zero-bubble
--mesh dp=2,pp=2 --zero 2 --set schedule.pipeline=zero-bubble
RUNS
done
exit $failed
