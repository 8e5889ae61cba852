# SPDX-License-Identifier: Apache-2.0
"""Vectors and features from the files of others: what their writers mean, what is refused and why, and what a small file may ask for."""
import json
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import foreign_files
from harness import DMI_RUN, ROOT, environment, run
from vector_files import LIST, TEXT, U32, gguf, npy, safetensors, text, value

from dmi import vectors
from dmi.vectors import VectorError, tensors

FILES = ROOT / "tests" / "reference" / "vectors"
SAID = json.loads((FILES / "numbers.json").read_text())
LAYERS = {int(layer): np.array(numbers, np.float32) for layer, numbers in SAID["layers"].items()}
POST = {"layer_is": "resid_post", "shift": 0}


def stored(path):
    """({name: float32}, metadata)"""
    data = pathlib.Path(path).read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    about = header.pop("__metadata__")
    return {name: np.frombuffer(data, np.float32, entry["shape"][0], 8 + n + entry["data_offsets"][0]) for name, entry in header.items()}, about


def bf16(x):
    """Rounded to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).view(np.float32)


# file: (arguments, {name: numbers}, layer_is)
GOOD = {
    "calm.gguf": ({}, {f"layers.{layer}": v for layer, v in LAYERS.items()}, "resid_post"),
    "rows.npy": (POST, {f"layers.{i}": LAYERS[i + 1] for i in range(3)}, "resid_post"),
    "named.safetensors": ({"layer_is": "resid_pre", "shift": 1}, {f"layers.{i + 1}": v for i, v in LAYERS.items()}, "resid_pre"),
    "one.safetensors": ({}, {"vector": LAYERS[1]}, None),
    "half.gguf": ({"shift": 1}, {f"layers.{layer + 1}": v.astype(np.float16).astype(np.float32) for layer, v in LAYERS.items()}, "resid_post"),
    "unnamed.gguf": ({"layer_is": "resid_pre", "shift": -1}, {f"layers.{layer - 1}": v for layer, v in LAYERS.items()}, "resid_pre"),
}


@pytest.mark.parametrize("name", GOOD)
def test_numbers_by_layer(tmp_path, name):
    options, wanted, site = GOOD[name]
    (tmp_path / "rows.npy").write_bytes(npy(np.stack([LAYERS[i] for i in (1, 2, 3)]).astype(np.float64)))
    (tmp_path / "named.safetensors").write_bytes(safetensors({f"l.{i}.v": v for i, v in LAYERS.items()}, {"format": "pt"}))
    (tmp_path / "one.safetensors").write_bytes(safetensors({"v": LAYERS[1][None]}))
    source = FILES / name if name.endswith(".gguf") else tmp_path / name
    said = vectors.convert(source, tmp_path / "v.safetensors", **options)
    found, about = stored(tmp_path / "v.safetensors")
    assert found.keys() == wanted.keys() and all((found[key] == wanted[key]).all() for key in wanted)
    assert about.get("dmi.layer_is") == site and about["dmi.source"] == name
    assert about.get("dmi.model") == ("llama" if name.endswith(".gguf") else None)
    assert "not used: controlvector.notes" in said if name.endswith(".gguf") else "not used" not in said, said


# ------------------------------------------------------------------------- what is refused

TWO = {1: [1, 2], 2: [3, 4]}
ONE = np.ones(4, "<f4").tobytes()
NAN = np.array([1, np.nan], "<f4").tobytes()
DEEP = value(LIST, struct.pack("<IQ", LIST, 1) * 10 + struct.pack("<IQI", U32, 1, 5))


BAD = {
    "a.gguf, empty": (b"", {}, "it is empty"),
    "b.gguf, another file": (b"PK\3\4" * 10, {}, "it is no GGUF file"),
    "c.gguf, its first bytes": (gguf(TWO)[:20], {}, "it ends in the middle of a value"),
    "d.gguf, cut in the data": (gguf(TWO)[:-40], {}, "lies outside of the file"),
    "e.gguf, version 1": (gguf(TWO, version=1), {}, "GGUF of version 1"),
    "f.gguf, big-endian": (gguf(TWO, version=3 << 24), {}, "little-endian"),
    "g.gguf, 2^60 tensors": (gguf(TWO, counts=(1 << 60, 1)), {}, "control vectors have at most"),
    "h.gguf, 2^60 values": (gguf(TWO, counts=(2, 1 << 60)), {}, "control vectors have at most"),
    "i.gguf, a text of 2^63 bytes": (gguf(TWO, values=[("k", value(TEXT, struct.pack("<Q", 1 << 63)))]), {}, "it ends in the middle of a value"),
    "j.gguf, a list of 2^62": (gguf(TWO, values=[("k", value(LIST, struct.pack("<IQ", U32, 1 << 62)))]), {}, "it ends in the middle of a value"),
    "k.gguf, 2^62 texts": (gguf(TWO, values=[("k", value(LIST, struct.pack("<IQ", TEXT, 1 << 62)))]), {}, "it ends in the middle of a value"),
    "l.gguf, lists of lists": (gguf(TWO, values=[("k", DEEP)]), {}, "a value of the unknown type"),
    "m.gguf, alignment 0": (gguf(TWO, values=[("general.alignment", value(U32, bytes(4)))]), {}, "an alignment of 0"),
    "n.gguf, five layers said": (gguf(TWO, values=[("controlvector.layer_count", value(U32, struct.pack("<I", 5)))]), {}, "says 5 layers and has 2"),
    "o.gguf, NaN": (gguf({1: [1, float("nan")]}), {}, "the numbers of direction.1 are not all finite"),
    "p.gguf, widths": (gguf({1: [1, 2], 2: [1, 2, 3]}), {}, "of different widths: 2 numbers in layer 1, 3 in layer 2"),
    "q.gguf, quantised": (gguf({}, infos=[("direction.1", (32,), 2, 0)], data=bytes(64)), {}, "is of the type 2 of ggml"),
    "r.gguf, two dimensions": (gguf({}, infos=[("direction.1", (2, 2), 0, 0)], data=bytes(16)), {}, "expected one dimension"),
    "s.gguf, 2^63 numbers": (gguf({}, infos=[("direction.1", (1 << 63,), 0, 0)], data=bytes(16)), {}, "its tensors lie on one another"),
    "t.gguf, on one another": (gguf({}, infos=[(f"direction.{i}", (4096,), 0, 0) for i in range(1000)], data=bytes(16384)), {}, "lie on one another"),
    "u.gguf, another tensor": (gguf({}, infos=[("token_embd.weight", (2,), 0, 0)], data=bytes(8)), {}, "has a tensor 'token_embd.weight'"),
    "v.gguf, a layer twice": (gguf({1: [1], "01": [2]}), {}, "two tensors are of layer 01"),
    "w.gguf, no tensor": (gguf({}), {}, "it holds no vector"),
    "x.gguf, of no number": (gguf({1: []}), {}, "its vectors have no number"),
    "y.gguf, says nothing": (gguf(TWO, arch="other"), {}, "does not say which layers its vectors are of"),
    "y2.gguf, half of it said": (gguf(TWO, arch="other"), {"layer_is": "resid_pre"}, "does not say which layers"),
    "z.gguf, another site": (gguf(TWO), {"layer_is": "resid_pre"}, "it is of resid_post, and --layer-is says resid_pre"),
    "0.gguf, below 0": (gguf(TWO), {"shift": -2}, "its layer 1 would be layer -1"),
    "1.gguf, too high": (gguf(TWO), {"shift": 1020}, "its layer 2 would be layer 1022"),
    "v.onnx": (b"x", {}, "expected a file that ends with .gguf"),
    "2.gguf, taken out": (gguf(TWO, values=[("controlvector.operation", value(TEXT, text("project_out")))]), {}, "it says controlvector.operation: project_out, which is not read"),
    "3.gguf, a mode": (gguf(TWO, values=[("controlvector.apply", value(TEXT, text("ablate")))]), {}, "it says controlvector.apply: ablate"),
    "4.gguf, a factor": (gguf(TWO, values=[("repeng.scale", value(6, struct.pack("<f", 2)))]), {}, "it says repeng.scale: 2.0"),
    "5.gguf, a list of factors": (gguf(TWO, values=[("my.coefficients", value(LIST, struct.pack("<IQI", U32, 1, 5)))]), {}, "it says my.coefficients, which"),
    "a.npy, whose layers": (npy(np.ones((2, 3))), {}, "does not say which layers its vectors are of"),
    "b.npy, integers": (npy(np.ones(3, int)), {}, "of another type than f64, f32 and f16"),
    "c.npy, Fortran's order": (npy(np.asfortranarray(np.ones((2, 3)))), {}, "numpy.ascontiguousarray()"),
    "d.npy, heads": (npy(np.ones((2, 2, 3))), {}, "reshape(-1)"),
    "a.safetensors, a scale": (safetensors({"v": np.ones(3)}, {"scale": "2"}), {}, "it says scale: 2, which is not read here"),
    "b.safetensors, of one layer": (safetensors({"layer_14": np.ones(3)}), {}, "does not say which layers"),
    "c.safetensors, of two": (safetensors({"a": np.ones(3), "b": np.ones(3)}), {}, "which of its tensors is meant is not clear"),
}


def test_files_that_are_refused(check, tmp_path):
    """Each by a sentence that begins with the file's name; nothing is written, nothing is executed, and a small file gets little memory."""
    for name, (data, options, said) in BAD.items():
        path, out = tmp_path / name.partition(",")[0], tmp_path / "o.safetensors"
        path.write_bytes(data)
        tracemalloc.start()
        try:
            vectors.convert(path, out, **options)
            check(False, name, "taken")
        except VectorError as error:
            check(str(error).startswith(f"{path}: ") and said in str(error), name, str(error))
        check(tracemalloc.get_traced_memory()[1] < 24 << 20, f"{name}: memory", tracemalloc.get_traced_memory())
        tracemalloc.stop()
        check(not out.exists(), name, "written")
    check(not pathlib.Path("/tmp/executed").exists(), "a pickle was executed")


