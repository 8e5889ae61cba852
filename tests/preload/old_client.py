#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program of the days of CUDA 11: old_client.py SCENARIO.  Exported names by ctypes, structures of version 1, packed
parameter buffers.  Says what it read back.  Every kernel writes out[i] = seed * 65536 + i for i < n.
"""
import ctypes
import struct
import sys

from fill_kernels import PTX

NULL, N = None, 64
driver = ctypes.CDLL("libcuda.so.1")
POINTER, SIZE, UNSIGNED = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint


class Params(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v1"""
    _fields_ = [("func", POINTER), ("sizes", UNSIGNED * 7), ("kernel_params", POINTER), ("extra", POINTER)]


def call(name, *args):
    result = getattr(driver, name)(*args)
    if result:
        raise SystemExit(f"old_client: {name}: {result}")


def new(name, *args, of=POINTER):
    """What the call writes where its first argument points to."""
    made = of()
    call(name, ctypes.byref(made), *args)
    return made


class Packed:
    """`extra` of a launch."""

    def __init__(self, out, n, seed):
        self.buffer = ctypes.create_string_buffer(struct.pack("<QII", out.value, n, seed), 16)
        self.size = SIZE(16)
        self.extra = (POINTER * 5)(1, ctypes.addressof(self.buffer), 2, ctypes.addressof(self.size), 0)


def launch(function, stream, out, seed):
    packed = Packed(out, N, seed)
    call("cuLaunchKernel", function, 1, 1, 1, N, 1, 1, 0, stream, NULL, packed.extra)


def node_params(function, packed):
    params = Params(func=function, extra=ctypes.addressof(packed.extra))
    params.sizes[:] = [1, 1, 1, N, 1, 1, 0]
    return params


def setup():
    call("cuInit", 0)
    new("cuCtxCreate_v2", 0, new("cuDeviceGet", 0, of=ctypes.c_int))
    module = new("cuModuleLoadData", PTX.encode())
    out = new("cuMemAlloc_v2", SIZE(4096))
    return module, out, new("cuStreamCreate", 1)


def say(out, stream):
    call("cuStreamSynchronize", stream)
    words = (ctypes.c_uint32 * 4)()
    call("cuMemcpyDtoH_v2", words, out, SIZE(16))
    print(*words)


def built(module, seeds):
    """A chain of nodes of `block`, the nodes, and what their parameters live in."""
    function, graph, nodes, kept = new("cuModuleGetFunction", module, b"block"), new("cuGraphCreate", 0), [], []
    for seed in seeds:
        packed = Packed(OUT, N, seed)
        params = node_params(function, packed)
        before = (POINTER * 1)(nodes[-1] if nodes else None)
        nodes.append(new("cuGraphAddKernelNode", graph, before, SIZE(len(nodes[-1:])), ctypes.byref(params)))
        kept.append((packed, params))
    return graph, nodes, kept


def graph(module, stream):
    made, nodes, kept = built(module, [1, 2])
    exe = new("cuGraphInstantiate_v2", made, NULL, NULL, SIZE(0))
    call("cuGraphLaunch", exe, stream)
    packed, params = kept[1]
    fresh = Packed(OUT, N, 3)
    params.extra = ctypes.addressof(fresh.extra)
    call("cuGraphExecKernelNodeSetParams", exe, nodes[1], ctypes.byref(params))
    call("cuGraphLaunch", exe, stream)
    other, _, _ = built(module, [4, 5])
    call("cuGraphExecUpdate", exe, other, ctypes.byref(POINTER()), ctypes.byref(ctypes.c_int()))
    call("cuGraphLaunch", exe, stream)


def capture(module, stream):
    function = new("cuModuleGetFunction", module, b"block")
    call("cuStreamBeginCapture_v2", stream, 0)
    for seed in (1, 2):
        launch(function, stream, OUT, seed)
    exe = new("cuGraphInstantiate_v2", new_after("cuStreamEndCapture", stream), NULL, NULL, SIZE(0))
    for _ in range(2):
        call("cuGraphLaunch", exe, stream)


def new_after(name, *args):
    """What the call writes where its last argument points to."""
    made = POINTER()
    call(name, *args, ctypes.byref(made))
    return made


def kernel(module, stream):
    """A kernel of a library, launched as the function that it has in this context."""
    library = new("cuLibraryLoadData", PTX.encode(), NULL, NULL, 0, NULL, NULL, 0)
    handle = new("cuLibraryGetKernel", library, b"block")
    launch(new("cuKernelGetFunction", handle), stream, OUT, 1)
    other = new("cuLibraryGetKernel", library, b"other")
    launch(new("cuKernelGetFunction", other), stream, OUT, 2)


def another_context_ends(module, stream):
    """Functions of the others go on, under the handles that they have."""
    function = new("cuModuleGetFunction", module, b"block")
    launch(function, stream, OUT, 1)
    call("cuCtxDestroy_v2", new("cuCtxCreate_v2", 0, 0))
    launch(function, stream, OUT, 2)
    again = new("cuModuleGetFunction", module, b"block")
    launch(again, stream, OUT, 3)


def a_handle_comes_back(module, stream):
    """Of a context that ended: it is another function's now."""
    own = new("cuCtxGetCurrent")
    for name in (b"block", b"other", b"block"):
        context = new("cuCtxCreate_v2", 0, 0)
        function = new("cuModuleGetFunction", new("cuModuleLoadData", PTX.encode()), name)
        out = new("cuMemAlloc_v2", SIZE(4096))
        launch(function, None, out, 7)
        call("cuCtxDestroy_v2", context)
        call("cuCtxSetCurrent", own)


def unseen(module, stream):
    """Looked up past whoever is preloaded, as with RTLD_DEEPBIND."""
    dlsym = ctypes.CDLL("libc.so.6").dlsym
    dlsym.restype, dlsym.argtypes = POINTER, (POINTER, ctypes.c_char_p)
    find = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, ctypes.c_char_p)(dlsym(driver._handle, b"cuModuleGetFunction"))
    for name in (b"block", b"other", b"first"):
        function = POINTER()
        if find(ctypes.addressof(function), module, name):
            raise SystemExit("old_client: not found")
        launch(function, stream, OUT, 1)


if __name__ == "__main__":
    loaded, OUT, used = setup()
    globals()[sys.argv[1]](loaded, used)
    say(OUT, used)
