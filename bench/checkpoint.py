"""Checkpoints measured: the steps of a job that saves every one, writing and reading beside fio and PyTorch, memory, a slow disk."""
import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from jobs import PYTHONS, ROOT, finish, finish_train, metrics, run_json, start, step_times, text
from rounds import Row, best, measure, spread, table
from torch_peer import installed

MB = 1e6
TORCH = PYTHONS["PyTorch, current wheel"]
DEPTHS = (1, 2, 4, 8, 16, 32)   # of fio's queue: the best one is the ceiling
LM_10M, LM_100M = ROOT / "apps/configs/lm-10m.toml", ROOT / "apps/configs/lm-100m.toml"


def clear(path):
    """The disk has forgotten it, too: some take as long for that as for writing."""
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    os.sync()
    time.sleep(0.5)


def command(out, config, steps, *more):
    clear(out)
    return [ROOT / "build/apps/troupe", "train", config, "--data", text(), "--steps", steps, "--out", out, "--quiet", "--pin", "--set", "eval.every=0", *more]


def train(out, config, steps, *more, **how):
    finish_train(start(command(out, config, steps, *more), **how), out)
    return out


def events(out, what="saved"):
    return [line for line in metrics(out) if line.get("checkpoint") == what]


def stalls_of(out):
    """Per cent of the median step, of each checkpoint but the last: nothing is updated after that."""
    ms = median(step_times(out))
    return [100 * line["stall_ms"] / ms for line in events(out)[:-1]]


# --- what saving costs training

def steps_of(folder, rounds, name, config, steps, *more):
    """Saving every step against never. What a save would cost that training waits for is computed, not run, for `troupe train` has no
    such save: the step and what saving the last version takes, beside which nothing computes."""
    stalls, skipped = [], []

    def never():
        return median(step_times(train(folder / "job", config, steps, *more)))

    def every():
        out = train(folder / "job", config, steps, "--checkpoint-every", 1, *more)
        stalls.extend(stalls_of(out))
        skipped.append(len(events(out, "skipped")))
        return {"step": median(step_times(out)), "synchronous": median(step_times(out)) + events(out)[-1]["save_ms"]}

    found = measure({"never": never, "every": every}, rounds)
    ratio = lambda side: median(a / b for a, b in zip(found[side], found["never"]))
    return (f"| {name} | {spread(found['never'])} | {spread(found['every.step'])} | **{ratio('every.step'):.3f}** | {spread(found['every.synchronous'])} | "
          f"{ratio('every.synchronous'):.3f} | {median(stalls):.2f} % | {quantiles(stalls, n=100)[98]:.2f} % | {sum(skipped)} of {rounds * steps} |")


HEAD = ["", "ms a step: never saved", "saved every step", "ratio (goal: at most 1.05)", "computed, not run: that step + the time of the last save",
        "its ratio", "stall, median (1 %)", "p99 (5 %)", "skipped"]


def steps(folder, rounds):
    rows = [steps_of(folder, rounds, "lm-10m, 1 worker", LM_10M, 20), steps_of(folder, rounds, "lm-10m, dp=2", LM_10M, 20, "--mesh", "dp=2"),
            steps_of(folder, rounds, "lm-100m, 1 worker", LM_100M, 8, "--set", "schedule.batch=2")]
    print("\n".join(["", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *rows, ""]), flush=True)


# --- a disk that cannot keep up

class SlowDisk:
    """A control group whose processes write so many bytes a second to the disk under a folder. Needs root."""

    def __init__(self, folder, rate):
        device = os.stat(folder).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.group = Path("/sys/fs/cgroup" if unified else "/sys/fs/cgroup/blkio") / "troupe-bench"
        self.group.mkdir(exist_ok=True)
        limit = ("io.max", f"{name} wbps={rate}") if unified else ("blkio.throttle.write_bps_device", f"{name} {rate}")
        (self.group / limit[0]).write_text(limit[1])

    def enter(self):
        (self.group / "cgroup.procs").write_text(str(os.getpid()))