def test_any_bytes(check, seeds, tmp_path):
    """Files with bytes of them exchanged, cut or doubled: taken with finite numbers, or refused by a VectorError."""
    refused = taken = 0
    for seed in range(seeds(1500, 60000)):
        some = random.Random(seed)
        name = some.choice(("calm.gguf", "half.gguf"))
        data = bytearray((FILES / name).read_bytes())
        for _ in range(some.randint(1, 4)):
            at = some.randrange(len(data))
            data[at:at + some.choice((1, 1, 4, 8))] = some.choice((some.randbytes(1), b"\xff" * 8, b"\0" * 4, data[:some.randrange(40)], b""))
        path = tmp_path / name
        path.write_bytes(data)
        try:
            found = vectors.read(path)
            taken += 1
            check(all(np.isfinite(numbers).all() for numbers in found.layers.values()), f"seed {seed}", found)
        except VectorError:
            refused += 1
        except Exception as error:
            check(False, f"seed {seed}: {name}", repr(error))
    check(refused > 10 * taken / 100 and taken, "some are taken, some refused", (taken, refused))


@pytest.mark.parametrize("name", ["i.gguf, a text of 2^63 bytes", "j.gguf, a list of 2^62", "t.gguf, on one another"])
def test_a_small_file_asks_for_little_memory(tmp_path, name):
    """In a process that has no more."""
    path = tmp_path / name.partition(",")[0]
    path.write_bytes(BAD[name][0])
    done = run([sys.executable, "-m", "dmi", "vectors", path, "-o", tmp_path / "o"], env=environment(PYTHONPATH=ROOT / "python"), check=False,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (150 << 20, 150 << 20)))
    assert done.returncode == 2 and done.stderr.startswith(f"dmi: {path}: ") and BAD[name][2] in done.stderr, done.stderr


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "v.gguf")
    with pytest.raises(VectorError, match="no regular file"):
        vectors.convert(tmp_path / "v.gguf", tmp_path / "o")
    with pytest.raises(FileNotFoundError):
        vectors.convert(tmp_path / "missing.gguf", tmp_path / "o")
    (tmp_path / "o").write_text("mine")
    with pytest.raises(FileExistsError):
        vectors.convert(FILES / "calm.gguf", tmp_path / "o")
    assert (tmp_path / "o").read_text() == "mine"


