#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An engine for the files in examples/edits: examples_client.py record, or edit FOLDER, which prints lines of JSON: [holds, what, detail].

Its rows are random numbers by request, site, layer and position. What an example leaves of them must be what those compute whose way of
steering it is: their formulas, in float64.
"""
import ctypes
import json
import pathlib
import sys
import zlib

import numpy as np

import dmi
from collect_client import check
from dmi import taps
from model_runners import Device

WIDTHS = {"mlp_post": 9216, "router_logits": 8, "resid_pre": 6}  # of others: 16
N_PROMPT, N_NEW, N_LAYERS = 4, 2, 17
DONORS = ("clean", "pos-0", "pos-1", "neg-0", "neg-1", "neg-2")
REQUESTS = ("corrupted", "other")


def row_of(request, site, layer, position):
    seed = zlib.crc32(f"{request}/{site}/{layer}/{position}".encode())
    return np.random.default_rng(seed).standard_normal(WIDTHS.get(site, 16)).astype(np.float32)


class Engine:
    def __init__(self):
        self.device, self.n_steps = Device(), 0

    def tap(self, site, layer, rows, flags):
        """The rows as a later module would read them."""
        cuda, at, data = self.device.cuda, ctypes.c_uint64(), np.ascontiguousarray(rows)
        n_bytes = ctypes.c_size_t(data.nbytes)
        assert cuda.cuMemAlloc_v2(ctypes.byref(at), n_bytes) == 0 and cuda.cuMemcpyHtoD_v2(at, ctypes.c_void_p(data.ctypes.data), n_bytes) == 0
        status = taps.send(site, at.value, 0, taps.DTYPES["float32"], data.shape, (data.shape[1], 1), 4, 1, taps.NO_LAYER if layer is None else layer,
                           N_LAYERS, flags)
        assert status == 0 and cuda.cuCtxSynchronize() == 0, status
        assert cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(data.ctypes.data), at, n_bytes) == 0
        cuda.cuMemFree_v2(at)
        return data

    def generate(self, requests, places, flags=taps.WRITABLE):
        """{(request, site, layer, position): row} of @places, [(site, layer)]."""
        found = {}
        for first, n in [(0, N_PROMPT), *((N_PROMPT + i, 1) for i in range(N_NEW))]:
            assert dmi.step_begin(self.n_steps, [dmi.Span(name, first, n, n_prompt=N_PROMPT, first_row=i * n) for i, name in enumerate(requests)], caches=False) == 0
            self.n_steps += 1
            whose = [(name, position) for name in requests for position in range(first, first + n)]
            for site, layer in places:
                rows = self.tap(site, layer, np.stack([row_of(name, site, layer, position) for name, position in whose]), flags)
                found |= {(name, site, layer, position): row for (name, position), row in zip(whose, rows)}
            dmi.step_end()
        for name in requests:
            dmi.request_end(name, dmi.End.LENGTH)
        return found


def record():
    Engine().generate(DONORS, [("resid_post", layer) for layer in range(7)], 0)


# ------------------------------------------------------------------------- what others compute


def vectors(folder):
    """What the files beside the examples hold, from their makers."""
    said = json.loads((folder / "vectors.json").read_text())
    return {name: {int(layer): np.array(v) for layer, v in v.items()} if isinstance(v, dict) else np.array(v) for name, v in said.items()}


def unit(v):
    return v / np.sqrt(v @ v)


def without(x, v):
    return x - (x @ unit(v)) * unit(v)


def clip_along(h, v, low, high, strength=1):
    """The fork's: p = h.v, h + strength (clip(p, min, max) - p) v."""
    p = h @ unit(v)
    return h + strength * (np.clip(p, low, high) - p) * unit(v)


def neurons(x, v, at):
    return np.where(np.isin(np.arange(len(x)), [394, 5490, 8929]), 10, x) if at[2:] == (16, N_PROMPT - 1) else None


def cross_prompt(x, v, at):
    return row_of("clean", *at[1:]) if at[0] == "corrupted" and at[2:] == (5, 1) else None


def add_vector(x, v, at):
    return x + v["dir"] if at[2] in (6, 10, 14) else None


