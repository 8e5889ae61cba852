# SPDX-License-Identifier: Apache-2.0
"""Whatever the library leaves alone is counted: every launch of a site is expected, or the site is switched off by name.

What was launched the stand-in's log says: it names every kernel that was queued, from a graph or not. And the layers of
launches that come after a graph that was left alone are right.
"""
import os
import pathlib
import subprocess
import sys

import pytest

from built import require
from harness import BUILD
from kit import filled, site, spec
from standin_log import Log

pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("left_alone_client.py")
DUMP = BUILD / "tools" / "dmi-dump"
FAIL_ALLOC = BUILD / "tests" / "preload" / "libfail_alloc.so"
TEXT = spec(site("block", layer="occ"), head="ring: {bytes: 4M, slots: 8192}\n")


def run(bench, way, text=TEXT, **env):
    """The program says the same with and without the library. Return: (run, launches of the site, the result)"""
    log = bench.folder / f"log-{bench.n}"
    command = [sys.executable, CLIENT, way]
    without = bench.run([], command=command, preload=False, timeout=120)
    result = bench.run([], text, command=command, timeout=120, DMI_STANDIN_LOG=log, **env)
    bench.check(result.said() == without.said(), "the program says the same without the library",
                f"with {result.said()}, without {without.said()}; {result.stderr[-600:]}")
    if not bench.check(bool(result.folders), "a run was written", result.stderr[-600:]):
        return None, [], result
    return result.run(), [r for r in Log(log).launches if r["kernel"] == "block"], result


def problems(run):
    return "; ".join(f"{p['reason']}: {p['sentence']}" for p in run.manifest.get("problems", []))


def account(bench, run, launches, given_up=False):
    """All launches are expected (up to where the site was switched off), and captured or dropped."""
    counters = run.counters
    bench.check(not run.balance(), "every record is accounted for", run.balance())
    expected = counters.expected[0].records
    off = "switched_off" in problems(run)
    bench.check(off == given_up, "the site is switched off where its launches cannot be counted, nowhere else", problems(run))
    bench.check(expected <= len(launches) if off else expected == len(launches), "every launch of the site is expected",
                f"{expected} of {len(launches)}; {problems(run)}")
    return counters


# (way, records that must be captured (None: all), what the report says)
WAYS = [("plain", None, ""),
        ("captured", None, ""),
        ("many_copies", None, ""),
        ("memory_node", 2, "it holds a memory node"),
        ("updatable", 2, "node that kernels update"),
        ("users", None, ""),
        ("contexts", 2, "belongs to another context than the one in which its graph was instantiated"),
        ("unseen", 2, "came into its graph unseen"),
        ("embedded", 2 + 2, "launched into a capture"),
        ("update", 2 + 6 * 2, "after it was instantiated"),
        ("update_first", 2, "after it was instantiated"),
        ("update_unseen", 2, "came into its graph unseen"),
        ("parameters", 2 + 4 * 2, "after it was instantiated"),
        ("parameters_first", 2, "after it was instantiated"),
        ("child", 2 + 6, "after it was instantiated"),
        ("child_first", 2, "after it was instantiated")]


@pytest.mark.parametrize("way, captured, why", WAYS, ids=[w[0] for w in WAYS])
def test_left_alone(bench, way, captured, why):
    run_, launches, _ = run(bench, way)
    if not run_:
        return
    counters = account(bench, run_, launches)
    wanted = len(launches) if captured is None else captured
    dropped = counters.dropped[0].get("unsupported")
    bench.check(counters.captured[0].records == wanted, "what can be captured is", f"{counters.captured[0]} of {wanted}")
    bench.check((dropped.records if dropped else 0) == len(launches) - wanted, "the others are drops for `unsupported`",
                counters.dropped[0])
    bench.check(why in problems(run_) and bool(why) == (captured is not None), "the report says why", problems(run_))
    layers = [r.layer for r in run_.of(0)]
    last = 1 if way == "contexts" else len(launches) - 1  # each context counts its own
    bench.check(bool(layers) and layers[0] == 0 and layers[-1] == last and layers == sorted(set(layers)),
                "layers of what comes later are right", f"{layers[:4]} ... {layers[-4:]}, {len(launches)} launches")


def test_each_copy_of_several_tickets_is_in_its_place(bench):
    run_, launches, _ = run(bench, "many_copies")
    got = [r.words for r in run_.of(0)]
    wanted = [filled(i, 1 + i % 16) for i in range(1400)] * 2  # between two eager launches
    bench.check(got[1:-1] == wanted, "what each launch wrote", (len(got), len(launches), got[:3], wanted[:3]))


def verified(run):
    return subprocess.run([DUMP, "verify", run.folder], capture_output=True, text=True).stdout


