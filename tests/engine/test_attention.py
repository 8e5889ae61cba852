# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze attention, heads and focus of SmolLM2-135M-Instruct, attached: what Hugging Face's own attentions of the same prompts say.

  f32        the heads that stand out, with their numbers, of a sentence with a name twice and of random tokens twice
  ioi        examples/ioi.py: the head that finds a name that comes twice, and the one that rests on the first token, as pages of a report
  bf16, f16  how far the proof is off, and what a wrong base does to it: the bounds of docs/attention.md

  injection, rerank  examples/injection.py and examples/rerank.py: which prompts are injected, which document answers

The whole model's forwards take half a minute each, with --long. The examples are short too: their model has the words of their texts alone (few_words.py).
"""
import json
import os
import re
import sys

import pytest

import harness
import torch_env
from adapter_runs import HERE, LIBRARY, MARKS
from harness import BUILD, ROOT, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("gguf")

sys.path.insert(0, str(ROOT / "examples"))
import few_words  # noqa: E402
import injection  # noqa: E402
import rerank  # noqa: E402
from dmi.weights import Weights  # noqa: E402
from report import VIEW, Report, floats  # noqa: E402
from test_lens import CHAINED, GGUF, REFERENCE, attached  # noqa: E402

ANALYZE = BUILD / "tools" / "dmi-analyze"
pytestmark = [*MARKS, pytest.mark.built(ANALYZE, VIEW)]
SITES = "token_ids,q,k,v,z,q_rot,k_rot"
PROBE = [1, *np.random.default_rng(0).integers(1000, 40000, 25).tolist() * 2]
# Hugging Face's: output_attentions of eager attention in float32, the scores' formulas by numpy.
HEADS = {"ioi": {"duplicate": {"2.4": 0.8706, "8.0": 0.7276, "8.1": 0.6731, "5.6": 0.6338}, "sink": {"18.8": 0.9998, "18.7": 0.9987, "20.6": 0.9927},
                 "mul_previous": {"16.0": 0.7211, "11.1": 0.6789, "1.2": 0.6489}, "mul_duplicate": {"2.4": 0.058}},
         "probe": {"induction": {"18.6": 0.7523, "17.4": 0.6686, "17.3": 0.6422, "17.5": 0.6119}, "duplicate": {"14.3": 0.6126, "8.0": 0.5455},
                   "previous": {"11.1": 0.8616, "16.0": 0.8454}, "sink": {"18.8": 0.9999}}}


def ask(question, run, *words):
    return json.loads(
        harness.run([ANALYZE, question, run, "--json", *words]).stdout)


def run_of(folder, dtype):
    plan = [{"request": r, "tokens": t, "gguf": str(GGUF), "dtype": dtype, "sites": SITES} for r, t in (("ioi", REFERENCE["ioi"]["tokens"]), ("probe", PROBE))]
    return attached(folder, plan)


@pytest.mark.long
def test_heads_that_stand_out(check, tmp_path):
    run = run_of(tmp_path, "float32")
    for request, kinds in HEADS.items():
        said = ask("heads", run, "--request", request)
        check(said["proof"]["state"] == "holds" and said["proof"]["error"] < 1e-5, f"{request}: the proof", said["proof"])
        by_head = {f"{s['layer']}.{s['head']}": s for s in said["scores"]}
        for kind, wanted in kinds.items():
            got = {head: by_head[head][kind] for head in wanted}
            check(all(abs(got[h] - wanted[h]) < 1e-3 for h in wanted), f"{request}: {kind}", got)
            best = sorted(by_head, key=lambda h: -by_head[h][kind])[:len(wanted)]
            check(best == list(wanted), f"{request}: {kind}, in this order", best)
    sinks = [s["sink"] for s in ask("heads", run, "--request", "ioi")["scores"]]
    check(sum(s > 0.9 for s in sinks) == 22, "heads that rest on the first token", sum(s > 0.9 for s in sinks))
    bare = ask("attention", run, "--request", "ioi", "--q-rot", "none", "--k-rot", "none")
    check(bare["proof"]["error"] < 1e-5, "rotated here, by the config that attach() noted", bare["proof"])


@pytest.mark.long
@pytest.mark.parametrize("dtype, bound", [("bfloat16", 3e-2), ("float16", 4e-3)])
def test_how_far_proofs_are_off(check, tmp_path, dtype, bound):
    run = run_of(tmp_path, dtype)
    for words in ((), ("--q-rot", "none", "--k-rot", "none")):
        for request in HEADS:
            right = ask("attention", run, "--request", request, "--unchecked", *words)["proof"]
            print(dtype, request, words, right)
            check(right["error"] < bound / 1.5 and right["bound"] == bound, f"{request} {words}: right", right)
    wrong = tmp_path / "wrong.json"
    with __import__("dmi").open(run) as opened:
        config = json.loads(opened.about("config"))
    config["rope_theta"] = 10000.0
    config.pop("rope_parameters", None)
    wrong.write_text(json.dumps(config))
    errors = {layer: ask("attention", run, "--request", "ioi", "--unchecked", "--config", str(wrong), "--q-rot", "none", "--k-rot", "none", "--layers", str(layer))["proof"]["error"]
              for layer in (0, 7, 15, 22, 29)}
    print(dtype, "wrong base", errors)
    check(min(errors.values()) > bound, "a wrong base is beyond the bound in each layer", errors)


def example(tmp_path, name, capture, show, sites="q_rot,k_rot,v,z", model=GGUF):
    """What `capture` and then `show` of an example say, with these words beside the model and the run."""
    (tmp_path / "sitecustomize.py").write_text(CHAINED)
    python, env = torch_env.python_with_torch()
    env = dict(env, PATH=f"{BUILD / 'tools'}:{os.environ['PATH']}", PYTHONPATH=f"{ROOT / 'python'}:{HERE}:{tmp_path}", LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")
    env["OMP_NUM_THREADS"] = "1"  # PyTorch's threads wait for one another in loops
    program = ROOT / "examples" / name
    said = harness.run([BUILD / "tools" / "dmi-run", "--attach", sites, "--out", tmp_path / "RUN", "--", python, program, "capture", model, *capture], env=env, timeout=1500).stdout
    said += harness.run([sys.executable, program, "show", tmp_path / "RUN", *show], env=dict(env, PYTHONPATH=ROOT / "python", DMI_READ_LIBRARY=LIBRARY), timeout=300).stdout
    print(said)
    return said


def test_duplicate_and_sink_head_of_a_sentence(check, tmp_path):
    """examples/ioi.py: DMI-Lib's 7.1, with both heads at full resolution in a report."""
    report, wanted = tmp_path / "ioi.html", REFERENCE["ioi"]
    words = few_words.make(tmp_path / "model", GGUF, wanted["tokens"])
    said = example(tmp_path, "ioi.py", [], [tmp_path / "model", report], "token_ids,q_rot,k_rot,v,z", tmp_path / "model")
    check(said.splitlines()[0] == f"{wanted['text']} Mary", "what the model says next", said)
    found = dict(re.findall(r"(\d+\.\d+) (0\.\d+)", said))
    heads = HEADS["ioi"]["duplicate"] | {"18.8": HEADS["ioi"]["sink"]["18.8"]}
    check(found.keys() == heads.keys() and all(abs(float(found[h]) - heads[h]) < 1e-3 for h in heads), "the heads and their scores", said)
    page = (ROOT / "docs/heads.md").read_text()
    lines = [line for line in said.splitlines() if re.match("duplicate-token heads|head |sink head", line)]
    check(len(lines) == 3 and all(f"\n{line}\n" in page for line in lines), "what docs/heads.md prints", said)
    proof = re.search(r"^A v = z holds: off by (\S+) of z's norm$", said, re.M)
    check(proof and float(proof[1]) < 1e-6, "its proof, whose last digits are the processor's", said)
    check(f"{report}#attention/ioi/2/4/10\n" in said and f"{report}#attention/ioi/18/8/14\n" in said, "both pages", said)
    shown = Report(report).said
    entry, = shown["attention"]
    check([(h["layer"], h["head"]) for h in entry["patterns"]["heads"]][:2] == [(2, 4), (18, 8)] and entry["proof"]["state"] == "holds", "both are in the report", entry["proof"])
    check(floats(entry["patterns"]["heads"][0]["weights"])[10 * 11 // 2 + 1] > 0.87, "token 10's weight of token 1")
    check(shown["texts"][str(words.index(wanted["tokens"][10]))] == " John", "texts of tokens", shown["texts"])


def check_focus(check, said, n):
    """What examples/injection.py says of @n prompts that did not choose the heads."""
    found = re.search(rf"{n} other prompts: focus ([\d.]+) without an injection, ([\d.]+) with one; area under the curve ([\d.]+)", said)
    check(found and float(found[1]) > 1.5 * float(found[2]) and float(found[3]) > 0.9, "focus", said)


def test_injected_prompts_lose_the_focus_with_few_words(check, tmp_path):
    """examples/injection.py, as below, of four prompts of each kind, by the heads of 16 layers."""
    texts = ["user", Weights(GGUF).config["tokenizer.chat_template"], *injection.INSTRUCTIONS, *injection.TEXTS, injection.INJECTION]
    few_words.make(tmp_path / "model", GGUF, few_words.tokens_of(GGUF, *texts), layers=16)
    said = example(tmp_path, "injection.py", [tmp_path / "places", "--prompts", "4"], [tmp_path / "places"], model=tmp_path / "model")
    check_focus(check, said, 4)


def test_documents_that_answer_come_first_with_few_words(check, tmp_path):
    """examples/rerank.py, as below, with two questions, by the heads of 16 layers."""
    folder = tmp_path / "model"
    few_words.make(folder, GGUF, few_words.tokens_of(GGUF, "[1] 23456\nWhich document answers this? Query: N/A", *rerank.DOCUMENTS, *rerank.QUESTIONS), layers=16)
    said = example(tmp_path, "rerank.py", [tmp_path / "places", "--questions", "2"], [tmp_path / "places"], model=folder)
    check("\n2 of 2 questions have their document first" in said and "WRONG" not in said, "documents", said)
    check([line[40:].strip() for line in said.splitlines()[:2]] == rerank.DOCUMENTS[:2], "each document beside its question", said)


@pytest.mark.long
def test_injected_prompts_lose_the_focus(check, tmp_path):
    """examples/injection.py: heads of half of the prompts tell the other half apart."""
    said = example(tmp_path, "injection.py", [tmp_path / "places", "--prompts", "8"], [tmp_path / "places"])
    check_focus(check, said, 8)


@pytest.mark.long
def test_documents_that_answer_come_first(check, tmp_path):
    """examples/rerank.py: five of six, by all heads."""
    said = example(tmp_path, "rerank.py", [tmp_path / "places"], [tmp_path / "places"])
    check(int(re.search(r"(\d) of 6 questions have their document first", said)[1]) >= 5, "documents", said)
