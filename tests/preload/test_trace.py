# SPDX-License-Identifier: Apache-2.0
"""When steps ran: what the library stores of a program that does what a text says, without a HookSpec and beside one.

Counts are those of the text. The program says the same with and without the library.
"""
import json
import subprocess
import sys

import pytest

import harness
from harness import BUILD, DMI_RUN, ROOT
from kit import CLIENT, START, site, spec

sys.path.insert(0, str(ROOT / "tests" / "unit"))
import format_reader  # noqa: E402

DMI_TRACE = BUILD / "tools" / "dmi-trace"
pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN)
FORWARD = ["launch first 0 1 64 p 64 1", "launch block 0 1 64 p 64 2", "launch other 0 1 64 p 64 3", "launch last 0 1 64 p 64 4", "sync", "digest p 256"]
DEVICE, GAP, UNENDED, LATE, NO_LAUNCH, CAPTURING, STREAM_GONE, CONTEXT_GONE, REFUSED, ELSEWHERE = 1, 2, 8, 16, 256, 512, 1024, 2048, 4096, 16384
BEGUN, SOURCE, CLOCK, LOST, ENDED = 1, 2, 3, 4, 5
ENGINE, FORWARDS, KERNEL, RANGE = 5, 4, 2, 3
NVTX, MODULE = BUILD / "tests" / "preload" / "nvtx_client", BUILD / "tests" / "preload" / "libnvtx_module.so"


def step(number, *more):
    return [f"step {number} 4 a:0:3:{10 * number}:1 b:3:1:5:2", *more, "stepend"]


def alike(bench, what, script, text, **env):
    """The program says the same, and computes the same, with and without the library; but whether a step was taken."""
    def told(result):
        lines = (line.split() for line in result.stdout.splitlines())
        return result.code, [line[:1] if line[0] in ("step", "stepend", "range", "rangeend", "overlaps") else line for line in lines]
    command = {"command": env.pop("command")} if "command" in env else {}
    without, result = bench.run(script, preload=False, **command), bench.run(script, text, **command, **env)
    bench.check(told(result) == told(without), f"{what}: the program says the same without the library", (result.stderr[-800:], told(result), told(without)))
    return result


LOSSES = (4, 6, 8, 9)  # kinds of marks: steps, ranges, records; records that CUPTI dropped


def traced(result, i=0):
    return format_reader.Run(result.folders[i])


def kinds(run):
    return [kind for _, _, kind, _ in run.marks]


def complete(bench, what, result, i=0):
    """dmi-trace check finds nothing, or what marks say was lost or dropped, or kernels of no known step."""
    done = subprocess.run([DMI_TRACE, "check", "--json", result.folders[i]], text=True, capture_output=True, check=False)
    said = json.loads(done.stdout)[0]
    lost = any(kind in LOSSES for kind in kinds(traced(result, i)))
    bench.check(done.returncode == (lost or said["kernels_unknown"] > 0) and said["holds"] and said["traced"] and not said["wrong"], f"{what}: dmi-trace check", done.stdout + done.stderr)
    return said


