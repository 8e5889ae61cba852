# SPDX-License-Identifier: Apache-2.0
"""dmi-trace why, of a serving engine with a small model: its turns by the requests that steps have in common, and its account by records that another reader reads."""
import json
import random
import signal
import subprocess
import sys
import time

import pytest

import format_reader
import harness
import serving
import small_models
from harness import BUILD, PRELOAD

DMI_TRACE = BUILD / "tools" / "dmi-trace"
CUPTI = BUILD / "tests" / "standin" / "cupti" / "libcupti.so.13"
pytestmark = pytest.mark.built(DMI_TRACE, CUPTI)


def requests(n, waves=2):
    """@n requests a wave, of which each begins when the engine has run dry."""
    dice = random.Random(5)
    return [{"id": f"r{w}.{i}", "prompt_tokens": [dice.randrange(500) for _ in range(dice.randrange(4, 40))], "max_tokens": 20 + 5 * i, "ignore_stop": True, "arrival": 120 * w + 2 * i}
            for w in range(waves) for i in range(n)]


def serve(folder, asked, while_it_runs=None, **more):
    """The run's folder. @while_it_runs: called with the process, which is to end by itself, and a file that has a line a step."""
    small_models.write_gguf(small_models.LLAMA, folder / "model.gguf")
    (folder / "requests").write_text(json.dumps({"requests": asked}))
    command = [sys.executable, serving.PROGRAM, "--model", folder / "model.gguf", "--requests", folder / "requests", "--out", folder / "results", "--mode", "graph", "--steps", "--spans",
               "--no-prefix-cache"]
    env = harness.environment(DMI_TEST_BUILD=BUILD, LD_PRELOAD=PRELOAD, DMI_TRACE="full", DMI_OUT=folder / "out", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI="13000", **more)
    if while_it_runs:
        with subprocess.Popen([*command, "--trace", folder / "steps"], env=env) as process:
            while_it_runs(process, folder / "steps")
            assert process.wait(timeout=600) == 0
    else:
        harness.run(command, env=env, timeout=600)
    return harness.only_run(folder / "out")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(run, its folder)"""
    path = serve(tmp_path_factory.mktemp("why"), requests(8))
    return format_reader.Run(path), path


def why(path, *words):
    """Whether a turn is slow depends on how busy the machine is."""
    done = subprocess.run([DMI_TRACE, "why", path, "--json", *words], text=True, stdout=subprocess.PIPE, check=False)
    assert done.returncode in (0, 1)
    return json.loads(done.stdout)


def turn_of(run, i):
    """(begin, end) of the turn of step @i, by the steps' requests."""
    at, after = run.step_times[i], run.step_times[i + 1] if i + 1 < len(run.step_times) else None
    ids = [{span.request for span in run.steps[t["step"]].spans if not span.padding} for t in (at, after) if t]
    goes_on = len(ids) == 2 and ids[0] & ids[1]
    return at["begin_ns"], after["begin_ns"] if goes_on else at["waited_ns"], bool(goes_on)


def busy_in(run, begin, end):
    """Nanoseconds between the two in which something ran."""
    total, at = 0, begin
    for r in sorted(run.ran, key=lambda r: r.begin):
        first, last = max(r.begin, at), min(r.end, end)
        total += max(0, last - first)
        at = max(at, last)
    return total


def test_turns_are_those_of_requests(check, served):
    run, path = served
    turns = [turn_of(run, i) for i in range(len(run.step_times))]
    dry = [i for i, (_, _, goes_on) in enumerate(turns) if not goes_on]
    check(len(dry) == 2 and len(turns) > 80, "the engine runs dry twice", (dry, len(turns)))
    said = why(path)
    check(said["n_turns"] == len(turns) == said["n_steps"] and not said["none"] and not said["n_by_step"], "each step has a turn", said["none"])
    for i in (*dry, 3, 50, 70):
        begin, end, _ = turns[i]
        step = why(path, "--step", str(i))["step"]
        check(step["ns"] == end - begin, f"step {i}: its turn ends with the next step's begin, or with its last wait", (step["ns"], end - begin))


