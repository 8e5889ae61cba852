# SPDX-License-Identifier: Apache-2.0
"""`overload: complete`: launches wait for room, nothing is lost; the wait is bounded, and what is then lost is counted."""
import time

import pytest

from kit import START, filled, site, spec


HUNDRED = START + ["repeat 100", "launch block 0 1 64 p 64 %i", "endrepeat", "sync", "digest p 256"]
TWO_SITES = spec(site("was", when="before"), site("is"), head="ring: {bytes: 4096, slots: 2}\noverload: {mode: complete, wait_ms: 20000}")


@pytest.mark.parametrize("head, slow", [
    pytest.param("ring: {bytes: 4096, slots: 2}", {"DMI_STANDIN_DTOH_LATENCY_NS": 2000000}, id="two slots"),
    pytest.param("ring: {bytes: 4096, slots: 4096}", {"DMI_STANDIN_DTOH_LATENCY_NS": 5000000}, id="few bytes"),
    pytest.param("ring: {bytes: 4096, slots: 64}", {"DMI_STANDIN_DTOH_BPS": 200000}, id="a slow link"),
])
def test_launches_wait(bench, head, slow):
    r = bench.alike("waiting", HUNDRED, spec(site(), head=head + "\noverload: {mode: complete, wait_ms: 20000}"), **slow)
    run = bench.captured("waiting", r, [filled(s, 64) for s in range(100)])
    bench.check(run and not any(run.counters.dropped), "nothing is dropped", run and run.counters.dropped)


def test_two_sites_a_launch(bench):
    """One before and one after it: the second waits for the first one's slot."""
    r = bench.run(HUNDRED, TWO_SITES, DMI_STANDIN_DTOH_LATENCY_NS=1000000)
    bench.captured("two sites a launch", r, [filled(s, 64) for s in range(100)], site=1)


def test_several_threads_wait(bench):
    script = START + ["threads 4", "setctx c", "stream s%t", "repeat 30", "launch block s%t 1 64 p+%t000 64 1%t0%i", "endrepeat", "ssync s%t", "endthreads"]
    r = bench.run(script, TWO_SITES, DMI_STANDIN_DTOH_LATENCY_NS=500000)
    run = r.run()
    bench.check(not run.balance() and run.counters.captured[1].records == 120 and not any(run.counters.dropped), "several threads wait",
                f"{run.balance()} {run.counters.captured} {run.counters.dropped}")


@pytest.mark.parametrize("overload, least", [
    pytest.param("{mode: complete, wait_ms: 20}", 0.1, id="20 ms"),
    pytest.param("{mode: complete, wait_ms: 0}", 0, id="no wait"),
    pytest.param("{mode: drop}", 0, id="drop"),
])
def test_bounded(bench, overload, least):
    script = START + ["repeat 12", "launch block 0 1 64 p 64 %i", "endrepeat", "sync", "digest p 256"]
    slow = {"DMI_STANDIN_DTOH_LATENCY_NS": 400000000}
    clean = bench.run(script, preload=False, **slow)
    started = time.monotonic()
    r = bench.run(script, spec(site(), head=f"ring: {{bytes: 4096, slots: 2}}\noverload: {overload}"), **slow)
    took = time.monotonic() - started
    run = r.run()
    c = run.counters
    bench.check(r.said() == clean.said(), "the application notices nothing", f"{r.said()} {r.stderr}")
    bench.check(c.dropped[0].get("ring_full") and c.expected[0].records == 12 and not run.balance(), "what finds no room is counted",
                f"{c.expected} {c.captured} {c.dropped} {run.balance()}")
    bench.check(least <= took <= 8, "the wait is bounded", f"{took:.2f} s")
    bench.check(all(x.words in [filled(s, 64) for s in range(12)] for x in run.of(0)), "what was captured is undamaged")


# 16 KiB and more a record, of rows of 64 bytes, in a ring of 4 KiB
ROWS = "[{row: true, count: 'arg[1].u32 / 16'}, {count: 16}]"
LARGE = START + ["repeat 12", "launch block 0 79 64 p 5000 %i", "launch other 0 1 64 p 64 7", "endrepeat", "sync", "digest p 256"]
ASIDE = "ring: {bytes: 4096, slots: 16}\noverload: {mode: complete, wait_ms: 20000}"


