"""An independent evaluation in NumPy, float64: `troupe eval`, and what `troupe train` evaluates beside its steps, against it.

    evaluation.py TROUPE FOLDER     exit 0: every loss agrees; 1: one does not; 77: no NumPy here

The model is reference.py's, the windows are those of docs/command.md. Of a text that is evaluated whole: side by side from its first
byte on, each with the last byte of the one before as its first input, the last one as long as the text goes. Of what is held out: windows
side by side in the last part of the text, the first so many of an order that this program does not know: it tries each set of all but one.
Evaluations that are wrong (a window too few, targets that are inputs, the parameters of an earlier step, ...) are computed as well: a
bound that one of them meets would prove nothing.
"""
import itertools
import json
import math
import pathlib
import subprocess
import sys

try:
    import numpy as np
except ImportError as why:
    print(f"skipped: {why} (Debian: apt-get install python3-numpy)")
    sys.exit(77)

import reference
import training

BOUND = 1e-6   # of a loss, relative: also of that of one token
SEQ, MICROBATCH, FRACTION, STEPS = 16, 2, 0.3, 10
TEXT = 701     # bytes that the run trains on and evaluates
CASES = {
    "untied, evaluation on dp=2": {"tied": "false", "run": ["--mesh", "dp=2"]},
    "tied, evaluation on pp=3 with ZeRO 1": {"tied": "true", "run": ["--mesh", "dp=2/1/2,pp=3", "--zero", "1"]},
}
MESHES = [["dp=1"], ["dp=1", "--threads", "2"], ["dp=2"], ["dp=3"], ["pp=2"], ["dp=2/1,pp=2"], ["tp=2"], ["dp=2,tp=2,pp=2"]]


def random_text(count, seed):
    return np.random.default_rng(seed).choice(np.frombuffer(b"abcdefgh ", "u1"), count)


def mean_nats(p, model, inputs, targets):
    return reference.forward_backward(p, model, inputs.astype(np.int64), targets.astype(np.int64), False)[0]


def windows_of(text, begin, count):
    rows = begin + np.arange(count)[:, None] * SEQ + np.arange(SEQ)
    return text[rows], text[rows + 1]


def whole(p, model, text):
    """The mean loss of all bytes but the first."""
    full, rest = divmod(len(text) - 1, SEQ)
    total = full * SEQ * mean_nats(p, model, *windows_of(text, 0, full)) if full else 0
    total += rest * mean_nats(p, model, text[None, -rest - 1:-1], text[None, -rest:]) if rest else 0
    return total / (len(text) - 1)


def held_out(p, model, text, begin=None):
    """The mean loss of each window of the last part of the text."""
    begin = len(text) - math.floor(len(text) * FRACTION) if begin is None else begin
    count = (math.floor(len(text) * FRACTION) - 1) // SEQ
    return [mean_nats(p, model, *windows_of(text, begin + i * SEQ, 1)) for i in range(count)]


def all_but_one(losses):
    """The means of all sets of windows that lack one."""
    return [np.mean(some) for some in itertools.combinations(losses, len(losses) - 1)]


def distance(loss, expected):
    """From the nearest of the losses that are expected, relative."""
    d = min(abs(loss - e) / abs(e) for e in np.atleast_1d(expected))
    return d if np.isfinite(d) else np.inf


