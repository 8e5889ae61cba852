# SPDX-License-Identifier: Apache-2.0
"""dmi.vllm in vLLM itself: its scheduler and its two model runners, from its wheel, serve on the CPU and find the plugin by themselves.

Each row that is captured holds the token and the position that vLLM computed there, so a row that is said to be another request's,
or at another position, is seen. vllm_client.py says what is vLLM's there and what is not.
"""
import collections
import json
import sys

import pytest

import adapter_runs
import engine_env
import harness
import versions
from adapter_runs import HERE, MARKS
from harness import DMI_RUN, ROOT, STANDIN

sys.path.insert(0, str(ROOT / "tests" / "unit"))

import format_reader  # noqa: E402

pytestmark = MARKS


def serve(engines, folder, kind, *words, **more):
    engine_env.write_site(folder, "LlamaForCausalLM")
    return adapter_runs.serve(engines, folder, ["vllm_client.py", kind, "5", folder, *words], **more)


def opened(folder):
    import dmi
    return dmi.open(folder / "RUN")


def check_rows(check, run, name, about):
    """Each row is its request's, at its position; none is missing. The last token was sampled, and no forward need have computed it.
    Yields how many rows there are after the request's end."""
    positions = list(range(about["first"], len(about["tokens"]) - 1))
    tokens = about["tokens"][about["first"]:-1]
    for layer in range(2):
        tensor = run[f"{name}/resid_pre.{layer}"]
        values = tensor.numpy()
        check(tensor.positions[:len(positions)] == positions, f"{name}, layer {layer}: positions", (tensor.positions, positions))
        check(values[:len(tokens), 0].tolist() == tokens and values[:, 1].tolist() == tensor.positions, f"{name}, layer {layer}: tokens",
              (values[:, :2].tolist(), tokens))
        yield len(tensor.positions) - len(positions)
    logits = run[f"{name}/final_logits"]
    values = dict(zip(logits.positions, logits.numpy()[:, :2].tolist()))
    check(all(about["tokens"][p:p + 1] in ([values[p][0]], []) and values[p][1] == p for p in values), f"{name}: logits", values)
    check(set(range(about["n_prompt"] - 1, len(about["tokens"]) - 1)) <= set(logits.positions), f"{name}: each token that was sampled has some",
          logits.positions)


VERSIONS = [None, "vllm-0.27.1"]  # None: the newest, of engines.txt
OPTIONS = [(), ("speculate",), ("async",)]


@pytest.mark.parametrize("options, version", [*((options, None) for options in OPTIONS), ((), VERSIONS[1])],
                         ids=lambda given: given if isinstance(given, str) else given[0] if given else "plain")
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_vllm(check, tmp_path, engines, kind, options, version):
    told, said = serve(engines, tmp_path, kind, *options, version=version)
    ours = [line for line in said.splitlines() if "dmi.vllm" in line]
    check(not ours, "the adapter complains of nothing", ours)
    check(told["preempted"] > 0 and any(about["cached"] for about in told["requests"].values()), "requests are preempted, and find others' prefixes", told)
    check(told["padded"] > 0, "batches are padded", told["padded"])
    check((told["rejected"] > 0) == ("speculate" in options), "drafts are rejected", told["rejected"])
    extra = 0
    with opened(tmp_path) as run:
        requests = {request.id: request for request in run.requests}
        check(set(requests) == set(told["requests"]), "each request is there under its client's id", set(requests) ^ set(told["requests"]))
        for name, about in told["requests"].items():
            extra += sum(check_rows(check, run, name, about))
            got = requests[name]
            check((got.n_prompt, got.n_cached, got.state) == (about["n_prompt"], about["cached"], "finished"), f"{name}: prompt, cache, end", (got, about))
        adapter_runs.check_config(check, run, tmp_path)
    # drafts are accepted beyond it, and asynchronous scheduling computes a token before it knows that there was an end
    check(bool(extra) == bool(options), "no row after a request's end otherwise", extra)
    # a process of vLLM's own that looks at the model's class leaves a run, too
    steps = sorted((counters.steps, counters.steps_refused) for counters in map(harness.Counters, harness.runs_of(tmp_path / "RUN")))
    check(steps[-1] == (told["steps"], 0) and not any(map(sum, steps[:-1])), "each step is taken, none refused", (steps, told["steps"]))


RUNNERS = {"v1": {"Preprocess", "Forward", "Postprocess", "Sample", "Bookkeep", "EpLB", "Output", "Draft"},
           "v2": {"Preprocess", "Forward", "Sample", "Postprocess", "Output", "EpLB"}}


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_ranges_of_a_trace(check, tmp_path, engines, kind):
    """vLLM's scheduler and runners beside a capture: each range of the catalogue comes as often as its method is called."""
    python, env = engines
    told, said = serve((python, env | {"DMI_TRACE": "steps"}), tmp_path, kind, *(["speculate"] if kind == "v1" else []))
    names = collections.Counter(name for run in harness.runs_of(tmp_path / "RUN") for *_, name, _ in format_reader.Run(run).ranges)
    wanted = {f"ModelRunner::{word}" for word in RUNNERS[kind]} | {"EngineCore::Schedule", "EngineCore::Output"}
    check(set(names) == wanted, "the names", names)
    check(names["EngineCore::Schedule"] >= told["steps"] and names["ModelRunner::Preprocess"] >= told["steps"], "in each step", (names, told["steps"]))
    lines = [line for line in said.splitlines() if "dmi.vllm: " in line]
    check(all("no range" in line for line in lines), "the adapter names what did not come, and complains of nothing else", lines)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_capture_on_request(check, tmp_path, engines, kind):
    told, _ = serve(engines, tmp_path, kind, spec=adapter_runs.asking('capture=*'))
    wanted = {name for name, about in told["requests"].items() if about["fields"]}
    with opened(tmp_path) as run:
        check(wanted and {tensor.request for tensor in run.values()} == wanted, "those that a client asked for, and nothing else", [*run])


