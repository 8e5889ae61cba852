# SPDX-License-Identifier: Apache-2.0
"""dmi.sglang in SGLang itself: its engine, from its wheel, serves on the CPU in processes of its own, which find the plugin by themselves.

Each row that is captured holds the token and the position that SGLang computed there, so a row that is said to be another
request's, or at another position, is seen. sglang_client.py says what is SGLang's there and what is not.
"""
import collections
import json
import sys

import pytest

import adapter_runs
import engine_env
import harness
from adapter_runs import HERE, MARKS
from harness import DMI_RUN, ROOT, STANDIN

sys.path.insert(0, str(ROOT / "tests" / "unit"))

import format_reader  # noqa: E402

pytestmark = MARKS


def serve(engines, folder, seed, **more):
    engine_env.write_site(folder, "TappedForCausalLM")
    return adapter_runs.serve(engines, folder, ["sglang_client.py", seed, folder], **more)


def served(folder):
    """The run of the process that served; SGLang's other processes leave some in which nothing was captured."""
    import dmi
    paths = [path for path in harness.runs_of(folder / "RUN") if harness.Counters(path).steps]
    assert len(paths) == 1, paths
    return dmi.open(paths[0])


@pytest.mark.parametrize("seed, version", [("5", None), ("6", None), ("5", "sglang-0.5.22")])
def test_sglang(check, tmp_path, engines, seed, version):
    told, said = serve(engines, tmp_path, seed, version=version)
    ours = [line for line in said.splitlines() if "dmi.sglang" in line]
    check(not ours, "the adapter complains of nothing", ours)
    check(any(about["cached"] for about in told.values()), "prefixes are found in the cache", [about["cached"] for about in told.values()])
    check(any(about["retracted"] for about in told.values()), "requests are retracted, and computed again", told)
    with served(tmp_path) as run:
        requests = {request.id: request for request in run.requests}
        check(set(requests) == set(told), "each request is there under its client's id", set(requests) ^ set(told))
        for name, about in told.items():
            check_rows(check, run, name, about)
            got = requests[name]
            check((got.n_prompt, got.n_cached, got.state) == (about["n_prompt"], about["cached"], "running"), f"{name}: prompt, cache", (got, about))
        adapter_runs.check_config(check, run, tmp_path)
    counters = [harness.Counters(path) for path in harness.runs_of(tmp_path / "RUN")]
    check(not any(c.steps_refused for c in counters), "no step is refused", [c.steps_refused for c in counters])


def check_rows(check, run, name, about):
    """Each row is its request's, at its position; none is missing. The last token was sampled, and no forward need have computed it."""
    tokens, first = about["tokens"], about["cached"]
    for layer in range(2):
        tensor = run[f"{name}/resid_pre.{layer}"]
        rows = dict(zip(tensor.positions, tensor.numpy()[:, :2].tolist()))
        wanted = range(first, len(tokens) - 1)
        check(set(wanted) <= set(rows) and set(rows) <= {*wanted, len(tokens) - 1}, f"{name}, layer {layer}: positions", (sorted(rows), wanted))
        check(all(rows[p] == [tokens[p], p] for p in rows), f"{name}, layer {layer}: tokens", (rows, tokens))
    logits = run[f"{name}/final_logits"]
    rows = dict(zip(logits.positions, logits.numpy()[:, :2].tolist()))
    check(all(rows[p] == [tokens[p], p] for p in rows), f"{name}: logits", rows)
    check(set(range(about["n_prompt"] - 1, len(tokens) - 1)) <= set(rows), f"{name}: each token that was sampled has some", logits.positions)


def test_a_version_that_nobody_tried(check, tmp_path, engines):
    """SGLang as it is, under another number: three steps agree, and each row that has an id from then on is that request's."""
    engine_env.write_version(tmp_path, "sglang", "0.9.0")
    told, said = serve(engines, tmp_path, "5")
    ours = [line for line in said.splitlines() if "dmi.sglang: " in line]
    check(len(ours) == 1 and "sglang 0.9.0 is not known: 3 steps agree" in ours[0], "one line", ours)
    n = 0
    with served(tmp_path) as run:
        for tensor in run.values():
            if tensor.site.name == "resid_pre" and tensor.request:
                tokens, rows = told[tensor.request]["tokens"], tensor.numpy()[:, :2].tolist()
                check(rows == [[tokens[p], p] for p in tensor.positions], f"{tensor.key}: tokens", rows)
                n += len(rows)
    check(n > 200, "records have ids after the trial", n)


def test_ranges_of_a_trace(check, tmp_path, engines):
    """SGLang's processes without a HookSpec: the one that takes requests has theirs, the one that serves has its steps."""
    python, env = engines
    engine_env.write_site(tmp_path, "TappedForCausalLM")
    env = env | {"PYTHONPATH": f"{ROOT / 'python'}:{HERE}:{tmp_path / 'site'}:{env['PYTHONPATH']}", "LD_LIBRARY_PATH": f"{STANDIN}:{env['LD_LIBRARY_PATH']}"}
    done = harness.run([DMI_RUN, "--trace", "--out", tmp_path / "RUN", "--", python, HERE / "sglang_client.py", "5", tmp_path], env=env, timeout=600)
    told = json.loads(done.stdout.splitlines()[-1])
    ranges = [one for run in harness.runs_of(tmp_path / "RUN") for one in format_reader.Run(run).ranges]
    requests = {name.split()[1]: facts for *_, name, facts in ranges if name.startswith("LLMEngine::Request")}
    check({name: (facts["prompt"], facts["prompt"] + facts["generated"]) for name, facts in requests.items()} ==
          {name: (about["n_prompt"], len(about["tokens"])) for name, about in told.items()}, "each request with its tokens", (requests, done.stderr[-800:]))
    names = collections.Counter(one[6] for one in ranges)
    steps = names["EngineCore::Step"]
    check(steps > 20 and all(names[name] >= steps - 1 for name in ("EngineCore::Schedule", "EngineCore::Execute", "EngineCore::Output", "ModelRunner::Preprocess",
                                                                   "ModelRunner::Forward", "ModelRunner::Sample", "Worker::Response")), "each step's parts", names)


def test_capture_on_request(check, tmp_path, engines):
    told, _ = serve(engines, tmp_path, "5", spec=adapter_runs.asking("capture=*"))
    with served(tmp_path) as run:
        check({tensor.request for tensor in run.values()} == {name for name, about in told.items() if about["fields"]},
              "those that a client asked for, and nothing else", [*run])
