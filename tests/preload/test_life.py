# SPDX-License-Identifier: Apache-2.0
"""Handles that end and come back, contexts, devices, threads, streams, and every way to split or leave a process."""
import os
import sys
import time

import pytest

from kit import CLIENT, START, filled, site, spec
from standin_log import Log

TEXT = spec(site())
REUSE = {"DMI_STANDIN_HANDLES": "reuse"}  # what is kept for a handle, or an address, after its end is found then
SLOW = {"DMI_STANDIN_DTOH_LATENCY_NS": 20000000}


def words(run, i=0):
    return sorted(r.words for r in run.of(i))


def all_of(bench, what, r, expected, n_runs=1):
    """All runs together hold @expected records, in any order, and each is balanced."""
    if not bench.check(len(r.folders) == n_runs, f"{what}: {n_runs} runs were written", f"{r.folders} {r.stderr[-500:]} {r.stdout[-300:]}"):
        return
    runs = [r.run(i) for i in range(n_runs)]
    got = sorted(w for run in runs for w in words(run))
    bench.check(got == sorted(expected), f"{what}: all was captured",
                f"{len(got)} of {len(expected)}, {[run.counters.dropped for run in runs]} {r.stderr[-500:]}")
    wrong = [run.balance() for run in runs if run.balance()]
    bench.check(not wrong, f"{what}: accounted for", wrong)


def test_a_log_stays_where_the_program_began(bench):
    """A daemon changes its folder before it starts CUDA, and again later."""
    folder = bench.folder / "began"
    folder.mkdir()
    code = "import ctypes, os\nos.chdir('/proc')\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\nos.chdir('/')"
    r = bench.run([], TEXT, command=["sh", "-c", f"cd '{folder}' && exec '{sys.executable}' -c \"$0\"", code], DMI_LOG="own.log")
    log = folder / "own.log"
    bench.check(r.code == 0 and log.exists() and "no launch matched" in log.read_text() and "no launch matched" not in r.stderr, "by a relative path", (r.stderr, list(folder.iterdir())))


def test_modules(bench):
    script = START + ["launch block 0 1 64 p 64 1", "unload m", "module m2 again", "func a m2 other", "func b m2 last", "func c2 m2 first",
                      "func d2 m2 block"]
    script += ["launch a 0 1 64 p 64 2", "launch b 0 1 64 p 64 3", "launch c2 0 1 64 p 64 4", "launch d2 0 1 64 p 64 5", "sync", "digest p 256"]
    r = bench.alike("a module is unloaded, its handles come back for other kernels", script, TEXT, **REUSE)
    all_of(bench, "a reused handle", r, [filled(1, 64), filled(5, 64)])
    script = START + ["repeat 50", "module n%i fill", "func f%i n%i block", "launch f%i 0 1 64 p 64 %i", "sync", "unload n%i", "module n%i again",
                      "func g%i n%i other", "launch g%i 0 1 64 p 64 99", "sync", "unload n%i", "endrepeat"]
    r = bench.alike("modules come and go", script, TEXT, **REUSE)
    all_of(bench, "modules that come and go", r, [filled(s, 64) for s in range(50)])


@pytest.mark.since(12000, "libraries (cuLibraryLoadData)")
def test_libraries(bench):
    script = START + ["library l fill", "kernel k l block", "kfunc kf k", "launch k 0 1 64 p 64 1", "launch kf 0 1 64 p 64 2", "libunload l",
                      "library l2 again", "kernel a l2 other", "kernel b l2 block", "kfunc af a", "kfunc bf b", "launch a 0 1 64 p 64 3",
                      "launch b 0 1 64 p 64 4", "launch af 0 1 64 p 64 5", "launch bf 0 1 64 p 64 6", "sync"]
    r = bench.alike("a library is unloaded, its handles come back for other kernels", script, TEXT, **REUSE)
    all_of(bench, "a reused kernel", r, [filled(s, 64) for s in (1, 2, 4, 6)])


