# SPDX-License-Identifier: Apache-2.0
"""Vectors and features from the files of others: what their writers mean, what is refused and why, and what a small file may ask for."""
import json
import os
import pathlib
import pickle
import random
import resource
import shutil
import struct
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from harness import DMI_RUN, ROOT, environment, run
from vector_files import LIST, TEXT, U32, gguf, tensor, torch_file, value

from dmi import vectors
from dmi.vectors import VectorError

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
    "half.gguf": ({"shift": 1}, {f"layers.{layer + 1}": v.astype(np.float16).astype(np.float32) for layer, v in LAYERS.items()}, "resid_post"),
    "unnamed.gguf": ({"layer_is": "resid_pre", "shift": -1}, {f"layers.{layer - 1}": v for layer, v in LAYERS.items()}, "resid_pre"),
    "one.pt": ({}, {"vector": LAYERS[1]}, None),
    "rows.pt": (POST, {f"layers.{layer - 1}": v for layer, v in LAYERS.items()}, "resid_post"),
    "columns.pt": (POST, {f"layers.{layer - 1}": v for layer, v in LAYERS.items()}, "resid_post"),
    "views.pt": (POST, {f"layers.{layer}": bf16(v) for layer, v in LAYERS.items()}, "resid_post"),
    "named.pt": (POST, {f"layers.{layer}": v for layer, v in LAYERS.items()}, "resid_post"),
    "adjust.pt": ({"layer_is": "blk_out"}, {"vector": LAYERS[2]}, "blk_out"),
}


@pytest.mark.parametrize("name", GOOD)
def test_numbers_by_layer(tmp_path, name):
    options, wanted, site = GOOD[name]
    said = vectors.convert(FILES / name, tmp_path / "v.safetensors", **options)
    found, about = stored(tmp_path / "v.safetensors")
    assert found.keys() == wanted.keys() and all((found[key] == wanted[key]).all() for key in wanted)
    assert about.get("dmi.layer_is") == site and about["dmi.source"] == name
    assert about.get("dmi.model") == ("llama" if name.endswith(".gguf") else None)
    assert ("{adjust_rs: v, to: 12.5}" in said and "left out: 'note' of it" in said) == (name == "adjust.pt"), said


def pairs():
    """{layer: {"dir", "avg_proj"}} of two layers, which have storages of their own."""
    def one(layer, key):
        return tensor((2,), (1,), 2, key=key)[2:-1].join([b"X\x03\x00\x00\x00dir", b"X\x08\x00\x00\x00avg_projG" + struct.pack(">d", layer + 0.5)])
    entry = b"".join(b"K" + bytes([layer]) + b"}(" + one(layer, str(layer)) + b"us" for layer in (4, 7))
    return torch_file(b"\x80\x02}" + entry + b".", {"4": np.ones(2, "<f4").tobytes(), "7": np.zeros(2, "<f4").tobytes()})


def test_a_direction_and_its_mean_for_each_layer(tmp_path):
    (tmp_path / "v.pt").write_bytes(pairs())
    said = vectors.convert(tmp_path / "v.pt", tmp_path / "o.safetensors", layer_is="resid_pre", shift=0)
    assert "{layers: '4', do: [{adjust_rs: o, to: 4.5}]}" in said and "{layers: '7', do: [{adjust_rs: o, to: 7.5}]}" in said, said


# ------------------------------------------------------------------------- what is refused

TWO = {1: [1, 2], 2: [3, 4]}
ONE = np.ones(4, "<f4").tobytes()
NAN = np.array([1, np.nan], "<f4").tobytes()
DEEP = value(LIST, struct.pack("<IQ", LIST, 1) * 10 + struct.pack("<IQI", U32, 1, 5))


def calls(module, name, *given):
    return f"\x80\x02c{module}\n{name}\n(".encode("latin1") + b"".join(pickle.dumps(x, 2)[2:-1] for x in given) + b"tR."