def whole(seed):
    return filled(seed, 5000 // 16 * 16)


@pytest.mark.parametrize("slow", [{}, {"DMI_STANDIN_DTOH_LATENCY_NS": 1000000}, {"DMI_STANDIN_PAUSE": 8}], ids=str)
def test_records_larger_than_the_ring(bench, slow):
    """Before the kernel and after it, the same tensor as a view of half its columns, rows of two dimensions, which are no pieces, and a
    record that fits: one after the other."""
    half = site("half", dims=ROWS.replace("{count: 16}", "{count: 8}").replace("/ 16'", "/ 16', stride: 64"))
    pairs = site("pairs", dims="[{row: true, count: 4, stride: 2048}, {row: true, count: 4, stride: 64}, {count: 16, stride: 4}]")
    text = spec(site("was", when="before", dims=ROWS), site("is", dims=ROWS), half, site("small", kernel="^other$"), pairs, head=ASIDE)
    r = bench.alike("larger than the ring", LARGE, text, **slow)
    run = bench.captured("larger than the ring", r, [whole(s) for s in range(12)], site=1)
    if not run:
        return
    bench.check([x.words for x in run.of(0)][1:] == [filled(7, 64) + whole(s)[64:] for s in range(11)], "before the kernel: as it was")
    columns = [tuple(w for i, w in enumerate(whole(s)) if i % 16 < 8) for s in range(12)]
    bench.check([x.words for x in run.of(2)] == columns, "a view: its columns")
    bench.check([x.words for x in run.of(3)] == [filled(7, 64)] * 12, "what fits is among them")
    chosen = [tuple(whole(s)[o * 512 + i * 16 + c] for o in range(4) for i in range(4) for c in range(16)) for s in range(12)]
    bench.check([x.words for x in run.of(4)] == chosen, "rows of two dimensions", [x.words[:4] for x in run.of(4)][:2])
    bench.check(not any(run.counters.dropped), "nothing is dropped", run.counters.dropped)


def test_pieces_of_several_threads(bench):
    script = START + ["threads 4", "setctx c", "stream s%t", "repeat 10", "launch block s%t 79 64 p+%t00000 5000 1%t0%i",
                      "endrepeat", "ssync s%t", "endthreads"]
    r = bench.run(script, spec(site("is", dims=ROWS), head=ASIDE), DMI_STANDIN_DTOH_LATENCY_NS=200000)
    run = r.run()
    bench.check(not run.balance() and run.counters.captured[0].records == 40 and not any(run.counters.dropped), "several threads' pieces",
                f"{run.balance()} {run.counters.captured} {run.counters.dropped}")
    wanted = sorted(whole(int(f"1{t}0{i}")) for t in range(4) for i in range(10))
    bench.check(sorted(x.words for x in run.of(0)) == wanted, "each record is of one launch")


@pytest.mark.parametrize("head, reason", [
    pytest.param("overload: {mode: complete, wait_ms: 5}", "ring_full", id="no time"),
    pytest.param("overload: {mode: drop}", "too_large", id="drop"),
])
def test_pieces_that_do_not_come(bench, head, reason):
    """The first pieces of a record whose others find no room are no record."""
    text = spec(site("is", dims=ROWS), head="ring: {bytes: 4096, slots: 16}\n" + head)
    r = bench.alike(reason, LARGE, text, DMI_STANDIN_DTOH_LATENCY_NS=100000000)
    run = r.run()
    bench.check(not run.balance() and set(run.counters.dropped[0]) == {reason}, f"{reason}: what is incomplete is counted",
                f"{run.balance()} {run.counters.expected} {run.counters.dropped}")
    bench.check(all(x.words in [whole(s) for s in range(12)] for x in run.of(0)), f"{reason}: what was captured is complete")


def test_rows_larger_than_the_ring(bench):
    rows = "[{row: true, count: 2}, {count: 'arg[1].u32 / 2'}]"
    run = bench.alike("rows", LARGE, spec(site("is", dims=rows), head=ASIDE)).run()
    bench.check(set(run.counters.dropped[0]) == {"too_large"} and not run.balance(), "a row is the least that is copied at once",
                f"{run.counters.dropped} {run.balance()}")