# ------------------------------------------------------------------------- autoencoders


def dictionary(tmp_path, name, **config):
    """A copy of an autoencoder, with other words in its configuration; None: without it."""
    folder = tmp_path / "sae"
    shutil.copytree(FILES / name, folder, dirs_exist_ok=True)
    said = json.loads((folder / "cfg.json").read_text()) | config
    (folder / "cfg.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return folder


@pytest.mark.parametrize("name, site, layer", [("relu", "resid_post", 1), ("jump", "mlp_out", 1)])
def test_features(tmp_path, name, site, layer):
    """x.e + b is what SAELens's encoder computes of its rows, and v the decoder's row; the file of edits is one that dmi-run takes."""
    yaml = pytest.importorskip("yaml")
    said = yaml.safe_load(vectors.convert(FILES / name, tmp_path / "f.safetensors", features=(3, 0, 1)))
    found, about = stored(tmp_path / "f.safetensors")
    rows, (edit,) = np.array(SAID["rows"]), said["edits"]
    assert (edit["site"], edit["layers"], about["dmi.layer_is"], about["dmi.checkpoint"]) == (site, str(layer), site, "llama")
    active = 0
    for feature, one in zip((3, 0, 1), edit["do"]):
        decoder, encoder = (found[said["vectors"][one[key]]["tensor"].replace("{layer}", str(layer))] for key in ("feature", "encoder"))
        f = rows @ encoder.astype(float) + one["bias"]
        f = np.where(f > max(one["threshold"], 0), f, 0)
        wanted = np.array(SAID[name])[:, feature]
        assert np.abs(f - wanted).max() <= 1e-5 * np.abs(wanted).max() and (decoder == np.array(SAID["W_dec"], np.float32)[feature]).all()
        active += (wanted > 0).sum()
    assert 10 < active < 50
    (tmp_path / "f.json").write_text(json.dumps(said))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", site))
    done = run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--edits", tmp_path / "f.json", "--check"], env=environment(), check=False)
    assert done.returncode == 0 and "1 edit, 6 vectors: no error" in done.stdout, done.stderr


def gemma_scope(path, seed=4, width=6, n=5, save=np.savez, **more):
    """params.npz as Gemma Scope's; {name: array}"""
    rng = np.random.default_rng(seed)
    held = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("W_enc", (width, n)), ("W_dec", (n, width)), ("b_enc", (n,)), ("b_dec", (width,)))}
    held |= {"threshold": rng.random(n).astype(np.float32), **more}
    save(path, **held)
    return held


def test_features_of_gemma_scope(tmp_path):
    """The formula of its authors: JumpReLU of x @ W_enc + b_enc, of rows as they are."""
    yaml = pytest.importorskip("yaml")
    held = gemma_scope(tmp_path / "params.npz")
    said = yaml.safe_load(vectors.convert(tmp_path / "params.npz", tmp_path / "f.safetensors", "resid_post", 20, features=(3, 0)))
    found, about = stored(tmp_path / "f.safetensors")
    rows, (edit,) = np.random.default_rng(1).normal(size=(64, 6)), said["edits"]
    assert (edit["site"], edit["layers"], about["dmi.layer_is"]) == ("resid_post", "20", "resid_post")
    before = rows @ held["W_enc"].astype(float) + held["b_enc"]
    wanted = (before > held["threshold"]) * np.maximum(before, 0)
    for feature, one in zip((3, 0), edit["do"]):
        decoder, encoder = (found[said["vectors"][one[key]]["tensor"].replace("{layer}", "20")] for key in ("feature", "encoder"))
        f = rows @ encoder.astype(float) + one["bias"]
        f = np.where(f > max(one["threshold"], 0), f, 0)
        assert np.abs(f - wanted[:, feature]).max() <= 1e-5 and (wanted[:, feature] > 0).any() and (decoder == held["W_dec"][feature]).all()
    (tmp_path / "f.json").write_text(json.dumps(said))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", "resid_post"))
    done = run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--edits", tmp_path / "f.json", "--check"], env=environment(), check=False)
    assert done.returncode == 0 and "1 edit, 4 vectors: no error" in done.stdout, done.stderr


