"""Processes that are measured: `troupe train` and the bench tools; on which cores they and their peers run."""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(os.environ.get("TROUPE_PEERS", Path.home() / ".cache/troupe-peers"))
CONFIG = ROOT / "apps/configs/lm-10m.toml"
BATCH, TOKENS = 8, 2048   # samples and tokens of a step of lm-10m
SKIPPED = 2           # first steps of every run: cold memory
WAYS = ["--mesh dp=1", "--threads 2", "--mesh dp=2", "--mesh pp=2", "--mesh dp=2,pp=2", "--mesh dp=2 --zero 1", "--mesh dp=2 --zero 2",
        "--mesh dp=2 --zero 3"]   # all must give the same numbers
SCRATCH = Path(tempfile.mkdtemp(prefix="troupe-bench-"))
PYTHONS = {"PyTorch, current wheel": PEERS / "torch/bin/python", "PyTorch, Debian": Path("/usr/bin/python3")}


def text():
    """Half a megabyte of words: speed does not depend on what they say."""
    path = SCRATCH / "text.txt"
    if not path.exists():
        draw = random.Random(1)
        words = ["".join(draw.choice("etaoinshrdlu") for _ in range(draw.randint(2, 8))) for _ in range(500)]
        path.write_text(" ".join(draw.choice(words) for _ in range(100_000)))
    return path


def cores(count):
    """The first `count` cores that this process may use: all sides of a comparison run on the same ones."""
    own = sorted(os.sched_getaffinity(0))
    if len(own) < count:
        sys.exit(f"this comparison runs on {count} cores, and only {len(own)} may be used here: leave it out, or use another machine")
    return own[:count]


def on(at, command):
    """The command on these cores only, with all its threads and child processes."""
    return ["taskset", "-c", ",".join(map(str, at)), *command]


def start(command, **more):
    tool = next((Path(str(word)) for word in command if str(word).startswith("/")), Path())   # behind taskset, if it is there
    if tool.is_absolute() and not tool.exists():
        target = "" if tool.name == "troupe" else f" --target {tool.name}"
        sys.exit(f"{tool} is not built: cmake --build {ROOT / 'build'}{target}")
    return subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **more)


def finish(process):
    out, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(process.args)}: exit code {process.returncode}\n{out}{err}")
    return out


def run_json(command, **more):
    """The last line of what a tool prints."""
    return json.loads(finish(start(command, **more)).strip().splitlines()[-1])


def train_command(out, steps, *more):
    return [ROOT / "build/apps/troupe", "train", CONFIG, "--data", text(), "--steps", steps, "--out", out, "--quiet", *more]


def step_ms(out):
    """Median step of a run, its first steps left out."""
    return median(step_times(out))


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def step_times(out):
    """Milliseconds of each step but the first."""
    return [line["step_ms"] for line in metrics(out) if "step_ms" in line][SKIPPED:]


def decides_numbers(run):
    """What a job's parameters depend on (run: its run.json): not on dp, pp, ZeRO, threads, the order of work, saving or what only reads them."""
    config = {name: values for name, values in run["config"].items() if name in ("model", "optimizer", "data")}
    schedule = {name: value for name, value in run["config"]["schedule"].items() if name not in ("pipeline", "ahead")}
    axes = dict(re.findall(r"(tp|pp)=(\d+)", run["mesh"]))
    tp = int(axes.get("tp", 1))
    shared = int(axes.get("pp", 1)) if run["config"]["mesh"]["shared_vocabulary"] else 1
    return json.dumps([config, schedule, run["config"]["run"]["seed"], run["steps"], run["data"], tp, shared, run["layout_costs"] if tp > 1 or shared > 1 else ""], sort_keys=True)


first_runs = {}       # what decides the numbers: the params_hash and the command of the first job


def check_numbers(out, command):
    """Ends the measurement where a job has other parameters than an earlier one that must have the same."""
    run = json.loads((out / "run.json").read_text())
    if "resumed_at" in run:
        return        # its parameters depend on what it was resumed from
    words = " ".join(str(word) for word in command)
    params_hash, first = first_runs.setdefault(decides_numbers(run), (run["params_hash"], words))
    if run["params_hash"] != params_hash:
        sys.exit(f"two jobs that must give the same parameters do not:\n  {params_hash}  {first}\n  {run['params_hash']}  {words}")


def finish_train(process, out):
    finish(process)
    check_numbers(out, process.args)


def check_ways():
    """A few steps of lm-10m in each of WAYS. Ends the measurement where one has other numbers."""
    for way in WAYS:
        finish_train(start(train_command(SCRATCH / "run", 3, *way.split())), SCRATCH / "run")


def train(steps, *more, at=()):
    """Tokens per second of one job; on the cores `at`, where some are named, each worker's compute thread on its own."""
    out = SCRATCH / "run"
    command = train_command(out, steps, *more)
    finish_train(start(on(at, [*command, "--pin"]) if at else command), out)
    return TOKENS / step_ms(out) * 1e3


def train_apart(at, steps, *more):
    """Tokens per second of one-worker jobs side by side, together: one on each of the cores `at`."""
    outs = [SCRATCH / f"apart{core}" for core in at]
    for p, out in [(start(on([core], train_command(out, steps, *more))), out) for core, out in zip(at, outs)]:
        finish_train(p, out)
    return sum(TOKENS / step_ms(out) * 1e3 for out in outs)