def test_steps_of_an_engine_without_a_spec(bench):
    script = [*START, *FORWARD[:1], *step(7, *FORWARD, "launch nothing 0 1 64 p 64 5"), *FORWARD[:1], *step(8, *FORWARD, *FORWARD), *step(9)]
    result = alike(bench, "no spec", script, None, DMI_TRACE="steps")
    run = traced(result)
    times = run.step_times
    bench.check(len(times) == 3, "three steps", result.stderr)
    bench.check([t["launches"] for t in times] == [4, 8, 0], "launches, without those outside of steps and those refused", times)
    bench.check([t["flags"] & ~LATE for t in times] == [DEVICE, DEVICE | GAP, NO_LAUNCH], "device times and gaps", times)
    bench.check([(t["step"], run.steps[t["step"]].step, t["engine_step"], t["number"]) for t in times] == [(0, 7, 7, 0), (1, 8, 8, 1), (2, 9, 9, 2)], "which steps", times)
    bench.check([(t["rows"], t["requests"], t["prefill"], t["decode"], t["context"]) for t in times] ==
                [(4, 2, 3, 1, 10 * i + 9) for i in (7, 8, 9)], "what the batch was", times)
    bench.check(all(t["begin_ns"] <= t["launch_ns"] <= t["end_ns"] for t in times[:2]), "host times in order", times)
    start = run.manifest["start_realtime_ns"]
    bench.check(all(0 <= t["begin_ns"] - start < 60e9 and t["end_ns"] >= t["begin_ns"] for t in times), "host times are real ones", (start, times))
    bench.check(all(0 < t["device_ns"] <= t["end_ns"] - t["begin_ns"] for t in times[:2]), "device times lie within", times)
    bench.check([t["waits"] for t in times] == [2, 4, 0] and all(t["source"] == ENGINE for t in times), "waits, source", times)
    bench.check(kinds(run) == [BEGUN, SOURCE, ENDED] and run.marks[0][3] == "steps" and run.marks[2][1] == 3, "marks", run.marks)
    bench.check(not run.records and not run.dictionary["sites"], "nothing is captured")
    bench.check("dmi: trace: 3 steps, begun by the engine" in result.stderr and "dmi-trace steps" in result.stderr, "the log's summary", result.stderr)
    complete(bench, "no spec", result)


def test_a_device_that_was_done_before_the_host_looked(bench):
    """Where the thread does something else before it waits, the device's time is an upper bound; where it waits at once, it is not."""
    device = bench.folder / "times"
    device.write_text("kernel * 100000000\n")
    launches = ["launch block 0 1 64 p 64 2"]
    script = [*START, "stream s", "stream t", *step(1, *launches, "sync"), *step(2, *launches, "sleep 300", "sync"), *step(3, *launches, "sleep 300"),
              "capture s", *step(4, "launch block t 1 64 p 64 2"), "endcapture g s", "sync"]
    result = alike(bench, "late", script, None, DMI_TRACE="steps", DMI_STANDIN_TIMES=device)
    times = traced(result).step_times
    bench.check([t["flags"] & LATE for t in times] == [0, LATE, LATE, LATE], "which device times are upper bounds", times)
    bench.check([t["waited_ns"] > t["launch_ns"] for t in times[:2]] == [True] * 2 and all(t["waited_ns"] <= t["end_ns"] for t in times[:2]) and times[2]["waited_ns"] == 0,
                "when the thread's wait ended", times)
    bench.check(50e6 < times[0]["device_ns"] < 250e6 < times[1]["device_ns"], "time in which the host slept counts where it looked late", times)
    said = json.loads(subprocess.run([DMI_TRACE, "steps", "--each", "--json", result.folders[0]], text=True, capture_output=True, check=False).stdout)
    bench.check([s["host_late"] for s in said["steps"]] == [False, True, True, True] and said["host_late"] == 3, "dmi-trace steps says so", said)
    text = subprocess.run([DMI_TRACE, "steps", "--each", result.folders[0]], text=True, capture_output=True, check=False).stdout
    bench.check(text.count("<=") == 3 and "late   3 times" in text, "as text, too", text)
    complete(bench, "late", result)