@pytest.mark.parametrize("options, said", [
    ({"save": np.savez_compressed}, "is compressed; expected what numpy.savez"), ({"more": np.ones(1)}, "expected those of Gemma Scope"),
    ({"W_dec": np.ones((5, 6), np.int32)}, "another type"), ({"b_enc": np.ones(4, np.float32)}, "has no b_enc of the shape"), ({"W_dec": np.ones(6)}, "no two dimensions"),
    ({"W_enc": np.asfortranarray(np.ones((6, 5)))}, "Fortran's order")], ids=lambda value: str(value)[:30])
def test_npz_that_are_refused(tmp_path, options, said):
    gemma_scope(tmp_path / "params.npz", **options)
    with pytest.raises(VectorError, match=said):
        vectors.convert(tmp_path / "params.npz", tmp_path / "o", "resid_post", 20, features=(3,))


def test_npz_that_are_damaged(tmp_path):
    path = tmp_path / "params.npz"
    gemma_scope(path)
    with pytest.raises(VectorError, match="expected --layer-is SITE --shift LAYER"):
        vectors.convert(path, tmp_path / "o", features=(3,))
    whole, rng, n_refused = path.read_bytes(), random.Random(5), 0
    for i in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[:rng.randrange(len(data))] if i % 4 == 0 else data)
        (tmp_path / "o").unlink(missing_ok=True)
        try:
            vectors.convert(path, tmp_path / "o", "resid_post", 20, features=(3,))
        except VectorError:
            n_refused += 1
    assert n_refused > 100, n_refused


def said_of_features(tmp_path, spec="", site="resid_post", width=6):
    """(accepted, what is said) by dmi-run --check of two features of an autoencoder of "gpt2-small"."""
    (tmp_path / "f.safetensors").unlink(missing_ok=True)
    (tmp_path / "f.yaml").write_text(vectors.convert(dictionary(tmp_path, "relu", model_name="gpt2-small"), tmp_path / "f.safetensors", features=(0, 3)))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", site).replace("{count: 6}", f"{{count: {width}}}").replace("sites:", f"{spec}\nsites:"))
    done = run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--edits", tmp_path / "f.yaml", "--check"], env=environment(), check=False)
    return done.returncode == 0, "".join(line for line in done.stderr.splitlines(keepends=True) if ": warning: " not in line)


def test_the_name_of_a_checkpoint_contradicts_no_type_of_model(tmp_path):
    """It is said once a file. What can be compared still is: widths and sites."""
    accepted, said = said_of_features(tmp_path, "convention: {model: gpt2}")
    assert accepted and said.count("it is of the model gpt2-small. The HookSpec's convention says the model_type gpt2, with") == said.count("\n") == 1, said
    assert said_of_features(tmp_path) == (True, "") and said_of_features(tmp_path, "convention: {model: gpt2-small}") == (True, "")
    for options, why in [({"width": 7}, WIDE.partition('"')[0]), ({"site": "resid_pre"}, 'found "resid_post"; expected a site')]:
        accepted, said = said_of_features(tmp_path, "convention: {model: gpt2}", **options)
        assert not accepted and why in said, said


def centred(x):
    return x - x.mean(-1, keepdims=True)


