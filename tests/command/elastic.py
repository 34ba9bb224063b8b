#!/usr/bin/env python3
"""Runs of lm-tiny whose workers are killed, stopped, crash or exit in the middle of their acts: each must end as the run
that nothing happens to, bit for bit, with one line a step, and leave nothing behind."""
import argparse, collections, glob, json, os, random, re, shutil, signal, subprocess, sys, tempfile, threading, time

from state_bytes import StateBytes

STEPS = 60  # see --steps
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
CONFIG = os.path.join(ROOT, "apps/configs/lm-tiny.toml")
SETTINGS = ["schedule.batch=8", "schedule.microbatch=1"]
SHAPES = [  # name, mesh, settings
    ("dp=4", "dp=4", []),
    ("dp=2,pp=2", "dp=2,pp=2", []),
    ("pp=3", "pp=3", ["model.layers=3"]),
    ("dp=2,tp=2", "dp=2,tp=2", []),
    ("ZeRO 1", "dp=2", ["mesh.zero=1"]),
    ("ZeRO 2", "dp=2", ["mesh.zero=2"]),
    ("ZeRO 3", "dp=2", ["mesh.zero=3"]),
    ("interleaved", "pp=2", ["model.layers=4", "schedule.pipeline=interleaved:2"]),
    ("zero-bubble", "pp=2", ["schedule.pipeline=zero-bubble"]),
]
REPLICATED = {"dp=4", "dp=2,pp=2", "dp=2,tp=2"}  # each place has what it has with another one
ACTIONS = ["SIGKILL", "SIGSTOP", "SIGSEGV", "EXIT"]
OTHER_MESH = {"dp=4": "dp=2", "dp=2,pp=2": "dp=4", "dp=2,tp=2": "tp=2", "ZeRO 1": "dp=4", "ZeRO 2": "dp=2,pp=2",
              "ZeRO 3": "dp=3", "zero-bubble": "dp=2,pp=2"}  # others: dp=2
ACTS = ["forward", "backward", "exchange", "norm", "commit", "update", "gather", "write", "enter", "hang", "drop", "cut", "scale", "later"]
PEER = {"dp=4": {0: 1, 1: 2, 2: 3, 3: 0}, "pp=3": {0: 1, 1: 2, 2: 1}}  # to whom a link is cut; others: of a pair


