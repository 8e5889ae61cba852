# SPDX-License-Identifier: Apache-2.0
"""Whatever fails under us, the application does not notice, and what is lost is counted."""
import os
import re
import struct
import shutil
import subprocess

import pytest

import images
import standin_log
from harness import BUILD, ROOT, STANDIN, Tally
from kit import START, filled, site, spec

USES = re.findall(r"^USE\((\w+)\)", (ROOT / "preload/hooks.def").read_text(), re.M)
HOOKS = re.findall(r"^HOOK\((\w+)\)", (ROOT / "preload/hooks.def").read_text(), re.M)
# what driver_calls itself calls: with the library there are more calls, so "the Nth" is another one
CLIENT_CALLS = set(re.findall(r"CALL\((\w+)", (ROOT / "tests/preload/driver_calls.c").read_text()))

SCRIPT = START + ["stream s", "launch first 0 1 64 p 64 1", "sync", "launch block 0 1 64 p+4096 64 2", "sync", "launchpacked block s 1 64 p+8192 64 3",
                  "sync", "launchex block s 1 64 p+8192 64 4", "sync", "ssync s", "sync", "digest p 16384", "free p", "unload m", "ctxdestroy c"]
TEXT = spec(site("out"), site("before", when="before"))


def forced(name, nth, result):
    return {"DMI_STANDIN_FAIL": f"{name}:{nth}:{result}"}


def balanced(what, r, expected):
    """One run at most, in which @expected records are accounted for."""
    if not r.folders:
        return "no run"
    run = r.run()
    wrong = run.balance() or "" if [t.records for t in run.counters.expected] == expected else \
        f"{[t.records for t in run.counters.expected]} records were expected, not {expected}"
    for record in run.of(0):
        if record.words not in [filled(s, 64) for s in range(5)]:
            wrong = f"a record holds what nobody wrote: {record.words[:4]}"
    return f"{what}: {wrong} {run.counters.dropped} {r.stderr[-300:]}" if wrong else ""


def pytest_generate_tests(metafunc):
    if "result" in metafunc.fixturenames:
        metafunc.parametrize("result", (1, 2, 4, 201, 700, 801) if metafunc.config.getoption("--long") else (999,))


@pytest.mark.parametrize("name", [n for n in USES if n not in CLIENT_CALLS])
def test_our_calls_fail(bench, name, result):
    """Calls that only we make: the application must notice nothing at all."""
    clean = bench.run(SCRIPT, preload=False)
    # without an answer from these, a launch cannot even be numbered: its sites are switched off by name
    blind = name in ("cuCtxGetCurrent", "cuStreamIsCapturing")
    wrong = []
    for nth in ("0", "1", "2", "3"):
        r = bench.run(SCRIPT, TEXT, **forced(name, nth, result))
        if r.said() != clean.said():
            wrong.append(f"call {nth}: {r.said()} {r.stderr[-400:]}")
        if not blind:
            wrong.append(balanced(f"call {nth}", r, [3, 3]))
        elif not r.folders or r.run().balance() or "no launch matched" in r.stderr or \
                not ("switched off" in r.stderr or [t.records for t in r.run().counters.expected] == [3, 3]):
            wrong.append(f"call {nth}: {r.folders} {r.stderr}")
    wrong = [w for w in wrong if w]
    bench.check(not wrong, f"{name} fails with {result}: the application notices nothing, all is counted", wrong)


def test_shared_calls_fail(bench):
    """Calls that the application makes as well: failing ours must not reach it, failing its own must reach it as it is."""
    def log(preload):
        path = bench.folder / f"calls-{bench.n + 1}"
        bench.run(SCRIPT, TEXT if preload else None, preload=preload, DMI_STANDIN_LOG=path)
        return [c["name"] for c in standin_log.Log(path).calls]
    with_us, without = log(True), log(False)
    names = [n for n in sorted(set(without)) if n in CLIENT_CALLS]
    for name in names:
        results, wrong = {}, []
        for nth in range(1, without.count(name) + 1):
            r = bench.run(SCRIPT, preload=False, **forced(name, nth, 999))
            results[r.said()] = nth
        clean = bench.run(SCRIPT, preload=False)
        for nth in range(1, min(with_us.count(name), 9) + 1):
            r = bench.run(SCRIPT, TEXT, **forced(name, nth, 999))
            if r.said() not in results and r.said() != clean.said():
                wrong.append(f"call {nth}: {r.said()} {r.stderr[-400:]}")
            if r.folders and r.run().balance():
                wrong.append(f"call {nth}: {r.run().balance()}")
        bench.check(not wrong, f"{name} fails once: the application sees its own call's failure or nothing", "; ".join(wrong))


