# SPDX-License-Identifier: Apache-2.0
"""The ways to a function: each ends with what it came from, and no handle is asked by a call for another kind of it."""
import pytest

import images
from harness import standin_folder
from kit import START, filled, site, spec
from standin_log import Log

pytestmark = pytest.mark.since(12000, "libraries (cuLibraryLoadData)")

BEGIN = START[:3]
TEXT = spec(site())
REUSE = {"DMI_STANDIN_HANDLES": "reuse"}  # a handle comes back at once after its end
LIBRARY = images.ptx(images.fill("first"), images.fill("block"), images.fill("other"))
OTHER_ORDER = images.ptx(images.fill("other"), images.fill("first"), images.fill("block"))


@pytest.fixture
def image(tmp_path):
    def write(content, name="image"):
        path = tmp_path / name
        path.write_bytes(content)
        return path
    return write


def calls(bench, script, text=TEXT, **env):
    """The driver's log of @script under the library."""
    path = bench.folder / f"log-{bench.n + 1}"
    bench.run(script, text, DMI_STANDIN_LOG=path, **env)
    return Log(path).calls


@pytest.mark.parametrize("found", [
    pytest.param(["libmodule m l", "func f m {}"], id="cudart 12"),
    pytest.param(["kernel f l {}"], id="cudart 13"),
    pytest.param(["kernel k l {}", "kfunc f k"], id="cudart 13 and a function"),
])
def test_a_function_ends_with_its_library(bench, image, found):
    """The library's handles come back for another one, in which the same places hold other kernels."""
    script = BEGIN + ["alloc p 4096"]
    for seed, (content, kernel) in enumerate(((LIBRARY, "block"), (OTHER_ORDER, "other")) * 4):
        script += [f"load library l {image(content, kernel)}", *[line.format(kernel) for line in found],
                   f"launch f 0 1 64 p 64 {seed}", "sync", "libunload l"]
    r = bench.alike("a library", script, TEXT, **REUSE)
    bench.captured("a library", r, [filled(seed, 64) for seed in (0, 2, 4, 6)])


def test_a_module_handle_comes_back_after_its_library(bench, image):
    """What was a library's module is a module of its own then, and ends as such."""
    script = BEGIN + ["alloc p 4096"]
    for seed in range(0, 8, 2):
        script += [f"load library l {image(LIBRARY, 'l')}", "libmodule m l", "func f m block", f"launch f 0 1 64 p 64 {seed}", "sync",
                   "libunload l", f"load module m {image(LIBRARY, 'm')}", "func f m block", f"launch f 0 1 64 p 64 {seed + 1}", "sync", "unload m",
                   f"load module m {image(OTHER_ORDER, 'o')}", "func f m other", "launch f 0 1 64 p 64 99", "sync", "unload m"]
    r = bench.alike("a module's handle", script, TEXT, **REUSE)
    bench.captured("a module's handle", r, [filled(seed, 64) for seed in range(8)])


ROUTES = BEGIN + ["alloc p 4096", "load module m IMAGE", "func f m block", "load library l LIBRARY", "kernel k l block", "kfunc g k", "libmodule n l",
                  "func h n block", "kernels e l 3", *[f"launch {f} 0 1 64 p 64 1" for f in ("f", "k", "g", "h", "e0", "e1", "e2")], "sync"]


def routes(image):
    return [line.replace("IMAGE", str(image(LIBRARY, "m"))).replace("LIBRARY", str(image(LIBRARY, "l"))) for line in ROUTES]


@pytest.mark.since(12040, "cuLibraryEnumerateKernels, cuFuncGetParamInfo")
def test_no_handle_is_asked_by_the_wrong_call(bench, image):
    r = bench.alike("all routes", routes(image), TEXT)
    bench.captured("all routes", r, [filled(1, 64)] * 5)
    log = calls(bench, routes(image))
    asked = [c for c in log if c["name"] in ("cuFuncGetName", "cuKernelGetName", "cuFuncGetParamInfo", "cuKernelGetParamInfo")]
    bench.check(asked and not [c for c in asked if c["result"] not in (0, 1)], "every call finds what it is for",
                [c for c in asked if c["result"] not in (0, 1)])


def test_a_kernel_found_unseen_is_not_asked_as_a_function(bench, image):
    """A kernel that was found by a way that is not hooked, launched as if it were a function: it may be either. The driver
    does not list what it loads, or the kernel would be known from there."""
    script = BEGIN + ["alloc p 4096", f"load library l {image(LIBRARY)}", "unseenkernel k l block", "launch k 0 1 64 p 64 1", "kernel k l block",
                      "launch k 0 1 64 p 64 2", "sync"]
    unlisted = {"DMI_STANDIN_FAIL": "cuLibraryGetKernelCount:0:999"}
    r = bench.alike("a kernel found unseen", script, TEXT, **unlisted)
    run = r.run()
    bench.check(run.counters.launches == [1] and not run.balance(), "a kernel found unseen counts once it is known",
                f"{run.counters.launches} {run.balance()} {r.stderr}")
    wrong = [c for c in calls(bench, script, **unlisted) if c["name"] in ("cuFuncGetName", "cuFuncGetParamInfo")]
    bench.check(not wrong, "it is not asked as a function", wrong)