CENTRED = {"center_writing_weights": True}
# what the configuration says more: does the feature see rows without their mean?
ROWS = {
    "as they are": ({}, False),
    "processed, and not centred": ({"model_from_pretrained_kwargs": {"center_writing_weights": False, "fold_ln": True, "center_unembed": True}}, False),
    "without their mean": ({"model_from_pretrained_kwargs": CENTRED, "model_name": "gpt2-small"}, True),
    "as newer versions say it": ({"metadata": {"model_from_pretrained_kwargs": CENTRED, "model_name": "EleutherAI/pythia-70m-deduped"}, "model_name": None}, True),
    "of a head's z": ({"model_from_pretrained_kwargs": CENTRED, "hook_name": "blocks.2.attn.hook_z", "reshape_activations": "hook_z"}, False),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_an_autoencoder_was_trained_on(tmp_path, name):
    """TransformerLens takes the mean of what models with LayerNorm write: the feature is of such rows."""
    yaml = pytest.importorskip("yaml")
    config, without_mean = ROWS[name]
    said = yaml.safe_load(vectors.convert(dictionary(tmp_path, "relu", **config), tmp_path / "f.safetensors", features=(3,)))
    found, _ = stored(tmp_path / "f.safetensors")
    weights = tensors.File(tensors.mapped(FILES / "relu" / "sae_weights.safetensors")).entries
    w = {key: np.frombuffer(data, np.float32).reshape(shape) for key, (_, shape, data) in weights.items()}
    (layer,), (one,) = said["edits"][0]["layers"], said["edits"][0]["do"]
    rows = np.array(SAID["rows"])
    wanted = np.maximum(((centred(rows) if without_mean else rows) - w["b_dec"]) @ w["W_enc"][:, 3] + w["b_enc"][3], 0)
    f = np.maximum(rows @ found[f"feature-3.encoder.{layer}"].astype(float) + one["bias"], 0)
    assert (wanted > 0).any() and np.abs(f - wanted).max() <= 1e-5 * wanted.max()


def test_what_a_configuration_says_more_is_listed(tmp_path):
    """What changes no number is named; the file of edits is as without it."""
    more = {"dtype": "float32", "prepend_bos": True, "context_size": 128, "dataset_path": "x/y", "l1_coefficient": 5, "lr": 1e-4, "normalize_sae_decoder": False,
            "sae_lens_version": "6.2.1", "seqpos_slice": [None], "wandb_project": "z", "my_note": "hello", "noise_scale": 0.0}
    said = vectors.convert(dictionary(tmp_path, "relu", **more), tmp_path / "f.safetensors", features=(3,))
    line, = (line for line in said.splitlines() if line.startswith("# not used of its configuration: "))
    assert set(more) <= set(line.partition(": ")[2].split(", ")), line


def test_what_enters_the_first_layer(tmp_path):
    """No layer returns it: the user says which tensor that is."""
    folder = dictionary(tmp_path, "relu", hook_name="blocks.0.hook_resid_pre", hook_layer=0)
    with pytest.raises(VectorError, match="which no layer returns: --layer-is embed"):
        vectors.convert(folder, tmp_path / "f.safetensors", features=(3,))
    said = vectors.convert(folder, tmp_path / "f.safetensors", features=(3,), layer_is="embed")
    assert "site: embed\n    do:" in said and "tensor: 'feature-3.decoder'}" in said, said
    assert "site: resid_pre\n    layers: '0'" in vectors.convert(folder, tmp_path / "g.safetensors", features=(3,), layer_is="resid_pre")


NOT_ALONE = {
    "a factor that it does not name": ("relu", {"activation_scale": 2.5}, "it says activation_scale: 2.5, which is not read"),
    "values by the decoder's length": ("relu", {"rescale_acts_by_decoder_norm": True}, "it says rescale_acts_by_decoder_norm: true"),
    "arguments of the function": ("relu", {"activation_fn_kwargs": {"k": 32}}, 'it says activation_fn_kwargs: {"k": 32}'),
    "another shape": ("relu", {"reshape_activations": "hook_mlp"}, "it says reshape_activations"),
    "rows of another width": ("relu", {"d_out": 7}, "rows of another width"),
    "where it writes": ("relu", {"hook_name_out": "blocks.2.hook_mlp_out"}, "it says hook_name_out"),
    "centred, of which model": ("relu", {"model_from_pretrained_kwargs": CENTRED, "model_name": "gemma-2b"}, "whether gemma-2b has it is not known"),
    "values of attention that were folded": ("relu", {"model_from_pretrained_kwargs": {"fold_value_biases": True}, "hook_name": "blocks.2.attn.hook_z"}, "fold_value_biases"),
    "two names of a place": ("relu", {"metadata": {"hook_name": "blocks.1.hook_resid_pre"}}, "says hook_name twice, and not alike"),
    "b_dec, perhaps": ("relu", {"apply_b_dec_to_input": "yes"}, "neither true nor false"),
    "TopK": ("topk", {}, "it is a TopK autoencoder"),
    "TopK by its function": ("relu", {"activation_fn_str": "topk"}, "it is a TopK autoencoder"),
    "BatchTopK": ("jump", {"architecture": "matryoshka_batchtopk"}, "it is a TopK autoencoder"),
    "gated": ("relu", {"architecture": "gated"}, "its architecture is gated"),
    "a transcoder": ("relu", {"architecture": "transcoder"}, "its architecture is transcoder"),
    "another function": ("relu", {"activation_fn_str": "tanh-relu"}, "standard with tanh-relu"),
    "scaled rows": ("relu", {"normalize_activations": "layer_norm"}, "normalize_activations: layer_norm"),
    "factors of fine-tuning": ("relu", {"finetuning_scaling_factor": True}, "finetuning_scaling_factor"),
    "a head": ("relu", {"hook_head_index": 3}, "of head 3 alone"),
    "no threshold": ("relu", {"architecture": "jumprelu"}, "has no threshold, which contradicts"),
    "a threshold": ("jump", {"architecture": "standard"}, "has a threshold, which contradicts"),
    "no hook_name": ("relu", {"hook_name": None}, "has no hook_name"),
    "an unknown one": ("relu", {"hook_name": "blocks.2.ln1.hook_normalized"}, "is no site"),
    "of no layer": ("relu", {"hook_name": "hook_embed"}, "is no tensor of one layer"),
    "another layer": ("relu", {"hook_layer": 3}, "hook_layer 3"),
    "other sizes": ("relu", {"d_sae": 6}, "has no W_dec of the shape [6, 6]"),
    "no sizes": ("relu", {"d_in": "six"}, "says no sizes"),
    "no features": ("relu", {"d_sae": 3}, "has no feature 3; expected 0 to 2"),
}


@pytest.mark.parametrize("name", NOT_ALONE)
def test_autoencoders_that_are_refused(tmp_path, name):
    which, config, said = NOT_ALONE[name]
    folder = dictionary(tmp_path, which, **config)
    with pytest.raises(VectorError) as refused:
        vectors.convert(folder, tmp_path / "o", features=(3,))
    assert str(refused.value).startswith(f"{folder}: ") and said in str(refused.value), refused.value


def test_options_of_autoencoders(tmp_path):
    for source, options, said in [(FILES / "relu", {}, "has 5 features; expected --feature"), (FILES / "calm.gguf", {"features": (1,)}, "--feature is for a folder"),
                                  (FILES / "relu", {"features": (0,), "layer_is": "resid_mid"}, "it is of resid_pre, and --layer-is says resid_mid")]:
        with pytest.raises(VectorError, match=said):
            vectors.convert(source, tmp_path / "o", **options)
    assert "site: resid_pre\n    layers: '2'" in vectors.convert(FILES / "relu", tmp_path / "p", features=(0,), layer_is="resid_pre")
    assert "site: my_own" in vectors.convert(FILES / "relu", tmp_path / "o", features=(0,), layer_is="my_own")


# ------------------------------------------------------------------------- in edits

SPEC = """hookspec: 1
sites:
  - {name: SITE, kernel: k, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 4}, {count: 6}], layer: occ, write: {}, capture: none}
"""
CALM = {"vectors": {"v": {"file": str(FILES / "calm.gguf")}}}


def checked(tmp_path, site, do=({"add": "v"},), vector=None, spec="", env=None, dims=None, **edit):
    """What dmi-run --check says of an edit with a vector of calm.gguf."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", site).replace("sites:", spec + "\nsites:").replace("{count: 6}", dims or "{count: 6}"))
    (tmp_path / "e.json").write_text(json.dumps({"editspec": 1, "vectors": {"v": {"file": str(FILES / "calm.gguf")} | (vector or {})}, "edits": [
        {"name": "e", "site": site, "do": list(do)} | edit]}))
    done = run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--edits", tmp_path / "e.json", "--check"], env=env or environment(), check=False)
    return "" if done.returncode == 0 else done.stderr


ELSEWHERE = "whose layers are those of resid_post, in the edit \"e\" at"
SITES = {
    "its own": ("resid_post", {}, ""),
    "what goes into its sum": ("mlp_out", {}, ""),
    "where it is not alike": ("mlp_out", {"do": [{"project_out": "v"}]}, ELSEWHERE),
    "the next layer's number": ("resid_pre", {}, ELSEWHERE),
    "a name of one's own": ("blk_out", {}, "or the site's own name in \"layer_is\""),
    "a name of one's own, said": ("blk_out", {"vector": {"layer_is": "blk_out"}}, ""),
    "another one said": ("resid_pre", {"vector": {"layer_is": "resid_pre"}}, "it is of resid_post, and \"layer_is\" says resid_pre"),
    "TransformerLens's name": ("resid_post", {"vector": {"layer_is": "hook_resid_post"}}, ""),
    "its model": ("resid_post", {"spec": "convention: {model: llama}"}, ""),
    "another model": ("resid_post", {"spec": "convention: {model: qwen2}"}, "it is of the model llama, and the HookSpec's convention says qwen2"),
    "the layers of an encoder": ("resid_pre", {"do": [{"feature": "v", "encoder": "v", "to": 0}]}, ELSEWHERE),
}


@pytest.mark.parametrize("name", SITES)
def test_whose_layers(tmp_path, name):
    site, options, said = SITES[name]
    found = checked(tmp_path, site, **options)
    assert said in found and bool(said) == bool(found), found


WIDE = "found 6 numbers in the vector \"v\" ("
WIDTHS = {
    "its own": ("{count: 6}", {}, ""), "another": ("{count: 7}", {}, WIDE), "a head's": ("{count: 3}, {count: 6}", {}, ""), "a row's of heads": ("{count: 3}, {count: 2}", {}, ""),
    "neither": ("{count: 6}, {count: 2}", {}, WIDE), "a part of a head": ("{count: 2}, {count: 3}, {count: 2}", {}, ""), "which a launch says": ("{count: 'arg[1].i32'}", {}, ""),
    "that of columns": ("{count: 9}", {"columns": "1,3:8"}, ""), "not that of columns": ("{count: 9}", {"columns": "1,3"}, WIDE),
    "of an encoder": ("{count: 5}", {"do": [{"feature": "v", "encoder": "v", "to": 0}]}, WIDE)}


@pytest.mark.parametrize("name", WIDTHS)
def test_widths_that_the_hookspec_says(tmp_path, name):
    dims, edit, said = WIDTHS[name]
    found = checked(tmp_path, "resid_post", dims=dims, **edit)
    assert said in found and bool(said) == bool(found) and (not said or "calm.gguf) of the edit \"e\"; expected " in found), found


def packed(tmp_path, *words):
    """{layer: numbers} that the library would get of --steer."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", "resid_post"))
    run(["sh", "-c", '"$@" >packed', "sh", DMI_RUN, "--lenient", "--spec", tmp_path / "spec.yaml", "--steer", *words, "--out", tmp_path / "out", "--", "sh", "-c",
         'cat "$DMI_EDITS"'], env=environment(), cwd=tmp_path)
    data = (tmp_path / "packed").read_bytes()
    n_tensors, _, n_numbers = struct.unpack_from("<IIQ", data, 8)
    at = 24 + 24 * n_tensors
    numbers = np.frombuffer(data, np.float32, n_numbers, at)
    return {layer: numbers[first:first + n].tolist() for _, layer, first, n in struct.iter_unpack("<IiQQ", data[24:at])}


