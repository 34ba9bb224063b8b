"""The comparisons, one function each: rounds in, rows of the report out."""
import shutil
import subprocess
import sys
import time

import jobs
import torch_peer
import trace
from rounds import Row, measure

LISTEN_S, PERFTEST_S = 10, 300   # a server of ucx_perftest takes at most so long to listen, and a measurement to end
LAYERS, DIM, FFN, SEQ, VOCAB = 6, 384, 1024, 256, 256   # apps/configs/lm-10m.toml


def products():
    """The matrix products of a step in microbatches of one sample, as bench_gemm takes them."""
    shapes = [(DIM, DIM, 4 * LAYERS), (FFN, DIM, 2 * LAYERS), (DIM, FFN, LAYERS), (VOCAB, DIM, 1)]
    out = []
    for n, k, count in shapes:
        out += [f"{SEQ},{n},{k},{count},nt", f"{SEQ},{k},{n},{count},nn", f"{n},{k},{SEQ},{count},tn"]
    return out


def step_flops():
    """Of the matrix products of a step (forward, both gradients); attention and everything else not counted."""
    weights = LAYERS * (4 * DIM * DIM + 3 * DIM * FFN) + VOCAB * DIM
    return 6 * weights * jobs.TOKENS


def product_rows(found):
    """The step's matrix products, against what the register tile alone does. The tile is the bar, because the products are a
    part of the step: faster products would raise a bar that they set, and the row would get worse."""
    step = [step_flops() * tokens / jobs.TOKENS * 1e-9 for tokens in found["Troupe"]]
    tile, alone = found["gemm.tile_gflops"], found["gemm.gflops"]
    return [Row("its matrix products over the time of the whole step", "GFLOP/s", step, tile, "the register tile alone", 0.80),
            Row("the same products, each alone", "GFLOP/s", alone, tile, "the register tile alone"),
            Row("its matrix products over the time of the whole step", "GFLOP/s", step, alone, "the same products, each alone")]


def model(rounds):
    steps, at = 6, jobs.cores(1)

    def gemm():
        answer = jobs.run_json(jobs.on(at, [jobs.ROOT / "build/bench/tools/bench_gemm", *products()]))
        return {key: answer[key] for key in ("gflops", "tile_gflops")}

    peers = [torch_peer.prepare(name, python, steps) for name, python in jobs.PYTHONS.items()]
    sides = {"Troupe": lambda: jobs.train(steps, at=at), "gemm": gemm}
    for peer in peers:
        sides |= peer.sides
    found = measure(sides, rounds)
    return [peer.row("lm-10m, one worker, one thread", found, "Troupe", 1.15) for peer in peers] + product_rows(found)


def workers(rounds):
    steps, at = 6, jobs.cores(2)
    goals = {"dp=2": 0.93, "pp=2": 0.80, "tp=2": 0.75}
    peers = [torch_peer.prepare(name, python, steps, world=2) for name, python in jobs.PYTHONS.items()]
    sides = {"apart": lambda: jobs.train_apart(at, steps)}
    for peer in peers:
        sides |= peer.sides
    for mesh in goals:
        sides[mesh] = lambda mesh=mesh: jobs.train(steps, "--mesh", mesh, at=at)
    sides["dp=2, tcp"] = lambda: jobs.train(steps, "--mesh", "dp=2", "--ucx-tls", "tcp", at=at)
    found = measure(sides, rounds)
    rows = [Row(f"lm-10m, {mesh}", "tokens/s", found[mesh], found["apart"], "two jobs of one worker each", goal)
            for mesh, goal in goals.items()]
    for peer in peers:
        rows += [peer.row("lm-10m, dp=2, over shared memory", found, "dp=2", 1.5), peer.row("lm-10m, dp=2, over TCP", found, "dp=2, tcp")]
    return rows


