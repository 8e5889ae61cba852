# SPDX-License-Identifier: Apache-2.0
"""dmi_tap() and dmi_tap_at() of include/dmi/dmi.h, through ctypes: for adapters. Knows nothing of PyTorch; any thread."""
import contextlib
import ctypes
import errno
import struct
import threading

from . import dtypes

DTYPES = dtypes.NUMBERS
OK, OFF = 0, 1  # enum dmi_status
VERSION, NO_LAYER, MAX_DIMS, MAX_NAME = 1, -1, 4, 128
ROWS = {1: (0,), 2: (0,), 3: (0, 1), 4: (0, 2)}  # where nothing is said, by the number of dimensions
WRITABLE, HOST, REQUESTS = 1 << 0, 1 << 1, 1 << 2  # enum dmi_tap_flags

# struct dmi_tap, version 1: size, version, name, data, stream, layer, n_layers, dtype, n_dims, row_dims, flags, count[4], stride[4]
_FORM = struct.Struct("@IIPPPiiIIII4Q4q")
_DATA, _ADDRESS = struct.calcsize("@IIP"), struct.Struct("@P")
_PADDING = tuple((0,) * (MAX_DIMS - n) for n in range(MAX_DIMS + 1))


class _PerThread(threading.local):
    """Memory that is filled again and again, and its address."""

    def __init__(self):
        self.bytes = ctypes.create_string_buffer(_FORM.size)
        self.address = ctypes.addressof(self.bytes)


_mine = _PerThread()
_names = {}  # str: (memory, its address)
_process = ctypes.CDLL(None)
_function, _at, _take, _release = (getattr(_process, name, None) for name in ("dmi_tap", "dmi_tap_at", "dmi_moment_take", "dmi_moment_release"))
if _function is not None:
    _function.argtypes, _function.restype = (ctypes.c_void_p,), ctypes.c_int
if _take is not None:
    _at.argtypes, _at.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    _take.argtypes, _take.restype = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)), ctypes.c_int
    _release.argtypes, _release.restype = (ctypes.c_void_p,), None


def loaded():
    """Is there a library in this process that takes taps?"""
    return _function is not None


def tap(array, name, layer=None, rows=None, n_layers=None, stream=None):
    """Point out @array, as it is now. What the CPU has computed is copied before this returns.

    array     a tensor of PyTorch's, for dmi.torch.tap(); numpy's; a buffer; or what has __cuda_array_interface__, __dlpack__ or __array_interface__
    name      letters, digits, and _ - .
    layer     from 0; None: it belongs to no layer. n_layers: how many the model has, if known
    rows      dimensions that count tokens, one or two; by default (0,) of [token, H], (0, 1) of [batch, token, H], (0, 2) of [batch, head, token, d]
    stream    on which a device computes it: an address, or what has __cuda_stream__; PyTorch's is its current one. None: the one that
              __cuda_array_interface__ names. Where nothing names one, the call waits until the device has made the copy
    Returns what dmi_tap() returns: OK, OFF without the library, -errno: -EINVAL, where no tap can say such an array. Raises TypeError where @array is none.
    """
    if hasattr(array, "data_ptr"):
        if stream is not None:
            raise TypeError("dmi.tap(): stream= is for other arrays; a tensor of PyTorch's is tapped on its current stream")
        from .torch import tap as of_torch
        of_torch(array, name, layer, rows, n_layers)
        return OK if loaded() else OFF
    from . import arrays
    arrays.expect(array)
    if not loaded():
        return OFF
    try:
        seen = arrays.see(array, stream)
        mask = sum(1 << row for row in rows or ROWS[len(seen.shape)])
        with contextlib.nullcontext() if seen.is_host or seen.stream is not None else arrays.default_stream(seen.data):
            return send(name, seen.data, seen.stream or 0, seen.dtype, seen.shape, seen.strides, seen.n_bytes, mask, NO_LAYER if layer is None else layer, n_layers or 0,
                        HOST if seen.is_host else 0)
    except (BufferError, TypeError, ValueError, KeyError, struct.error, AttributeError):
        return -errno.EINVAL


class Moment:
    """Where a tensor belongs that comes later: struct dmi_moment. address: None where each launch of a CUDA graph is one of its own."""
    __slots__ = ("address",)

    def __init__(self, address):
        self.address = address

    def __del__(self):
        if self.address and _release is not None:  # None: the interpreter ends
            _release(self.address)


def moment(name, data, stream, layer, n_layers, flags=0):
    """The Moment of a tensor called @name that comes later, where the one that is there now is at @data: dmi_moment_take(). None: no site wants it,
    and without the library. Other arguments as of send()."""
    if _take is None:
        return None
    taken, mine = ctypes.c_void_p(), _mine
    _fill(mine, name, data, stream, 0, (), (), 0, 0, layer, n_layers, flags)
    return Moment(taken.value) if _take(mine.address, ctypes.byref(taken)) == OK else None


def _fill(mine, name, data, stream, dtype, shape, strides, n_bytes, row_dims, layer, n_layers, flags):
    if (text := _names.get(name)) is None:
        memory = ctypes.create_string_buffer(name.encode())
        text = _names[name] = memory, ctypes.addressof(memory)
    n = len(shape)
    _FORM.pack_into(mine.bytes, 0, _FORM.size, VERSION, text[1], data, stream, layer, n_layers, dtype, n, row_dims, flags, *shape,
                    *_PADDING[n], *[stride * n_bytes for stride in strides], *_PADDING[n])


def send(name, data, stream, dtype, shape, strides, n_bytes, row_dims, layer, n_layers, flags=0, at=None):
    """Point a tensor out to the library: dmi_tap().

    data, stream    addresses, as integers
    dtype           number of DTYPES
    shape, strides  1 to 4 dimensions, in elements; n_bytes: of an element
    row_dims        bit d: dimension d is a row dimension
    flags           WRITABLE: edits may write there, as what reads the tensor later on the stream reads this memory; HOST: the CPU has computed it; REQUESTS: a row
                    is a request's, of its last token in the step
    at              the Moment that it belongs to; None: now
    Returns what dmi_tap() returns, or dmi_tap_at().
    """
    mine = _mine
    _fill(mine, name, data, stream, dtype, shape, strides, n_bytes, row_dims, layer, n_layers, flags)
    return _function(mine.address) if at is None else _at(mine.address, at.address)


def form(*tap):
    """What send() says of a tensor, for tensors that differ from it in their address alone: send_form() sends them."""
    _fill(_mine, *tap)
    return _mine.bytes.raw[:_DATA], _mine.bytes.raw[_DATA + _ADDRESS.size:_FORM.size]


def send_form(those, data):
    """send() of a tensor at @data, by what form() has made of one like it."""
    return _function(those[0] + _ADDRESS.pack(data) + those[1])