BAD = {
    "a.gguf, empty": (b"", {}, "it is empty"),
    "b.gguf, another file": (b"PK\3\4" * 10, {}, "it is no GGUF file"),
    "c.gguf, its first bytes": (gguf(TWO)[:20], {}, "it ends too early"),
    "d.gguf, cut in the data": (gguf(TWO)[:-40], {}, "lies outside of the file"),
    "e.gguf, version 1": (gguf(TWO, version=1), {}, "GGUF of version 1"),
    "f.gguf, big-endian": (gguf(TWO, version=3 << 24), {}, "little-endian"),
    "g.gguf, 2^60 tensors": (gguf(TWO, counts=(1 << 60, 1)), {}, "control vectors have at most"),
    "h.gguf, 2^60 values": (gguf(TWO, counts=(2, 1 << 60)), {}, "control vectors have at most"),
    "i.gguf, a text of 2^63 bytes": (gguf(TWO, values=[("k", value(TEXT, struct.pack("<Q", 1 << 63)))]), {}, "it ends too early"),
    "j.gguf, a list of 2^62": (gguf(TWO, values=[("k", value(LIST, struct.pack("<IQ", U32, 1 << 62)))]), {}, "it ends too early"),
    "k.gguf, 2^62 texts": (gguf(TWO, values=[("k", value(LIST, struct.pack("<IQ", TEXT, 1 << 62)))]), {}, "it ends too early"),
    "l.gguf, lists of lists": (gguf(TWO, values=[("k", DEEP)]), {}, "which GGUF does not have"),
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
    "a.pt, no zip": (b"\x80\x02" + b"x" * 60, {}, "it is no zip file"),
    "b.pt, cut": (torch_file(tensor((4,), (1,), 4), {"0": ONE})[:-30], {}, "a damaged zip file"),
    "c.pt, another zip": (torch_file(b"", byteorder=b"little").replace(b"data.pkl", b"data.abc"), {}, "torch.save() did not write"),
    "d.pt, code": (torch_file(calls("os", "system", "touch /tmp/executed")), {}, "it wants os.system; only tensors"),
    "e.pt, eval": (torch_file(calls("builtins", "eval", "1")), {}, "it wants builtins.eval"),
    "f.pt, a load of torch": (torch_file(calls("torch.storage", "_load_from_bytes", b"")), {}, "it wants torch.storage._load_from_bytes"),
    "g.pt, an attribute": (torch_file(pickle.dumps(pathlib.PurePosixPath("x"), 4)), {}, "it wants pathlib.PurePosixPath"),
    "h.pt, numbers alone": (torch_file(pickle.dumps(5, 2)), {}, "it is neither a tensor nor a dict"),
    "i.pt, an operation": (torch_file(b"\x80\x02\x82\x01."), {}, "the operation EXT1"),
    "j.pt, cut in its pickle": (torch_file(tensor((4,), (1,), 4)[:-9], {"0": ONE}), {}, "its pickle is damaged"),
    "k.pt, an empty stack": (torch_file(b"\x80\x02tR."), {}, "its pickle is damaged"),
    "l.pt, integers": (torch_file(tensor((4,), (1,), 4, kind="LongStorage"), {"0": ONE * 2}), {}, "it has a tensor of torch.LongStorage"),
    "m.pt, beyond its storage": (torch_file(tensor((4,), (2,), 4), {"0": ONE}), {}, "larger than its storage"),
    "n.pt, first beyond": (torch_file(tensor((4,), (1,), 4, first=1), {"0": ONE}), {}, "larger than its storage"),
    "o.pt, 10^9 of one number": (torch_file(tensor((10**9,), (0,), 4), {"0": ONE}), {}, "larger than its storage"),
    "p.pt, one number again": (torch_file(tensor((4,), (0,), 4), {"0": ONE}), {}, "it repeats one number"),
    "q.pt, a storage that lies": (torch_file(tensor((4,), (1,), 1 << 40), {"0": ONE}), {}, "its data/0 is cut"),
    "r.pt, no storage": (torch_file(tensor((4,), (1,), 4)), {}, "it has no data/0"),
    "s.pt, NaN": (torch_file(tensor((2,), (1,), 2), {"0": NAN}), {}, "the numbers of it are not all finite"),
    "t.pt, three dimensions": (torch_file(tensor((1, 1, 4), (4, 4, 1), 4), {"0": ONE}), {}, "it has the shape [1, 1, 4]"),
    "u.pt, compressed": (torch_file(tensor((4,), (1,), 4), {"0": ONE}, zipfile.ZIP_DEFLATED), {}, "or is compressed"),
    "v.pt, big-endian": (torch_file(tensor((4,), (1,), 4), {"0": ONE}, byteorder=b"big"), {}, "are big-endian"),
    "w.pt, no layer": (torch_file(pickle.dumps({"a": 1}, 2)), {}, "its entry 'a' has no number of a layer"),
    "x.pt, of nothing": (torch_file(pickle.dumps({}, 2)), {}, "it holds no vector"),
    "y.pt, a list in itself": (torch_file(b"\x80\x02]q\0h\0a."), {}, "is neither a tensor nor a dict"),
    "z.pt, rows of which layers": (torch_file(tensor((2, 2), (2, 1), 4), {"0": ONE}), {}, "does not say which layers"),
    "0.pt, a large pickle": (torch_file(bytes(2 << 20)), {}, "expected at most 1048576"),
    "numpy.pt": ((FILES / "numpy.pt").read_bytes(), {}, "it wants numpy._core.multiarray._reconstruct"),
    "v.onnx": (b"x", {}, "expected a file that ends with .gguf"),
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
        name = some.choice(("calm.gguf", "half.gguf", "rows.pt", "named.pt", "adjust.pt"))
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


@pytest.mark.parametrize("name", ["i.gguf, a text of 2^63 bytes", "j.gguf, a list of 2^62", "t.gguf, on one another", "q.pt, a storage that lies",
                                  "o.pt, 10^9 of one number"])
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
        vectors.convert(tmp_path / "missing.pt", tmp_path / "o")
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


@pytest.mark.parametrize("name, site, layer", [("relu", "resid_pre", 2), ("jump", "mlp_out", 1)])
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


def said_of_features(tmp_path, spec="", site="resid_pre", width=6):
    """(accepted, what is said) by dmi-run --check of two features of an autoencoder of "gpt2-small"."""
    (tmp_path / "f.safetensors").unlink(missing_ok=True)
    (tmp_path / "f.yaml").write_text(vectors.convert(dictionary(tmp_path, "relu", model_name="gpt2-small"), tmp_path / "f.safetensors", features=(0, 3)))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("SITE", site).replace("{count: 6}", f"{{count: {width}}}").replace("sites:", f"{spec}\nsites:"))
    done = run([DMI_RUN, "--spec", tmp_path / "spec.yaml", "--edits", tmp_path / "f.yaml", "--check"], env=environment(), check=False)
    return done.returncode == 0, done.stderr


