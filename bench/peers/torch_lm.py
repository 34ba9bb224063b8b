"""The model of apps/configs/lm-10m.toml in PyTorch, with one thread per process.

Same initial parameters, shapes, batches, optimizer (AdamW, clipping at 1) and learning rates as `troupe train`: both sides
compute the same losses. Written as well as PyTorch allows: the fused optimizer, the fused attention and the fused norm where this
version has them; DDP with views into its buckets, no reduction but after the last microbatch, and no broadcast of constants. The
arguments choose the rest of the form.
Prints one line of JSON: the milliseconds of every step, the losses (with DDP, of this replica's samples), the versions.

    python torch_lm.py CONFIG.toml TEXT STEPS --weights FILE [--microbatch N] [--compile blocks|model]
    ... --rank R --world N --port P [--bucket-mb MB] [--backend ucc]      one of N replicas (DDP)
"""
import argparse
import contextlib
import datetime
import inspect
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import same_run

try:
    import tomllib
except ImportError:   # Python before 3.11
    import tomli as tomllib


class Norm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """Rotary position embedding, halves rotated as Hugging Face does; x (B, H, T, D)."""
    a, b = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((-b, a), dim=-1), sin)


def attend(q, k, v, mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
    return torch.matmul(torch.softmax(scores + mask, dim=-1), v)


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        dim, ffn = m["dim"], m["ffn"]
        self.heads = m["heads"]
        self.norm1, self.norm2 = Norm(dim, 1e-5), Norm(dim, 1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((dim, ffn), (dim, ffn), (ffn, dim)))

    def forward(self, x, cos, sin, mask):
        B, T, C = x.shape
        n = self.norm1(x)
        q, k, v = (w(n).view(B, T, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        a = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, C))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Model(nn.Module):
    def __init__(self, m):
        super().__init__()
        vocab = m.get("vocab", 256)
        self.embed = nn.Embedding(vocab, m["dim"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm, self.head = Norm(m["dim"], 1e-5), nn.Linear(m["dim"], vocab, bias=False)
        T, D = m["seq"], m["dim"] // m["heads"]
        angle = torch.outer(torch.arange(T), 10000.0 ** (-torch.arange(0, D, 2) / D)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


PARTS = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
         "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
OUTSIDE = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}


def exported_name(name):
    """What an exported checkpoint calls a parameter of Model."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{kind}"


def load(model, path):
    """The parameters of an exported checkpoint: each of them, and no other."""
    there = same_run.tensors(path)
    for name, w in model.named_parameters():
        shape, data = there.pop(exported_name(name), (None, b""))
        if shape != list(w.shape):
            sys.exit(f"{path}: {exported_name(name)} has the shape {shape}, the model in PyTorch expects {list(w.shape)}")
        w.data.copy_(torch.frombuffer(bytearray(data), dtype=torch.float32).view(w.shape))
    if there:
        sys.exit(f"{path} has parameters that the model in PyTorch lacks: {', '.join(sorted(there))}")


def compiled(model, how):
    """Compiles each block, or says that the whole is to be compiled."""
    if how != "no" and not hasattr(torch, "compile"):
        sys.exit(f"PyTorch {torch.__version__} has no torch.compile")
    if how == "blocks":
        for block in model.blocks:
            block.compile()
    return how == "model"


def replica(model, a):
    """One of the replicas of DDP."""
    if a.backend == "ucc" and not getattr(torch.distributed, "is_ucc_available", lambda: False)():
        sys.exit(f"PyTorch {torch.__version__} is built without ucc")
    torch.distributed.init_process_group(a.backend, f"tcp://127.0.0.1:{a.port}", rank=a.rank, world_size=a.world,
                                         timeout=datetime.timedelta(minutes=5))
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=a.bucket_mb, gradient_as_bucket_view=True,
                                               broadcast_buffers=False)


def optimizer_of(model, c):
    decayed = [w for w in model.parameters() if w.dim() == 2]
    others = [w for w in model.parameters() if w.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    options = dict(lr=c["schedule"]["lr"], betas=(0.9, c["optimizer"]["beta2"]))
    if "fused" in inspect.signature(torch.optim.AdamW).parameters:
        try:
            return torch.optim.AdamW(groups, fused=True, **options), "fused"
        except RuntimeError:   # a version that fuses on GPUs only
            pass
    return torch.optim.AdamW(groups, foreach=True, **options), "foreach"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("text", type=Path)
    p.add_argument("steps", type=int)
    p.add_argument("--weights", type=Path, required=True)
    p.add_argument("--microbatch", type=int)
    p.add_argument("--compile", choices=["no", "blocks", "model"], default="no")
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--world", type=int, default=1)
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--bucket-mb", type=float, default=25)
    p.add_argument("--backend", choices=["gloo", "ucc"], default="gloo")
    a = p.parse_args()
    with open(a.config, "rb") as f:
        c = tomllib.load(f)
    torch.set_num_threads(1)
    model = Model(c["model"])
    load(model, a.weights)
    parameters = list(model.parameters())
    optimizer, kind = optimizer_of(model, c)
    whole = compiled(model, a.compile)
    trained = replica(model, a) if a.world > 1 else model
    run = torch.compile(trained) if whole else trained
    text = a.text.read_bytes()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    T, batch = c["model"]["seq"], c["schedule"]["batch"]
    samples = batch // a.world
    microbatch = a.microbatch or samples
    if samples % microbatch:
        sys.exit(f"--microbatch is {microbatch}: expected a divisor of the {samples} samples of a replica")
    first = [[same_run.window(n * batch + a.rank * samples + i, len(text), T) for i in range(samples)] for n in range(a.steps)]

    def step(number):
        tokens = torch.stack([data[i:i + T + 1] for i in first[number]]).long()
        optimizer.zero_grad(set_to_none=True)
        total = 0
        for begin in range(0, samples, microbatch):
            last = begin + microbatch == samples
            part = tokens[begin:begin + microbatch]
            with contextlib.nullcontext() if last or a.world == 1 else trained.no_sync():
                loss = run(part[:, :-1], part[:, 1:]) * (microbatch / samples)
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = same_run.learning_rate(number, c["schedule"])
        optimizer.step()
        return total.item()

    ms, losses = [], []
    for number in range(a.steps):
        begin = time.perf_counter()
        losses.append(step(number))
        ms.append((time.perf_counter() - begin) * 1e3)
    if a.world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    blas = "OpenBLAS/other" if "BLAS_INFO=mkl" not in torch.__config__.show() else "MKL"
    print(json.dumps({"step_ms": ms, "loss": losses, "parameters": sum(w.numel() for w in parameters),
                      "torch": torch.__version__, "optimizer": kind, "blas": blas}))


if __name__ == "__main__":
    main()
