# SPDX-License-Identifier: Apache-2.0
"""float32, and bfloat16 as 16-bit integers: numpy has no such type."""
from dataclasses import dataclass

import numpy as np


def to_bf16(x):
    """Nearest, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True)
class Dtype:
    name: str      # as --dtype and safetensors have it
    suffix: str    # of the kernels' names
    size: int      # bytes
    store: object  # numpy's type of what is in memory

    def encode(self, x):
        return np.ascontiguousarray(x, dtype=np.float32) if self.size == 4 else to_bf16(x)

    def decode(self, stored):
        return stored if self.size == 4 else from_bf16(stored)


DTYPES = {d.name: d for d in (Dtype("float32", "f32", 4, np.float32), Dtype("bfloat16", "bf16", 2, np.uint16))}
DTYPES["bf16"] = DTYPES["bfloat16"]
