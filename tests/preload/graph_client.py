#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs through cuda.bindings: graph_client.py SCENARIO.  Says what it read back; only `switched` knows of DMI.

Every kernel writes out[i] = seed * 65536 + i for i < n, so a copy tells which launch it was taken from.
"""
import ctypes
import hashlib
import random
import sys
import threading

from cuda.bindings import driver as cu

from fill_kernels import PTX

TYPES = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
BYTES = 4096


def ok(answer):
    if answer[0] != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"graph_client: {answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


def new_context():
    """By the exported name: cuda.bindings 13 knows cuCtxCreate with the arguments of CUDA 12.5 only."""
    context = ctypes.c_void_p()
    ok((cu.CUresult(ctypes.CDLL("libcuda.so.1").cuCtxCreate_v2(ctypes.byref(context), 0, int(ok(cu.cuDeviceGet(0))))), context))
    return cu.CUcontext(context.value)


class Client:
    def __init__(self):
        ok(cu.cuInit(0))
        self.context = new_context()
        self.module = ok(cu.cuModuleLoadData(PTX.encode()))
        self.f = {n: ok(cu.cuModuleGetFunction(self.module, n.encode())) for n in ("first", "block", "other")}
        self.buffers = [ok(cu.cuMemAlloc(BYTES)) for _ in range(6)]
        self.streams = [ok(cu.cuStreamCreate(1)) for _ in range(4)]

    def launch(self, name, stream, buffer, n, seed):
        args = ((int(self.buffers[buffer]), n, seed), TYPES)
        ok(cu.cuLaunchKernel(self.f[name], max(1, (n + 63) // 64), 1, 1, 64, 1, 1, 0, stream, args, 0))

    def params(self, name, buffer, n, seed):
        p = cu.CUDA_KERNEL_NODE_PARAMS()
        p.func = self.f[name]
        p.gridDimX, p.gridDimY, p.gridDimZ = max(1, (n + 63) // 64), 1, 1
        p.blockDimX, p.blockDimY, p.blockDimZ = 64, 1, 1
        p.kernelParams = ((int(self.buffers[buffer]), n, seed), TYPES)
        return p

    def capture(self, body):
        s = self.streams[0]
        ok(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        body(s)
        return ok(cu.cuStreamEndCapture(s))

    def sync(self):
        ok(cu.cuCtxSynchronize())

    def say(self, *words):
        print(*words, flush=True)

    def digest(self):
        self.sync()
        for i, b in enumerate(self.buffers):
            host = bytearray(BYTES)
            ok(cu.cuMemcpyDtoH(host, b, 256))
            self.say("buffer", i, hashlib.sha256(host).hexdigest()[:16])

    def zero(self):
        for b in self.buffers:
            ok(cu.cuMemsetD8(b, 0, BYTES))


def forward(c, s, layers, buffer=0, n=64):
    """first, then a site and what overwrites it at once, in one buffer."""
    c.launch("first", s, 1, 8, 99)
    for layer in range(layers):
        c.launch("block", s, buffer, n, layer + 1)
        c.launch("other", s, buffer, n, 100 + layer)


def reuse(c):
    graph = c.capture(lambda s: forward(c, s, 4))
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    for _ in range(5):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def fork_join(c):
    def body(s):
        fork, join = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
        c.launch("first", s, 1, 8, 99)
        ok(cu.cuEventRecord(fork, s))
        ok(cu.cuStreamWaitEvent(c.streams[1], fork, 0))
        c.launch("block", s, 0, 64, 1)
        c.launch("block", c.streams[1], 2, 64, 2)
        c.launch("other", c.streams[1], 2, 64, 50)
        ok(cu.cuEventRecord(join, c.streams[1]))
        ok(cu.cuStreamWaitEvent(s, join, 0))
        c.launch("block", s, 0, 64, 3)
    exe = ok(cu.cuGraphInstantiate(c.capture(body), 0))
    for _ in range(10):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def by_hand(c, names):
    """A chain of kernels. Return: graph, nodes."""
    graph = ok(cu.cuGraphCreate(0))
    nodes, behind = [], []
    for i, (name, buffer, n, seed) in enumerate(names):
        node = ok(cu.cuGraphAddKernelNode(graph, behind or None, len(behind), c.params(name, buffer, n, seed)))
        nodes.append(node)
        behind = [node]
    return graph, nodes


CHAIN = [("first", 1, 8, 99), ("block", 0, 64, 1), ("other", 0, 64, 60), ("block", 0, 64, 2), ("other", 0, 64, 61)]


def two_execs(c):
    graph, nodes = by_hand(c, CHAIN)
    a, b = ok(cu.cuGraphInstantiate(graph, 0)), ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphExecKernelNodeSetParams(b, nodes[1], c.params("block", 2, 32, 7)))
    for _ in range(3):
        ok(cu.cuGraphLaunch(a, c.streams[0]))
        ok(cu.cuGraphLaunch(b, c.streams[0]))


def rows(c, replays=1000):
    graph, nodes = by_hand(c, CHAIN)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for i in range(replays):
        n = 1 + i * 7 % 64
        ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[1], c.params("block", 0, n, i)))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def piecewise(c):
    s = c.streams[0]
    early = ok(cu.cuGraphInstantiate(c.capture(lambda s: [c.launch("block", s, 0, 64, k) for k in (1, 2)]), 0))
    late = ok(cu.cuGraphInstantiate(c.capture(lambda s: c.launch("block", s, 0, 64, 4)), 0))
    for _ in range(4):
        c.launch("first", s, 1, 8, 99)
        ok(cu.cuGraphLaunch(early, s))
        c.launch("block", s, 0, 64, 3)
        ok(cu.cuGraphLaunch(late, s))


def layers(c):
    """One graph for each layer of a forward, of which two are alike."""
    s = c.streams[0]
    odd, even = (ok(cu.cuGraphInstantiate(c.capture(lambda s: c.launch("block", s, 0, 64, k)), 0)) for k in (1, 2))  # pylint: disable=cell-var-from-loop
    for n in (2, 2, 3, 1):
        c.launch("first", s, 1, 8, 99)
        for _ in range(n):
            ok(cu.cuGraphLaunch(odd, s))
        ok(cu.cuGraphLaunch(even, s))


def in_flight(c):
    execs = []
    for k in range(4):
        graph, _ = by_hand(c, [("block", 2 + k, 64, 10 + k), ("other", 2 + k, 64, 60)])
        execs.append(ok(cu.cuGraphInstantiate(graph, 0)))
    for _ in range(20):
        for k, exe in enumerate(execs):
            ok(cu.cuGraphLaunch(exe, c.streams[k]))


def update(c):
    exe = ok(cu.cuGraphInstantiate(by_hand(c, CHAIN)[0], 0))
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    other = [(n, b, r, s + 20 if n == "block" else s) for n, b, r, s in CHAIN]
    c.say(cu.cuGraphExecUpdate(exe, by_hand(c, other)[0])[0])
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.say(cu.cuGraphExecUpdate(exe, by_hand(c, CHAIN[:3])[0])[0])  # another topology: refused
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    swapped = [CHAIN[0], ("other", 0, 64, 1), CHAIN[2], CHAIN[3], CHAIN[4]]
    c.say(cu.cuGraphExecUpdate(exe, by_hand(c, swapped)[0])[0])    # a site became another kernel
    ok(cu.cuGraphLaunch(exe, c.streams[0]))


def enable(c):
    graph, nodes = by_hand(c, CHAIN)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for on in (1, 0, 1):
        ok(cu.cuGraphNodeSetEnabled(exe, nodes[1], on))
        c.say(ok(cu.cuGraphNodeGetEnabled(exe, nodes[1])))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def child(c):
    inner, _ = by_hand(c, CHAIN[1:])
    graph = ok(cu.cuGraphCreate(0))
    start = ok(cu.cuGraphAddKernelNode(graph, None, 0, c.params("first", 1, 8, 99)))
    node = ok(cu.cuGraphAddChildGraphNode(graph, [start], 1, inner))
    ok(cu.cuGraphAddKernelNode(graph, [node], 1, c.params("block", 3, 16, 5)))
    exe = ok(cu.cuGraphInstantiate(ok(cu.cuGraphClone(graph)), 0))
    for _ in range(3):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def queries(c):
    graph, nodes = by_hand(c, CHAIN)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.say("nodes", ok(cu.cuGraphGetNodes(graph))[1], "roots", ok(cu.cuGraphGetRootNodes(graph))[1])
    c.say("edges", ok(cu.cuGraphGetEdges(graph))[3])
    for node in nodes:
        c.say("in", ok(cu.cuGraphNodeGetDependencies(node))[2], "out", ok(cu.cuGraphNodeGetDependentNodes(node))[2])
    p = ok(cu.cuGraphKernelNodeGetParams(nodes[1]))
    c.say("grid", p.gridDimX, "block", p.blockDimX, "function", int(p.func) == int(c.f["block"]))


def ended(c):
    """A node is switched off, its graph ends, and another of the same shape updates the exec, twice; one of another shape cannot."""
    graph, nodes = by_hand(c, CHAIN)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphNodeSetEnabled(exe, nodes[1], 0))
    ok(cu.cuGraphDestroy(graph))
    for seed in (10, 20):
        other, _ = by_hand(c, [(name, buffer, n, seed + number) for name, buffer, n, number in CHAIN])
        ok(cu.cuGraphExecUpdate(exe, other))
        ok(cu.cuGraphDestroy(other))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.say("refused", cu.cuGraphExecUpdate(exe, by_hand(c, [*CHAIN, CHAIN[2]])[0])[0])


def shapes(c):
    """Graphs around a site `block` whose buffer is overwritten at once: a chain, a fork, a join, a programmatic edge."""
    def graph(edges, *names):
        graph = ok(cu.cuGraphCreate(0))
        nodes = [ok(cu.cuGraphAddKernelNode(graph, None, 0, c.params(*name))) for name in names]
        for a, b, port in edges:
            data = cu.CUgraphEdgeData()
            data.from_port, data.type = port, 1 if port else 0
            ok(cu.cuGraphAddDependencies(graph, [nodes[a]], [nodes[b]], [data], 1))
        return graph
    block, other, first, elsewhere = ("block", 0, 64, 1), ("other", 0, 64, 60), ("first", 1, 8, 99), ("other", 2, 64, 61)
    for graph_ in (by_hand(c, CHAIN)[0],
                   graph([(0, 1, 0), (1, 2, 0), (1, 3, 0)], first, block, other, elsewhere),
                   graph([(0, 2, 0), (1, 2, 0)], block, first, other),
                   graph([(0, 1, cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)], block, other)):
        exe = ok(cu.cuGraphInstantiate(graph_, 0))
        for _ in range(5):
            ok(cu.cuGraphLaunch(exe, c.streams[0]))


PDL = """
.version 7.8
.target sm_90
.address_size 64
.visible .entry NAME(.param .u64 out, .param .u32 n, .param .u32 seed)
{
    .reg .pred %p<2>; .reg .b32 %r<7>; .reg .b64 %d<4>;
    griddepcontrol.launch_dependents;
    ld.param.u64 %d1, [out]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [seed];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r3, 64, %r4;
    griddepcontrol.wait;
    setp.ge.u32 %p1, %r5, %r1; @%p1 ret;
    shl.b32 %r6, %r2, 16; add.u32 %r6, %r6, %r5;
    mul.wide.u32 %d2, %r5, 4; add.u64 %d3, %d1, %d2; st.global.u32 [%d3], %r6; ret;
}
"""


def programmatic(c):
    """As `forward`, by kernels that may start before those in front of them have ended; eagerly, in a chain, and where streams join."""
    for name in ("block", "other"):
        c.f[name] = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PDL.replace("NAME", name).encode())), name.encode()))
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1

    def launch(name, stream, buffer, seed):
        config = cu.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream, config.attrs, config.numAttrs = 64, stream, [attribute], 1
        ok(cu.cuLaunchKernelEx(config, c.f[name], ((int(c.buffers[buffer]), 64, seed), TYPES), 0))

    def chain(s):
        for layer in range(4):
            launch("block", s, 0, layer + 1)
            launch("other", s, 0, 100 + layer)

    def join(s):
        fork, back = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
        ok(cu.cuEventRecord(fork, s))
        ok(cu.cuStreamWaitEvent(c.streams[1], fork, 0))
        launch("block", s, 0, 11)
        launch("other", c.streams[1], 2, 12)
        ok(cu.cuEventRecord(back, c.streams[1]))
        ok(cu.cuStreamWaitEvent(s, back, 0))
        launch("other", s, 0, 13)

    chain(c.streams[0])
    for body in (chain, join):
        exe = ok(cu.cuGraphInstantiate(c.capture(body), 0))
        for _ in range(5):
            ok(cu.cuGraphLaunch(exe, c.streams[0]))


def early_event(c):
    """Launches that record an event before they end, eagerly and in a graph; another stream overwrites the tensor from then on."""
    event, other = ok(cu.cuEventCreate(2)), c.streams[1]
    attribute = cu.CUlaunchAttribute()

    def launch(s, seed):
        config = cu.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream, config.attrs, config.numAttrs = 64, s, [attribute], 1
        ok(cu.cuLaunchKernelEx(config, c.f["block"], ((int(c.buffers[0]), 64, seed), TYPES), 0))
        ok(cu.cuStreamWaitEvent(other, event, 0))
        c.launch("first", other, 1, 8, 9)
        ok(cu.cuEventRecord(event, other))
        ok(cu.cuStreamWaitEvent(s, event, 0))

    for kind in ("PROGRAMMATIC", "LAUNCH_COMPLETION"):
        attribute.id = cu.CUlaunchAttributeID[f"CU_LAUNCH_ATTRIBUTE_{kind}_EVENT"]
        (attribute.value.programmaticEvent if kind == "PROGRAMMATIC" else attribute.value.launchCompletionEvent).event = event
        launch(c.streams[0], 1)
        c.sync()
        exe = ok(cu.cuGraphInstantiate(c.capture(lambda s: launch(s, 2)), 0))
        for _ in range(3):
            ok(cu.cuGraphLaunch(exe, c.streams[0]))
        c.sync()


def priorities(c):
    """What a stream of a high priority captured: two sites, and one."""
    c.streams[0] = ok(cu.cuStreamCreateWithPriority(1, -3))
    for n in (2, 1):
        exe = ok(cu.cuGraphInstantiate(c.capture(lambda s: [c.launch("block", s, 0, 64, 1) for _ in range(n)]), 0))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def embedded(c):
    exe = ok(cu.cuGraphInstantiate(by_hand(c, CHAIN)[0], 0))
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.sync()
    outer = ok(cu.cuGraphInstantiate(c.capture(lambda s: ok(cu.cuGraphLaunch(exe, s))), 0))
    for _ in range(3):
        ok(cu.cuGraphLaunch(outer, c.streams[0]))
    c.sync()
    ok(cu.cuGraphLaunch(exe, c.streams[0]))


def switches(n=200):
    """[(pattern, on) or None] for each replay of `switched`; at random, the same in every process."""
    dice = random.Random(7)
    return [(dice.choice(["block", "ot*", "*"]), dice.random() < 0.5) if dice.random() < 0.6 else None for _ in range(n)]


def switched(c):
    import dmi
    graph, nodes = by_hand(c, CHAIN)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for i, change in enumerate(switches()):
        if change:
            dmi.site_enable(*change)
        ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[1], c.params("block", 0, 1 + i % 64, i)))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
        c.launch("block", c.streams[0], 3, 16, 1000 + i)


def lone_seeds():
    """What the site of `lone` writes in each replay: as (seed, rows)."""
    return [(i // 4 + 1, 1 + i // 4 * 7 % 64) for i in range(60)] + [(70, 64)] * 4


def lone(c):
    """A graph with one site: replays, new parameters for its kernel, an update, a launch into a capture."""
    names = [("first", 1, 8, 99), ("block", 0, 1, 1), ("other", 0, 64, 60)]
    graph, nodes = by_hand(c, names)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    *before, _, _, _, _ = seeds = lone_seeds()
    for i, (seed, rows) in enumerate(before):
        if i and seed != seeds[i - 1][0]:
            c.say(cu.cuGraphExecKernelNodeSetParams(exe, nodes[1], c.params("block", 0, rows, seed))[0])
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.say(cu.cuGraphExecUpdate(exe, by_hand(c, [names[0], ("block", 2, 64, 70), ("other", 2, 64, 60)])[0])[0])
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.sync()
    outer = ok(cu.cuGraphInstantiate(c.capture(lambda s: ok(cu.cuGraphLaunch(exe, s))), 0))
    ok(cu.cuGraphLaunch(outer, c.streams[0]))
    c.sync()
    ok(cu.cuGraphLaunch(exe, c.streams[0]))
    ok(cu.cuGraphLaunch(exe, c.streams[0]))


def lone_off(c):
    """The same, whose kernel is switched off and on."""
    graph, nodes = by_hand(c, [("first", 1, 8, 99), ("block", 0, 64, 1), ("other", 0, 64, 60)])
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for on in (1, 0, 1, 1, 0, 0, 1):
        ok(cu.cuGraphNodeSetEnabled(exe, nodes[1], on))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def updatable(c):
    graph, nodes = by_hand(c, CHAIN)
    value = cu.CUkernelNodeAttrValue()
    value.deviceUpdatableKernelNode.deviceUpdatable = 1
    ok(cu.cuGraphKernelNodeSetAttribute(nodes[3], cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, value))
    ok(cu.cuGraphLaunch(ok(cu.cuGraphInstantiate(graph, 0)), c.streams[0]))


def contexts(c):
    """A graph made in one context, instantiated where another one is current."""
    other = new_context()
    module = ok(cu.cuModuleLoadData(PTX.encode()))
    mine = c.f["block"]
    c.f["block"] = ok(cu.cuModuleGetFunction(module, b"block"))
    c.buffers[2] = ok(cu.cuMemAlloc(BYTES))
    ok(cu.cuMemsetD8(c.buffers[2], 0, BYTES))
    ok(cu.cuCtxSynchronize())
    graph, _ = by_hand(c, [("block", 2, 64, 1)])
    stream = ok(cu.cuStreamCreate(1))
    ok(cu.cuCtxSetCurrent(c.context))
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuCtxSetCurrent(other))
    ok(cu.cuGraphLaunch(exe, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuCtxSetCurrent(c.context))
    c.f["block"] = mine
    c.launch("block", c.streams[0], 3, 16, 9)


def destroyed(c):
    for i in range(20):
        graph, _ = by_hand(c, [("block", 0, 64, i)])
        exe = ok(cu.cuGraphInstantiate(graph, 0))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
        ok(cu.cuGraphExecDestroy(exe))  # while it may still run
        ok(cu.cuGraphDestroy(graph))


def without_rows(c):
    """Execs that are destroyed while a launch without anything to record is on its way, and others right after it."""
    for i in range(60):
        graph, _ = by_hand(c, [("other", 1, 64, 60)] * 4 + [("block", 0, 0, 1)])
        empty = ok(cu.cuGraphInstantiate(graph, 0))
        ok(cu.cuGraphLaunch(empty, c.streams[1]))
        ok(cu.cuGraphExecDestroy(empty))
        exe = ok(cu.cuGraphInstantiate(by_hand(c, [("block", 2, 64, i)])[0], 0))
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
        ok(cu.cuGraphExecDestroy(exe))


def crowded(c):
    """3 KiB of each of two sites in a launch."""
    graph, _ = by_hand(c, [(name, b, 256, b + 1) for b in range(3) for name in ("block", "other")])
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for _ in range(5):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))


def without_context(body):
    """Runs @body in a thread that has no current context."""
    failed = []

    def run():
        try:
            body()
        except BaseException as e:  # SystemExit of ok() too
            failed.append(e)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def guest(c):
    """A thread without a context instantiates, launches, updates and changes what one with a context has made."""
    graph, nodes = by_hand(c, CHAIN)
    later = by_hand(c, [(n, b, r, s + 20 if n == "block" else s) for n, b, r, s in CHAIN])[0]
    captured = c.capture(lambda s: [c.launch(*step[:1], s, *step[1:]) for step in CHAIN])

    def body():
        s = c.streams[0]
        exe, other = ok(cu.cuGraphInstantiate(graph, 0)), ok(cu.cuGraphInstantiate(captured, 0))
        ok(cu.cuGraphLaunch(exe, s))
        ok(cu.cuGraphLaunch(other, s))
        ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[1], c.params("block", 0, 64, 7)))
        ok(cu.cuGraphLaunch(exe, s))
        c.say(cu.cuGraphExecUpdate(exe, later)[0])
        ok(cu.cuGraphLaunch(exe, s))
        ok(cu.cuStreamSynchronize(s))
    without_context(body)


def homeless(c):
    """The same of graphs whose nodes nobody saw in a context, and of an exec that gets its first site there."""
    def body():
        s = c.streams[0]
        exe = ok(cu.cuGraphInstantiate(by_hand(c, CHAIN)[0], 0))
        graph, nodes = by_hand(c, [("other", 0, 64, 1)])
        plain, plain2 = (ok(cu.cuGraphInstantiate(graph, 0)) for _ in range(2))
        ok(cu.cuGraphExecKernelNodeSetParams(plain, nodes[0], c.params("block", 0, 64, 2)))
        c.say(cu.cuGraphExecUpdate(plain2, by_hand(c, [("block", 0, 64, 3)])[0])[0])
        for x in (exe, plain, plain2):
            ok(cu.cuGraphLaunch(x, s))
        ok(cu.cuStreamSynchronize(s))
    without_context(body)
    c.launch("block", c.streams[0], 3, 16, 9)


SCENARIOS = {f.__name__: f for f in (reuse, fork_join, two_execs, rows, piecewise, layers, in_flight, update, enable, child, queries, ended,
                                     shapes, programmatic, early_event, priorities,
                                     embedded, switched, lone, lone_off, updatable, contexts, destroyed, without_rows, crowded, guest, homeless)}

if __name__ == "__main__":
    client = Client()
    client.zero()
    client.sync()
    SCENARIOS[sys.argv[1]](client)
    client.digest()
