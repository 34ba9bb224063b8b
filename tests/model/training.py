"""An independent training loop in NumPy, float64: `troupe train` against it, on several meshes.

    training.py TROUPE FOLDER       exit 0: every run agrees; 1: one does not; 77: no NumPy here

Twenty steps of AdamW as Loshchilov and Hutter define it (decoupled decay; matrices decay, norms do not), the learning rate
and the clipping of docs/command.md, over the model of reference.py. The text is so short that an epoch is one step: all windows
side by side, in some order, from an offset that each epoch draws anew. The loop does not know how it is drawn: of the sixteen
it takes the one whose loss is nearest to the run's.
Wrong loops (no clipping, twice the rate, decaying norms, ...) are run too: a bound that one of them meets would prove nothing.
"""
import json
import pathlib
import subprocess
import sys

try:
    import numpy as np
except ImportError as why:
    print(f"skipped: {why} (Debian: apt-get install python3-numpy)")
    sys.exit(77)

import reference

STEPS, HORIZON, BATCH, SEQ = 20, 30, 12, 16
# How far a run may be: of a loss and a norm, relative; of all parameters, relative to how far training has moved them.
BOUND = {"loss": 1e-6, "norm": 1e-5, "parameters": 2e-5}

MODEL = f"layers = 3\nheads = 4\nkv_heads = 2\ndim = 24\nhead_dim = 6\nffn = 40\nseq = {SEQ}\n"
CASES = {
    "clipped, warm-up, untied": {
        "model": "tied = false\n", "schedule": {"warmup": 5, "lr": 1e-2, "min_lr": 1e-3},
        "optimizer": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.3, "clip": 0.4},
        "meshes": [["dp=1"], ["dp=1", "--threads", "2"], ["dp=3"], ["pp=3"], ["tp=2"], ["dp=2,pp=2", "--zero", "1"],
                   ["dp=2", "--zero", "2"], ["dp=2,pp=2", "--zero", "3"], ["dp=2,tp=2"],
                   ["pp=2", "--set", "schedule.pipeline=zero-bubble"]]},
    "not clipped, no warm-up, tied": {
        "model": "tied = true\n", "schedule": {"warmup": 0, "lr": 4e-3, "min_lr": 0},
        "optimizer": {"beta1": 0.8, "beta2": 0.99, "eps": 1e-4, "weight_decay": 0.05, "clip": 0},
        "meshes": [["dp=1"], ["dp=4"], ["pp=2"], ["tp=2"], ["dp=3", "--zero", "1"], ["dp=2", "--zero", "3"],
                   ["pp=2", "--set", "mesh.shared_vocabulary=true"]]},
}
# What must not pass: a change of the loop, and the cases in which it would show.
WRONG = {"never clips": ["clipped, warm-up, untied"], "clips to half": ["clipped, warm-up, untied"], "always scales to the clip": ["clipped, warm-up, untied"], "twice the rate": list(CASES),
         "decays norms": list(CASES), "decays nothing": list(CASES), "decay coupled to the gradient": list(CASES),
         "no bias correction": list(CASES), "eps inside the root": ["not clipped, no warm-up, tied"],
         "rate of the step before": list(CASES), "one microbatch is lost": list(CASES)}


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def weights(troupe, checkpoints, out):
    """A run's newest checkpoint, exported for Hugging Face: parameters by name."""
    run([troupe, "ckpt", "export", checkpoints, "--format", "hf", "--out", out])
    raw = (out / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    assert all(t["dtype"] == "F32" for t in header.values())
    return {name: np.frombuffer(raw[8 + length:][slice(*t["data_offsets"])], "<f4").reshape(t["shape"]).astype(np.float64)
            for name, t in header.items()}


def lr_at(step, s):
    """docs/command.md: linear warm-up, then half a cosine from lr to min_lr at the horizon."""
    if step < s["warmup"]:
        return s["lr"] * (step + 1) / (s["warmup"] + 1)
    done = (step - s["warmup"]) / (HORIZON - s["warmup"])
    return s["min_lr"] + (s["lr"] - s["min_lr"]) * (1 + np.cos(np.pi * done)) / 2


def windows(text, offset):
    """Tokens and targets of a step, (BATCH, SEQ) each."""
    rows = offset + np.arange(BATCH)[:, None] * SEQ + np.arange(SEQ)
    return text[rows].astype(np.int64), text[rows + 1].astype(np.int64)


def offset_of(loss, p, config, text):
    return min(range(SEQ), key=lambda o: abs(loss - reference.forward_backward(p, config, *windows(text, o), False)[0]))


def train(case, config, first, text, offset_at, wrong=""):
    """Losses, norms before clipping, and the parameters at the end. offset_at(step, parameters) says where windows begin."""
    o = case["optimizer"]
    p = {k: v.copy() for k, v in first.items()}
    m, v = {k: 0 * x for k, x in p.items()}, {k: 0 * x for k, x in p.items()}
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = windows(text, offset_at(step, p))
        loss, g = reference.forward_backward(p, config, tokens, targets)
        if wrong == "one microbatch is lost":
            g = reference.forward_backward(p, config, tokens[2:], targets[2:])[1]
            g = {k: x * (BATCH - 2) / BATCH for k, x in g.items()}
        losses.append(loss)
        norms.append(np.sqrt(sum((x * x).sum() for x in g.values())))
        clip = o["clip"] / 2 if wrong == "clips to half" else o["clip"]
        if clip > 0 and (norms[-1] > clip or wrong == "always scales to the clip") and wrong != "never clips":
            g = {k: x * clip / norms[-1] for k, x in g.items()}
        lr = lr_at(max(0, step - 1) if wrong == "rate of the step before" else step, case["schedule"])
        lr *= 2 if wrong == "twice the rate" else 1
        for k, x in g.items():
            decay = o["weight_decay"] if (x.ndim == 2 or wrong == "decays norms") and wrong != "decays nothing" else 0
            if wrong == "decay coupled to the gradient":
                x, decay = x + decay * p[k], 0
            m[k] = o["beta1"] * m[k] + (1 - o["beta1"]) * x
            v[k] = o["beta2"] * v[k] + (1 - o["beta2"]) * x * x
            fix1, fix2 = (1, 1) if wrong == "no bias correction" else (1 - o["beta1"] ** (step + 1), 1 - o["beta2"] ** (step + 1))
            root = np.sqrt(v[k] / fix2 + o["eps"] ** 2) if wrong == "eps inside the root" else np.sqrt(v[k] / fix2) + o["eps"]
            p[k] = p[k] * (1 - lr * decay) - lr * (m[k] / fix1) / root
    return losses, norms, p


def distances(losses, norms, p, expected, first):
    far = lambda a, b: max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))
    square = lambda a, b: sum(((a[k] - b[k]) ** 2).sum() for k in b)
    assert set(p) == set(expected[2])
    return {"loss": far(losses, expected[0]), "norm": far(norms, expected[1]),
            "parameters": float(np.sqrt(square(p, expected[2]) / square(first, expected[2])))}


