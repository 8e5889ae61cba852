#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ways in which kernels run from graphs that the library leaves alone: left_alone_client.py WAY.

Each launches the site `block` once by itself, then what the way is about, then once more by itself.
"""
import ctypes
import sys
import time

from cuda.bindings import driver as cu

from graph_client import BYTES, CHAIN, PTX, Client, by_hand, new_context, ok


def instantiate(graph, flags=0):
    return ok(cu.cuGraphInstantiate(graph, flags))


def launched(c, exe, n=2):
    for _ in range(n):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.sync()


def plain(c):
    """Nothing special: all of it is captured."""
    launched(c, instantiate(by_hand(c, CHAIN)[0]))


def memory_node(c):
    graph, nodes = by_hand(c, CHAIN)
    params = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    params.bytesize = 4096
    node = ok(cu.cuGraphAddMemAllocNode(graph, None, 0, params))
    ok(cu.cuGraphAddMemFreeNode(graph, [node], 1, params.dptr))
    exe = instantiate(graph)
    launched(c, exe)
    ok(cu.cuGraphNodeSetEnabled(exe, nodes[1], 0))  # of a node that is off there is nothing to count
    launched(c, exe)


def set_updatable(node):
    value = cu.CUkernelNodeAttrValue()
    value.deviceUpdatableKernelNode.deviceUpdatable = 1
    ok(cu.cuGraphKernelNodeSetAttribute(node, cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, value))


def updatable(c):
    """Another kernel than the site's may be changed from the device."""
    graph, nodes = by_hand(c, CHAIN)
    set_updatable(nodes[2])
    launched(c, instantiate(graph))


def updatable_site(c):
    graph, nodes = by_hand(c, CHAIN)
    set_updatable(nodes[3])
    launched(c, instantiate(graph))