def test_steering_by_files_of_others(tmp_path):
    assert packed(tmp_path, FILES / "calm.gguf") == {layer: v.tolist() for layer, v in sorted(LAYERS.items())}


def test_a_file_of_one_layer_is_of_that_layer(tmp_path):
    (tmp_path / "v.gguf").write_bytes(gguf({5: [1, 2, 3, 4, 5, 6]}))
    assert packed(tmp_path, "v.gguf") == {5: [1, 2, 3, 4, 5, 6]}
    vectors.convert(tmp_path / "v.gguf", tmp_path / "v.safetensors")
    assert packed(tmp_path, "v.safetensors") == {5: [1, 2, 3, 4, 5, 6]}


def program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


PYTHONS = {
    "a path": ("{b}/python3.11 x.py", "b/python3.11"), "a name": ("python x.py", "a/python"), "another name": ("python3.12 -u x.py", "a/python3.12"),
    "none": ("sleep 5", "a/python3"), "an engine of another language": ("./engine --python 3", "a/python3"),
    "env": ("env A=b PATH={b}:/bin python3.11 x", "b/python3.11 b"), "env, and a path": ("/usr/bin/env A=b {b}/python3.11 x", "b/python3.11 b"),
    "a script": ("{b}/tool serve", "b/python3.11"), "a script that env starts": ("tool2 serve", "a/python"), "a script of a long path": ("{b}/tool3", "b/python3.11"),
    "env -S": ("{b}/tool4", "a/python"), "a shell's script": ("{b}/tool5", "a/python3"), "a wrapper": ("nice -n 5 {b}/python3.11 x", "b/python3.11"),
    "uv": ("uv run --python 3.12 python x.py", "p/.venv/bin/python"), "uv, in a folder below": ("uv run --directory sub python x.py", "p/.venv/bin/python"),
    "uv, a script": ("env A=b nice uv run tool6 serve", "p/.venv/bin/python b"), "uv, elsewhere": ("uv run --project {b} python x", "a/python"),
    "conda": ("conda run -n other python x", "c/envs/other/bin/python"), "conda, base": ("conda run --name base --no-capture-output python x", "c/bin/python"),
    "conda, a prefix": ("conda run -p {c}/envs/other tool7", "c/envs/other/bin/python"), "conda, else": ("conda create -n other python", "a/python"),
    "no such program": ("{b}/python3.9 x", "a/python3"), "a config program": ("python3-config", "a/python3")}


