#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that taps: tap_client.py SCENARIO. Says what dmi_tap() answered only where the scenario is about answers.

Every kernel writes out[i] = seed * 65536 + i for i < n, so a record tells what its memory held when it was taken.
"""
import argparse
import ctypes
import struct
import sys

from cuda.bindings import driver as cu

import dmi
from graph_client import BYTES, Client, by_hand, ok

U32, F32, F16, BF16 = 11, 1, 2, 3
WRITABLE, HOST, REQUESTS = 1, 2, 4  # enum dmi_tap_flags
ROOM = 4 * BYTES


class Tap(ctypes.Structure):
    """struct dmi_tap of include/dmi/dmi.h."""
    _fields_ = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32), ("name", ctypes.c_char_p), ("data", ctypes.c_void_p),
                ("stream", ctypes.c_void_p), ("layer", ctypes.c_int32), ("n_layers", ctypes.c_int32), ("dtype", ctypes.c_uint32),
                ("n_dims", ctypes.c_uint32), ("row_dims", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("count", ctypes.c_uint64 * 4), ("stride", ctypes.c_int64 * 4)]


def packed(counts, size=4):
    strides = []
    for count in reversed(counts):
        strides.insert(0, size)
        size *= count
    return strides


class Tapper(Client):
    def __init__(self):
        super().__init__()
        self.tap_fn = getattr(ctypes.CDLL(None), "dmi_tap", None)

    def tap(self, name, buffer, stream=None, layer=-1, counts=(64,), strides=None, rows=1, offset=0, n_layers=0, dtype=U32, **more):
        fields = dict(size=ctypes.sizeof(Tap), version=1, name=name.encode(), data=int(self.buffers[buffer]) + offset,
                      stream=int(stream) if stream is not None else None, layer=layer, n_layers=n_layers, dtype=dtype,
                      n_dims=len(counts), row_dims=rows)
        fields.update(more)
        t = Tap(**fields)
        t.count[:len(counts)] = counts
        t.stride[:len(counts)] = strides or packed(counts)
        return self.tap_fn(ctypes.byref(t)) if self.tap_fn else None

    def replay(self, graph, times, **options):
        exe = ok(cu.cuGraphInstantiate(graph, 0))
        for _ in range(times):
            ok(cu.cuGraphLaunch(exe, self.streams[0]))
        return exe


def layers(c, s, n=4, buffer=0, **more):
    """What a layer writes is overwritten at once."""
    for layer in range(n):
        c.launch("block", s, buffer, 64, layer + 1)
        c.tap("resid_pre", buffer, s, layer, **more)
        c.launch("other", s, buffer, 64, 100 + layer)


def eager(c):
    for _ in range(3):
        layers(c, c.streams[0])


def null_stream(c):
    for layer in range(3):
        ok(cu.cuLaunchKernel(c.f["block"], 1, 1, 1, 64, 1, 1, 0, 0, ((int(c.buffers[0]), 64, layer + 1),
                                                                     (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)), 0))
        c.tap("resid_pre", 0, None, layer)


def graph(c):
    g = c.capture(lambda s: layers(c, s))
    exe = ok(cu.cuGraphInstantiate(g, 0))
    ok(cu.cuGraphDestroy(g))
    for _ in range(5):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def joined(c):
    """What another stream wrote is tapped where both meet, and overwritten by the other stream at once."""
    def body(s):
        fork, join = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
        other = c.streams[1]
        c.launch("first", s, 1, 8, 99)
        ok(cu.cuEventRecord(fork, s))
        ok(cu.cuStreamWaitEvent(other, fork, 0))
        c.launch("block", s, 0, 64, 1)
        c.launch("block", other, 2, 64, 2)
        ok(cu.cuEventRecord(join, other))
        ok(cu.cuStreamWaitEvent(s, join, 0))
        c.tap("q", 0, s, 0)
        c.tap("k", 2, s, 0)
        c.launch("other", other, 2, 64, 60)  # in the other stream, which waits for nobody
        c.launch("other", s, 0, 64, 61)
        ok(cu.cuEventRecord(join, other))
        ok(cu.cuStreamWaitEvent(s, join, 0))
        c.tap("z", 2, s, 0)
    c.replay(c.capture(body), 10)


def after_both(c):
    """The stream waits for a node and for one that comes after it."""
    def body(s):
        early = ok(cu.cuEventCreate(2))
        c.launch("first", s, 1, 8, 99)
        ok(cu.cuEventRecord(early, s))
        c.launch("block", s, 0, 64, 1)
        ok(cu.cuStreamWaitEvent(s, early, 0))
        c.tap("q", 0, s, 0)
        c.launch("other", s, 0, 64, 60)
    c.replay(c.capture(body), 3)


def ends(c):
    """A tap before the first node of its graph, and one after the last."""
    s = c.streams[0]

    def body(s):
        c.tap("embed", 0, s)
        c.launch("block", s, 0, 64, 7)
        c.tap("final_ln", 0, s)
    exe = ok(cu.cuGraphInstantiate(c.capture(body), 0))
    for seed in range(1, 6):
        c.launch("other", s, 0, 64, 30 + seed)
        ok(cu.cuGraphLaunch(exe, s))


def alone(c):
    """A graph of taps alone, and one that is tapped in a child graph, a clone and a clone of a child."""
    s = c.streams[0]
    c.launch("block", s, 0, 64, 5)
    c.replay(c.capture(lambda s: c.tap("embed", 0, s)), 2)
    inner = c.capture(lambda s: layers(c, s, 2))
    outer = ok(cu.cuGraphCreate(0))
    start = ok(cu.cuGraphAddKernelNode(outer, None, 0, c.params("first", 1, 8, 99)))
    node = ok(cu.cuGraphAddChildGraphNode(outer, [start], 1, inner))
    ok(cu.cuGraphAddKernelNode(outer, [node], 1, c.params("block", 3, 16, 5)))
    c.replay(outer, 2)
    c.replay(ok(cu.cuGraphClone(outer)), 2)
    c.replay(ok(cu.cuGraphClone(inner)), 1)


def alone_in_child(c):
    """A child graph of a tap alone, and what the exec says when that is replaced by an empty one, and by one that has a node."""
    s = c.streams[0]
    c.launch("block", s, 0, 64, 5)
    tapped, empty, other = c.capture(lambda s: c.tap("embed", 0, s)), ok(cu.cuGraphCreate(0)), ok(cu.cuGraphCreate(0))
    ok(cu.cuGraphAddKernelNode(other, None, 0, c.params("first", 1, 8, 99)))
    outer = ok(cu.cuGraphCreate(0))
    start = ok(cu.cuGraphAddKernelNode(outer, None, 0, c.params("first", 1, 8, 99)))
    node = ok(cu.cuGraphAddChildGraphNode(outer, [start], 1, tapped))
    exe = c.replay(outer, 2)
    for graph in (empty, tapped, other):
        c.say(cu.cuGraphExecChildGraphNodeSetParams(exe, node, graph)[0])
    c.say(cu.cuGraphExecUpdate(exe, outer)[0])
    ok(cu.cuGraphLaunch(exe, s))


def update(c):
    def body(seed, taps):
        def one(s):
            c.launch("first", s, 1, 8, 99)
            for layer in range(3):
                c.launch("block", s, 0, 64, seed + layer)
                if layer in taps:
                    c.tap("resid_pre", 0, s, layer)
                c.launch("other", s, 0, 64, 100)
        return c.capture(one)
    exe = c.replay(body(1, (0, 1)), 2)
    for seed, taps in ((11, (0, 1)), (21, (1,)), (31, (0, 1, 2)), (41, ())):
        c.say(cu.cuGraphExecUpdate(exe, body(seed, taps))[0])
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
    graph, _ = by_hand(c, [("block", 0, 64, 3)])
    c.say(cu.cuGraphExecUpdate(exe, graph)[0])
    ok(cu.cuGraphLaunch(exe, c.streams[0]))


def update_without_the_edge(c):
    """A tap lies on the edge between two nodes. A graph of the same nodes without the tap updates the exec with that edge, and not without; in a child graph too."""
    s = c.streams[0]

    def by_edges(*edges):
        graph = ok(cu.cuGraphCreate(0))
        nodes = [ok(cu.cuGraphAddKernelNode(graph, None, 0, c.params(name, 0, 64, seed))) for name, seed in (("block", 3), ("other", 4))]
        for a, b in edges:
            ok(cu.cuGraphAddDependencies(graph, [nodes[a]], [nodes[b]], [cu.CUgraphEdgeData()], 1))
        return graph

    def holding(inner):
        graph = ok(cu.cuGraphCreate(0))
        return graph, ok(cu.cuGraphAddChildGraphNode(graph, None, 0, inner))

    tapped = c.capture(lambda s: [c.launch("block", s, 0, 64, 1), c.tap("q", 0, s, 0), c.launch("other", s, 0, 64, 2)])
    exe = c.replay(tapped, 1)
    for edges in ((), ((1, 0),), ((0, 1),)):
        c.say(cu.cuGraphExecUpdate(exe, by_edges(*edges))[0])
        ok(cu.cuGraphLaunch(exe, s))
    outer, node = holding(tapped)
    exe = c.replay(outer, 1)
    for edges in ((), ((1, 0),), ((0, 1),)):
        graph = by_edges(*edges)
        c.say(cu.cuGraphExecChildGraphNodeSetParams(exe, node, graph)[0] if edges else cu.cuGraphExecUpdate(exe, holding(graph)[0])[0])
        ok(cu.cuGraphLaunch(exe, s))


def nodes_change(c):
    """A node that a tap came after ends; one after it, whose handle may come back, too."""
    def body(s):
        c.launch("first", s, 1, 8, 99)
        c.launch("block", s, 0, 64, 1)
        c.tap("q", 0, s, 0)
        c.launch("other", s, 0, 64, 2)
        c.tap("k", 0, s, 0)
    g = c.capture(body)
    middle = [node for node in ok(cu.cuGraphGetNodes(g, 3))[0] if int(ok(cu.cuGraphKernelNodeGetParams(node)).func) == int(c.f["block"])]
    ok(cu.cuGraphDestroyNode(middle[0]))
    c.replay(g, 2)


def shapes(c):
    """[batch, head, token, d] with gaps: rows are batch and token. And [batch, token, d], which lies as one."""
    s = c.streams[0]
    c.launch("block", s, 0, 1000, 9)
    c.tap("q_rot", 0, s, 0, counts=(2, 3, 4, 5), strides=(1200, 400, 40, 4), rows=0b101)
    c.tap("q", 0, s, 0, counts=(2, 4, 6), rows=0b011)
    c.tap("k", 0, s, 0, counts=(4, 6, 2), rows=0b101)

    def body(s):
        c.launch("block", s, 0, 1000, 9)
        c.tap("q_rot", 0, s, 1, counts=(2, 3, 4, 5), strides=(1200, 400, 40, 4), rows=0b101)
    c.replay(c.capture(body), 1)


def bad(c):
    s = c.streams[0]
    c.launch("block", s, 0, 64, 1)
    host = ctypes.create_string_buffer(4096)
    freed = ok(cu.cuMemAlloc(4096))
    ok(cu.cuMemFree(freed))
    answers = [
        c.tap("q", 0, s, 0), c.tap("q", 0, s, 0, data=None), c.tap("q", 0, s, 0, data=ctypes.addressof(host)),
        c.tap("q", 0, s, 0, data=int(freed)), c.tap("q", 0, s, 0, counts=(1 << 62,)), c.tap("q", 0, s, 0, counts=(1 << 31, 8)),
        c.tap("q", 0, s, 0, counts=(8, 8), strides=(1 << 62, 4)), c.tap("q", 0, s, 0, dtype=99), c.tap("q", 0, s, 0, rows=0),
        c.tap("q", 0, s, 0, rows=2), c.tap("q", 0, s, 0, counts=(2, 2, 2), rows=7), c.tap("q", 0, s, 0, n_dims=5),
        c.tap("q", 0, s, -2), c.tap("q", 0, s, 0, flags=8), c.tap("q", 0, s, 0, counts=(0,)), c.tap("q", 0, s, 0, counts=(2000,)),
        c.tap("no name", 0, s, 0), c.tap("", 0, s, 0), c.tap("x" * 129, 0, s, 0), c.tap("q", 0, s, 0, size=8), c.tap("q", 0, s, 0, version=2),
        c.tap("qq", 0, s, 0), c.tap_fn(None) if c.tap_fn else None]
    if c.tap_fn:
        print(*answers, file=sys.stderr)


def left_alone(c):
    """A graph with a memory node cannot be cloned."""
    def body(s):
        c.launch("block", s, 0, 64, 1)
        memory = ok(cu.cuMemAllocAsync(256, s))
        c.tap("q", 0, s, 0)
        ok(cu.cuMemFreeAsync(memory, s))
        c.tap("k", 0, s, 0)
    c.replay(c.capture(body), 3)


def steps(c):
    """Two requests and padding in a batch of 8; each row is 4 words."""
    s = c.streams[0]
    g = c.capture(lambda s: [c.launch("block", s, 0, 32, 3), c.tap("q", 0, s, 0, counts=(8, 4))])
    exe = ok(cu.cuGraphInstantiate(g, 0))
    for step in range(3):
        spans = [dmi.Span("a", 10 * step, 3, 2), dmi.Span("b", 5 * step, 1, 5)]
        dmi.step_begin(step, spans, 8)
        if step == 1:
            c.launch("block", s, 0, 32, 3)
            c.tap("q", 0, s, 0, counts=(8, 4))
        else:
            ok(cu.cuGraphLaunch(exe, s))


def last_rows(c):
    """Of the batch of steps() a row a request, and none of a part of a prompt: padded to three rows, and of two alone; in a graph, and eagerly."""
    s = c.streams[0]

    def one(s, n):
        c.launch("block", s, 0, 12, 3)
        c.tap("q", 0, s, 0, counts=(n, 4), flags=REQUESTS)
    exe = ok(cu.cuGraphInstantiate(c.capture(lambda s: one(s, 3)), 0))
    for step in range(3):
        spans = [dmi.Span("a", 10 * step, 3, 2), dmi.Span("b", 5 * step, 1, 5), dmi.Span("c", 2 * step, 2, 0, flags=dmi.PART)]
        dmi.step_begin(step, spans, 8)
        if step == 1:
            one(s, 2)
        else:
            ok(cu.cuGraphLaunch(exe, s))


def forwards(c):
    """Four forwards of which nobody says how they begin; the second one has another order."""
    s = c.streams[0]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 1), (0, 1, 2, 3)):
        for layer in order:
            c.launch("block", s, 0, 64, layer + 1)
            c.tap("resid_pre", 0, s, layer)
            c.tap("q", 0, s, layer)


def known_layers(c):
    for _ in range(2):
        layers(c, c.streams[0], 6, n_layers=6)


def both(c):
    """Taps and kernels' sites in one graph, at the same nodes."""
    def body(s):
        for layer in range(3):
            c.launch("first" if not layer else "block", s, 0, 64, layer + 1)
            c.tap("resid_pre", 0, s, layer)
    exe = c.replay(c.capture(body), 3)
    c.launch("first", c.streams[0], 0, 8, 9)
    ok(cu.cuGraphLaunch(exe, c.streams[0]))