def overhead(rounds):
    meshes = ["dp=1", "dp=2", "pp=2", "tp=2"]

    def share(mesh):
        jobs.train(5, "--mesh", mesh, "--pin", "--trace", "--trace-steps", "1:4")
        return 100 * trace.overhead(jobs.SCRATCH / "run/trace.json")

    found = measure({mesh: lambda mesh=mesh: share(mesh) for mesh in meshes}, rounds)
    what = {"dp=1": "overhead of the runtime, one worker"}
    return [Row(what.get(mesh, f"the same, {mesh}, without waits for what was not sent"), "% of the step", found[mesh], limit=3)
            for mesh in meshes]


def tensor(rounds):
    """tp=2 with microbatches ahead: a wait for an exchange is work on another microbatch. Each against jobs with the same
    microbatches."""
    steps, at = 6, jobs.cores(2)
    ahead = lambda n: ["--set", f"schedule.ahead={n}"]
    samples = {1: [], 4: ["--set", "schedule.microbatch=4"]}   # of a microbatch
    ways = {"tp=2": (1, []), "tp=2, 1 ahead": (1, ahead(1)), "tp=2, 2 ahead": (1, ahead(2)),
            "tp=2, microbatches of 4 samples, 1 ahead": (4, ahead(1))}

    def share(more):
        jobs.train(5, "--mesh", "tp=2", "--pin", "--trace", "--trace-steps", "1:4", *more)
        return 100 * trace.overhead(jobs.SCRATCH / "run/trace.json")

    sides = {f"apart, {n}": lambda more=more: jobs.train_apart(at, steps, *more) for n, more in samples.items()}
    sides |= {way: lambda more=samples[n] + more: jobs.train(steps, "--mesh", "tp=2", *more, at=at) for way, (n, more) in ways.items()}
    sides |= {f"overhead, {way}": lambda more=samples[n] + more: share(more) for way, (n, more) in ways.items()}
    found = measure(sides, rounds)
    return [Row(f"lm-10m, {way}", "tokens/s", found[way], found[f"apart, {n}"], "two jobs of one worker each", 0.92)
            for way, (n, _) in ways.items()] + \
        [Row(f"overhead of the runtime, {way}, without waits for what was not sent", "% of the step", found[f"overhead, {way}"], limit=4)
         for way in ways]