def slow(folder, rounds):
    rate = 50_000_000
    try:
        disk = SlowDisk(folder, rate)
    except OSError as error:
        return print(f"\nno slow disk here: {error}\n")
    said, saved, skipped = [], [], []

    def never():
        return median(step_times(train(folder / "job", LM_10M, 20)))

    def every():
        process = start([c for c in command(folder / "job", LM_10M, 20, "--checkpoint-every", 1) if c != "--quiet"], preexec_fn=disk.enter)
        said.extend(line for line in "".join(process.communicate()).splitlines() if "skipped" in line)
        assert process.returncode == 0
        out = folder / "job"
        saved.append(len(events(out)))
        skipped.append(len(events(out, "skipped")))
        return median(step_times(out))

    found = measure({"never": never, "every": every}, rounds)
    disk.group.rmdir()
    ratio = median(a / b for a, b in zip(found["every"], found["never"]))
    print(f"\n| lm-10m, 1 worker, a disk of {rate / MB:.0f} MB/s | never saved | wanted every step | ratio | saved | skipped |\n|---|---|---|---|---|---|")
    print(f"| ms a step | {spread(found['never'])} | {spread(found['every'])} | {ratio:.3f} | {sum(saved)} | {sum(skipped)} |\n\nWhat the user is told, first and last: {said[0]!r}, {said[-1]!r}\n", flush=True)


# --- how fast

# States of about 1.2 GB and 4 GB; steps that are as small as they can be, for only the disk is measured.
TINY = ["--set", "schedule.batch=1", "--set", "schedule.microbatch=1", "--set", "model.seq=16"]
STATES = {"1.2 GB": [], "4 GB": ["--set", "model.layers=48"]}


def fio(folder, size, mode, depth):
    """Seconds to write or read `size` bytes in one file: 4 MiB at a time, `depth` of them at once, direct, synced at the end."""
    path = folder / "fio.data"
    if mode == "write":
        clear(path)
    out = finish(start(["fio", "--name=x", f"--filename={path}", f"--size={size}", "--bs=4M", "--direct=1", "--ioengine=libaio", f"--iodepth={depth}", "--end_fsync=1",
                        "--randrepeat=0", "--output-format=json", f"--rw={mode}"]))
    job = json.loads(out[out.index("{"):])["jobs"][0]
    return (job["job_runtime"] if mode == "write" else job["read"]["runtime"]) / 1e3   # the runtime of writes leaves the sync out


def fio_sides(folder, size, mode):
    """A side for each depth, in MB/s; no side where fio is not installed. `size` is a function: it is known when they run."""
    if not shutil.which("fio"):
        print("skipped: fio is not installed (apt-get install fio)", flush=True)
        return {}
    return {f"fio, {mode}, depth {depth}": lambda depth=depth: size() / MB / fio(folder, size(), mode, depth) for depth in DEPTHS}


def fio_row(what, found, ours, sides):
    """Against the depth at which fio is fastest."""
    fastest = best(found, sides)
    if not fastest:
        return Row(what, "MB/s", found[ours], versus="fio", goal=0.85, skipped="fio is not installed")
    return Row(what, "MB/s", found[ours], found[fastest], f"{fastest}, the best of {len(sides)} depths", goal=0.85)


def torch_saves(folder, size):
    clear(folder / "dcp")
    seconds = run_json([TORCH, ROOT / "bench/peers/torch_save.py", folder, size])
    clear(folder / "dcp")
    return {key: size / MB / value for key, value in seconds.items()}


