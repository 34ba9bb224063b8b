"""What the runtime adds to the kernels, from a trace.json of `troupe train --trace`."""
import json
import re

COMPUTE = re.compile(r"\.(fwd|bwd|wgrad|norm|update)(\.\d+)?$")   # rows of actors on the compute stream


def load(path):
    """{worker: [(row, step, microbatch, begin us, end us), ...]}"""
    rows, acts = {}, {}
    for e in json.loads(path.read_text())["traceEvents"]:
        if e["name"] == "thread_name":
            rows[e["pid"], e["tid"]] = e["args"]["name"]
        elif e["ph"] == "X":
            a = e["args"]
            acts.setdefault(e["pid"], []).append(
                (rows[e["pid"], e["tid"]], a["step"], a.get("microbatch", -1), e["ts"], e["ts"] + e["dur"]))
    return acts


def overhead(path):
    """The largest of the workers' shares of time in which the compute stream runs no kernel, although no message that it
    awaits is still unsent. Between the first act of the window's first step and that of its last.

    A gap is blamed on the exchange that ended last in it: until its peer has begun it, the message had not been sent. A
    gap before an update awaits the commit, which the last gradient norm of any worker sends on its way."""
    acts = load(path)
    begun = {}      # (row, step, microbatch) of an exchange -> when each worker began it
    normed = {}     # step -> the end of its last norm on any worker
    for worker, spans in acts.items():
        for row, step, microbatch, begin, end in spans:
            if not COMPUTE.search(row):
                begun.setdefault((row, step, microbatch), {})[worker] = begin
            elif ".norm" in row:
                normed[step] = max(normed.get(step, 0), end)
    return max(worker_overhead(w, spans, begun, normed) for w, spans in acts.items())


def worker_overhead(worker, spans, begun, normed):
    compute = sorted((s for s in spans if COMPUTE.search(s[0])), key=lambda s: s[3])
    exchanges = sorted((s for s in spans if not COMPUTE.search(s[0])), key=lambda s: s[4])
    steps = sorted({s[1] for s in compute})
    first, last = (min(s[3] for s in compute if s[1] == step) for step in (steps[0], steps[-1]))
    busy = excused = 0
    free_at, seen = first, 0
    for row, step, _, begin, end in compute:
        if begin < first or begin >= last:
            continue
        cause = None
        while seen < len(exchanges) and exchanges[seen][4] <= begin:
            if exchanges[seen][4] > free_at:
                cause = exchanges[seen]
            seen += 1
        if begin > free_at:
            sent = normed.get(step, 0) if ".update" in row else 0
            if cause:
                sent = max([sent] + [t for w, t in begun[cause[:3]].items() if w != worker])
            excused += max(0, min(sent, begin) - free_at)
        busy += end - begin
        free_at = max(free_at, end)
    return 1 - (busy + excused) / (last - first)
