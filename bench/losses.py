#!/usr/bin/env python3
"""How long a run takes to notice that a worker is lost, and to go on: workers of one run are killed (or stopped) at random, again and again.

  bench/losses.py --data FILE [--troupe build/apps/troupe] [--config lm-10m] [--mesh dp=2] [--losses 20] [--signal KILL|STOP] [--every 2.3]

Noticed: from the signal to the moment when the run's own process reaps the worker, as strace sees it (which slows that process a little).
Goes on: from there to the first act of the next generation, as incidents.jsonl has it. The run must come to the `params_hash` of one that
nothing happens to, with one line a step."""
import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))


def command(args, out, more):
    return [args.troupe, "train", os.path.join(ROOT, "apps/configs", args.config + ".toml"), "--data", args.data, "--mesh", args.mesh, "--steps",
            str(args.steps), "--set", "eval.every=0", "--out", out, "--quiet", *more]


def workers(args, out):
    state = subprocess.run([args.troupe, "ps", out], capture_output=True, text=True).stdout
    return [int(p) for p in re.findall(r"^\d+\s+\d+\s+\d+\s+(\d+)\s+runs", state, re.M)]


def spread(name, values, unit="ms"):
    v = sorted(values)
    print(f"{name}: median {statistics.median(v):.0f}, p99 {v[min(len(v) - 1, len(v) * 99 // 100)]:.0f}, most {v[-1]:.0f} {unit}, of {len(v)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--troupe", default=os.path.join(ROOT, "build/apps/troupe"))
    parser.add_argument("--config", default="lm-10m")
    parser.add_argument("--mesh", default="dp=2")
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL")
    parser.add_argument("--every", type=float, default=2.3, help="seconds between two losses, and up to a third more")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    number = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}[args.signal]
    with tempfile.TemporaryDirectory() as folder:
        out, log = os.path.join(folder, "run"), os.path.join(folder, "strace")
        run = subprocess.Popen(command(args, out, ["--recovery", "slots"]), stderr=subprocess.PIPE, text=True)
        watch = subprocess.Popen(["strace", "-ttt", "-qq", "-e", "trace=wait4", "-e", "signal=none", "-o", log, "-p", str(run.pid)])
        while not os.path.exists(os.path.join(out, "metrics.jsonl")) or len(workers(args, out)) < 2:
            time.sleep(0.1)
        time.sleep(args.every)
        sent = {}
        while len(sent) < args.losses and run.poll() is None:
            alive = [p for p in workers(args, out) if p not in sent]
            if alive:
                pid = rng.choice(alive)
                sent[pid] = time.time()
                os.kill(pid, number)
            time.sleep(args.every * rng.uniform(1, 4 / 3))
        _, err = run.communicate()
        watch.wait()
        reaped = {int(m.group(2)): float(m.group(1)) for m in re.finditer(r"^([\d.]+) wait4\(.*= (\d+)$", open(log).read(), re.M)}
        incidents = [i for i in map(json.loads, open(os.path.join(out, "incidents.jsonl"))) if "cause" in i]
        steps = [m["step"] for m in map(json.loads, open(os.path.join(out, "metrics.jsonl"))) if "loss" in m]
        calm = os.path.join(folder, "calm")
        subprocess.run(command(args, calm, []), check=True)
        same = [json.load(open(os.path.join(o, "run.json")))["params_hash"] for o in (out, calm)]
        print(f"{args.config}, {args.mesh}, {len(sent)} times SIG{args.signal}, {args.steps} steps: exit code {run.returncode}, {len(incidents)} incidents, "
              f"{sum(i['committed'] - i['step'] for i in incidents)} steps repeated, params_hash {'the same' if same[0] == same[1] else 'ANOTHER'}")
        spread("noticed", [1e3 * (reaped[p] - at) for p, at in sent.items() if p in reaped])
        spread("goes on", [sum(i["ms"][k] for k in ("left", "agreed", "ready", "act")) for i in incidents])
        good = run.returncode == 0 and same[0] == same[1] and steps == list(range(args.steps)) and len(incidents) == len(sent) and set(sent) <= set(reaped)
        if not good:
            sys.exit(f"wrong: {len(sent)} signals, {len(reaped)} reaped, steps {steps}\n{err}")


if __name__ == "__main__":
    main()