@pytest.mark.since(12040, "cuLibraryEnumerateKernels")
def test_enumerated_kernels(bench):
    script = START + ["library l fill", "kernels k l 40", "launch k1 0 1 64 p 64 1", "launch k2 0 1 64 p 64 2", "libunload l", "library l2 again",
                      "kernels j l2 40", "launch j1 0 1 64 p 64 3", "launch j3 0 1 64 p 64 4", "sync", "digest p 256"]
    r = bench.alike("kernels are enumerated into an array that is longer", script, TEXT)
    all_of(bench, "enumerated kernels", r, [filled(s, 64) for s in (1, 4)])


def test_an_address_comes_back(bench):
    """What is known of an allocation ends with it: a smaller one at the same address has other bounds, and a copy past them would fault."""
    begin = "launch first 0 1 64 p 64 0"  # of a forward: each launch is the first of its site there
    script = START + ["module mv view", "func view mv view0", "alloc q 1048576", "write q 8000 5", begin, "launch view 0 1 1 q 2000 0", "sync", "free q",
                      "alloc r 4096", "write r 4096 6", begin, "launch view 0 1 1 r 2000 0", begin, "launch view 0 1 1 r 1000 0", "sync", "digest r 4096"]
    text = spec(site(kernel="^view0$"), head="forward:\n  - {kind: step, begin: {kernel: '^first$'}}")
    r = bench.alike("an allocation ends, a smaller one comes", script, text, **REUSE)
    if bench.check(len(r.folders) == 1, "a run was written", r.stderr[-500:]):
        run = r.run()
        got = [len(x.words) for x in run.of(0)]
        bench.check(got == [2000, 1000] and run.counters.dropped[0]["bad_pointer"].records == 1 and not run.balance(),
                    "the launch past the end is dropped by name", f"{got} {run.counters.dropped} {run.balance()}")


def test_contexts(bench):
    script = START + ["repeat 20", "launch block 0 1 64 p 64 %i", "endrepeat", "ctxdestroy c", "ctx c2 d", "module m2 fill", "func g m2 block",
                      "alloc p2 4096", "launch g 0 1 64 p2 64 30", "launch g 0 1 64 p2 64 31", "sync", "digest p2 256"]
    r = bench.alike("a context is destroyed with records in flight, another comes", script, TEXT, **SLOW, **REUSE)
    all_of(bench, "a context with records in flight", r, [filled(s, 64) for s in [*range(20), 30, 31]])
    script = START + ["launch block 0 1 64 p 64 1", "sync"] + \
        ["repeat 12", "ctx c%i d", "module m%i fill", "func f%i m%i block", "alloc p%i 4096", "launch f%i 0 1 64 p%i 64 %i", "endrepeat",
         "repeat 12", "setctx c%i", "launch f%i 0 1 64 p%i 64 4%i", "sync", "endrepeat", "setctx c", "launch block 0 1 64 p 64 2", "sync"]
    r = bench.alike("many contexts at a time", script, TEXT)
    all_of(bench, "many contexts", r, [filled(s, 64) for s in [1, 2, *range(12), *[int(f"4{i}") for i in range(12)]]])
    script = ["init 0", "device d 0", "repeat 70", "ctx c d", "module m fill", "func f m block", "alloc p 4096", "launch f 0 1 64 p 64 %i", "ctxdestroy c",
              "endrepeat"]
    r = bench.alike("contexts come and go", script, TEXT, **REUSE)
    all_of(bench, "contexts that come and go", r, [filled(s, 64) for s in range(70)])


def test_primary(bench):
    script = ["init 0", "device d 0", "repeat 5", "retain c d", "retain c d", "setctx c", "module m fill", "func f m block", "alloc p 4096",
              "launch f 0 1 64 p 64 %i", "release d", "launch f 0 1 64 p 64 1%i", "release d", "endrepeat"]
    r = bench.alike("the primary context is released and retained", script, TEXT, **SLOW, **REUSE)
    all_of(bench, "a primary context", r, [filled(int(f"{p}{i}"), 64) for i in range(5) for p in ("", "1")])
    script = ["init 0", "device d 0", "repeat 3", "retain c d", "setctx c", "module m fill", "func f m block", "alloc p 4096", "launch f 0 1 64 p 64 %i",
              "reset d", "endrepeat"]
    r = bench.alike("the primary context is reset", script, TEXT, **SLOW, **REUSE)
    all_of(bench, "a reset primary context", r, [filled(i, 64) for i in range(3)])


