"""An independent Llama in NumPy, float64, with a backward pass of its own; checks what model_dump wrote.

    reference.py FOLDER        exit 0: every loss and gradient agrees; 1: one does not; 77: no NumPy here

Written from the definition of Hugging Face's LlamaForCausalLM, not from the C++ code: weights are (out, in);
RMSNorm x / sqrt(mean(x^2) + eps) * w; rotary embedding that turns (x[i], x[i + D/2]); query head h reads
key-value head h // (H / KV); SwiGLU silu(gate) * up; mean cross-entropy over all tokens of the step.
The backward pass is checked itself, by a central difference along a random direction.
"""
import json
import pathlib
import sys

try:
    import numpy as np
except ImportError as why:
    print(f"skipped: {why} (Debian: apt-get install python3-numpy)")
    sys.exit(77)

BOUND = 1e-4


def rmsnorm(x, w, eps):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * r * w, r


def rmsnorm_back(dy, x, w, r):
    n = x * r
    dn = dy * w
    return r * (dn - n * (dn * n).mean(-1, keepdims=True)), (dy * n).sum((0, 1))


def rotate(x, theta, sign):  # (B, T, H, D)
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)  # (T, D/2)
    cos, sin = np.cos(angle)[:, None, :], sign * np.sin(angle)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def forward_backward(p, m, tokens, targets, want_grads=True):
    """Loss, and the gradient of every parameter of p under its Hugging Face name."""
    B, T = tokens.shape
    H, KV, D, eps, theta = m["heads"], m["kv_heads"], m["head_dim"], m["norm_eps"], m["rope_theta"]
    E = p["model.embed_tokens.weight"]
    mask = np.where(np.tril(np.ones((T, T), bool)), 0.0, -np.inf)
    x = E[tokens]
    kept = []
    for layer in range(m["layers"]):
        w = {k: p[f"model.layers.{layer}.{k}.weight"] for k in NAMES}
        n1, r1 = rmsnorm(x, w["input_layernorm"], eps)
        q = rotate((n1 @ w["self_attn.q_proj"].T).reshape(B, T, H, D), theta, 1)
        k = rotate((n1 @ w["self_attn.k_proj"].T).reshape(B, T, KV, D), theta, 1)
        v = (n1 @ w["self_attn.v_proj"].T).reshape(B, T, KV, D)
        kr, vr = np.repeat(k, H // KV, 2), np.repeat(v, H // KV, 2)
        s = np.einsum("bihd,bjhd->bhij", q, kr) / np.sqrt(D) + mask
        a = np.exp(s - s.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        o = np.einsum("bhij,bjhd->bihd", a, vr).reshape(B, T, H * D)
        x1 = x + o @ w["self_attn.o_proj"].T
        n2, r2 = rmsnorm(x1, w["post_attention_layernorm"], eps)
        gate, up = n2 @ w["mlp.gate_proj"].T, n2 @ w["mlp.up_proj"].T
        h = gate * sigmoid(gate) * up
        kept.append((w, x, n1, r1, q, kr, vr, a, o, x1, n2, r2, gate, up, h))
        x = x1 + h @ w["mlp.down_proj"].T
    n, r = rmsnorm(x, p["model.norm.weight"], eps)
    W = E if m["tied"] else p["lm_head.weight"]
    z = n @ W.T
    z = z - z.max(-1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
    b, t = np.indices(tokens.shape)
    loss = -logp[b, t, targets].mean()
    if not want_grads:
        return loss, None

    g = {}

    def matrix(dy, x):  # of y = x W^T
        return np.einsum("btn,btk->nk", dy, x)

    dz = np.exp(logp)
    dz[b, t, targets] -= 1
    dz /= B * T
    dW = matrix(dz, n)
    dx, g["model.norm.weight"] = rmsnorm_back(dz @ W, x, p["model.norm.weight"], r)
    for layer in reversed(range(m["layers"])):
        w, x0, n1, r1, q, kr, vr, a, o, x1, n2, r2, gate, up, h = kept[layer]
        gw = {"mlp.down_proj": matrix(dx, h)}
        dh = dx @ w["mlp.down_proj"]
        s = sigmoid(gate)
        dgate, dup = dh * up * s * (1 + gate * (1 - s)), dh * gate * s
        gw["mlp.gate_proj"], gw["mlp.up_proj"] = matrix(dgate, n2), matrix(dup, n2)
        d, gw["post_attention_layernorm"] = rmsnorm_back(
            dgate @ w["mlp.gate_proj"] + dup @ w["mlp.up_proj"], x1, w["post_attention_layernorm"], r2)
        dx = dx + d
        gw["self_attn.o_proj"] = matrix(dx, o)
        do = (dx @ w["self_attn.o_proj"]).reshape(B, T, H, D)
        da = np.einsum("bihd,bjhd->bhij", do, vr)
        ds = a * (da - (da * a).sum(-1, keepdims=True)) / np.sqrt(D)

        def group(y):  # the heads that share a key-value head add up
            return y.reshape(B, T, KV, H // KV, D).sum(3)

        dq = rotate(np.einsum("bhij,bjhd->bihd", ds, kr), theta, -1).reshape(B, T, H * D)
        dk = rotate(group(np.einsum("bhij,bihd->bjhd", ds, q)), theta, -1).reshape(B, T, KV * D)
        dv = group(np.einsum("bhij,bihd->bjhd", a, do)).reshape(B, T, KV * D)
        dn1 = 0
        for name, dy in (("q", dq), ("k", dk), ("v", dv)):
            gw[f"self_attn.{name}_proj"] = matrix(dy, n1)
            dn1 = dn1 + dy @ w[f"self_attn.{name}_proj"]
        d, gw["input_layernorm"] = rmsnorm_back(dn1, x0, w["input_layernorm"], r1)
        dx = dx + d
        g.update({f"model.layers.{layer}.{k}.weight": v for k, v in gw.items()})
    dE = np.zeros_like(E)
    np.add.at(dE, tokens, dx)
    if m["tied"]:
        g["model.embed_tokens.weight"] = dE + dW
    else:
        g["model.embed_tokens.weight"], g["lm_head.weight"] = dE, dW
    return loss, g


NAMES = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def distance(a, b):
    d = np.abs(a - b).max() / np.abs(b).max()
    return d if np.isfinite(d) else np.inf


def own_error(p, m, tokens, targets, g):
    """The reference's gradient against its own loss: relative error of a directional derivative."""
    random = np.random.default_rng(1)
    step = {k: 1e-6 * random.standard_normal(v.shape) for k, v in p.items()}
    ahead, behind = (forward_backward({k: v + s * step[k] for k, v in p.items()}, m, tokens, targets, False)[0] for s in (1, -1))
    expected = sum((g[k] * step[k]).sum() for k in p)
    return abs((ahead - behind) / 2 - expected) / abs(expected)


def check(folder):
    m = json.loads((folder / "config.json").read_text())["model"]

    def load(prefix):
        return {f.name[len(prefix):-4]: np.load(f).astype(np.float64) for f in sorted(folder.glob(prefix + "*.npy"))}

    p, ours = load("param."), load("grad.")
    tokens, targets = np.load(folder / "inputs.npy"), np.load(folder / "targets.npy")
    loss, g = forward_backward(p, m, tokens, targets)
    ok = set(g) == set(p) == set(ours)
    if not ok:
        print(f"{folder.name}: parameters differ: {sorted(set(g) ^ set(ours) | set(g) ^ set(p))}")
        return False
    rows = [("loss", distance(np.load(folder / "loss.npy"), np.array([loss])))]
    rows += [(k, distance(ours[k], g[k])) for k in sorted(g)]
    print(f"\n{folder.name}: {m['layers']} layers, {m['heads']}/{m['kv_heads']} heads of {m['head_dim']}, dim {m['dim']}, "
          f"ffn {m['ffn']}, tokens {tokens.shape}, {'tied' if m['tied'] else 'untied'}, loss {loss:.6f}")
    for name, d in rows:
        print(f"  {name:48} {d:.2e}{'' if d <= BOUND else '   ABOVE ' + str(BOUND)}")
        ok &= bool(d <= BOUND)
    own = own_error(p, m, tokens, targets, g)
    print(f"  {'(the reference against its own difference quotient)':48} {own:.2e}")
    return ok and own < 1e-5


if __name__ == "__main__":
    folders = sorted(f.parent for f in pathlib.Path(sys.argv[1]).glob("*/config.json"))
    results = [check(f) for f in folders]
    print(f"\n{sum(results)} of {len(results)} models agree, bound {BOUND} on max|a-b| / max|b| of every tensor")
    sys.exit(0 if results and all(results) else 1)
