#!/usr/bin/env python3
"""soak.py TROUPE [STEPS]: a long run on two workers, with checkpoints and evaluations, while this script reads what each of its
processes holds: resident memory, descriptors, threads, and what the job has in /dev/shm. Fails where memory or /dev/shm is larger in the
last third of the run than it ever was in the second, or where descriptors or threads are more in the median, or at most by more than
a few: a save has files open for a moment, and whether a sample meets one is chance."""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median_low

ROOT = Path(__file__).resolve().parent.parent
SLACK_KIB = 2048   # of resident memory: what an allocator returns late
SLACK_OPEN = 4     # of what a save has open for a moment


def held(pid):
    """Resident KiB, descriptors, threads of a process; None where it has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])
    except (OSError, KeyError):
        return None


def tree(pid):
    """A process and its children, oldest first."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return []


def main():
    troupe, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with tempfile.TemporaryDirectory() as work:
        text = Path(work, "text.txt")
        text.write_text("".join(f"sentence {i * 7919 % 1000} of a text\n" for i in range(4000)))
        out = Path(work, "out")
        command = [troupe, "train", ROOT / "apps/configs/lm-tiny.toml", "--data", text, "--out", out, "--quiet", "--mesh", "dp=2", "--steps", steps,
                   "--checkpoint-every", max(1, steps // 50), "--set", f"eval.every={max(1, steps // 100)}"]
        shm = len(os.listdir("/dev/shm"))
        run = subprocess.Popen([str(word) for word in command])
        samples = []   # (steps done, one tuple a process, entries of /dev/shm)
        while run.poll() is None:
            time.sleep(0.5)
            try:
                done = sum(b'"loss"' in line for line in open(out / "metrics.jsonl", "rb"))
            except OSError:
                continue
            now = [held(pid) for pid in tree(run.pid)]
            if len(now) == 3 and all(now):
                samples.append((done, now, len(os.listdir("/dev/shm")) - shm))
        if run.returncode != 0:
            sys.exit(f"soak: the run ended with exit code {run.returncode}")
        second = [s for s in samples if steps / 3 <= s[0] < 2 * steps / 3]
        last = [s for s in samples if s[0] >= 2 * steps / 3]
        if len(second) < 10 or len(last) < 10:
            sys.exit(f"soak: {len(second)} and {len(last)} samples are too few: give more steps")
        wrong = []
        for process in range(3):
            for kind, name, slack, held_by in ((0, "KiB resident at most", SLACK_KIB, max), (1, "descriptors", 0, median_low),
                                               (1, "descriptors at most", SLACK_OPEN, max), (2, "threads", 0, median_low),
                                               (2, "threads at most", SLACK_OPEN, max)):
                before, after = (held_by(s[1][process][kind] for s in part) for part in (second, last))
                print(f"process {process}: {before} {name} in the second third, {after} in the last")
                if after > before + slack:
                    wrong.append(f"process {process}: {name} grew from {before} to {after}")
        before, after = (max(s[2] for s in part) for part in (second, last))
        print(f"/dev/shm: {before} and {after} entries")
        if after > before or len(os.listdir("/dev/shm")) > shm:
            wrong.append("entries of /dev/shm")
        if wrong:
            sys.exit("soak: " + "; ".join(wrong))


main()
