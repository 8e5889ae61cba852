# SPDX-License-Identifier: Apache-2.0
"""The device: a context, one stream, memory, kernels and graphs, by cuda.bindings.driver alone."""
import ctypes
import json

import numpy as np
from cuda.bindings import driver as cu


def call(function, *args):
    """What a driver call answers, less its result; an error is an exception with the driver's own name for it."""
    result, *answers = function(*args)
    if result != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {result.name}")
    return answers[0] if len(answers) == 1 else answers


class Mark(ctypes.Structure):
    """struct mark of kernels.cuh"""
    _fields_ = [("rows", ctypes.c_void_p), ("lo", ctypes.c_int), ("hi", ctypes.c_int)]


class Launch:
    """A kernel with its grid and parameters: an int is an int, a float a float, an Address a pointer."""

    def __init__(self, function, grid, block, args, shared=0):
        self.function, self.grid, self.block, self.shared = function, grid, block, shared
        self.values = [arg if isinstance(arg, ctypes.Structure) else
                       ctypes.c_float(arg) if isinstance(arg, float) else
                       ctypes.c_void_p(arg.address) if isinstance(arg, Address) else ctypes.c_int(arg) for arg in args]
        self.pointers = (ctypes.c_void_p * len(args))(*[ctypes.addressof(value) for value in self.values])
        self.params = ctypes.addressof(self.pointers)

    def __call__(self, stream):
        call(cu.cuLaunchKernel, self.function, *self.grid, *self.block, self.shared, stream, self.params, 0)


class Address:
    """A place in device memory."""

    def __init__(self, address, n_bytes):
        self.address, self.n_bytes = address, n_bytes

    def part(self, offset, n_bytes):
        assert 0 <= offset and offset + n_bytes <= self.n_bytes
        return Address(self.address + offset, n_bytes)


class Device:
    def __init__(self, number=0):
        """@number: of the process; each has a device of its own where there are enough."""
        call(cu.cuInit, 0)
        self.device = call(cu.cuDeviceGet, number % call(cu.cuDeviceGetCount))
        self.context = call(cu.cuDevicePrimaryCtxRetain, self.device)
        call(cu.cuCtxSetCurrent, self.context)
        self.stream = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        self.functions, self.modules, self.names = {}, [], {}

    def load(self, path):
        """Kernels of a fatbin, or of PTX. names.json beside it says which of them have other names there."""
        if (names := path.with_name("names.json")).exists():
            self.names |= json.loads(names.read_text())
        image = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        module = call(cu.cuModuleLoadData, image.ctypes.data)
        self.modules.append((module, image))

    def function(self, name):
        if name not in self.functions:
            found = None
            for module, _ in self.modules:
                result, found = cu.cuModuleGetFunction(module, self.names.get(name, name).encode())
                if result == cu.CUresult.CUDA_SUCCESS:
                    break
            else:
                raise KeyError(f"no kernel {name}")
            self.functions[name] = found
        return self.functions[name]

    def alloc(self, n_bytes):
        return Address(int(call(cu.cuMemAlloc, n_bytes)), n_bytes)

    def upload(self, array, to=None):
        """Copy an array to the device, to new memory if no place is given; returns the place."""
        array = np.ascontiguousarray(array)
        if to is None:
            to = self.alloc(array.nbytes)
        assert array.nbytes <= to.n_bytes
        # From pageable memory: what is in it now is what is copied.
        call(cu.cuMemcpyHtoDAsync, to.address, array.ctypes.data, array.nbytes, self.stream)
        return to

    def download(self, place, shape, dtype):
        """What is there after all that was queued before: a synchronous copy."""
        out = np.empty(shape, dtype=dtype)
        assert out.nbytes <= place.n_bytes
        if out.nbytes:
            self.wait()
            call(cu.cuMemcpyDtoH, out.ctypes.data, place.address, out.nbytes)
        return out

    def fill(self, place, byte=0):
        call(cu.cuMemsetD8Async, place.address, byte, place.n_bytes, self.stream)

    def wait(self):
        call(cu.cuStreamSynchronize, self.stream)

    def capture(self, body):
        """A graph exec of what @body launches, captured from the stream."""
        call(cu.cuStreamBeginCapture, self.stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        body()
        graph = call(cu.cuStreamEndCapture, self.stream)
        graph_exec = call(cu.cuGraphInstantiate, graph, 0)
        call(cu.cuGraphDestroy, graph)
        return graph_exec

    def replay(self, graph_exec):
        call(cu.cuGraphLaunch, graph_exec, self.stream)
