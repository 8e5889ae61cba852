# SPDX-License-Identifier: Apache-2.0
"""dmi.huggingface: generate() of small models announces whose tokens its rows are, and the library captures them.

generate_client.py generates, in the environment with PyTorch (torch_env.py), and says what the run must hold; here the run is read. With --long
on each version of transformers of versions.py, too.
"""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import harness
import torch_env
import versions
from adapter_runs import HERE, MARKS, SPEC, asking, cached_ids, start
from harness import DMI_RUN, ROOT, STANDIN
from test_attach import check_all

PROGRAM = torch_env.PREAMBLE + """
import json
import torch, transformers, dmi
steps, begin = [], dmi.step_begin
dmi.step_begin = lambda step, spans, *more, **named: steps.extend([s.request, s.first_position, s.n_tokens] for s in spans) or begin(step, spans, *more, **named)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 48, "eos_token_id": None}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
ids = torch.arange(5)[None] + 3
model.generate(ids, max_new_tokens=2, do_sample=False)
seen = []
model.model.layers[0].register_forward_hook(lambda module, args, out: seen.append((out[0] if isinstance(out, tuple) else out).clone()))
with dmi.collect(sites="resid_pre", layers=1) as got:
    model.generate(ids, max_new_tokens=1, do_sample=False)
print(json.dumps([steps, [[name, list(of.resid_pre[1].shape), torch.equal(of.resid_pre[1], seen[0][0])] for name, of in got.items()]]))
"""
pytestmark = MARKS


def generate(folder, spec, version=None, options=()):
    python, env = torch_env.python_with_torch()
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}", LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")
    env = versions.before(version, env)
    return start(folder, [python, HERE / "generate_client.py", folder, *options], spec, env, timeout=1200)