def adjust_rs(x, v, at):
    return x + (12.5 - x @ v["dir"]) * v["dir"] if at[2:] == (14, N_PROMPT - 1) else None


def repeng(x, v, at):
    if at[2] not in (5, 6):
        return None
    steered = x + 1.5 * v["calm"][at[2]]
    return steered / np.linalg.norm(steered) * np.linalg.norm(x)


def ablation(x, v, at):
    return without(x, v["refusal"])


def causal_tracing(x, v, at):
    request, site, layer, position = at
    if request != "corrupted" or position not in (1, 2):
        return None
    if site == "embed":
        return x + 3 * v[f"noise.{position}"]
    return row_of("clean", site, layer, position) if (layer, position) == (5, 2) else None


def feature(x, v, at):
    """x + (8 - f) W_dec[3], f = relu((x - b_dec) . W_enc[:, 3] + b_enc[3])"""
    if at[2] != 2 or at[3] < N_PROMPT:
        return None
    return x + (8 - max(0, (x - v["b_dec"]) @ v["W_enc"][:, 3] + v["b_enc"][3])) * v["W_dec"][3]


def experts(x, v, at):
    return np.where(np.arange(8) == 5, -10000, np.where(np.arange(8) == 2, 2 * x, x)) if at[2] == 3 else None


def skip(x, v, at):
    return 0 * x if at[2] == 12 else None


def clamps(x, v, at):
    if at[2] != 5:
        return None
    return clip_along(clip_along(x + 2 * v["calm"][5], v["refusal"], -0.5, 0.25, 0.75), v["calm"][5], 0, 1)


# {example: (formula, its sites, layers to look at, is it exact?)}
EXAMPLES = {"neurons": (neurons, ["mlp_post"], (15, 16), True), "cross_prompt": (cross_prompt, ["resid_post"], (4, 5, 6), True),
            "add_vector": (add_vector, ["mlp_out"], (5, 6, 7, 10, 14), False), "adjust_rs": (adjust_rs, ["residual"], (13, 14), False),
            "repeng": (repeng, ["resid_post"], (4, 5, 6), False), "ablation": (ablation, ["embed", "attn_out", "mlp_out"], (0, 16), False),
            "causal_tracing": (causal_tracing, ["embed", "resid_post"], (4, 5), False), "feature": (feature, ["resid_pre"], (1, 2), False),
            "experts": (experts, ["router_logits"], (3, 4), True), "skip": (skip, ["attn_out", "mlp_out"], (11, 12), True),
            "clamps": (clamps, ["resid_post"], (5, 6), False)}


def places_of(example):
    """[(site, layer)]"""
    _, sites, layers, _ = example
    return [(site, layer) for site in sites for layer in ((None,) if site == "embed" else layers)]


def compare(name, found, formula, exact, v):
    """Rows that the example names are what the formula gives, within 1e-6 of the row's and the change's length; all others keep their bits."""
    worst, n = 0, 0
    for at, row in found.items():
        before = row_of(*at)
        wanted = formula(before.astype(np.float64), v, at)
        if wanted is None:
            check(row.tobytes() == before.tobytes(), f"{name}: {at} keeps its bits", (row, before))
            continue
        n += 1
        size = np.linalg.norm(before) + np.linalg.norm(wanted - before)
        worst = max(worst, np.abs(row - wanted.astype(np.float32)).max() / size)
    check(n and worst <= (0 if exact else 1e-6), f"{name}: as its owner computes it, in {n} rows", worst)
    return n


def edit(folder):
    engine, v = Engine(), vectors(folder)
    engine.generate(["before"], sorted({place for example in EXAMPLES.values() for place in places_of(example)}, key=str))  # an engine shows its layers
    for name, example in EXAMPLES.items():
        formula, _, _, exact = example
        places = places_of(example)
        with dmi.edit(folder / f"{name}.yaml") as done:
            found = engine.generate(REQUESTS, places)
        n = compare(name, found, formula, exact, v)
        rows = done.rows.values()
        check(sum(r.written for r in rows) == sum(r.due for r in rows) >= n and not any(r.missed for r in rows), f"{name}: rows are counted", done.rows)


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(pathlib.Path, sys.argv[2:]))