@pytest.mark.parametrize("ends", [["reset d"], ["retain k d", "release d"], ["unseenretain k d", "release d"]], ids=["reset", "released", "unseen"])
def test_another_context_has_the_handle_of_a_primary_one(bench, ends):
    """The next end of the primary context is none of that one's."""
    use = ["module m fill", "func f m block", "alloc p 4096", "repeat 3", "launch f 0 1 64 p 64 1%i", "endrepeat"]
    script = ["init 0", "device d 0", "retain c d", "setctx c", *use, "release d", "ctx c2 d", *use, *ends, "launch f 0 1 64 p 64 1", *use, "sync", "digest p 256"]
    r = bench.alike("a context has the handle of a primary one", script, TEXT, **SLOW, **REUSE)
    all_of(bench, "one with the handle of another", r, [filled(s, 64) for s in (1, *(10, 11, 12) * 3)])


PRIMARY = ["init 0", "device d 0", "retain c d", "setctx c"]
MADE = ["ctx c d"]
USE = ["module m fill", "func block m block", "alloc p 4096", "stream a"]


@pytest.mark.parametrize("begin, more, less", [
    pytest.param(PRIMARY, "retain c d", "release d", id="release"),
    pytest.param(START[:2] + MADE, "ctxattach c", "ctxdetach c", id="detach")])
def test_a_reference_that_is_not_the_last_changes_nothing(bench, begin, more, less):
    """What is in flight ends only after the call: a library that waited for it in the call would wait for good. And functions stay known."""
    log = bench.folder / "log"
    script = [*begin, *USE, "module ms spin", "func spin ms spin", "hostalloc w 64", "store w 0", "launch block a 1 64 p 64 1", "ssync a",
              "launch spin a 1 1 w 0 0", "launch block a 1 64 p 64 2", more, less, "launch block a 1 64 p 64 3", "store w 1", "ssync a",
              "launch block a 1 64 p 64 4", "ssync a", less, "device end 0"]
    r = bench.alike("a reference of two is given back", script, TEXT, timeout=20, DMI_EXIT_MS=600000, DMI_STANDIN_LOG=log)
    all_of(bench, "a reference of two", r, [filled(s, 64) for s in (1, 2, 3, 4)])
    names = [c["name"] for c in Log(log).calls]
    names = names[-names[::-1].index("cuInit") - 1:]  # with the library
    ends = [i for i, name in enumerate(names) if name in ("cuDevicePrimaryCtxRelease_v2", "cuCtxDetach")]
    asked = sorted({name for name in names[ends[0]:ends[-1]] if name.startswith("cuFunc")})
    bench.check(len(ends) == 2 and not asked, "nothing is asked again of functions", f"{ends} {asked}")


def test_a_reference_that_nobody_saw(bench):
    """The release that seems to be the last one is none: the drain stops, and goes on."""
    script = [*PRIMARY, *USE, "unseenretain u d", "repeat 4", "launch block a 1 64 p 64 1%i", "release d", "launch block a 1 64 p 64 2%i", "retain c d",
              "endrepeat", "ssync a", "digest p 256"]
    r = bench.alike("a reference that nobody saw", script, TEXT, **SLOW)
    all_of(bench, "a reference that nobody saw", r, [filled(int(f"{k}{i}"), 64) for i in range(4) for k in (1, 2)])