def test_which_python_reads(check, tmp_path):
    """The one that the command names, or that its script does; else python3 of PATH. Here each only says who it is."""
    a, b = tmp_path / "a", tmp_path / "b"
    for path in (a / "python", a / "python3", a / "python3.12", a / "python3-config", b / "python3.11"):
        program(path, f"#!/bin/sh\necho noise >&2\necho dmi: read by {path.relative_to(tmp_path)} $A >&2\necho more noise >&2\nexit 2\n")
    program(b / "tool", f"#!{b}/python3.11 -sE\n")
    program(a / "tool2", "#!/usr/bin/env python\n")
    program(b / "tool3", f"#!/bin/sh\n'''exec' {b}/python3.11 \"$0\" \"$@\"\n' '''\n")
    program(b / "tool4", "#!/usr/bin/env -S A=b python -u\n")
    program(b / "tool5", "#!/bin/bash\npython\n")
    p, c = tmp_path / "p", tmp_path / "c"
    (p / "sub").mkdir(parents=True)
    for path in (p / ".venv" / "bin", c / "bin", c / "envs" / "other" / "bin"):
        path.mkdir(parents=True)
        program(path / "python", f"#!/bin/sh\necho dmi: read by {path.relative_to(tmp_path)}/python $A >&2\nexit 2\n")
    program(p / ".venv" / "bin" / "tool6", f"#!{p}/.venv/bin/python\n")
    program(c / "envs" / "other" / "bin" / "tool7", f"#!{c}/envs/other/bin/python\n")
    for wrapper in ("uv", "conda"):
        program(a / wrapper, "#!/bin/false\n")
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", "resid_post"))
    for name, (words, who) in PYTHONS.items():
        done = run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--steer", FILES / "calm.gguf", "--strict", "--out", tmp_path / "out", "--", *words.format(b=b, c=c).split()],
                   env=environment() | {"PATH": f"{a}:/usr/bin:/bin", "CONDA_EXE": c / "bin" / "conda"}, cwd=p, check=False)
        check(done.returncode == 2 and re.findall("calm.gguf: (.*)", done.stderr) == [f"read by {who}"], name, done.stderr)


def test_python_without_torch(tmp_path):
    """One sentence names the Python, and the way out."""
    (tmp_path / "v.pt").write_bytes(b"PK")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = run([sys.executable, "-m", "dmi", "vectors", tmp_path / "v.pt", "-o", tmp_path / "o"], check=False,
               env=environment(PYTHONPATH=f"{ROOT / 'python'}:{tmp_path}"))
    assert done.returncode == 2 and done.stderr == (
        f"dmi: {tmp_path}/v.pt: {sys.executable}, which is to read it, has no torch: name the Python that has it, or save the vectors as safetensors "
        "(safetensors.torch.save_file), which need no torch here\n"), done.stderr


KEYS = ["layer", "hookPoint", "sae.rescale", "apply_to", "mode", "signs", "bias_of_mean", "my_coefficients",
        "model", "signature", "alphabet", "n_layers", "num_heads", "against", "website", "meaning", "trait"]


