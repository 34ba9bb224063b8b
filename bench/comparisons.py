"""The comparisons, one function each: rounds in, rows of the report out."""
import json
import subprocess
import sys
import time

import jobs
import trace
from rounds import Row, measure

LISTEN_S, PERFTEST_S = 10, 300   # a server of ucx_perftest takes at most so long to listen, and a measurement to end
LAYERS, DIM, FFN, SEQ, VOCAB, BATCH = 6, 384, 1024, 256, 256, 8   # apps/configs/lm-10m.toml


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
    return 6 * weights * SEQ * BATCH


def model(rounds):
    steps = 6
    sides = {"Troupe": lambda: jobs.train(steps),
             "gemm": lambda: jobs.run_json([jobs.ROOT / "build/bench/tools/bench_gemm", *products()])["gflops"]}
    for name, python in jobs.PYTHONS.items():
        sides[name] = lambda python=python: jobs.torch(python, steps)
    found = measure(sides, rounds)
    rows = [Row("lm-10m, one worker, one thread", "tokens/s", found["Troupe"], found[name], name, 1.15) for name in jobs.PYTHONS]
    rate = [step_flops() * tokens / (SEQ * BATCH) * 1e-9 for tokens in found["Troupe"]]
    rows.append(Row("its matrix products over the time of the whole step", "GFLOP/s", rate, found["gemm"],
                    "the same products, each alone", 0.85))
    return rows


def workers(rounds):
    steps = 6
    goals = {"dp=2": 0.93, "pp=2": 0.80, "tp=2": 0.75}
    sides = {"apart": lambda: jobs.train_apart(2, steps)}
    for name, python in jobs.PYTHONS.items():
        sides[name] = lambda python=python: jobs.torch(python, steps, world=2)
    for mesh in goals:
        sides[mesh] = lambda mesh=mesh: jobs.train(steps, "--mesh", mesh, "--pin")
    found = measure(sides, rounds)
    rows = [Row(f"lm-10m, {mesh}", "tokens/s", found[mesh], found["apart"], "two jobs of one worker each", goal)
            for mesh, goal in goals.items()]
    return rows + [Row("lm-10m, dp=2", "tokens/s", found["dp=2"], found[name], name + ", DDP over gloo", 1.5) for name in jobs.PYTHONS]


def overhead(rounds):
    meshes = ["dp=1", "dp=2", "pp=2", "tp=2"]

    def share(mesh):
        jobs.train(5, "--mesh", mesh, "--pin", "--trace", "--trace-steps", "1:4")
        return 100 * trace.overhead(jobs.SCRATCH / "run/trace.json")

    found = measure({mesh: lambda mesh=mesh: share(mesh) for mesh in meshes}, rounds)
    what = {"dp=1": "overhead of the runtime, one worker"}
    return [Row(what.get(mesh, f"the same, {mesh}, without waits for what was not sent"), "% of the step", found[mesh], limit=3)
            for mesh in meshes]


def perftest(test, size, outstanding, iterations):
    """ucx_perftest between two processes: {"us": per message, "mb_per_s": MiB/s, "messages_per_s": ...}."""
    env = {**jobs.os.environ, "UCX_TLS": "posix,cma", "UCX_PROTO_ENABLE": "n", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    server = jobs.start(["ucx_perftest", "-p", 13777], env=env)
    command = ["ucx_perftest", "localhost", "-p", 13777, "-f", "-v", "-t", test, "-s", size, "-n", iterations, "-w",
               max(iterations // 10, 10), *(["-O", outstanding] if outstanding else [])]
    begin = time.monotonic()
    while True:   # until the server listens
        client = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=PERFTEST_S)
        if client.returncode == 0:
            break
        if server.poll() is not None or time.monotonic() - begin > LISTEN_S:
            server.kill()
            out, err = server.communicate()
            sys.exit(f"{' '.join(map(str, command))}: exit code {client.returncode}\n{client.stdout}{client.stderr}server:\n{out}{err}")
    jobs.finish(server)
    final = [float(x) for x in client.stdout.strip().splitlines()[-1].split(",")]
    return {"us": final[3], "mb_per_s": final[5], "messages_per_s": final[7]}


def tool(*arguments):
    return jobs.run_json([jobs.ROOT / "build/bench/tools/bench_messages", *arguments])


def messages(rounds):
    mib, outstanding = 1 << 20, 4
    sides = {
        "large": lambda: tool("stream", "posix,cma", mib, outstanding, 1, 4000)["gb_per_s"],
        "slots": lambda: tool("stream", "posix,cma", mib, outstanding, outstanding, 4000)["gb_per_s"],
        "large ucx": lambda: perftest("ucp_am_bw", mib, outstanding, 4000)["mb_per_s"] * mib * 1e-9,
        "small": lambda: tool("stream", "posix,cma", 64, 64, 64, 200_000)["messages_per_s"] * 1e-6,
        "small ucx": lambda: perftest("ucp_am_bw", 64, 64, 1_000_000)["messages_per_s"] * 1e-6,
        "latency": lambda: tool("ping-pong", "posix,cma", 8, 20_000)["one_way_us"],
        "latency spinning": lambda: tool("ping-pong", "posix,cma", 8, 20_000, 20)["one_way_us"],
        "latency ucx": lambda: perftest("ucp_am_lat", 8, 0, 200_000)["us"],
    }
    f = measure(sides, rounds)
    ucx = "ucx_perftest ucp_am_bw"
    return [Row(f"1 MiB messages, {outstanding} outstanding, one buffer at each end", "GB/s", f["large"], f["large ucx"], ucx, 0.9),
            Row("the same, a slot for each that is outstanding", "GB/s", f["slots"], f["large ucx"], ucx + ", one buffer"),
            Row("64 B messages, 64 outstanding, acknowledged", "M/s", f["small"], f["small ucx"], ucx + ", not acknowledged"),
            Row("8 B one way, asleep while nothing comes", "us", f["latency"], f["latency ucx"], "ucp_am_lat, which spins", inverse=True),
            Row("8 B one way, spinning up to 20 us", "us", f["latency spinning"], f["latency ucx"], "ucp_am_lat", inverse=True)]


def all_reduce(rounds):
    size, count = 16 << 20, 20

    def mpi(workers):
        return jobs.run_json(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", workers,
                              jobs.PEERS / "all_reduce", size, count])["ms"]

    sides = {}
    for n in (2, 4):
        sides[f"ours {n}"] = lambda n=n: tool("all-reduce", "posix,cma", size, n, count)["ms"]
        sides[f"mpi {n}"] = lambda n=n: mpi(n)
    f = measure(sides, rounds)
    return [Row("16 MiB all-reduce, 2 workers", "ms", f["ours 2"], f["mpi 2"], "Open MPI", 1.0, inverse=True),
            Row("16 MiB all-reduce, 4 workers on two cores", "ms", f["ours 4"], f["mpi 4"], "Open MPI", inverse=True)]


ALL = {"model": model, "workers": workers, "overhead": overhead, "messages": messages, "all-reduce": all_reduce}
