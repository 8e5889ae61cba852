# SPDX-License-Identifier: Apache-2.0
"""The driver by ctypes: kernels of our own in PTX, and a device whose buffers, streams and graphs are the driver's."""
import ctypes
import struct

# What is launched on whoever's stream: (out, in, rows, cols[, scale]). The last one has its parameters as PyTorch's
# elementwise kernels have theirs: a number, a functor by value, a struct of three addresses by value.
PTX = r"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry smoke_embed(.param .u64 out, .param .u64 in, .param .u32 rows, .param .u32 cols)
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<8>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [in]; ld.param.u32 %r1, [rows]; ld.param.u32 %r2, [cols];
    mul.lo.u32 %r1, %r1, %r2; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5; setp.ge.u32 %p1, %r6, %r1; @%p1 ret;
    mul.wide.u32 %d3, %r6, 4; add.u64 %d4, %d2, %d3; add.u64 %d5, %d1, %d3;
    ld.global.f32 %f1, [%d4]; st.global.f32 [%d5], %f1; ret;
}
.visible .entry smoke_layer(.param .u64 out, .param .u64 in, .param .u32 rows, .param .u32 cols, .param .f32 scale)
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<5>; .reg .b64 %d<8>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [in]; ld.param.u32 %r1, [rows]; ld.param.u32 %r2, [cols];
    ld.param.f32 %f2, [scale];
    mul.lo.u32 %r1, %r1, %r2; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5; setp.ge.u32 %p1, %r6, %r1; @%p1 ret;
    mul.wide.u32 %d3, %r6, 4; add.u64 %d4, %d2, %d3; add.u64 %d5, %d1, %d3;
    ld.global.f32 %f1, [%d4]; mul.rn.f32 %f3, %f1, %f2; add.rn.f32 %f4, %f3, 0f3F000000; st.global.f32 [%d5], %f4; ret;
}
.visible .entry vectorized_elementwise_kernel_CUDAFunctor_add(.param .u32 n, .param .align 4 .b8 f[4],
                                                              .param .align 8 .b8 data[24])
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<8>;
    ld.param.u32 %r1, [n]; ld.param.u64 %d1, [data]; ld.param.u64 %d2, [data+8]; ld.param.u64 %d6, [data+16];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5; setp.ge.u32 %p1, %r6, %r1; @%p1 ret;
    mul.wide.u32 %d3, %r6, 4; add.u64 %d4, %d2, %d3; add.u64 %d5, %d1, %d3; add.u64 %d7, %d6, %d3;
    ld.global.f32 %f1, [%d4]; ld.global.f32 %f2, [%d7]; add.rn.f32 %f3, %f1, %f2; st.global.f32 [%d5], %f3; ret;
}
"""
THREADS = 128
handle, address, uint, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t
pointer = ctypes.POINTER
SIGNATURES = {
    "cuInit": [uint],
    "cuDevicePrimaryCtxRetain": [pointer(handle), ctypes.c_int],
    "cuCtxSetCurrent": [handle],
    "cuCtxSynchronize": [],
    "cuModuleLoadData": [pointer(handle), ctypes.c_char_p],
    "cuModuleGetFunction": [pointer(handle), handle, ctypes.c_char_p],
    "cuLaunchKernel": [handle] + [uint] * 7 + [handle, pointer(handle), pointer(handle)],
    "cuMemAlloc_v2": [pointer(address), size],
    "cuMemcpyHtoD_v2": [address, ctypes.c_char_p, size],
    "cuMemcpyDtoH_v2": [ctypes.c_char_p, address, size],
    "cuMemcpyDtoDAsync_v2": [address, address, size, handle],
    "cuStreamCreate": [pointer(handle), uint],
    "cuStreamBeginCapture_v2": [handle, ctypes.c_int],
    "cuStreamEndCapture": [handle, pointer(handle)],
    "cuGraphInstantiateWithFlags": [pointer(handle), handle, ctypes.c_ulonglong],
    "cuGraphDestroy": [handle],
    "cuGraphLaunch": [handle, handle],
}


class Driver:
    """The driver's functions by their exported names; each raises where the driver has an error."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        for name, types in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = types, ctypes.c_int

    def __getattr__(self, name):
        def call(*args):
            result = getattr(self.library, name)(*args)
            if result:
                raise RuntimeError(f"{name} gave error {result}")
        return call