def test_words_that_bear_on_numbers():
    """Both readers of metadata have the same ones."""
    said = (ROOT / "tools/common/vectors_said.c").read_text()
    for name in ("factors", "summands", "others", "neutral", "counts"):
        assert tuple(re.findall(r'"([\w.]*)"', said[said.index(f"{name}[] ="):].partition("};")[0])) == getattr(tensors, name.upper()), name
    for key, found in {"model_id": [], "layerIndex": ["layer", "index"], "HTTPHeaders": ["httpheaders"], "a_Scale2x": ["a", "scale", "x"], "ABcD": ["abc", "d"]}.items():
        assert tensors._words(key) == (found or ["model", "id"]), key
    assert [key for key in KEYS if tensors.bears(key, "3")] == KEYS[:8], [key for key in KEYS if tensors.bears(key, "3")]


def test_without_python(tmp_path):
    (tmp_path / "bin").mkdir()
    found = checked(tmp_path, "resid_post", env=environment() | {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path)})
    assert "calm.gguf: python3 reads such files, and none is in PATH" in found, found
    assert not list(tmp_path.glob("dmi-vectors-*"))


def test_a_module_beside_the_vector_is_not_imported(tmp_path):
    """What lies in the current folder, by names that Python imports."""
    for name in ("struct.py", "json.py", "dmi.py"):
        (tmp_path / name).write_text("open('imported', 'w')\n")
    shutil.copy(FILES / "calm.gguf", tmp_path)
    assert packed(tmp_path, "calm.gguf")[1] == LAYERS[1].tolist()
    assert not (tmp_path / "imported").exists()


# ------------------------------------------------------------------------- files of others, at random


def taken(tmp_path, file):
    """({layer, -1 for each: numbers} that the library would get of it at resid_post, None: it is refused; what is said)"""
    (tmp_path / file.name).write_bytes(file.data)
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", "resid_post").replace("{count: 6}", "{count: 'arg[1].i32'}"))
    (tmp_path / "e.json").write_text(json.dumps({"editspec": 1, "vectors": {"v": {"file": file.name} | file.vector}, "edits": [
        {"name": "e", "site": "resid_post", "do": [{"add": "v"}]}]}))
    done = subprocess.run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--edits", tmp_path / "e.json", "--out", tmp_path / "out", "--", "sh", "-c", 'cat "$DMI_EDITS"'],
                          env=environment(DMI_LOG="none"), cwd=tmp_path, capture_output=True, timeout=60, check=False)
    said = done.stderr.decode()
    if done.returncode == 2 and not done.stdout:
        return None, said
    n_tensors, _, n_numbers = struct.unpack_from("<IIQ", done.stdout, 8)
    at = 24 + 24 * n_tensors
    found = np.frombuffer(done.stdout, np.float32, n_numbers, at)
    return {layer: found[first:first + n] for _, layer, first, n in struct.iter_unpack("<IiQQ", done.stdout[24:at])}, said


def alike(found, wanted):
    """In bits."""
    return found is wanted is None or (found is not None and wanted is not None and found.keys() == wanted.keys() and
                                       all(found[layer].tobytes() == np.asarray(x, np.float32).tobytes() for layer, x in wanted.items()))


def test_files_of_others_at_random(check, seeds, tmp_path):
    """None is taken for what it is not, and each that says what it is gives its numbers; a refusal is a line that names the file."""
    clear = refused = 0
    for seed in range(seeds(36, 160)):
        file = foreign_files.one(seed)
        found, said = taken(tmp_path, file)
        check(alike(found, file.is_), f"seed {seed}: {file.name} {file.vector} {file.why or 'is clear'}", (found, file.is_, said))
        check(found is not None or (f"{tmp_path}/{file.name}: " in said or 'the vector "v"' in said) and len(said) < 2000, f"seed {seed}: what is said", said)
        clear, refused = clear + (file.is_ is not None), refused + (file.is_ is None)
    check(min(clear, refused) > (clear + refused) / 5, "some are clear, some are not", (clear, refused))


def test_autoencoders_at_random(check, seeds, tmp_path):
    """A feature is what the autoencoder computes of the rows that it was trained on, or it is refused by name."""
    yaml = pytest.importorskip("yaml")
    good = 0
    for seed in range(seeds(30, 120)):
        some = random.Random(f"autoencoder {seed}")
        config, weights, place, feature, is_, decoder = foreign_files.of_sae(some)
        folder, out = tmp_path / f"sae-{seed}", tmp_path / f"{seed}.safetensors"
        folder.mkdir()
        (folder / "cfg.json").write_text(config)
        (folder / "sae_weights.safetensors").write_bytes(weights)
        try:
            said = yaml.safe_load(vectors.convert(folder, out, features=(feature,)))
        except VectorError as error:
            check(place is None and str(error).startswith(f"{folder}: "), f"seed {seed}: refused", (str(error), config))
            continue
        (edit,), found, good = said["edits"], stored(out)[0], good + 1
        (one,), rows = edit["do"], np.array([[some.gauss(0, 2) for _ in range(foreign_files.D)] for _ in range(20)])
        check(place == (edit["site"], int(edit["layers"])), f"seed {seed}: its place", (place, edit, config))
        before = rows @ found[f"feature-{feature}.encoder.{edit['layers']}"].astype(float) + one["bias"]
        f, wanted = np.where(before > max(one["threshold"], 0), before, 0), is_(rows)
        check(np.abs(f - wanted).max() <= 1e-4 * (1 + np.abs(wanted).max()) and (found[f"feature-{feature}.decoder.{edit['layers']}"] == decoder).all(),
              f"seed {seed}: its values", (f - wanted, config))
    check(good > seeds(30, 120) / 4, "some are taken", good)
