"""What a peer needs to do the same training as `troupe train`: the windows of the text that each step takes, the learning
rate of each step, the initial parameters. Both sides then compute the same losses, and a peer that computes other ones does
other work. Written in plain Python from apps/lm/data.cpp, apps/lm/permutation.h, devices/base/philox.h and docs/command.md.
"""
import json
import math

WORD, LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def philox(key, low, high):
    """Philox4x32-10: four random words for a key of 64 bits and a counter of 128."""
    c = [low & WORD, low >> 32 & WORD, high & WORD, high >> 32 & WORD]
    k = [key & WORD, key >> 32 & WORD]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & WORD, a >> 32 ^ c[3] ^ k[1], a & WORD]
        k = [k[0] + 0x9E3779B9 & WORD, k[1] + 0xBB67AE85 & WORD]
    return c


def key_of(seed, name):
    """The key of a stream of random numbers: FNV-1a of its name, mixed with the seed (SplitMix64)."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & LONG
    z = seed * 0x9E3779B97F4A7C15 & LONG ^ h
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & LONG
    z = (z ^ z >> 27) * 0x94D049BB133111EB & LONG
    return z ^ z >> 31


def permuted(index, n, key, tweak):
    """Where a keyed permutation of range(n) takes an index: a Feistel network whose results outside are fed back."""
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(6):
            r = philox(key, right << 3 | turn, tweak)
            left, right = right, left ^ (r[0] << 32 | r[1]) & mask
        index = left << half | right
        if index < n:
            return index


def window(index, length, seq, seed=1, fraction=0.1):
    """Where in a text of so many bytes the training sample of this number begins."""
    train = length - math.floor(length * fraction)
    count = (train - seq) // seq
    epoch, index = divmod(index, count)
    r = philox(key_of(seed, "data.offset"), epoch, 0)
    offset = (r[0] << 32 | r[1]) % (train - count * seq)
    return offset + permuted(index, count, key_of(seed, "data.train"), epoch) * seq


def learning_rate(step, schedule):
    """Linear warm-up, then half a cosine from lr to min_lr."""
    lr, warmup, steps = schedule["lr"], schedule.get("warmup", 0), schedule["steps"]
    least = schedule.get("min_lr", lr / 10)
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    if step >= steps:
        return least
    return least + (lr - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def tensors(path):
    """{name: (shape, bytes of little-endian f32)} of a safetensors file, as `troupe ckpt export` writes it."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, t in json.loads(raw[8:begin]).items():
        if name == "__metadata__":
            continue
        if t["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {t['dtype']}, expected F32")
        first, end = t["data_offsets"]
        found[name] = (t["shape"], raw[begin + first:begin + end])
    return found
