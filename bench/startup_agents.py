#!/usr/bin/env python3
"""How long runs of many agents take until their first step, all on this machine.

    bench/startup_agents.py TROUPE [AGENTS...]     (16 32 64)

Each run is `troupe train --nodes N --mesh dp=N` of lm-tiny with a batch of N, and N agents of one place, started at
once. Wall time: from the first start to the first line of metrics.jsonl. CPU: of all processes until then. Goal: wall
time at most 1.3 x (CPU / cores) + 1 s. Nothing else should run on the machine.
"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processes_of(root):
    """(pid, CPU seconds, those of its children that have ended included) of all descendants of a process."""
    parent, cpu_s = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as f:
                words = f.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        pid = int(name)
        parent[pid] = int(words[1])
        cpu_s[pid] = sum(map(int, words[11:15])) * TICK_S
    found, border = [], [root]
    while border:
        border = [pid for pid, of in parent.items() if of in border]
        found += border
    return [(pid, cpu_s[pid]) for pid in found]


def measure(troupe, agents):
    """Starts a run of so many agents; returns (wall seconds, CPU seconds, processes) at its first step."""
    with tempfile.TemporaryDirectory() as folder:
        text, token, out = f"{folder}/text.txt", f"{folder}/token", f"{folder}/out"
        with open(text, "w") as f:
            f.write("the old ship sings over the green sea and the child waits.\n" * 400)
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("t" * 40 + "\n")
        at = f"127.0.0.1:{free_port()}"
        log = open(f"{folder}/log", "w+")
        begin_s = time.monotonic()
        started = []

        def start(*words):
            started.append(subprocess.Popen([troupe, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

        start("train", f"{ROOT}/apps/configs/lm-tiny.toml", "--data", text, "--out", out, "--quiet",
              "--set", f"schedule.batch={agents}", "--set", "eval.every=0", "--steps", "1000000",
              "--mesh", f"dp={agents}", "--nodes", str(agents), "--listen", at, "--token-file", token,
              "--node-wait", "300", "--stall-limit", "600")
        for i in range(agents):
            start("agent", "--join", at, "--token-file", token, "--name", f"agent{i:03}", "--wait", "300")
        try:
            lines = f"{out}/metrics.jsonl"
            while not (os.path.exists(lines) and os.path.getsize(lines) > 0):
                if any(p.poll() is not None for p in started):
                    log.seek(0)
                    sys.exit(f"a process has ended before the first step:\n{log.read()}")
                time.sleep(0.01)
            wall_s = time.monotonic() - begin_s
            all_of_them = processes_of(os.getpid())
            return wall_s, sum(cpu for _, cpu in all_of_them), len(all_of_them)
        finally:
            started[0].send_signal(signal.SIGTERM)
            for p in started:
                try:
                    p.wait(60)
                except subprocess.TimeoutExpired:
                    p.kill()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    troupe, counts = os.path.abspath(sys.argv[1]), [int(n) for n in sys.argv[2:]] or [16, 32, 64]
    cores = len(os.sched_getaffinity(0))
    print(f"{'agents':>6} {'processes':>9} {'wall s':>7} {'CPU s':>7} {'goal s':>7} {'wall / goal':>11}   ({cores} cores)")
    for agents in counts:
        wall_s, cpu_s, processes = measure(troupe, agents)
        goal_s = 1.3 * cpu_s / cores + 1
        print(f"{agents:6} {processes:9} {wall_s:7.2f} {cpu_s:7.2f} {goal_s:7.2f} {wall_s / goal_s:11.2f}", flush=True)


if __name__ == "__main__":
    main()