def test_calls_that_take_long_are_ranges(bench):
    """Launches of graphs, loads and allocations; as long as they took, in the thread that made them, and no others."""
    graph = ["stream s", "capture s", "launch block s 1 64 p 64 1", "endcapture g s", "graphexec x g"]
    script = [*START, *graph, *step(1, "graphlaunch x s", "ssync s"), *step(2, "graphlaunch x s", "alloc q 4096", "module n fill", "ssync s"), *step(3, "graphlaunch x s", "ssync s")]
    stalls = {"cuGraphLaunch": 2, "cuMemAlloc_v2": 2, "cuModuleLoadData": 2}
    plain = alike(bench, "none is slow", script, None, DMI_TRACE="steps")
    result = alike(bench, "slow calls", script, None, DMI_TRACE="steps", DMI_STANDIN_STALL=",".join(f"other.{name}:{n}:60000000" for name, n in stalls.items()))
    run = traced(result)
    long = [(name, end - begin, thread) for begin, end, _, thread, _, _, name, _ in run.calls if end - begin >= 60e6]
    bench.check([name for name, _, _ in long] == list(stalls) and all(60e6 <= took < 1e9 for _, took, _ in long), "those that are slow", run.calls)
    bench.check({thread for _, _, thread in long} == {t["thread"] for t in run.step_times}, "in the thread of the steps", run.calls)
    second = run.step_times[1]
    bench.check(all(second["begin_ns"] <= begin and end <= second["end_ns"] for begin, end, *_ in run.calls if end - begin >= 60e6), "within their step", (second, run.calls))
    bench.check(not [call for call in traced(plain).calls if call[1] - call[0] < 50000], "a call is one from 50 us on", traced(plain).calls)
    said = json.loads(subprocess.run([DMI_TRACE, "show", "--step", "1", "--json", result.folders[0]], text=True, capture_output=True, check=False).stdout)
    bench.check([r["name"] for r in said["ranges"] if r["source"] == "call" and r["ns"] >= 60e6] == list(stalls), "dmi-trace show has them", said)
    complete(bench, "slow calls", result)


def test_beside_a_capture(bench):
    text = spec(site("block", layer="occ"), head="forward:\n  - {kind: step, begin: {kernel: '^first$'}}")
    script = [*START, *FORWARD, *FORWARD, *step(3, *FORWARD), *step(4, *FORWARD)]
    plain = alike(bench, "without a trace", script, text)
    result = alike(bench, "with a trace", script, text, DMI_TRACE="steps")
    times = traced(result).step_times
    words = [[r.words for r in one.run().of(0)] for one in (plain, result)]
    bench.check(words[0] == words[1] and len(words[0]) == 4 and not result.run().balance(), "the same is captured", result.run().balance())
    bench.check([(t["source"], t["launches"]) for t in times] == [(FORWARDS, 4), (FORWARDS, 4), (ENGINE, 4), (ENGINE, 4)],
                "forwards of the spec are steps until the engine says some", times)
    bench.check([t["own"] for t in times] == [1, 1, 1, 1], "each copy is counted as DMI's own", times)
    bench.check([t["step"] for t in times] == [format_reader.NONE, format_reader.NONE, 0, 1], "the engine's steps are named", times)
    complete(bench, "beside a capture", result)


@pytest.mark.since(12030, "names of functions")
def test_steps_begin_at_a_kernel_that_the_user_names(bench):
    script = [*START, *FORWARD, *FORWARD, *FORWARD]
    result = alike(bench, "a kernel", script, None, DMI_TRACE="steps", DMI_TRACE_STEP="kernel:^fir")
    run = traced(result)
    bench.check([(t["launches"], t["source"], t["flags"] & ~(UNENDED | LATE)) for t in run.step_times] ==
                [(4, KERNEL, DEVICE), (4, KERNEL, DEVICE | GAP), (4, KERNEL, DEVICE | GAP)], "kernel:PATTERN", run.step_times)
    bench.check((KERNEL, "kernel:^fir") in [(value, text) for _, value, kind, text in run.marks if kind == SOURCE], "the mark says it", run.marks)
    complete(bench, "a kernel", result)


@pytest.mark.since(12030, "names of kernels")
@pytest.mark.parametrize("got, kernel", [("kernel k l block", "k"), ("kernels k l 64", "k0")])
def test_so_do_kernels_of_libraries(bench, got, kernel):
    """As CUDA's runtime and cuda.core launch them: by handles that no driver can be asked about. There is no HookSpec."""
    script = [*START, "library l fill", got, *3 * [f"launch {kernel} 0 1 64 p 64 1", "sync"]]
    for pattern, wanted in ((".", [(1, KERNEL)] * 3), ("^nonesuch$", [])):
        result = alike(bench, f"{got}: {pattern}", script, None, DMI_TRACE="steps", DMI_TRACE_STEP=f"kernel:{pattern}")
        times = traced(result).step_times
        bench.check([(t["launches"], t["source"]) for t in times] == wanted, f"{got}: {pattern}: each launch of such a kernel begins a step", (times, result.stderr))
    bench.check("nothing ran that DMI_TRACE_STEP=kernel:^nonesuch$ names" in result.stderr, f"{got}: the run says that the name met nothing", result.stderr)


