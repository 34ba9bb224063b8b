#!/usr/bin/env python3
"""Simulated against measured: steps of lm-10m on random meshes, schedules and links, on the paced device.

    bench/predictions.py [--seed N] [--plans N] [--repeats N] [--costs FILE]

Each plan is run by `troupe train --paced 2` on throttled links, and played by `troupe sim` with the same costs (default: what
`troupe calibrate` has left here). Prints a line for each, then the median and the worst error of the plans whose repeats differ by
less than 2 %. Run it on a machine that does nothing else.
"""
import argparse
import json
import os
import random
import subprocess
from statistics import median

import jobs
import overlap

TROUPE = jobs.ROOT / "build/apps/troupe"
STEPS = 7
MESHES = ["dp=2", "tp=2", "pp=2", "dp=4", "tp=4", "pp=4", "dp=2,tp=2", "dp=2,pp=2", "tp=2,pp=2"]


def draw(rng):
    mesh = rng.choice(MESHES)
    words = ["--mesh", mesh, "--paced", "2"]
    if "dp" in mesh:
        words += ["--zero", str(rng.choice([0, 0, 1, 2, 3]))]
    microbatch = rng.choice([1, 1, 2])
    words += ["--set", f"schedule.microbatch={microbatch}"]
    stages = 4 if "pp=4" in mesh else 2 if "pp=2" in mesh else 1
    if stages > 1 and "--zero" not in words and rng.random() < 0.3:
        words += ["--set", 'schedule.pipeline="zero-bubble"']
    else:
        words += ["--set", f"schedule.ahead={rng.choice([0, 1, 2, 'auto'])}"]
    latency, rate = rng.choice([5, 50, 150, 500]), rng.choice([100, 200, 400, 1000])
    return words + ["--throttle", f"latency={latency}us,bandwidth={rate}MB/s"]


def predicted_ms(words):
    return overlap.Played(words).ms("step")


def measured_ms(words):
    folder = jobs.SCRATCH / "predictions"
    subprocess.run(["rm", "-rf", folder], check=True)
    jobs.finish(jobs.start([TROUPE, "train", jobs.CONFIG, *words, "--data", jobs.text(), "--steps", STEPS, "--quiet", "--out", folder]))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return median(line["step_ms"] for line in lines[jobs.SKIPPED:] if "step_ms" in line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--costs")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats: how much runs differ is known from 2 on")
    rng = random.Random(options.seed)
    costs = ["--costs", options.costs] if options.costs else []
    errors = []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=jobs.ROOT).stdout.strip()
    print(f"commit {commit}, {os.cpu_count()} cores, seed {options.seed}, {options.repeats} repeats, costs {options.costs or 'of this machine'}")
    print(f"{'predicted':>10} {'measured':>10} {'error':>7} {'spread':>7}  arguments")
    for _ in range(options.plans):
        words = draw(rng)
        predicted = predicted_ms(words + costs)
        times = [measured_ms(words + costs) for _ in range(options.repeats)]
        measured = median(times)
        spread = (max(times) - min(times)) / measured
        error = predicted / measured - 1
        if spread < 0.02:
            errors.append(abs(error))
        print(f"{predicted:7.0f} ms {measured:7.0f} ms {100 * error:6.1f}% {100 * spread:6.1f}%  {' '.join(words)}", flush=True)
    if errors:
        print(f"{len(errors)} plans with a spread below 2 %: median error {100 * median(errors):.1f} %, worst {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
