#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handles that end and come back, contexts, devices, threads, streams, and every way to split or leave a process."""
import os
import time

from kit import CLIENT, START, Bench, filled, site, spec

bench = Bench()
TEXT = spec(site())
SLOW = {"DMI_STANDIN_DTOH_LATENCY_NS": 20000000}


def words(run, i=0):
    return sorted(r.words for r in run.of(i))


def all_of(what, r, expected, n_runs=1, **more):
    """All runs together hold @expected records, in any order, and each is balanced."""
    if not bench.check(len(r.folders) == n_runs, f"{what}: {n_runs} runs were written", f"{r.folders} {r.stderr[-500:]} {r.stdout[-300:]}"):
        return
    runs = [r.run(i) for i in range(n_runs)]
    got = sorted(w for run in runs for w in words(run))
    bench.check(got == sorted(expected), f"{what}: all was captured",
                f"{len(got)} of {len(expected)}, {[run.counters.dropped for run in runs]} {r.stderr[-500:]}")
    wrong = [run.balance() for run in runs if run.balance()]
    bench.check(not wrong, f"{what}: accounted for", wrong)


def modules():
    script = START + ["launch block 0 1 64 p 64 1", "unload m", "module m2 again", "func a m2 other", "func b m2 last", "func c2 m2 first",
                      "func d2 m2 block"]
    script += ["launch a 0 1 64 p 64 2", "launch b 0 1 64 p 64 3", "launch c2 0 1 64 p 64 4", "launch d2 0 1 64 p 64 5", "sync", "digest p 256"]
    r = bench.alike("a module is unloaded, its handles come back for other kernels", script, TEXT)
    all_of("a reused handle", r, [filled(1, 64), filled(5, 64)])
    script = START + ["library l fill", "kernel k l block", "kfunc kf k", "launch k 0 1 64 p 64 1", "launch kf 0 1 64 p 64 2", "libunload l",
                      "library l2 again", "kernel a l2 other", "kernel b l2 block", "kfunc af a", "kfunc bf b", "launch a 0 1 64 p 64 3",
                      "launch b 0 1 64 p 64 4", "launch af 0 1 64 p 64 5", "launch bf 0 1 64 p 64 6", "sync"]
    r = bench.alike("a library is unloaded, its handles come back for other kernels", script, TEXT)
    all_of("a reused kernel", r, [filled(s, 64) for s in (1, 2, 4, 6)])
    script = START + ["repeat 50", "module n%i fill", "func f%i n%i block", "launch f%i 0 1 64 p 64 %i", "sync", "unload n%i", "module n%i again",
                      "func g%i n%i other", "launch g%i 0 1 64 p 64 99", "sync", "unload n%i", "endrepeat"]
    r = bench.alike("modules come and go", script, TEXT)
    all_of("modules that come and go", r, [filled(s, 64) for s in range(50)])


def contexts():
    script = START + ["repeat 20", "launch block 0 1 64 p 64 %i", "endrepeat", "ctxdestroy c", "ctx c2 d", "module m2 fill", "func g m2 block",
                      "alloc p2 4096", "launch g 0 1 64 p2 64 30", "launch g 0 1 64 p2 64 31", "sync", "digest p2 256"]
    r = bench.alike("a context is destroyed with records in flight, another comes", script, TEXT, **SLOW)
    all_of("a context with records in flight", r, [filled(s, 64) for s in [*range(20), 30, 31]])
    script = START + ["launch block 0 1 64 p 64 1", "sync"] + \
        ["repeat 12", "ctx c%i d", "module m%i fill", "func f%i m%i block", "alloc p%i 4096", "launch f%i 0 1 64 p%i 64 %i", "endrepeat",
         "repeat 12", "setctx c%i", "launch f%i 0 1 64 p%i 64 4%i", "sync", "endrepeat", "setctx c", "launch block 0 1 64 p 64 2", "sync"]
    r = bench.alike("many contexts at a time", script, TEXT)
    all_of("many contexts", r, [filled(s, 64) for s in [1, 2, *range(12), *[int(f"4{i}") for i in range(12)]]])
    script = ["init 0", "device d 0", "repeat 70", "ctx c d", "module m fill", "func f m block", "alloc p 4096", "launch f 0 1 64 p 64 %i", "ctxdestroy c",
              "endrepeat"]
    r = bench.alike("contexts come and go", script, TEXT)
    all_of("contexts that come and go", r, [filled(s, 64) for s in range(70)])


def primary():
    script = ["init 0", "device d 0", "repeat 5", "retain c d", "retain c d", "setctx c", "module m fill", "func f m block", "alloc p 4096",
              "launch f 0 1 64 p 64 %i", "release d", "launch f 0 1 64 p 64 1%i", "release d", "endrepeat"]
    r = bench.alike("the primary context is released and retained", script, TEXT, **SLOW)
    all_of("a primary context", r, [filled(int(f"{p}{i}"), 64) for i in range(5) for p in ("", "1")])
    script = ["init 0", "device d 0", "repeat 3", "retain c d", "setctx c", "module m fill", "func f m block", "alloc p 4096", "launch f 0 1 64 p 64 %i",
              "reset d", "endrepeat"]
    r = bench.alike("the primary context is reset", script, TEXT, **SLOW)
    all_of("a reset primary context", r, [filled(i, 64) for i in range(3)])


