# SPDX-License-Identifier: Apache-2.0
"""Actions beside the capture: one that writes and publishes no record runs at each launch, on its rows, in its place in the order of the
spec, whatever the ring does. The library here has one action more than users have (probe/probe.c): it adds 1 to its rows."""
import pathlib
import sys

import pytest

from harness import BUILD
from kit import filled, site, spec

pytest.importorskip("cuda.bindings")
PROBE = BUILD / "tests" / "preload" / "libprobe_preload.so"
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(PROBE)]

CLIENT = pathlib.Path(__file__).with_name("actions_client.py")
ROOM = "ring: {bytes: 4M, slots: 8192}\n"
# a copy to the host takes so long that the second record finds the ring full
FULL = "ring: {bytes: 4096, slots: 2}\noverload: {mode: drop}\n"
SLOW = {"DMI_STANDIN_DTOH_LATENCY_NS": 400000000}
DELAYS = pytest.mark.parametrize("seed", ["", "1", pytest.param("2", marks=pytest.mark.long), pytest.param("3", marks=pytest.mark.long)])
MISSED = "its action did nothing"


@pytest.fixture
def play(bench):
    def run(scenario, text, seed="", **env):
        if seed:
            env["DMI_STANDIN_DELAY_SEED"] = seed
        result = bench.run([], text, command=[sys.executable, CLIENT, scenario], timeout=120, library=PROBE, **env)
        bench.check(result.code == 0, f"{scenario} ran", f"{result.code} {result.stderr[-1500:]}")
        return result
    return run


def tap(tapped, **more):
    return "  - {tap: " + ", ".join([tapped, *(f"{key}: {value}" for key, value in more.items())]) + "}"


def said(result):
    """[(seed, (what was added to each word))] of the lines."""
    return [(int(words[0]), tuple(map(int, words[1:]))) for words in map(str.split, result.stdout.splitlines())]


def added(run, i, seed):
    """What the records of a site hold beyond what the kernel wrote."""
    return [tuple(w - v for w, v in zip(r.words, filled(seed, 64))) for r in run.of(i)]


ONE, NONE = (1,) * 64, (0,) * 64


def test_a_write_alone_in_a_graph(bench, play):
    """Nothing publishes there: the launch has a number all the same, and its ticket is not taken for a used one."""
    result = play("alone", spec(site("w", action="probe")))
    bench.check(said(result) == [(1, ONE)] * 4, "it runs at each launch", result.stdout)
    c = result.run().counters
    bench.check(c.launches[0] == 4 and not c.expected[0].records and not any(c.dropped[0].values()), "and is no record", f"{c.launches} {c.expected}")


@DELAYS
@pytest.mark.parametrize("how", ["graph", "eager"])
def test_actions_at_one_kernel(bench, play, how, seed):
    """In the order of the spec: what one writes the next one reads."""
    text = spec(site("a", kernel="^other$"), site("w", kernel="^other$", action="probe"), site("b", kernel="^other$"),
                site("v", kernel="^other$", action="probe"), site("c", kernel="^other$"), head=ROOM)
    result = play(how, text, seed)
    run = result.run()
    bench.check(said(result) == [(2, NONE), (61, (2,) * 64)], "both write", result.stdout)
    for i, n in ((0, 0), (2, 1), (4, 2)):
        got = [tuple(w & 0xffff for w in r.words) for r in run.of(i)]
        bench.check(got == [tuple(k + n for k in range(64))] * 40, f"site {i} sees {n}", got[:2])
    bench.check(not run.balance(), "sums hold", run.balance())


def test_actions_beside_records_in_pieces(bench, play):
    """Records that are copied in pieces have their places in the order, too."""
    text = spec(site("a"), site("w", action="probe"), site("b"), head="ring: {bytes: 4096, slots: 64}\noverload: {mode: complete, wait_ms: 5000}\n")
    run = play("large", text).run()
    for i, n in ((0, 0), (2, 1)):
        bench.check([r.words for r in run.of(i)] == [tuple(w + n for w in filled(1, 1024))] * 20, f"site {i} sees {n}", [r.words[:4] for r in run.of(i)][:2])
    bench.check(not run.balance() and not any(run.counters.dropped[0].values()), "all are there", run.balance())