def users(c):
    """A graph with a user object, which ends with the exec."""
    ended = ctypes.c_uint64(0)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: setattr(ended, "value", ended.value + 1))
    graph, _ = by_hand(c, CHAIN)
    object_ = ok(cu.cuUserObjectCreate(0, cu.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), 1,
                                       cu.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
    ok(cu.cuGraphRetainUserObject(graph, object_, 1, cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE))
    exe = instantiate(graph)
    launched(c, exe)
    c.say("while both live", ended.value)
    ok(cu.cuGraphDestroy(graph))
    c.say("while the exec lives", ended.value)
    ok(cu.cuGraphExecDestroy(exe))
    c.sync()
    end = time.monotonic() + 5
    while not ended.value and time.monotonic() < end:
        time.sleep(0.01)
    c.say("at the end", ended.value)


def many_copies(c):
    """1,400 sites: three tickets."""
    graph, _ = by_hand(c, [("block", 0, 1 + i % 16, i) for i in range(1400)])
    launched(c, instantiate(graph))


def add_conditional(c, graph, behind=(), root=None, bodies=1, value=1):
    """@root: the graph that the node will be launched in, where that is another one. Return: the node, its bodies."""
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = ok(cu.cuGraphConditionalHandleCreate(root or graph, c.context, value, cu.CU_GRAPH_COND_ASSIGN_DEFAULT))
    params.conditional.type = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
    params.conditional.size = bodies
    params.conditional.ctx = c.context
    node = ok(cu.cuGraphAddNode(graph, list(behind) or None, None, len(behind), params))
    return node, params.conditional.phGraph_out[:bodies]


def conditional(c):
    """A site in the body of a conditional node, and one beside it; after it a launch, a forward that begins, and one more."""
    graph, nodes = by_hand(c, CHAIN[:2])
    ok(cu.cuGraphAddKernelNode(add_conditional(c, graph, nodes[1:])[1][0], None, 0, c.params("block", 2, 64, 9)))
    launched(c, instantiate(graph))
    c.launch("block", c.streams[0], 4, 16, 3)
    c.launch("first", c.streams[0], 4, 16, 3)


def block_in(c, body):
    ok(cu.cuGraphAddKernelNode(body, None, 0, c.params("block", 2, 64, 9)))


def end_by_node(c):
    node, bodies = add_conditional(c, ok(cu.cuGraphCreate(0)), bodies=2)
    for body in bodies:
        block_in(c, body)
    ok(cu.cuGraphDestroyNode(node))


def end_by_graph(c):
    graph = ok(cu.cuGraphCreate(0))
    block_in(c, add_conditional(c, graph)[1][0])
    ok(cu.cuGraphDestroy(graph))


def end_in_a_body(c):
    """A body with a child graph and a conditional node of its own."""
    graph = ok(cu.cuGraphCreate(0))
    node, (outer,) = add_conditional(c, graph)
    ok(cu.cuGraphAddChildGraphNode(outer, None, 0, by_hand(c, SITES)[0]))
    block_in(c, add_conditional(c, outer, root=graph)[1][0])
    ok(cu.cuGraphDestroyNode(node))


def moved(inner):
    """A graph with @inner itself in a node."""
    graph, params = ok(cu.cuGraphCreate(0)), cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
    params.graph.graph, params.graph.ownership = inner, cu.CUgraphChildGraphNodeOwnership.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
    ok(cu.cuGraphAddNode(graph, None, None, 0, params))
    return graph


def end_in_a_moved_graph(c):
    inner = ok(cu.cuGraphCreate(0))
    block_in(c, add_conditional(c, inner)[1][0])
    ok(cu.cuGraphDestroy(moved(inner)))


def moved_away(c):
    """Drivers neither instantiate nor take for an update what lies in a node of another graph: that one they do."""
    exe, inner = instantiate(by_hand(c, CHAIN)[0]), by_hand(c, CHAIN)[0]
    outer = moved(inner)
    print("instantiated", cu.cuGraphInstantiate(inner, 0)[0].name, "updated", cu.cuGraphExecUpdate(exe, inner)[0].name, flush=True)
    launched(c, exe)
    launched(c, instantiate(outer))


def end_by_a_broken_capture(c):
    """The graph of a capture that is invalid ends with it, without a call that says so."""
    stream, empty = c.streams[0], ok(cu.cuGraphCreate(0))
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    graph = ok(cu.cuStreamGetCaptureInfo(stream))[2]
    for _ in range(3):
        add_conditional(c, graph, bodies=2)
    block_in(c, add_conditional(c, graph, bodies=2)[1][0])
    c.say("synchronized", cu.cuStreamSynchronize(stream)[0])
    c.say("ended", cu.cuStreamEndCapture(stream)[0])
    for node, (body,) in [add_conditional(c, empty) for _ in range(5)]:
        ok(cu.cuGraphAddKernelNode(body, None, 0, c.params("other", 0, 64, 60)))
        ok(cu.cuGraphDestroyNode(node))


def bodies_end(c):
    """Bodies with a site end, and their handles come back as those of bodies without one."""
    for end in (end_by_node, end_by_graph, end_in_a_body, end_in_a_moved_graph, end_by_a_broken_capture):
        end(c)
        graph, nodes = by_hand(c, CHAIN[:2])
        for body in add_conditional(c, graph, nodes[1:], bodies=2)[1]:
            inner = add_conditional(c, body, root=graph)[1][0]
            ok(cu.cuGraphAddKernelNode(inner, None, 0, c.params("other", 0, 64, 60)))
        launched(c, instantiate(graph))


def contexts(c):
    """A graph of one context, instantiated where another one is current; and one with kernels of two."""
    other = new_context()
    module = ok(cu.cuModuleLoadData(PTX.encode()))
    mine, c.f["block"] = c.f["block"], ok(cu.cuModuleGetFunction(module, b"block"))
    c.buffers[2] = ok(cu.cuMemAlloc(BYTES))
    ok(cu.cuMemsetD8(c.buffers[2], 0, BYTES))
    ok(cu.cuCtxSynchronize())
    stream = ok(cu.cuStreamCreate(1))
    graph, _ = by_hand(c, [("block", 2, 64, 1)])
    ok(cu.cuCtxSetCurrent(c.context))
    exe = instantiate(graph)
    ok(cu.cuCtxSetCurrent(other))
    for _ in range(2):
        ok(cu.cuGraphLaunch(exe, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuCtxSetCurrent(c.context))
    c.f["block"] = mine


def context_gone(c):
    """A graph of one context, instantiated where another one is current, and launched when its own is gone."""
    other = new_context()
    mine, c.f["block"] = c.f["block"], ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX.encode())), b"block"))
    graph, _ = by_hand(c, [("block", 2, 64, 1)])
    ok(cu.cuCtxSetCurrent(c.context))
    exe = instantiate(graph)
    ok(cu.cuCtxDestroy(other))
    c.say("launch", cu.cuGraphLaunch(exe, c.streams[0])[0])
    c.f["block"] = mine


def unseen(c):
    """A node of the graph becomes a site by new parameters, before it is instantiated."""
    graph, nodes = by_hand(c, CHAIN)
    ok(cu.cuGraphKernelNodeSetParams(nodes[2], c.params("block", 0, 16, 7)))
    launched(c, instantiate(graph))


