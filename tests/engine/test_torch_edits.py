# SPDX-License-Identifier: Apache-2.0
"""Edits of models of Hugging Face's that run eagerly, against the same arithmetic in forward hooks: dmi.edit(), dmi-run --steer, examples/edits."""
import json

import numpy as np
import pytest

import harness
import torch_env
from adapter_runs import HERE, MARKS
from harness import DMI_RUN, ROOT, STANDIN
from test_attach import check_all

PLACES = "embed,ln1,q,k,v,z,attn_out,resid_mid,ln2,mlp_post,mlp_out,resid_post,final_ln"
pytestmark = MARKS


def environment(*paths):
    python, env = torch_env.python_with_torch()
    return python, dict(env, PYTHONPATH=":".join(map(str, [ROOT / "python", HERE, *paths])), LD_LIBRARY_PATH=f"{STANDIN}:{env['LD_LIBRARY_PATH']}")


@pytest.fixture(name="done", scope="module")
def fixture_done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edits")
    python, env = environment()
    command = [DMI_RUN, "--tap", "none", "--write", PLACES, "--out", folder / "RUN", "--", python, HERE / "edits_client.py", folder]
    return folder, harness.run(command, env=env, timeout=600)


def test_as_forward_hooks(check, done):
    """In bits, but for sums; other requests, and all without edits, in bits."""
    check_all(check, done[1])
    check(done[1].stdout.count("true") > 100, "it compared", done[1].stdout.count("true"))


@pytest.mark.parametrize("what, backend", [("module", "inductor"), ("llama", "aot_eager"), pytest.param("llama", "inductor", marks=pytest.mark.long)])
def test_compiled(check, tmp_path, what, backend):
    """edit(), and places of attach(), in graphs of the compiler: what is written there is read."""
    python, env = environment()
    write = PLACES if what == "llama" else "resid_post"
    command = [DMI_RUN, "--tap", "none", "--write", write, "--out", tmp_path / "RUN", "--", python, HERE / "compiled_client.py", what, backend, tmp_path]
    # Graphs are compiled each time; the C++ that comes of them, which is the same each time, once.
    cache = harness.ROOT / "build" / "cache" / "inductor"
    done = harness.run(command, env=dict(env, TORCHINDUCTOR_CACHE_DIR=str(cache), TORCHINDUCTOR_FX_GRAPH_CACHE="0"), timeout=900)
    check_all(check, done)
    check(done.stdout.count("true") > 8, "it compared", done.stdout)


# Another sitecustomize, which comes after that of dmi.torch: what is tapped on the CPU is written on the device.
CHAINED = torch_env.PREAMBLE + """
from dmi.torch import hooks
import edits_client
plain, device = hooks.attach, edits_client.Writing()
hooks.attach = lambda model, sites, layers, sink, write: plain(model, sites, layers, device, write)
"""


def test_one_command(check, done, tmp_path):
    """examples/edits/hugging_face.py, which knows nothing of places: dmi-run --steer attaches its model, and dmi.edit() adds more in its block."""
    folder, told = done[0], json.loads((done[0] / "said.json").read_text())
    (tmp_path / "sitecustomize.py").write_text(CHAINED)
    python, env = environment(tmp_path)
    command = [DMI_RUN, "--steer", folder / "vector-32.npy", "--times", "2", "--layers", "1", "--out", tmp_path / "RUN", "--", python,
               ROOT / "examples/edits/hugging_face.py", folder / "model", folder / "vector-32.npy", told["prompt"], "--times", "3", "--layers", "1-2", "--tokens", "12"]
    ended = harness.run(command, env=env, cwd=tmp_path, timeout=600)
    check(ended.stdout == f"without: {told['said'][1]}\nwith: {told['said'][2]}\n", "it says what the same arithmetic in hooks says", (ended.stdout, told))
    check("dmi.edit: vector-32 at resid_post: 36 rows written of 36 due\n" in ended.stderr, "the block says what was written", ended.stderr)
    check('dmi: edit "steer-0" at resid_post: 36 rows written of 36 due\n' in ended.stderr, "and so does the library at the end", ended.stderr)


@pytest.mark.parametrize("options, steered", [((), ("small", "main", "judge")), pytest.param(("--model", "small"), ("small", "draft"), marks=pytest.mark.long),
                                              pytest.param(("--model", "main", "--model", "*/j*ge"), ("main", "judge"), marks=pytest.mark.long)])
def test_several_models(check, tmp_path, options, steered):
    """Edits write in each model but one that drafts, unless --model names others; the line says in which."""
    (tmp_path / "sitecustomize.py").write_text(CHAINED)
    np.save(tmp_path / "v.npy", np.zeros(32, np.float32))
    python, env = environment(tmp_path)
    done = harness.run([DMI_RUN, "--steer", tmp_path / "v.npy", "--layers", "1", *options, "--out", tmp_path / "RUN", "--", python, HERE / "several_models.py", tmp_path], env=env)
    rows = json.loads(done.stdout)
    n = sum(rows[role] for role in steered)
    names = [f"LlamaForCausalLM {role}" for role in steered if role != "draft"]
    more = f", in {', '.join(names)}" if len(names) > 1 else ""
    check(f'dmi: edit "steer-0" at resid_post: {n} rows written of {n} due{more}\n' in done.stderr and min(rows.values()) > 1, "which rows, of which models", (rows, done.stderr))
    check(("drafts for another model: no edit is done in it" in done.stderr) == (not options), "the draft is named", done.stderr)
