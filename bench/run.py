"""Runs comparisons and writes the report. Called by run.sh, which installs and builds what they need."""
import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys

import comparisons
import jobs
import torch_peer
from rounds import table

VERSION_OF_TORCH = "import torch; s = torch.__config__.show(); print(torch.__version__, " \
                   "'BLAS ' + s.split('BLAS_INFO=')[1].split(',')[0], 'capability ' + torch.backends.cpu.get_cpu_capability() " \
                   "if hasattr(torch.backends, 'cpu') else '', 'DDP over', *(b for b in ('gloo', 'mpi', 'ucc') " \
                   "if getattr(torch.distributed, f'is_{b}_available', lambda: False)()))"


def say(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=jobs.ROOT)
    return next(iter((done.stdout + done.stderr).splitlines()), "")


def machine():
    with open("/proc/cpuinfo") as f:
        name = next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    return f"{os.cpu_count()} cores, {name}; {platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}"


def huge_pages():
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as f:
            return f.read().strip()
    except OSError:
        return "not in this kernel"


def versions():
    dpkg = lambda name: say("dpkg-query", "-W", "-f", "${Version}", name)
    blas = os.path.realpath("/usr/lib/x86_64-linux-gnu/libblas.so.3").split("/")[-2]
    torch = "; ".join(f"{name}: {say(python, '-c', VERSION_OF_TORCH) if torch_peer.installed(python) else 'not installed'}"
                      for name, python in jobs.PYTHONS.items())
    return [f"compiler {say('c++', '--version')}; UCX {dpkg('libucx0')}; Open MPI {dpkg('openmpi-bin')}",
            f"{torch}; Debian's BLAS is {blas} ({dpkg('libopenblas0-pthread')})"]


def report(names, rounds, rows):
    dirty = " with uncommitted changes" if say("git", "status", "--porcelain", "--untracked-files=no", ".") else ""
    head = [f"# {datetime.date.today()}: speed", "",
            f"- commit {say('git', 'rev-parse', '--short', 'HEAD')}{dirty}, Release build",
            f"- {machine()}; transparent huge pages: {huge_pages()}", *[f"- {v}" for v in versions()],
            f"- `bench/run.sh {' '.join(names)} --rounds {rounds}`: {rounds} interleaved rounds; medians (least–greatest), ratios",
            "  paired by round",
            f"- the same params_hash of lm-10m after 3 steps: {'; '.join(jobs.WAYS)}; and of all jobs below that must agree"]
    tried = ["", "Forms of PyTorch that were tried, each once, for six steps; the two best ones were measured in every round:", "",
             *[f"- {line}" for line in torch_peer.notes], ""] if torch_peer.notes else [""]
    return "\n".join(head) + "\n\n" + table(rows) + "\n" + "\n".join(tried)


def void(rows):
    """What to say on stderr, a line for each comparison that failed."""
    return [f"failed: {row.what}, against {row.versus}: {row.failed}" for row in rows if row.failed]


def main():
    p = argparse.ArgumentParser(prog="bench/run.sh")
    p.add_argument("names", nargs="*", choices=[[], *comparisons.ALL], metavar="NAME", help=", ".join(comparisons.ALL))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", default=f"docs/measurements/{datetime.date.today()}-speed.md")
    a = p.parse_args()
    names = a.names or list(comparisons.ALL)
    rows = []
    try:
        jobs.check_ways()
        for name in names:
            rows += comparisons.ALL[name](a.rounds)
    finally:
        shutil.rmtree(jobs.SCRATCH, ignore_errors=True)
    text = report(names, a.rounds, rows)
    (jobs.ROOT / a.out).write_text(text)
    print(text + f"\nwritten to {a.out}")
    for line in void(rows):
        print(line, file=sys.stderr)
    return 1 if void(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
