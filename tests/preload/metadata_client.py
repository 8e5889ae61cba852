#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that tells the library what cannot be, and what can; a JSON line a call: what it was, what it returned.

Its argument: `lies`, `describe`, `cached` (ids of cached tokens, in spans of three sizes), `threads`, `wait` (says an outcome, waits for a line on stdin, ends by _exit without a flush).
"""
import ctypes
import json
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import dmi  # noqa: E402
from dmi import calls  # noqa: E402
from dmi import Phase, Span  # noqa: E402

D = Phase.DRAFT


def say(what, status):
    print(json.dumps([what, status]), flush=True)


def lies():
    def step(what, spans, number=1, **more):
        say(what, dmi.step_begin(number, spans, **more))

    step("good", [Span("a", 0, 4, n_prompt=4, phase=Phase.PREFILL), Span("b", 7, 3, first_row=4, phase=D)], n_rows=8)
    step("two spans of a request", [Span("a", 4, 2, phase=Phase.PREFILL), Span("a", 6, 1, first_row=2)], 2)
    step("that share a position", [Span("a", 4, 2), Span("a", 5, 1, first_row=2)])
    step("that share rows", [Span("a", 4, 2), Span("b", 5, 1, first_row=1)])
    step("outside the batch", [Span("a", 0, 4)], n_rows=3)
    step("an id of 255 bytes", [Span("i" * 255, 0, 1)], 3)
    step("an id of 256 bytes", [Span("i" * 256, 0, 1, phase=D), Span("a", 7, 1, first_row=1)], 3)
    step("an empty id", [Span("", 0, 1)], 3)
    step("a negative position", [Span("a", -1, 1)])
    step("positions beyond 2^63", [Span("a", 2**63 - 1, 1)])
    step("more cached than before it", [Span("a", 4, 1, n_cached=5)])
    step("tags too long", [Span("a", 4, 1, tags="t" * 65536)])
    step("a rank outside its size", [Span("a", 4, 1)], ranks=((2, 2), (0, 1), (0, 1), (0, 1)))
    step("too many spans", [Span("a", i, 1, first_row=i) for i in range(65537)])
    step("a number that went back", [Span("a", 5, 1)], 2)
    step("a later one", [Span("a", 6, 1)], 9)
    say("a struct of another size", calls._begin(ctypes.byref(calls._Step(8, 1))))
    say("nothing", calls._begin(None))
    say("accept", dmi.accept("b", 1, 2))
    say("accept again", dmi.accept("b", 1, 2))
    say("accept of no draft", dmi.accept("a", 1, 1))
    say("accept in no step", dmi.accept("b", 77, 1))
    step("drafts", [Span("b", 9, 3, phase=D)], 10)
    say("accept too many", dmi.accept("b", 10, 4))
    say("accept without an id", dmi.accept("", 10, 1))
    say("accept none", dmi.accept("b", 10, 0))
    say("end", dmi.request_end("b", dmi.End.LENGTH))
    say("end of an id of 256 bytes", dmi.request_end("i" * 256))
    say("end for no reason", dmi.request_end("a", 4))
    for i in range(1100):
        dmi.step_begin(100 + i, [Span("c", 3 * i, 3, phase=D)])
    say("accept long past", dmi.accept("c", 100, 1))
    say("accept still known", dmi.accept("c", 1199, 1))
    say("flush", dmi.flush(5))


def cached():
    """Spans of a program that was built before they said ids, of one of today, and of a later one, each twice in a step."""
    ids, names = (ctypes.c_int32 * 4)(7, 8, 9, 10), [ctypes.create_string_buffer(name) for name in (b"a", b"b")]
    for number, size in enumerate((40, 48, 56, 72)):
        spans = ctypes.create_string_buffer(2 * size)
        for i, (name, n) in enumerate(zip(names, (4, 2))):
            whole = calls._SPAN.pack(ctypes.addressof(name), 0, 4, i, 1, n, Phase.PREFILL, 0, 0, ctypes.addressof(ids)) + b"\xff" * 16
            spans[i * size:(i + 1) * size] = whole[:size]
        step = calls._Step(ctypes.sizeof(calls._Step), 1, number, 2, 2, size, 0, ctypes.addressof(spans), None, *[0, 1] * 4)
        say(f"spans of {size} bytes", calls._begin(ctypes.byref(step)))
    say("not as many", dmi.step_begin(9, [Span("a", 4, 1, n_cached=4, cached_ids=[1, 2, 3])]))
    say("no numbers", dmi.step_begin(9, [Span("a", 4, 1, n_cached=1, cached_ids=["x"])]))
    say("too large", dmi.step_begin(9, [Span("a", 4, 1, n_cached=1, cached_ids=[2**31])]))
    say("a list", dmi.step_begin(10, [Span("a", 4, 1, n_cached=3, cached_ids=[2, 3, 4]), Span("b", 4, 1, first_row=1, n_cached=4)]))
    say("flush", dmi.flush(5))


def describe():
    """What cannot be noted of a model, what can, and 64 keys in all."""
    for what, key, value in (("good", "config", '{"a": 1}'), ("again", "config", '{"a": "\u00e9"}'), ("no key", "", "x"), ("a key with a blank", "a b", "x"),
                             ("a long key", "k" * 65, "x"), ("a long value", "v", "v" * ((1 << 20) + 1)), ("the longest", "v", "v" * (1 << 20))):
        say(what, dmi.describe(key, value))
    say("62 more", {dmi.describe(f"k{i}", "") for i in range(62)} == {0})
    say("one too many", dmi.describe("one", "x"))
    dmi.step_begin(1, [Span("a", 0, 1)])
    say("flush", dmi.flush(5))


def threads():
    """Eight threads say steps and outcomes of requests of their own; no more steps in all than are remembered."""
    def one(name):
        for i in range(120):
            number = name * 1000 + i
            bad = dmi.step_begin(number, [Span(f"r{name}", 4 * i, 4, phase=D)]) or dmi.accept(f"r{name}", number, i % 5)
            if bad:
                say("thread", bad)
        dmi.request_end(f"r{name}", dmi.End.STOP)
    all_threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    say("joined", 0)


def wait():
    dmi.step_begin(1, [Span("a", 0, 3, phase=D)])
    say("accept", dmi.accept("a", 1, 2))
    say("end", dmi.request_end("a", dmi.End.ABORTED))
    say("flush", dmi.flush(5))
    say("accept later", dmi.request_end("b", dmi.End.ABORTED))
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    say("cuInit", ctypes.CDLL("libcuda.so.1").cuInit(0))
    globals()[sys.argv[1]]()