def test_a_site_that_cannot_be_counted_is_switched_off(bench):
    run_, launches, _ = run(bench, "updatable_site")
    if run_:
        account(bench, run_, launches, given_up=True)
        bench.check("other kernels" in problems(run_), "the report says why", problems(run_))
        bench.check("switched off after 1 of its launches" in problems(run_), "and since when", problems(run_))
        text = verified(run_)
        bench.check("as far as launches were counted" in text and "not in this account: site block" in text,
                    "what came since is not called balanced", text)


BODY = TEXT.replace("sites:", "forward:\n  - {kind: step, begin: {kernel: '^first$'}}\nsites:")


@pytest.mark.since(12030, "conditional nodes")
@pytest.mark.parametrize("text, captured, layers", [
    (TEXT.replace("    layer: occ\n", ""), 3, [-1] * 3),  # nothing hangs on the occurrence
    (TEXT, 1, [0]),  # the whole run is one forward
    (BODY, 1, [0])], ids=["no layer", "one forward", "forwards"])
def test_a_body_leaves_its_site_on(bench, text, captured, layers):
    """What runs as often as kernels say is in no account; what comes later is captured where its layer is known."""
    run_, launches, _ = run(bench, "conditional", text)
    if not run_:
        return
    counters, in_body = run_.counters, 2
    outside = 1 if text == BODY else 0  # before the first forward
    bench.check(not run_.balance() and "switched_off" not in problems(run_), "the site stays on", problems(run_))
    bench.check(counters.expected[0].records == len(launches) - in_body - outside, "every other launch is expected",
                f"{counters.expected[0]} of {len(launches)}")
    bench.check([r.layer for r in run_.of(0)] == layers and counters.captured[0].records == captured, "what can be captured is",
                [r.layer for r in run_.of(0)])
    bench.check(counters.dropped[0]["unsupported"].records == counters.expected[0].records - captured, "the others are drops",
                counters.dropped[0])
    bench.check("body of a conditional node" in problems(run_), "the report says why", problems(run_))
    bench.check("it holds a conditional node" in problems(run_) and "cannot be cloned" not in problems(run_), "and why the graph is left alone",
                problems(run_))
    bench.check(verified(run_).count("not in this account: site block: kernel block is in the body") == 1,
                "the account says what it leaves out", verified(run_))


@pytest.mark.since(12090, "graphs that move into another")
def test_bodies_that_end_are_forgotten(bench):
    run_, launches, _ = run(bench, "bodies_end", DMI_STANDIN_HANDLES="reuse")
    if run_:
        counters = account(bench, run_, launches)
        bench.check(counters.captured[0].records == 2, "the plain launches are captured", counters.captured[0])
        bench.check("uncounted" not in problems(run_), "no body is taken for one that ended", problems(run_))


@pytest.mark.since(12090, "graphs that move into another")
def test_a_graph_that_was_moved_is_refused_as_ever(bench):
    """Its clone would not be."""
    run_, launches, result = run(bench, "moved_away")
    bench.check("instantiated CUDA_SUCCESS" not in result.stdout and "updated CUDA_SUCCESS" not in result.stdout, "the driver refuses", result.stdout)
    if run_:
        counters = account(bench, run_, launches)
        bench.check(counters.captured[0].records == len(launches), "all else is captured", f"{counters.captured[0]} {problems(run_)}")


def test_what_is_asked_again_is_no_loss(bench):
    """When the graph is instantiated the driver does not say where memory lies; before the launch it does."""
    run_, launches, _ = run(bench, "plain", DMI_STANDIN_FAIL="cuMemGetAddressRange_v2:2:999")
    if run_:
        counters = account(bench, run_, launches)
        bench.check(counters.captured[0].records == len(launches) and "copy_failed" not in problems(run_), "nothing is lost, and nothing is said",
                    f"{counters.captured[0]} {problems(run_)}")


def test_a_context_of_its_kernels_is_gone(bench):
    """A driver that gives an error for the launch gives it with the library too."""
    result = bench.alike("launch", [], TEXT, command=[sys.executable, CLIENT, "context_gone"], timeout=120, DMI_STANDIN_HANDLES="lenient")
    if bench.check(result.code == 0 and bool(result.folders), "the program goes on, and a run is written", result.stderr[-600:]):
        counters = result.run().counters
        bench.check(counters.captured[0].records == counters.expected[0].records == 2, "what else it launches is captured", counters.captured[0])


def test_references_that_clones_share(bench):
    """A release through a clone would end the application's object: its graph stays plain."""
    run_, launches, _ = run(bench, "users", DMI_STANDIN_CLONE_USERS="share")
    if run_:
        counters = account(bench, run_, launches)
        bench.check(counters.captured[0].records == 2 and "references" in problems(run_), "left alone, and it is said why", problems(run_))


