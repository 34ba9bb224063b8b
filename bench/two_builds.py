#!/usr/bin/env python3
"""Two builds of Troupe side by side: the time of a step, and the loss after training, pair by pair.

  bench/two_builds.py steps --before ROOT --after ROOT --data FILE CONFIG [--pairs 10] [--steps 6] [-- further arguments of train]
  bench/two_builds.py runs  --before ROOT --after ROOT --data FILE CONFIG [--pairs 10] [--steps 6] [-- ...]
  bench/two_builds.py loss  --before ROOT --after ROOT --data FILE CONFIG [--pairs 5]  [--steps 1000] [-- ...]

ROOT is a checkout with build/apps/troupe. Pairs alternate which build goes first; with several --before, each round runs all of them, in turn
another one first, and its ratio to each is printed. `steps` prints the ratio of the median
step times, `runs` that of the means (where other programs run between the acts of some steps, such as an evaluation; evaluation is off
unless the arguments turn it on); `loss` trains both with each of the seeds 1, 2, ... and prints the difference of the evaluation losses."""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile


def train(root, args, steps, extra):
    with tempfile.TemporaryDirectory() as out:
        config = os.path.join(root, "apps/configs", args.config + ".toml")
        command = [os.path.join(root, "build/apps/troupe"), "train", config, "--data", args.data, "--steps", str(steps), "--out", out, "--quiet", *extra, *args.further]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr}")
        lines = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
        return lines, json.load(open(os.path.join(out, "run.json")))


def step_ms(root, args, _):
    lines, _ = train(root, args, args.steps, ["--set", "eval.every=0"])
    average = statistics.median if args.what == "steps" else statistics.mean
    return average([line["step_ms"] for line in lines if "step_ms" in line][2:])   # the first two touch memory for the first time


def eval_loss(root, args, pair):
    _, run = train(root, args, args.steps, ["--set", f"run.seed={pair + 1}", "--set", f"eval.every={args.steps}"])
    return run["eval_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "runs", "loss"])
    parser.add_argument("config")
    parser.add_argument("--before", required=True, action="append")
    for name in ("--after", "--data"):
        parser.add_argument(name, required=True)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--steps", type=int)
    argv = sys.argv[1:]
    further = argv[argv.index("--") + 1:] if "--" in argv else []
    args = parser.parse_args(argv[:argv.index("--")] if "--" in argv else argv)
    args.further = further
    measure = eval_loss if args.what == "loss" else step_ms
    args.pairs = args.pairs or (5 if args.what == "loss" else 10)
    args.steps = args.steps or (1000 if args.what == "loss" else 6)
    kind = "difference of evaluation losses" if args.what == "loss" else "ratio of step times"
    roots = args.before + [args.after]
    values = {before: [] for before in args.before}
    for pair in range(args.pairs):
        first = pair % len(roots)
        got = {root: measure(root, args, pair) for root in roots[first:] + roots[:first]}
        after = got[args.after]
        for before, ratios in values.items():
            ratios.append(after - got[before] if args.what == "loss" else after / got[before])
        print(f"pair {pair + 1}: " + ", ".join(f"before {got[b]:.6g}, after {after:.6g}: {values[b][-1]:.6g}" for b in args.before), flush=True)
    for before, ratios in values.items():
        error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else float("nan")
        print(f"{args.config} {' '.join(further)}: {kind}, after over {before}: median {statistics.median(ratios):.6g}, mean {statistics.mean(ratios):.6g}, "
              f"standard error {error:.2g}, {len(ratios)} pairs")


if __name__ == "__main__":
    main()
