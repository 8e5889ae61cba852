# SPDX-License-Identifier: Apache-2.0
"""The serving engine while its steps are timed: it computes the same bits, and each step has the launches, rows and requests that it says it had.

With the tier full each kernel is under its step. In graphs, beside a capture, with two ranks, with no step from the engine, and with a kill at a random moment.
"""
import collections
import json
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

import harness
from harness import BUILD, DMI_RUN, PRELOAD, ROOT, STANDIN

pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("unit", "preload", "standin")]

import format_reader  # noqa: E402
import full_trace  # noqa: E402
import serving  # noqa: E402
from standin_log import Log  # noqa: E402
from test_serve_nvtx import records_of  # noqa: E402

DMI_TRACE = BUILD / "tools" / "dmi-trace"
CUPTI = STANDIN / "cupti" / "libcupti.so.13"
pytestmark = pytest.mark.built(DMI_RUN, DMI_TRACE, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
DEVICE, GAP, LATE, ENDED = 1, 2, 16, 5
OVERLAPS = 3
MODES = {"graph": ("--mode", "graph"), "eager": ("--mode", "eager"), "piecewise": ("--mode", "piecewise"), "drafts": ("--mode", "graph", "--speculate", "2"),
         "ranks": ("--mode", "graph", "--ranks", "2")}
FURTHER, BUSY = 4, 5
CATALOGUE = ["LLMEngine::Request", *(f"EngineCore::{word}" for word in ("Step", "Schedule", "Execute", "Output", "CollectiveRpc")), "Worker::Response",
             *(f"ModelRunner::{word}" for word in ("Preprocess", "Forward", "Sample", "Draft", "Bookkeep")), "CacheEngine::Load", "CacheEngine::Save"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("trace"))


def traced(folder):
    runs = [format_reader.Run(run) for run in sorted(harness.runs_of(folder))]
    for run in runs:
        assert subprocess.run([DMI_TRACE, "check", run.folder], stdout=subprocess.DEVNULL, check=False).returncode == 0
    return runs


def by_preload(server, name, **env):
    return {"LD_PRELOAD": PRELOAD, "DMI_TRACE": "steps", "DMI_OUT": server.folder / f"{name}-run", **env}


def test_each_step_has_what_the_engine_says_of_it(check, server):
    requests = serving.some("france", "one", "count", tokens=6)
    plain = server.serve("plain", requests, "--mode", "graph")
    served = server.serve("timed", requests, "--mode", "graph", "--steps", **by_preload(server, "timed"))
    run, = traced(server.folder / "timed-run")
    times = run.step_times
    check(served.results == plain.results, "the same tokens")
    check(len(times) == len(served.trace) and [t["step"] for t in times] == list(range(len(times))), "each step is there once", len(times))
    check(all(t["flags"] & ~LATE == (DEVICE | GAP if i else DEVICE) for i, t in enumerate(times)), "device times and gaps", [t["flags"] for t in times])
    replays = [bool(step["replayed"]) for step in served.trace]
    check(any(replays) and [t["graph_launches"] for t in times] == [int(r) for r in replays], "launches of graphs", times)
    check([t["launches"] > 0 for t in times] == [not r for r in replays], "launches of kernels", times)
    check(all(t["rows"] == run.steps[t["step"]].n_rows and t["requests"] == sum(not s.padding for s in run.steps[t["step"]].spans)
              for t in times), "rows and requests", times)
    check(all(t["device_ns"] <= t["end_ns"] - t["begin_ns"] for t in times), "device times lie within host times, as the engine waits", times)
    ends = [(a["end_ns"], b["begin_ns"]) for a, b in zip(times, times[1:])]
    check(all(end <= begin + 1_000_000 for end, begin in ends), "steps follow one another", ends)


def test_beside_a_capture(check, server):
    requests = serving.some("france", "one", tokens=5)
    text = serving.spec_text("float32")
    plain = server.serve("capture", requests, "--mode", "graph", spec=text)
    served = server.serve("both", requests, "--mode", "graph", spec=text, DMI_TRACE="steps")
    check(served.results == plain.results, "the same tokens")
    (want, _), (got, _) = records_of(plain), records_of(served)
    check(len(want) > 100 and want == got, "the same records")
    run, = traced(served.out)
    times = run.step_times
    check(len(times) == len(served.trace) and all(t["own"] > 10 for t in times), "each step has kernels of DMI's own", [t["own"] for t in times])


def test_two_ranks_and_no_step_from_the_engine(check, server):
    requests = serving.some("france", tokens=5)
    served = server.serve("ranks", requests, "--mode", "graph", "--ranks", "2", "--steps", **by_preload(server, "ranks", DMI_JOB="one-job"))
    runs = [run for run in traced(server.folder / "ranks-run") if run.step_times]
    check([len(run.step_times) for run in runs] == [len(served.trace)] * 2, "each rank times its own steps", [len(r.step_times) for r in runs])
    said = harness.run([DMI_TRACE, "steps", server.folder / "ranks-run"]).stdout
    check(said.count("begun by engine") == 2, "dmi-trace shows each rank", said)
    served = server.serve("graphs", requests, "--mode", "graph", **by_preload(server, "graphs", DMI_TRACE_STEP="graph"))
    run, = traced(server.folder / "graphs-run")
    n = sum(bool(step["replayed"]) for step in served.trace)
    check([t["graph_launches"] for t in run.step_times] == [1] * n and all(t["source"] == 1 for t in run.step_times), "DMI_TRACE_STEP=graph", run.step_times)


def test_ranges_of_the_catalogue_lie_under_their_steps(check, server):
    """--spans, in two ranks that speculate: all that this engine has of StriaTrace's catalogue."""
    options = ["--mode", "graph", "--ranks", "2", "--speculate", "2", "--steps", "--spans"]
    served = server.serve("spans", serving.some("france", "one", tokens=5), *options, **by_preload(server, "spans", DMI_JOB="spans"))
    runs = [run for run in traced(server.folder / "spans-run") if run.step_times]
    check(len(runs) == 2, "each rank has its own", runs)
    for run in runs:
        check({r[6].split()[0] for r in run.ranges} == set(CATALOGUE), "each name comes", {r[6] for r in run.ranges} ^ set(CATALOGUE))
        forwards = [r[2] for r in run.ranges if r[6] == "ModelRunner::Forward" and r[4] == 2]
        check(forwards == [t["step"] for t in run.step_times], "each step has one forward of the model, beside the draft's", forwards)
        times = {r[6].split()[1]: r for r in run.ranges if r[5] == OVERLAPS}
        check({name: r[7]["generated"] for name, r in times.items()} == {r["id"]: len(r["tokens"]) for r in served.results}, "requests, with their tokens", times)
        ends = [run.step_times[0]["begin_ns"], run.step_times[-1]["begin_ns"]]
        check(all(r[0] <= ends[0] for r in times.values()) and max(r[1] for r in times.values()) >= ends[1], "from before the first step into the last", (times, ends))
        check_shown(check, run, len(run.step_times) // 2)
    check_time_line(check, runs, server.folder)


def check_time_line(check, runs, folder):
    """In Perfetto's file an arrow goes from the range that launches a step to the step on its device."""
    export = pytest.importorskip("test_trace_export")
    done = export.export(folder / "spans.perfetto", folder / "spans-run")
    read = export.Read(folder / "spans.perfetto")
    check(done.returncode == 0 and not read.wrong and not read.unknown, "the export", (done.stderr, read.wrong))
    timed = sum(t["flags"] & DEVICE for run in runs for t in run.step_times)
    check(len(read.flows) == timed and all(source and target and source[1] == "ModelRunner::Forward" and target[0].startswith("steps on device")
                                           for source, target in read.flows.values()), "an arrow for each step", (timed, read.flows))
    names = sorted(name for track, slices in read.slices.items() if track.startswith("requests ") for _, _, name, _ in slices)
    check(names == sorted(2 * ["LLMEngine::Request france", "LLMEngine::Request one"]), "requests", names)


@pytest.mark.long
def test_perfettos_own_trace_processor_reads_the_time_line(check, server):
    """Tracks with their slices and sums, and both ends of each arrow."""
    export = pytest.importorskip("test_trace_export")
    options = ["--mode", "graph", "--steps", "--spans"]
    server.serve("read", serving.some("france", "one", "count", tokens=6), *options, **by_preload(server, "read"))
    file = server.folder / "read.perfetto"
    export.export(file, server.folder / "read-run")
    read = export.Read(file)
    errors, by_track, flows = export.ask(file.read_bytes(), export.ERRORS, export.BY_TRACK,
                                         "select o.name, o.ts, i.name, i.ts from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id order by o.ts")
    want = {name: (len(slices), sum(end - begin for begin, end, *_ in slices)) for name, slices in read.slices.items()}
    want["marks"] = len(read.instants), 0
    check(not errors and {name: (n, ns) for name, n, ns in by_track} == want, "tracks", (errors, by_track, want))
    arrows = sorted(((source[1], source[2], target[1], target[2]) for source, target in read.flows.values()), key=lambda one: one[1])
    check(len(arrows) > 5 and flows == arrows, "arrows", (flows, arrows))


def check_shown(check, run, number):
    """dmi-trace show has the parts of a step under it, and none of another step's but its neighbour's, whose schedule lies before it says its step."""
    said = json.loads(harness.run([DMI_TRACE, "show", "--json", "--step", number, run.folder]).stdout)
    during = [r for r in said["ranges"] if r["offset_ns"] + r["ns"] > 0]  # the others lie between it and the step before
    names = collections.Counter(r["name"] for r in during if not r["overlaps"])
    numbers = [[r["facts"]["number"] for r in ranges if r["name"] == "EngineCore::Step"] for ranges in (said["ranges"], during)]
    check(numbers[1] == [number, number + 1] and numbers[0] in (numbers[1], [number - 1, *numbers[1]]), "the step, and the beginning of the next one", numbers)
    wanted = {"EngineCore::Execute": 2, "EngineCore::Schedule": 1, "EngineCore::Output": 1, "ModelRunner::Draft": 1, "ModelRunner::Bookkeep": 1, "CacheEngine::Save": 1}
    check({name: names[name] for name in wanted} == wanted, "and what it did; the next step's draft lies before it says its step, too", names)


def test_a_kill_leaves_complete_chunks(check, server, seeds):
    for seed in range(seeds(2, 12)):
        name, (tier, chunk) = f"kill-{seed}", (("steps", 11), ("full", 7), ("kernels", 15))[seed % 3]  # whose first chunk is waited for
        command = server.command(server.folder / name, serving.free("france", tokens=200), ["--mode", "graph", "--steps"], "float32", None, False, None)
        env = harness.environment(DMI_TEST_BUILD=BUILD, **by_preload(server, name, DMI_TRACE=tier, DMI_CUPTI=CUPTI))
        with subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            out = server.folder / f"{name}-run"
            until = time.monotonic() + 60
            while time.monotonic() < until and not any(b"DMIc\x02\0" + bytes([chunk, 0]) in p.read_bytes() for p in out.glob("[!.]*/seg-*")):
                time.sleep(0.05)
            time.sleep(random.Random(seed).uniform(0, 1.5))
            process.send_signal(signal.SIGKILL)
        folder, = harness.runs_of(out)
        done = subprocess.run([DMI_TRACE, "check", "--json", folder], text=True, capture_output=True, check=False)
        said = json.loads(done.stdout)[0]
        check(said["holds"] and said["ended"] is None and not said["missing"], f"seed {seed}: dmi-trace check", done.stdout + done.stderr)
        copy = pathlib.Path(f"{folder}-new")
        harness.run([harness.DMI_DUMP, "recover", folder, "-o", copy], check=False)
        again = json.loads(harness.run([DMI_TRACE, "check", "--json", copy]).stdout)[0]
        kept = [[one[key] for key in ("stored", "ran_stored", "sums")] for one in (said, again)]
        check(kept[0] == kept[1], f"seed {seed}: dmi-dump recover keeps them", kept)
        check((bool(said["ran_stored"]), bool(said["sums"])) == (seed % 3 == 1, seed % 3 == 2), f"seed {seed}: what ran is there, or its sums", said)


def check_ran(check, what, run, launches):
    """What the driver's log has of a process is in its trace once, under its step."""
    said = full_trace.differences(launches, run)
    check(not said, f"{what}: what the driver's log has is there once, under its step", said[:2])
    kernels = [r for r in run.ran if r.kind == full_trace.KERNEL]
    check(len(kernels) == len(launches.launches) > 100, f"{what}: kernels", (len(kernels), len(launches.launches)))
    graphs = {t["number"]: len({r.correlation for r in kernels if r.graph and r.step == t["number"] + full_trace.FIRST}) for t in run.step_times}
    check(graphs == {t["number"]: t["graph_launches"] for t in run.step_times}, f"{what}: launches of graphs", graphs)


def check_sites(check, what, run, served):
    """A kernel of a graph has site and layer of a record that was captured of its step, and each launch of a graph has all sites that the graph has."""
    names, (records, _) = serving.site_names(served.run), records_of(served)
    steps = {t["number"] + full_trace.FIRST: run.steps[t["step"]].step for t in run.step_times}
    told = collections.Counter((names[r.site - 1], r.layer - 1 if r.layer else None, steps[r.step]) for r in run.ran if r.site)
    captured = {(name, layer if layer is not None and layer >= 0 else None, step) for name, layer, step in records}
    check(told and set(told) <= captured and set(told.values()) == {1}, f"{what}: sites and layers are those of what was captured", sorted(set(told) - captured, key=str)[:5])
    replays = collections.defaultdict(collections.Counter)
    for r in run.ran:
        if r.graph and r.kind == full_trace.KERNEL:
            replays[r.graph, r.correlation][r.site, r.layer] += 1
    graphs = collections.defaultdict(set)
    for (graph, _), places in replays.items():
        graphs[graph].add(frozenset(places.items()))
    check(all(len(places) == 1 for places in graphs.values()) and len({name for name, *_ in told}) > 5, f"{what}: each launch has them", {g: len(p) for g, p in graphs.items()})


def run_full(check, server, name, options, spec=None, **env):
    """Serves with the tier full, and checks what ran. Return: what was served, and its runs."""
    requests = serving.some("france", "one", tokens=4)
    plain = server.serve(f"{name}-plain", requests, *options)
    log = server.folder / f"{name}-%p.log"
    env = {"DMI_TRACE": "full", "DMI_CUPTI": CUPTI, "DMI_STANDIN_LOG": log, **({"DMI_JOB": name} if "--ranks" in options else {}), **env}
    env = env if spec else by_preload(server, name, **env)
    served = server.serve(name, requests, *options, *([] if spec else ["--steps"]), spec=spec, **env)
    check(served.results == plain.results, f"{name}: the same tokens")
    runs = [run for run in traced(served.out if spec else server.folder / f"{name}-run") if run.step_times]
    check(len(runs) == (2 if "--ranks" in options else 1), f"{name}: a run a rank", len(runs))
    for run in runs:
        check_ran(check, name, run, Log(server.folder / f"{name}-{run.manifest['pid']}.log"))
    return served, runs


@pytest.mark.built(CUPTI)
@pytest.mark.parametrize("mode", ["eager", pytest.param("graph", marks=pytest.mark.long)])
def test_what_ran_is_under_its_step(check, server, mode):
    _, (run,) = run_full(check, server, f"full-{mode}", MODES[mode])
    check((mode == "graph") == any(r.graph for r in run.ran), "graphs are seen as such")


@pytest.mark.built(CUPTI)
def test_what_ran_has_its_site(check, server):
    served, (run,) = run_full(check, server, "sites", MODES["graph"], spec=serving.spec_text("float32"))
    check_sites(check, "graph", run, served)


@pytest.mark.built(CUPTI)
@pytest.mark.long
def test_what_ran_in_each_mode_with_random_delays(check, server, seeds):
    """Alone and beside a capture, in turn."""
    every = [(mode, both) for mode in MODES for both in (False, True) if not (both and mode == "ranks")]
    for seed in range(seeds(1, 60)):
        mode, both = every[seed % len(every)]
        spec = serving.spec_text("float32") if both else None
        served, runs = run_full(check, server, f"{mode}-{seed}", MODES[mode], spec, DMI_STANDIN_DELAY_SEED=seed + 1, DMI_STANDIN_DELAY_MAX_NS=400000)
        if both and mode != "eager":
            check_sites(check, f"{mode}, seed {seed}", runs[0], served)


@pytest.mark.built(CUPTI)
@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.long)])
def test_sums_are_those_of_the_tier_full(check, server, mode):
    """The same requests twice: what the tier full stores of a step, by name, the tier kernels sums; beyond 16 names all at once."""
    requests = serving.some("france", "one", tokens=4)
    runs = {}
    for tier in ("full", "kernels"):
        name = f"sums-{tier}-{mode}"
        server.serve(name, requests, "--mode", mode, "--steps", **by_preload(server, name, DMI_TRACE=tier, DMI_CUPTI=CUPTI))
        runs[tier], = traced(server.folder / f"{name}-run")
    want, got, all_of = (collections.defaultdict(collections.Counter) for _ in range(3))
    for r in runs["full"].ran:
        want[r.step][r.kind, r.name] += 1
    for s in runs["kernels"].sums:
        (all_of if s.kind == BUSY else got)[s.step][s.kind, s.name] += s.n
    check(sorted(want) == sorted(got) and len(want) > 4, "the same steps", (sorted(want), sorted(got)))
    for at, names in want.items():
        named = {key: n for key, n in got[at].items() if key[0] != FURTHER}
        check(all(names[key] == n for key, n in named.items()), f"{mode}: {at}, by name", (names, named))
        check(sum(names.values()) == sum(got[at].values()) == sum(all_of[at].values()), f"{mode}: {at}, all together", (names, got[at], all_of[at]))
        check(at == full_trace.OUTSIDE or len(named) <= 16 + 8, f"{mode}: {at}, sixteen kernels, copies and fills", named)
