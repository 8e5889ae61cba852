#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What hugging_face_model.py is, with nothing but the driver: a few layers of buffers, tapped, marked and in NVTX ranges.

Usage: hugging_face_standin.py NVTX --mode MODE --take WHAT --sites WHICH --aside FILE. NVTX: a library with NVTX's functions.
Hooks have nothing to do here; compiled is a graph, as it is for the library.
"""
import argparse
import array
import ctypes
import hashlib
import json
import random
import time

import hugging_face_plan as plan
from hugging_face_model import Marked, put
from marks import COLS, taps
from smoke_driver import PlainDevice

LAYERS, ROWS, STEPS = 3, 5, 6
NAMES = (*plan.SITES, plan.LOGITS)


def numbers(seed):
    rng = random.Random(seed)
    return array.array("f", [rng.uniform(-1, 1) for _ in range(ROWS * COLS)]).tobytes()


class Model:
    """@marked: where the values are compared, else None; @tapped: (site, layer) of all taps"""

    def __init__(self, device, marked, tapped):
        self.device, self.marked, self.tapped = device, marked, set(tapped)
        self.x, self.bias = device.empty(ROWS, COLS), device.from_bytes(numbers(1), ROWS, COLS)
        self.buffers = {site: device.empty(ROWS, COLS) for site in NAMES}

    def launch(self, x, site, layer):
        """One of the layer's launches. Return: what it wrote, which the next layer overwrites."""
        to, ranged = self.buffers[site], self.marked and site == "mlp_out"
        if ranged:
            self.marked.enter(layer, x.ptr, ROWS)
        self.device.add(to, x, self.bias)
        if ranged:
            self.marked.leave(to.ptr, ROWS)
        if taps.loaded() and (site, layer) in self.tapped:
            taps.send(site, to.ptr, self.device.stream().value, taps.DTYPES["float32"], (ROWS, COLS), (COLS, 1), 4, 1, layer, LAYERS)
        return to

    def forward(self):
        """Return: [(key, clone)], the logits last."""
        found, x = [], self.x
        for layer in range(LAYERS):
            for site in plan.SITES:
                if site == "mlp_out":
                    found.append((f"mlp_in.{layer}", self.device.clone(x)))
                x = self.launch(x, site, layer)
                found.append((f"{site}.{layer}", self.device.clone(x)))
        x = self.launch(x, plan.LOGITS, taps.NO_LAYER)
        return found + [(plan.LOGITS, self.device.clone(x))]


def tapped_of(options):
    """[(site, layer)], as the model taps them."""
    if options.take not in ("taps", "values"):
        return []
    logits = options.take == "values" and options.mode != "compiled"
    return plan.chosen(options.sites, LAYERS) + ([(plan.LOGITS, taps.NO_LAYER)] if logits else [])


def marks_of(device, options):
    nvtx = ctypes.CDLL(options.nvtx)
    nvtx.nvtxRangePushA.argtypes = [ctypes.c_char_p]
    return Marked(device, lambda name: nvtx.nvtxRangePushA(name.encode()), nvtx.nvtxRangePop, ROWS)


class Run:
    """STEPS steps, of which the first is eager; what each left, and how long it took."""

    def __init__(self, options):
        self.device, self.tapped = PlainDevice(), tapped_of(options)
        self.marked = marks_of(self.device, options) if options.take == "values" else None
        self.model = Model(self.device, self.marked if options.mode != "compiled" else None, self.tapped)
        n = LAYERS * (len(plan.SITES) + 1) + 1
        self.graph, self.found = self.device.capture(self.model.forward, ROWS, COLS, n) if options.mode != "eager" else (None, [])
        self.rows, self.times = [], []
        for n in range(STEPS):
            start = time.perf_counter()
            self.step(n)
            self.times.append((time.perf_counter() - start) * 1e3)

    def step(self, n):
        device = self.device
        device.copy(self.model.x, device.from_bytes(numbers(10 + n), ROWS, COLS))
        if self.marked:
            self.marked.begin()
        if self.graph and n:
            device.replay(self.graph)
            found = self.found
        else:
            found = self.model.forward()
        self.rows.append([(key, device.to_bytes(clone)) for key, clone in found])

    def aside(self, is_compiled):
        """What hooks put aside: of a compiled step what is tapped, and nothing by another name."""
        aside, keys = plan.Aside(), {f"{site}.{layer}" for site, layer in self.tapped}
        for key, data in (pair for row in self.rows for pair in row):
            if not is_compiled:
                put(aside, key, data)
            elif key in keys:
                aside.put(key, data)
        return aside


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nvtx")
    for name in ("mode", "take", "sites", "aside"):
        parser.add_argument(f"--{name}")
    options, _ = parser.parse_known_args()
    run = Run(options)
    logits = b"".join(row[-1][1] for row in run.rows)
    if options.aside:
        run.aside(options.mode == "compiled").write(options.aside)
    print(plan.RESULT + json.dumps({"logits": hashlib.sha256(logits).hexdigest(), "n_sites": len(run.tapped), "n_tokens": STEPS * ROWS,
                                    "step_ms": run.times}))


if __name__ == "__main__":
    main()
