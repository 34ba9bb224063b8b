"""PyTorch as a peer: the forms in which it is tried, its processes, and whether it does the same training as Troupe.

A form is a choice of allocator, microbatch and compilation; with DDP of buckets, cores and backend as well. The two best forms of
a sweep are then measured in rounds with Troupe, and the row takes the better one.

DDP on the CPUs of one machine: PyTorch's `gloo` backend, which sums over TCP, here over the loopback interface. It has no shared
memory: PyTorch makes devices of tcp, tcp_tls, uv and ibverbs only (torch/csrc/distributed/c10d/GlooDeviceFactory.cpp). gloo itself
had a sum over shared memory from 9 January to 9 February 2026 (pytorch/gloo, pulls 458 and 490); PyTorch went from gloo 3135b0b, before
it, to 74cc005, after it (pytorch/pytorch, pull 187077). A gloo that has it takes it wherever all ranks are on one host, and
names its memory by MASTER_ADDR and MASTER_PORT, so these are set. `mpi` is there only in a PyTorch that was built from source
where MPI is (docs.pytorch.org, torch.distributed); `ucc` is tried, and the report says where it is missing.
"""
import functools
import json
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import jobs
from rounds import PeerFailed, Row, best, label, sweep

LOSS_BOUND = 1e-3     # nats, of each step's loss: other samples of the same text differ by about 1e-2
FINALISTS = 2         # forms that are measured in every round
LIMIT_S = 900         # of a run, its compilation included
# PyTorch's allocator (pytorch/pytorch, pull 107697); malloc of glibc 2.35 and later.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
notes = []            # lines of the report: what was tried


def note(line):
    notes.append(line)
    print(line, flush=True)


@functools.cache
def allocators():
    """{name: what it sets in the environment}, the default first."""
    found = {"glibc": {}, "glibc + huge pages": HUGE_PAGES}
    library = next(iter(sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))), None)
    if library:
        found["tcmalloc"] = {"LD_PRELOAD": str(library)}
        found["tcmalloc + huge pages"] = {**found["tcmalloc"], **HUGE_PAGES}
    else:
        note("skipped: tcmalloc is not installed (apt-get install libtcmalloc-minimal4)")
    return found


def axes(world):
    """The settings of a form and their values, defaults first."""
    samples = jobs.BATCH // world
    found = {"memory": list(allocators()), "microbatch": [n for n in range(samples, 0, -1) if samples % n == 0],
             "compile": ["no", "blocks", "model"]}
    if world > 1:
        found |= {"bucket MB": [25, 1, 5, 100], "cores": ["one each", "shared"], "backend": ["gloo", "ucc"]}
    return found


@functools.cache
def initial_weights():
    """The parameters with which lm-10m begins, as a file: those after one step at a rate that moves nothing."""
    first, out = jobs.SCRATCH / "first", jobs.SCRATCH / "first-weights"
    command = jobs.train_command(first, 1, "--checkpoint-every", 1, "--set", "schedule.lr=1e-30", "--set", "schedule.min_lr=0")
    jobs.finish_train(jobs.start(command), first)
    jobs.finish(jobs.start([jobs.ROOT / "build/apps/troupe", "ckpt", "export", first / "checkpoints", "--format", "hf", "--out", out]))
    return out / "model.safetensors"


@functools.cache
def ours(steps):
    """What PyTorch has to reproduce: our losses of so many steps, and how many parameters the model has."""
    out = jobs.SCRATCH / "ours"
    jobs.finish_train(jobs.start(jobs.train_command(out, steps)), out)
    run = json.loads((out / "run.json").read_text())
    return {"loss": [line["loss"] for line in jobs.metrics(out) if "loss" in line], "parameters": run["parameters"]}


def difference(mine, theirs):
    """Why PyTorch did not do the training that Troupe did; empty where it did."""
    if theirs["parameters"] != mine["parameters"]:
        return f"the model has {theirs['parameters']:,} parameters in PyTorch and {mine['parameters']:,} in Troupe"
    if len(theirs["loss"]) != len(mine["loss"]):
        return f"PyTorch tells {len(theirs['loss'])} losses, expected {len(mine['loss'])}"
    for step, (a, b) in enumerate(zip(theirs["loss"], mine["loss"])):
        if not abs(a - b) <= LOSS_BOUND:   # so that NaN differs
            return f"the loss of step {step} is {a:.6f} in PyTorch and {b:.6f} in Troupe: more than {LOSS_BOUND} apart"
    return ""


