# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie: in pieces that are mapped one after the other, in memory of other processes, in memory of which the driver
does not tell."""
import pathlib
import sys

import pytest

from harness import Tally
from kit import filled, site, spec

pytest.importorskip("cuda.bindings")

CLIENT = pathlib.Path(__file__).with_name("memory_client.py")
N = 1024


def run(bench, kind, *more, **env):
    text = spec(site("block", **dict(more)), head="ring: {bytes: 4M, slots: 512}\n")
    result = bench.alike(kind, [], text, command=[sys.executable, CLIENT, kind], timeout=60, **env)
    bench.check(result.code == 0 and result.folders, f"{kind}: the program runs, and a run is written", result.stderr[-600:])
    return result


def held(bench, what, result, captured, dropped=None, i=0):
    run_ = result.run(i)
    got = [r.words for r in run_.of(0)]
    bench.check(got == captured, f"{what}: what is captured is what was written", f"{[w[:2] for w in got]}; {result.stderr[-600:]}")
    reasons = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(reasons == (dropped or {}) and not run_.balance(), f"{what}: the others are drops by name", f"{reasons} {run_.balance()}")
    return run_


@pytest.mark.since(11020, "cuMemMap")
def test_mapped_pieces(bench):
    r = run(bench, "mapped")
    held(bench, "across pieces", r, [filled(s, N) for s in (1, 2, 3, 4)])


def test_an_allocation_ends_where_it_ends(bench):
    """A tensor of twice its size reaches into whatever comes next, and is refused."""
    r = run(bench, "neighbours", ("dims", "[{row: true, count: '2 * arg[1].u32'}]"))
    held(bench, "past the end", r, [], {"bad_pointer": 1})


def test_memory_given_to_others(bench):
    r = run(bench, "exported")
    run_ = held(bench, "exported memory", r, [filled(s, N) for s in (1, 3, 5)], {"unsupported": 2})
    told = [p["sentence"] for p in run_.manifest["problems"]]
    bench.check(any("shared with another process" in t and "shared_memory: allow" in t for t in told), "the report says why, and the mend", told)
    r = run(bench, "exported", ("shared_memory", "allow"))
    held(bench, "exported memory that the spec allows", r, [filled(s, N) for s in (1, 2, 3, 4, 5)])


@pytest.mark.since(11020, "cuMemMap")
def test_pieces_given_to_others(bench):
    held(bench, "exported pieces", run(bench, "exported_pieces"), [], {"unsupported": 1})
    held(bench, "exported pieces that the spec allows", run(bench, "exported_pieces", ("shared_memory", "allow")), [filled(1, N)])


def test_memory_of_others(bench):
    def parent(result):
        return next(i for i in range(len(result.folders)) if result.run(i).counters.expected[0].records)
    r = run(bench, "imported")
    held(bench, "imported memory", r, [], {"unsupported": 1}, parent(r))
    r = run(bench, "imported", ("shared_memory", "allow"))
    held(bench, "imported memory that the spec allows", r, [filled(1, N)], None, parent(r))


@pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
@pytest.mark.parametrize("n", (1, 2))
def test_the_driver_does_not_say(bench, n):
    """An error that is no answer is not for ever: the graph's next launch asks again."""
    r = run(bench, "graph", DMI_STANDIN_FAIL=f"cuMemGetAddressRange_v2:{n}:999")
    run_ = r.run()
    dropped = run_.counters.dropped[0].get("copy_failed", Tally()).records
    bench.check(not run_.balance() and run_.counters.captured[0].records >= 6 and dropped <= 2, "later launches are captured",
                f"{run_.counters.captured} {run_.counters.dropped}")
    bench.check(set(run_.counters.dropped[0]) <= {"copy_failed"}, "it is not said to be a bad pointer", run_.counters.dropped[0])


def test_nothing_can_be_registered(bench):
    """As on Tegra: descriptors lie in memory that the driver allocates."""
    r = run(bench, "exported", ("shared_memory", "allow"), DMI_STANDIN_FAIL="cuMemHostRegister_v2:0:801")
    held(bench, "without registered memory", r, [filled(s, N) for s in (1, 2, 3, 4, 5)])