def wrong_wholes(p, before, model, text):
    """What must not pass for the loss of this text, whose last window is not full."""
    tokens = len(text) - 1
    full = tokens // SEQ
    inputs, targets = windows_of(text, 0, full)
    every_second = np.arange(0, full * (SEQ + 1) - SEQ, SEQ + 1)[:, None] + np.arange(SEQ)
    every_second = every_second[every_second[:, -1] + 1 < len(text)]
    return {"the parameters of an earlier step": whole(before, model, text),
            "targets are the inputs": mean_nats(p, model, inputs, inputs),
            "targets are two bytes on": mean_nats(p, model, *(rows[:-1] for rows in (inputs, windows_of(text, 1, full)[1]))),
            "one window that sees all": mean_nats(p, model, text[None, :-1], text[None, 1:]),
            "windows that share no byte": mean_nats(p, model, text[every_second], text[every_second + 1]),
            "without the last window": mean_nats(p, model, inputs, targets),
            "what fills the last microbatch counts": whole(p, model, text) * tokens / (-(-tokens // (MICROBATCH * SEQ)) * MICROBATCH * SEQ),
            "bits, not nats": whole(p, model, text) / math.log(2)}


def evaluate(troupe, out, *words):
    command = [str(word) for word in (troupe, "eval", "--from", out, "--json", *words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


class Table:
    """Prints what is compared; `ok` while all of it is as it must be."""
    ok = True

    def row(self, what, d, good):
        self.ok &= bool(good)
        print(f"  {what:76} {d:.1e}{'' if good else '   WRONG'}")

    def agrees(self, what, loss, expected):
        self.row(what, distance(loss, expected), distance(loss, expected) <= BOUND)

    def differs(self, what, loss, expected):
        self.row(f"(wrong: {what})", distance(loss, expected), distance(loss, expected) > BOUND)

    def equal(self, what, a, b):
        if a != b:
            self.ok = False
            print(f"  {what}: {a!r}, expected {b!r}   WRONG")


def check(troupe, name, case, folder):
    folder.mkdir()
    text, out = random_text(TEXT, 5), folder / "out"
    (folder / "text.txt").write_bytes(text.tobytes())
    (folder / "config.toml").write_text(
        f"[model]\n{training.MODEL}tied = {case['tied']}\ndropout = 0.1\n[schedule]\nsteps = {STEPS}\nlr = 1e-2\nbatch = 12\nmicrobatch = {MICROBATCH}\n"
        f"[eval]\nevery = {STEPS // 2}\nbatches = 6\nfraction = {FRACTION}\n")
    training.run([troupe, "train", folder / "config.toml", "--data", folder / "text.txt", "--checkpoint-every", STEPS // 2, "--out", out, "--quiet", *case["run"]])
    model = json.loads((out / "run.json").read_text())["config"]["model"]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    in_run = {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}
    found = {int(path.name[5:13]): path for path in (out / "checkpoints").glob("step-*")}
    p = {step: training.weights(troupe, path, folder / f"hf-{step}") for step, path in found.items()}
    last, before = STEPS, STEPS // 2
    print(f"\n{name}:")
    table = Table()
    table.equal("steps that were evaluated", sorted(in_run), [before, last])
    table.equal("steps that were saved", sorted(p), [before, last])

    # 6 microbatches of 2 windows: all of 13 but one.
    for step in (before, last):
        losses = held_out(p[step], model, text)
        assert len(losses) == 6 * MICROBATCH + 1
        table.agrees(f"train, after step {step}", in_run[step], all_but_one(losses))
        answer = evaluate(troupe, out, "--step", step)
        table.agrees(f"eval --step {step}", answer["eval_loss"], all_but_one(losses))
        table.equal("tokens", answer["tokens"], 6 * MICROBATCH * SEQ)
        # The order begins again: each window twice.
        each_twice = evaluate(troupe, out, "--step", step, "--batches", len(losses))["eval_loss"]
        table.agrees(f"eval --step {step}, each window twice", each_twice, np.mean(losses))
    losses = held_out(p[last], model, text)
    table.differs("the parameters of an earlier step", np.mean(held_out(p[before], model, text)), all_but_one(losses))
    table.differs("the first part of the text", np.mean(held_out(p[last], model, text, 0)), all_but_one(losses))
    table.differs("windows one byte before", np.mean(held_out(p[last], model, text, TEXT - math.floor(TEXT * FRACTION) - 1)), all_but_one(losses))
    table.differs("the same window again and again", losses[0], all_but_one(losses))

    # More microbatches than a step of the command has (256); the last one is not full, nor is its window.
    count = 256 * MICROBATCH * SEQ + 3 * SEQ + 6
    other = random_text(count, 6)
    path = folder / "other.txt"
    short = MICROBATCH * SEQ + SEQ // 2
    for length in (2, SEQ, SEQ + 1, SEQ + 2, MICROBATCH * SEQ + 1, short, count):
        path.write_bytes(other[:length].tobytes())
        expected = whole(p[last], model, other[:length])
        for mesh in MESHES if length == count else MESHES[:1]:
            answer = evaluate(troupe, out, "--data", path, "--mesh", *mesh)
            table.agrees(f"eval of {length} bytes, {' '.join(mesh)}", answer["eval_loss"], expected)
            table.equal("tokens", answer["tokens"], length - 1)
            table.equal("step", answer["step"], last)
            if distance(answer["perplexity"], math.exp(answer["eval_loss"])) > 1e-12:
                table.equal("perplexity", answer["perplexity"], math.exp(answer["eval_loss"]))
    for wrong, loss in wrong_wholes(p[last], p[before], model, other[:short]).items():
        table.differs(wrong, loss, whole(p[last], model, other[:short]))
    for batches in (3, 257):
        first = other[:min(count, batches * MICROBATCH * SEQ + 1)]
        answer = evaluate(troupe, out, "--data", path, "--batches", batches)
        table.agrees(f"eval --batches {batches}", answer["eval_loss"], whole(p[last], model, first))
        table.equal("tokens", answer["tokens"], len(first) - 1)
    return table.ok


if __name__ == "__main__":
    work = pathlib.Path(sys.argv[2])
    results = [check(sys.argv[1], name, case, work / str(i)) for i, (name, case) in enumerate(CASES.items())]
    print(f"\n{sum(results)} of {len(results)} cases agree, bound {BOUND}")
    sys.exit(0 if results and all(results) else 1)
