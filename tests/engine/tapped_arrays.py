#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small engine whose tensors are those of a file: tapped_arrays.py FILE.safetensors [ROWS], with arrays REQUEST/SITE or REQUEST/SITE.LAYER, [tokens, ...].

A step has ROWS rows of one request, all if not given. It fills memory and taps it: what is captured are the file's values, in their types.
"""
import sys

import numpy
from cuda.bindings import driver as cuda
from safetensors import safe_open

import dmi
from dmi import taps


def requests_of(file):
    """{request: [(site, layer, key)]}, by layer."""
    found = {}
    for key in file.keys():
        request, name = key.split("/")
        site, _, layer = name.partition(".")
        found.setdefault(request, []).append((site, int(layer) if layer else taps.NO_LAYER, key))
    return found


def tap(array, site, layer, n_layers):
    memory = cuda.cuMemAlloc(array.nbytes)[1]
    cuda.cuMemcpyHtoD(memory, array.ctypes.data, array.nbytes)
    strides = [stride // array.itemsize for stride in array.strides]
    assert taps.send(site, int(memory), 0, taps.DTYPES[str(array.dtype)], array.shape, strides, array.itemsize, 0b01, layer, n_layers) == dmi.OK, site
    cuda.cuCtxSynchronize()
    cuda.cuMemFree(memory)


def serve(file, request, tensors, n_rows):
    """The rows of a request, some a step."""
    n_layers = 1 + max((layer for _, layer, _ in tensors if layer != taps.NO_LAYER), default=0)
    n = max(file.get_slice(key).get_shape()[0] for _, _, key in tensors)
    for first in range(0, n, n_rows):
        end = min(first + n_rows, n)
        yield dmi.Span(request, first, end - first, phase=dmi.Phase.PREFILL, n_prompt=n)
        for site, layer, key in tensors:
            tap(numpy.ascontiguousarray(file.get_slice(key)[first:end]), site, layer, n_layers)
        dmi.step_end()
    dmi.request_end(request, dmi.End.STOP)


def main():
    cuda.cuInit(0)
    context = cuda.cuDevicePrimaryCtxRetain(cuda.CUdevice(0))[1]
    cuda.cuCtxSetCurrent(context)
    step, n_rows = 0, int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 30
    with safe_open(sys.argv[1], "np") as file:
        for request, tensors in requests_of(file).items():
            for span in serve(file, request, tensors, n_rows):
                assert dmi.step_begin(step, [span]) == dmi.OK
                step += 1
    cuda.cuCtxSynchronize()


if __name__ == "__main__":
    main()
