#!/usr/bin/env python3
"""Two machines with slow links: steps as `troupe sim` predicts them with calibrated costs, and as `troupe train` takes them.

    bench/links.py [--links wire throttled] [--meshes M ...] [--latency MS] [--rate MBIT] [--paced X] [--steps N] [--repeats N]
                      [--calibrations N] [--costs FILE] [--set KEY=VALUE ...]

A machine is a network namespace with IPC, PIDs and /dev/shm of its own; a cable joins the two, and agents have a worker on each, over
UCX/tcp. `throttled`: latency and rate come from the throttled transport. `wire`: the rate is the cable's (tc tbf, both ways), the latency
the throttled transport's. `troupe calibrate --nodes 2` measures the links as they are then (each figure of the costs is the median over
the calibrations); `troupe sim --nodes 2` plays each mesh with them, without a throttle. Kernels sleep their predicted time (--paced), so
that a busy machine decides little; 0: they compute. Prints a row for each mesh. As root; on a machine that does nothing else.
"""
import argparse
import contextlib
import os
import re
import subprocess
import sys
from statistics import median

import jobs

TROUPE = jobs.ROOT / "build/apps/troupe"
UNITS = {"s": 1e3, "ms": 1, "us": 1e-3}
PORT = "7071"


def shell(text):
    subprocess.run(text, shell=True, check=True)


class Pair:
    """Two machines, a cable between them."""

    def __init__(self, mbit):
        self.names = [f"bm{os.getpid()}{letter}" for letter in "ab"]
        self.token = jobs.SCRATCH / "token"
        self.token.write_text("t" * 40 + "\n")
        self.token.chmod(0o600)
        a, b = self.names
        shell(f"ip netns add {a} && ip netns add {b} && ip link add {a} netns {a} type veth peer name {b} netns {b}")
        for i, name in enumerate(self.names):
            shell(f"ip -n {name} addr add 10.77.9.{i + 1}/24 dev {name} && ip -n {name} link set {name} up && ip -n {name} link set lo up")
            if mbit:   # what waits is never dropped
                shell(f"ip netns exec {name} tc qdisc add dev {name} root tbf rate {mbit}mbit burst 32kb limit 64mb")
        self.wait_until_up()

    def wait_until_up(self):
        while any("up" not in subprocess.run(["ip", "netns", "exec", n, "cat", f"/sys/class/net/{n}/operstate"], capture_output=True,
                                             text=True, check=True).stdout for n in self.names):
            pass

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def on(self, i, command):
        inside = 'mount -t tmpfs none /dev/shm && hostname "$0" && exec "$@"'
        return ["ip", "netns", "exec", self.names[i], "unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child",
                "--mount-proc", "sh", "-c", inside, self.names[i], *command]

    def run(self, command):
        """A command of the first machine that waits for agents; the agents of both."""
        agents = [jobs.start(self.on(i, [TROUPE, "agent", "--join", f"10.77.9.1:{PORT}", "--token-file", self.token, "--net-device",
                                         self.names[i]])) for i in range(2)]
        out = jobs.finish(jobs.start(self.on(0, [*command, "--nodes", "2", "--listen", f"10.77.9.1:{PORT}", "--token-file", self.token])))
        for agent in agents:
            jobs.finish(agent)
        return out


def figures(costs):
    """The link between machines in a file of costs: latency, rate, rendezvous."""
    section = costs.read_text().split("[inter_node]")[1]
    return [float(re.search(rf"^{key} = ([0-9.e+-]+)", section, re.M).group(1)) for key in ("latency_us", "gb_per_s", "rendezvous_us")]


def calibrated(pair, costs, throttle, count):
    """Calibrates `count` times; leaves the medians in the file."""
    found = []
    for _ in range(count):
        pair.run([TROUPE, "calibrate", "--costs", costs, *throttle])
        found.append(figures(costs))
    text = costs.read_text()
    for key, values in zip(("latency_us", "gb_per_s", "rendezvous_us"), zip(*found)):
        head, section = text.split("[inter_node]")
        text = head + "[inter_node]" + re.sub(rf"^{key} = .*", f"{key} = {median(values):.4g}", section, count=1, flags=re.M)
    costs.write_text(text)
    return found


def predicted_ms(words, costs):
    out = jobs.finish(jobs.start([TROUPE, "sim", *words, "--costs", costs, "--nodes", "2"]))
    value, unit = re.search(r"^step\s+([0-9.e+-]+) (s|ms|us)", out, re.M).groups()
    return float(value) * UNITS[unit]


def measured_ms(pair, words, costs, throttle, steps):
    folder = jobs.SCRATCH / "machines"
    subprocess.run(["rm", "-rf", folder], check=True)
    pair.run([TROUPE, "train", *words, "--costs", costs, *throttle, "--data", jobs.text(), "--steps", steps, "--quiet", "--out", folder])
    return jobs.step_ms(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", choices=["throttled", "wire"], default=["throttled", "wire"])
    parser.add_argument("--meshes", nargs="+", default=["dp=2", "pp=2"])
    parser.add_argument("--latency", type=float, default=50, help="milliseconds")
    parser.add_argument("--rate", type=float, default=100, help="megabits a second")
    parser.add_argument("--paced", type=float, default=1)
    parser.add_argument("--config", default=jobs.ROOT / "apps/configs/shakespeare-char.toml")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--calibrations", type=int, default=3)
    parser.add_argument("--costs", help="of this machine, as troupe calibrate wrote them (default: measured first)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of train")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("links.py: namespaces need root")
    costs = jobs.SCRATCH / "costs.toml"
    if options.costs:
        costs.write_text(open(options.costs).read())
    else:
        jobs.finish(jobs.start([TROUPE, "calibrate", "--costs", costs, "--widest", "256"]))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=jobs.ROOT).stdout.strip()
    print(f"commit {commit}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, paced {options.paced:g}\n")
    print("| links | mesh | calibrated: latency, ms; MB/s; rendezvous, ms | predicted, ms | measured, ms (each run) | error |\n|---|---|---|---|---|---|")
    for links in options.links:
        rate = f",bandwidth={options.rate / 8:g}MB/s" if links == "throttled" else ""
        throttle = ["--throttle", f"latency={options.latency:g}ms{rate}"]
        with contextlib.closing(Pair(options.rate if links == "wire" else 0)) as pair:
            calibrated(pair, costs, throttle, options.calibrations)
            latency_us, gb_per_s, rendezvous_us = figures(costs)
            for mesh in options.meshes:
                words = [options.config, "--mesh", mesh, "--set", "eval.every=0"]
                for text in options.set:
                    words += ["--set", text]
                words += ["--paced", f"{options.paced:g}"] if options.paced > 0 else []
                predicted = predicted_ms(words, costs)
                runs = [measured_ms(pair, words, costs, throttle, options.steps) for _ in range(options.repeats)]
                print(f"| {links} | {mesh} | {latency_us / 1e3:.2f}; {gb_per_s * 1e3:.2f}; {rendezvous_us / 1e3:.2f} | {predicted:.0f} | "
                      f"{median(runs):.0f} ({', '.join(f'{ms:.0f}' for ms in runs)}) | {100 * (predicted / median(runs) - 1):+.1f} % |",
                      flush=True)


if __name__ == "__main__":
    main()
