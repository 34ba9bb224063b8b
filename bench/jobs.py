"""Processes that are measured: `troupe train`, the bench tools, the peers."""
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(os.environ.get("TROUPE_PEERS", Path.home() / ".cache/troupe-peers"))
CONFIG = ROOT / "apps/configs/lm-10m.toml"
TOKENS = 2048         # of a step of lm-10m
SKIPPED = 2           # first steps of every run: cold memory
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


def start(command, **more):
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


def train(steps, *more):
    """Tokens per second of one job."""
    out = SCRATCH / "run"
    finish(start(train_command(out, steps, *more)))
    return TOKENS / step_ms(out) * 1e3


def train_apart(jobs, steps):
    """Tokens per second of `jobs` one-worker jobs side by side, together."""
    outs = [SCRATCH / f"apart{i}" for i in range(jobs)]
    cores = sorted(os.sched_getaffinity(0))
    for p in [start(["taskset", "-c", core, *train_command(out, steps)]) for core, out in zip(cores, outs)]:
        finish(p)
    return sum(TOKENS / step_ms(out) * 1e3 for out in outs)


def torch(python, steps, world=1):
    """Tokens per second of the same model in PyTorch: one process, or `world` replicas with DDP over gloo."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    replicas = [start([python, ROOT / "bench/peers/torch_lm.py", CONFIG, text(), steps, "--rank", r, "--world", world, "--port", port],
                      env={**os.environ, "OMP_NUM_THREADS": "1"}) for r in range(world)]
    answers = [json.loads(finish(p).strip().splitlines()[-1]) for p in replicas]
    return TOKENS / max(median(a["step_ms"][SKIPPED:]) for a in answers) * 1e3