class Kernels:
    """Our kernels in the context that is current, launched on streams of whoever made them."""

    def __init__(self, driver):
        self.driver, self.module, self.functions = driver, handle(), {}
        driver.cuModuleLoadData(ctypes.byref(self.module), PTX.encode())

    def launch(self, name, stream, n, *parameters):
        """@n: elements; @parameters: ctypes values, in the kernel's order."""
        if name not in self.functions:
            self.functions[name] = handle()
            self.driver.cuModuleGetFunction(ctypes.byref(self.functions[name]), self.module, name.encode())
        params = (handle * len(parameters))(*[ctypes.addressof(p) for p in parameters])
        self.driver.cuLaunchKernel(self.functions[name], (n + THREADS - 1) // THREADS, 1, 1, THREADS, 1, 1, 0, stream, params, None)

    def embed(self, stream, out, source, rows, cols):
        self.launch("smoke_embed", stream, rows * cols, address(out), address(source), uint(rows), uint(cols))

    def layer(self, stream, out, source, rows, cols, scale):
        self.launch("smoke_layer", stream, rows * cols, address(out), address(source), uint(rows), uint(cols), ctypes.c_float(scale))

    def add(self, stream, out, a, b, n):
        data = ctypes.create_string_buffer(struct.pack("<QQQ", out, a, b), 24)
        self.launch("vectorized_elementwise_kernel_CUDAFunctor_add", stream, n, uint(n), ctypes.c_float(1), data)


class Buffer:
    def __init__(self, ptr, rows, cols):
        self.ptr, self.rows, self.cols, self.n_bytes = ptr, rows, cols, rows * cols * 4


class PlainDevice:
    """What smoke_client.TorchDevice is, with nothing but the driver."""

    def __init__(self):
        self.driver, self.context, self.s = Driver(), handle(), handle()
        self.capturing, self.spare = False, []
        self.driver.cuInit(0)
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0)
        self.driver.cuCtxSetCurrent(self.context)
        self.driver.cuStreamCreate(ctypes.byref(self.s), 1)
        self.kernels = Kernels(self.driver)

    def stream(self):
        return self.s

    def empty(self, rows, cols):
        p = address()
        self.driver.cuMemAlloc_v2(ctypes.byref(p), rows * cols * 4)
        return Buffer(p.value, rows, cols)

    def from_bytes(self, data, rows, cols):
        buffer = self.empty(rows, cols)
        self.driver.cuMemcpyHtoD_v2(buffer.ptr, data, buffer.n_bytes)
        return buffer

    def to_bytes(self, buffer):
        self.driver.cuCtxSynchronize()
        data = ctypes.create_string_buffer(buffer.n_bytes)
        self.driver.cuMemcpyDtoH_v2(data, buffer.ptr, buffer.n_bytes)
        return data.raw

    def first(self, buffer, rows):
        return Buffer(buffer.ptr, rows, buffer.cols)

    def address(self, buffer):
        return buffer.ptr

    def copy(self, to, source):
        self.driver.cuMemcpyDtoDAsync_v2(to.ptr, source.ptr, source.n_bytes, self.s)

    def clone(self, buffer):
        # memory comes from outside of a graph: what is captured is the copy into it
        to = self.spare.pop() if self.capturing else self.empty(buffer.rows, buffer.cols)
        self.copy(to, buffer)
        return to

    def add(self, out, a, b):
        self.kernels.add(self.s, out.ptr, a.ptr, b.ptr, a.rows * a.cols)

    def capture(self, body, rows, cols, n_clones):
        graph, executable = handle(), handle()
        self.spare = [self.empty(rows, cols) for _ in range(n_clones)]
        self.driver.cuStreamBeginCapture_v2(self.s, 0)
        self.capturing = True
        found = body()
        self.capturing = False
        self.driver.cuStreamEndCapture(self.s, ctypes.byref(graph))
        self.driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
        self.driver.cuGraphDestroy(graph)
        return executable, found

    def replay(self, executable):
        self.driver.cuGraphLaunch(executable, self.s)