def test_threads_without_a_context(bench):
    """A launch on a stream runs in the stream's context; on the NULL stream there is none, for driver and library alike."""
    guest = ["threads 1", "repeat 3", "launch block s 1 64 p 64 1%i", "ssync s", "endrepeat", "launch block 0 1 64 p 64 9", "setctx c", "launch block 0 1 64 p 64 2",
             "endthreads"]
    script = START + ["stream s", *guest, "sync", "launch block s 1 64 p 64 3", "sync", "digest p 256"]
    r = bench.alike("a thread without a context launches", script, TEXT)
    all_of(bench, "launches without a context", r, [filled(s, 64) for s in (10, 11, 12, 2, 3)])
    bench.check(not r.complaints, "no word", r.complaints)
    script = START + ["stream s", "threads 1", "launch block s 1 64 p 64 1", "endthreads", "ssync s", "digest p 256"]
    r = bench.alike("the same, where the driver does not say the stream's context", script, TEXT, DMI_STANDIN_FAIL="cuStreamGetCtx:1:201")
    if bench.check(len(r.folders) == 1, "a run was written", r.stderr[-500:]):
        c = r.run().counters
        bench.check(c.expected[0].records == c.dropped[0]["unsupported"].records == 1 and not r.run().balance(), "it is a counted drop",
                    f"{c.expected} {c.dropped} {r.run().balance()} {r.stderr}")
        bench.check("by a thread without a current context" in r.stderr and "switched off" not in r.stderr, "the line says why", r.stderr)


@pytest.mark.since(12000, "libraries (cuLibraryLoadData)")
@pytest.mark.parametrize("calls", [["allocasync p 4096 0"], ["mapped p 2097152 1"], ["setctx c0", "setctx c1"], ["stream s"]],
                         ids=["pooled", "mapped", "current", "stream"])
def test_code_is_loaded_where_another_context_is_current(bench, calls):
    """The second device's context has its ring before the first launch, by whichever call comes between."""
    script = ["init 0", "repeat 2", "device d%i %i", "retain c%i d%i", "setctx c%i", "alloc q%i 4096", "endrepeat", "threads 1", "setctx c0",
              "library l fill", "kernel k l block", "launch k 0 1 64 q0 64 0", "sync", "endthreads"]
    where = "p" if any(" p " in call for call in calls) else "q1"
    script += [*calls, f"launch k 0 1 64 {where} 64 1", "sync", f"digest {where} 256"]
    r = bench.alike("two devices", script, TEXT, DMI_STANDIN_DEVICES=2)
    all_of(bench, "two devices", r, [filled(s, 64) for s in range(2)])


def test_devices(bench):
    script = ["init 0", "repeat 3", "device d%i %i", "ctx c%i d%i", "module m%i fill", "func f%i m%i block", "alloc p%i 4096", "endrepeat", "repeat 3",
              "setctx c%i", "launch f%i 0 1 64 p%i 64 %i", "endrepeat", "repeat 3", "setctx c%i", "sync", "endrepeat"]
    r = bench.alike("several devices", script, TEXT, DMI_STANDIN_DEVICES=3)
    all_of(bench, "several devices", r, [filled(s, 64) for s in range(3)])
    if r.folders:
        bench.check(sorted((x.device, x.words[0] >> 16) for x in r.run().of(0)) == [(0, 0), (1, 1), (2, 2)], "records name their device")


def test_threads_and_streams(bench):
    script = START + ["threads 8", "setctx c", "stream s%t", "alloc q%t 4096", "repeat 40", "launch block s%t 1 64 q%t 64 5%t0%i", "endrepeat",
                      "ssync s%t", "endthreads"] + [f"digest q{t} 256" for t in range(8)]
    text = spec(site(), head="ring: {bytes: 4M, slots: 1024}\noverload: {mode: complete, wait_ms: 5000}")
    r = bench.alike("several threads and streams", script, text)
    expected = [filled(int(f"5{t}0{i}"), 64) for t in range(8) for i in range(40)]
    all_of(bench, "several threads and streams", r, expected)
    if r.folders:
        order = [x.launch for x in r.run().of(0)]
        bench.check(order == sorted(order) and len(set(order)) == len(order), "launch sequences rise")
    script = START + ["threads 6", "repeat 6", "ctx c%t%i d", "module m%t%i fill", "func f%t%i m%t%i block", "alloc q%t%i 4096",
                      "launch f%t%i 0 1 64 q%t%i 64 %t%i", "ctxdestroy c%t%i", "endrepeat", "endthreads"]
    r = bench.alike("threads make and destroy contexts", script, TEXT)
    all_of(bench, "threads that make and destroy contexts", r, [filled(int(f"{t}{i}"), 64) for t in range(6) for i in range(6)])
    script = START + ["stream s", "repeat 10", "launch block s 1 64 p 64 %i", "endrepeat", "streamdestroy s", "sync"]
    r = bench.alike("a stream is destroyed with work in it", script, TEXT)
    all_of(bench, "a destroyed stream", r, [filled(s, 64) for s in range(10)])


