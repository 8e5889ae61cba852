# SPDX-License-Identifier: Apache-2.0
"""What the operations of docs/edits.md compute, from its table alone: numpy, float32, each rounding written down. Sums are in float64."""
import numpy as np

BITS = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}


def values(bits, dtype):
    """float32 of stored elements."""
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view({"f32": np.float32, "f16": np.float16}[dtype]).astype(np.float32)


def stored(x, dtype):
    """Bits of float32, rounded to the nearest, of two the even one; one NaN for all."""
    x = np.asarray(x, np.float32)
    if dtype == "f32":
        return np.where(np.isnan(x), 0x7fc00000, x.view(np.uint32)).astype(np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "f16":
            return np.where(np.isnan(x), 0x7e00, x.astype(np.float16).view(np.uint16)).astype(np.uint16)
    u = x.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(x), 0x7fc0, (u + 0x7fff + (u >> 16 & 1)) >> 16).astype(np.uint16)


def rounded(x, dtype):
    return values(stored(x, dtype), dtype)


def direction(v):
    v = np.asarray(v, np.float64)
    return (v / np.sqrt((v * v).sum())).astype(np.float32)


def elementwise(x, op, v, c, dtype):
    """One operation without a sum on float32 that the type holds."""
    kind, value = op
    if (kind, c) in (("add", 0), ("scale", 1), ("patch", 0)):
        return x
    c = np.float32(c)
    with np.errstate(all="ignore"):
        if kind == "add":
            return rounded(x + rounded(rounded(v, dtype) * c, dtype), dtype)
        if kind == "scale":
            return rounded(x * c, dtype)
        if kind == "set":
            return np.broadcast_to(rounded(np.float32(value) if v is None else v, dtype), x.shape)
        if kind == "patch" and c == 1:
            return np.broadcast_to(rounded(v, dtype), x.shape)
        if kind == "patch":
            return rounded(rounded(x * (np.float32(1) - c), dtype) + rounded(rounded(v, dtype) * c, dtype), dtype)
        if kind == "zero":
            return np.zeros_like(x)
        low, high = (rounded(np.float32(b), dtype) for b in value)
        x = np.where(x < low, low, x)
        return np.where(x > high, high, x)


def with_sum(x, before, op, v, c):
    """One operation with a sum, not rounded, along the last axis. Return: float64, and |x| |d|, of which 1e-6 may be missing."""
    kind, value = op
    x = x.astype(np.float64)
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    if kind == "keep_norm":
        was = np.sqrt((before.astype(np.float64) ** 2).sum(-1, keepdims=True))
        return x * np.divide(was, norm, out=np.ones_like(norm), where=norm > 0), np.abs(x)
    d = (np.asarray(v, np.float32) if kind == "adjust_rs" else direction(v)).astype(np.float64)
    along = (x * d).sum(-1, keepdims=True)
    step = {"project_out": lambda: -c * along, "adjust_rs": lambda: value - along,
            "limit_along": lambda: c * (np.clip(along, *(value or (0, 0))) - along)}[kind]()
    return x + step * d, norm * np.sqrt((d * d).sum())


def with_features(x, features):
    """Features (w, e, bias, threshold, to) of one dictionary, all read before the first is written. Return: float64, and what rounding may miss in 1e-6."""
    x = x.astype(np.float64)
    norm, after, share = np.sqrt((x * x).sum(-1, keepdims=True)), x.copy(), np.zeros_like(x)
    for w, e, bias, threshold, to in features:
        f = (x * e.astype(np.float64)).sum(-1, keepdims=True) + bias
        assert (np.abs(f - threshold) > 1e-3 * norm).all(), "a feature so near to its threshold may be either"
        after += (to - np.where(f > threshold, f, 0)) * w.astype(np.float64)
        share += norm * np.sqrt((e.astype(np.float64) ** 2).sum()) * np.abs(w)
    return after, share


def is_sum(op):
    return op[0] in ("project_out", "adjust_rs", "limit_along", "keep_norm")


def ulp(x, dtype):
    """Between @x and the next number of the type."""
    bits = {"f32": 23, "f16": 10, "bf16": 7}[dtype]
    least = {"f32": -126, "f16": -14, "bf16": -126}[dtype]
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(x) + 1e-300)), least)
    return 2.0 ** (exponent - bits)
