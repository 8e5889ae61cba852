# SPDX-License-Identifier: Apache-2.0
"""Weights as the kernels want them: the build writes them into a file of safetensors, and each process maps it."""
import json
import mmap
import struct

import numpy as np


class Stored:
    """Arrays by name of a file of safetensors."""

    def __init__(self, path, dtype):
        """@dtype: numpy's type of all of them."""
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        n, = struct.unpack_from("<Q", data)
        self.arrays = {name: np.frombuffer(data, dtype, (end - at) // np.dtype(dtype).itemsize, 8 + n + at)
                       for name, tensor in json.loads(data[8:8 + n]).items() for at, end in [tensor["data_offsets"]]}

    def get(self, name, _):
        return self.arrays[name]


class Made:
    """Makes each array where it is asked for."""

    def get(self, _, make):
        return make()