@pytest.mark.since(12040, "cuModuleEnumerateFunctions")
def test_functions_of_a_module(bench, image):
    script = BEGIN + ["alloc p 4096", f"load module m {image(LIBRARY)}", "functions f m 40",
                      *[f"launch f{i} 0 1 64 p 64 {i}" for i in range(3)], "unload m", f"load module m {image(OTHER_ORDER, 'o')}", "functions g m 2",
                      *[f"launch g{i} 0 1 64 p 64 1{i}" for i in range(2)], "func h m block", "launch h 0 1 64 p 64 9", "sync"]
    r = bench.alike("functions of a module", script, TEXT, **REUSE)
    bench.captured("functions of a module", r, [filled(1, 64), filled(9, 64)])


@pytest.mark.since(12040, "cuFuncGetParamInfo")
@pytest.mark.parametrize("name", ["cuFuncGetParamInfo", "cuKernelGetParamInfo"])
@pytest.mark.parametrize("result", [201, 900])
def test_layouts_are_asked_for_again_at_the_first_launch(bench, image, name, result):
    """Before there is a context, say. A second failure is one that stays."""
    script = BEGIN + ["alloc p 4096", f"load library l {image(LIBRARY)}", "kernel k l block" if "Kernel" in name else "libmodule n l"]
    script += [] if "Kernel" in name else ["func k n block"]
    script += [f"launch k 0 1 64 p 64 {seed}" for seed in (1, 2, 3)] + ["sync"]
    r = bench.alike("asked again", script, TEXT, DMI_STANDIN_FAIL=f"{name}:1:{result}")
    bench.captured("asked again", r, [filled(seed, 64) for seed in (1, 2, 3)])
    r = bench.alike("failing for ever", script, TEXT, DMI_STANDIN_FAIL=f"{name}:0:{result}")
    run = r.run()
    bench.check(run.counters.expected[0].records == run.counters.dropped_sum(0).records == 3 and not run.balance(), "failing for ever: counted",
                f"{run.counters.dropped} {r.stderr}")
    asked = [c for c in calls(bench, script, DMI_STANDIN_FAIL=f"{name}:0:{result}") if c["name"] == name]
    bench.check(len(asked) == 2, "not at every launch", len(asked))




MANGLED = images.ptx(images.fill("_Z5blockPjjjy"))
DEMANGLED = spec(site(kernel="^block.unsigned int\\*, unsigned int"))


@pytest.mark.parametrize("found", [
    pytest.param(["load module m IMAGE", "func f m _Z5blockPjjjy"], id="function"),
    pytest.param(["load library m IMAGE", "kernel f m _Z5blockPjjjy"], id="kernel"),
])
@pytest.mark.parametrize("is_old", [False, True], ids=["new driver", "old driver"])
def test_names_are_demangled_without_a_runtime(bench, image, found, is_old):
    """The program is written in C: it has no C++ runtime, and needs none."""
    if is_old and not standin_folder(12020).exists():
        pytest.skip("stand-ins of older drivers are not built with sanitizers")
    env = {"LD_LIBRARY_PATH": standin_folder(12020)} if is_old else {}
    script = BEGIN + ["alloc p 4096", *[line.replace("IMAGE", str(image(MANGLED))) for line in found], "launch f 0 1 64 p 64 1", "sync"]
    r = bench.alike("no C++ runtime", script, DEMANGLED, **env)
    bench.captured("no C++ runtime", r, [filled(1, 64)])


def cutlass_name(arguments):
    return "_ZN7cutlass13device_kernelI" + "".join(f"Li{i % 10}E" for i in range(arguments)) + "EEvPjjjy"


def test_a_name_that_cannot_be_demangled_is_said(bench, image):
    """libiberty takes 1,024 arguments in one list."""
    name = cutlass_name(5000)
    load = f"load module m {image(images.ptx(images.fill('f').replace('.entry f(', f'.entry {name}(')))}"
    script = BEGIN + ["alloc p 4096", load, "functions f m 1", "launch f0 0 1 64 p 64 1", "sync"]
    r = bench.alike("no text", script, spec(site(kernel="^void cutlass::device_kernel<")))
    lines = [line for line in r.stderr.splitlines() if "cannot be demangled" in line]
    bench.check(len(lines) == 1 and f"({len(name)} characters)" in lines[0], "it is said, with its length", r.stderr[-600:])


@pytest.mark.since(12040, "cuModuleEnumerateFunctions")
@pytest.mark.parametrize("arguments, kib", [(10, 0), (300, 0), (1000, 0), (200, 64)])
def test_names_of_any_length_on_any_stack(bench, image, arguments, kib):
    """CUTLASS 3 has names of thousands of characters; threads of some programs have stacks of 64 KiB."""
    name = cutlass_name(arguments)
    code = images.ptx(images.fill("f").replace(".entry f(", f".entry {name}("))
    text = spec(site(kernel="^void cutlass::device_kernel<0, 1, .*, 9>[(]unsigned int[*], "))
    work = ["setctx c", f"load module m {image(code)}", "functions f m 1", "launch f0 0 1 64 p 64 1"]
    script = BEGIN + ["alloc p 4096", "sync", f"threads 1 {kib}", *work, "endthreads", "sync"]
    r = bench.alike(f"{len(name)} characters, {kib} KiB", script, text)
    bench.captured(f"{len(name)} characters, {kib} KiB", r, [filled(1, 64)])