def test_async_with_speculation_is_refused_by_name(check, tmp_path, engines):
    told, said = serve(engines, tmp_path, "v2", "speculate", "async")
    ours = [line for line in said.splitlines() if "dmi.vllm: " in line]
    check(len(ours) == 1 and "asynchronous scheduling with speculative decoding" in ours[0], "one line says what is not supported", ours)
    with opened(tmp_path) as run:
        check(told["steps"] > 20 and not [*run.requests], "records are nobody's", [*run])


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_a_version_that_nobody_tried(check, tmp_path, engines, kind):
    """vLLM as it is, under another number: three steps agree, and each row that has an id from then on is that request's."""
    engine_env.write_version(tmp_path, "vllm", "0.99.0")
    told, said = serve(engines, tmp_path, kind)
    ours = [line for line in said.splitlines() if "dmi.vllm: " in line]
    check(len(ours) == 1 and "vllm 0.99.0 is not known: 3 steps agree" in ours[0], "one line", ours)
    with opened(tmp_path) as run:
        n = sum(check_known(check, tensor, told["requests"]) for tensor in run.values() if tensor.site.name == "resid_pre" and tensor.request)
    check(n > 200, "records have ids after the trial", n)


def check_known(check, tensor, requests):
    """How many rows: each holds the token of its request at its position."""
    tokens, rows = requests[tensor.request]["tokens"], tensor.numpy()[:, :2].tolist()
    check(rows == [[tokens[p], p] for p in tensor.positions], f"{tensor.key}: tokens", (rows, tensor.positions))
    return len(rows)


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")


@pytest.mark.parametrize("family, how, version", [*((family, "eager", None) for family in FAMILIES), *((family, "eager", VERSIONS[1]) for family in ("llama", "qwen3_moe", "gpt_oss")), ("qwen3", "aot_eager", None),
                                                  ("llama", "trace", None), ("llama", "vllm", None), ("gemma3_text", "vllm", None), ("mixtral", "trace", None)])
def test_taps_are_hugging_faces(check, tmp_path, engines, family, how, version):
    python, env = engines
    env = versions.before(version, env)
    env = env | {"PYTHONPATH": f"{ROOT / 'python'}:{HERE}:{env['PYTHONPATH']}"}
    done = harness.run([python, HERE / "vllm_model_client.py", family, how, tmp_path], env=env, timeout=600)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    check(len(lines) > 35, f"{family}, {how}: it compared", len(lines))
    for holds, what, detail in lines:
        check(holds, what, detail)


@pytest.mark.parametrize("said, tapped", [({"DMI_ATTACH": "resid_pre,q"}, ["model.layers.1.input_layernorm", "model.layers.1.self_attn.qkv_proj"]),
                                          ({"DMI_ATTACH_WRITE": "resid_post,mlp_out"}, ["model.layers.1", "model.layers.1.mlp"])])
def test_attached_at_load(check, tmp_path, engines, said, tapped):
    """As `dmi-run --attach` and `--write` say it."""
    python, env = engines
    told, said = serve((python, env | said | {"DMI_ATTACH_LAYERS": "1"}), tmp_path, "v2", "attach")
    check(told["model"].startswith("vllm.") and sorted(told["tapped"]) == tapped, "vLLM's own model is tapped", told)
    check(not told["same"], "vLLM takes no compiled graph of before", told["same"])
    ours = [line for line in said.splitlines() if line.startswith("dmi.") and "the model's tensors are on the CPU" not in line]
    check(not ours, "nothing else is complained of", ours)


@pytest.mark.parametrize("family, how", [("llama", "eager"), ("llama", "vllm"), ("qwen3", "trace")])
def test_edits_are_those_of_hugging_face(check, tmp_path, engines, family, how):
    """In vLLM's own models, whose layers pass the residual stream on as (hidden, residual), compiled and not."""
    python, env = engines
    env = env | {"PYTHONPATH": f"{ROOT / 'python'}:{HERE}:{env['PYTHONPATH']}", "LD_LIBRARY_PATH": f"{STANDIN}:{env['LD_LIBRARY_PATH']}"}
    places = "embed,ln1,q,k,v,z,attn_out,resid_mid,ln2,mlp_post,mlp_out,resid_post,final_ln"
    done = harness.run([DMI_RUN, "--tap", "none", "--write", places, "--out", tmp_path / "RUN", "--", python, HERE / "vllm_edits_client.py", family, how, tmp_path / "model"],
                       env=env, timeout=600)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    check(len(lines) > 35, f"{family}, {how}: it compared", done.stderr)
    for holds, what, detail in lines:
        check(holds, what, detail)
