# SPDX-License-Identifier: Apache-2.0
"""examples/edits: each file in an engine on the stand-in driver, against the formulas of those whose way of steering it is (examples_client.py)."""
import json
import shutil
import sys

import numpy as np
import pytest

import harness
from examples_client import DONORS, EXAMPLES, N_PROMPT, row_of
from harness import BUILD, DMI_RUN, PRELOAD, ROOT, STANDIN
from test_vectors import FILES
from vector_files import gguf

from dmi import vectors

HERE, EDITS = ROOT / "tests" / "python", ROOT / "examples" / "edits"
APART = {"by_tag.yaml", "hugging_face.py"}  # tests/engine/test_torch_edits.py runs these
pytestmark = pytest.mark.built(PRELOAD, DMI_RUN, BUILD / "tools" / "dmi-ctl", STANDIN / "libcuda.so.1")


def write_vectors(folder):
    some = np.random.default_rng(33)
    one = {name: some.standard_normal(16).astype(np.float32) for name in ("dir", "refusal", "noise.1", "noise.2")}
    calm = {layer: some.standard_normal(16).astype(np.float32) for layer in (5, 6)}
    with open(folder / "dir.safetensors", "wb") as file:  # of a .pt, which takes torch: tests/engine/test_torch_vectors.py
        vectors.tensors.write(file, {"vector": vectors.array("f", one["dir"])}, {})
    for name in ("adjust_rs", "add_vector"):
        (folder / f"{name}.yaml").write_text((EDITS / f"{name}.yaml").read_text().replace("file: dir.pt", "file: dir.safetensors"))
    (folder / "calm.gguf").write_bytes(gguf(calm))
    np.save(folder / "refusal.npy", one["refusal"])
    with open(folder / "noise.safetensors", "wb") as file:
        vectors.tensors.write(file, {f"token.{i}": vectors.array("f", one[f"noise.{i}"]) for i in (1, 2)}, {})
    # In the engine here, which has rows of 16 elements, only what enters a block is as wide as the autoencoder.
    text = (EDITS / "feature.yaml").read_text()
    assert "site: resid_post, layers: '1'" in text
    (folder / "feature.yaml").write_text(text.replace("site: resid_post, layers: '1'", "site: resid_pre, layers: '2'"))
    said = vectors.convert(FILES / "relu", folder / "feature.safetensors", features=(3,), layer_is="resid_pre")
    data = (FILES / "relu" / "sae_weights.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    weights = {name: np.frombuffer(data, np.float32, np.prod(e["shape"], dtype=int), 8 + n + e["data_offsets"][0]).reshape(e["shape"]).tolist()
               for name, e in json.loads(data[8:8 + n]).items() if name != "__metadata__"}
    (folder / "vectors.json").write_text(json.dumps({name: v.tolist() for name, v in one.items()} | weights | {"calm": {k: v.tolist() for k, v in calm.items()}}))
    return said


def command(folder, options, *words):
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests' / 'engine'}", LD_LIBRARY_PATH=STANDIN)
    return harness.run([*([DMI_RUN, *options, "--"] if options else []), sys.executable, *words], env=env, cwd=folder, timeout=120)


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
    """A copy of the examples with the files that they name, and the recorded run CLEAN."""
    folder = tmp_path_factory.mktemp("examples") / "edits"
    shutil.copytree(EDITS, folder)
    (folder / "printed").write_text(write_vectors(folder))
    command(folder, ["--tap", "resid_post", "--out", folder / "CLEAN"], HERE / "examples_client.py", "record")
    return folder


def test_each_example(check, folder):
    """Also the formulas of the steering fork of vLLM: clamps along directions, features, patches, added vectors."""
    sites = ",".join(dict.fromkeys(site for _, sites, _, _ in EXAMPLES.values() for site in sites))
    done = command(folder, ["--tap", "none", "--write", sites, "--out", folder / "RUN"], HERE / "examples_client.py", "edit", folder)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    check(sum("as its owner" in what for _, what, _ in found) == len(EXAMPLES), "each was compared", done.stderr)
    for holds, what, detail in found:
        check(holds, what, detail)


def test_difference_of_means(folder):
    done = command(folder, [], folder / "difference_of_means.py", "CLEAN", "pos-*", "neg-*", "means.safetensors")
    assert done.stdout == "means.safetensors: 7 layers of resid_post, 16 numbers each\n", done
    read = vectors.read(folder / "means.safetensors")
    found = read.layers
    assert read.layer_is == "resid_post" and list(found) == list(range(7)) and not read.unused
    for layer in range(7):
        rows = {sign: [row_of(name, "resid_post", layer, N_PROMPT - 1) for name in DONORS if name.startswith(sign)] for sign in ("pos", "neg")}
        assert np.allclose(found[layer], np.mean(rows["pos"], 0) - np.mean(rows["neg"], 0), atol=1e-6)


def test_all_examples_are_run(folder):
    assert {path.name for path in EDITS.iterdir()} == APART | {f"{name}.yaml" for name in EXAMPLES} | {"difference_of_means.py"}


def test_what_pages_and_files_say_of_each_other(folder):
    """docs/nnsight.md links each example; that of a feature has the numbers that the command in it prints."""
    page = (ROOT / "docs" / "nnsight.md").read_text()
    assert [path.name for path in EDITS.iterdir() if f"../examples/edits/{path.name})" not in page] == []
    assert "bias: -3.95277218, threshold: 0}" in (folder / "printed").read_text() and "bias: -3.95277218, threshold: 0}" in (EDITS / "feature.yaml").read_text()