def environment(form, world, port):
    found = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1",
             "TORCHINDUCTOR_CACHE_DIR": str(jobs.SCRATCH / "inductor"), **allocators()[form["memory"]]}
    if world > 1:
        found |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return found


def commands(python, steps, form, world, port):
    """One for each replica: on the cores on which Troupe's workers run, each on its own or all on all of them."""
    at = jobs.cores(world)
    found = []
    for rank in range(world):
        words = [python, jobs.ROOT / "bench/peers/torch_lm.py", jobs.CONFIG, jobs.text(), steps, "--weights", initial_weights(),
                 "--microbatch", form["microbatch"], "--compile", form["compile"]]
        if world > 1:
            words += ["--rank", rank, "--world", world, "--port", port, "--bucket-mb", form["bucket MB"], "--backend", form["backend"]]
        found.append(jobs.on(at if form.get("cores") == "shared" else [at[rank]], words))
    return found


def outputs(processes):
    """What the replicas print. Where one fails or takes too long, the others are ended and PeerFailed says why."""
    try:
        with ThreadPoolExecutor(len(processes)) as pool:
            waits = {pool.submit(p.communicate, timeout=LIMIT_S): p for p in processes}
            try:
                for done in as_completed(waits):
                    _, err = done.result()
                    if waits[done].returncode != 0:
                        raise PeerFailed((err.strip().splitlines() or [f"exit code {waits[done].returncode}"])[-1])
            except subprocess.TimeoutExpired:
                raise PeerFailed(f"no end after {LIMIT_S} s") from None
            finally:
                for p in processes:
                    p.kill()
            return [done.result()[0] for done in waits]
    finally:
        for p in processes:
            p.wait()
            p.stdout.close()
            p.stderr.close()


def rate(python, steps, form, world):
    """Tokens per second of one form. Raises PeerFailed where it does not run, or does other training than Troupe."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = [jobs.start(words, env=environment(form, world, port)) for words in commands(python, steps, form, world, port)]
    try:
        answers = [json.loads(out.strip().splitlines()[-1]) for out in outputs(processes)]
    except (ValueError, IndexError):
        raise PeerFailed("it prints no result") from None
    losses = [mean(of_replicas) for of_replicas in zip(*(a["loss"] for a in answers))]
    why = difference(ours(steps), {"loss": losses, "parameters": answers[0]["parameters"]})
    if why:
        raise PeerFailed(why)
    return jobs.TOKENS / max(median(a["step_ms"][jobs.SKIPPED:]) for a in answers) * 1e3


def installed(python):
    try:
        return subprocess.run([str(python), "-c", "import torch"], capture_output=True).returncode == 0
    except OSError:
        return False


@dataclass
class Peer:
    """One PyTorch in one comparison: the sides to measure, or why there are none."""
    name: str
    sides: dict = field(default_factory=dict)
    failed: str = ""
    skipped: str = ""

    def row(self, what, found, side, goal=None):
        """Troupe's side against the better of this peer's. Fails where one of them has failed."""
        fastest = best(found, self.sides)
        failed = self.failed or next((found.failed[name] for name in self.sides if name in found.failed), "")
        theirs = [] if failed or not fastest else found[fastest]
        return Row(what, "tokens/s", found[side], theirs, fastest or self.name, goal, failed=failed, skipped=self.skipped)


def prepare(name, python, steps, world=1):
    """Finds the best forms of a PyTorch: its sides for measure()."""
    if world > 1:
        name += f", DDP, {world} processes"
    if not installed(python):
        note(f"skipped: torch is not installed ({name}: {python})")
        return Peer(name, skipped="torch is not installed")
    try:
        ranked, refused = sweep(axes(world), lambda form: rate(python, steps, form, world), begins="compile")
    except PeerFailed as why:
        note(f"{name} failed in its first form: {why}")
        return Peer(name, failed=str(why))
    note(f"{name}: {len(ranked)} forms in tokens/s, the best first: "
         + "; ".join(f"{label(form)}: {value:,.0f}" for form, value in ranked))
    for form, why in refused:
        note(f"{name}, left out, {label(form)}: {why}")
    return Peer(name, {f"{name}: {label(form)}": functools.partial(rate, python, steps, form, world) for form, _ in ranked[:FINALISTS]})
