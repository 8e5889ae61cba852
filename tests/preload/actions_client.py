#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program whose tensors an action writes into: actions_client.py SCENARIO. Says what memory holds in the end, a line a time.

Every kernel writes out[i] = seed * 65536 + i for i < n; what memory holds beyond that is what actions added.
"""
import random
import struct
import sys

from cuda.bindings import driver as cu

import dmi
from graph_client import by_hand, ok
from tap_client import Tapper

ALONE = [("block", 0, 64, 1)]
THEN = [("block", 0, 64, 1), ("other", 2, 64, 60), ("block", 0, 64, 2), ("other", 2, 64, 61)]


def words(c, buffer, n=64):
    c.sync()
    host = bytearray(4 * n)
    ok(cu.cuMemcpyDtoH(host, c.buffers[buffer], len(host)))
    return struct.unpack(f"{n}I", host)


def say(c, buffer=0):
    """What each of the first 64 words has beyond what its kernel wrote."""
    got = words(c, buffer)
    c.say((got[0] >> 16), *(w - (got[0] >> 16 << 16) - i for i, w in enumerate(got)))


def alone(c):
    """A graph of one site, launched again and again."""
    graph, _ = by_hand(c, ALONE)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for _ in range(4):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
        say(c)


def graph(c):
    c.replay(by_hand(c, THEN)[0], 20)
    say(c)
    say(c, 2)


def eager(c):
    for _ in range(20):
        for name, buffer, n, seed in THEN:
            c.launch(name, c.streams[0], buffer, n, seed)
    say(c)
    say(c, 2)


def large(c):
    """Records as large as a small ring."""
    for _ in range(20):
        c.launch("block", c.streams[0], 0, 1024, 1)
    say(c)


def overwritten(c, s):
    """Where a kernel is about to overwrite what another wrote."""
    c.launch("block", s, 0, 64, 1)
    c.launch("other", s, 0, 64, 60)


def before_graph(c):
    c.replay(c.capture(lambda s: overwritten(c, s)), 20)
    say(c)


def before_eager(c):
    for _ in range(20):
        overwritten(c, c.streams[0])
    say(c)


def tapped(c, s, forked=False):
    """A kernel, taps after it, a kernel that reads nothing of it and one that overwrites it."""
    c.launch("block", s, 0, 64, 1)
    c.tap("one", 0, s)
    c.tap("two", 0, s)
    c.tap("three", 0, s)
    if forked:
        fork, join = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
        ok(cu.cuEventRecord(fork, s))
        ok(cu.cuStreamWaitEvent(c.streams[1], fork, 0))
        c.launch("other", c.streams[1], 2, 64, 70)
        ok(cu.cuEventRecord(join, c.streams[1]))
        c.launch("other", s, 3, 64, 71)
        ok(cu.cuStreamWaitEvent(s, join, 0))
    c.launch("other", s, 0, 64, 60)


def taps_graph(c):
    for forked in (False, True):
        c.replay(c.capture(lambda s, forked=forked: tapped(c, s, forked)), 10)
    say(c)


def taps_eager(c):
    for _ in range(20):
        tapped(c, c.streams[0])
    say(c)


def few(rng, step):
    """Three requests with some rows each, and padding to 64 rows. Return: the last row of each request."""
    found, row = [], 0
    for request in ("a", "b", "c"):
        n = rng.randrange(1, 12)
        found.append(dmi.Span(request=request, first_position=0, n_tokens=n, first_row=row, phase=1, flags=0, n_prompt=n))
        row += n
    found.append(dmi.Span(request=None, first_position=0, n_tokens=64 - row, first_row=row, phase=0, flags=1, n_prompt=0))
    dmi.step_begin(step, found, 64)
    return [s.first_row + s.n_tokens - 1 for s in found[:3]]


def many(rng, step):
    """Two requests that fill 1,024 rows. Return: those of a."""
    n = rng.randrange(400, 800)
    sizes = rng.sample([("a", n), ("b", 1024 - n)], 2)
    first = {sizes[0][0]: 0, sizes[1][0]: sizes[0][1]}
    dmi.step_begin(step, [dmi.Span(request=r, first_position=0, n_tokens=n, first_row=first[r], phase=1, flags=0, n_prompt=n) for r, n in sizes], 1024)
    return list(range(first["a"], first["a"] + n))


def rows(c, in_graph, spans, n):
    """Each step has other rows, and memory of its own, which is looked at in the end."""
    rng, steps, size = random.Random(5), 300, 4 * n
    memory = ok(cu.cuMemAlloc(steps * size))
    wanted = []
    built, nodes = by_hand(c, ALONE)
    exe = ok(cu.cuGraphInstantiate(built, 0))
    for step in range(steps):
        c.buffers[0] = int(memory) + step * size
        wanted.append(spans(rng, step))
        if in_graph:
            ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[0], c.params("block", 0, n, 1)))
            ok(cu.cuGraphLaunch(exe, c.streams[0]))
        else:
            c.launch("block", c.streams[step % 2], 0, n, 1)
    done = 0
    for step in range(steps):
        c.buffers[0] = int(memory) + step * size
        got = [i for i, w in enumerate(words(c, 0, n)) if w != (1 << 16) + i]
        done += got == wanted[step]
        if got and got != wanted[step]:
            c.say("step", step, "wanted", wanted[step], "got", got)
    c.say("done", done)


def few_graph(c):
    rows(c, True, few, 64)


def few_eager(c):
    rows(c, False, few, 64)


def many_graph(c):
    rows(c, True, many, 1024)


def many_eager(c):
    rows(c, False, many, 1024)


def execs(c):
    """Execs end while their launches are under way, and their state goes to others."""
    built, nodes = by_hand(c, ALONE)
    for i in range(60):
        exe = ok(cu.cuGraphInstantiate(built, 0))
        ok(cu.cuGraphExecKernelNodeSetParams(exe, nodes[0], c.params("block", i % 6, 64, i + 1)))
        ok(cu.cuGraphLaunch(exe, c.streams[i % 4]))
        ok(cu.cuGraphExecDestroy(exe))
        if i % 6 == 5:
            for buffer in range(6):
                say(c, buffer)


SCENARIOS = {f.__name__: f for f in (alone, graph, eager, large, before_graph, before_eager, taps_graph, taps_eager, few_graph, few_eager, many_graph,
                                    many_eager, execs)}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Tapper())