def test_bad_pointers(bench):
    script = START + ["alloc q 256", "launch block 0 1 1 q 64 1", "launch block 0 1 1 q 65 2", "launch block 0 1 1 q 100000 3",
                      "free q", "launch block 0 1 64 q 0 4", "launch other 0 1 64 q 64 0", "sync"]
    # block writes one element only, so that the kernel itself is sound; other is not launched with a bad pointer
    script = [line for line in script if not line.startswith("launch other")]
    r = bench.alike("a tensor that reaches outside of its allocation", script, spec(site()))
    run = r.run()
    c = run.counters
    bench.check(c.expected[0].records == 3 and c.captured[0].records == 1 and c.dropped[0] == {"bad_pointer": Tally(2, 100065, 400260)},
                "is dropped and counted", f"{c.expected} {c.captured} {c.dropped}")
    bench.check(r.stderr.count("outside a live device allocation") == 1, "reported once", r.stderr)
    bench.check(any(p.get("reason") == "bad_pointer" for p in run.manifest.get("problems", [])), "stands in the manifest",
                run.manifest.get("problems"))
    # the kernels view* touch nothing: any pointer is sound to the application
    view = ["init 0", "device d 0", "ctx c d", "module m view", "func v m view0", "alloc p 4096", "launch v 0 1 1 p 16 0",
            "alloc q 4194304", "free q"]
    view += [f"launch v 0 1 1 {p} 16 0" for p in ("p", "q", "0", "1", "p-16", "0xfffffffffffffff0", "p+4096", "p+4032")] + ["sync"]
    r = bench.alike("wild pointers", view, spec(site(kernel="^view0$")))
    c = r.run().counters
    bench.check(c.captured[0].records == 3 and c.dropped[0].get("bad_pointer", Tally()).records == 6, "wild pointers are dropped and counted",
                f"{c.captured} {c.dropped}")
    bench.check(not r.run().balance(), "wild pointers: accounted for", r.run().balance())


def test_freed_and_reused(bench):
    """An allocation known from an earlier launch ends: its bounds are asked for anew."""
    view = ["init 0", "device d 0", "ctx c d", "module m view", "func v m view0", "alloc p 65536", "launch v 0 1 1 p 16384 0", "sync",
            "free p", "alloc q 4096", "launch v 0 1 1 p 16384 0", "launch v 0 1 1 q 1024 0", "sync"]
    r = bench.alike("a freed allocation", view, spec(site(kernel="^view0$")))
    c = r.run().counters
    bench.check(c.captured[0].records == 2 and c.dropped[0].get("bad_pointer", Tally()).records == 1, "is not read", f"{c.captured} {c.dropped}")


def test_bad_expressions(bench):
    cases = {"a division by zero": "{row: true, count: 'arg[1].u32 / arg[2].u32'}", "an overflow": "{row: true, count: 'arg[1].u32 * 0x7fffffffffffffff'}",
             "a negative count": "{row: true, count: 'arg[2].i32 - 1'}", "no such parameter": "{row: true, count: 'arg[9].i32'}",
             "outside of the parameter": "{row: true, count: 'arg[1][1].i32'}"}
    sites = [site(f"s{i}", dims=f"[{dims}]") for i, dims in enumerate(cases.values())]
    r = bench.alike("bad expressions", START + ["launch block 0 1 64 p 64 0", "launch block 0 1 64 p 64 0", "sync"], spec(*sites, site("good")))
    c = r.run().counters
    for i, what in enumerate(cases):
        bench.check(c.expected[i].records == 2 and c.dropped[i].get("bad_expr", Tally()).records == 2, f"{what}: counted",
                    f"{c.expected[i]} {c.dropped[i]} {r.stderr}")
        bench.check(r.stderr.count(f"site s{i} ") == 1, f"{what}: reported once", r.stderr)
    said = [line for line in r.stderr.splitlines() if "no such parameter" in line]
    bench.check(len(said) == 2 and all(line.endswith(": it has 4, arg[0] of 8, arg[1] of 4, arg[2] of 4, arg[3] of 8 bytes") for line in said), "which parameters there are", said)
    bench.check(c.captured[5].records == 2, "the good site beside them is captured", c.captured[5])
    bench.check(not r.run().balance(), "bad expressions: accounted for", r.run().balance())