def perftest(test, size, outstanding, iterations, at=()):
    """ucx_perftest between two processes, on the cores `at`, where some are named: {"us": per message, "mb_per_s": MiB/s,
    "messages_per_s": ...}."""
    on = lambda command: jobs.on(at, command) if at else command
    env = {**jobs.os.environ, "UCX_TLS": "posix,cma", "UCX_PROTO_ENABLE": "n", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    server = jobs.start(on(["ucx_perftest", "-p", 13777]), env=env)
    command = on(["ucx_perftest", "localhost", "-p", 13777, "-f", "-v", "-t", test, "-s", size, "-n", iterations, "-w",
                  max(iterations // 10, 10), *(["-O", outstanding] if outstanding else [])])
    begin = time.monotonic()
    while True:   # until the server listens
        try:
            client = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=PERFTEST_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()
            sys.exit(f"{' '.join(map(str, command))}: it has not ended after {PERFTEST_S} s")
        if client.returncode == 0:
            break
        if server.poll() is not None or time.monotonic() - begin > LISTEN_S:
            server.kill()
            out, err = server.communicate()
            sys.exit(f"{' '.join(map(str, command))}: exit code {client.returncode}\n{client.stdout}{client.stderr}server:\n{out}{err}")
    jobs.finish(server)
    final = [float(x) for x in client.stdout.strip().splitlines()[-1].split(",")]
    return {"us": final[3], "mb_per_s": final[5], "messages_per_s": final[7]}


def tool(at, *arguments):
    return jobs.run_json(jobs.on(at, [jobs.ROOT / "build/bench/tools/bench_messages", *arguments]))


def missing(program, package):
    """Why a peer's rows are skipped; empty where it is installed."""
    if shutil.which(program):
        return ""
    print(f"skipped: {program} is not installed (apt-get install {package})", flush=True)
    return f"{program} is not installed"


def message_rows(f, skipped=""):
    """The goal for large messages is on the row that is shaped as a job is: every message under way has a slot of its own. With one
    buffer at each end all of them lie in a cache; ucx_perftest can only do that."""
    ucx = "ucx_perftest ucp_am_bw"
    row = lambda *words, **more: f.row(*words, skipped=skipped, **more)
    return [row("1 MiB messages, 4 outstanding, a slot for each, as in a job", "GB/s", "slots", "large ucx", ucx + ", one buffer", goal=0.9),
            row("the same, one buffer at each end, as in no job", "GB/s", "large", "large ucx", ucx + ", one buffer"),
            row("64 B messages, 64 outstanding, acknowledged", "M/s", "small", "small ucx", ucx + ", not acknowledged"),
            row("8 B one way, asleep while nothing comes", "us", "latency", "latency ucx", "ucp_am_lat, which spins", inverse=True),
            row("8 B one way, spinning up to 20 us", "us", "latency spinning", "latency ucx", "ucp_am_lat", inverse=True)]


def messages(rounds):
    mib, outstanding, at = 1 << 20, 4, jobs.cores(2)
    skipped = missing("ucx_perftest", "ucx-utils")
    sides = {
        "large": lambda: tool(at, "stream", "posix,cma", mib, outstanding, 1, 4000)["gb_per_s"],
        "slots": lambda: tool(at, "stream", "posix,cma", mib, outstanding, outstanding, 4000)["gb_per_s"],
        "small": lambda: tool(at, "stream", "posix,cma", 64, 64, 64, 200_000)["messages_per_s"] * 1e-6,
        "latency": lambda: tool(at, "ping-pong", "posix,cma", 8, 20_000)["one_way_us"],
        "latency spinning": lambda: tool(at, "ping-pong", "posix,cma", 8, 20_000, 20)["one_way_us"],
    }
    if not skipped:
        sides |= {
            "large ucx": lambda: perftest("ucp_am_bw", mib, outstanding, 4000, at)["mb_per_s"] * mib * 1e-9,
            "small ucx": lambda: perftest("ucp_am_bw", 64, 64, 1_000_000, at)["messages_per_s"] * 1e-6,
            "latency ucx": lambda: perftest("ucp_am_lat", 8, 0, 200_000, at)["us"],
        }
    return message_rows(measure(sides, rounds), skipped)


def all_reduce(rounds):
    size, count, at = 16 << 20, 20, jobs.cores(2)
    skipped = missing("mpirun", "openmpi-bin")
    if not skipped and not (jobs.PEERS / "all_reduce").exists():
        skipped = f"{jobs.PEERS / 'all_reduce'} is not there: bench/run.sh builds it with mpicc"
        print(f"skipped: {skipped}", flush=True)

    def mpi(workers):
        return jobs.run_json(jobs.on(at, ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", workers,
                                          jobs.PEERS / "all_reduce", size, count]))["ms"]

    sides = {}
    for n in (2, 4):
        sides[f"ours {n}"] = lambda n=n: tool(at, "all-reduce", "posix,cma", size, n, count)["ms"]
        if not skipped:
            sides[f"mpi {n}"] = lambda n=n: mpi(n)
    f = measure(sides, rounds)
    return [f.row("16 MiB all-reduce, 2 workers", "ms", "ours 2", "mpi 2", "Open MPI", goal=1.0, inverse=True, skipped=skipped),
            f.row("16 MiB all-reduce, 4 workers on two cores", "ms", "ours 4", "mpi 4", "Open MPI", inverse=True, skipped=skipped)]


ALL = {"model": model, "workers": workers, "overhead": overhead, "tensor": tensor, "messages": messages, "all-reduce": all_reduce}
