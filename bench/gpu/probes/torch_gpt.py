"""PyTorch's step of apps/configs/gpt-1b.toml on one GPU: tokens/s, model flops utilisation, peak memory, for several microbatches.

The model is that of bench/peers/torch_lm.py (untied, no bias), compiled. Forms: f32 parameters with bf16 autocast, or bf16 parameters and
bf16 optimizer state (which trains with less precision than Troupe will: an upper bound). Prints one line of JSON for each fact.

    python torch_gpt.py --parameters f32|bf16 --compile blocks|model --attention cudnn|flash|default MICROBATCH...
    python torch_gpt.py --attention-only
"""
import argparse
import contextlib
import json
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCAB, LAYERS, HEADS, DIM, FFN, SEQ = 50304, 24, 16, 2048, 5504, 2048
PEAK = 989e12
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def fact(name, value, unit=""):
    print(json.dumps({"name": name, "value": value, **({"unit": unit} if unit else {})}), flush=True)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), self.weight.to(x.dtype), 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.gate_up, self.down = nn.Linear(DIM, 2 * FFN, bias=False), nn.Linear(FFN, DIM, bias=False)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = (w.view(B, T, HEADS, -1).transpose(1, 2) for w in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, C))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = Norm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = Head()
        D = DIM // HEADS
        angle = torch.outer(torch.arange(SEQ), 10000.0 ** (-torch.arange(0, D, 2) / D)).repeat(1, 2)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())

    def forward(self, tokens, targets):
        x = self.embed(tokens).bfloat16()
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(x, targets)


def timed(work, n, warm=3):
    for _ in range(warm):
        work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    events[0].record()
    for e in events[1:]:
        work()
        e.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))[n // 2]


def attention_alone():
    for B in (4, 8):
        q, k, v = (torch.randn(B, SEQ, HEADS, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3))
        grad = torch.randn_like(q)
        for name, backend in BACKENDS.items():
            for deterministic in (False, True):
                torch.use_deterministic_algorithms(deterministic)
                with sdpa_kernel(backend):
                    try:
                        forward = timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 20)
                        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                        backward = timed(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), 20)
                        first = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
                        same = all(all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))) for _ in range(5))
                    except RuntimeError as e:
                        fact(f"SDPA {name} B {B} deterministic {deterministic}", str(e)[:200])
                        continue
                flops = 2 * 2 * B * HEADS * SEQ * SEQ * 128 / 2
                fact(f"SDPA {name} B {B} deterministic {deterministic}", f"forward {forward:.3f} ms {flops / forward / 1e9:.0f} TFLOP/s, backward {backward:.3f} ms "
                     f"{2.5 * flops / backward / 1e9:.0f} TFLOP/s, backward bits the same in 5 runs: {same}")
    torch.use_deterministic_algorithms(False)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("microbatches", type=int, nargs="*")
    p.add_argument("--parameters", choices=["f32", "bf16"], default="f32")
    p.add_argument("--compile", choices=["no", "blocks", "model"], default="blocks")
    p.add_argument("--attention", choices=["cudnn", "flash", "default"], default="default")
    p.add_argument("--attention-only", action="store_true")
    a = p.parse_args()
    fact("PyTorch", f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    if a.attention_only:
        return attention_alone()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = Model()
    for w in model.parameters():
        if w.dim() == 2:
            nn.init.normal_(w, std=0.02)
    if a.parameters == "bf16":
        model.bfloat16()
    total = sum(w.numel() for w in model.parameters())
    multiplied = total - model.embed.weight.numel()
    flops = 6 * multiplied + 6 * LAYERS * SEQ * DIM
    fact("parameters", total)
    fact("flops of a token", flops)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if a.compile == "blocks":
        for block in model.blocks:
            block.compile(dynamic=False)
        model.head.compile(dynamic=False)
    run = torch.compile(model, dynamic=False) if a.compile == "model" else model
    autocast = torch.autocast("cuda", torch.bfloat16) if a.parameters == "f32" else contextlib.nullcontext()
    chosen = sdpa_kernel(BACKENDS[a.attention]) if a.attention in BACKENDS else contextlib.nullcontext()
    form = f"{a.parameters}, compile {a.compile}, attention {a.attention}"
    with chosen:
        for n in a.microbatches:
            what = f"{form}, microbatch {n}"
            try:
                tokens = torch.randint(VOCAB, (n, SEQ + 1), device="cuda")
                state = {}

                def both():
                    with autocast:
                        loss = run(tokens[:, :-1], tokens[:, 1:])
                    loss.backward()
                    state["loss"] = loss

                def update():
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=False)

                def step():
                    both()
                    update()

                begin = time.perf_counter()
                step()
                torch.cuda.synchronize()
                fact(f"{what}: first step, compilation included", time.perf_counter() - begin, "s")
                torch.cuda.reset_peak_memory_stats()
                accumulate_ms, step_ms, update_ms = timed(both, 8), timed(step, 8, 2), timed(update, 8, 1)
                fact(f"{what}: forward and backward, gradients added up", accumulate_ms, "ms")
                fact(f"{what}: clipping and AdamW", update_ms, "ms")
                fact(f"{what}: whole step of one microbatch", step_ms, "ms")
                for k in (1, 8):
                    ms = accumulate_ms * (k - 1) + step_ms
                    rate = k * n * SEQ / ms * 1e3
                    fact(f"{what}: {k} microbatches a step", f"{rate:.0f} tokens/s, MFU {100 * rate * flops / PEAK:.1f} %")
                rate = n * SEQ / accumulate_ms * 1e3
                fact(f"{what}: forward and backward only", f"{rate:.0f} tokens/s, MFU {100 * rate * flops / PEAK:.1f} %")
                fact(f"{what}: peak memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")
                fact(f"{what}: peak memory reserved", torch.cuda.max_memory_reserved() / 2**30, "GiB")
                fact(f"{what}: loss", state["loss"].item())
            except torch.OutOfMemoryError as e:
                fact(what, f"out of memory: {str(e)[:150]}")
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
