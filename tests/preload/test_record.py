# SPDX-License-Identifier: Apache-2.0
"""The recorder: what it writes down of every launch, in streams and in graphs, and that the program does not notice."""
import os
import re
import sys

import pytest

from harness import BUILD, ROOT, environment, run
from kit import CLIENT, START, filled, site, spec
from recordings import Recording

GRAPHS = ROOT / "tests/preload/graph_client.py"
SITES = BUILD / "tools" / "dmi-sites"
BLOCK = 4096


def record(bench, what, script, command=None, **env):
    """The recording of a script; it says the same with and without."""
    path = bench.folder / f"{bench.n}.rec"
    result = bench.alike(what, script, None, command=command, timeout=120, DMI_RECORD=path, **env)
    if not bench.check(path.exists(), f"{what}: there is a recording", result.stderr):
        return None
    return Recording(path)


def words(launch, n=None):
    """What the launch wrote, as 32-bit words, from its first pointer on."""
    _, address, _, _ = launch.pointers[0]
    for at, data in launch.after:
        if at <= address < at + len(data):
            data = data[address - at:]
            return tuple(int.from_bytes(data[i:i + 4], "little") for i in range(0, 4 * (n or len(data) // 4), 4))
    return ()


def test_launches(bench):
    script = START + ["launch first 0 2 64 p 100 7", "launch block 0 1 64 p+8192 64 3", "launch first 0 2 64 p 100 8", "sync"]
    rec = record(bench, "three launches", script)
    bench.check([x.name for x in rec.launches] == ["first", "block", "first"], "the kernels by name", [x.name for x in rec.launches])
    bench.check([(x.grid, x.block) for x in rec.launches] == [((2, 1, 1), (64, 1, 1)), ((1, 1, 1), (64, 1, 1)), ((2, 1, 1), (64, 1, 1))],
                "grids and blocks")
    bench.check([words(x, n) for x, n in zip(rec.launches, (100, 64, 100))] == [filled(7, 100), filled(3, 64), filled(8, 100)],
                "the bytes after each launch", [words(x, 4) for x in rec.launches])
    base = rec.launches[0].pointers[0][2]
    bench.check([x.pointers[0] for x in rec.launches] == [(0, base, base, 1 << 20), (0, base + 8192, base, 1 << 20), (0, base, base, 1 << 20)],
                "pointers and their allocation", [x.pointers for x in rec.launches])
    bench.check([x.params[8:16] for x in rec.launches] == [bytes([100, 0, 0, 0, 7, 0, 0, 0]), bytes([64, 0, 0, 0, 3, 0, 0, 0]),
                                                           bytes([100, 0, 0, 0, 8, 0, 0, 0])], "numbers among the parameters")
    bench.check([len(d) for x in rec.launches for _, d in x.after] == [BLOCK] * 3, "only blocks that changed",
                [(hex(a), len(d)) for x in rec.launches for a, d in x.after])
    bench.check((rec.end, rec.reason, rec.unseen) == (3, "exit", []), "closed", (rec.end, rec.reason, rec.unseen))


def test_what_is_copied_between_launches_is_nobodys(bench):
    script = START + ["launch first 0 1 64 p 64 7", "write p 4096 5", "launch block 0 1 64 p 16 9", "sync"]
    rec = record(bench, "a copy", script)
    bench.check(len(rec.launches[1].before) == 1 and words(rec.launches[1], 16) == filled(9, 16),
                "the copy came before the second launch, which wrote its own words", rec.launches[1].before)


def test_the_budget_ends_it(bench):
    script = START + [f"launch first 0 1 64 p 64 {i}" for i in range(1, 9)] + ["sync"]
    rec = record(bench, "a budget", script, DMI_RECORD_BUDGET=3 * BLOCK)
    bench.check((len(rec.launches), rec.reason) == (3, "budget"), "three blocks, no more", (len(rec.launches), rec.reason))


def test_forwards_are_counted(bench):
    script = START + ["launch other 0 1 64 p 64 1"] + ["launch first 0 1 64 p 64 2", "launch block 0 1 64 p 64 3"] * 4 + ["sync"]
    rec = record(bench, "forwards", script, DMI_RECORD_BEGIN="^first$", DMI_RECORD_FORWARDS=2)
    bench.check([x.name for x in rec.launches] == ["first", "block"] * 2 and rec.reason == "forwards",
                "from the first one on, two of them", ([x.name for x in rec.launches], rec.reason))


def test_a_file_is_never_overwritten(bench):
    path = bench.folder / "there.rec"
    path.write_text("mine")
    result = bench.alike("a file that is there", START + ["launch first 0 1 64 p 64 1", "sync"], None, DMI_RECORD=path)
    bench.check(path.read_text() == "mine" and "cannot make the recording" in result.stderr, "it stays, and the log says why", result.stderr)


def test_the_tool_prepares_the_environment(bench):
    path = bench.folder / "tool.rec"
    (bench.folder / "script").write_text("\n".join(START + ["launch first 0 1 64 p 64 1", "sync"]) + "\n")
    command = [SITES, "record", "--out", path, "--budget", "1M", "--", CLIENT, bench.folder / "script", "dlopen"]
    said = run(command, env=environment(DMI_STANDIN_CACHE=os.environ.get("DMI_STANDIN_CACHE", BUILD / "standin-cache")), timeout=120).stderr
    bench.check("nothing was written" not in said, "its file is seen", said)
    rec = Recording(path)
    bench.check([words(x, 64) for x in rec.launches] == [filled(1, 64)], "recorded")
    again = run(command, env=environment(), timeout=120, check=False)
    bench.check(again.returncode == 2 and "--force replaces it" in again.stderr, "not twice", again.stderr)
    forced = [*command[:2], "--force", *command[2:]]
    path.write_bytes(path.read_bytes() + bytes(1000))
    run(forced, env=environment(), timeout=120)
    bench.check([words(x, 64) for x in Recording(path).launches] == [filled(1, 64)], "but with --force")
    path.write_text("mine")
    again = run(forced, env=environment(), timeout=120, check=False)
    bench.check(again.returncode == 2 and "no recording" in again.stderr and path.read_text() == "mine", "which replaces recordings alone", again.stderr)


def test_a_command_without_cuda_is_named(bench):
    path = bench.folder / "none.rec"
    said = run([SITES, "record", "--out", path, "--", "true"], env=environment(), timeout=120).stderr
    bench.check(f"nothing was written to {path}: no process of the command has initialised CUDA" in said and not path.exists(), "and no file is there", said)


def test_a_command_is_recorded_and_checked(bench):
    (bench.folder / "script").write_text("\n".join(START + ["launch block 0 1 64 p 64 1", "sync"]) + "\n")
    for name, kernel, code in (("good", "^block$", 0), ("drifted", "^blocks$", 1)):
        (bench.folder / "spec.yaml").write_text(spec(site(kernel=kernel)))
        command = [SITES, "check", bench.folder / "spec.yaml", "--out", bench.folder / f"{name}.rec", "--", CLIENT, bench.folder / "script", "dlopen"]
        env = environment(DMI_STANDIN_CACHE=os.environ.get("DMI_STANDIN_CACHE", BUILD / "standin-cache"))
        result = run(command, env=env, timeout=120, check=False)
        bench.check(result.returncode == code and re.search(rf"^{name} +any +out ", result.stdout, re.M), f"{name}: said of the site",
                    (result.returncode, result.stdout, result.stderr))


@pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
def test_graphs_kernel_by_kernel(bench):
    pytest.importorskip("cuda.bindings")
    rec = record(bench, "a buffer that a graph uses again", [], command=[sys.executable, GRAPHS, "reuse"])
    blocks = [words(x, 64) for x in rec.launches if x.name == "block"]
    bench.check(blocks == [filled(s, 64) for s in (1, 2, 3, 4)] * 5, "what each node wrote, though the next one overwrites it",
                [b[:2] for b in blocks])
    bench.check(all(x.in_graph for x in rec.launches if x.name == "block") and not rec.unseen, "as nodes of graphs", rec.unseen)


@pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
@pytest.mark.parametrize("name", ["fork_join", "two_execs", "rows", "piecewise", "update", "enable", "child", "embedded", "updatable", "ended"])
def test_graphs_compute_the_same(bench, name):
    pytest.importorskip("cuda.bindings")
    rec = record(bench, name, [], command=[sys.executable, GRAPHS, name])
    bench.check(rec.end is not None and rec.reason == "exit", f"{name}: closed", rec.reason)
    if name in ("update",):
        bench.check(rec.unseen == ["it was updated from another graph"] and rec.n_unseen > 0, f"{name}: what is not seen is named", rec.unseen)


def test_what_the_program_says_goes_nowhere(bench):
    """As without a spec: dmi_step_begin() and its like answer that nobody listens."""
    script = START + ["step 1 4 a:0:4:0", "launch first 0 1 64 p 64 1", "stepend", "flush 10", "sync"]
    rec = record(bench, "steps", script)
    bench.check([words(x, 64) for x in rec.launches] == [filled(1, 64)], "the launch is recorded all the same")
