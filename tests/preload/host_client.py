#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that taps its own memory, and has no driver: host_client.py SCENARIO [ARGUMENT]

Element i of the tap of number n is n * 65536 + i, so that a record tells which tap it is of; what was tapped is overwritten at once.
"""
import array
import os
import signal
import sys
import threading
import time

import dmi
from dmi import taps

U32, N = 11, 64


class Tapper:
    """One buffer, which each tap fills anew."""

    def __init__(self, n=N):
        self.buffer = array.array("I", bytes(4 * n))
        self.address = self.buffer.buffer_info()[0]

    def tap(self, number, name="resid_pre", layer=0, rows=1, address=None, flags=0):
        n = len(self.buffer)
        self.buffer[:] = array.array("I", range(number << 16, (number << 16) + n))
        said = taps.send(name, address or self.address, 0, U32, (rows, n // rows), (n // rows, 1), 4, 1, layer, 0, flags) if taps.loaded() else None
        self.buffer[:] = array.array("I", [0xdeadbeef]) * n
        return said


class Packed:
    """An array that has DLPack alone, on a device of that kind."""

    def __init__(self, array, kind=1):
        self.array, self.kind = array, kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)


def in_child(work, leave=os._exit):
    child = os.fork()
    if not child:
        work()
        leave(0)
    os.waitpid(child, 0)


def eager(t):
    for forward in range(3):
        for layer in range(4):
            t.tap(4 * forward + layer, layer=layer)


def steps(t):
    """Two requests and padding; the first step is said before anything is tapped."""
    for step in range(3):
        dmi.step_begin(step, [dmi.Span("a", 10 * step, 3, 2), dmi.Span("b", 5 * step, 1, 5)], 8)
        t.tap(step, rows=8)
    dmi.describe("config", "{}")


def forks(t):
    """Children: one that does nothing, one that taps and leaves by _exit, one by sys.exit, one that is killed, one whose own child taps."""
    t.tap(1)
    in_child(lambda: None)
    in_child(lambda: t.tap(2))
    in_child(lambda: t.tap(3), sys.exit)
    in_child(lambda: (t.tap(4), dmi.flush(9), os.kill(os.getpid(), signal.SIGKILL)))
    in_child(lambda: in_child(lambda: t.tap(5)))
    t.tap(6)


def children_alone(t):
    """The process itself taps nothing."""
    in_child(lambda: t.tap(1))
    in_child(lambda: t.tap(2))


def many(t):
    """As fast as it goes, from three threads."""
    def work(layer):
        mine = Tapper()
        for number in range(int(sys.argv[2])):
            mine.tap(number % 60000, layer=layer)
    threads = [threading.Thread(target=work, args=(layer,)) for layer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def forever(t):
    for number in range(1 << 40):
        t.tap(number & 0xffff, layer=number % 5)
        if number == 20:
            print("ready", flush=True)
        if number % 50 == 0:
            time.sleep(0.001)


def disk(t):
    """The disk fails from the third tap to the fifth."""
    for number in range(8):
        if rule := {2: "pwritev ENOSPC\n", 5: "\n"}.get(number):
            with open(os.environ["FAIL_DISK"], "w") as file:
                file.write(rule)
        t.tap(number)
        dmi.flush(9)


def arrays(_):
    """What dmi.tap() takes, what it refuses, and what is switched off; each is overwritten at once."""
    import numpy as np
    x = np.arange(64, dtype=np.uint32).reshape(8, 8)
    whole, buffer = x + (1 << 16), array.array("I", range(3 << 16, (3 << 16) + 64))
    switched = [dmi.site_enable("resid_pre", False), dmi.tap(x, "resid_pre", 0), dmi.site_enable("resid_pre", True)]  # before a tap has begun the run
    answers = [dmi.tap(whole, "resid_pre", 0), dmi.tap(whole.T, "resid_pre", 1, rows=(1,)), dmi.tap(buffer, "resid_pre", 2)]
    whole[:] = 0
    buffer[:] = array.array("I", bytes(256))
    packed, fixed = x + (4 << 16), x + (5 << 16)
    fixed.flags.writeable = False
    answers += [dmi.tap(Packed(packed.T), "resid_pre", 3, rows=(1,)), dmi.tap(Packed(fixed), "resid_pre", layer=0), dmi.tap(Packed(x[:4, ::2] + (6 << 16)), "resid_pre")]
    packed[:] = 0
    for wrong in (x.astype(">u4"), x.astype(complex), Packed(x.astype(complex)), np.array(1), np.zeros((1,) * 5), Packed(x, 4)):
        answers.append(dmi.tap(wrong, "resid_pre"))
    answers += switched
    print(answers == ([0] * 6 + [-22] * 6 + [0] * 3 if taps.loaded() else [dmi.OFF] * 15))
    for wrong in ([1, 2], "x", None, object()):
        try:
            dmi.tap(wrong, "resid_pre")
            print("taken:", wrong)
        except TypeError as error:
            if "__dlpack__ was expected, not " + type(wrong).__name__ not in str(error):
                print(error)


def nothing(t):
    """Steps of no run, in a process whose HookSpec has no taps."""
    dmi.step_begin(0, [dmi.Span("a", 0, 4)], 4)
    dmi.describe("config", "{}")
    t.tap(1)


if __name__ == "__main__":
    globals()[sys.argv[1]](Tapper())
    print("done")