def test_rings(bench):
    head = "ring: {bytes: 4096, slots: 2}"
    script = START + ["repeat 30", "launch block 0 8 256 p 2048 %i", "launch other 0 1 64 p+65536 64 %i", "endrepeat", "sync", "digest p 100000"]
    r = bench.alike("records larger than the ring", script, spec(site(), site("small", kernel="^other$"), head=head))
    run = r.run()
    bench.check(run.counters.dropped[0] == {"too_large": Tally(30, 30 * 2048, 30 * 8192)}, "are counted", run.counters.dropped[0])
    bench.check(run.counters.expected[1].records == 30 and not run.balance(), "small ones beside them are accounted for", run.balance())
    script = START + ["repeat 200", "launch block 0 1 64 p 64 %i", "endrepeat", "sync", "digest p 256"]
    r = bench.alike("a ring too small", script, spec(site(), head=head), DMI_STANDIN_DTOH_LATENCY_NS=2000000)
    run = r.run()
    c = run.counters
    bench.check(c.expected[0].records == 200 and c.dropped[0].get("ring_full", Tally()).records > 0 and c.captured[0].records > 0 and
                not run.balance(), "drops are counted, the rest is captured", f"{c.expected} {c.captured} {c.dropped} {run.balance()}")
    bench.check(all(x.words in [filled(s, 64) for s in range(200)] for x in run.of(0)), "what was captured is undamaged")


SIXTY = START + ["repeat 60", "launch block 0 8 256 p 2048 %i", "endrepeat", "sync", "digest p 8192"]


@pytest.mark.parametrize("out", [
    pytest.param("/etc/hostname", id="OUT is a file"), pytest.param("/proc/nothing/here", id="OUT cannot be created"),
    pytest.param("/sys/kernel", id="OUT is on a read-only file system",
                 marks=pytest.mark.skipif(not os.path.ismount("/sys"), reason="no file system is mounted on /sys")),
])
def test_no_place_for_a_run(bench, out):
    clean = bench.run(SIXTY, preload=False)
    r = bench.run(SIXTY, spec(site()), DMI_OUT=out)
    bench.check(r.said() == clean.said(), "the application notices nothing", f"{r.said()} {r.stderr}")
    bench.check(r.stderr.count("dmi:") == 1 and "without capture" in r.stderr, "reported once", r.stderr)


@pytest.mark.parametrize("limit", (0, 1 << 12, 1 << 14, 1 << 16, 1 << 18))
def test_files_end(bench, limit):
    clean = bench.run(SIXTY, preload=False)
    i = next(i for i, line in enumerate(SIXTY) if line.startswith("repeat"))
    # its limit stands before the first launch, which creates a run; the signal would end the process
    r = bench.run(SIXTY[:i] + [f"limit {limit}"] + SIXTY[i:], spec(site()))
    bench.check(r.said() == clean.said(), f"files end at {limit} bytes: the application notices nothing", f"{r.said()} {r.stderr}")
    if r.folders and (r.folders[0] / "counters").exists():
        run = r.run()
        c = run.counters
        bench.check(c.expected[0].records == 60 and c.captured[0] + c.dropped_sum(0) == c.expected[0] and
                    len(run.of(0)) == c.captured[0].records, f"files end at {limit} bytes: all is counted",
                    f"{c.expected} {c.captured} {c.dropped} {len(run.of(0))} {r.stderr}")


def test_full_disk(bench):
    """A file system with no room, if we may make one."""
    folder = bench.folder / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        script = list(SIXTY)
        # noise does not compress: what is written is as large as what is captured
        script[-4:-4] = ["write p+65536 65536 3"]
        text = spec(site(dims="[{row: true, count: 'arg[1].u32'}]", offset="65536"))
        for used in (0, 100, 124, 128):
            (folder / "filler").write_bytes(b"x" * used * 1024)
            r = bench.alike(f"a disk with {128 - used} KiB", script, text, DMI_OUT=folder / "out")
            if r.folders and (r.folders[0] / "counters").exists():
                c, held = r.run().counters, r.run().of(0)
                bench.check(c.expected[0].records == 60 and c.captured[0] + c.dropped_sum(0) == c.expected[0] and
                            len(held) == c.captured[0].records and (used or c.dropped[0].get("write_failed")),
                            f"a disk with {128 - used} KiB: all is counted", f"{c.expected} {c.captured} {c.dropped} {len(held)} {r.stderr}")
            else:
                bench.check(r.stderr.count("dmi:") == 1, f"a disk with {128 - used} KiB: reported once", r.stderr)
            shutil.rmtree(folder / "out", ignore_errors=True)
    finally:
        subprocess.run(["umount", folder], check=False)


REFUSED = START + ["launch block 0 1 64 p 64 1", "sync", "digest p 256", "exit 3"]


