"""The model of apps/configs/lm-10m.toml in eager PyTorch, with one thread per process.

Same parameters, shapes, batch, optimizer (AdamW, clipping at 1) and data as `troupe train`; written as well as eager
PyTorch allows: the fused optimizer, the fused attention and the fused norm where this version has them.
Prints one line of JSON: the milliseconds of every step, the losses, the versions.

    python torch_lm.py CONFIG.toml TEXT STEPS                      one process
    python torch_lm.py CONFIG.toml TEXT STEPS --rank R --world N --port P    one of N replicas (DDP over gloo)
"""
import argparse
import inspect
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

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
        for name, w in self.named_parameters():
            if w.dim() == 2:
                deep = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(w, std=0.02 / (2 * m["layers"]) ** 0.5 if deep else 0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


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
    p.add_argument("text")
    p.add_argument("steps", type=int)
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--world", type=int, default=1)
    p.add_argument("--port", type=int, default=0)
    a = p.parse_args()
    with open(a.config, "rb") as f:
        c = tomllib.load(f)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Model(c["model"])
    parameters = list(model.parameters())
    optimizer, kind = optimizer_of(model, c)
    run = model
    if a.world > 1:
        torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{a.port}", rank=a.rank, world_size=a.world)
        run = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    with open(a.text, "rb") as f:
        data = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)
    T, batch = c["model"]["seq"], c["schedule"]["batch"] // a.world
    draw = torch.Generator().manual_seed(a.rank)

    def step():
        at = torch.randint(len(data) - T - 1, (batch,), generator=draw).tolist()
        tokens = torch.stack([data[i:i + T + 1] for i in at]).long()
        optimizer.zero_grad(set_to_none=True)
        loss = run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.item()

    ms, losses = [], []
    for _ in range(a.steps):
        begin = time.perf_counter()
        losses.append(step())
        ms.append((time.perf_counter() - begin) * 1e3)
    blas = "OpenBLAS/other" if "BLAS_INFO=mkl" not in torch.__config__.show() else "MKL"
    print(json.dumps({"step_ms": ms, "loss": losses, "parameters": sum(w.numel() for w in parameters),
                      "torch": torch.__version__, "optimizer": kind, "blas": blas}))


if __name__ == "__main__":
    main()
