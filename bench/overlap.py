#!/usr/bin/env python3
"""Messages hidden under computing: lm-10m on the paced device, its links throttled so that a step's messages take a share of its computing.

    bench/overlap.py [--meshes M ...] [--microbatches N ...] [--latencies US ...] [--shares S ...] [--ahead A ...] [--paced X]
                     [--steps N] [--costs FILE] [--played] [--set KEY=VALUE ...]

For each mesh (such as dp=2, or tp=2:zero=3), number of microbatches of a step, latency, share and `schedule.ahead`, a row: the step as
`troupe sim` predicts it and as `troupe train --paced` takes it (`--played`: predictions only), against the ideal: the lowest of `troupe sim
--ideal` (unlimited slots and streams, the same costs) of the plan without microbatches ahead and of this one, and of the prediction, for
unlimited slots take what comes first, which need not be best. `bound` is the larger of the busiest place's computing and its busiest
link's messages, which no plan is shorter than. `exposed`: by how much the step is longer than that of the same plan on links that cost
nothing (`bench_free_links`: the same layouts, microbatches ahead, weight gradients apart), predicted, of the messages' time; a measured
step is compared with one on this machine's own links, not throttled. `hidden` is the rest of that time, as a share; `by the ideal`: what the
ideal would hide, predicted. The links' rate is such that messages take the share of the computing that the plan has without microbatches
ahead, on those links. Run it on a machine that does nothing else.
"""
import argparse
import os
import re
import subprocess
import sys
from statistics import median

import jobs

TROUPE = jobs.ROOT / "build/apps/troupe"
FREE_LINKS = jobs.ROOT / "build/bench/bench_free_links"
UNITS = {"s": 1e3, "ms": 1, "us": 1e-3, "ns": 1e-6}


class Played:
    """What `troupe sim` prints: milliseconds of a line; the choice of ahead."""

    def __init__(self, words):
        self.text = jobs.finish(jobs.start([TROUPE, "sim", jobs.CONFIG, *words]))

    def ms(self, name):
        value, unit = re.search(rf"^{name}\s+([0-9.e+-]+) (s|ms|us|ns)", self.text, re.M).groups()
        return float(value) * UNITS[unit]

    def chosen(self):
        """The microbatches ahead of the plan that auto has chosen, and whether its weight gradients are apart."""
        found = re.search(r"^\s*(\d+)\s+(apart|with backward)\s.*\bchosen$", self.text, re.M)
        return (found.group(1), found.group(2) == "apart") if found else ("0", False)

    def bound_ms(self):
        return max(self.ms("compute"), self.ms("messages"))


def place_mib(words):
    """The planned memory of the place with most."""
    text = jobs.finish(jobs.start([TROUPE, "plan", jobs.CONFIG, *words]))
    value, unit = re.search(r"^peak memory per device: ([0-9.]+) (MiB|GiB)", text, re.M).groups()
    return float(value) * {"MiB": 1, "GiB": 1024}[unit]


def measured_ms(words, steps, repeats):
    folder, found = jobs.SCRATCH / "overlap", []
    for _ in range(repeats):
        subprocess.run(["rm", "-rf", folder], check=True)
        jobs.finish(jobs.start([TROUPE, "train", jobs.CONFIG, *words, "--data", jobs.text(), "--steps", steps, "--quiet", "--out", folder]))
        found.append(jobs.step_ms(folder))
    return found


def free_ms(mesh, throttle, ahead, apart, overrides, options, played):
    """The step of the row's plan on links that cost nothing; measured: on this machine's own, not throttled."""
    words = [FREE_LINKS, jobs.CONFIG, mesh, throttle, "--ahead", ahead, "--paced", options.paced, *overrides]
    words += ["--apart"] if apart else []
    words += ["--costs", options.costs] if options.costs else []
    words += [] if played else ["--text", jobs.text()]
    return median(float(jobs.finish(jobs.start(words)).split()[-1]) * 1e3 for _ in range(1 if played else options.repeats))


def throttle_of(words, latency_us, share):
    """Links on which a step's messages take `share` of its computing: as text, their MB/s, the share found. Other links may have other
    layouts, and so other bytes and computing: corrects the rate until both fit,
    or takes the best of six."""
    rate, tried = 100.0, []
    for _ in range(6):
        throttle = f"latency={latency_us:g}us,bandwidth={rate:.4g}MB/s"
        played = Played([*words, "--throttle", throttle])
        found = played.ms("messages") / played.ms("compute")
        if found == 0:
            sys.exit(f"overlap.py: {' '.join(map(str, words))}: a step has no messages, and nothing to hide")
        tried.append((abs(found / share - 1), throttle, rate, found))
        if tried[-1][0] < 0.01:
            break
        rate *= found / share
    return min(tried)[1:]


