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
