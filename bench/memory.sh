#!/bin/bash
# Planned and real peak memory, and bytes that a place sends in a step, for ZeRO 0 to 3: bench/memory.sh CONFIG TEXT [BUILD] prints a Markdown table.
# Memory does not depend on what else the machine does: other work may go on beside it.
set -euo pipefail
config=$1 text=$2 troupe=${3:-build}/apps/troupe
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
steps=3
for dp in 1 2 4; do
  for zero in 0 1 2 3; do
    [ $dp != 1 ] || [ $zero = 0 ] || continue
    "$troupe" train "$config" --data "$text" --mesh dp=$dp --zero $zero --steps $steps --set eval.every=0 \
      --quiet --out "$out/$dp-$zero" || { echo "$0: dp=$dp, zero $zero failed" >&2; exit 1; }
  done
done
python3 - "$out" $steps <<'PYTHON'
import json, re, sys

MIB = 1 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}

def planned(path):
    """The first row of the plan's table of memory, in bytes by purpose."""
    lines = open(path).read().split("peak memory per device")[1].splitlines()[1:3]
    names = re.split(r"\s{2,}", lines[0].strip())
    cells = re.split(r"\s{2,}", lines[1].strip())
    size = lambda text: float(text.split()[0]) * UNITS[text.split()[1]] if " " in text else None
    return {name: size(cell) for name, cell in zip(names, cells)}

print("| mesh | zero | parameters | gathered | gradients | optimizer | other | planned | real peak | peak - planned | files | shared | heap, stacks | peak / planned | sent, MiB a step |")
print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
for dp in (1, 2, 4):
    for zero in range(4 if dp > 1 else 1):
        folder = f"{sys.argv[1]}/{dp}-{zero}"
        plan = planned(f"{folder}/plan.txt")
        workers = json.load(open(f"{folder}/run.json"))["workers"]
        worker = max(workers, key=lambda w: w["peak_bytes"])
        sent = sum(w["sent_bytes"] for w in workers) / len(workers) / int(sys.argv[2])
        pool, peak, files, shared = (worker[k] for k in ("planned_bytes", "peak_bytes", "file_bytes", "shared_bytes"))
        kept = [plan[k] for k in ("parameters", "gathered", "gradients", "optimizer")]
        row = kept + [pool - sum(kept), pool, peak, peak - pool, files, shared, peak - pool - files - shared]
        print(f"| dp={dp} | {zero} | " + " | ".join(f"{x / MIB:.1f}" for x in row) + f" | {peak / pool:.2f} | {sent / MIB:.1f} |")
PYTHON