def places(c):
    """A tap that may be written, one that nobody says so of, and others that cannot be; then what a later tap finds there. Row 2 is of request a."""
    s = c.streams[0]

    def one(s, layer, **more):
        c.launch("block", s, 0, 32, layer + 1)
        c.tap("x", 0, s, layer, **{"dtype": F32, "flags": WRITABLE, "counts": (8, 4), **more})
        c.tap("y", 0, s, layer, counts=(8, 4))
        c.launch("other", s, 0, 64, 100)
    graph = ok(cu.cuGraphInstantiate(c.capture(lambda s: one(s, 7)), 0))
    for step in range(2):
        dmi.step_begin(step, [dmi.Span("b", 2 * step, 2, 0), dmi.Span("a", step, 1, 2)], 8, caches=False)
        one(s, 0)
        one(s, 1, flags=0)
        one(s, 2, dtype=U32)
        one(s, 3, strides=(0, 4))
        one(s, 4, dtype=F16, strides=(16, 2))
        one(s, 5, dtype=BF16, strides=(16, 4))
        one(s, 6, counts=(2, 4, 4), rows=0b011)
        ok(cu.cuGraphLaunch(graph, s))


def places_in_graphs(c):
    """What is tapped is read by two streams at once, in graphs; then the exec is updated by a graph of another buffer. Row i is of request a in step i."""
    s, other = c.streams[:2]

    def body(buffer, seed):
        def one(s):
            join = ok(cu.cuEventCreate(2))
            c.launch("block", s, buffer, 32, seed)
            c.tap("x", buffer, s, 0, dtype=F32, flags=WRITABLE, counts=(8, 4))
            ok(cu.cuEventRecord(join, s))
            ok(cu.cuStreamWaitEvent(other, join, 0))
            for layer, stream, to in ((1, other, 2), (0, s, 3)):
                ok(cu.cuMemcpyDtoDAsync(c.buffers[to], c.buffers[buffer], 128, stream))
                c.tap("y", to, stream, layer, counts=(8, 4))
            ok(cu.cuEventRecord(join, other))
            ok(cu.cuStreamWaitEvent(s, join, 0))
            c.launch("other", s, buffer, 32, 100)
        return c.capture(one)
    exe = ok(cu.cuGraphInstantiate(body(0, 1), 0))
    for step in range(8):
        dmi.step_begin(step, [dmi.Span("b", 7 * step, 7 - step, step + 1), dmi.Span("a", step, 1, step)], 8, caches=False)
        if step == 4:
            c.say(cu.cuGraphExecUpdate(exe, body(1, 2))[0])
        ok(cu.cuGraphLaunch(exe, s))


