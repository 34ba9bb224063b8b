"""Checkpoints measured: the steps of a job that saves every one, writing and reading beside fio and PyTorch."""
import argparse
import json
import shutil
import tempfile
from pathlib import Path
from statistics import median, quantiles

from jobs import PYTHONS, ROOT, finish, metrics, run_json, start, step_times, text
from rounds import Row, measure, spread, table

MB = 1e6


def train(out, config, steps, *more):
    shutil.rmtree(out, ignore_errors=True)
    finish(start([ROOT / "build/apps/troupe", "train", config, "--data", text(), "--steps", steps, "--out", out, "--quiet", "--pin",
                  "--set", "eval.every=0", *more]))
    return out


def saves(out):
    return [line for line in metrics(out) if line.get("checkpoint") == "saved"]


def steps_of(folder, rounds, name, steps, *more):
    """Saving every step against never: the job's steps, and what its updates waited for copies."""
    config, stalls, skipped = ROOT / f"apps/configs/{name}.toml", [], []

    def never():
        return median(step_times(train(folder / "never", config, steps, *more)))

    def every():
        out = train(folder / "every", config, steps, "--checkpoint-every", 1, *more)
        ms = median(step_times(out))
        stalls.extend(100 * line["stall_ms"] / ms for line in saves(out))
        skipped.append(sum(line.get("checkpoint") == "skipped" for line in metrics(out)))
        return ms

    found = measure({"never": never, "every step": every}, rounds)
    ratio = median(a / b for a, b in zip(found["every step"], found["never"]))
    p99 = quantiles(stalls, n=100)[98] if len(stalls) > 1 else max(stalls)
    print(f"\n| {name}, {' '.join(map(str, more)) or 'one worker'} | never | every step | ratio (goal at most 1.05) | stall, median (1 %) | p99 (5 %) | skipped |")
    print("|---|---|---|---|---|---|---|")
    print(f"| ms a step | {spread(found['never'])} | {spread(found['every step'])} | {ratio:.3f} | {median(stalls):.2f} % | {p99:.2f} % | {sum(skipped)} of {rounds * steps} |\n", flush=True)


# A state of about 1.2 GB, and of about 4 GB; steps that are as small as they can be, for only the disk is measured.
TINY_STEPS = ["--set", "schedule.batch=1", "--set", "schedule.microbatch=1", "--set", "schedule.lanes=1", "--set", "model.seq=16"]
STATES = {"1.2 GB": [], "4 GB": ["--set", "model.layers=48"]}


def fio(folder, size, mode):
    """Seconds to write or read `size` bytes in one file: 8 MiB at a time, four at once, direct, synced at the end."""
    path = folder / "fio.data"
    job = ["fio", "--name=x", f"--filename={path}", f"--size={size}", "--bs=8M", "--direct=1", "--ioengine=libaio", "--iodepth=4", "--end_fsync=1",
           "--refill_buffers", "--randrepeat=0", "--output-format=json", f"--rw={mode}"]
    if mode == "write" and path.exists():
        path.unlink()
    out = finish(start(job))
    return json.loads(out[out.index("{"):])["jobs"][0]["write" if mode == "write" else "read"]["runtime"] / 1e3 if mode == "read" else \
        json.loads(out[out.index("{"):])["jobs"][0]["job_runtime"] / 1e3


def save_and_restore(folder, rounds, what):
    config = ROOT / "apps/configs/lm-100m.toml"
    rows = []
    for name, more in STATES.items():
        out = train(folder / "job", config, 2, "--checkpoint-every", 1, *TINY_STEPS, *more)
        size = saves(out)[-1]["parameter_bytes"] + saves(out)[-1]["moment_bytes"]

        def save():   # the last version: nothing computes beside it
            line = saves(train(folder / "job", config, 2, "--checkpoint-every", 2, *TINY_STEPS, *more))[-1]
            return size / MB / (line["save_ms"] / 1e3)

        def restore():
            again = folder / "again"
            shutil.rmtree(again, ignore_errors=True)
            finish(start([ROOT / "build/apps/troupe", "train", config, "--data", text(), "--steps", 2, "--out", again, "--quiet", "--resume",
                          folder / "job/checkpoints", "--set", "eval.every=0", *TINY_STEPS, *more]))
            worker = json.loads((again / "run.json").read_text())["workers"][0]
            assert worker["restored_bytes"] == size
            return size / MB / worker["restore_s"]

        if "save" in what:
            sides = {"troupe": save, "fio": lambda: size / MB / fio(folder, size, "write")}
            if PYTHONS["PyTorch, current wheel"].exists() and size < 2e9:
                def torch():
                    shutil.rmtree(folder / "dcp", ignore_errors=True)
                    seconds = run_json([PYTHONS["PyTorch, current wheel"], ROOT / "bench/peers/torch_save.py", folder, size])
                    return {key: size / MB / value for key, value in seconds.items()}
                sides["torch"] = torch
            found = measure(sides, rounds)
            rows.append(Row(f"save, {name}", "MB/s", found["troupe"], found["fio"], "fio, write", goal=0.85))
            for key, label in (("save", "torch.save, synced"), ("async", "torch.distributed.checkpoint.async_save, synced")):
                if f"torch.{key}" in found:
                    rows.append(Row(f"save, {name}", "MB/s", found["troupe"], found[f"torch.{key}"], label))
        if "restore" in what:
            fio(folder, size, "write")
            found = measure({"troupe": restore, "fio": lambda: size / MB / fio(folder, size, "read")}, rounds)
            rows.append(Row(f"restore, {name}", "MB/s", found["troupe"], found["fio"], "fio, read", goal=0.85))
    print("\n" + table(rows) + "\n", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["steps", "save", "restore"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    a = parser.parse_args()
    folder = a.folder or Path(tempfile.mkdtemp(prefix="troupe-checkpoint-", dir="/var/tmp"))
    folder.mkdir(exist_ok=True)
    try:
        if "steps" in a.what:
            steps_of(folder, a.rounds, "lm-10m", 20)
            steps_of(folder, a.rounds, "lm-10m", 20, "--mesh", "dp=2")
            steps_of(folder, a.rounds, "lm-100m", 6, "--set", "schedule.batch=2", "--set", "schedule.lanes=2")
        if {"save", "restore"} & set(a.what):
            save_and_restore(folder, a.rounds, a.what)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
