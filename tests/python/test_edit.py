# SPDX-License-Identifier: Apache-2.0
"""dmi.edit() and dmi.edits.salt(): edit_client.py edits what it computes, or another process of the same command."""
import json
import sys
from types import SimpleNamespace as Some

import numpy as np
import pytest

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

import dmi
from dmi import vectors

HERE = ROOT / "tests" / "python"
pytestmark = pytest.mark.built(PRELOAD, DMI_RUN, BUILD / "tools" / "dmi-ctl", STANDIN / "libcuda.so.1")


@pytest.mark.parametrize("what", ["block", "passes", "rows", "surplus", "not_done", "foreign", "busy", "several_places", "other_process", "early", "no_places", "no_library"])
def test_blocks(check, tmp_path, what):
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests' / 'engine'}", LD_LIBRARY_PATH=STANDIN)
    places = "resid_post,mlp_out" if what == "several_places" else "resid_post"
    options = ["--tap", "resid_post"] if what == "no_places" else ["--tap", "none", "--write", places]
    start = [] if what == "no_library" else [DMI_RUN, *options, "--out", tmp_path / "RUN", "--"]
    done = harness.run([*start, sys.executable, HERE / "edit_client.py", what], env=env, cwd=tmp_path, timeout=60)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    check(found, "the client checked something", done.stderr)
    for holds, what_, detail in found:
        check(holds, what_, detail)


def test_a_vector_for_more_layers_than_there_are(tmp_path):
    """Of dmi-run, which knows no layers before the first step: a problem of the run names it."""
    vectors.save(tmp_path / "v.safetensors", {layer: [1.0] * 4 for layer in range(5)}, "resid_post")
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests' / 'engine'}", LD_LIBRARY_PATH=STANDIN)
    done = harness.run([DMI_RUN, "--write", "resid_post", "--steer", "v.safetensors", "--out", tmp_path / "RUN", "--", sys.executable, HERE / "edit_client.py", "serve"],
                       env=env, cwd=tmp_path, timeout=60, input="a\n", check=False)
    said = "resid_post has no layer 3: forwards had it in layers up to 2"
    assert done.returncode == 1 and said in done.stderr and said in (harness.only_run(tmp_path / "RUN") / "manifest.json").read_text(), done.stderr


@pytest.mark.parametrize("n, status, said", [
    (2, 0, 'edit "steer-0" at resid_post: 15 rows written of 15 due'),
    (3, 1, 'no row was edited: edit "steer-0" at resid_post: resid_post has no pass 3: layers ran 3 times in a forward at most'),
    (None, 0, 'ran more than once in a forward: the edit "steer-0" writes in each pass; "pass: N" in the edit names one')])
def test_dmi_run_names_a_pass(tmp_path, n, status, said):
    np.save(tmp_path / "v.npy", np.ones(4, np.float32))
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests' / 'engine'}", LD_LIBRARY_PATH=STANDIN)
    words = [] if n is None else ["--pass", n]
    done = harness.run([DMI_RUN, "--write", "resid_post", "--steer", "v.npy", *words, "--out", tmp_path / "RUN", "--", sys.executable, HERE / "edit_client.py", "serve", "3"],
                       env=env, cwd=tmp_path, timeout=60, input="a\n", check=False)
    assert done.returncode == status and said in done.stderr, done.stderr
    found = json.loads(done.stdout.splitlines()[1])
    assert found == {str(layer): [float(n is None or k == n) for step in (2, 1, 1, 1) for k in range(3) for _ in range(step)] for layer in range(3)}, found
    with dmi.open(harness.only_run(tmp_path / "RUN")) as run:
        told = [f.text for f in run.findings if "layer 0 ran more than once in a forward" in f.text]
        assert len(told) == (n is None), run.findings
        assert [edit.text for edit in run.edits("a")] == ({2: ["steer-0 (resid_post, all layers, pass 2, positions 0-4)"], None: ["steer-0 (resid_post, all layers, positions 0-4)"]}.get(n, []))
    harness.run([DMI_DUMP, "edits", harness.only_run(tmp_path / "RUN"), "--export", tmp_path / "again.yaml"])
    assert (f'pass: "{n}"' in (tmp_path / "again.yaml").read_text()) == (n is not None), (tmp_path / "again.yaml").read_text()


@pytest.mark.parametrize("keys, fields, tags", [
    ({}, {"calm": 2, "cache_salt": "a guess"}, {"calm": 2}),
    ({"extra_key": "dmi-1"}, {"calm": 2, "cache_salt": "a guess"}, {"calm": 2, "cache_salt": "dmi-1", "dmi.cache": {"extra_key": "dmi-1"}}),
    ({"extra_key": "a", "cache_salt": "dmi-1"}, None, {"cache_salt": "a dmi-1", "dmi.cache": {"extra_key": "a", "cache_salt": "dmi-1"}}),
    ({"extra_key": None}, {}, None)])
def test_salt_of_sglang(keys, fields, tags):
    """The tag that edits look at has what SGLang's cache is keyed by, whatever the client says of it."""
    from dmi import sglang
    text = sglang._tags(Some(sampling_params=Some(custom_params=fields), **keys))
    assert (text and json.loads(text)) == tags