def test_references_that_are_not_released(bench):
    run_, launches, _ = run(bench, "users", DMI_STANDIN_FAIL="cuGraphReleaseUserObject:3:999")  # the first two are the question
    if run_:
        counters = account(bench, run_, launches)
        bench.check(counters.captured[0].records == 2 and "held longer" in problems(run_), "a plain exec, and it is said why", problems(run_))


@pytest.mark.parametrize("keep, captured", [("110M", 2), ("90M", 2802)])
def test_graphs_leave_memory_free(bench, keep, captured):
    """Its 1,400 nodes cost 22 MiB, as many copies as much again, of 145 MiB that are free."""
    text = TEXT.replace("slots: 8192", f"slots: 8192, keep_free: {keep}")
    run_, launches, _ = run(bench, "many_copies", text, DMI_STANDIN_MEMORY="150M", DMI_STANDIN_NODE_BYTES=16384)
    if run_:
        counters = account(bench, run_, launches)
        bench.check(counters.captured[0].records == captured, "beyond what is to be kept free graphs stay plain", f"{counters.captured[0]}")
        bench.check(("keep_free" in problems(run_)) == (captured == 2), "the report says why", problems(run_))


CALLS = ["cuGraphClone", "cuGraphGetNodes", "cuGraphKernelNodeGetParams_v2", "cuGraphNodeGetType", "cuGraphNodeFindInClone",
         "cuGraphAddDependencies_v2", "cuMemAlloc_v2", "cuMemHostRegister_v2", "cuModuleLoadData", "cuStreamGetCaptureInfo_v2",
         "cuStreamIsCapturing", "cuGraphChildGraphNodeGetGraph", "cuGraphNodeGetDependentNodes_v2", "cuStreamCreate",
         "cuGraphKernelNodeGetAttribute", "cuCtxGetCurrent"]


def accounted_with(bench, **env):
    """With something failing: the same outputs, and the account whole or the site off."""
    log = bench.folder / f"log-{bench.n}"
    result = bench.run([], TEXT, command=[sys.executable, CLIENT, "everything"], timeout=120, DMI_STANDIN_LOG=log, **env)
    what = ", ".join(f"{k}={v}" for k, v in env.items() if k != "before")
    if result.code != 0 and "graph_client:" in result.stderr:
        return None  # a call of the program's own failed
    bench.check(result.code == 0, f"{what}: the program ends well", f"{result.code} {result.stderr[-600:]}")
    if not result.folders:
        bench.check("without capture" in result.stderr, f"{what}: no run, and it was said", result.stderr[-600:])
        return result
    run_ = result.run()
    launches = sum(r["kernel"] == "block" for r in Log(log).launches)
    expected, off = run_.counters.expected[0].records, "switched off" in problems(run_) + result.stderr
    closed = run_.counters.state == run_.counters.CLOSED or "closing the run" in result.stderr or "the last flush did not" in result.stderr
    bench.check(closed, f"{what}: the run is closed, or it is said", result.stderr[-900:])
    bench.check(not run_.balance() or run_.counters.state != run_.counters.CLOSED, f"{what}: every record is accounted for", run_.balance())
    bench.check(expected == launches or (off and expected < launches), f"{what}: every launch is expected, or the site is off",
                f"{expected} of {launches}; {problems(run_)}")
    layers = [r.layer for r in run_.of(0)]
    whole = off or not layers or run_.counters.captured[0].records < 2 or layers == sorted(set(layers)) and layers[-1] <= launches - 1
    bench.check(whole, f"{what}: layers are right", layers)
    return result


@pytest.mark.parametrize("call", CALLS)
def test_our_calls_failing(bench, call, request):
    """Calls that the program makes itself may fail for it too: then there is nothing to compare."""
    numbers = range(1, 60) if request.config.option.long else (2, 9)
    for n in numbers:
        accounted_with(bench, DMI_STANDIN_FAIL=f"{call}:{n}")


def test_no_memory(bench, request):
    """Each allocation of the library's failing, one in a run, and all from one on."""
    if "DMI_TEST_RUNTIME" in os.environ:
        pytest.skip("the sanitizer's allocator stands in front of the one that fails")
    require(FAIL_ALLOC)
    count = bench.folder / "count"
    accounted_with(bench, before=[FAIL_ALLOC], FAIL_ALLOC=10**9, FAIL_ALLOC_FILE=count)
    n = int(count.read_text())
    bench.check(n > 200, "the library allocates", n)
    step = 1 if request.config.option.long else n // 12
    for i in range(1, n + 1, step):
        accounted_with(bench, before=[FAIL_ALLOC], FAIL_ALLOC=i)
    for i in range(1, n + 1, n // 4):
        accounted_with(bench, before=[FAIL_ALLOC], FAIL_ALLOC=f"{i}+")