def test_ring_is_made_late(bench):
    """The first launch of a site creates the ring, whatever else is going on in the context then."""
    busy = ["alloc q 4096"] + ["launch other 0 20000 256 q 64 3"] * 30
    script = START + ["stream s", *busy, "launch block s 1 64 p 64 1", "launch block s 1 64 p 64 2", "ssync s", "sync", "digest p 256"]
    r = bench.alike("the NULL stream is busy when the library creates the ring", script, TEXT)
    all_of(bench, "a ring created beside a busy NULL stream", r, [filled(1, 64), filled(2, 64)])
    script = START + ["stream b 0", "stream s", "capture b", "launch other b 1 64 p 64 1", "launch block s 1 64 p 64 2", "launch other b 1 64 p 64 3",
                      "endcapture g b", "ssync s", "sync", "digest p 256"]
    r = bench.alike("a blocking stream is captured when the library creates the ring", script, TEXT)
    all_of(bench, "a ring created during a capture", r, [filled(2, 64)])


@pytest.mark.since(12040, "cuFuncLoad")
@pytest.mark.parametrize("meanwhile, seeds", [
    pytest.param(["launch block b 1 64 p 64 1"], [1], id="the first launch of a site"),
    pytest.param(["func g m2 block"], [], id="looking a site's function up"),
    pytest.param(["kernel k l block"], [], id="looking a site's kernel up"),
    pytest.param(["launch other b 1 64 p 64 1", "func g m2 other", "kernel k l other"], [], id="what is no site's"),
])
def test_a_running_kernel_waits_for_this_thread(bench, meanwhile, seeds):
    """It spins on a word that the thread stores after these calls, none of which waits by itself: whatever waits in them hangs."""
    script = START + ["module ms spin", "func spin ms spin", "funcload spin", "funcload block", "funcload other", "module m2 fill", "library l fill",
                      "hostalloc w 64", "store w 0", "stream a", "stream b", "launch spin a 1 1 w 0 0", *meanwhile, "store w 1", "sync", "digest p 256"]
    r = bench.alike("a kernel spins", script, TEXT, timeout=10)
    if seeds:
        all_of(bench, "beside a spinning kernel", r, [filled(seed, 64) for seed in seeds])


WORK = ["launch block 0 1 64 p 64 1", "sync"]
FRESH = ["init 0", "device d 0", "ctx c d", "module m fill", "func f m block", "alloc p 4096", "launch f 0 1 64 p 64 9", "sync"]


