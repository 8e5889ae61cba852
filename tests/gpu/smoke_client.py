#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program to be captured, which knows nothing of DMI: some forwards eagerly, then many as replays of a graph.

Usage: smoke_client.py torch|plain EXPECTED.npz [--triton]; smoke_client.py names

A forward is our kernel `smoke_embed`, then in each layer our kernel `smoke_layer`, PyTorch's torch.add() back into the
buffer that the layer read, and, with --triton, a kernel of Triton's. Every tensor is cloned where it stands, and what
the clones held goes to EXPECTED.npz as rows in the order of the forwards. Prints a digest of it.

Status 3: Triton does not work here; status 4: PyTorch does not. Why is the last line of stderr.
"""
import array
import hashlib
import pathlib
import random
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from smoke_driver import Driver, Kernels, PlainDevice  # noqa: E402

LAYERS, COLS, ROWS, REPLAYS = 4, 96, 13, 50
EAGER_ROWS = (1, 5, ROWS)


class TorchDevice:
    """Memory of PyTorch's caching allocator, PyTorch's streams and graphs; our kernels by ctypes beside it."""

    def __init__(self, triton):
        import torch
        self.torch = torch
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # its context is current now
        self.kernels = Kernels(Driver())
        if triton:
            from smoke_triton import double
            self.double = double
        self.side = torch.cuda.Stream()
        torch.cuda.set_stream(self.side)

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def empty(self, rows, cols):
        return self.torch.empty(rows, cols, device="cuda")

    def from_bytes(self, data, rows, cols):
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.float32).reshape(rows, cols).cuda()

    def to_bytes(self, tensor):
        return tensor.cpu().numpy().tobytes()

    def first(self, tensor, rows):
        return tensor[:rows]

    def address(self, tensor):
        return tensor.data_ptr()

    def copy(self, to, source):
        to.copy_(source)

    def clone(self, tensor):
        return tensor.clone()

    def add(self, out, a, b):
        self.torch.add(a, b, out=out)

    def capture(self, body, rows, cols, n_clones):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            found = body()
        return graph, found

    def replay(self, graph):
        graph.replay()


def numbers(seed, rows):
    rng = random.Random(seed)
    return array.array("f", [rng.uniform(-1, 1) for _ in range(rows * COLS)]).tobytes()


class Model:
    def __init__(self, device, triton):
        self.device, self.triton = device, triton
        self.x, self.y, self.z = (device.empty(ROWS, COLS) for _ in range(3))
        self.source = device.from_bytes(numbers(0, ROWS), ROWS, COLS)
        self.bias = [device.from_bytes(numbers(1 + i, ROWS), ROWS, COLS) for i in range(LAYERS)]

    def forward(self, rows):
        """Return: {site.layer: clone}, of what stood in memory at that place."""
        device, kernels, found = self.device, self.device.kernels, {}
        x, y, z, source, *biases = (device.first(t, rows) for t in (self.x, self.y, self.z, self.source, *self.bias))
        kernels.embed(device.stream(), device.address(x), device.address(source), rows, COLS)
        found["embed"] = device.clone(x)
        for i, bias in enumerate(biases):
            found[f"own_in.{i}"] = device.clone(x)
            kernels.layer(device.stream(), device.address(y), device.address(x), rows, COLS, 0.5 + i)
            found[f"own.{i}"] = found[f"add_a.{i}"] = device.clone(y)
            found[f"add_b.{i}"] = device.clone(bias)
            device.add(x, y, bias)
            found[f"add_out.{i}"] = device.clone(x)
            if self.triton:
                device.double(z, x)
                found[f"triton.{i}"] = device.clone(z)
        return found


def run(device, triton):
    """Return: {site.layer: bytes of all rows}"""
    model, parts = Model(device, triton), []
    for n, rows in enumerate(EAGER_ROWS):
        device.copy(model.source, device.from_bytes(numbers(100 + n, ROWS), ROWS, COLS))
        parts.append(model.forward(rows))
    inputs = [device.from_bytes(numbers(200 + i, ROWS), ROWS, COLS) for i in range(REPLAYS)]
    graph, clones = device.capture(lambda: model.forward(ROWS), ROWS, COLS, 1 + 5 * LAYERS)
    # nobody waits between replays: the clones of each are put aside on the device
    aside = [{key: device.empty(ROWS, COLS) for key in clones} for _ in range(REPLAYS)]
    for i in range(REPLAYS):
        device.copy(model.source, inputs[i])
        device.replay(graph)
        for key, clone in clones.items():
            device.copy(aside[i][key], clone)
    parts += aside
    return {key: b"".join(device.to_bytes(part[key]) for part in parts) for key in clones}


def print_names():
    """What PyTorch calls the kernel of torch.add() here, and with which grid."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    a, b = torch.ones(ROWS, COLS, device="cuda"), torch.ones(ROWS, COLS, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        torch.add(a, b)
        torch.cuda.synchronize()
    for event in p.events():
        print(event.name)


def make_device(kind, triton):
    if kind == "plain":
        return PlainDevice()
    status = 4
    try:
        import torch
        if not torch.cuda.is_available():
            raise RuntimeError(f"PyTorch {torch.__version__} sees no device")
        status = 3 if triton else 4
        device = TorchDevice(triton)
        if triton:
            device.double(device.empty(ROWS, COLS), device.empty(ROWS, COLS))
        return device
    except Exception as problem:  # whatever is missing: a package, a device, a compiler for Triton
        print(f"{type(problem).__name__}: {problem}".splitlines()[0], file=sys.stderr)
        sys.exit(status)


def main():
    if sys.argv[1] == "names":
        print_names()
        return
    triton = "--triton" in sys.argv
    found = run(make_device(sys.argv[1], triton), triton)
    for key in sorted(found):
        print(key, hashlib.sha256(found[key]).hexdigest()[:16])
    np.savez(sys.argv[2], **{key: np.frombuffer(data, np.float32).reshape(-1, COLS) for key, data in found.items()})


if __name__ == "__main__":
    main()
