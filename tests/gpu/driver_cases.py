#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs to be captured that need nothing but a driver: driver_cases.py NAME FILE, or --list. See marks.py."""
import array
import ctypes
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import marks  # noqa: E402
from marks import COLS, ROW_BYTES, Marks, Skip  # noqa: E402
from smoke_driver import PTX, SIGNATURES, Buffer, Kernels, PlainDevice, address, handle, pointer, size, uint  # noqa: E402

SIGNATURES.update({
    "cuCtxGetCurrent": [pointer(handle)],
    "cuDeviceGetAttribute": [pointer(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cuLaunchKernelEx": [handle, handle, pointer(handle), pointer(handle)],
    "cuLibraryLoadData": [pointer(handle), ctypes.c_char_p, handle, handle, uint, handle, handle, uint],
    "cuLibraryGetKernel": [pointer(handle), handle, ctypes.c_char_p],
    "cuLibraryGetModule": [pointer(handle), handle],
    "cuMemAddressReserve": [pointer(address), size, size, address, ctypes.c_ulonglong],
    "cuMemAllocAsync": [pointer(address), size, handle],
    "cuMemCreate": [pointer(ctypes.c_ulonglong), size, handle, ctypes.c_ulonglong],
    "cuMemFreeAsync": [address, handle],
    "cuMemGetAllocationGranularity": [pointer(size), handle, ctypes.c_int],
    "cuMemMap": [address, size, size, ctypes.c_ulonglong, ctypes.c_ulonglong],
    "cuMemSetAccess": [address, size, handle, size],
    "cuStreamSynchronize": [handle],
    "cuStreamBeginCapture_v2": [handle, ctypes.c_int],
})
CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...

# out = in + 1, having let the next kernel start and waited for the one before
PDL_PTX = r"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry smoke_embed(.param .u64 out, .param .u64 in, .param .u32 rows, .param .u32 cols)
{
    .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %d<8>;
    griddepcontrol.launch_dependents;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [in]; ld.param.u32 %r1, [rows]; ld.param.u32 %r2, [cols];
    mul.lo.u32 %r1, %r1, %r2; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    griddepcontrol.wait;
    setp.ge.u32 %p1, %r6, %r1; @%p1 ret;
    mul.wide.u32 %d3, %r6, 4; add.u64 %d4, %d2, %d3; add.u64 %d5, %d1, %d3;
    ld.volatile.global.u32 %r7, [%d4]; add.u32 %r8, %r7, 1; st.global.u32 [%d5], %r8; ret;
}
"""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes"""
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig"""
    _fields_ = [("grid", uint * 3), ("block", uint * 3), ("shared", uint), ("stream", handle),
                ("attributes", pointer(LaunchAttribute)), ("n_attributes", uint)]


class Location(ctypes.Structure):
    """CUmemLocation"""
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp"""
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("meta", handle),
                ("flags", ctypes.c_ubyte * 8)]


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc"""
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def numbers(n, seed):
    return array.array("I", [(seed * 1000003 + i * 2654435761) & 0xffffffff for i in range(n)]).tobytes()


def filled(device, rows, seed):
    return device.from_bytes(numbers(rows * COLS, seed), rows, COLS)


class Graph:
    """What runs between begin and end, as an exec. As in an engine, clones are memory from outside."""

    def __init__(self, device, body, n_clones, rows, mode=0):
        self.device, self.executable = device, handle()
        graph = handle()
        device.spare = [device.empty(rows, COLS) for _ in range(n_clones)]
        device.driver.cuStreamBeginCapture_v2(device.s, mode)
        device.capturing = True
        body()
        device.capturing = False
        device.driver.cuStreamEndCapture(device.s, ctypes.byref(graph))
        device.driver.cuGraphInstantiateWithFlags(ctypes.byref(self.executable), graph, 0)
        device.driver.cuGraphDestroy(graph)

    def replay(self):
        self.device.driver.cuGraphLaunch(self.executable, self.device.s)


def many_copies():
    """A graph of 700 launches that are sites, which overwrite one buffer, replayed three times."""
    device = PlainDevice()
    m, sources = Marks(device, 4), [filled(device, 2, i) for i in range(7)]
    m.mark(sources[0].ptr, 2)
    graph = Graph(device, lambda: [m.mark(sources[i % 7].ptr, 2, in_graph=True) for i in range(700)], 700, 2)
    for n in range(3):
        device.copy(sources[0], filled(device, 2, 100 + n))
        graph.replay()
        m.replayed(m.aside())
    return m.bytes()


def attributed(device, function, stream, params):
    """A launch that may start before the one in front of it has ended."""
    attribute = LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
    config = LaunchConfig((uint * 3)(1, 1, 1), (uint * 3)(128, 1, 1), 0, stream, ctypes.pointer(attribute), 1)
    device.driver.cuLaunchKernelEx(ctypes.byref(config), function, params, None)


def pdl():
    """A chain of kernels with programmatic serialization and griddepcontrol, eagerly and in a graph."""
    device, major = PlainDevice(), ctypes.c_int()
    device.driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, 0)
    if major.value < 9:
        raise Skip("programmatic dependent launch needs compute capability 9.0")
    module, function = handle(), handle()
    device.driver.cuModuleLoadData(ctypes.byref(module), PDL_PTX.encode())
    device.driver.cuModuleGetFunction(ctypes.byref(function), module, b"smoke_embed")
    buffers = [filled(device, 4, 1)] + [device.empty(4, COLS) for _ in range(50)]

    def chain():
        for a, b in zip(buffers, buffers[1:]):
            words = [address(b.ptr), address(a.ptr), uint(4), uint(COLS)]
            attributed(device, function, device.s, (handle * 4)(*[ctypes.addressof(word) for word in words]))
            marks.tap(device.s, b.ptr, 4)

    chain()
    data = b"".join(device.to_bytes(b) for b in buffers[1:])
    graph = Graph(device, chain, 0, 4)
    for n in range(10):
        device.copy(buffers[0], filled(device, 4, 2 + n))
        graph.replay()
        data += b"".join(device.to_bytes(b) for b in buffers[1:])
    return data


def capture_while_draining():
    """One thread captures in the strictest mode while records of another one's launches are on their way."""
    first = PlainDevice()
    one, sources = Marks(first, 64), [filled(first, 64, i) for i in range(4)]
    go, found, problems = threading.Event(), [], []

    def other():
        try:
            device = PlainDevice()
            two, source = Marks(device, 64), filled(device, 64, 99)
            two.mark(source.ptr, 64)
            device.driver.cuStreamSynchronize(device.s)
            aside = [device.empty(64, COLS) for _ in range(20)]
            go.wait(30)
            graphs = [Graph(device, lambda: [two.mark(source.ptr, 64, in_graph=True) for _ in range(5)], 5, 64) for _ in range(4)]
            for graph in graphs:
                graph.replay()
            two.replayed(aside)
            found.append(two.bytes())
        except Exception as problem:  # of whatever kind: it is the answer
            problems.append(problem)

    # buffers beforehand: an allocation of this thread would end the other one's capture, as CUDA has it
    first.spare = [first.empty(64, COLS) for _ in range(200)]
    thread = threading.Thread(target=other)
    thread.start()
    first.capturing = True  # its clones are the spare buffers
    for i in range(200):
        one.mark(sources[i % 4].ptr, 64)
        if i == 20:
            go.set()
    thread.join(60)
    if problems:
        raise problems[0]
    return one.bytes() + b"".join(found)


def libraries():
    """Kernels of a CUlibrary by both ways of the CUDA runtimes: cuLibraryGetKernel (13), cuLibraryGetModule (12.4 to 12.8)."""
    device = PlainDevice()
    d, library, kernel, module, function = device.driver, handle(), handle(), handle(), handle()
    d.cuLibraryLoadData(ctypes.byref(library), PTX.encode(), None, None, 0, None, None, 0)
    d.cuLibraryGetKernel(ctypes.byref(kernel), library, b"smoke_embed")
    d.cuLibraryGetModule(ctypes.byref(module), library)
    d.cuModuleGetFunction(ctypes.byref(function), module, b"smoke_embed")
    data, source = b"", filled(device, 8, 5)
    for launched in (kernel, function):
        device.kernels = Kernels(d)
        device.kernels.functions["smoke_embed"] = launched
        m = Marks(device, 8)
        for _ in range(3):
            m.mark(source.ptr, 8)
        graph = Graph(device, lambda marks=m: [marks.mark(source.ptr, 8, in_graph=True) for _ in range(4)], 4, 8)
        for _ in range(2):
            graph.replay()
            m.replayed(m.aside())
        data += m.bytes()
    return data


def mapped(device):
    """Two pieces of memory, one after the other in one reservation. Return: address, bytes of a piece"""
    d, n, p = device.driver, size(), address()
    prop = AllocationProp(type=1, location=Location(1, 0))
    try:
        d.cuMemGetAllocationGranularity(ctypes.byref(n), ctypes.byref(prop), 0)
    except RuntimeError as problem:
        raise Skip(f"no memory can be mapped: {problem}") from None
    d.cuMemAddressReserve(ctypes.byref(p), 2 * n.value, 0, 0, 0)
    for i in range(2):
        piece = ctypes.c_ulonglong()
        d.cuMemCreate(ctypes.byref(piece), n, ctypes.byref(prop), 0)
        d.cuMemMap(p.value + i * n.value, n, 0, piece, 0)
    access = AccessDesc(Location(1, 0), 3)
    d.cuMemSetAccess(p, 2 * n.value, ctypes.byref(access), 1)
    return p.value, n.value


def mapped_pieces():
    """What is marked lies across two pieces of mapped memory, as in PyTorch's expandable segments."""
    device = PlainDevice()
    p, n = mapped(device)
    m = Marks(device, 64)
    m.to = Buffer(p + n - 32 * ROW_BYTES, 64, COLS)  # half of it in each
    for i in range(8):
        m.mark(filled(device, 64, i).ptr, 64)
    return m.bytes()


def pools():
    """Memory that comes from a pool and returns to it in stream order, the next time at the same address."""
    device, m = PlainDevice(), None
    for i in range(40):
        p = address()
        device.driver.cuMemAllocAsync(ctypes.byref(p), 16 * ROW_BYTES, device.s)
        m = m or Marks(device, 16)
        m.to = Buffer(p.value, 16, COLS)
        m.mark(filled(device, 16, i).ptr, 16)
        device.driver.cuMemFreeAsync(p, device.s)
    return m.bytes()


def threads():
    """Four threads launch eagerly and replay graphs at once, each on a stream of its own."""
    found, problems, ready = [b""] * 4, [], threading.Barrier(4)

    def work(i):
        try:
            device = PlainDevice()
            m = Marks(device, 8)
            source = filled(device, 8, i)
            ready.wait(30)
            graph = Graph(device, lambda: [m.mark(source.ptr, 8, in_graph=True) for _ in range(4)], 4, 8, mode=1)
            ready.wait(30)
            for _ in range(10):
                m.mark(source.ptr, 8)
                graph.replay()
                m.replayed(m.aside())
            found[i] = m.bytes()
        except Exception as problem:  # of whatever kind: it is the answer
            problems.append(problem)
            ready.abort()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if problems:
        raise problems[0]
    return b"".join(found)


CASES = {f.__name__: f for f in (many_copies, pdl, capture_while_draining, libraries, mapped_pieces, pools, threads)}

if __name__ == "__main__":
    marks.main(CASES, "the driver")