@pytest.mark.parametrize("script, n_runs, seeds", [
    pytest.param(START + WORK + ["fork", "sleep 1", "endfork"] + WORK, 1, [1, 1], id="a child that does nothing"),
    pytest.param(START + WORK + ["fork", "launch block 0 1 64 p 64 5", "sync", "endfork"] + WORK, 1, [1, 1], id="a child that launches"),
    pytest.param(START + WORK + ["fork", "_exit 5", "endfork"] + WORK, 1, [1, 1], id="a child that calls _exit"),
    pytest.param(START + WORK + ["fork", "exit 5", "endfork"] + WORK, 1, [1, 1], id="a child that calls exit"),
    pytest.param(START + WORK + ["fork", "kill9", "endfork"] + WORK, 1, [1, 1], id="a child that is killed"),
    pytest.param(["fork", *FRESH, "endfork", "fork", *FRESH, "exit 4", "endfork", *START, *WORK], 3, [9, 9, 1],
                 id="a child that initialises CUDA itself"),
    pytest.param(START + WORK + ["fork", "init 0", "device d 0", "endfork"] + WORK, 1, [1, 1], id="a child of a process that did: it cannot"),
    pytest.param(["fork", "fork", *FRESH, "endfork", "endfork", *START, *WORK], 2, [9, 1], id="a grandchild"),
    pytest.param(START + WORK + ["vfork"] + WORK, 1, [1, 1], id="vfork and _exit"),
    pytest.param(START + WORK + ["spawn /bin/true", "spawn /bin/sh -c true"] + WORK, 1, [1, 1], id="spawn"),
    pytest.param(START + WORK + ["fork", "exec /bin/true", "endfork"] + WORK, 1, [1, 1], id="fork and exec"),
    pytest.param(START + ["threads 3", "setctx c", "repeat 20", "launch block 0 1 64 p+%t0000 64 1", "endrepeat", "vfork", "endthreads", "sync"],
                 1, [1] * 60, id="fork while a thread launches"),
])
def test_forks(bench, script, n_runs, seeds):
    r = bench.alike("forks", script, TEXT)
    all_of(bench, "forks", r, [filled(s, 64) for s in seeds], n_runs)


@pytest.mark.parametrize("how", [["fork", "exec CLIENT INNER", "endfork"], ["spawn CLIENT INNER"]], ids=["fork", "spawn"])
def test_a_program_in_the_child_writes_a_run_of_its_own(bench, how):
    inner = bench.folder / "inner"
    inner.write_text("\n".join(FRESH) + "\n")
    how = [line.replace("CLIENT", str(CLIENT)).replace("INNER", str(inner)) for line in how]
    r = bench.alike("a program that uses CUDA", START + WORK + how + WORK, TEXT)
    all_of(bench, "a program that uses CUDA", r, [filled(s, 64) for s in (1, 1, 9)], 2)


THIRTY = ["repeat 30", "launch block 0 1 64 p 64 %i", "endrepeat"]


@pytest.mark.parametrize("end", [
    pytest.param(["exit 5"], id="exit"), pytest.param(["_exit 6"], id="_exit"), pytest.param(["_Exit 7"], id="_Exit"),
    pytest.param(["threadexit 8"], id="exit from a thread"), pytest.param([], id="return"),
    pytest.param(["sync", "close", "exit 9"], id="dlclose"), pytest.param(["ctxdestroy c", "exit 10"], id="after the context"),
    pytest.param(["sync", "_exit 11"], id="after a sync"), pytest.param(["quick_exit 12"], id="quick_exit"),
    pytest.param(["exec /bin/true"], id="exec of a path"), pytest.param(["exec true"], id="exec by PATH"), pytest.param(["execl /bin/true x"], id="execl"),
    pytest.param(["execle /bin/true x"], id="execle"), pytest.param(["execve /bin/false"], id="execve"),
    pytest.param(["exec /nowhere/true", "exec nonesuch", "exec /", "_exit 13"], id="exec of what is not there"),
])
def test_ends(bench, end):
    r = bench.alike("ends", START + THIRTY + end, TEXT, DMI_STANDIN_DTOH_LATENCY_NS=1000000)
    all_of(bench, "ends", r, [filled(s, 64) for s in range(30)])


def test_a_program_that_is_not_there_ends_no_run(bench):
    """Programs look for one in each folder of PATH: what follows is captured."""
    more = [line for i in range(3) for line in ("exec /nowhere/true", f"launch block 0 1 64 p 64 {30 + i}")]
    r = bench.alike("not there", START + THIRTY + more + ["exit 14"], TEXT)
    all_of(bench, "not there", r, [filled(s, 64) for s in range(33)])
    script = bench.folder / "script"
    script.write_text("echo a program without its first line\n")
    script.chmod(0o755)
    r = bench.alike("a file that the kernel refuses", START + THIRTY + [f"execve {script}", "exit 15"], TEXT)
    all_of(bench, "a file that the kernel refuses", r, [filled(s, 64) for s in range(30)])
    bench.check("execve() failed (Exec format error) after the run was closed for it" in r.stderr, "it is said", r.stderr[-500:])


