# SPDX-License-Identifier: Apache-2.0
"""Where parameters lie, on drivers that do not say: read from what modules and libraries are loaded from."""
import sys

import pytest

import images
from harness import ROOT, Tally, standin_folder
from kit import START, filled, site, spec

pytestmark = pytest.mark.since(12000, "libraries (cuLibraryLoadData)")

BEGIN = START[:3]
TEXT = images.ptx(images.fill("block"), images.odd("odd"))
# as the parameters lie in registers and memory: by argument, and by place
SITES = spec(site(), site("odd", kernel="^odd$", pointer="arg[1][8]", dims="[{row: true, count: 'arg[1].u32'}]"),
             site("place", kernel="^odd$", pointer="'param[16]'", dims="[{row: true, count: 'param[8].u32'}]"))
LAUNCHES = ["alloc p 65536", "launch f 0 1 64 p 64 1", "launchodd g 0 1 64 p+4096 32 2", "launch f 0 2 64 p 100 3", "sync", "digest p 8192"]
EXPECTED = [filled(1, 64), filled(3, 100)], [filled(2, 32)], [filled(2, 32)]


@pytest.fixture
def old():
    """The environment of a program on a driver of R535 (12.2): it names neither functions nor their parameters."""
    folder = standin_folder(12020)
    if not (folder / "libcuda.so.1").exists():
        pytest.skip("stand-ins of older drivers are not built with sanitizers")
    return {"LD_LIBRARY_PATH": folder}


@pytest.fixture
def image(tmp_path):
    """Writes an image, gives its path."""
    def write(content, name="image"):
        path = tmp_path / name
        path.write_bytes(content)
        return path
    return write


def captured(bench, what, r, expected=EXPECTED):
    for i, words in enumerate(expected):
        run = bench.captured(f"{what}, site {i}", r, words, site=i)
    bench.check(not r.complaints, f"{what}: no complaint", r.complaints)
    return run


def test_the_old_driver_is_one(bench, old):
    """What these tests take for one: the entry points are not there, and everything else is."""
    names = ["cuFuncGetParamInfo", "cuKernelGetParamInfo", "cuFuncGetName", "cuKernelGetName", "cuModuleGetFunction"]
    code = "import ctypes; d = ctypes.CDLL('libcuda.so.1'); print([hasattr(d, n) for n in %r])" % names
    r = bench.run([], preload=False, command=[sys.executable, "-c", code], **old)
    assert r.stdout == f"{[False] * 4 + [True]}\n", r.stdout + r.stderr


FUNCTIONS = ["func f m block", "func g m odd"]
KINDS = {"text": TEXT, "fatbin": images.fatbin(images.entry(TEXT)),
         "zstd": images.fatbin(images.zstd_entry(TEXT), images.entry(TEXT)),
         "lz4": images.fatbin(images.lz4_entry(TEXT), images.entry(TEXT))}


@pytest.mark.parametrize("how, kind", [
    *[(how, kind) for how in ("module", "moduleex", "modulefile", "library", "libraryfile") for kind in KINDS],
    *[(how, "fatbin") for how in ("modulefat", "wrappedmodule", "wrappedmodulefat", "wrappedlibrary")],
])
def test_every_loader(bench, old, image, how, kind):
    found = FUNCTIONS if "module" in how else ["kernel f m block", "kernel g m odd"]
    r = bench.alike(f"{how} of {kind}", BEGIN + [f"load {how} m {image(KINDS[kind])}", *found, *LAUNCHES], SITES, **old)
    captured(bench, f"{how} of {kind}", r)


@pytest.mark.parametrize("found", [
    pytest.param(["kernel k m block", "kernel l m odd", "kfunc f k", "kfunc g l"], id="functions of kernels"),
    pytest.param(["libmodule n m", "func f n block", "func g n odd"], id="functions of the library's module"),
])
def test_ways_to_a_function(bench, old, image, found):
    r = bench.alike("a library", BEGIN + [f"load library m {image(TEXT)}", *found, *LAUNCHES], SITES, **old)
    captured(bench, "a library", r)


@pytest.mark.since(12040, "cuFuncGetParamInfo")
def test_calls_that_fail(bench, image):
    """A driver that has the entry points, and they do not work: images are read once that is known."""
    script = BEGIN + [f"load module m {image(TEXT)}", *FUNCTIONS, *LAUNCHES, "unload m", f"load module m {image(TEXT)}", *FUNCTIONS, *LAUNCHES]
    r = bench.alike("a call that fails", script, SITES, DMI_STANDIN_FAIL="cuFuncGetParamInfo:0:801")
    run = r.run()
    bench.check([x.words for x in run.of(0)] == EXPECTED[0] and run.counters.dropped[0].get("bad_expr", Tally()).records == 2,
                "the module loaded after it is captured, the one before it dropped and counted", f"{run.counters.dropped} {r.stderr}")
    bench.check(not run.balance(), "accounted for", run.balance())


