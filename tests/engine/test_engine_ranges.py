# SPDX-License-Identifier: Apache-2.0
"""dmi.vllm_ranges and dmi.sglang_ranges: what engines do when, in a trace, by the names of the catalogue; what does not come is named.

ranges_client.py has classes that stand for the engines'. test_vllm.py and test_sglang.py run the engines' own (--long).
"""
import re
import sys

import pytest

import harness
from harness import PRELOAD, ROOT

sys.path.insert(0, str(ROOT / "tests" / "unit"))

import format_reader  # noqa: E402
import ranges_client  # noqa: E402

pytestmark = pytest.mark.built(PRELOAD)
OVERLAPS = 3

OF_VLLM = [("EngineCore::Step", 0, {}), ("EngineCore::Schedule", 1, {"requests": 2, "new": 1, "tokens": 4, "drafts": 2}), ("EngineCore::Execute", 1, {}),
           ("EngineCore::CollectiveRpc", 2, {}), ("ModelRunner::Preprocess", 3, {}), ("ModelRunner::Forward", 3, {}), ("EngineCore::Output", 1, {}),
           ("CacheEngine::Load", 0, {}), ("CacheEngine::Save", 0, {})]

TURN = [("EngineCore::Step", 0), ("EngineCore::Schedule", 1), ("EngineCore::Execute", 1), ("EngineCore::Output", 1)]


def serve(folder, package, *options, **env):
    """(ranges in the order in which they begin, what the client printed, what was said on stderr)"""
    for name, held in ranges_client.MODULES[package].items():
        path = folder / package / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from ranges_client import {held}\n")
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{folder}", LD_PRELOAD=PRELOAD, DMI_OUT=folder / "RUN", **env)
    done = harness.run([sys.executable, ranges_client.__file__, package, *options], env=env)
    found = [format_reader.Run(run).ranges for run in harness.runs_of(folder / "RUN")] if (folder / "RUN").exists() else [[]]
    return sorted(found[0], key=lambda one: (one[0], one[4])), done.stdout, done.stderr


def missing(said):
    return dict(re.findall(r"no range (\S+) came: (.*)", said))


def test_vllm(check, tmp_path):
    ranges, _, said = serve(tmp_path, "vllm", DMI_TRACE="steps")
    seen = [(name, depth, facts) for _, _, _, _, depth, source, name, facts in ranges if source != OVERLAPS]
    check(seen == OF_VLLM, "each part of a step, once though subclasses call their parents, with its facts", (seen, said))
    requests = {name: (facts, begin, end) for begin, end, _, _, _, source, name, facts in ranges if source == OVERLAPS}
    check({name: facts for name, (facts, _, _) in requests.items()} == {"LLMEngine::Request req1": {"prompt": 7, "generated": 2}, "LLMEngine::Request req0": {"aborted": 1}},
          "requests by their clients' names, those that ended", requests)
    step = ranges[[one[6] for one in ranges].index("EngineCore::Step")]
    check(all(begin < step[0] and step[1] < end for _, begin, end in requests.values()), "from add_request() to the last output", (requests, step))
    lines = missing(said)
    check(set(lines) == {"ModelRunner::" + word for word in ("Bookkeep", "Draft", "EpLB", "Output", "Postprocess", "Sample")}, "what did not come is named", said)
    check("dmi.vllm" in said and lines.get("ModelRunner::Sample") == "it was not called", "with the reason", said)


def test_vllm_without_a_method(check, tmp_path):
    """Another version: no schedule() and no _finish_request(); NVTX has the runner's scopes."""
    ranges, _, said = serve(tmp_path, "vllm", "lacks", DMI_TRACE="steps", VLLM_NVTX_SCOPES_FOR_PROFILING="1")
    names = [one[6] for one in ranges]
    check("EngineCore::Step" in names and not [name for name in names if "Schedule" in name or "Request" in name or "ModelRunner" in name], "the others are there", names)
    check(missing(said).get("EngineCore::Schedule") == "this version has no Scheduler.schedule()", "the method that lacks is named", said)


def test_sglang(check, tmp_path):
    ranges, _, said = serve(tmp_path, "sglang", DMI_TRACE="steps")
    turns = [(name, depth) for _, _, _, _, depth, source, name, _ in ranges if name.startswith("EngineCore")]
    check(turns == TURN * 2, "a turn of the loop with a batch is a step", (turns, said))
    steps = [one for one in ranges if one[6] == "EngineCore::Step"]
    inside = [one for one in ranges if one[4] == 1]
    check(len(inside) == 6 and all(any(s[0] <= one[0] and one[1] <= s[1] for s in steps) for one in inside), "which lie in it", ranges)
    check([one[7] for one in ranges if one[6] == "EngineCore::Schedule"] == [{"requests": 2}, {"requests": 1}], "facts", ranges)
    check([(one[5:]) for one in ranges if "Request" in one[6]] == [(OVERLAPS, "LLMEngine::Request b", {"prompt": 9, "generated": 4})], "the request that ended", ranges)
    lines = missing(said)
    check(lines == {"CacheEngine::Save": "this version has no HiCacheController.start_writing()"}, "what did not come is named, of parts that work here", said)


@pytest.mark.parametrize("package", ranges_client.MODULES)
def test_without_a_trace_no_method_is_touched(check, tmp_path, package):
    ranges, printed, said = serve(tmp_path, package, "touched")
    check(not ranges and "no range" not in said, "there are none", (ranges, said))
    check(set(eval(printed)) <= {"execute_model", "init_new"}, "nothing is wrapped but what says whose the rows are", printed)


def test_names_of_scopes_are_those_of_nvtx(check):
    from dmi import vllm_ranges
    said = (ROOT / "preload" / "trace" / "range_names.def").read_text()
    check(dict(re.findall(r'RANGE_NAME\("(.*?)", "(.*?)"\)', said)) == vllm_ranges.SCOPES, "preload/trace/range_names.def and dmi.vllm_ranges agree")
