# SPDX-License-Identifier: Apache-2.0
"""Edits of host memory: they leave what the device's leave, in bits, and are accounted for alike."""
import json
import pathlib
import re
import sys

import numpy as np
import pytest

import edits_reference as ref
import harness
from edits_kit import SIZE, Play, Tensor
from harness import DMI_DUMP, DMI_RUN, PRELOAD
from test_edit_changes import Accounts
from test_edits import (ALONG, VECTORS, all_values, along, elementwise_tensors, feature_tensors, layout_tensors, normal, one_after_the_other, part_tensors,
                        scaled_tensors, sum_tensors)
from test_host import FAIL_DISK, killed

from dmi import taps

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD)
with_device = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
CLIENT = pathlib.Path(__file__).with_name("host_edits_client.py")
NUMBER = {"f32": taps.DTYPES["float32"], "f16": taps.DTYPES["float16"], "bf16": taps.DTYPES["bfloat16"]}
HOST = 0xffffffff  # DMI_NO_DEVICE


def tap_of(t):
    """The tensor as a tap says it."""
    said = [dict(pair.split(": ", 1) for pair in d.split(", ")) for d in re.findall(r"\{([^}]*)\}", t.dims.replace("arg[3].u32", str(len(t.bits))).replace("'", ""))]
    shape = [eval(d["count"]) for d in said]  # pylint: disable=eval-used
    packed = [int(np.prod(shape[i + 1:])) for i in range(len(shape))]
    strides = [eval(d["stride"]) // SIZE[t.dtype] if "stride" in d else packed[i] for i, d in enumerate(said)]  # pylint: disable=eval-used
    return {"name": t.name, "dtype": NUMBER[t.dtype], "size": SIZE[t.dtype], "shape": shape, "strides": strides,
            "rows": sum(1 << i for i, d in enumerate(said) if "row" in d), "layer": 0}


class Tapped(Play):
    """Tensors that are tapped in both memories."""

    def __init__(self, bench, tensors, sites="  - {{tap: {}, write: {{}}, capture: none}}", head="", **more):
        super().__init__(bench, tensors, **more)
        self.spec = "hookspec: 1\nring: {bytes: 1M, slots: 512}\n" + head + "sites:\n" + "\n".join(
            sites.format(t.name).replace("}, capture", f"}}, scale: {t.more['scale']}, capture" if "scale" in t.more else "}, capture") for t in tensors) + "\n"
        self.plan = self.folder / "plan.json"

    def start(self, edits, how=(), **env):
        (self.folder / "data").write_bytes(self.memory.bytes)
        taps_of = [dict(tap_of(t), at=self.at[t.name][1] + int(t.more.get("offset", 0))) for t in self.tensors]
        self.plan.write_text(json.dumps({"data": str(self.folder / "data"), "taps": taps_of, "rounds": [r["said"] for r in self.rounds]}))
        command = [sys.executable, CLIENT, self.plan, *how]
        return self.bench.run([], self.spec, command=command, timeout=120, DMI_EDITS=edits, **(dict(LD_LIBRARY_PATH="") if how else {}), **env)

    def left(self, memory, number=0):
        """What @memory held after the round."""
        return pathlib.Path(f"{self.plan}.{memory}.{number}").read_bytes()

    def compare_sides(self, result):
        good = result.said() == (0, "done\n") and "changed: edits add" in result.stderr
        assert self.bench.check(good, "the program runs", result.stderr[-2000:])
        for number in range(len(self.rounds)):
            there, here = (np.frombuffer(self.left(memory, number), np.uint8) for memory in ("device", "host"))
            for t in self.tensors:
                at = self.at[t.name][1]
                apart = np.flatnonzero(there[at:at + t.n_bytes].view(ref.BITS[t.dtype]) != here[at:at + t.n_bytes].view(ref.BITS[t.dtype]))
                self.bench.check(not len(apart), f"round {number}: {t.name} has the device's bits", [
                    (int(i), hex(there[at:at + t.n_bytes].view(ref.BITS[t.dtype])[i]), hex(here[at:at + t.n_bytes].view(ref.BITS[t.dtype])[i])) for i in apart[:4]])
            self.bench.check(np.array_equal(there, here), f"round {number}: nothing beside the tensors has changed", "")
        return Accounts(result.folders[0] / "edits")


def awkward_tensors():
    """Sums over rows that hold each value of the 16-bit types: infinities and NaN, too."""
    for dtype in SIZE:
        for i, (op, c) in enumerate(ALONG):
            t = Tensor(f"{dtype}_all_{op[0]}_{i}", dtype, all_values(dtype))
            t.edits = [{"do": [along(op, "gentle", c)]}]
            yield t
        t = Tensor(f"{dtype}_all_kept", dtype, all_values(dtype))
        t.edits = [{"do": [{"scale": 0.7}, "keep_norm"]}]
        yield t
        t = Tensor(f"{dtype}_all_feature", dtype, all_values(dtype))
        t.edits = [{"do": [{"feature": "gentle", "encoder": "lean", "to": 1, "threshold": 0.1}]}]
        yield t
        # exponents from the least to the greatest
        dice = np.random.default_rng(31)
        t = Tensor(f"{dtype}_random", dtype, ref.stored((dice.normal(size=(8, 1024)) * 10.0 ** dice.integers(-44, 38, (8, 1024))).astype(np.float32), dtype))
        t.edits = [{"do": [{"add": "v", "times": 0.37}, {"scale": 1e-7}, {"patch": "gentle", "times": 0.61}, along(("project_out", None), "gentle", 0.3)]}]
        yield t


@with_device
@pytest.mark.parametrize("tensors", [(elementwise_tensors, scaled_tensors), (sum_tensors, awkward_tensors, feature_tensors), (part_tensors, one_after_the_other, layout_tensors)],
                         ids=["elements", "sums", "layouts"])
def test_as_on_the_device(bench, tensors):
    """Each operation, type, part of a row and layout: in bits, and each row counts."""
    pytest.importorskip("cuda.bindings")
    play = Tapped(bench, [t for some in tensors for t in some() if t.slots is None], vectors=dict(VECTORS, two_dozen=VECTORS["short"][:24]))
    play.round("tapped")
    accounts = play.compare_sides(play.start(play.pack({})))
    before = bytes(play.memory.bytes)
    for t in play.tensors:
        due, written, missed = accounts.of(f"{t.name}-0")
        at, misfit = play.at[t.name][1], missed == {"width": 2 * len(t.bits)}
        bench.check(due == 2 * len(t.bits) and written == (0 if misfit else due), f"{t.name}: rows due and written", (due, written, missed))
        changed = play.left("host")[at:at + t.n_bytes] != before[at:at + t.n_bytes]
        bench.check(changed or misfit or t.name.endswith("nothing") or t.expected and t.expected[0] is t.bits, f"{t.name}: something is written", "")


SPANS = {"spans": [{"request": "a", "first_position": 3, "n_tokens": 2, "first_row": 1, "n_prompt": 4}, {"request": "b", "first_position": 0, "n_tokens": 1, "first_row": 5}], "n_rows": 8}


@with_device
def test_rows_and_banks(bench):
    """The rows of one request; rows that it leaves in the bank for another one; an edit that is off, in bits; a capture before or after, as it says."""
    pytest.importorskip("cuda.bindings")
    tensors = [Tensor(f"{dtype}_{when}", dtype, normal(8, 600, dtype, i)) for i, dtype in enumerate(SIZE) for when in ("before", "after")]
    off = Tensor("off", "f32", all_values("f32")[:1, :600].repeat(8, 0))
    off.edits = [{"do": [{"add": "wide", "times": 0}, {"scale": 1}]}]
    for t in tensors:
        t.edits = [{"requests": "a", "tokens": "-1:", "do": [{"save": t.name, "keep": True}]}, {"requests": "a", "do": [{"add": "wide"}]},
                   {"requests": "b", "do": [{"patch": f"bank:{t.name}"}], "tokens": "3:4"}]
    play = Tapped(bench, [*tensors, off], vectors={"wide": VECTORS["v"][:600]}, head="edits: {bank: 1M}\n")
    play.spec = re.sub(r"tap: (\w+)_(before|after), write: \{\}, capture: none", r"tap: \1_\2, write: {}, capture: \2", play.spec)
    later = {"spans": [{"request": "b", "first_position": 3, "n_tokens": 1, "first_row": 6, "n_prompt": 4}], "n_rows": 8}
    for said in (SPANS, later):
        play.round("tapped", said)
    result = play.start(play.pack({}))
    accounts, run = play.compare_sides(result), result.run()
    for t in tensors:
        bench.check([accounts.of(f"{t.name}-{i}") for i in range(3)] == [(4, 4, {}), (4, 4, {}), (2, 2, {})], f"{t.name}: accounts", accounts.all)
        at = play.at[t.name][1]
        left = np.frombuffer(play.left("host", 1)[at:at + t.n_bytes], ref.BITS[t.dtype]).reshape(t.bits.shape)
        bench.check(np.array_equal(left[6], t.bits[1]) and np.array_equal(np.delete(left, 6, 0), np.delete(t.bits, 6, 0)), f"{t.name}: the donor's row alone", "")
    by_side = {side: sorted((r.site, r.step, r.words) for r in run.records if (r.device == HOST) == (side == "host")) for side in ("host", "device")}
    bench.check(by_side["host"] == by_side["device"] and len(by_side["host"]) == 2 * len(tensors) and not run.balance(), "captures have what the device's have", run.balance())
    at = play.at[off.name][1]
    bench.check(play.left("host")[at:at + off.n_bytes] == off.bits.tobytes() and accounts.of("off-0") == (8, 8, {}), "an edit that does nothing changes no bit", accounts.of("off-0"))


def one_tensor(bench):
    t = Tensor("x", "f32", normal(8, 600, "f32"))
    t.edits = [{"requests": "a", "do": [{"set": 7}]}]
    play = Tapped(bench, [t])
    play.round("tapped", SPANS)
    wanted = t.bits.copy()
    wanted[1:3] = ref.stored(np.float32(7), "f32")
    return play, t, wanted


def test_forks(bench):
    """A child has the edits, in a run of its own."""
    play, t, wanted = one_tensor(bench)
    result = play.start(play.pack({}), how=("host", "fork"))
    bench.check(result.code == 0 and len(result.folders) == 2, "two processes, two runs", result.stderr[-1500:])
    for folder, name in zip(result.folders, ("0", "0.child")):
        at = play.at[t.name][1]
        bench.check(play.left("host", name)[at:at + t.n_bytes] == wanted.tobytes(), "its rows are written, and no others", name)
        bench.check(Accounts(folder / "edits").of("x-0") == (2, 2, {}), "and accounted for", Accounts(folder / "edits").all)


@pytest.mark.parametrize("delay", [0.1, pytest.param(0.6, marks=pytest.mark.long)])
def test_kill(bench, delay):
    """What is not known to be written of a killed process's rows is lost at kill, by name."""
    play, _, _ = one_tensor(bench)
    play.start(edits := play.pack({}), how=("host",))
    out, spec_path = play.folder / "killed", play.folder / "spec.yaml"
    env = harness.environment(LD_LIBRARY_PATH="", LD_PRELOAD=PRELOAD, DMI_SPEC=spec_path, DMI_OUT=out, DMI_EDITS=edits)
    folder, verify = killed(delay, out, [CLIENT, play.plan, "host", "forever"], env)
    due, written, missed = Accounts(folder / "edits").of("x-0")
    bench.check(verify.returncode == 0 and f"{due} rows due = {written} written + 0 missed" in verify.stdout, "dmi-dump verify", verify.stdout + verify.stderr)
    bench.check(due > written > 0 or due == written > 40 and not missed, "it was killed at work", (due, written, missed))


@pytest.mark.long
def test_a_full_disk(bench):
    """Rows are written, and counted, where the records that are captured beside them are lost."""
    play, t, wanted = one_tensor(bench)
    play.spec = play.spec.replace("capture: none", "capture: after").replace("slots: 512}", "slots: 512}\noverload: {mode: best-effort}").replace("bytes: 1M", "bytes: 24K")
    for _ in range(59):
        play.round("tapped", SPANS)
    (bench.folder / "rules").write_text("")
    result = play.start(play.pack({}), how=("host",), before=[FAIL_DISK], FAIL_DISK=bench.folder / "rules")
    at, run, account = play.at[t.name][1], result.run(), Accounts(result.folders[0] / "edits").of("x-0")
    bench.check(result.said() == (0, "ready\ndone\n") and all(play.left("host", n)[at:at + t.n_bytes] == wanted.tobytes() for n in range(60)), "each round's rows are written", result.stderr[-1500:])
    dropped = {reason for of in run.counters.dropped for reason, tally in of.items() if tally.records}
    bench.check(account == (120, 120, {}) and not run.balance() and dropped and dropped <= {"write_failed", "ring_full", "shed"}, "and counted, whatever became of records", (account, dropped))


def test_memory_that_cannot_be_written(bench, tmp_path):
    """Its rows are missed as bad_pointer, by name, and the program goes on."""
    (tmp_path / "client.py").write_text(f"""
import mmap
from dmi import taps
memory = mmap.mmap(-1, 8192, prot=mmap.PROT_READ)
import numpy
data = numpy.frombuffer(memory, numpy.float32)
for name in ("x",):
    taps.send(name, data.ctypes.data, 0, {NUMBER["f32"]}, (8, 16), (16, 1), 4, 1, 0, 0, taps.WRITABLE | taps.HOST)
    taps.send(name, 64, 0, {NUMBER["f32"]}, (8, 16), (16, 1), 4, 1, 1, 0, taps.WRITABLE | taps.HOST)
print(data.any())
""")
    t = Tensor("x", "f32", normal(8, 16, "f32"))
    t.edits = [{"do": [{"set": 7}]}]
    play = Tapped(bench, [t])
    result = bench.run([], play.spec, command=[sys.executable, tmp_path / "client.py"], LD_LIBRARY_PATH="", DMI_EDITS=play.pack({}))
    bench.check(result.said() == (0, "False\n") and "lies in memory that cannot be written" in result.stderr, "the program goes on, and a line says why", result.stderr[-1500:])
    bench.check(Accounts(result.folders[0] / "edits").of("x-0") == (16, 0, {"bad_pointer": 16}), "rows are missed by name", Accounts(result.folders[0] / "edits").all)
