"""A model of how the tensor cores of architecture 9.0 round mma.sync.m16n8k16 (bf16 into f32), against what mma_rounding.cu recorded.

The sixteen products and the summand are aligned to the largest exponent among them (of a product: the sum of its factors' exponents), cut off
25 bits below it, added exactly, and the sum is cut off to f32. Needs numpy.

    python mma_model.py OUT/mma.bin
"""
import sys

import numpy as np

PRODUCTS, BITS = 4096, 25


def exponents(x):
    mantissa, exponent = np.frexp(x)
    return np.where(mantissa == 0, -2000, exponent - 1)


def cut(x):
    """To float32, towards zero."""
    f = x.astype(np.float32)
    return np.where(np.abs(f.astype(np.float64)) > np.abs(x), np.nextafter(f, np.float32(0)), f)


def model(a, b, c):
    """d (.., 16, 8) of a (.., 16, 16), b (.., 8, 16), c (.., 16, 8)."""
    terms = a[:, :, None, :] * b[:, None, :, :]
    top = np.maximum((exponents(a)[:, :, None, :] + exponents(b)[:, None, :, :]).max(-1), exponents(c))
    unit = np.ldexp(1.0, top - BITS)
    return cut((np.trunc(terms / unit[..., None]).sum(-1) + np.trunc(c / unit)) * unit)


def main():
    raw = open(sys.argv[1], "rb").read()
    widen = lambda u: (u.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    a = widen(np.frombuffer(raw, np.uint16, PRODUCTS * 256)).reshape(-1, 16, 16)
    b = widen(np.frombuffer(raw, np.uint16, PRODUCTS * 128, PRODUCTS * 512)).reshape(-1, 8, 16)
    c = np.frombuffer(raw, np.float32, PRODUCTS * 128, PRODUCTS * 768).astype(np.float64).reshape(-1, 16, 8)
    d = np.frombuffer(raw, np.float32, PRODUCTS * 128, PRODUCTS * 1280).reshape(-1, 16, 8)
    same = model(a, b, c).view(np.uint32) == d.view(np.uint32)
    print(f"{same.sum()} of {same.size} results have the model's bits")


if __name__ == "__main__":
    main()