def places_in_turn(c):
    """Places and a tap at one tensor, between which nothing is launched there: the stream waits for another one. Updates lack some of them."""
    s, other = c.streams[:2]

    def body(layers):
        def one(s):
            fork, join = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
            c.launch("first", s, 1, 8, 99)
            ok(cu.cuEventRecord(fork, s))
            ok(cu.cuStreamWaitEvent(other, fork, 0))
            c.launch("block", other, 2, 32, 9)
            ok(cu.cuEventRecord(join, other))
            c.launch("block", s, 0, 32, 1)
            for layer in range(3):
                if layer == 2:
                    ok(cu.cuStreamWaitEvent(s, join, 0))
                if layer in layers:
                    c.tap("x", 0, s, layer, dtype=F32, flags=WRITABLE, counts=(8, 4))
            c.tap("y", 0, s, 0, counts=(8, 4))
            c.launch("other", s, 0, 32, 100)
        return c.capture(one)
    exe = c.replay(body((0, 1, 2)), 1)
    for layers in ((0, 1), (0, 1, 2), (2,), (), (0, 2)):
        c.say(cu.cuGraphExecUpdate(exe, body(layers))[0])
        ok(cu.cuGraphLaunch(exe, s))


def places_without_steps(c):
    """Two forwards of which no step is said, the second after a step has ended."""
    s = c.streams[0]
    for seed in (1, 2):
        for layer in range(2):
            c.launch("block", s, 0, 32, seed)
            c.tap("x", 0, s, layer, counts=(8, 4), dtype=F32, flags=WRITABLE)
            c.tap("y", 0, s, layer, counts=(8, 4))
        dmi.step_begin(seed, [dmi.Span("a", 0, 8, 0)], 8, caches=False)
        dmi.step_end()