@pytest.mark.parametrize("preload", [False, True], ids=["without", "with"])
def test_the_driver_is_unloaded(bench, preload):
    """No thread of the driver runs code that dlclose() took away, which would end the program soon after: 10 times."""
    script = ["init 0", "device d 0", "ctx c d", "alloc p 64", "write p 1 64", "sync", "close", "sleep 100", "exit 9"]
    codes = [bench.run(script, preload=preload).code for _ in range(10)]
    assert codes == [9] * 10, codes


def test_exit_while_others_launch(bench):
    """Whoever is first to leave does so while the others launch, or leave as well."""
    race = START + ["threads 4", "setctx c", "stream s%t", "repeat 30", "launch block s%t 1 64 p+%t000 64 1%t0%i", "endrepeat", "_exit 3", "endthreads"]
    wrong = []
    for seed in range(1, 9):
        r = bench.run(race, TEXT, DMI_STANDIN_DELAY_SEED=seed)
        balance = r.run().balance() if r.folders else "no run"
        if r.said()[0] != 3 or balance:
            wrong.append(f"seed {seed}: {r.code} {balance} {r.stderr[-300:]} {r.stdout[-200:]}")
    assert not wrong, "\n".join(wrong)


def test_kill_9(bench):
    r = bench.run(START + THIRTY + ["kill9"], TEXT, **SLOW)
    c = r.run().counters
    held = len(r.run().of(0))
    bench.check(r.code == -9 and c.expected[0].records == 30 and c.state == 1 and c.captured[0].records <= held <= 30,
                "what is missing is known", f"{r.code} {c.expected} {c.captured} {held} {c.state}")


def test_the_last_flush_is_bounded(bench):
    started = time.monotonic()
    r = bench.run(START + THIRTY + ["exit 5"], TEXT, DMI_EXIT_MS=300, DMI_STANDIN_DTOH_LATENCY_NS=4000000000)
    took = time.monotonic() - started
    bench.check(r.code == 5 and took < 10, "the last flush is bounded", f"{r.code} {took:.1f} s {r.stderr}")
    c = r.run().counters
    bench.check(c.expected[0].records == 30 and (not r.run().balance() or c.state == 1), "what it left is counted or lost_at_kill",
                f"{c.expected} {c.captured} {c.dropped} {r.stderr}")


def test_the_latest_run_of_several_at_once(bench):
    """Eight processes begin a run together: the link leads to one of them, and nothing else is left. The next one's is its own."""
    (bench.folder / "script").write_text("\n".join(START + ["launch block 0 1 64 p 64 1", "sync"]) + "\n")
    one = f"'{CLIENT}' '{bench.folder / 'script'}' dlopen"
    r = bench.run([], TEXT, command=["sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do {one} & done; wait"])
    link = r.out / "latest"
    all_of(bench, "eight at once", r, [filled(1, 64)] * 8, n_runs=8)
    bench.check(link.is_symlink() and link.resolve() in [run.resolve() for run in r.folders] and not list(r.out.glob(".*")), "the link leads to one of them", list(r.out.iterdir()))
    bench.check(os.readlink(link) == link.resolve().name, "within the folder, so that it may be moved", os.readlink(link))
    seen = set(r.folders)
    again = bench.run([], TEXT, command=["sh", "-c", one], DMI_OUT=r.out)
    new = [run for run in r.out.iterdir() if run not in seen and not run.is_symlink()]
    bench.check(len(new) == 1 and link.resolve() == new[0].resolve(), "and to the one that comes later", (again.stderr, new))