def devices():
    script = ["init 0", "repeat 3", "device d%i %i", "ctx c%i d%i", "module m%i fill", "func f%i m%i block", "alloc p%i 4096", "endrepeat", "repeat 3",
              "setctx c%i", "launch f%i 0 1 64 p%i 64 %i", "endrepeat", "repeat 3", "setctx c%i", "sync", "endrepeat"]
    r = bench.alike("several devices", script, TEXT, DMI_STANDIN_DEVICES=3)
    all_of("several devices", r, [filled(s, 64) for s in range(3)])
    if r.folders:
        bench.check(sorted((x.device, x.words[0] >> 16) for x in r.run().of(0)) == [(0, 0), (1, 1), (2, 2)], "records name their device")


def threads_and_streams():
    script = START + ["threads 8", "setctx c", "stream s%t", "alloc q%t 4096", "repeat 40", "launch block s%t 1 64 q%t 64 5%t0%i", "endrepeat",
                      "ssync s%t", "endthreads"] + [f"digest q{t} 256" for t in range(8)]
    text = spec(site(), head="ring: {bytes: 4M, slots: 1024}\noverload: {mode: complete, wait_ms: 5000}")
    r = bench.alike("several threads and streams", script, text)
    expected = [filled(int(f"5{t}0{i}"), 64) for t in range(8) for i in range(40)]
    all_of("several threads and streams", r, expected)
    if r.folders:
        order = [x.launch for x in r.run().of(0)]
        bench.check(order == sorted(order) and len(set(order)) == len(order), "launch sequences rise")
    script = START + ["threads 6", "repeat 6", "ctx c%t%i d", "module m%t%i fill", "func f%t%i m%t%i block", "alloc q%t%i 4096",
                      "launch f%t%i 0 1 64 q%t%i 64 %t%i", "ctxdestroy c%t%i", "endrepeat", "endthreads"]
    r = bench.alike("threads make and destroy contexts", script, TEXT)
    all_of("threads that make and destroy contexts", r, [filled(int(f"{t}{i}"), 64) for t in range(6) for i in range(6)])
    script = START + ["stream s", "repeat 10", "launch block s 1 64 p 64 %i", "endrepeat", "streamdestroy s", "sync"]
    r = bench.alike("a stream is destroyed with work in it", script, TEXT)
    all_of("a destroyed stream", r, [filled(s, 64) for s in range(10)])


def ring_is_made_late():
    """The ring is made at the first launch of a site, whatever else is going on in the context then."""
    busy = ["alloc q 4096"] + ["launch other 0 20000 256 q 64 3"] * 30
    script = START + ["stream s", *busy, "launch block s 1 64 p 64 1", "launch block s 1 64 p 64 2", "ssync s", "sync", "digest p 256"]
    r = bench.alike("the NULL stream is busy when the ring is made", script, TEXT)
    all_of("a ring that is made beside a busy NULL stream", r, [filled(1, 64), filled(2, 64)])
    script = START + ["stream b 0", "stream s", "capture b", "launch other b 1 64 p 64 1", "launch block s 1 64 p 64 2", "launch other b 1 64 p 64 3",
                      "endcapture g b", "ssync s", "sync", "digest p 256"]
    r = bench.alike("a blocking stream is captured when the ring is made", script, TEXT)
    all_of("a ring that is made during a capture", r, [filled(2, 64)])


def forks():
    work = ["launch block 0 1 64 p 64 1", "sync"]
    fresh = ["init 0", "device d 0", "ctx c d", "module m fill", "func f m block", "alloc p 4096", "launch f 0 1 64 p 64 9", "sync"]
    cases = {
        "a child that does nothing": (START + work + ["fork", "sleep 1", "endfork"] + work, 1, [1, 1]),
        "a child that launches": (START + work + ["fork", "launch block 0 1 64 p 64 5", "sync", "endfork"] + work, 1, [1, 1]),
        "a child that calls _exit": (START + work + ["fork", "_exit 5", "endfork"] + work, 1, [1, 1]),
        "a child that calls exit": (START + work + ["fork", "exit 5", "endfork"] + work, 1, [1, 1]),
        "a child that is killed": (START + work + ["fork", "kill9", "endfork"] + work, 1, [1, 1]),
        "a child that initialises CUDA itself": (["fork", *fresh, "endfork", "fork", *fresh, "exit 4", "endfork", *START, *work], 3, [9, 9, 1]),
        "a child of a process that did: it cannot": (START + work + ["fork", "init 0", "device d 0", "endfork"] + work, 1, [1, 1]),
        "a grandchild": (["fork", "fork", *fresh, "endfork", "endfork", *START, *work], 2, [9, 1]),
        "vfork and _exit": (START + work + ["vfork"] + work, 1, [1, 1]),
        "spawn": (START + work + ["spawn /bin/true", "spawn /bin/sh -c true"] + work, 1, [1, 1]),
        "fork and exec": (START + work + ["fork", "exec /bin/true", "endfork"] + work, 1, [1, 1]),
        "fork while a thread launches": (START + ["threads 3", "setctx c", "repeat 20", "launch block 0 1 64 p+%t0000 64 1", "endrepeat", "vfork", "endthreads",
                                                  "sync"], 1, [1] * 60),
    }
    for what, (script, n_runs, seeds) in cases.items():
        r = bench.alike(what, script, TEXT)
        all_of(what, r, [filled(s, 64) for s in seeds], n_runs)
    # a program of its own in the child writes a run of its own
    (bench.folder / "inner").write_text("\n".join(fresh) + "\n")
    for how in (["fork", f"exec {CLIENT} {bench.folder / 'inner'}", "endfork"], [f"spawn {CLIENT} {bench.folder / 'inner'}"]):
        r = bench.alike(how[0].split()[0] + ": a program that uses CUDA", START + work + how + work, TEXT)
        all_of(how[0].split()[0] + ": a program that uses CUDA", r, [filled(s, 64) for s in (1, 1, 9)], 2)


