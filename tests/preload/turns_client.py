#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two batches whose launches alternate: turns_client.py HOW WAY. HOW: `threads` say the steps of one each, with `flag` each says that they are its own; `turns`: one thread
says both, and which of them goes on; `passes`: a layer runs twice; `loops`: so it does in both threads, half a step after the other. WAY: `eager` or `graph`.

A batch is of request a or b. Each step has two launches of `block`, a layer each, and one of `other`; their seed is 100 * batch + 10 * step + layer.
At the end of each step it says what the memory of `other` holds.
"""
import struct
import sys
import threading

from cuda.bindings import driver as cu

import dmi
from graph_client import by_hand, ok
from tap_client import F32, WRITABLE, Tapper

STEPS, ROWS = 4, 8
PARTS = [("block", 0), ("block", 1), ("other", 2)]


def launch(c, graph, batch, step, k):
    name, layer = PARTS[k]
    what = (name, 2 * batch + (name == "other"), ROWS, 100 * batch + 10 * step + layer)
    if graph:
        exe = ok(cu.cuGraphInstantiate(by_hand(c, [what])[0], 0))
        ok(cu.cuGraphLaunch(exe, c.streams[batch]))
    else:
        c.launch(what[0], c.streams[batch], *what[1:])


def begin(batch, step, **flags):
    span = dmi.Span("ab"[batch], step * ROWS, ROWS, phase=dmi.Phase.PREFILL, n_prompt=STEPS * ROWS)
    assert dmi.step_begin(step, [span], caches=False, part=batch, **flags) in (dmi.OK, dmi.OFF)


def look(c, batch, step):
    ok(cu.cuStreamSynchronize(c.streams[batch]))
    host = bytearray(4 * ROWS)
    ok(cu.cuMemcpyDtoH(host, c.buffers[2 * batch + 1], len(host)))
    c.say(batch, step, *struct.unpack(f"{ROWS}I", host))


class Turn:
    """Each in turn, half a step after the other."""

    def __init__(self):
        self.now, self.changed = 0, threading.Condition()

    def take(self, who):
        with self.changed:
            assert self.changed.wait_for(lambda: self.now % 2 == who, 30)

    def give(self):
        with self.changed:
            self.now += 1
            self.changed.notify_all()


def engine(c, turn, batch, graph, flag):
    ok(cu.cuCtxSetCurrent(c.context))
    for step in range(STEPS):
        turn.take(batch)
        begin(batch, step, of_thread=flag)
        launch(c, graph, batch, step, 0)
        turn.give()
        turn.take(batch)
        launch(c, graph, batch, step, 1)
        launch(c, graph, batch, step, 2)
        dmi.step_end()
        look(c, batch, step)
        turn.give()


def turns(c, graph, **flags):
    for step in range(STEPS):
        for batch in (0, 1):
            begin(batch, step, pauses=True, **flags)
            launch(c, graph, batch, step, 0)
        for k in (1, 2):
            for batch in (0, 1):
                dmi.step_resume(step, batch)
                launch(c, graph, batch, step, k)
        for batch in (0, 1):
            dmi.step_resume(step, batch)
            dmi.step_end()
            look(c, batch, step)


def passes(c):
    """A layer that runs twice in the second of two steps."""
    for step in range(2):
        begin(0, step)
        for k in range(1 + step):
            c.launch("block", c.streams[0], 0, ROWS, 10 * step + k)
            c.tap("out", 0, c.streams[0], layer=1, counts=(ROWS,))
        dmi.step_end()
    c.sync()


def run_layer(c, s, batch, k):
    """Layer 1 is tapped as x, and what it holds then as y, in the layer 10 * batch + pass."""
    c.launch("block", s, 2 * batch, ROWS, 50 + batch)
    c.tap("x", 2 * batch, s, 1, counts=(ROWS, 1), dtype=F32, flags=WRITABLE)
    c.tap("y", 2 * batch, s, 10 * batch + k, counts=(ROWS, 1))


def loops(c, turn, batch, execs):
    """The layer runs twice a step, with the other thread's turn between."""
    ok(cu.cuCtxSetCurrent(c.context))
    for step in range(STEPS):
        for k in range(2):
            turn.take(batch)
            if not k:
                begin(batch, step, of_thread=True)
            if execs:
                ok(cu.cuGraphLaunch(execs[batch][k], c.streams[batch]))
            else:
                run_layer(c, c.streams[batch], batch, k)
            if k:
                dmi.step_end()
            turn.give()


def main():
    how, way = sys.argv[1:]
    c, graph = Tapper(), way == "graph"
    if how == "passes":
        passes(c)
        return
    if how.startswith("turns"):
        turns(c, graph, of_thread=how == "turns-flag")
        return
    turn = Turn()
    execs = [[ok(cu.cuGraphInstantiate(c.capture(lambda s, batch=batch, k=k: run_layer(c, s, batch, k)), 0)) for k in range(2)] for batch in (0, 1) if graph and how == "loops"]
    threads = [threading.Thread(target=loops, args=(c, turn, batch, execs)) if how == "loops" else
               threading.Thread(target=engine, args=(c, turn, batch, graph, how == "flag")) for batch in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