def test_graphs(bench, old):
    pytest.importorskip("cuda.bindings")
    text = spec(site("block"), head="ring: {bytes: 4M, slots: 8192}\n")
    r = bench.alike("graphs", [], text, command=[sys.executable, ROOT / "tests/preload/graph_client.py", "reuse"], timeout=120, **old)
    bench.captured("graphs", r, [filled(s, 64) for s in (1, 2, 3, 4)] * 5)


def test_a_module_that_comes_back(bench, old, image):
    """Its handles are used again for the same name with another layout: `a` fits the first, `b` the second."""
    text = spec(site("a", kernel="^odd$", pointer="'param[16]'", dims="[{row: true, count: 'param[8].u32'}]"),
                site("b", kernel="^odd$", pointer="'param[24]'", dims="[{row: true, count: 'param[16].u32'}]"))
    first, second = image(images.ptx(images.odd("odd")), "first"), image(images.ptx(images.odd("odd", 16)), "second")
    script = BEGIN + ["alloc p 4096"]
    for seed in range(1, 5):
        script += [f"load module m {first if seed % 2 else second}", "func g m odd", f"launchodd g 0 1 64 p 32 {seed}", "sync", "unload m"]
    r = bench.alike("a module that comes back", script, text, DMI_STANDIN_HANDLES="reuse", **old)
    run = r.run()
    bench.check([x.words for x in run.of(0)] == [filled(1, 32), filled(3, 32)], "the first layout", [x.words[:3] for x in run.of(0)])
    bench.check([x.words for x in run.of(1)] == [filled(2, 32), filled(4, 32)], "the second layout", [x.words[:3] for x in run.of(1)])


def test_functions_outlive_a_release_of_their_context(bench, old, image):
    """Some of a primary context's owners leave: on an old driver nobody could be asked for the functions' names again."""
    script = ["init 0", "device d 0", "retain c d", "retain c d", "setctx c", f"load module m {image(TEXT)}", *FUNCTIONS, "alloc p 65536",
              "launch f 0 1 64 p 64 1", "release d", "launchodd g 0 1 64 p+4096 32 2", "launch f 0 2 64 p 100 3", "sync"]
    r = bench.alike("a release", script, SITES, **old)
    captured(bench, "a release", r)
    other = BEGIN + [f"load module m {image(TEXT)}", *FUNCTIONS, "ctx c2 d", "ctxdestroy c2", "setctx c", *LAUNCHES]
    r = bench.alike("another context ends", other, SITES, **old)
    captured(bench, "another context ends", r)


def test_contradictions_are_refused_by_name(bench, old, image):
    """Two entries of a fatbin describe a kernel differently: which one runs is the driver's secret."""
    other = images.ptx(images.fill("block"), images.odd("odd", 16))
    for how in (images.zstd_entry, images.lz4_entry):
        path = image(images.fatbin(how(other), images.entry(TEXT)))
        r = bench.alike("a contradiction", BEGIN + [f"load module m {path}", *FUNCTIONS, *LAUNCHES, *LAUNCHES], SITES, **old)
        run = r.run()
        bench.check([x.words for x in run.of(0)] == EXPECTED[0] * 2, "what is the same in both is captured", r.stderr)
        for i, name in ((1, "odd"), (2, "place")):
            bench.check(run.counters.expected[i].records == 2 and run.counters.dropped_sum(i).records == 2, f"{name}: counted",
                        f"{run.counters.expected[i]} {run.counters.dropped[i]}")
            bench.check(r.stderr.count(f"site {name} ") == 1 and "12.4" in r.stderr, f"{name}: refused by name, once", r.stderr)
        bench.check([p["reason"] for p in run.manifest["problems"]] == ["no_parameter_info"] * 2, "stands in the manifest",
                    run.manifest["problems"])
        bench.check(not run.balance(), "accounted for", run.balance())


def test_packed_parameters_need_no_layout(bench, old, image):
    """param[OFFSET] of one packed buffer: also where no image tells anything."""
    other = images.ptx(".visible .entry block(.param .u64 a, .param .u32 b) { ret; }\n")
    path = image(images.fatbin(images.entry(other, arch=70), images.entry(TEXT)))
    text = spec(site(pointer="'param[0]'", dims="[{row: true, count: 'param[8].u32'}]"))
    r = bench.alike("packed", BEGIN + [f"load module m {path}", "func f m block", "alloc p 4096", "launchpacked f 0 1 64 p 64 5", "sync"], text, **old)
    bench.captured("packed", r, [filled(5, 64)])


@pytest.mark.since(12040, "cuFuncGetParamInfo")
def test_nothing_is_read_where_the_driver_knows(bench, image):
    """On a driver that tells, an image that says something else means nothing."""
    other = images.ptx(images.odd("odd", 16), images.fill("block"))
    path = image(images.fatbin(images.entry(other, arch=70), images.entry(TEXT)))
    r = bench.alike("a new driver", BEGIN + [f"load module m {path}", *FUNCTIONS, *LAUNCHES], SITES)
    captured(bench, "a new driver", r)