@pytest.mark.built(NVTX, MODULE)
def test_steps_begin_at_a_range_that_the_user_names(bench):
    module = ["push mlp", "launch block 2", "pop", "launch other 3"]
    script = ["launch first 9", *3 * ["push step 7", "launch first 1", *module, "pop"]]
    result = alike(bench, "a range", script, None, command=[NVTX, "script", MODULE], DMI_TRACE="steps", DMI_TRACE_STEP="range:^step")
    times = traced(result).step_times
    bench.check([(t["launches"], t["source"]) for t in times] == [(3, RANGE)] * 3, "range:PATTERN", (times, result.stderr))
    complete(bench, "a range", result)


def test_where_nothing_begins_a_step_the_run_says_so(bench):
    script = [*START, *FORWARD, *FORWARD, *FORWARD]
    result = alike(bench, "nothing", script, None, DMI_TRACE="steps")
    bench.check(not traced(result).step_times and "no step came" in result.stderr, "none is named", result.stderr)
    done = subprocess.run([DMI_TRACE, "steps", result.folders[0]], text=True, capture_output=True, check=False)
    bench.check(done.returncode == 0 and "DMI_TRACE_STEP" in done.stdout, "dmi-trace says how to name one", done.stdout)
    for value, words in (("kernel:(", "it begins no step"), ("module", "is none of graph, kernel:PATTERN, range:PATTERN")):
        result = alike(bench, value, script, None, DMI_TRACE="steps", DMI_TRACE_STEP=value)
        bench.check(words in result.stderr and not traced(result).step_times, f"{value} is refused by name", result.stderr)
    for value, words in (("kernels", "steps alone are traced"), ("fast", "is no tier")):
        result = alike(bench, value, script, None, DMI_TRACE=value)
        bench.check(words in result.stderr and bool(result.folders) == (value == "kernels"), f"the tier {value}", result.stderr)


def test_ranges_of_threads(bench):
    script = [*START, "range outside", "rangeend", *step(7, "range EngineCore::Step", "rangefact requests 2", "rangefact tokens 99", *FORWARD[:2],
              "range ModelRunner::Forward", *FORWARD, "rangeend", "rangeend", "rangeend"), "range open"]
    script += ["threads 2", "range of-a-thread", "rangeend", "endthreads"]
    result = bench.run(script, None, DMI_TRACE="steps")
    run = traced(result)
    said = [(step, depth, source, name, facts) for _, _, step, _, depth, source, name, facts in run.ranges if name != "of-a-thread"]
    facts = {"requests": 2, "tokens": 99}
    bench.check(said == [(format_reader.NONE, 0, 1, "outside", {}), (0, 1, 1, "ModelRunner::Forward", {}), (0, 0, 1, "EngineCore::Step", facts)],
                "names, steps, depths and facts", run.ranges)
    inner, outer = run.ranges[1][:2], run.ranges[2][:2]
    bench.check(outer[0] <= inner[0] <= inner[1] <= outer[1], "times nest", (inner, outer))
    at = run.step_times[0]
    bench.check(at["begin_ns"] - 100_000 <= outer[0] and outer[1] <= at["end_ns"] + 100_000, "and lie in their step, by the same clock", (outer, at))
    threads = {r[3] for r in run.ranges if r[6] == "of-a-thread"}
    bench.check(len(threads) == 2 and run.ranges[0][3] not in threads, "each thread has its own", run.ranges)
    statuses = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("rangeend")]
    bench.check(statuses[:4] == ["0", "0", "0", "-2"], "an end without a begin is refused", statuses)
    shown = subprocess.run([DMI_TRACE, "show", "--step", "0", result.folders[0]], text=True, capture_output=True, check=False).stdout
    lines = [line for line in shown.splitlines() if "ModelRunner" in line or "EngineCore" in line]
    bench.check(len(lines) == 2 and '{"requests": 2, "tokens": 99}' in lines[0] and "  ModelRunner::Forward" in lines[1], "dmi-trace show", shown)
    said = json.loads(subprocess.run([DMI_TRACE, "show", "--json", "--step", "0", result.folders[0]], text=True, capture_output=True, check=True).stdout)
    bench.check(said["step"]["launches"] == 6 and [r["name"] for r in said["ranges"] if r["source"] != "call"] == ["EngineCore::Step", "ModelRunner::Forward"], "as JSON", said)
    off = bench.run(script, spec(site("block")))
    bench.check({line.split()[1] for line in off.stdout.splitlines() if line.startswith("range")} == {"1"}, "without a trace they are OFF", off.stdout)
    many = [*START, "repeat 40", "range deep", "endrepeat", "repeat 40", "rangeend", "endrepeat", "repeat 5000", "range r", "rangeend", "endrepeat"]
    result = bench.run(many, None, DMI_TRACE="steps")
    run = traced(result)
    lost = sum(value for _, value, kind, _ in run.marks if kind == 6)
    bench.check(len(run.ranges) + lost == 5040 and lost >= 8 and max(r[4] for r in run.ranges) == 31, "what is too deep or too fast is lost, and counted",
                (len(run.ranges), lost))
    looks = [[int(at) for at in text.split(":")] for _, _, kind, text in run.marks if kind == 6]
    bench.check(all(begin < end for begin, end in looks) and all(a[1] <= b[0] for a, b in zip(looks, looks[1:])), "marks say between which looks", looks)
    bench.check(f"trace: {lost} ranges of threads were lost" in result.stderr, "the log says it at the end", result.stderr)
    said = complete(bench, "lost ranges", result)
    bench.check(said["ranges_lost"] == lost and said["ranges_stored"] == len(run.ranges) + len(run.calls) and not said["complete"], "dmi-trace check", said)