@pytest.mark.parametrize("text", [
    pytest.param(None, id="no spec"), pytest.param("hookspec: 1\nsites: [", id="a broken spec"), pytest.param("", id="an empty spec"),
    pytest.param("hookspec: 99\n", id="a spec of another version"), pytest.param("\x7fELF\x01", id="not YAML at all"),
])
def test_specs(bench, text):
    clean = bench.run(REFUSED, preload=False)
    r = bench.run(REFUSED, text)
    bench.check(r.said() == clean.said() and r.code == 3, "the application notices nothing", f"{r.said()} {r.stderr}")
    bench.check(not r.folders, "no file", r.folders)
    bench.check(r.stderr == "" if text is None else "without capture" in r.stderr, "what is reported", r.stderr)


def test_a_spec_that_is_not_there(bench):
    clean = bench.run(REFUSED, preload=False)
    r = bench.run(REFUSED, None, DMI_SPEC="/no/such/file")
    assert r.said() == clean.said() and "/no/such/file" in r.stderr, r.stderr


def test_an_error_in_a_spec_has_a_place(bench):
    clean = bench.run(REFUSED, preload=False)
    r = bench.run(REFUSED, spec(site(name="x", dims="[{row: true, count: nonsense}]")))
    assert r.said() == clean.said() and "spec.yaml:9:" in r.stderr, r.stderr


def test_bad_launches(bench):
    """What the driver refuses is nobody's record."""
    script = START + ["launch block 0 0 64 p 64 1", "launch block 0 1 4096 p 64 1", "launch block 0 1 64 p 64 2", "launch 0 0 1 64 p 64 1",
                      "launchex block 0 0 64 p 64 1", "launchcoop block 0 0 64 p 64 1", "launch block 0 1 64 p 64 3", "sync"]
    r = bench.alike("launches that are refused", script, spec(site(layer="occ")))
    run = bench.captured("launches that are refused", r, [filled(2, 64), filled(3, 64)])
    if run:
        bench.check([x.layer for x in run.of(0)] == [0, 1] and run.counters.expected[0].records == 2,
                    "are no occurrence and expect nothing", f"{[x.layer for x in run.of(0)]} {run.counters.expected}")


def test_sticky(bench):
    """the application's own kernel faults: its error is its own, and our records in flight are counted."""
    script = START + ["launch block 0 1 64 p 64 1", "flush 9000", "launch other 0 1 64 1 64 2", "sync", "launch block 0 1 64 p 64 3", "sync", "digest p 64",
                      "launch block 0 1 64 p 64 4", "sync"]
    clean = bench.run(script, preload=False)
    r = bench.run(script, spec(site()))
    bench.check([line.split()[1] for line in r.stdout.splitlines()][-5:] == [line.split()[1] for line in clean.stdout.splitlines()][-5:],
                "a sticky error: the application sees its own", f"{r.stdout[-200:]} {clean.stdout[-200:]}")
    run = r.run()
    c = run.counters
    bench.check(c.captured[0].records >= 1 and not run.balance(), "a sticky error: accounted for", f"{c.expected} {c.captured} {c.dropped} {run.balance()} {r.stderr}")


def test_a_pattern_of_many_kernels_names_the_kernel(bench):
    """Of which of them something was dropped. A pattern of one kernel says it already."""
    text = spec(site("any", kernel="fir|blo", pointer="arg[3]"), site("one", pointer="arg[3]"))
    r = bench.run(START + ["launch block 0 1 64 p 64 1", "sync"], text)
    lines = {name: [line for line in r.stderr.splitlines() if f"site {name} " in line] for name in ("any", "one")}
    bench.check(len(lines["any"]) == 1 and lines["any"][0].endswith("(kernel block)"), "the kernel is named", r.stderr)
    bench.check(len(lines["one"]) == 1 and "(kernel" not in lines["one"][0], "once", r.stderr)


def test_a_process_that_launches_nothing_says_so_once(bench):
    sites = [site(name, kernel=f"^{name}$") for name in ("block", "never", "nobody")]
    r = bench.run(START + ["sync"], spec(*sites))
    bench.check(len(r.complaints.splitlines()) == 1 and "2 other sites" in r.complaints, "one line", r.stderr)
    told = [(p["site"], p["reason"]) for p in r.run().manifest["problems"]]
    bench.check(told == [("block", "no_match"), ("never", "no_match"), ("nobody", "no_match")], "the manifest says it of each site", told)
    r = bench.run(START + ["launch block 0 1 64 p 64 1", "sync"], spec(*sites))
    bench.check(len(r.complaints.splitlines()) == 2, "of one that launches, each site that misses", r.stderr)
    variants = [site("block", kernel=f"^{kernel}$") for kernel in ("block", "never", "nobody", "absent")]
    r = bench.run(START + ["launch block 0 1 64 p 64 1", "sync"], spec(*variants, site("other", kernel="^other$")))
    problems = r.run().manifest["problems"]
    bench.check([p["site"] for p in problems] == ["block", "other"] and len(r.complaints.splitlines()) == 2
                and "no launch matched 3 entries of names that other entries captured (lines " in problems[0]["sentence"], "entries of a name that another one captured have one line", problems)