@pytest.fixture(name="done", scope="module", params=[None, *(pytest.param(name, marks=pytest.mark.long) for name in versions.TRANSFORMERS)])
def fixture_done(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("generate")
    return folder, generate(folder, SPEC, request.param)


@pytest.fixture(name="run")
def fixture_run(done):
    import dmi
    with dmi.open(done[0] / "RUN") as run:
        yield run


@pytest.fixture(name="expected", scope="module")
def fixture_expected(done):
    return json.loads((done[0] / "expected.json").read_text()), load_file(done[0] / "expected.safetensors")


def test_the_engine_does_not_notice(check, done):
    check_all(check, done[1])


def test_requests_and_phases(check, run, expected):
    known = {request.id: request for request in run.requests}
    wanted = set(expected[0])
    check(set(known) >= wanted, "each request is there", wanted - set(known))
    for name, about in expected[0].items():
        request = known.get(name)
        if request is None or about.get("draft_model"):
            continue
        n_cached = about.get("n_cached", 0)
        check(request.n_prompt == about["n_prompt"] and request.n_cached == n_cached, f"{name}: {about['n_prompt']} tokens of the prompt", request)
        check(str(request.reason) == about["reason"], f"{name}: ends as {about['reason']}", request)
        if about.get("superseded"):
            continue
        computed = about["n"] - n_cached
        check(request.n_prefill == about["n_prompt"] - n_cached, f"{name}: the prompt's rows are of phase prefill", request)
        if about.get("drafts"):
            check(request.n_draft > 0, f"{name}: drafts are of phase draft", request)
        else:
            check(request.n_decode == computed - request.n_prefill and not request.n_draft, f"{name}: the others of phase decode", request)


def test_ids_of_a_cache_that_was_given(check, run, expected):
    want = {name: about["cached_ids"] for name, about in expected[0].items() if "cached_ids" in about}
    found = {name: ids for name, ids in cached_ids(run).items() if not name.startswith("hf-")}
    check(found == want and want, "those of the tokens that it has", found)


def test_rows_of_beams_are_no_sample(check, run):
    faults = {key: fault[0] for key, tensor in run.items() if tensor.site.name == "resid_pre" and (fault := run.sample_fault(tensor))}
    check({key.partition("#")[0] for key, fault in faults.items() if fault == "of beams"} >= {"beams-0", "beams-1"}, "each beam is marked", faults)
    check(not [key for key in faults if key.startswith(("right", "inner", "single", "dynamic", "two"))], "sequences are samples", faults)


def test_rows(check, run, expected):
    """Each row has the values of one forward over its request's tokens alone, and none is missing."""
    requests, tensors = expected
    for key, wanted in tensors.items():
        name, site = key.split("/")
        about = requests[name]
        if site == "final_logits":
            check_logits(check, run, key, wanted, about)
            continue
        found = run[key]
        check(found.positions == list(range(about.get("n_cached", 0), about["n"])), f"{key}: positions", found.positions)
        check(about.get("other_values") or close(found, wanted), f"{key}: values")


def close(found, wanted, rows=slice(None)):
    """Within 2e-4 of the largest element: batched products sum in other orders than one request's."""
    values = found.float32().reshape(len(found), -1)[rows]
    return values.shape == wanted.shape and np.abs(values - wanted).max() < 2e-4 * max(1.0, np.abs(wanted).max())


def check_logits(check, run, key, wanted, about):
    """One row a request and step: of the last token. Where a prompt comes in pieces the first pieces have logits, too."""
    if not about.get("logits"):
        return
    found = run[key]
    first = about["n_prompt"] - 1
    rows = [i for i, position in enumerate(found.positions) if position >= first]
    check([found.positions[i] for i in rows] == list(range(first, about["n"])), f"{key}: positions", found.positions)
    check(close(found, wanted, rows), f"{key}: values")


def test_chosen_experts(check, run):
    """What follows from the router's logits is what transformers chose."""
    requests = {request.id: request for request in run.requests}
    layers = [tensor.layer for tensor in requests["from-logits"].tensors.values()]
    check(layers, "layers with experts", layers)
    for layer in layers:
        ids, weights = requests["from-logits"].experts(layer, k=2)
        logits = requests["from-logits"].tensors[f"router_logits.{layer}"]
        check(ids.shape == weights.shape == (len(logits), 2) and np.allclose(weights.sum(1), 1), f"{layer}: two experts a token", ids.shape)
        if "topk_ids." + str(layer) not in requests["chosen"].tensors:
            continue  # transformers before 5
        theirs = requests["chosen"].experts(layer)
        check(np.array_equal(theirs.ids, ids) and np.allclose(theirs.weights, weights, atol=1e-6), f"{layer}: as transformers", (theirs, ids, weights))


def test_steps_are_taken(check, done, run):
    counters = harness.Counters(harness.only_run(done[0] / "RUN"))
    check(counters.steps > 100 and counters.steps_refused == 0, "no step is refused", (counters.steps, counters.steps_refused))
    check(not run.findings, "nothing is found wrong", run.findings)


def test_capture_on_request(check, tmp_path):
    """requests: 'tag:row=1' captures the second row of each batch that has tags, and nothing else."""
    generate(tmp_path, asking("row=1"), options=["--chosen"])
    import dmi
    wanted = {f"{what}-1" for what in ("dynamic", "static", "gpt2", "whole", "chunks")}  # the batches with the tag
    with dmi.open(tmp_path / "RUN") as run:
        check({tensor.request for tensor in run.values()} == wanted, "those with the tag", {tensor.request for tensor in run.values()})
        check(run["dynamic-1/resid_pre.1"].positions[:3] == [0, 1, 2], "from their first token", run["dynamic-1/resid_pre.1"].positions)


def test_models_of_a_program_that_knows_nothing(check, tmp_path):
    """dmi-run --attach: generate() of any model has requests, and what it computes on the CPU is captured without a driver. dmi.collect() has it in the program."""
    python, env = torch_env.python_with_torch()
    (tmp_path / "program.py").write_text(PROGRAM)
    said = harness.run([DMI_RUN, "--attach", "residuals", "--out", tmp_path / "RUN", "--", python, tmp_path / "program.py"], env=env)
    steps, collected = json.loads(said.stdout)
    check(steps == [["hf-0-0", 0, 5], ["hf-0-0", 5, 1], ["hf-1-0", 0, 5]], "each generate() is a request", said.stdout)
    check(collected == [["hf-1-0", [5, 32], True]], "the second one was collected, with what its layer returned", collected)
    check("dmi: the model's tensors are on the CPU: taps read them there (kernels and graphs are what a GPU adds)" in said.stderr.splitlines(), "a line says where", said.stderr)
    import dmi
    with dmi.open(tmp_path / "RUN") as run:
        check({request.id: request.n_prompt for request in run.requests} == {"hf-0-0": 5, "hf-1-0": 5} and
              run["hf-0-0/resid_pre.1"].positions == [0, 1, 2, 3, 4, 5], "the run has the rows of each request", [request.id for request in run.requests])
