#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`overload: complete`: launches wait for room, nothing is lost; the wait is bounded, and what is then lost is counted."""
import time

from kit import START, Bench, filled, site, spec

bench = Bench()


def timed(*args, **options):
    started = time.monotonic()
    r = bench.run(*args, **options)
    return r, time.monotonic() - started


def complete():
    script = START + ["repeat 100", "launch block 0 1 64 p 64 %i", "endrepeat", "sync", "digest p 256"]
    expected = [filled(s, 64) for s in range(100)]
    for what, head, slow in (("two slots", "ring: {bytes: 4096, slots: 2}", {"DMI_STANDIN_DTOH_LATENCY_NS": 2000000}),
                             ("few bytes", "ring: {bytes: 4096, slots: 4096}", {"DMI_STANDIN_DTOH_LATENCY_NS": 5000000}),
                             ("a slow link", "ring: {bytes: 4096, slots: 64}", {"DMI_STANDIN_DTOH_BPS": 200000})):
        r = bench.alike(what, script, spec(site(), head=head + "\noverload: {mode: complete, wait_ms: 20000}"), **slow)
        run = bench.captured(f"{what}, waiting", r, expected)
        bench.check(run and not any(run.counters.dropped), f"{what}: nothing is dropped", run and run.counters.dropped)
    # two sites on a launch, one before and one behind it: the second waits for the first one's slot
    text = spec(site("was", when="before"), site("is"), head="ring: {bytes: 4096, slots: 2}\noverload: {mode: complete, wait_ms: 20000}")
    r = bench.run(script, text, DMI_STANDIN_DTOH_LATENCY_NS=1000000)
    bench.captured("two sites a launch", r, expected, site=1)
    script = START + ["threads 4", "setctx c", "stream s%t", "repeat 30", "launch block s%t 1 64 p+%t000 64 1%t0%i", "endrepeat", "ssync s%t", "endthreads"]
    r = bench.run(script, text, DMI_STANDIN_DTOH_LATENCY_NS=500000)
    run = r.run()
    bench.check(not run.balance() and run.counters.captured[1].records == 120 and not any(run.counters.dropped), "several threads wait",
                f"{run.balance()} {run.counters.captured} {run.counters.dropped}")


def bounded():
    script = START + ["repeat 12", "launch block 0 1 64 p 64 %i", "endrepeat", "sync", "digest p 256"]
    slow = {"DMI_STANDIN_DTOH_LATENCY_NS": 400000000}
    for what, overload, least, most in (("20 ms", "{mode: complete, wait_ms: 20}", 0.1, 8), ("no wait", "{mode: complete, wait_ms: 0}", 0, 8),
                                        ("drop", "{mode: drop}", 0, 8)):
        clean = bench.run(script, preload=False, **slow)
        r, took = timed(script, spec(site(), head=f"ring: {{bytes: 4096, slots: 2}}\noverload: {overload}"), **slow)
        run = r.run()
        c = run.counters
        dropped = c.dropped[0].get("ring_full")
        bench.check(r.said() == clean.said(), f"{what}: the host notices nothing", f"{r.said()} {r.stderr}")
        bench.check(dropped and c.expected[0].records == 12 and not run.balance(), f"{what}: what finds no room is counted",
                    f"{c.expected} {c.captured} {c.dropped} {run.balance()}")
        bench.check(least <= took <= most, f"{what}: the wait is bounded", f"{took:.2f} s")
        bench.check(all(x.words in [filled(s, 64) for s in range(12)] for x in run.of(0)), f"{what}: what was captured is whole")


for test in (complete, bounded):
    bench.part(test)
bench.checks.exit()
