#!/usr/bin/env python3
"""The shape with which a run goes on that loses a worker for good, against the others that it weighed. Paced: kernels sleep the time that the
cost model predicts, so that as many workers as one likes run beside each other.

  bench/choice.py --data FILE [--troupe build/apps/troupe] [--config lm-10m] [--paced 1] [--steps 24] [--rounds 3] [MESH:WORKER ...]

For each MESH:WORKER (default: dp=4:1 and dp=2,pp=2:2) a run with `--recovery slots --replace never` begins on MESH, worker WORKER is killed by
SIGKILL, and the run goes on as the incident says. Printed: the median step after the loss over that of a run which began with the chosen
shape, and the median step of each shape that was weighed beside it, started on its own, over the chosen one's. Rounds by turns; medians of all."""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
COLD = 3  # steps that touch memory for the first time


def lines(out, name):
    path = os.path.join(out, name)
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def command(args, mesh, out, steps, more):
    return [args.troupe, "train", os.path.join(ROOT, "apps/configs", args.config + ".toml"), "--data", args.data, "--mesh", mesh, "--paced", str(args.paced),
            "--steps", str(steps), "--set", "eval.every=0", "--out", out, "--quiet", "--recovery", "slots", *more]


def steps_of(out, first):
    return [m["step_ms"] for m in lines(out, "metrics.jsonl") if m["step"] >= first]


def alone(args, mesh):
    with tempfile.TemporaryDirectory() as out:
        run = subprocess.run(command(args, mesh, out, args.steps, []), capture_output=True, text=True)
        return steps_of(out, COLD) if run.returncode == 0 else None


def after_a_loss(args, mesh, worker):
    """The incident, and the steps after it."""
    with tempfile.TemporaryDirectory() as out:
        run = subprocess.Popen(command(args, mesh, out, 2 * args.steps, ["--replace", "never"]), stderr=subprocess.PIPE, text=True)
        while len(lines(out, "metrics.jsonl")) < args.steps // 2 and run.poll() is None:
            time.sleep(0.05)
        state = subprocess.run([args.troupe, "ps", out], capture_output=True, text=True).stdout
        pid = int(re.search(rf"^{worker}\s+\d+\s+\d+\s+(\d+)", state, re.M).group(1))
        os.kill(pid, signal.SIGKILL)
        _, err = run.communicate()
        incidents = [i for i in lines(out, "incidents.jsonl") if "mesh" in i]
        if run.returncode != 0 or len(incidents) != 1:
            sys.exit(f"{mesh}: exit code {run.returncode}, {len(incidents)} incidents\n{err}")
        return incidents[0], steps_of(out, incidents[0]["step"] + COLD)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", nargs="*", default=["dp=4:1", "dp=2,pp=2:2"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--troupe", default=os.path.join(ROOT, "build/apps/troupe"))
    parser.add_argument("--config", default="lm-10m")
    parser.add_argument("--paced", type=float, default=1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for loss in args.losses:
        mesh, worker = loss.rsplit(":", 1)
        after, own, others, chosen = [], [], {}, None
        for _ in range(args.rounds):
            incident, steps = after_a_loss(args, mesh, worker)
            if chosen not in (None, incident["mesh"]):
                sys.exit(f"{mesh}: it goes on as {chosen}, and as {incident['mesh']} another time")
            chosen = incident["mesh"]
            after += steps
            own += alone(args, chosen)
            for other in incident["others"]:
                shape = other.split(":")[0].strip()
                took = alone(args, shape)
                others.setdefault(other, []).extend(took or [])
        base = statistics.median(own)
        print(f"{mesh}, worker {worker} is lost: goes on as {chosen}: {statistics.median(after):.1f} ms a step, a run that began so {base:.1f}: "
              f"{statistics.median(after) / base:.3f}", flush=True)
        for other, took in others.items():
            print(f"  {other}: " + (f"{statistics.median(took):.1f} ms, {statistics.median(took) / base:.3f} of the chosen one" if took else "does not run"), flush=True)


if __name__ == "__main__":
    main()
