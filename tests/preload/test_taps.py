# SPDX-License-Identifier: Apache-2.0
"""Taps: tensors that the program points out, on ordinary streams and on those that are being captured."""
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import pytest

from harness import BUILD, ROOT
from kit import START, filled, site, spec

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

HERE = BUILD / "tests" / "preload" / "tap_here"
CLIENT = pathlib.Path(__file__).with_name("tap_client.py")
ROOM = "ring: {bytes: 4M, slots: 8192}\n"
SEEDS = pytest.mark.parametrize("seed", ["", "1", "2", "3"])


def tap(tapped, **more):
    return "  - {tap: " + ", ".join([f"'{tapped}'", *(f"{key}: {value}" for key, value in more.items())]) + "}"


def taps(*entries, head=""):
    return spec(*[e if e.startswith(" ") else tap(e) for e in entries], head=ROOM + head)


@pytest.fixture
def play(bench):
    def run(name, text, **env):
        return bench.alike(name, [], text, command=[sys.executable, CLIENT, name], timeout=120, **env)
    return run


def words(run, site=0):
    return [r.words for r in run.of(site)]


def layers_of(run, site=0):
    return [r.layer for r in run.of(site)]


def delays(seed):
    return {"DMI_STANDIN_DELAY_SEED": seed} if seed else {}


@SEEDS
@pytest.mark.parametrize("name, times", [("eager", 3), ("graph", 5)])
def test_a_tap_is_what_was_there(bench, play, name, times, seed):
    result = play(name, taps("resid_pre"), **delays(seed))
    run = bench.captured(name, result, [filled(s, 64) for s in (1, 2, 3, 4)] * times)
    bench.check(layers_of(run) == [0, 1, 2, 3] * times, "layers are those that were said", layers_of(run))
    bench.check([r.forward for r in run.of(0)] == [f for f in range(times) for _ in range(4)],
                "a forward begins where a tap comes again", [r.forward for r in run.of(0)])


def test_the_null_stream(bench, play):
    bench.captured("null", play("null_stream", taps("resid_pre")), [filled(s, 64) for s in (1, 2, 3)])


@SEEDS
def test_arrays(bench, play, seed):
    """What dmi.tap() takes of a device: CUDA's interface and DLPack, on a stream that is named or on none."""
    result = play("arrays", taps("q"), **delays(seed))
    run = bench.captured("arrays", result, [filled(layer + 1, 64) for layer in range(6)])
    bench.check([(r.dims, r.dtype) for r in run.of(0)] == [((8, 8), 11)] * 5 + [((8, 16), 3)], "each as it is", [(r.dims, r.dtype) for r in run.of(0)])
    bench.check(result.stdout.startswith(f"{[True] * 6}\nTrue\n"), "what no tap can say is refused", result.stdout)


@SEEDS
def test_joined_streams(bench, play, seed):
    run = play("joined", taps("q", "k", "z"), **delays(seed)).run()
    for i, s in ((0, 1), (1, 2), (2, 60)):
        bench.check(words(run, i) == [filled(s, 64)] * 10, f"site {i} holds what was there at the tap", words(run, i)[:2])
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_no_circle(bench, play):
    bench.captured("after_both", play("after_both", taps("q")), [filled(1, 64)] * 3)


@SEEDS
def test_first_and_last_in_a_graph(bench, play, seed):
    run = play("ends", taps("embed", "final_ln"), **delays(seed)).run()
    bench.check(words(run, 0) == [filled(30 + s, 64) for s in range(1, 6)], "a tap before the first node", words(run, 0))
    bench.check(words(run, 1) == [filled(7, 64)] * 5, "a tap after the last node", words(run, 1))
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_graphs_in_graphs(bench, play):
    run = play("alone", taps("embed", "resid_pre")).run()
    bench.check(words(run, 0) == [filled(5, 64)] * 2, "a graph of a tap alone", words(run, 0))
    bench.check(words(run, 1) == [filled(s, 64) for s in (1, 2)] * 5, "taps in child graphs and clones", words(run, 1))
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_alone_in_a_child_graph(bench, play):
    """No node says which of an exec's graphs such a tap is in, so nothing of ours is there, and updates are what they were."""
    result = play("alone_in_child", taps("embed"))
    run = result.run()
    dropped = run.counters.dropped[0]
    bench.check(list(dropped) == ["unsupported"] and dropped["unsupported"].records == 3, "it is counted at each launch", dropped)
    bench.check("tap embed stands alone in a child graph: not captured" in result.stderr, "and said", result.stderr)
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_updates(bench, play):
    run = play("update", taps("resid_pre")).run()
    got = list(zip(layers_of(run), words(run)))
    expected = [(layer, filled(seed + layer, 64)) for seed, layers in ((1, (0, 1)), (1, (0, 1)), (11, (0, 1)), (21, (1,)), (31, (0, 1)))
                for layer in layers]
    bench.check(got == expected, "copies follow their taps through updates", [(layer, w[0] >> 16) for layer, w in got])
    bench.check(run.counters.dropped[0] and list(run.counters.dropped[0]) == ["unsupported"] and
                run.counters.dropped[0]["unsupported"].records == 1, "a tap that an update brings is counted", run.counters.dropped)
    bench.check(not run.balance(), "all is accounted for", run.balance())


