# SPDX-License-Identifier: Apache-2.0
"""Runs with random q, k, v and the z that follows, and attention by numpy alone: what dmi-analyze must find.

A model here is its numbers of heads and their sizes, and how scores come about; its config is what Hugging Face would write.
"""
import json
from dataclasses import dataclass, field

import numpy as np
from hostile_run import STEPS, RECORDS, chunk, records, segment, site, sites_chunk, step, write

DTYPES = {"f32": (1, 4), "f16": (2, 2), "bf16": (3, 2), "f8e4m3": (14, 1)}
# Values of the codes 0 to 126: three bits of mantissa, a bias of 7.
F8E4M3 = np.array([(8 + code % 8) * 2.0 ** (code // 8 - 10) if code >= 8 else code * 2.0 ** -9 for code in range(127)], np.float32)


def to_bf16(x):
    """The bits of the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def stored(x, dtype):
    """(bytes, values that a reader gets)"""
    if dtype == "bf16":
        bits = to_bf16(x)
        return bits.tobytes(), (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "f8e4m3":
        codes = np.searchsorted((F8E4M3[1:] + F8E4M3[:-1]) / 2, np.abs(x)).astype(np.uint8)
        return (codes | np.signbit(x).astype(np.uint8) << 7).tobytes(), np.copysign(F8E4M3[codes], x)
    kept = np.ascontiguousarray(x, {"f32": "<f4", "f16": "<f2"}[dtype])
    return kept.tobytes(), kept.astype(np.float32)


@dataclass
class Model:
    """layers, heads, kv, dim: sizes; theta, pairs, part: RoPE; cap, window, windowed: scores (windowed: layers that have the window)"""
    layers: int = 2
    heads: int = 4
    kv: int = 2
    dim: int = 16
    value_dim: int = 0
    theta: float = 10000.0
    pairs: bool = False
    part: float = 1.0
    cap: float = 0.0
    window: int = 0
    windowed: tuple = ()
    multiplier: float = 0.0
    more: dict = field(default_factory=dict)

    def config(self):
        c = {"model_type": "glm" if self.pairs else "llama", "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
             "num_key_value_heads": self.kv, "head_dim": self.dim, "hidden_size": self.heads * self.dim, "rope_theta": self.theta,
             "max_position_embeddings": 4096}
        if self.part != 1:
            c["partial_rotary_factor"] = self.part
        if self.cap:
            c["attn_logit_softcapping"] = self.cap
        if self.window:
            c |= {"sliding_window": self.window,
                  "layer_types": ["sliding_attention" if i in self.windowed else "full_attention" for i in range(self.layers)]}
        if self.multiplier:
            c["attention_multiplier"] = self.multiplier
        return c | self.more

    def rotate(self, x, positions):
        """@x [tokens, heads, dim]"""
        n = int(self.dim * self.part) // 2
        angles = positions[:, None] * self.theta ** (-np.arange(n) / n)
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if self.pairs else (slice(0, n), slice(n, 2 * n))
        out = x.astype(np.float64).copy()
        out[..., first] = x[..., first] * cosine - x[..., second] * sine
        out[..., second] = x[..., second] * cosine + x[..., first] * sine
        return out

    def weights(self, q, k, layer=0, sinks=None):
        """[heads, queries, keys], of rotated q and k in float64; queries are the last of the keys"""
        n, m = len(q), len(k)
        k = np.repeat(k, self.heads // self.kv, axis=1)
        scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k.astype(np.float64)) * (self.multiplier or self.dim ** -0.5)
        if self.cap:
            scores = self.cap * np.tanh(scores / self.cap)
        i, j = np.arange(m - n, m)[:, None], np.arange(m)
        seen = j <= i
        if self.window and layer in self.windowed:
            seen &= j > i - self.window
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, np.asarray(sinks)[:, None, None])
        e = np.exp(scores - top)
        total = e.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(np.asarray(sinks)[:, None, None] - top)
        return e / total


class Captured:
    """Tensors of one request: .q, .k [layers][tokens, heads, dim] before RoPE, q_rot, k_rot, v, z, as a reader gets them; .weights [layers]."""

    def __init__(self, model, n, seed=0, dtype="f32", sinks=None, scale=2.0):
        rng = np.random.default_rng(seed)
        self.model, self.n, self.dtype = model, n, dtype
        self.bytes, self.values = {}, {name: [] for name in ("q", "k", "q_rot", "k_rot", "v", "z")}
        self.weights = []
        for layer in range(model.layers):
            q, k = (rng.standard_normal((n, heads, model.dim)) * scale for heads in (model.heads, model.kv))
            v = rng.standard_normal((n, model.kv, model.value_dim or model.dim))
            q, k, v = (stored(x, dtype)[1] for x in (q, k, v))
            turned = [stored(model.rotate(x, np.arange(n)), dtype)[1] for x in (q, k)]
            weights = model.weights(*turned, layer, sinks and sinks[layer])
            z = np.einsum("hij,jhd->ihd", weights, np.repeat(v, model.heads // model.kv, axis=1).astype(np.float64))
            for name, x in zip(self.values, (q, k, *turned, v, stored(z, dtype)[1])):
                self.values[name].append(x)
            self.weights.append(weights)

    def part(self, name, layer, first, end):
        return stored(self.values[name][layer][first:end], self.dtype)[0]


def write_run(folder, requests, names, chunks=(10 ** 9,), **more):
    """A run of @requests ({id: Captured}), one after the other, in steps of so many tokens; @names: of the sites.

    @more: lacking=(id, first, end): positions of a request without rows; wrong={(id, name): function of the values}; flat: rows without
    a dimension of heads; ids: of the site token_ids, of every request; n_prompt: tokens of each prompt
    """
    ids, n_prompt = more.get("ids"), more.get("n_prompt", 0)
    lacking, wrong, flat = more.get("lacking", {}), more.get("wrong", {}), more.get("flat", ())
    captured = next(iter(requests.values()))
    dtype, size = DTYPES[captured.dtype]
    sites = [site(name, dtype=captured.dtype) for name in names] + ([site("token_ids", dtype="i32", has_layer=False)] if ids else [])
    parts, sequence, number, launch = [sites_chunk(sites)], 1, 0, 2
    for request, one in requests.items():
        at, sizes = lacking.get(request, 0), list(chunks)
        while at < one.n:
            n = min(sizes.pop(0) if len(sizes) > 1 else sizes[0], one.n - at)
            parts.append(chunk(sequence, STEPS, step(number, [(request.encode(), at, 0, n, n_prompt)])))
            rows = [(len(names), -1, number, launch, [n], np.array(ids[at:at + n], "<i4").tobytes(), 7, 4)] if ids else []
            launch += 1
            for i, name in enumerate(names):
                for layer in range(one.model.layers):
                    x = wrong.get((request, name), lambda x: x)(one.values[name][layer])[at:at + n]
                    dims = [n, x.shape[1] * x.shape[2]] if name in flat else list(x.shape)
                    rows.append((i, layer, number, launch, dims, stored(x, one.dtype)[0], dtype, size))
                    launch += 1
            parts.append(chunk(sequence + 1, RECORDS, *records(rows)))
            sequence, number, at = sequence + 2, number + 1, at + n
    return write(folder, sites, segment(*parts), about=more.get("about"))


def write_arrays(folder, request, sites, config):
    """A run of one request: {site: [layers] of float32 arrays [tokens, ...] or None}, whose adapter noted @config."""
    n = len(next(x for x in next(iter(sites.values())) if x is not None))
    rows, launch = [], 2
    for number, arrays in enumerate(sites.values()):
        for layer, x in enumerate(arrays):
            if x is not None:
                rows.append((number, layer, 0, launch, list(x.shape), np.ascontiguousarray(x, "<f4").tobytes()))
                launch += 1
    names = [site(name) for name in sites]
    data = segment(sites_chunk(names), chunk(1, STEPS, step(0, [(request.encode(), 0, 0, n, n)])), chunk(2, RECORDS, *records(rows)))
    return write(folder, names, data, about={"config": config})


def write_config(path, config):
    path.write_text(json.dumps(config))
    return path
