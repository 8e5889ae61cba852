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


def run(bench, kind, *more, head="", **env):
    """@more: pairs of the site's, and words for the client."""
    text = spec(site("block", **dict(m for m in more if isinstance(m, tuple))), head="ring: {bytes: 4M, slots: 512}\n" + head)
    words = [m for m in more if isinstance(m, str)]
    result = bench.alike(kind, [], text, command=[sys.executable, CLIENT, kind, *words], timeout=60, **env)
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


@pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
def test_mapped_pieces_in_a_graph(bench):
    r = run(bench, "mapped_in_a_graph")
    held(bench, "across pieces, in a graph", r, [filled(s, N) for s in (1, 2, 3)] * 2)


@pytest.mark.since(11020, "cuMemMap")
def test_each_device_has_access_of_its_own(bench):
    """The site's tensor is twice what the kernel writes: at the last piece's end that is beyond what the first device may read."""
    r = run(bench, "other_device", ("dims", "[{row: true, count: '2 * arg[1].u32'}]"), DMI_STANDIN_DEVICES=2)
    run_ = r.run()
    bench.check([rec.words[:N] for rec in run_.of(0)] == [filled(s, N) for s in (10, 20, 21)], "what a device may read is captured",
                ([rec.words[:2] for rec in run_.of(0)], r.stderr[-600:]))
    dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(dropped == {"bad_pointer": 1} and not run_.balance(), "what it may not is a drop by name", (dropped, run_.balance()))


@pytest.mark.since(11020, "cuMemMap")
def test_tensors_that_grow_with_their_segment(bench):
    """Each launch begins a forward: the one before was the same occurrence of the site."""
    r = run(bench, "grown", head="forward: [{kind: step, begin: {kernel: '^block$'}}]\n")
    held(bench, "more of the same memory", r, [filled(2, 256), filled(3, N), filled(4, 256), filled(5, N)])


@pytest.mark.since(11020, "cuMemMap")
def test_pieces_that_may_not_be_read(bench):
    r = run(bench, "barred", ("dims", "[{row: true, count: '2 * arg[1].u32'}]"))
    run_ = r.run()
    bench.check([rec.words[:N] for rec in run_.of(0)] == [filled(2, N)], "what may be read is captured", r.stderr[-600:])
    dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(dropped == {"bad_pointer": 2} and not run_.balance(), "what may not is a drop by name", (dropped, run_.balance()))
    told = [p["sentence"] for p in run_.manifest["problems"]]
    bench.check(any("the tensor reaches into mapped memory that device 0 may not read" in t for t in told), "the report says why", told)


@pytest.mark.since(11020, "cuMemMap")
def test_a_refused_unmap_ends_nothing(bench):
    held(bench, "pieces after a refused unmap", run(bench, "unmapped_by_halves"), [filled(1, N)])


@pytest.mark.since(11020, "cuMemMap")
def test_handles_come_back(bench):
    r = run(bench, "handles_come_back", DMI_STANDIN_HANDLES="reuse")
    bench.check("handles came back: True" in r.stdout, "the driver gives handles out again", r.stdout)
    held(bench, "private memory under a handle that was shared", r, [filled(s, N) for s in (2, 4)], {"unsupported": 2})


@pytest.mark.since(11020, "cuMemMap")
def test_a_retained_handle_is_exported(bench):
    held(bench, "memory that another handle of it exports", run(bench, "retained"), [filled(1, N)], {"unsupported": 1})


@pytest.mark.since(11030, "memory pools that are exported")
def test_memory_of_a_pool_given_to_others(bench):
    held(bench, "exported memory of a pool", run(bench, "pool_exported"), [filled(s, N) for s in (1, 3, 4)], {"unsupported": 1})


@pytest.mark.since(11070, "cuStreamWaitValue32")
def test_the_copies_in_flight_are_named(bench):
    """No order of streams tells that memory is given back: the copy faults, and the line says which copies were under way."""
    r = bench.run([], spec(site("out", offset=2 << 20)), command=[sys.executable, CLIENT, "given_back"])
    bench.check("device 0: error 700, its records from here on are dropped; copies in flight: 1 of out\n" in r.stderr, "the line names the site", r.stderr[-600:])
    bench.check(not r.run().balance(), "the record is accounted for", r.run().balance())


def test_an_allocation_ends_where_it_ends(bench):
    """A tensor of twice its size reaches into whatever comes next, and is refused."""
    r = run(bench, "neighbours", ("dims", "[{row: true, count: '2 * arg[1].u32'}]"))
    held(bench, "past the end", r, [], {"bad_pointer": 1})


def test_memory_given_to_others(bench):
    r = run(bench, "exported")
    run_ = held(bench, "exported memory", r, [filled(s, N) for s in (1, 3, 5)], {"unsupported": 2})
    told = [p["sentence"] for p in run_.manifest["problems"]]
    bench.check(any("shared with another process" in t and "shared_memory: allow" in t and "--disable-custom-all-reduce" in t for t in told),
                "the report says why, and the mend", told)
    bench.check(r.stderr.count("--disable-custom-all-reduce") == 1, "and so does the log, at the first such drop", r.stderr[-600:])
    r = run(bench, "exported", ("shared_memory", "allow"))
    held(bench, "exported memory that the spec allows", r, [filled(s, N) for s in (1, 2, 3, 4, 5)])


def test_exported_memory_ends_with_its_context(bench):
    r = run(bench, "contexts_end", DMI_STANDIN_HANDLES="reuse")
    bench.check("the address came back: True" in r.stdout, "the driver gives the address out again", r.stdout)
    held(bench, "private memory at an address that was shared", r, [filled(2, N)], {"unsupported": 1})


@pytest.mark.since(11020, "cuMemMap")
def test_memory_that_is_exported_often(bench, long):
    """As a custom all-reduce does it for each graph that it captures."""
    r = run(bench, "exported_often", "100000" if long else "20000", DMI_STANDIN_HANDLES="reuse")
    held(bench, "memory beside what was exported", r, [filled(3, N)], {"unsupported": 2})


@pytest.mark.since(11020, "cuMemMap")
def test_pieces_given_to_others(bench):
    held(bench, "exported pieces", run(bench, "exported_pieces"), [], {"unsupported": 1})
    held(bench, "exported pieces that the spec allows", run(bench, "exported_pieces", ("shared_memory", "allow")), [filled(1, N)])


def test_memory_of_others(bench):
    def parent(result):
        return next(i for i in range(len(result.folders)) if result.run(i).counters.expected[0].records)
    r = run(bench, "imported")
    held(bench, "imported memory", r, [], {"unsupported": 2}, parent(r))
    r = run(bench, "imported", ("shared_memory", "allow"))
    held(bench, "imported memory that the spec allows", r, [filled(s, N) for s in (1, 2)], None, parent(r))


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