@pytest.mark.since(12030, "edges with data")
def test_updates_that_lack_the_edge_of_a_tap(bench, play):
    """Where the tap's copy took the edge's place, no copy stands in for an edge that is not there."""
    result = play("update_without_the_edge", taps("q"))
    bench.captured("update_without_the_edge", result, [filled(1, 64)] * 6)
    said = result.stdout.splitlines()[:6]
    bench.check([line.startswith("0") or "SUCCESS" in line for line in said] == [False, False, True] * 2, "the driver refuses graphs without it", said)


def test_nodes_that_end(bench, play):
    run = play("nodes_change", taps("q", "k")).run()
    bench.check([run.counters.dropped_sum(0).records, run.counters.captured[0].records] == [2, 0],
                "a tap after a node that ended is counted", run.counters.dropped)
    bench.check(words(run, 1) == [filled(2, 64)] * 2, "the others are captured", words(run, 1))
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_two_row_dimensions(bench, play):
    run = play("shapes", taps("q_rot", "q", "k")).run()
    rotated = tuple(9 << 16 | b * 300 + h * 100 + t * 10 + d for b in range(2) for t in range(4) for h in range(3) for d in range(5))
    bench.check(words(run, 0) == [rotated, rotated], "rows of batch and token, with gaps", words(run, 0))
    bench.check([r.dims for r in run.of(0)] == [(8, 3, 5)] * 2, "rows come first, as one dimension", [r.dims for r in run.of(0)])
    bench.check(words(run, 1) == [filled(9, 48)] and run.of(1)[0].dims == (8, 6), "adjacent ones", run.of(1)[0].dims)
    swapped = tuple(9 << 16 | b * 12 + h * 2 + t for b in range(4) for t in range(2) for h in range(6))
    bench.check(words(run, 2) == [swapped] and run.of(2)[0].dims == (8, 6), "the last dimension is a row", words(run, 2))
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_rows_of_the_spec_may_be_two(bench):
    dims = "[{row: true, count: 2, stride: 400}, {count: 3, stride: 40}, {row: true, count: 5, stride: 8}]"
    result = bench.alike("spec", START + ["launch block 0 4 64 p 256 7", "sync"], spec(site(dims=dims)))
    expected = tuple(7 << 16 | b * 100 + h * 10 + t * 2 for b in range(2) for t in range(5) for h in range(3))
    run = bench.captured("spec", result, [expected])
    bench.check(run and run.of(0)[0].dims == (10, 3), "rows come first", run and run.of(0)[0].dims)


def test_what_cannot_be_is_counted(bench, play):
    result = play("bad", taps("q"))
    run = result.run()
    answers = result.stderr.split("\n")
    said = next(line.split() for line in answers if line.startswith("0 0 0"))
    bench.check(said == ["0"] * 7 + ["-22"] * 7 + ["0"] * 2 + ["-22"] * 3 + ["2", "2", "0", "2"], "answers", said)
    dropped = {reason: tally.records for reason, tally in run.counters.dropped[0].items()}
    bench.check(dropped == {"bad_pointer": 3, "too_large": 2, "bad_expr": 8}, "by reason", dropped)
    bench.check(sorted(words(run)) == [(0,) * 64, filled(1, 64)] and not run.balance(), "the good ones are there, one of them of host memory",
                (words(run), run.balance()))
    problem = [p for p in run.manifest["problems"] if p["reason"] == "taps_refused"]
    bench.check(problem and problem[0]["times"] == 6, "taps of no site are named", problem)


def test_graphs_that_are_left_alone(bench, play):
    run = play("left_alone", taps("q", "k")).run()
    for i in range(2):
        bench.check(run.counters.expected[i].records == 3 and run.counters.dropped[i]["unsupported"].records == 3,
                    "counted at each launch", run.counters.dropped)
    bench.check(not run.balance(), "all is accounted for", run.balance())


