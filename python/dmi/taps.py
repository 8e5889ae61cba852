# SPDX-License-Identifier: Apache-2.0
"""dmi_tap() of include/dmi/dmi.h, through ctypes: for adapters. Knows nothing of PyTorch; any thread."""
import ctypes
import struct
import threading

from . import dtypes

DTYPES = dtypes.NUMBERS
VERSION, NO_LAYER, MAX_DIMS, MAX_NAME = 1, -1, 4, 128
WRITABLE = 1 << 0  # enum dmi_tap_flags

# struct dmi_tap, version 1: size, version, name, data, stream, layer, n_layers, dtype, n_dims, row_dims, flags, count[4], stride[4]
_FORM = struct.Struct("@IIPPPiiIIII4Q4q")
_PADDING = tuple((0,) * (MAX_DIMS - n) for n in range(MAX_DIMS + 1))


class _PerThread(threading.local):
    """Memory that is filled again and again, and its address."""

    def __init__(self):
        self.bytes = ctypes.create_string_buffer(_FORM.size)
        self.address = ctypes.addressof(self.bytes)


_mine = _PerThread()
_names = {}  # str: (memory, its address)
_function = getattr(ctypes.CDLL(None), "dmi_tap", None)
if _function is not None:
    _function.argtypes, _function.restype = (ctypes.c_void_p,), ctypes.c_int


def loaded():
    """Is there a library in this process that takes taps?"""
    return _function is not None


def send(name, data, stream, dtype, shape, strides, n_bytes, row_dims, layer, n_layers, flags=0):
    """Point a tensor out to the library: dmi_tap().

    data, stream    addresses, as integers
    dtype           number of DTYPES
    shape, strides  1 to 4 dimensions, in elements; n_bytes: of an element
    row_dims        bit d: dimension d is a row dimension
    flags           WRITABLE: edits may write there, as what reads the tensor later on the stream reads this memory
    Returns what dmi_tap() returns.
    """
    if (text := _names.get(name)) is None:
        memory = ctypes.create_string_buffer(name.encode())
        text = _names[name] = memory, ctypes.addressof(memory)
    n, mine = len(shape), _mine
    _FORM.pack_into(mine.bytes, 0, _FORM.size, VERSION, text[1], data, stream, layer, n_layers, dtype, n, row_dims, flags, *shape,
                    *_PADDING[n], *[stride * n_bytes for stride in strides], *_PADDING[n])
    return _function(mine.address)