def test_ranges_that_began_before(bench):
    """dmi_range_begin_at(): ranges that overlap one another, as requests do, stand as they are."""
    script = [*START, *step(7, "range Step", *FORWARD, "overlaps a 5000", "overlaps b 3000", "rangeend"), "overlaps c -9000"]
    result = bench.run(script, None, DMI_TRACE="steps")
    ranges = traced(result).ranges
    bench.check([(name, source, depth) for *_, depth, source, name, _ in ranges] == [("a", 3, 1), ("b", 3, 1), ("Step", 1, 0)], "those that began before", (ranges, result.stderr))
    a, b = (r[0] for r in ranges[:2])
    bench.check(1.9e9 < b - a < 2.1e9 and 4.9e9 < ranges[0][1] - a < 8e9, "begin when they are said to", ranges)
    bench.check([line.split()[1] for line in result.stdout.splitlines() if line.startswith("overlaps")] == ["0", "0", "-22"], "not ahead of time", result.stdout)


@pytest.mark.built(NVTX, MODULE)
def test_nvtx_ranges_are_ranges_of_the_trace(bench):
    script = ["launch first 9", "push step 1", "launch first 1", "pop", "push gpu_model_runner: sample", "dpush x ascii other", "pop", "launch block 1", "dpop x"]
    result = alike(bench, "nvtx", script, None, command=[NVTX, "script", MODULE], DMI_TRACE="steps")
    said = [(source, name) for *_, source, name, _ in traced(result).ranges]
    bench.check(said == [(2, "step 1"), (2, "ModelRunner::Sample"), (2, "other")], "texts, engines' by their names in reports", (said, result.stderr))


CLIENT_IN_PYTHON = """
import dmi
from cuda.bindings import driver as cuda
with dmi.range("before"):
    cuda.cuInit(0)
context = cuda.cuDevicePrimaryCtxRetain(cuda.CUdevice(0))[1]
cuda.cuCtxSetCurrent(context)
dmi.step_begin(4, [dmi.Span("a", 0, 3)])
try:
    with dmi.range("EngineCore::Schedule", requests=3, tokens=-5):
        with dmi.range("né"):
            raise KeyError
except KeyError:
    pass
dmi.step_end()
"""


