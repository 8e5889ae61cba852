#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python/dmi: the public API from Python, and the adapter of tinygrad with a model that only counts."""
import ctypes
import errno
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engine"))
from harness import DMI_DUMP, PRELOAD, ROOT, STANDIN, Checks, dump_json, environment, need, only_run, run, workspace  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
import dmi  # noqa: E402
import dmi.tinygrad  # noqa: E402

SPEC = "hookspec: 1\nring: {bytes: 1M, slots: 512}\nsites:\n  - {name: out, kernel: '^block$', pointer: 'arg[0]', dtype: u32, dims: [{row: true, count: 1}]}\n"


def inside():
    """What a program under the library is told; prints one line a call."""
    cuda = ctypes.CDLL("libcuda.so.1")
    print("before cuInit", dmi.loaded(), dmi.step_begin(0, []))
    print("cuInit", cuda.cuInit(0))
    spans = [dmi.Span("a", 4, 3, n_cached=4, phase=dmi.Phase.PREFILL), dmi.Span("b", 9, 1, first_row=3, phase=dmi.Phase.DECODE, tags="{}"),
             dmi.Span(None, 0, 2, first_row=4, flags=dmi.PADDING)]
    print("step", dmi.step_begin(7, spans, tags="step"))
    print("a span without a request", dmi.step_begin(8, [dmi.Span(None, 0, 1)]))
    print("a span outside the batch", dmi.step_begin(8, spans, n_rows=2))
    print("off", dmi.site_enable("o*", False), "unknown", dmi.site_enable("p*", False))
    print("end", dmi.step_end(), "flush", dmi.flush(5))


def api(checks):
    folder = workspace()
    (folder / "spec.yaml").write_text(SPEC)
    words = [sys.executable, __file__, "inside"]
    plain = run(words, env=environment()).stdout.splitlines()
    checks.check(plain == [f"before cuInit False {dmi.OFF}", "cuInit 0", *(f"{what} {dmi.OFF}" for what in (
        "step", "a span without a request", "a span outside the batch")), f"off {dmi.OFF} unknown {dmi.OFF}",
        f"end {dmi.OFF} flush {dmi.OFF}"], "without the library every call does nothing and says so", plain)
    with_it = run(words, env=environment(LD_PRELOAD=PRELOAD, DMI_SPEC=folder / "spec.yaml", DMI_OUT=folder / "out")).stdout.splitlines()
    checks.check(with_it == [f"before cuInit True {dmi.OFF}", "cuInit 0", "step 0", f"a span without a request {-errno.EINVAL}",
                             f"a span outside the batch {-errno.EINVAL}", f"off 0 unknown {-errno.ENOENT}", "end 0 flush 0"],
                 "with it every call has the status of the C function", with_it)
    only_run(folder / "out")
    told = {r["request"]: (r["cached"], r["computed"], r["prefill"], r["decode"], r["end_position"])
            for r in dump_json("list", folder / "out", "--requests")["requests"]}
    checks.check(told == {"a": (4, 3, 3, 0, 7), "b": (0, 1, 0, 1, 10)}, "spans arrive with position, phase and cached tokens", told)


class Bound:
    """As tinygrad's symbolic integers: not an int, and has a value."""

    def __init__(self, val):
        self.val = val


class Input:
    def __init__(self, length):
        self.shape = (1, length)


class Model:
    """generate() as tinygrad's: chunks of 4 of the prompt, from what it still has, then a token at a time."""

    def __init__(self):
        self.cached, self.calls, self.closed = [], [], 0

    def get_start_pos(self, tokens):
        n = 0
        while n < len(tokens) - 1 and n < len(self.cached) and tokens[n] == self.cached[n]:
            n += 1
        return n

    def __call__(self, tokens, start_pos, temperature):
        self.calls.append((tokens.shape[1], start_pos))
        return 0

    def generate(self, tokens, chunk=4):
        start, decoding = self.get_start_pos(tokens), False
        try:
            while True:
                n = min(chunk, len(tokens) - start)
                self(Input(1 if decoding else Bound(n)), Bound(start), 0.0)
                start += n
                if start < len(tokens):
                    continue
                tokens.append(100 + start)
                self.cached, decoding = tokens[:-1], True
                yield tokens[-1]
        finally:
            self.closed += 1


def adapter(checks):
    said = []
    dmi.loaded = lambda: True
    dmi.step_begin = lambda step, spans: said.append([(s.request, s.first_position, s.n_tokens, s.n_cached, s.phase.name) for s in spans][0])
    dmi.step_end = lambda: said.append("end")

    class Served(Model):
        pass
    dmi.tinygrad.attach(Served)
    dmi.tinygrad.attach(Served)
    model = Served()

    def forwards():
        found = [entry for entry in said if entry != "end"]
        said.clear()
        return found

    first = list(zip(range(3), model.generate([1, 2, 3, 4, 5, 6])))
    checks.check([token for _, token in first] == [106, 107, 108], "generate() gives what it gave", first)
    checks.check(said[-1] == "end", "behind a forward its rows belong to nobody", said[-1:])
    checks.check(forwards() == [("0", 0, 4, 0, "PREFILL"), ("0", 4, 2, 0, "PREFILL"), ("0", 6, 1, 0, "DECODE"), ("0", 7, 1, 0, "DECODE")],
                 "a request's forwards, in chunks and then a token a step", said)
    next(model.generate([1, 2, 3, 9]))
    checks.check(forwards() == [("1", 3, 1, 3, "PREFILL")], "a chunk of one token is prefill; cached tokens are said", said)
    one, two = model.generate([7, 7]), model.generate([8, 8])
    for generator in (one, two, one, two):
        next(generator)
    checks.check(forwards() == [("2", 0, 2, 0, "PREFILL"), ("3", 0, 2, 0, "PREFILL"), ("2", 2, 1, 0, "DECODE"), ("3", 2, 1, 0, "DECODE")],
                 "generators that take turns keep their requests", said)
    closed = model.closed
    one.close()
    checks.check(model.closed == closed + 1, "closing the generator closes the engine's own")
    model.dmi_request = "mine"
    next(model.generate([5, 6]))
    checks.check(forwards() == [("mine", 0, 2, 0, "PREFILL")], "the program may name a request", said)
    model(Input(1), 3, 0.0)
    checks.check(not forwards() and model.calls[-1] == (1, 3), "a call of its own is passed on, and belongs to nobody")
    dmi.step_begin = lambda step, spans: 1 // 0
    checks.check(next(model.generate([5, 5])) == 102, "an announcement that fails ends no program")


def main():
    if sys.argv[1:] == ["inside"]:
        inside()
        return
    need(PRELOAD, DMI_DUMP, STANDIN / "libcuda.so.1")
    checks = Checks()
    api(checks)
    adapter(checks)
    checks.exit()


if __name__ == "__main__":
    main()