@pytest.mark.parametrize("script, way", [
    pytest.param([], "dlopen", id="a program that does nothing"), pytest.param(["sleep 1"], "link", id="a program that only loads the driver"),
    pytest.param(["init 7"], "dlopen", id="cuInit that fails"),
    pytest.param(["fork", "exit 3", "endfork"], "dlopen", id="fork alone"),
    pytest.param(["threads 2", "sleep 1", "endthreads"], "dlopen", id="a thread"),
])
def test_bystanders(bench, script, way):
    r = bench.alike("a bystander", script, TEXT, way=way)
    bench.check(not r.folders and not r.stderr, "no file, no word", f"{r.folders} {r.stderr}")


@pytest.mark.parametrize("script", [
    pytest.param(["init 0"], id="cuInit alone"), pytest.param(START + ["launch other 0 1 64 p 64 1", "sync"], id="kernels that the spec does not name")])
def test_nothing_matches(bench, script):
    """A run says so, and no ring was built for it."""
    log = bench.folder / "log"
    r = bench.alike("a process without sites", script, spec(site(kernel="^absent$")), DMI_STANDIN_LOG=log)
    bench.check(len(r.folders) == 1 and r.stderr.count("armed: 1 site of ") == 1, "it says that it is armed, once", r.stderr)
    if r.folders:
        run = r.run()
        reasons = [p["reason"] for p in run.manifest.get("problems", [])]
        bench.check(reasons == ["no_match"] and not run.balance() and not run.records, "the run says that nothing matched", run.manifest)
    taken = [c for c in Log(log).calls if c["name"] == "cuMemHostRegister_v2"]
    bench.check(not taken, "nothing was built", taken)


def test_looked_up_and_never_launched(bench):
    r = bench.alike("a kernel that is looked up only", START + ["launch other 0 1 64 p 64 1", "sync"], TEXT)
    bench.check("kernel block was loaded, but no launch of it came through the library" in r.stderr, "it is named at exit", r.stderr)


def test_armed_without_cuinit(bench):
    """cuInit came past the library: whatever hook is next arms it."""
    r = bench.alike("cuInit unseen", ["unseeninit 0"] + START[1:] + ["launch block 0 1 64 p 64 1", "sync"], TEXT)
    all_of(bench, "cuInit unseen", r, [filled(1, 64)])


def test_a_shell(bench):
    """Its threads: those of a process that has loaded the library, but no driver."""
    r = bench.run([], TEXT, command=["/bin/sh", "-c", "ls /proc/$$/task | wc -l; echo hello; exit 6"])
    bench.check(r.said() == (6, "1\nhello\n") and not r.stderr and not r.folders, "no thread, no file, no word", f"{r.said()} {r.stderr} {r.folders}")


# What descriptor 2 of a program is: a pipe whose reader has gone, with the signals that a shell starts programs with; a full pipe;
# none, so that the first file which the program opens gets the number.
STDERRS = {
    "no reader": "import os, signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL); r, w = os.pipe(); os.dup2(w, 2); os.close(r)",
    "a reader that does not read": "import os, sys; r, w = os.pipe(); os.set_blocking(w, False); os.write(w, bytes(65536)); "
                                   "os.set_blocking(w, True); os.dup2(w, 2); os.set_inheritable(r, True)",
    "none": "import os, sys; os.close(2)",
}


@pytest.mark.skipif("DMI_TEST_RUNTIME" in os.environ, reason="the sanitizer has lines of its own for stderr")
@pytest.mark.parametrize("what", STDERRS)
def test_a_stderr_that_takes_nothing(bench, what):
    command = [sys.executable, "-c", f"{STDERRS[what]}; os.execv(sys.argv[1], sys.argv[1:])", CLIENT, "script", "dlopen"]
    script = START + ["launch block 0 1 64 p 64 1", "sync", "launch block 0 1 64 p 64 2", "sync", "digest p 256", "exit 3"]
    text = spec(site(), *(site(name=f"none{i}", kernel=f"^nonesuch{i}$") for i in range(20)))
    r = bench.alike(what, script, text, command=command, timeout=20)
    bench.captured(what, r, [filled(1, 64), filled(2, 64)])
    bench.check(r.code == 3 and len(r.run().manifest["problems"]) == 20, f"{what}: what the log does not say the manifest does", r.said())