class Drill:
    def __init__(self, args):
        self.args = args
        self.whole = {}  # by shape: what nothing happens to
        self.state_bytes = {}  # by shape, but for tp
        self.moves = collections.Counter()  # incidents by what they have moved
        self.repeated_max = int(args.recovery.removeprefix("copies:")) if args.recovery != "slots" else 1
        self.dir = tempfile.mkdtemp(prefix="troupe-elastic-")
        if not args.data:
            rng = random.Random(7)
            words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(1, 8))) for _ in range(500)]
            args.data = os.path.join(self.dir, "text")
            with open(args.data, "w") as text:
                text.write(" ".join(rng.choice(words) for _ in range(60_000)))

    def command(self, shape, out, more):
        _, mesh, settings = shape
        command = [self.args.troupe, "train", CONFIG, "--data", self.args.data,
                   "--mesh", mesh, "--steps", str(STEPS), "--out", out, "--quiet", "--recovery", self.args.recovery,
                   "--checkpoint-every", "5"]
        for s in SETTINGS + settings:
            command += ["--set", s]
        return command + more

    def results(self, out):
        steps, evaluations = [], []
        for line in open(os.path.join(out, "metrics.jsonl")):
            m = json.loads(line)
            if "loss" in m:
                # Each sample in exactly one step: as the loaders have counted.
                assert m["samples"] == [8 * m["step"], 8 * m["step"] + 8], m
                steps.append((m["step"], m["loss"], m["grad_norm"]))
            elif "eval_loss" in m:
                evaluations.append((m["step"], m["eval_loss"]))
        run = json.load(open(os.path.join(out, "run.json")))
        return steps, evaluations, run["params_hash"], run["status"]

    def undisturbed(self, shape):
        if shape[0] not in self.whole:
            out = os.path.join(self.dir, "whole-" + re.sub(r"\W", "-", shape[0]))
            subprocess.run(self.command(shape, out, []), check=True)
            if os.path.exists(os.path.join(out, "incidents.jsonl")):  # a busy machine has stragglers
                assert all("straggler" in json.loads(line) for line in open(os.path.join(out, "incidents.jsonl"))), shape[0]
            self.whole[shape[0]] = self.results(out)
            assert [s for s, _, _ in self.whole[shape[0]][0]] == list(range(STEPS)), shape[0]
            self.state_bytes[shape[0]] = StateBytes(self.args.troupe, CONFIG, SETTINGS + shape[2],
                                                    max(glob.glob(os.path.join(out, "checkpoints", "step-*"))))
        return self.whole[shape[0]]

    def workers(self, session):
        """The worker processes of a run, which has a session of its own."""
        out = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
                if int(stat[3]) == session and b"--troupe-worker" in open(f"/proc/{pid}/cmdline", "rb").read():
                    out.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                pass
        return sorted(out)

    def kill_later(self, process, rng, action):
        time.sleep(rng.uniform(0.3, 1.2))
        victims = self.workers(process.pid)
        if victims and process.poll() is None:
            os.kill(rng.choice(victims), {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP,
                                          "SIGSEGV": signal.SIGSEGV, "EXIT": signal.SIGKILL}[action])

    def scale(self, out, rng, meshes, said):
        """Asks the run to go on with other meshes, one after the other."""
        for mesh in meshes:
            time.sleep(rng.uniform(0.05, 0.3))
            for _ in range(200):
                ask = subprocess.run([self.args.troupe, "scale", out, "--mesh", mesh], capture_output=True, text=True)
                if "has not begun" not in ask.stderr and "no job listens" not in ask.stderr:
                    break
                if os.path.exists(os.path.join(out, "run.json")) and "no job" in ask.stderr:
                    break
                time.sleep(0.02)
            said.append((mesh, ask.returncode, ask.stdout + ask.stderr))

    def check_moved(self, shape, incidents):
        """What is wrong of the bytes of state that incidents move which go on from memory. Of changes of the mesh the first
        only: before it the rank of each worker is its number; of several losses none: state may have moved for each."""
        if self.args.recovery != "slots":  # places take all their state out of copies
            return []
        wrong, bytes_of = [], self.state_bytes[shape[0]]
        for i in incidents:
            moved, mesh = i.get("moved_bytes", 0), i.get("mesh", shape[1])
            if i.get("from") == "memory" and len(i["lost"]) <= 1 and "tp" not in shape[1]:
                left = [r for r in range(len(bytes_of.held(shape[1]))) if mesh == shape[1] or r not in i["lost"]]
                left += [None] * (len(bytes_of.held(mesh)) - len(left))
                least = bytes_of.moves_what_is_lacking(moved, mesh, shape[1], left, True)
                self.moves[("the same mesh" if mesh == shape[1] else "another mesh", least)] += 1
                # A worker that is lost before its peers, or it, have done their updates may leave a version that some of
                # them lack; what a worker has that crashed counts only if no other worker has it.
                all_hold = i["step"] < i["committed"] and "Segmentation fault" not in i["cause"] + i.get("report", "")
                if not least and (all_hold or not bytes_of.moves_what_is_lacking(moved, mesh, shape[1], left, False)):
                    wrong.append(f"{moved} bytes of state were moved to {mesh}: {i}")
            if mesh != shape[1]:
                break
        return wrong

    def check_incidents(self, shape, never, act, injections, hit, incidents):
        """What of them does not follow from the drills."""
        wrong = []
        if act not in ("later", "scale") and not 1 <= len(incidents) <= len(injections):
            wrong.append(f"{len(incidents)} incidents of {len(injections)} drills")
        crashes = any(i.startswith("SIGSEGV") for i in injections)
        for i in incidents:
            text = i["cause"] + i.get("report", "")
            if hit and act != "drop" and not set(i["lost"]) <= hit:
                wrong.append(f"workers {i['lost']} are lost: {text}")
            if i.get("planned"):
                if i.get("step", i["committed"]) != i["committed"] or act != "scale":
                    wrong.append(f"a planned change has repeated a step: {i}")
                continue
            hangs = act in ("hang", "drop", "cut") or any(d.startswith("SIGSTOP") for d in injections)
            if "has not left its generation" in text and not hangs:
                wrong.append(text)
            if ("its act has not ended" in text) != (act == "hang"):
                wrong.append(text)
            if act == "drop" and "no progress" not in text:
                wrong.append(text)
            if ("do not reach each other" in text) != (act == "cut"):
                wrong.append(text)
            # No copy may be whole yet in the first step: its version is the initial values.
            begins = self.args.recovery != "slots" and i["committed"] == 0 and i["from"] == "initial values"
            if "step" in i and act != "later" and not crashes and not begins:
                if i["from"] != "memory" or i["step"] < i["committed"] - self.repeated_max or (
                        self.args.recovery != "slots" and act != "scale" and i["step"] % self.repeated_max != 0):
                    wrong.append(f"it went on from {i['from']}, step {i['step']} after {i['committed']}")
        if act not in ("later", "enter") and crashes and len(injections) == 1:
            # What a worker that has crashed has written counts only where it has a replica.
            wrong += [f"it goes on from {i['from']}: {i}" for i in incidents
                      if (i["from"] == "memory") != (shape[0] in REPLICATED and self.args.recovery == "slots")]
        wrong += [f"another mesh, or none: {i}" for i in incidents
                  # A worker that was slow to leave comes back.
                  if ("mesh" in i) != (never and bool(i["lost"]) or i.get("planned", False))
                  and "has not left its generation" not in i["cause"] + i.get("report", "")]
        return wrong

    def run(self, number, rng):
        shape = SHAPES[number % len(SHAPES)]
        places = 1
        for axis in re.findall(r"=(\d+)", shape[1]):
            places *= int(axis)
        whole = self.undisturbed(shape)
        # Nine shapes, fourteen acts: 126 runs have each pair once, any fourteen in a row each act.
        act = ACTS[number % len(ACTS)]
        # Every other run of a shape replaces no worker that is lost.
        never = (number // len(SHAPES)) % 2 == 1 and not (places == 2 and act == "enter")
        victims_max = 1 if never and (places == 2 or "tp" in shape[1]) else 2
        if act == "gather" and shape[0] not in ("ZeRO 1", "ZeRO 2"):
            act = "update"
        injections, described, threads, hit, meshes, said = [], [], [], set(), [], []

        def inject(action, where, rank):
            injections.append(f"{action}@{where}/worker{rank}")
            described.append(injections[-1])
            hit.add(rank)

        phase, nth = rng.choice(["before", "mid", "after"]), rng.randint(2, STEPS - 5)
        rank = rng.randrange(places)
        if act == "enter":  # a worker that enters the generation which another one's loss has begun
            inject("SIGKILL", f"forward#{nth}", rank)
            inject(rng.choice(ACTIONS), "enter#2", (rank + 1) % places)
        elif act == "hang":
            # Two steps must be done: before, the limit is --stall-limit.
            where = rng.choice(["forward", "update", "norm"])
            inject("HANG", f"{where}:{phase}#{STEPS * 6 if where == 'forward' else STEPS}", rank)
        elif act == "drop":
            # After two steps, before the last ones.
            nth = {"dp=2,tp=2": 20 * STEPS, "ZeRO 3": 20 * STEPS, "ZeRO 2": 10 * STEPS, "interleaved": 10 * STEPS,
                   "pp=3": 2 * STEPS}
            inject("DROP", f"exchange#{nth.get(shape[0], max(60, STEPS))}", rank)
        elif act == "cut":
            peer = PEER.get(shape[0], {}).get(rank, rank ^ 1)
            injections.append(f"CUT@forward:{phase}#{STEPS * 6}/worker{rank}-worker{peer}")
            described.append(injections[-1])
            hit.update((rank, peer))
        elif act == "scale":
            meshes = [OTHER_MESH.get(shape[0], "dp=2"), shape[1]]
            described = ["goes on as " + " and ".join(meshes)]
        elif act == "later":
            threads = [rng.choice(ACTIONS) for _ in range(min(victims_max, rng.choice([1, 2])))]
            described = [f"{a} later" for a in threads]
        else:
            for rank in rng.sample(range(places), min(victims_max, rng.choice([1, 1, 2]))):
                at = rng.randint(1, STEPS // 5) if act == "write" else rng.randint(2, STEPS - 5)
                inject(rng.choice(ACTIONS), f"{act}:{rng.choice(['before', 'mid', 'after'])}#{at}", rank)
        out = os.path.join(self.dir, f"run-{number}")
        more = [word for i in injections for word in ("--inject", i)] + ["--detect-budget", "1000"]
        more += ["--replace", "never"] if never else []
        before = set(os.listdir("/dev/shm"))
        begin = time.monotonic()
        process = subprocess.Popen(self.command(shape, out, more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, start_new_session=True)
        killers = [threading.Thread(target=self.kill_later, args=(process, random.Random(rng.random()), a))
                   for a in threads]
        if meshes:
            killers.append(threading.Thread(target=self.scale, args=(out, random.Random(rng.random()), meshes, said)))
        for k in killers:
            k.start()
        try:
            text, _ = process.communicate(timeout=self.args.timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            text = "it has not ended in time\n" + process.communicate()[0]
        for k in killers:
            k.join()
        wrong = []
        if process.returncode != 0:
            wrong.append(f"exit code {process.returncode}: {text.strip()[-600:]}")
        else:
            got = self.results(out)
            for what, a, b in zip(("steps", "evaluations", "params_hash", "status"), got, whole):
                if a != b:
                    wrong.append(f"{what} differ")
        if left := self.workers(process.pid):
            wrong.append(f"processes left: {left}")
        if left := set(os.listdir("/dev/shm")) - before:
            wrong.append(f"shared memory left: {sorted(left)}")
        if "has hit nothing" in text:
            wrong.append("a drill has hit nothing")
        incidents = []
        if os.path.exists(os.path.join(out, "incidents.jsonl")):
            incidents = [i for i in map(json.loads, open(os.path.join(out, "incidents.jsonl"))) if "straggler" not in i]
        taken = [mesh for mesh, code, _ in said if code == 0]
        for mesh, code, text in said:
            expected = f"the job goes on as {mesh}" if code == 0 else "troupe: "
            if not text.startswith(expected) or code not in (0, 4, 5):
                wrong.append(f"scale to {mesh} ended with {code}: {text}")
        planned = [i["mesh"] for i in incidents if i.get("planned") and "mesh" in i]
        if meshes and (not taken or planned not in (taken, taken[:-1])):  # the run may end before the last one
            wrong.append(f"changes were taken to {taken}, and made to {planned}: {said}")
        wrong += self.check_incidents(shape, never, act, injections, hit, incidents)
        name = f"{number}: {shape[0]}, {' and '.join(described)}{', gone for good' if never else ''}"
        wrong += self.check_moved(shape, incidents)
        print(f"{'WRONG ' if wrong else ''}{name}: {len(incidents)} incidents, {time.monotonic() - begin:.1f} s"
              + "".join("\n    " + w for w in wrong), flush=True)
        if not wrong:
            shutil.rmtree(out)
        return not wrong, incidents


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run: one run is replayed by N --first")
    parser.add_argument("--troupe", default=os.path.join(ROOT, "build/apps/troupe"))
    parser.add_argument("--data", help="a text (default: one that is made up)")
    parser.add_argument("--recovery", default="slots", help="or copies:K")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    args = parser.parse_args()
    globals()["STEPS"] = args.steps
    drill = Drill(args)
    good, incidents = 0, []
    for number in range(args.first, args.first + args.runs):
        ok, more = drill.run(number, random.Random(args.seed * 1_000_003 + number))
        good += ok
        incidents += [{**i, "run": number} for i in more]
    went_on = [i for i in incidents if "step" in i]
    times = sorted(sum(i["ms"].get(k, 0) for k in ("left", "agreed", "ready", "act")) for i in went_on)
    kinds = collections.Counter(i["from"] if i["from"] in ("memory", "initial values") else "checkpoint"
                                for i in went_on)
    print(f"{good} of {args.runs} runs as if nothing had happened; {len(incidents)} incidents, went on from {dict(kinds)}")
    for mesh in ("the same mesh", "another mesh"):
        print(f"{mesh}: {drill.moves[(mesh, True)]} incidents moved the bytes of state that its layout lacked, "
              f"{drill.moves[(mesh, False)]} also those of workers that lacked the version")
    if times:
        print(f"last loss to first act: median {times[len(times) // 2]:.0f} ms, p99 "
              f"{times[min(len(times) - 1, len(times) * 99 // 100)]:.0f} ms, most {times[-1]:.0f} ms")
        slowest = sorted(went_on, key=lambda i: -sum(ms for phase, ms in i["ms"].items() if phase != "more_lost"))
        for i in slowest[:3]:
            print(f"  run {i['run']}, from {i['from']}: {i['ms']}")
    if good == args.runs and not args.keep:
        shutil.rmtree(drill.dir)
    else:
        print(f"what is wrong lies in {drill.dir}")
    return 0 if good == args.runs else 1


if __name__ == "__main__":
    sys.exit(main())