def save(folder, rounds):
    rows = []
    for name, more in STATES.items():
        size = 0

        def alone():   # the last version: nothing computes beside it
            nonlocal size
            line = events(train(folder / "job", LM_100M, 4, "--checkpoint-every", 1000, *TINY, *more))[-1]
            size = line["parameter_bytes"] + line["moment_bytes"]
            return size / MB / (line["save_ms"] / 1e3)

        alone()
        ceiling = fio_sides(folder, lambda: size, "write")
        sides = {"alone": alone, **ceiling}
        skipped = "" if installed(TORCH) else "torch is not installed"
        if skipped:
            print(f"skipped: {skipped} ({TORCH})", flush=True)
        elif size < 2e9:
            sides["torch"] = lambda: torch_saves(folder, size)
        found = measure(sides, rounds)
        rows.append(fio_row(f"one save, {name}", found, "alone", ceiling))
        for key, label in (("save", "torch.save, synced"), ("async", "torch.distributed.checkpoint.async_save, synced")):
            if size < 2e9:
                rows.append(found.row(f"one save, {name}", "MB/s", "alone", f"torch.{key}", label, skipped=skipped))
        clear(folder / "job")
    print("\n" + table(rows) + "\n", flush=True)


def restore(folder, rounds):
    rows = []
    for name, more in STATES.items():
        line = events(train(folder / "job", LM_100M, 1, "--checkpoint-every", 1000, *TINY, *more))[-1]
        size = line["parameter_bytes"] + line["moment_bytes"]

        def again():
            out = train(folder / "again", LM_100M, 1, "--resume", folder / "job/checkpoints", *TINY, *more)
            worker = json.loads((out / "run.json").read_text())["workers"][0]
            assert worker["restored_bytes"] == size   # each byte once
            return size / MB / worker["restore_s"]

        ceiling = fio_sides(folder, lambda: size, "read")
        if ceiling:
            fio(folder, size, "write", 4)
        found = measure({"troupe": again, **ceiling}, rounds)
        rows.append(fio_row(f"restore, {name}", found, "troupe", ceiling))
    print("\n" + table(rows) + "\n", flush=True)


# --- memory

def resident(parent):
    """Bytes of a job's only worker: pages of its own, and of all kinds."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if fields["PPid"].strip() == str(parent) and "RssAnon" in fields:   # else it has ended
            return [int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "VmRSS")]
    return None


def memory(folder, rounds):
    """A job's worker while it saves two hundred checkpoints and more, and its peak beside one that saves none."""
    del rounds
    never = json.loads((train(folder / "job", LM_10M, 20, *TINY) / "run.json").read_text())["workers"][0]
    out = folder / "job"
    process = start(command(out, LM_10M, 1200, "--checkpoint-every", 1, *TINY))
    samples = []   # checkpoints so far, bytes of its own
    while process.poll() is None:
        now = resident(process.pid)
        if now and (out / "metrics.jsonl").exists():
            samples.append((len(events(out)), now[0]))
        time.sleep(0.2)
    finish(process)
    every = json.loads((out / "run.json").read_text())["workers"][0]
    at = lambda n: next(own for count, own in samples if count >= n)
    print("\n| lm-10m, 1 worker | planned for the device | arena | peak | checkpoints |\n|---|---|---|---|---|")
    for name, worker, count in (("never saved", never, 0), ("every step", every, len(events(out)))):
        print(f"| {name} | {worker['planned_bytes'] / MB:.1f} MB | {worker['arena_bytes'] / MB:.1f} MB | {worker['peak_bytes'] / MB:.1f} MB | {count} |")
    print(f"\nPeak of the one less peak of the other: {(every['peak_bytes'] - never['peak_bytes']) / MB:.1f} MB, arena {every['arena_bytes'] / MB:.1f} MB.")
    print("Memory of its own after 10, 50, 100, 200 checkpoints and at the end: " + ", ".join(f"{x / MB:.2f}" for x in [at(10), at(50), at(100), at(200), samples[-1][1]]) + " MB\n", flush=True)


PHASES = {"steps": steps, "slow": slow, "save": save, "restore": restore, "memory": memory}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", choices=[[], *PHASES], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    a = parser.parse_args()
    folder = a.folder or Path(tempfile.mkdtemp(prefix="troupe-checkpoint-", dir="/var/tmp"))
    folder.mkdir(exist_ok=True)
    try:
        for name in a.what or PHASES:
            PHASES[name](folder, a.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
