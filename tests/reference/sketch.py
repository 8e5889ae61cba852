# SPDX-License-Identifier: Apache-2.0
"""Sketches: y = x S / sqrt(8), S of +1 and -1, so that an error e in a row x moves its sketch by about |e|."""
import functools

import numpy as np

COLUMNS = 8


def splitmix64(n):
    """Number @n (an array of uint64) of the sequence that README.md gives."""
    with np.errstate(over="ignore"):
        z = (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x444D49)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@functools.lru_cache(maxsize=None)
def signs(width):
    """S: [width, 8] of +1 and -1."""
    top = splitmix64(np.arange(width * COLUMNS, dtype=np.uint64)) >> np.uint64(63)
    return (1.0 - 2.0 * top.astype(np.float64)).reshape(width, COLUMNS)


def sketch(x):
    """[rows, width] -> float32 [rows, 8]"""
    return (x.astype(np.float64) @ signs(x.shape[-1]) / np.sqrt(COLUMNS)).astype(np.float32)
