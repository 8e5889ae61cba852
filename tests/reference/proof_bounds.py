#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far A v is from z where an engine keeps keys and values in fewer bits: proof_bounds.py

q, k and v are SmolLM2-135M-Instruct's, of `france` in 30 layers (full.safetensors, 16 tokens, 270 heads). An engine of the type E rotates them, keeps k and v in a cache of the type T
(scale 1), and computes z from the cache. Printed, as errors of a head's z relative to its norm: captured from the cache (k_rot and v are T); the same of an engine that
rounds q and the weights to T, too; captured before the cache (k_rot and v are E); and, captured from the cache, the base 10,000 in the place of 100,000: of the worst head
of each layer the least.
"""
import pathlib

import numpy as np
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, HEADS, KV, DIM, BASE = 30, 9, 3, 64, 100_000.0
MANTISSA = {"f8e4m3": (3, 7, 448.0), "f8e5m2": (2, 15, 57344.0)}  # bits, bias, largest (docs/format.md)


def f8(x, bits, bias, most):
    """The nearest value, of two the even one; what is larger than the largest is the largest, as engines store it."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 1e-30))), 1 - bias)
    step = 2.0 ** (exponent - bits)
    return np.clip(np.round(x / step) * step, -most, most)


def rounded(x, dtype):
    if dtype in MANTISSA:
        return f8(x, *MANTISSA[dtype])
    if dtype == "bf16":
        whole = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((whole + 0x7fff + (whole >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32).astype(np.float64)
    return x.astype({"f16": np.float16, "f32": np.float32}[dtype]).astype(np.float64)


def turned(x, base):
    """[tokens, heads, DIM], halves"""
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(DIM // 2) / (DIM // 2))
    c, s, (a, b) = np.cos(angles)[:, None], np.sin(angles)[:, None], np.split(x, 2, -1)
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def z_of(q, k, v, dtype=None):
    """@dtype: of weights, if the engine rounds them, as kernels for f8 caches do; they are so before they are divided by their sum."""
    k, v = k.repeat(HEADS // KV, 1), v.repeat(HEADS // KV, 1)
    s = np.einsum("ihd,jhd->hij", q, k) * DIM ** -0.5
    s[:, ~np.tri(len(q), dtype=bool)] = -np.inf
    e = np.exp(s - s.max(-1, keepdims=True))
    weights = rounded(e, dtype) if dtype else e
    return np.einsum("hij,jhd->ihd", weights / e.sum(-1, keepdims=True), v)


def errors(z, captured):
    return np.linalg.norm(z - captured, axis=(0, 2)) / np.linalg.norm(captured, axis=(0, 2))


def of_layer(sites, layer, engine, cache):
    """([by head]) * 4"""
    q, k, v = (rounded(sites[f"france/{name}.{layer}"].astype(np.float64).reshape(-1, heads, DIM), engine) for name, heads in (("q", HEADS), ("k", KV), ("v", KV)))
    q_rot, k_rot = (rounded(turned(x, BASE), engine) for x in (q, k))
    kept = rounded(k_rot, cache), rounded(v, cache)
    z = rounded(z_of(q_rot, *kept), engine)
    wrong = [rounded(turned(x, 10_000.0), engine) for x in (q, k)]
    coarse = rounded(q_rot, cache)
    return (errors(z_of(q_rot, *kept), z), errors(z_of(coarse, *kept), rounded(z_of(coarse, *kept, cache), engine)), errors(z_of(q_rot, k_rot, v), z), errors(z_of(wrong[0], rounded(wrong[1], cache), kept[1]), z))


def main():
    sites = load_file(HERE / "full.safetensors")
    for engine, cache in (("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), *((engine, cache) for cache in MANTISSA for engine in ("f16", "bf16"))):
        right, coarse, before, wrong = (np.stack(of_kind) for of_kind in zip(*(of_layer(sites, layer, engine, cache) for layer in range(LAYERS))))
        print(f"engine {engine:4}, cache {cache:6}: captured from the cache {right.max():.1e}, weights rounded {coarse.max():.1e}, before it {before.max():.1e}; base 10,000 {wrong.max(1).min():.1e}")


if __name__ == "__main__":
    main()