@pytest.mark.parametrize("pattern, near", [
    ("^blokc$", "4 other kernels were seen; near it: block"), ("^my_block_kernel_v2$", "4 other kernels were seen"), ("^irst", "near it: first"),
    ("oth?er2|othre", "near it: other"), ("^zzz$", "4 other kernels were seen")])
def test_a_pattern_that_fits_nothing_has_near_names(bench, pattern, near):
    r = bench.run(START + ["launch block 0 1 64 p 64 1", "sync"], spec(site(kernel=pattern)))
    bench.check(f"no launch matched the kernel pattern {pattern}; " in r.stderr and near in r.stderr, "the run says them", r.stderr)
    bench.check(("near it" in r.stderr) == ("near it" in near), "and no others", r.stderr)


def without(driver, name):
    """The driver library, whose symbol @name has another name: nobody finds it by the old one. None: it never had that one."""
    data = bytearray(driver)
    (first,), (n,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, first + 64 * i) for i in range(n)]
    symbols = next(s for s in sections if s[1] == 11)  # SHT_DYNSYM
    strings = sections[symbols[6]]
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        text = strings[4] + struct.unpack_from("<I", data, at)[0]
        if data[text:text + len(name) + 1] == name.encode() + b"\0":
            data[text] ^= 0x20
            data[at + 4] = 2 << 4 | data[at + 4] & 15  # weak: the library itself does not miss it
            return bytes(data)
    return None


VARIANT = r"(_v[0-9])?(_ptsz)?$"
LACKING = BUILD / "tests" / "preload" / "lacking_client"
CALLED = sorted({name for path in (ROOT / "preload").rglob("*.[ch]") for name in re.findall(r"driver_table\.(cu\w+)", path.read_text())} | set(USES))


@pytest.mark.built(LACKING)
@pytest.mark.skipif("DMI_TEST_RUNTIME" in os.environ, reason="the sanitized stand-in calls itself by its symbols")
def test_a_driver_that_lacks_a_function(bench, tmp_path):
    """Each that the library calls: the program goes on as without the library; what is expected is accounted for, or one line says why nothing is."""
    driver = (STANDIN / "libcuda.so.1").read_bytes()
    (tmp_path / "image").write_bytes(images.ptx(images.fill("block")))
    mine = set(re.findall(r"CALL\((\w+)", (ROOT / "tests/preload/lacking_client.c").read_text()))
    options = {"command": [LACKING, tmp_path / "image"], "LD_LIBRARY_PATH": tmp_path}
    (tmp_path / "libcuda.so.1").write_bytes(driver)
    whole = bench.run([], preload=False, **options)
    off = 0
    for name in CALLED:
        lacking = without(driver, name)
        if lacking is None and "DMI_STANDIN_VERSION" in os.environ:
            continue  # an older driver lacks it by itself
        (tmp_path / "libcuda.so.1").write_bytes(lacking)
        plain = bench.run([], preload=False, **options) if name in mine else whole
        r = bench.run([], spec(site()), **options)
        bench.check(r.said() == plain.said(), f"{name}: the program says the same", f"{r.said()} {plain.said()} {r.stderr[-300:]}")
        said = [line for line in r.stderr.splitlines() if "runs without capture" in line]
        off += len(said)
        if r.folders:
            run = r.run()
            whole_account = not run.balance() and (name in mine or run.counters.expected[0].records == 7)
            bench.check(whole_account and not said, f"{name}: every launch is accounted for", f"{run.counters.expected} {run.balance()} {r.stderr[-300:]}")
        else:
            # on an older driver the line names the newer form of what it lacks, which it lacks too
            line = rf"dmi: the driver has no {re.sub(VARIANT, '', name)}(_v[0-9])?(_ptsz)?: this process runs without capture"
            bench.check(name == "cuInit" or (len(said) == 1 and re.fullmatch(line, said[0])), f"{name}: one line says it", r.stderr[-300:])
    bench.check(off > 40, "what the library needs is looked for", off)
