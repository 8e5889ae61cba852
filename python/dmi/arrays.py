# SPDX-License-Identifier: Apache-2.0
"""Where an array of any library lies and what it is, for dmi.tap(): by numpy's interface, CUDA's, or DLPack. Any thread."""
import contextlib
import ctypes
from typing import Any, NamedTuple

from . import dtypes

TAKEN = "a tensor of PyTorch's, an array of numpy's, a buffer, or what has __cuda_array_interface__ or __dlpack__"
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType of dlpack.h 1.1
LEGACY = 1                                        # CU_STREAM_LEGACY: both interfaces call the default stream so, as 0 is none of theirs
_INTERFACES = ("__cuda_array_interface__", "__array_interface__", "__dlpack__")
_OF_KIND = {"b": "bool", "i": "int", "u": "uint", "f": "float"}                                  # of a typestr
_OF_CODE = {0: "int{}", 1: "uint{}", 2: "float{}", 4: "bfloat{}", 6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}  # DLDataTypeCode
_OF_CONTEXT = 1                                   # CU_POINTER_ATTRIBUTE_CONTEXT


class _Tensor(ctypes.Structure):
    """DLTensor"""
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned"""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64),
                ("tensor", _Tensor)]


class Seen(NamedTuple):
    """An array: data is its address, dtype a number of DTYPES of n_bytes, strides are in elements. stream: on which it is computed; None: nothing names one.
    held: what keeps it alive."""
    data: int
    dtype: int
    n_bytes: int
    shape: tuple
    strides: tuple
    is_host: bool
    stream: int | None
    held: Any


def expect(array: Any) -> None:
    """TypeError: it is no array."""
    if not any(_about(array, name) is not None for name in _INTERFACES):
        try:
            memoryview(array)
        except TypeError:
            raise TypeError(f"dmi.tap(): {TAKEN} was expected, not {type(array).__name__}") from None


def see(array: Any, stream: Any = None) -> Seen:
    """@array: that expect() took; @stream: of the caller, who knows better than it. ValueError, BufferError: it is none that a tap can say."""
    stream = _address(stream)
    if (about := _about(array, "__cuda_array_interface__")) is not None and (name := _name(array, about["typestr"])):
        return _of_interface(array, about, name, stream)
    if (kind := getattr(array, "__dlpack_device__", None)) and not hasattr(array, "__array_interface__"):
        return _of_dlpack(array, kind()[0], stream)
    if about is not None:
        raise ValueError(f"elements of type {about['typestr']}")
    return _of_host(array)


def _about(array: Any, interface: str) -> dict | None:
    """PyTorch and JAX raise what is no AttributeError where they have no such answer of a tensor."""
    try:
        return getattr(array, interface, None)
    except (RuntimeError, TypeError, ValueError, BufferError):
        return None


def _address(stream: Any) -> int | None:
    named = getattr(stream, "__cuda_stream__", None)
    return named()[1] if named else stream


def _name(array: Any, typestr: str) -> str | None:
    """PyTorch's name of a type. Arrays of ml_dtypes's types say "V2"."""
    own = getattr(getattr(array, "dtype", None), "name", None)
    if own not in dtypes.NUMBERS:
        own = "bool" if typestr[1:] == "b1" else f"{_OF_KIND.get(typestr[1:2])}{8 * int(typestr[2:] or 0)}"
    return own if own in dtypes.NUMBERS and typestr[0] != ">" else None


def _of_interface(array: Any, about: dict, name: str, stream: int | None) -> Seen:
    if about.get("mask") is not None:
        raise ValueError("it has a mask")
    n_bytes = int(about["typestr"][2:])
    if any(stride % n_bytes for stride in about.get("strides") or ()):
        raise ValueError("elements that begin within one another")
    strides = tuple(stride // n_bytes for stride in about.get("strides") or ())
    return Seen(about["data"][0] or 0, dtypes.NUMBERS[name], n_bytes, tuple(about["shape"]), strides or _packed(about["shape"]), False,
                about.get("stream") if stream is None else stream, array)


def _packed(shape: tuple) -> tuple:
    strides = [1]
    for count in reversed(shape[1:]):
        strides.insert(0, strides[0] * count)
    return tuple(strides[:len(shape)])


def _of_dlpack(array: Any, device: int, stream: int | None) -> Seen:
    if device not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise ValueError(f"a device of the kind {device} of DLPack's")
    on = {"stream": stream or LEGACY} if device in (CUDA, CUDA_MANAGED) else {}
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **on)
    except TypeError:  # it is older than versions
        capsule = array.__dlpack__(**on)
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetPointer.restype = ctypes.c_char_p, ctypes.c_void_p
    name = api.PyCapsule_GetName(ctypes.py_object(capsule))
    address = api.PyCapsule_GetPointer(ctypes.py_object(capsule), ctypes.c_char_p(name))
    tensor = _Versioned.from_address(address).tensor if name == b"dltensor_versioned" else _Tensor.from_address(address)
    own = _OF_CODE.get(tensor.code, "").format(tensor.bits)
    if own not in dtypes.NUMBERS or tensor.lanes != 1 or tensor.bits % 8:
        raise ValueError(f"elements of code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes")
    shape = tuple(tensor.shape[:tensor.n_dims])
    return Seen((tensor.data or 0) + tensor.byte_offset, dtypes.NUMBERS[own], tensor.bits // 8, shape, tuple(tensor.strides[:tensor.n_dims]) if tensor.strides else _packed(shape),
                not on, stream, capsule)


def _of_host(array: Any) -> Seen:
    from .numeric import numpy
    seen = numpy.asarray(array)
    n_bytes = seen.dtype.itemsize
    if seen is not array and not numpy.shares_memory(seen, array) or not seen.dtype.isnative or any(stride % n_bytes for stride in seen.strides):
        raise ValueError("it would have to be copied, or its elements begin within one another")
    if seen.dtype.name not in dtypes.NUMBERS:
        raise ValueError(f"elements of type {seen.dtype.name}")
    return Seen(seen.__array_interface__["data"][0], dtypes.NUMBERS[seen.dtype.name], n_bytes, seen.shape, tuple(stride // n_bytes for stride in seen.strides), True, None, seen)


@contextlib.contextmanager
def default_stream(data: int) -> Any:
    """A block in which the default stream is that of the context that @data lies in, and after which that stream has nothing left to do: whoever computes
    there without saying a stream may overwrite or free @data then."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    is_pushed = cuda.cuPointerGetAttribute(ctypes.byref(context), _OF_CONTEXT, ctypes.c_uint64(data)) == 0 and context and cuda.cuCtxPushCurrent_v2(context) == 0
    try:
        yield
        cuda.cuStreamSynchronize(None)
    finally:
        if is_pushed:
            cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