def ends():
    launches = ["repeat 30", "launch block 0 1 64 p 64 %i", "endrepeat"]
    expected = [filled(s, 64) for s in range(30)]
    for what, end in {"exit": ["exit 5"], "_exit": ["_exit 6"], "_Exit": ["_Exit 7"], "exit from a thread": ["threadexit 8"], "return": [],
                      "dlclose": ["sync", "close", "exit 9"], "after the context": ["ctxdestroy c", "exit 10"], "after a sync": ["sync", "_exit 11"]}.items():
        r = bench.alike(what, START + launches + end, TEXT, DMI_STANDIN_DTOH_LATENCY_NS=1000000)
        all_of(what, r, expected)
    # whoever is first to leave does so while the others launch, or leave as well
    race = START + ["threads 4", "setctx c", "stream s%t", "repeat 30", "launch block s%t 1 64 p+%t000 64 1%t0%i", "endrepeat", "_exit 3", "endthreads"]
    wrong = []
    for seed in range(1, 9):
        r = bench.run(race, TEXT, DMI_STANDIN_DELAY_SEED=seed)
        balance = r.run().balance() if r.folders else "no run"
        if r.said()[0] != 3 or balance:
            wrong.append(f"seed {seed}: {r.code} {balance} {r.stderr[-300:]} {r.stdout[-200:]}")
    bench.check(not wrong, "_exit while others launch: accounted for", wrong)
    r = bench.run(START + launches + ["kill9"], TEXT, **SLOW)
    c = r.run().counters
    held = len(r.run().of(0))
    bench.check(r.code == -9 and c.expected[0].records == 30 and c.state == 1 and c.captured[0].records <= held <= 30,
                "kill -9: what is missing can be told", f"{r.code} {c.expected} {c.captured} {held} {c.state}")
    started = time.monotonic()
    r = bench.run(START + launches + ["exit 5"], TEXT, DMI_EXIT_MS=300, DMI_STANDIN_DTOH_LATENCY_NS=4000000000)
    took = time.monotonic() - started
    bench.check(r.code == 5 and took < 10, "the last flush is bounded", f"{r.code} {took:.1f} s {r.stderr}")
    c = r.run().counters
    bench.check(c.expected[0].records == 30 and (not r.run().balance() or c.state == 1), "what it left is counted or lost_at_kill",
                f"{c.expected} {c.captured} {c.dropped} {r.stderr}")


def bystanders():
    for what, script, way in (("a program that does nothing", [], "dlopen"), ("a program that only loads the driver", ["sleep 1"], "link"),
                              ("cuInit alone", ["init 0"], "dlopen"), ("cuInit that fails", ["init 7"], "dlopen"),
                              ("launches of other kernels only", START + ["launch other 0 1 64 p 64 1", "sync"], "dlopen"),
                              ("fork alone", ["fork", "exit 3", "endfork"], "dlopen"), ("a thread", ["threads 2", "sleep 1", "endthreads"], "dlopen")):
        r = bench.alike(what, script, TEXT, way=way)
        bench.check(not r.folders and not r.stderr, f"{what}: no file, no word", f"{r.folders} {r.stderr}")
    # threads: /proc/self/task of a shell that has loaded us, but no driver
    r = bench.run([], TEXT, command=["/bin/sh", "-c", "ls /proc/$$/task | wc -l; echo hello; exit 6"])
    bench.check(r.said() == (6, "1\nhello\n") and not r.stderr and not r.folders, "a shell: no thread, no file, no word", f"{r.said()} {r.stderr} {r.folders}")


os.environ.setdefault("LC_ALL", "C")
for test in (modules, contexts, primary, devices, threads_and_streams, ring_is_made_late, forks, ends, bystanders):
    bench.part(test)
bench.checks.exit()