def test_ranges_in_python(bench):
    pytest.importorskip("cuda.bindings.driver")
    result = bench.run([], None, command=[sys.executable, "-c", CLIENT_IN_PYTHON], DMI_TRACE="steps", PYTHONPATH=ROOT / "python")
    run = traced(result)
    said = [(step, depth, name, facts) for _, _, step, _, depth, _, name, facts in run.ranges]
    want = [(0, 1, "né", {}), (0, 0, "EngineCore::Schedule", {"requests": 3, "tokens": -5})]
    bench.check(said == [(format_reader.NONE, 0, "before", {}), *want], "dmi.range(), left by an exception too, and before CUDA", (said, result.stderr[-500:]))
    complete(bench, "ranges in Python", result)
    beside = bench.run([], spec(site("block")), command=[sys.executable, "-c", CLIENT_IN_PYTHON], DMI_TRACE="steps", PYTHONPATH=ROOT / "python")
    bench.check([r[6] for r in traced(beside).ranges] == ["né", "EngineCore::Schedule"], "beside a spec a run begins with CUDA", beside.stderr[-500:])


def test_a_process_without_cuda_has_its_ranges(bench):
    scheduler = "import dmi\nfor i in range(3):\n    with dmi.range('EngineCore::Step', number=i):\n        dmi.step_begin(i, [])"
    result = bench.run([], None, command=[sys.executable, "-c", scheduler], DMI_TRACE="steps", PYTHONPATH=ROOT / "python")
    run = traced(result)
    bench.check([(r[6], r[7]) for r in run.ranges] == [("EngineCore::Step", {"number": i}) for i in range(3)], "a run of ranges", result.stderr)
    bench.check([t["flags"] & NO_LAUNCH for t in run.step_times] == [NO_LAUNCH] * 3, "and of steps without launches", run.step_times)
    complete(bench, "no CUDA", result)
    off = bench.run([], None, command=[sys.executable, "-c", scheduler], PYTHONPATH=ROOT / "python")
    bench.check(not off.folders and not off.stderr, "without a trace there is none", off.stderr)


def test_a_run_that_began_before_cuda_times_the_device(bench):
    """Its last flush comes before the driver's own end, though it asked to be called before the driver did."""
    script = ["range before", "rangeend", *START, *step(1, *FORWARD), *step(2, *FORWARD)]
    result = alike(bench, "early", script, None, DMI_TRACE="steps")
    times = traced(result).step_times
    bench.check([t["flags"] & ~LATE for t in times] == [DEVICE, DEVICE | GAP], "device times up to the last step", (times, result.stderr))
    complete(bench, "early", result)


def test_what_has_no_device_time_says_why(bench):
    capture = ["stream s", "capture s", "launch first s 1 64 p 64 1", "launch block s 1 64 p 64 2", "endcapture g s"]
    gone = ["stream t", "launch first t 1 64 p 64 1", "ssync t", "streamdestroy t"]
    script = [*START, *step(0, *capture), *step(1, *FORWARD), *step(2, *gone), *step(3, *FORWARD[:4]), "ctxdestroy c", "ctx c d"]
    result = alike(bench, "reasons", script, None, DMI_TRACE="steps")
    times = traced(result).step_times
    bench.check([t["launches"] for t in times] == [0, 4, 1, 4], "a launch that is captured is none", times)
    bench.check([t["flags"] & ~(GAP | LATE) for t in times][:3] == [NO_LAUNCH, DEVICE, DEVICE], "reasons; a wait before the stream ended", times)
    bench.check(times[3]["flags"] & ~(GAP | LATE) in (DEVICE, CONTEXT_GONE), "a step whose context may end before it", times)
    complete(bench, "reasons", result)