def agrees(d):
    return all(np.isfinite(d[what]) and d[what] <= BOUND[what] for what in BOUND)


def table(name, d, ok):
    print(f"  {name:46} " + "  ".join(f"{what} {d[what]:.1e}" for what in BOUND) + ("" if ok else "   WRONG"))


def check(troupe, name, case, folder):
    folder.mkdir()
    config = folder / "config.toml"
    section = lambda values: "".join(f"{k} = {v!r}\n" for k, v in values.items())
    config.write_text(f"[model]\n{MODEL}{case['model']}[schedule]\nsteps = {HORIZON}\nbatch = {BATCH}\nmicrobatch = 2\n"
                      f"{section(case['schedule'])}[optimizer]\n{section(case['optimizer'])}[eval]\nfraction = 0\n")
    text = np.random.default_rng(5).choice(np.frombuffer(b"abcdefgh ", "u1"), (BATCH + 1) * SEQ)
    (folder / "text.txt").write_bytes(text.tobytes())

    def command(out, steps, *more):
        run([troupe, "train", config, "--data", folder / "text.txt", "--steps", steps, "--checkpoint-every", steps, "--out", out, "--quiet", *more])
        return weights(troupe, out / "checkpoints", out / "hf")

    # A step at a rate that moves nothing leaves the initial parameters.
    first = command(folder / "first", 1, "--set", "schedule.lr=1e-30", "--set", "schedule.min_lr=0")
    model = json.loads((folder / "first/run.json").read_text())["config"]["model"]
    offsets = []

    def find_offset(step, p):
        offsets.append(offset_of(runs[0][0][step], p, model, text))
        return offsets[-1]

    runs = []
    for mesh in case["meshes"]:
        out = folder / "-".join(mesh).replace("/", "_")
        p = command(out, STEPS, "--mesh", *mesh)
        lines = [line for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in line]
        runs.append(([line["loss"] for line in lines], [line["grad_norm"] for line in lines], p))
    expected = train(case, model, first, text, find_offset)
    clip = case["optimizer"]["clip"]
    clipped = sum(n > clip > 0 for n in expected[1])
    print(f"\n{name}: loss {expected[0][0]:.4f} -> {expected[0][-1]:.4f}, clipped in {clipped} of {STEPS} steps, "
          f"{len(set(offsets))} offsets")
    ok = clip == 0 or 0 < clipped < STEPS
    for mesh, ran in zip(case["meshes"], runs):
        d = distances(*ran, expected, first)
        ok &= agrees(d)
        table(" ".join(mesh), d, agrees(d))
    for wrong in (w for w, cases in WRONG.items() if name in cases):
        d = distances(*train(case, model, first, text, lambda step, _: offsets[step], wrong), expected, first)
        ok &= not agrees(d)
        table(f"(a loop that is wrong: {wrong})", d, not agrees(d))
    return ok


if __name__ == "__main__":
    work = pathlib.Path(sys.argv[2])
    results = [check(sys.argv[1], name, case, work / str(i)) for i, (name, case) in enumerate(CASES.items())]
    print(f"\n{sum(results)} of {len(results)} cases agree, bounds {BOUND}")
    sys.exit(0 if results and all(results) else 1)