def words(address, seed):
    """Writes what a kernel of @seed would."""
    (ctypes.c_uint32 * 64).from_address(address)[:] = [seed << 16 | i for i in range(64)]


OWN = ctypes.create_string_buffer(256)


def host(c):
    """Device memory, host memory, managed and pinned: in one run. The layer is the number of the tap."""
    s, own = c.streams[0], ctypes.addressof(OWN)
    c.launch("block", s, 0, 64, 1)
    c.tap("q", 0, s, 0)
    words(own, 2)
    c.tap("q", 0, None, 1, data=own)
    words(own, 99)
    managed, pinned = int(ok(cu.cuMemAllocManaged(256, 1))), int(ok(cu.cuMemHostAlloc(256, 0)))
    words(managed, 3)
    c.tap("q", 0, s, 2, data=managed)
    words(pinned, 4)
    c.tap("k", 0, s, 0, data=pinned)
    ok(cu.cuStreamSynchronize(s))
    c.tap("k", 0, s, 1, data=pinned, flags=HOST)
    words(pinned, 99)
    words(own, 7)
    for layer, data in enumerate((own, 0x7000, int(c.buffers[0]))):
        c.tap("v", 0, s, layer, data=data, flags=HOST if layer == 2 else 0)
    words(own, 99)


class Interface:
    """An array that has CUDA's interface."""

    def __init__(self, data, typestr="<u4", shape=(8, 8), strides=None, stream=None):
        self.__cuda_array_interface__ = {"version": 3, "data": (int(data), False), "typestr": typestr, "shape": shape, "strides": strides, "stream": stream}