def test_threads_children_and_kills(bench):
    script = [*START, "step 1 4", "threads 4", "setctx c", "launch other 0 1 64 p 64 %t", "endthreads", "sync", "stepend"]
    forks = [*START, *step(1, *FORWARD), "fork", "stepend", "exit 0", "endfork", *step(3, *FORWARD)]
    early = ["fork", *START, *step(2, "launch first 0 1 64 p 64 1", "sync"), "exit 0", "endfork", *START, *step(3, *FORWARD)]
    kill = [*START, *step(1, *FORWARD), *step(2, *FORWARD), "sleep 1500", *step(3, *FORWARD), "kill9"]
    result = bench.run(kill, None, DMI_TRACE="steps")
    run = traced(result)
    bench.check(result.code == -9 and [t["launches"] for t in run.step_times] == [4, 4], "a kill leaves what was written a second before",
                (result.code, run.step_times))
    said = complete(bench, "a kill", result)
    bench.check(said["ended"] is None and ENDED not in kinds(run), "how many steps ended is not known", said)
    for what, lines, want in (("threads", script, [[4]]), ("a child", forks, [[4, 4]]), ("processes", early, [[1], [4]])):
        one = alike(bench, what, lines, None, DMI_TRACE="steps")
        for i in range(len(one.folders)):
            complete(bench, what, one, i)
        seen = sorted([t["launches"] for t in traced(one, i).step_times] for i in range(len(one.folders)))
        bench.check(seen == want, f"{what}: each process has its own steps", (seen, one.stderr[-800:]))


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime", "cuStreamIsCapturing", "cuStreamGetCtx",
                                  "cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPushCurrent_v2", "cuFuncGetName"])
def test_each_call_of_the_library_may_fail(bench, long, call):
    script = [*START, *step(1, *FORWARD), *step(2, *FORWARD), *step(3, *FORWARD)]
    for which in (0, *range(1, 12 if long else 4)):
        result = alike(bench, f"{call} {which}", script, None, DMI_TRACE="steps", DMI_TRACE_STEP="kernel:first", DMI_STANDIN_FAIL=f"{call}:{which}")
        if call in ("cuStreamIsCapturing", "cuStreamGetCtx", "cuCtxGetCurrent") and not result.folders:
            continue
        times = traced(result).step_times
        bench.check([t["launches"] for t in times] == [4, 4, 4], f"{call} {which}: launches", times)
        wrong = [t for t in times if bool(t["flags"] & DEVICE) == (t["flags"] >= 256)]
        bench.check(not wrong, f"{call} {which}: a step has a device time, or says why not", wrong)
        complete(bench, f"{call} {which}", result)


def test_dmi_run_traces(tmp_path):
    (tmp_path / "script").write_text("\n".join([*START, *step(1, *FORWARD)]) + "\n")
    run = [DMI_RUN, "--trace", "--out", tmp_path / "out", "--", CLIENT, tmp_path / "script", "dlopen"]
    env = harness.environment()
    done = subprocess.run(run, env=env, text=True, capture_output=True, check=True)
    assert "trace: 1 steps, begun by the engine" in done.stderr
    said = subprocess.run([DMI_TRACE, "steps", "--json", tmp_path / "out"], text=True, capture_output=True, check=True).stdout
    group, = json.loads(said)["groups"]
    assert (group["phase"], group["rows"], group["steps"], group["launches"]) == ("mixed", 4, 1, 4.0)
    each = subprocess.run([DMI_TRACE, "steps", "--each", tmp_path / "out"], text=True, capture_output=True, check=True).stdout
    assert each.splitlines()[-1].split()[:4] == ["0", "1", "mixed", "4"]
    for words, told in ((["--trace=fast"], "--trace=fast: expected steps, kernels or full"), (["--trace", "--edits", "x"], "no HookSpec"),
                        (["--trace", "--check"], "no HookSpec")):
        done = subprocess.run([DMI_RUN, *words, "--", "true"], env=env, text=True, capture_output=True, check=False)
        assert done.returncode == 2 and told in done.stderr, (words, done.stderr)
    for words in ([], ["steps"], ["show", "x"], ["check", "--each", "x"], ["steps", tmp_path / "nothing"]):
        done = subprocess.run([DMI_TRACE, *words], text=True, capture_output=True, check=False)
        assert done.returncode == 2 and done.stderr.startswith("dmi-trace: "), (words, done)
