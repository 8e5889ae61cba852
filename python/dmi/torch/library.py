# SPDX-License-Identifier: Apache-2.0
"""dmi_tap() of include/dmi/dmi.h, through ctypes. Knows nothing of PyTorch; any thread."""
import ctypes
import threading

VERSION, NO_LAYER, MAX_DIMS, MAX_NAME = 1, -1, 4, 128

# enum dmi_dtype (include/dmi/dtype.h), by PyTorch's names.
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4, "int8": 5, "int16": 6, "int32": 7, "int64": 8, "uint8": 9,
          "uint16": 10, "uint32": 11, "uint64": 12, "bool": 13, "float8_e4m3fn": 14, "float8_e5m2": 15}


class Tap(ctypes.Structure):
    """struct dmi_tap, version 1"""
    _fields_ = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32), ("name", ctypes.c_char_p), ("data", ctypes.c_void_p),
                ("stream", ctypes.c_void_p), ("layer", ctypes.c_int32), ("n_layers", ctypes.c_int32), ("dtype", ctypes.c_uint32),
                ("n_dims", ctypes.c_uint32), ("row_dims", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("count", ctypes.c_uint64 * MAX_DIMS), ("stride", ctypes.c_int64 * MAX_DIMS)]


class _PerThread(threading.local):
    """A struct that is filled again and again, and the pointer to it."""

    def __init__(self):
        self.tap = Tap(ctypes.sizeof(Tap), VERSION)
        self.pointer = ctypes.byref(self.tap)


_mine = _PerThread()
_names = {}  # str: bytes
_function = getattr(ctypes.CDLL(None), "dmi_tap", None)
if _function is not None:
    _function.argtypes, _function.restype = (ctypes.c_void_p,), ctypes.c_int


def loaded():
    """Is there a library in this process that takes taps?"""
    return _function is not None


def send(name, data, stream, dtype, shape, strides, n_bytes, row_dims, layer, n_layers):
    """Point a tensor out to the library: dmi_tap().

    data, stream    addresses, as integers
    dtype           number of DTYPES
    shape, strides  1 to 4 dimensions, in elements; n_bytes: of an element
    row_dims        bit d: dimension d is a row dimension
    Returns what dmi_tap() returns.
    """
    if (text := _names.get(name)) is None:
        text = _names[name] = name.encode()
    tap = _mine.tap
    tap.name, tap.data, tap.stream, tap.layer, tap.n_layers, tap.dtype = text, data, stream, layer, n_layers, dtype
    tap.n_dims, tap.row_dims = len(shape), row_dims
    for i, (count, stride) in enumerate(zip(shape, strides)):
        tap.count[i], tap.stride[i] = count, stride * n_bytes
    return _function(_mine.pointer)