class Packed:
    """An array that has DLPack, of version 0 or 1, as dlpack.h lays it out; asked: streams that it was asked for."""

    def __init__(self, data, code, bits, shape, version):
        self.version, self.asked, self.shape = version, [], (ctypes.c_int64 * len(shape))(*shape)
        tensor = struct.pack("@PiiiBBHPPQ", int(data) - 64, 2, 0, len(shape), code, bits, 1, ctypes.addressof(self.shape), 0, 64)
        self.struct = ctypes.create_string_buffer(struct.pack("@IIPPQ", 1, 0, 0, 0, 0) + tensor if version else tensor + struct.pack("@PP", 0, 0))
        self.name = b"dltensor_versioned" if version else b"dltensor"

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None, **versions):
        if versions and not self.version:
            raise TypeError("max_version")
        self.asked.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.struct), self.name, None)


class Named:
    """A stream of cuda.core's."""

    def __init__(self, stream):
        self.stream = int(stream)

    def __cuda_stream__(self):
        return 0, self.stream


def arrays(c):
    """dmi.tap() of memory of the device; what was tapped is overwritten at once, in the order of the stream, or once the call has returned."""
    s, data = c.streams[0], c.buffers[0]

    def given(array, layer, *after, wait=False, **more):
        c.launch("block", s, 0, 64, layer + 1)
        if wait:
            ok(cu.cuStreamSynchronize(s))
        said = dmi.tap(array, "q", layer, **more)
        c.launch("other", s, 0, 64, 99)
        return said in (dmi.OK, dmi.OFF)
    whole, other = [Packed(data, 1, 32, (8, 8), version) for version in (0, 1)]
    half = Packed(data, 4, 16, (8, 16), 1)
    print([given(Interface(data, stream=int(s)), 0), given(Interface(data, strides=(4, 32), stream=1), 1, rows=(1,), stream=Named(s)), given(Interface(data), 2, wait=True),
           given(whole, 3, wait=True), given(other, 4, stream=int(s)), given(half, 5, wait=True)])
    wrong = [Interface(data, typestr="<c8"), Interface(data, strides=(33, 4)), Packed(data, 5, 64, (8, 4), 1), Packed(data, 4, 16, (1,) * 5, 0)]
    asked = [whole.asked, other.asked, half.asked]
    print(c.tap_fn is None or ([dmi.tap(array, "q") for array in wrong] == [-22] * 4 and asked == [[1], [int(s)], [1]]))


def before_cuda():
    """A tap of the program's own memory, while there is no driver yet."""
    words(ctypes.addressof(OWN), 9)
    Tapper.tap(argparse.Namespace(tap_fn=getattr(ctypes.CDLL(None), "dmi_tap", None), buffers=[0]), "early", 0, data=ctypes.addressof(OWN))


def main():
    if sys.argv[2:]:
        before_cuda()
    c = Tapper()
    globals()[sys.argv[1]](c)
    c.digest()


if __name__ == "__main__":
    main()