def test_rows_of_requests(bench, play):
    run = play("steps", taps(tap("q", requests="'b'"), tap("q", name="all_q"))).run()
    bench.check([(r.dims, r.kept, r.words) for r in run.of(0)] ==
                [((1, 4), [5], tuple(3 << 16 | 20 + i for i in range(4)))] * 3, "rows of one request", [(r.dims, r.kept) for r in run.of(0)])
    bench.check([r.dims for r in run.of(1)] == [(8, 4)] * 3, "rows of nobody are kept where nothing is chosen", [r.dims for r in run.of(1)])
    bench.check([r.step for r in run.of(0)] == [0, 1, 2] and not run.balance(), "steps are those that were said", run.balance())


def test_a_row_a_request(bench, play):
    """Each is its token's, where the site's rows are tokens; where they are requests', the spans are counted."""
    run = play("last_rows", taps("q", tap("q", name="of_b", requests="'b'"), tap("q", name="by_request", row="request"))).run()
    values = tuple(3 << 16 | i for i in range(8))
    bench.check([(r.dims, r.kept, r.words) for r in run.of(0)] == [((2, 4), [4, 5], values)] * 3, "the rows of their last tokens", [(r.dims, r.kept) for r in run.of(0)])
    bench.check([(r.dims, r.kept, r.words) for r in run.of(1)] == [((1, 4), [5], values[4:])] * 3, "a request's alone", [(r.dims, r.kept) for r in run.of(1)])
    bench.check([(r.dims, r.kept) for r in run.of(2)] == [((2, 4), None)] * 3 and not run.balance(), "those that have one", [(r.dims, r.kept) for r in run.of(2)])


def test_forwards_begin_by_themselves(bench, play):
    run = play("forwards", taps("resid_pre", "q")).run()
    expected = [(f, layer) for f, order in enumerate(((0, 1, 2, 3), (3, 2, 1, 0), (0, 1), (0, 1, 2, 3))) for layer in order]
    for i in range(2):
        bench.check([(r.forward, r.layer) for r in run.of(i)] == expected, "a tap that comes again begins a forward",
                    [(r.forward, r.layer) for r in run.of(i)])


@pytest.mark.parametrize("scenario, text, expected", [
    ("known_layers", "'1,3-4'", [1, 3, 4] * 2), ("known_layers", "last", [5, 5]), ("known_layers", "'0,middle,last-1'", [0, 3, 4] * 2),
    ("eager", "'0,last'", [0, 0, 3, 0, 3]), ("graph", "'2-9'", [2, 3] * 5)])
def test_layers(bench, play, scenario, text, expected):
    run = play(scenario, taps(tap("resid_pre", layers=text))).run()
    bench.check(layers_of(run) == expected, "the layers that were asked for", layers_of(run))
    learned = [p for p in run.manifest["problems"] if "from the second forward on" in p["sentence"]]
    bench.check(bool(learned) == (scenario == "eager"), "where they had to be learned, it is said", run.manifest["problems"])


def test_taps_and_kernels(bench, play):
    text = spec(tap("resid_pre"), site("block", kernel="^(first|block)$", layer="occ"),
                head=ROOM + "forward:\n  - {kind: step, begin: {kernel: '^first$'}}")
    run = play("both", text).run()
    each = [filled(s, 64) for s in (1, 2, 3)]
    bench.check(words(run, 0) == each * 4 and words(run, 1) == each * 3 + [filled(9, 8)] + each, "each has its own",
                [w[0] >> 16 for w in words(run, 1)])
    bench.check(layers_of(run, 0) == [0, 1, 2] * 4 and not run.balance(), "all is accounted for", run.balance())


def test_what_never_came_is_named(bench, play):
    result = play("eager", taps("resid_pro", tap("mlp_*")))
    problems = {p["site"]: p["sentence"] for p in result.run().manifest["problems"] if p["reason"] == "no_match"}
    bench.check(set(problems) == {"resid_pro", "mlp_in"}, "once a pattern", problems)
    bench.check("resid_pre" in problems["resid_pro"], "with what was tapped instead", problems)


def test_switched_off(bench, play):
    result = play("eager", taps("resid_pre"), DMI_RING_BYTES="64K")
    bench.check(not result.run().balance(), "a small ring loses nothing that is not counted", result.run().balance())


