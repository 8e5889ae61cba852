#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the weights of the packaged model as the kernels want them: store.py DTYPE FILE

The build does it once. To decode them takes as long as eight steps of the whole model, and each process of serve.py would do it.
"""
import pathlib
import sys

from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from serve.dtypes import DTYPES  # noqa: E402
from serve.gguf import Gguf, packaged_model  # noqa: E402
from serve.model import Part, Shape, Weights  # noqa: E402


class Kept:
    """Keeps each array; it takes the place of the device, too."""

    def __init__(self):
        self.arrays = {}

    def get(self, name, make):
        self.arrays[name] = make()

    def upload(self, array):
        pass

    def wait(self):
        pass


def main(dtype, path):
    gguf, kept = Gguf(packaged_model()), Kept()
    Weights(kept, gguf, Shape.of(gguf), Part(), DTYPES[dtype], n_positions=1, stored=kept)
    save_file(kept.arrays, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