def hidden_share(step_ms, free_step_ms, messages_ms):
    """The part of the messages' time by which a step is not longer than on links that cost nothing."""
    return 1 - (step_ms - free_step_ms) / messages_ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshes", nargs="+", default=["tp=2", "tp=4", "tp=2,pp=2", "dp=2,tp=2", "dp=2,tp=2:zero=3", "dp=2"])
    parser.add_argument("--microbatches", nargs="+", type=int, default=[8, 1], help="of a step of 8 samples")
    parser.add_argument("--latencies", nargs="+", type=float, default=[50, 5, 500])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.3, 0.5, 0.8])
    parser.add_argument("--ahead", nargs="+", default=["0", "auto"])
    parser.add_argument("--paced", default="2")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each row; the median counts")
    parser.add_argument("--costs")
    parser.add_argument("--played", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of train")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=jobs.ROOT).stdout.strip()
    print(f"commit {commit}, {os.cpu_count()} cores, paced {options.paced}, costs {options.costs or 'of this machine'}; ms a step\n")
    print("| mesh | microbatches | latency, us | messages | MB/s | ahead | MiB a place | bound | ideal | predicted | over ideal | measured | over ideal | spread | exposed, ms | hidden | by the ideal |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for mesh in options.meshes:
        for microbatches in options.microbatches:
            mesh_words = mesh.split(":")
            if microbatches < int((re.search(r"dp=(\d+)", mesh) or [0, 1])[1]):
                continue   # not one for each replica
            job = ["--mesh", mesh_words[0], "--paced", options.paced, "--set", f"schedule.microbatch={jobs.BATCH // microbatches}"]
            job += [word for pair in options.set for word in ("--set", pair)]
            job += [word for key in mesh_words[1:] for word in ("--" + key.split("=")[0], key.split("=")[1])]
            job += ["--costs", options.costs] if options.costs else []
            overrides = [f"schedule.microbatch={jobs.BATCH // microbatches}", *["mesh." + key for key in mesh_words[1:]], *options.set]
            for latency in options.latencies:
                for share in options.shares:
                    throttle, rate, found = throttle_of(job, latency, share)
                    words = [*job, "--throttle", throttle]
                    first_ideal_ms = Played([*words, "--ideal"]).ms("step")
                    for ahead in options.ahead:
                        number, apart = Played([*words, "--set", f"schedule.ahead={ahead}"]).chosen() if ahead == "auto" else (ahead, False)
                        here = [*words, "--set", f"schedule.ahead={ahead}"]
                        played = Played(here)
                        played_ms, messages_ms = played.ms("step"), played.ms("messages")
                        ideal_ms = min(first_ideal_ms, Played([*here, "--ideal"]).ms("step"), played_ms)
                        free = [mesh_words[0], throttle, number, apart, overrides, options]
                        free_played_ms = free_ms(*free, played=True)
                        steps = [] if options.played else measured_ms(here, options.steps, options.repeats)
                        step_ms, free_step_ms = played_ms, free_played_ms
                        measured = [" "] * 3
                        if steps:
                            step_ms, free_step_ms = median(steps), free_ms(*free, played=False)
                            spread = f"{100 * (max(steps) - min(steps)) / step_ms:.1f} %" if len(steps) > 1 else " "
                            measured = [f"{step_ms:.0f}", f"{step_ms / ideal_ms:.3f}", spread]
                        print(f"| {mesh} | {microbatches} | {latency:g} | {found:.2f} | {rate:.4g} | {number}{' apart' if apart else ''} | {place_mib(here):.0f} | "
                              f"{played.bound_ms():.0f} | {ideal_ms:.0f} | {played_ms:.0f} | {played_ms / ideal_ms:.3f} | {' | '.join(measured)} | "
                              f"{step_ms - free_step_ms:.0f} of {messages_ms:.0f} | {100 * hidden_share(step_ms, free_step_ms, messages_ms):.0f} % | "
                              f"{100 * hidden_share(ideal_ms, free_played_ms, messages_ms):.0f} % |", flush=True)


if __name__ == "__main__":
    main()
