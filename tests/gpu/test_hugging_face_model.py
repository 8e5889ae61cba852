# SPDX-License-Identifier: Apache-2.0
"""The model of the entries with a model of Hugging Face's, small and on the CPU: its ways of a step, what is taken of it and put aside. --long only.

It runs in an environment with PyTorch and transformers (tests/engine/torch_env.py). Graphs, ranges and marks need a GPU; the compiler
traces, and generates no code.
"""
import time

import pytest

import asking
import contact
import entries
import harness
import hugging_face
import hugging_face_plan as plan
import table
import torch_env

HERE = harness.ROOT / "tests" / "gpu"
SMALL = ("--device", "cpu", "--size", "small", "--prompt", "12", "--steps", "3")
MODES = {"eager": (), "compiled": ("--mode", "compiled", "--backend", "aot_eager")}
TAKES = {"nothing": ("none", 0), "taps": ("many", 27), "hooks": ("few", 4), "hidden": ("none", 4)}
LAYERS = plan.SIZES["small"]["num_hidden_layers"]
# The model, with its taps going to a file: its arguments are that file, and the model's own.
TAPPED = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import hugging_face_model as model
import hugging_face_plan as plan
taps, tapped = model.import_taps(), plan.Aside()
attach = taps.attach


def keep(tensor, name, layer, *_):
    tapped.put(name if layer is None else f"{{name}}.{{layer}}", model.bits(session.device.torch, tensor))


taps.attach = lambda module, wishes, sink: attach(module, wishes, sink=keep)
path = sys.argv.pop(1)
session = model.Session(model.arguments())
with session.device.torch.no_grad():
    session.run()
tapped.write(path)
"""


@pytest.fixture(scope="module")
def torch(long):
    if not long:
        pytest.skip("--long only: PyTorch (560 MB) in an environment of its own")
    return torch_env.python_with_torch()


def run(torch, tmp_path, *words):
    """How a Python with PyTorch ended, and the result that it printed."""
    python, env = torch
    (tmp_path / "sitecustomize.py").write_text(torch_env.PREAMBLE)
    done = harness.run([python, *words], env=dict(env, PYTHONPATH=str(tmp_path)), check=False)
    return done, plan.result_of(done.stdout)


def model(torch, tmp_path, *words):
    return run(torch, tmp_path, HERE / "hugging_face_model.py", *SMALL, *words)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_taken_changes_no_logits(check, torch, mode, tmp_path):
    logits = []
    for take, (which, n_sites) in TAKES.items():
        done, result = model(torch, tmp_path, *MODES[mode], "--take", take, "--sites", which)
        if check(done.returncode == 0 and result, f"{take}: it ends with a result", done.stdout[-500:] + done.stderr[-2000:]):
            logits.append(result["logits"])
            check(result["n_sites"] == n_sites and len(result["step_ms"]) == 3, f"{take}: {n_sites} sites, three steps", result)
            check(len(result.get("prompt_ms", [])) == (4 if mode == "eager" else 0), f"{take}: the prompt is timed eagerly", result)
            n_prompts = 7 if mode == "eager" else 1
            check(result["n_tokens"] == 12 * n_prompts + 3 + 3 + 8, f"{take}: every token counts", result)
            check(result.get("skipped_graphs") == (None if mode == "eager" else 0), f"{take}: of the compiler's graphs", result)
    check(len(logits) == len(TAKES) and len(set(logits)) == 1, "logits have the same bits whatever is taken", logits)


@pytest.fixture(scope="module")
def put_aside(torch, tmp_path_factory):
    """{mode: (what hooks put aside, what the taps of the same run were given)}"""
    found = {}
    for mode, words in MODES.items():
        folder = tmp_path_factory.mktemp(mode)
        which = "few" if mode == "compiled" else "many"
        done, _ = run(torch, folder, "-c", TAPPED, folder / "tapped", *SMALL, *words, "--take", "values", "--sites", which,
                      "--aside", folder / "aside")
        assert done.returncode == 0, done.stderr[-2000:]
        found[mode] = plan.read_aside(folder / "aside"), plan.read_aside(folder / "tapped")
    return found


@pytest.mark.parametrize("mode, which, more", [("eager", "many", {plan.LOGITS}), ("compiled", "few", set())])
def test_taps_are_what_hooks_put_aside(check, put_aside, mode, which, more):
    aside, tapped = put_aside[mode]
    keys = {f"{site}.{layer}" for site, layer in plan.chosen(which, LAYERS)} | more
    check(set(tapped) == keys, "every site of every layer is tapped", set(tapped) ^ keys)
    wrong = [key for key in sorted(keys) if tapped.get(key) != aside.get(key)]
    check(not wrong, "each has the bits that hooks saw", wrong)
    n_tokens = 12 + 3 + 8 + 3
    check(len(aside["resid_pre.0"]) == n_tokens * 32 * 2, "a row of bf16 each token", len(aside["resid_pre.0"]))
    check(len(set(tapped.values())) == len(tapped), "no two are the same", len(set(tapped.values())))


def test_names_of_a_tensor(check, put_aside):
    """The MLP's tensors are also compared by range and by kernel."""
    aside, tapped = put_aside["eager"]
    named = {f"nvtx_{side}.{layer}" for side in ("in", "out") for layer in range(LAYERS)} | {f"marked.{n}" for n in range(2 * LAYERS)}
    check(set(aside) - set(tapped) == named, "by range and by kernel", set(aside) - set(tapped))
    for layer in range(LAYERS):
        check(aside[f"marked.{2 * layer + 1}"] == aside[f"nvtx_out.{layer}"] == aside[f"mlp_out.{layer}"], f"what the MLP {layer} returns")
        check(aside[f"marked.{2 * layer}"] == aside[f"nvtx_in.{layer}"] != aside[f"mlp_out.{layer}"], f"what the MLP {layer} is given")


def test_a_compiled_step_returns_what_hooks_see_eagerly(put_aside):
    eager, compiled = (put_aside[mode][0] for mode in ("eager", "compiled"))
    assert [key for key in compiled if compiled[key] != eager[key]] == []


def test_a_cpu_has_no_graphs(torch, tmp_path):
    done, _ = model(torch, tmp_path, "--mode", "graph")
    assert done.returncode == 77 and done.stdout.endswith("skipped: a CPU has no graphs\n"), done


def test_without_a_device_it_is_skipped(torch, tmp_path, monkeypatch):
    """As the group runs it: all of a mode is skipped by the reason that the model gives."""
    python, env = torch
    (tmp_path / "sitecustomize.py").write_text(torch_env.PREAMBLE)
    monkeypatch.setenv("LD_LIBRARY_PATH", env["LD_LIBRARY_PATH"])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found, machine = table.Table(), contact.Machine("DMI stand-in", python, tmp_path)
    for c in plan.PLAN:
        if c.name in ("eager plain", "eager values"):
            asking.Asked(entries.Entry(c.name, 60, 1, hugging_face.ask(c)), found, machine, time.monotonic() + 300).ask()
    assert [row.verdict for row in found.rows] == ["skipped"] * 2 and "sees no device" in found.rows[0].reason, found.text()