def test_the_name_of_a_checkpoint_contradicts_no_type_of_model(tmp_path):
    """It is said once a file. What can be compared still is: widths and sites."""
    accepted, said = said_of_features(tmp_path, "convention: {model: gpt2}")
    assert accepted and said.count("it is of the model gpt2-small. The HookSpec's convention says the model_type gpt2, with") == said.count("\n") == 1, said
    assert said_of_features(tmp_path) == (True, "") and said_of_features(tmp_path, "convention: {model: gpt2-small}") == (True, "")
    for options, why in [({"width": 7}, WIDE.partition('"')[0]), ({"site": "resid_post"}, 'found "resid_pre"; expected a site')]:
        accepted, said = said_of_features(tmp_path, "convention: {model: gpt2}", **options)
        assert not accepted and why in said, said


NOT_ALONE = {
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
                                  (FILES / "relu", {"features": (0,), "layer_is": "resid_post"}, "it is of resid_pre, and --layer-is says resid_post")]:
        with pytest.raises(VectorError, match=said):
            vectors.convert(source, tmp_path / "o", **options)
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
    "another one said": ("resid_pre", {"vector": {"layer_is": "resid_pre"}}, "its layers are those of resid_post, and \"layer_is\" says resid_pre"),
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
    run(["sh", "-c", '"$@" >packed', "sh", DMI_RUN, "--spec", tmp_path / "spec.yaml", "--steer", *words, "--out", tmp_path / "out", "--", "sh", "-c",
         'cat "$DMI_EDITS"'], env=environment(), cwd=tmp_path)
    data = (tmp_path / "packed").read_bytes()
    n_tensors, _, n_numbers = struct.unpack_from("<IIQ", data, 8)
    at = 24 + 24 * n_tensors
    numbers = np.frombuffer(data, np.float32, n_numbers, at)
    return {layer: numbers[first:first + n].tolist() for _, layer, first, n in struct.iter_unpack("<IiQQ", data[24:at])}


def test_steering_by_files_of_others(tmp_path):
    assert packed(tmp_path, FILES / "calm.gguf") == {layer: v.tolist() for layer, v in sorted(LAYERS.items())}
    assert packed(tmp_path, FILES / "one.pt") == {-1: LAYERS[1].tolist()}


def test_a_file_of_one_layer_is_of_that_layer(tmp_path):
    (tmp_path / "v.gguf").write_bytes(gguf({5: [1, 2, 3, 4, 5, 6]}))
    assert packed(tmp_path, "v.gguf") == {5: [1, 2, 3, 4, 5, 6]}
    vectors.convert(tmp_path / "v.gguf", tmp_path / "v.safetensors")
    assert packed(tmp_path, "v.safetensors") == {5: [1, 2, 3, 4, 5, 6]}


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