def test_the_account_is_that_of_the_records(check, served):
    run, path = served
    for i in range(20, 70, 7):
        begin, end, _ = turn_of(run, i)
        step = why(path, "--step", str(i))["step"]
        busy = sum(line["ns"] for line in step["lines"] if line["what"].startswith("device busy"))
        check(step["by"] == "records" and busy == busy_in(run, begin, end), f"step {i}: the union of its records", (busy, busy_in(run, begin, end)))
        check(sum(line["ns"] for line in step["lines"]) == end - begin, f"step {i}: the sum of its lines is the turn", step["lines"])


def test_the_usual_account(check, served):
    run, path = served
    said = why(path)
    decode = max((kind for kind in said["usual"] if kind["phase"] == "decode"), key=lambda kind: kind["turns"])
    of = [i for i, t in enumerate(run.step_times) if t["decode"] and not t["prefill"] and 2 * t["rows"] > decode["rows"] >= t["rows"]]
    spans = sorted(turn_of(run, i)[1] - turn_of(run, i)[0] for i in of)
    check(decode["turns"] == len(of) and decode["median_ns"] == spans[len(spans) // 2], "how many, and the median", decode)
    total = sum(line["ns"] for line in decode["lines"])
    check(spans[len(spans) // 4 - 1] <= total <= spans[3 * len(spans) // 4 + 1], "the sum of lines is that of turns near it", (total, decode["median_ns"]))
    what = {line["what"] for line in decode["lines"]}
    names = {line["name"] for line in decode["lines"] if line["what"] == "device idle"}
    check(said["n_judged"] + said["n_rare"] == said["n_turns"] and said["n_slow"] == sum(s["turns"] for s in why(path, "--all")["slow"]), "each turn is judged, or rare", said["n_judged"])
    check("device busy" in what and {"ModelRunner::Preprocess", "EngineCore::Schedule"} <= names, "where the time goes", decode["lines"])
    seen = 1 - sum(line["ns"] for line in decode["lines"] if line["what"].endswith("not seen")) / total
    check(seen > 0.9, "most of it is seen", seen)


def test_a_launch_that_takes_long_is_the_first_suspect(check, tmp_path):
    """The driver takes 0.2 s for one launch of a graph of an engine that serves."""
    path = serve(tmp_path, requests(12, waves=4), DMI_STANDIN_STALL="other.cuGraphLaunch:200:200000000")
    said = why(path)
    slow = said["slow"][0]
    check(slow["excess_ns"] > 150e6 and slow["turns"] == 1, "the slowest turn", slow)
    first = slow["suspects"][0]
    check((first["suspect"], first["name"], first["against"]) == ("LAUNCH", "cuGraphLaunch", None) and first["ns"] > 0.9 * slow["excess_ns"], "the first suspect explains it", slow["suspects"])
    dear = max(slow["lines"], key=lambda line: line["ns"] - line["usual_ns"])
    check((dear["what"], dear["name"]) == ("device idle: driver", "cuGraphLaunch"), "the line that is most above usual", dear)


def test_a_process_that_was_stopped(check, tmp_path):
    """By SIGSTOP, three times for 0.4 s, while an engine serves; the device's times are modelled, as it would go on. A stop that begins while the trace is written is not told."""
    def stop(process, steps):
        for n in (200, 300, 400):
            until = time.monotonic() + 60
            while time.monotonic() < until and not (steps.exists() and steps.read_text().count("\n") > n):
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.4)
            process.send_signal(signal.SIGCONT)
    (tmp_path / "times").write_text("kernel * 20000\ncopy 2000 20\nfill 800 100\n")
    path = serve(tmp_path, requests(12, waves=12), stop, DMI_STANDIN_TIMES=tmp_path / "times")
    stops = [call for call in format_reader.Run(path).calls if call[5] == format_reader.STOPPED and 0.3e9 < call[1] - call[0] < 2e9]
    check(2 <= len(stops) <= 3 and all(thread == 0 for _, _, _, thread, *_ in stops), "the trace has them", stops)
    slow = [s for s in why(path)["slow"] if s["excess_ns"] > 0.35e9 * s["turns"]]
    named = [s for s in slow if s["suspects"] and s["suspects"][0]["suspect"] == "STOPPED" and s["suspects"][0]["ns"] * s["turns"] > 0.8 * s["excess_ns"]]
    check(len(slow) == 3 and len(named) == len(stops) and all(s["suspects"][0]["against"] is None for s in named), "the first suspect explains each", slow)