def embedded(c):
    exe = instantiate(by_hand(c, CHAIN)[0])

    def body(s):
        c.launch("block", s, 3, 8, 5)
        ok(cu.cuGraphLaunch(exe, s))
    launched(c, instantiate(c.capture(body)))
    launched(c, exe, 1)


NO_SITES = [("first", 1, 8, 99), ("other", 0, 64, 60), ("other", 0, 64, 61)]
SITES = [("first", 1, 8, 99), ("block", 0, 64, 1), ("block", 0, 64, 2)]


def update(c):
    """Updates bring a site to a place that was none, between two sites, and take it away."""
    exe = instantiate(by_hand(c, CHAIN)[0])
    launched(c, exe)
    more = [(("block" if i == 2 else name), b, n, s) for i, (name, b, n, s) in enumerate(CHAIN)]
    ok(cu.cuGraphExecUpdate(exe, by_hand(c, more)[0]))
    launched(c, exe)
    ok(cu.cuGraphExecUpdate(exe, by_hand(c, CHAIN)[0]))
    launched(c, exe)


def update_first(c):
    """An update brings sites to an exec that had none."""
    exe = instantiate(by_hand(c, NO_SITES)[0])
    launched(c, exe)
    ok(cu.cuGraphExecUpdate(exe, by_hand(c, SITES)[0]))
    launched(c, exe)
    ok(cu.cuGraphExecUpdate(exe, by_hand(c, NO_SITES)[0]))
    launched(c, exe)


def update_unseen(c):
    """The graph of an update has a site that came by new parameters."""
    exe = instantiate(by_hand(c, CHAIN)[0])
    graph, nodes = by_hand(c, CHAIN)
    ok(cu.cuGraphKernelNodeSetParams(nodes[2], c.params("block", 0, 16, 7)))
    ok(cu.cuGraphExecUpdate(exe, graph))
    launched(c, exe)


def parameters(c):
    """New parameters in an exec make a site of a node that was none, and of it none again."""
    graph, nodes = by_hand(c, CHAIN)
    exe = instantiate(graph)
    launched(c, exe)
    ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[2], c.params("block", 0, 16, 7)))
    launched(c, exe)
    ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[2], c.params("other", 0, 16, 7)))
    launched(c, exe)


def parameters_first(c):
    graph, nodes = by_hand(c, NO_SITES)
    exe = instantiate(graph)
    ok(cu.cuGraphNodeSetEnabled(exe, nodes[2], 0))
    ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[1], c.params("block", 0, 16, 7)))
    launched(c, exe)
    ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[2], c.params("block", 0, 16, 8)))
    launched(c, exe)  # the second one is off
    ok(cu.cuGraphNodeSetEnabled(exe, nodes[2], 1))
    launched(c, exe)


def with_child(c, chain):
    graph = ok(cu.cuGraphCreate(0))
    node = ok(cu.cuGraphAddChildGraphNode(graph, None, 0, by_hand(c, chain)[0]))
    ok(cu.cuGraphAddKernelNode(graph, [node], 1, c.params("block", 3, 16, 5)))
    return graph, node


def child(c):
    """The graph of a child graph node is another one in the exec: it brings sites in front of one that is copied."""
    graph, node = with_child(c, NO_SITES)
    exe = instantiate(graph)
    launched(c, exe)
    ok(cu.cuGraphExecChildGraphNodeSetParams(exe, node, by_hand(c, SITES)[0]))
    launched(c, exe)
    ok(cu.cuGraphExecChildGraphNodeSetParams(exe, node, by_hand(c, NO_SITES)[0]))
    launched(c, exe)


def child_first(c):
    graph = ok(cu.cuGraphCreate(0))
    node = ok(cu.cuGraphAddChildGraphNode(graph, None, 0, by_hand(c, NO_SITES)[0]))
    exe = instantiate(graph)
    ok(cu.cuGraphExecChildGraphNodeSetParams(exe, node, by_hand(c, SITES)[0]))
    launched(c, exe)


def captured(c):
    launched(c, instantiate(c.capture(lambda s: [c.launch("block", s, 0, 64, k) for k in (1, 2)])))


def everything(c):
    for way in (plain, memory_node, update, update_first, parameters, child, captured):
        way(c)


WAYS = {f.__name__: f for f in (plain, users, memory_node, updatable, updatable_site, conditional, bodies_end, moved_away, many_copies, contexts, context_gone, unseen, embedded, update,
                                update_first, update_unseen, parameters, parameters_first, child, child_first, captured, everything)}

if __name__ == "__main__":
    client = Client()
    client.zero()
    client.sync()
    client.launch("block", client.streams[0], 4, 16, 1)
    WAYS[sys.argv[1]](client)
    client.launch("block", client.streams[0], 4, 16, 2)
    client.digest()