@DELAYS
@pytest.mark.parametrize("how", ["before_graph", "before_eager"])
def test_actions_before_a_kernel(bench, play, how, seed):
    before = {"kernel": "^other$", "when": "before"}
    result = play(how, spec(site("a", **before), site("w", **before, action="probe"), site("b", **before), site("after"), head=ROOM), seed)
    run = result.run()
    for i, what in ((0, NONE), (2, ONE), (3, NONE)):
        bench.check(added(run, i, 1) == [what] * 20, f"site {i}", added(run, i, 1)[:2])
    bench.check(said(result) == [(60, NONE)], "the kernel overwrites it", result.stdout)


@DELAYS
@pytest.mark.parametrize("how", ["taps_graph", "taps_eager"])
def test_actions_at_one_place_of_taps(bench, play, how, seed):
    """After a kernel with an action, at one tap, and from tap to tap: all are one chain."""
    text = spec(site("w", action="probe"), tap("one", name="a"), tap("two", name="x", action="probe"), tap("two", name="b"),
                tap("two", name="y", action="probe"), tap("three", name="c"), head=ROOM)
    result = play(how, text, seed)
    run = result.run()
    for i, n in ((1, 1), (3, 2), (5, 3)):
        bench.check(added(run, i, 1) == [(n,) * 64] * 20, f"site {i} sees {n}", added(run, i, 1)[:2])
    bench.check(said(result) == [(60, NONE)], "the kernel overwrites it", result.stdout)


@pytest.mark.parametrize("how", ["graph", "eager"])
def test_a_full_ring_stops_no_write(bench, play, how):
    """A capture of the same kernel finds no room: the write is done all the same."""
    text = spec(site("a", kernel="^other$"), site("w", kernel="^other$", action="probe"), head=FULL)
    result = play(how, text, **SLOW)
    run = result.run()
    bench.check(said(result) == [(2, NONE), (61, ONE)], "it writes", result.stdout)
    bench.check(run.counters.dropped[0].get("ring_full") and not run.balance(), "records are dropped",
                run.counters.dropped)


@DELAYS
@pytest.mark.parametrize("how", ["few_graph", "few_eager"])
def test_rows(bench, play, how, seed):
    """On the rows of its step alone, with many launches in flight; shedding takes none of them."""
    text = spec(site("a", tokens="last"), site("w", action="probe", tokens="last"),
                head="ring: {bytes: 4096, slots: 64}\noverload: {mode: best-effort}\n")
    result = play(how, text, seed, DMI_STANDIN_DTOH_BPS=30000)
    bench.check(result.stdout == "done 300\n" and MISSED not in result.stderr, "each step has its own rows", result.stdout[:1500])
    run = result.run()
    bench.check(not run.balance() and run.counters.dropped[0]["shed"].rows, "sums hold, and records are shed", run.counters.dropped)


@pytest.mark.parametrize("how", ["many_graph", "many_eager"])
def test_lists_of_rows_without_room(bench, play, how):
    """Launches in flight have longer lists than there is room for: some are missed, and said; none is done on other rows."""
    result = play(how, spec(site("w", action="probe", requests="'a'")), "1", DMI_STANDIN_DELAY_MAX_NS=30000000)
    done = int(result.stdout.split()[-1])
    bench.check(result.stdout == f"done {done}\n" and 80 < done < 300, "no other rows", result.stdout[:1500])
    bench.check(result.stderr.count(MISSED) == 1, "a line says so", result.stderr)


@DELAYS
def test_execs_that_end_at_once(bench, play, seed):
    """An event tells when the state of an exec may be another's."""
    result = play("execs", spec(site("w", action="probe")), seed)
    bench.check([a for _, a in said(result)] == [ONE] * 60, "each launch writes once", result.stdout[:1500])


def test_an_unknown_action(bench):
    """The released library has no such word, and says which it has."""
    result = bench.run([], spec(site("w", action="probe")), command=[sys.executable, CLIENT, "alone"])
    bench.check("found \"probe\"; expected one of capture" in result.stderr, "a line says so", result.stderr)