def test_a_program_in_c(bench):
    without = bench.run([], preload=False, command=[HERE, 5, 300])
    bench.check((without.code, without.stdout, without.stderr) == (0, "off\n", "1\n1\n"), "without the library nothing happens", without.said())
    result = bench.run([], taps("resid_pre"), command=[HERE, 5, 300])
    bench.check(result.code == 0 and result.stdout == "on\n" and result.complaints == "0\n0\n", "with it, both are taken",
                (result.said(), result.stderr))
    run = result.run()
    wanted = struct.pack("<1500H", *range(1, 1501))
    bench.check([(r.layer, r.dtype, r.dims, r.data) for r in run.of(0)] == [(layer, 3, (5, 300), wanted) for layer in (0, 1)],
                "the values are there", [(r.layer, r.dtype, r.dims) for r in run.of(0)])
    bench.check(not run.balance(), "all is accounted for", run.balance())


@pytest.mark.parametrize("language, compiler, standard", [("c", "gcc", "c99"), ("c", "gcc", "c17"), ("c++", "g++", "c++11"),
                                                          ("c++", "g++", "c++20")])
def test_the_header_alone_compiles(bench, language, compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    text = "#include <dmi/tap.h>\nint main(void) { struct dmi_tap tap = {0}; return dmi_tap_here(&tap) != DMI_STATUS_OFF; }\n"
    if language == "c++":
        text = text.replace("{0}", "{}").replace("(void)", "()")
    done = subprocess.run([compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2",
                           f"-I{ROOT / 'include'}", "-", "-o", bench.folder / "header"], input=text, text=True, stderr=subprocess.PIPE)
    bench.check(done.returncode == 0 and subprocess.run([bench.folder / "header"]).returncode == 0, f"{standard} takes it", done.stderr)


def test_documented_code_is_the_program():
    documented = (ROOT / "docs" / "taps.md").read_text().split("```c\n")[1].split("```")[0]
    body = re.search(r"struct dmi_tap tap = \{.*?\};", documented, re.S).group()
    program = pathlib.Path(__file__).with_name("tap_here.c").read_text()
    assert " ".join(body.split()) in " ".join(program.split()), body


def test_without_a_spec_file(bench):
    command = [sys.executable, CLIENT, "eager"]
    result = bench.run([], None, command=command, timeout=120, DMI_TAP="resid_*,q", DMI_TAP_LAYERS="1,3")
    run = bench.captured("by name", result, [filled(s, 64) for s in (2, 4)] * 3)
    bench.check(run and "tap: 'resid_*'" in (run.folder / "spec.yaml").read_text(), "the run holds the spec that was meant", "")


def accounted(bench, result, what, n_taps):
    """Each record is right; all taps are expected, or the site is switched off by name."""
    if not bench.check(bool(result.folders), f"{what}: a run was written", result.stderr[-600:]):
        return
    run = result.run()
    wrong = [(r.layer, w[0] >> 16) for r, w in zip(run.of(0), words(run)) if w != filled(r.layer + 1, 64)]
    bench.check(not wrong and not run.balance(), f"{what}: what is there is right, and the rest is counted", (wrong, run.balance()))
    off = any(p["reason"] == "switched_off" for p in run.manifest.get("problems", []))
    n = run.counters.expected[0].records
    bench.check(n == n_taps or (off and n < n_taps), f"{what}: all taps are expected, or the site is off", (n, off))


# The calls that taps make, on ordinary streams and on those that are captured.
CALLS = ["cuStreamIsCapturing", "cuStreamGetCaptureInfo_v3", "cuGraphNodeGetDependentNodes_v2", "cuGraphGetRootNodes", "cuMemGetAddressRange_v2",
         "cuGraphClone", "cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2", "cuGraphExecKernelNodeSetParams_v2", "cuLaunchKernel"]


@pytest.mark.parametrize("scenario, n_taps", [("eager", 12), ("graph", 20)])
@pytest.mark.parametrize("call", CALLS)
def test_calls_of_taps_fail(bench, call, scenario, n_taps, request):
    without = bench.run([], preload=False, command=[sys.executable, CLIENT, scenario], timeout=120)
    for nth in range(1, 40 if request.config.option.long else 4):
        if call == "cuLaunchKernel":
            nth *= 2  # ours: each comes after one of the program's
        result = bench.run([], taps("resid_pre"), command=[sys.executable, CLIENT, scenario], timeout=120,
                           DMI_STANDIN_FAIL=f"{call}:{nth}:999")
        same = result.said() == without.said() or (call in ("cuLaunchKernel", "cuStreamIsCapturing") and result.code)
        bench.check(same, f"{call} {nth}: the program says the same", (result.said(), result.stderr[-400:]))
        if result.code == 0:
            accounted(bench, result, f"{call} {nth}", n_taps)
