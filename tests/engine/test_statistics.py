# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze stats and routing of models of Hugging Face's, attached.

  mixtral   a small random Mixtral: routing is what follows from the router logits that Hugging Face returns
  smollm2   examples/outliers.sh finds the massive activation of SmolLM2-135M-Instruct, and what is left without its token; with --long of the model
            with all of its words
"""
import itertools
import json
import os
import re

import pytest

import harness
import torch_env
from adapter_runs import HERE, MARKS
from harness import BUILD, ROOT, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("gguf")
from safetensors.numpy import load_file  # noqa: E402

import few_words  # noqa: E402
from test_lens import CHAINED, GGUF, REFERENCE, attached  # noqa: E402

ANALYZE = BUILD / "tools" / "dmi-analyze"
pytestmark = [*MARKS, pytest.mark.built(ANALYZE)]
TOKENS = {"m1": [3, 10, 17, 24, 31, 38], "m2": [5, 5, 9, 11, 2, 38, 7, 40]}
TOP = 2


def answer(question, run, *words):
    return json.loads(harness.run([ANALYZE, question, run, "--json", *words]).stdout)


def jaccard(a, b):
    return len(a & b) / len(a | b)


def expected(logits):
    """Of one layer, by request the logits that Hugging Face returned: what the tool must say."""
    softmax = {r: np.exp(x) / np.exp(x).sum(1, keepdims=True) for r, x in logits.items()}
    ids = {r: np.argsort(-p, 1)[:, :TOP] for r, p in softmax.items()}
    load = sum(np.bincount(x.ravel(), minlength=next(iter(logits.values())).shape[1]) for x in ids.values())
    share, sets = load[load > 0] / load.sum(), {r: [set(row) for row in x] for r, x in ids.items()}
    firsts = np.concatenate([np.take_along_axis(p, ids[r], 1) for r, p in softmax.items()])
    every = np.concatenate(list(softmax.values()))
    return {"load": load.tolist(), "variation": load.std() / load.mean(), "entropy": -(share * np.log(share)).sum(),
            "token_overlap": np.mean([jaccard(x[i], x[i + 1]) for x in sets.values() for i in range(len(x) - 1)]),
            "request_overlap": np.mean([jaccard(set(ids[a].ravel()), set(ids[b].ravel())) for a, b in itertools.combinations(ids, 2)]),
            "first_share": (firsts[:, 0] / firsts.sum(1)).mean(), "token_entropy": -(every * np.log(every)).sum(1).mean()}


def test_mixtral_routing_is_what_hugging_faces_router_says(check, tmp_path):
    plan = [{"request": r, "tokens": tokens, "family": "mixtral", "sites": "router_logits,topk_ids,topk_weights", "router": True} for r, tokens in TOKENS.items()]
    run = attached(tmp_path, plan)
    logits = {r: load_file(tmp_path / f"{r}.router.safetensors") for r in TOKENS}
    found = answer("routing", run)["layers"]
    check(len(found) == len(logits["m1"]) > 1, "layers", [row["layer"] for row in found])
    for row in found:
        wanted = expected({r: x[str(row["layer"])].astype(float) for r, x in logits.items()})
        for name, value in wanted.items():
            check(np.allclose(row[name], value, rtol=1e-5), f"layer {row['layer']}: {name}", (row[name], value))
    from_logits = answer("routing", run, "--top-k", str(TOP))["layers"]
    for a, b in zip(found, from_logits, strict=True):
        check(a.keys() == b.keys() and all(np.allclose(a[key], b[key], rtol=1e-5) for key in a), "choices from logits are those that were captured", (a, b))


def outliers(folder, model):
    """What examples/outliers.sh prints of SmolLM2's forward over a sentence."""
    (folder / "sitecustomize.py").write_text(CHAINED)
    python, env = torch_env.python_with_torch()
    env = dict(env, PATH=f"{BUILD / 'tools'}:{os.environ['PATH']}", PYTHONPATH=f"{ROOT / 'python'}:{HERE}:{folder}", LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")
    env["OMP_NUM_THREADS"] = "1"  # PyTorch's threads wait for one another in loops
    return harness.run([ROOT / "examples/outliers.sh", folder / "RUN", python, ROOT / "examples/lens.py", "capture", model, REFERENCE["ioi"]["text"]], env=env, timeout=1200).stdout


def check_outliers(check, folder, said):
    """Channel 507 of token 0: 23,338 from layer 12 on, where the other tokens' norms are about 140."""
    first, second = said.split("without the first token")
    line = next(line.split() for line in first.splitlines() if re.match(r"resid_pre +12 ", line))
    check(line[7:10] == ["2.334e+04", "507", "0"], "layer 12 with token 0", line)
    check("507" in first.split("OUTLIERS OF")[1], "channel 507 stands out", first)
    line = next(line.split() for line in second.splitlines() if re.match(r"resid_pre +12 ", line))
    check(line[2] == "14" and float(line[7]) < 500, "layer 12 without token 0", line)
    layers = answer("stats", folder / "RUN")["layers"]
    check(all(abs(layers[i]["max"]["value"] - 23338) < 400 for i in range(12, 29)), "from layer 12 on", [row["max"] for row in layers])
    check(all((row["max"]["channel"], row["max"]["token"]) == (507, 0) for row in layers[12:]), "its place", [row["max"] for row in layers])
    check(abs(answer("stats", folder / "RUN", "--skip-first")["layers"][12]["norm"]["mean"] - 139) < 3, "norms of the other tokens")


def test_a_massive_activation_with_few_words(check, tmp_path):
    few_words.make(tmp_path / "model", GGUF, REFERENCE["ioi"]["tokens"])
    check_outliers(check, tmp_path, outliers(tmp_path, tmp_path / "model"))


@pytest.mark.long
def test_smollm2_has_a_massive_activation(check, tmp_path):
    check_outliers(check, tmp_path, outliers(tmp_path, GGUF))
