# SPDX-License-Identifier: Apache-2.0
"""dmi.weights and dmi.vocabulary: files of weights as they are, as engines hold them, and files that lie."""
import json
import random
import struct
import sys

import pytest

from harness import ROOT

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")
from safetensors.numpy import save_file  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
from dmi import analysis  # noqa: E402
from dmi.vocabulary import Vocabulary  # noqa: E402
from dmi.weights import Model, Weights, WeightsError  # noqa: E402

CONFIG = {"rms_norm_eps": 1e-5, "num_hidden_layers": 1, "num_attention_heads": 2}
RANDOM = np.random.default_rng(1)


def array(*shape):
    return RANDOM.standard_normal(shape).astype("f4")


@pytest.fixture(name="tensors")
def fixture_tensors():
    return {"model.embed_tokens.weight": array(10, 32), "model.norm.weight": array(32), "model.layers.0.self_attn.o_proj.weight": array(32, 32)}


@pytest.fixture(name="folder")
def fixture_folder(tmp_path, tensors):
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def write_gguf(path, tensors, kind=None, **more):
    """As the package gguf writes it; @kind: a quantised type of its matrices."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in more.items():
        getattr(writer, f"add_{key}")(value)
    for name, x in tensors.items():
        if kind is not None and x.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_safetensors_by_folder_by_file_and_by_index(check, folder, tensors):
    for path in (folder, folder / "model.safetensors"):
        weights = Weights(path)
        check(all((weights.rows(name) == x).all() for name, x in tensors.items()), f"{path.name}: values")
        check((weights.rows("model.embed_tokens.weight", 3, 5) == tensors["model.embed_tokens.weight"][3:5]).all(), "some rows")
    (folder / "model.safetensors").unlink()
    names = {name: f"part-{i}.safetensors" for i, name in enumerate(tensors)}
    for name, file in names.items():
        save_file({name: tensors[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    weights = Weights(folder)
    check(all((weights.rows(name) == x).all() for name, x in tensors.items()), "several files")


def raw_safetensors(path, x, dtype, data):
    header = json.dumps({"x": {"dtype": dtype, "shape": list(x.shape), "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_types_and_how_engines_hold_them(check, folder):
    """bf16 is rounded to nearest, ties to even: as PyTorch and ml_dtypes do."""
    x = np.array([1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8, 1 + 2.0 ** -9, -3.14159, 65504.0, 1e-40, 0.0], "f4")
    raw_safetensors(folder / "model.safetensors", x, "F32", x.tobytes())
    weights = Weights(folder)
    check(weights.held_as("bf16").rows("x").tolist()[:3] == [1.0, 1 + 2.0 ** -6, 1.0], "bf16", weights.held_as("bf16").rows("x"))
    check((weights.held_as("f16").rows("x") == x.astype("f2").astype("f4")).all() and (weights.rows("x") == x).all(), "f16; and as they are")
    half = (x.view("u4") >> 16).astype("u2")
    raw_safetensors(folder / "model.safetensors", x, "BF16", half.tobytes())
    check((Weights(folder).rows("x").view("u4") >> 16 == half).all(), "bf16 in the file")
    raw_safetensors(folder / "model.safetensors", x, "I8", b"\0" * len(x))
    with pytest.raises(WeightsError, match="'x' is I8"):
        Weights(folder).rows("x")


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16", "BF16", None])
def test_gguf(check, tmp_path, tensors, kind):
    kind = kind and gguf.GGMLQuantizationType[kind]
    names = {"token_embd.weight": tensors["model.embed_tokens.weight"], "output_norm.weight": tensors["model.norm.weight"],
             "blk.0.attn_output.weight": tensors["model.layers.0.self_attn.o_proj.weight"]}
    weights = Weights(write_gguf(tmp_path / "x.gguf", names, kind))
    for name, x in names.items():
        wanted = gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind) if kind is not None and x.ndim == 2 else x
        check((weights.rows(name) == wanted).all(), f"{name}: values")
        check((weights.rows(name, 2, 7) == wanted[2:7]).all(), f"{name}: some rows")
    model = Model(weights)
    check((model.n_layers, model.n_heads, model.width, model.vocabulary_size) == (1, 2, 32, 10) and abs(model.norm.eps - 1e-5) < 1e-9 and not model.norm.centred, "the model")
    check(model.may_be_rounded == (kind not in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16)), "whether it may be rounded")


def test_types_of_models(check, folder, tensors):
    """Norms that multiply by 1 + w, by the type that the config names; other words for sizes; where attention's output lies in GPT-Neo."""
    for name, more in (("llama", 0), ("nemotron", 1), ("gemma3_text", 1), ("gemma3n_text", 0), ("qwen3_next", 1)):
        (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": name}))
        check(np.array_equal(Model(Weights(folder)).norm.weight, tensors["model.norm.weight"] + more), name)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_neo", "layer_norm_epsilon": 1e-5, "num_layers": 1, "num_heads": 2}))
    save_file({"wte.weight": tensors["model.embed_tokens.weight"], "ln_f.weight": array(32), "h.0.attn.attention.out_proj.weight": array(32, 32)}, folder / "model.safetensors")
    model = Model(Weights(folder))
    check((model.n_layers, model.n_heads, model.output(0)[0].shape) == (1, 2, (32, 32)), "GPT-Neo's words", model.n_layers)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_neo", "layer_norm_epsilon": 1e-5}))
    with pytest.raises(WeightsError, match="nothing says how many layers the model has"):
        Model(Weights(folder))


def said(folder, **config):
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return Model(Weights(folder))


def test_what_a_config_says_of_the_logits_is_done(check, folder, tensors):
    x, head = array(3, 32), tensors["model.embed_tokens.weight"]
    plain = x @ head.T
    for config, wanted in (({"model_type": "granite", "logits_scaling": 8.0}, plain / 8), ({"model_type": "hyperclovax", "logits_scaling": 8.0}, plain * 8),
                           ({"model_type": "cohere2", "logit_scale": 0.25}, plain / 4), ({"model_type": "minicpm", "dim_model_base": 8, "scale_depth": 1.4}, plain / 4),
                           ({"model_type": "gemma2", "final_logit_softcapping": 3.0}, 3 * np.tanh(plain / 3)), ({"model_type": "recurrent_gemma", "logits_soft_cap": 3.0}, 3 * np.tanh(plain / 3)),
                           ({"model_type": "olmo", "logit_scale": None, "residual_multiplier": 1.0}, plain)):
        check(np.allclose(said(folder, **config).logits(x), wanted, rtol=1e-5, atol=1e-5), f"{config}")
    check(said(folder, model_type="granite", residual_multiplier=0.22).residual == 0.22, "Granite's residual stream")
    check(abs(said(folder, model_type="minicpm", scale_depth=1.4, num_hidden_layers=4).residual - 0.7) < 1e-12, "MiniCPM's")
    save_file(tensors | {"lm_head.weight": array(10, 32)}, folder / "model.safetensors")
    check(np.array_equal(said(folder, tie_word_embeddings=True).head, head) and not np.array_equal(said(folder).head, head), "weights that are tied are the embedding's")


@pytest.mark.parametrize("config, wrong", [
    ({"lm_head_multiplier": 0.04}, "it says lm_head_multiplier: 0.04, which is not read here"), ({"output_multiplier_scale": 0.5}, "output_multiplier_scale"),
    ({"logits_mup_width_multiplier": 8}, "logits_mup_width_multiplier"), ({"mlp_multipliers": [0.5, 0.2]}, "mlp_multipliers"), ({"mlp_alpha_factor": 3.5}, "mlp_alpha_factor"),
    ({"hc_mult": 4}, "hc_mult"), ({"use_layer_scale": True}, "use_layer_scale"), ({"my_logit_softcap": 20}, "my_logit_softcap"),
    ({"model_type": "new", "logit_scale": 0.5}, "multiply logits by 0.5"), ({"tie_word_embeddings": False}, "it is not the embedding"),
    ({"norm_type": "layer_norm"}, "'layer_norm', and rms_norm_eps"), ({"norm_type": "dyt"}, "the norm 'dyt'"),
    ({"rms_norm_eps": None, "norm_eps": 1e-5, "model_type": "new"}, "RMSNorm or a LayerNorm")], ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_what_a_config_says_and_is_not_done_is_refused(folder, config, wrong):
    with pytest.raises(WeightsError, match=wrong) as told:
        said(folder, **config)
    assert str(folder) in str(told.value)


def test_what_a_config_says_of_other_things(check, folder, tensors):
    """Norms by the words of their epsilon, and keys that say nothing of the logits: those that are not known are listed."""
    for config, centred in (({}, False), ({"rms_norm_eps": None, "norm_eps": 1e-5, "model_type": "lfm2"}, False), ({"rms_norm_eps": None, "layer_norm_epsilon": 1e-5, "model_type": "exaone"}, False),
                            ({"rms_norm_eps": None, "layer_norm_eps": 1e-5, "model_type": "cohere"}, True), ({"rms_norm_eps": None, "norm_eps": 1e-5, "norm_type": "rms_norm"}, False)):
        check(said(folder, **config).norm.centred == centred, f"{config}")
    usual = {"architectures": ["X"], "attention_multiplier": 0.5, "embedding_multiplier": 12, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "rope_theta": 1e4, "mlp_bias": False,
             "router_aux_loss_coef": 0.1, "output_router_logits": True, "quantization_config": {}, "vocab_size": 10, "bos_token_id": 1, "initializer_range": 0.02, "max_position_embeddings": 9}
    check(said(folder, **usual).unused == [] and said(folder, **usual, my_own=3, other={"a": 1}).unused == ["my_own", "other"], "what is listed")
    save_file(tensors | {"model.layers.0.self_attn.o_proj.weight_scale": array(32, 1)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="is quantised: its scales"):
        said(folder).output(0)


def test_what_a_header_says(check, tmp_path, tensors):
    names = {"token_embd.weight": tensors["model.embed_tokens.weight"], "output_norm.weight": tensors["model.norm.weight"]}

    class Writer(gguf.GGUFWriter):
        def __init__(self, path, arch):
            super().__init__(path, arch)
            for key, value in more.items():
                self.add_float32(f"{arch}.{key}", value)
    for more, wrong in (({"residual_scale": 0.5, "attention.scale": 0.1, "rope.freq_base": 1e4}, None), ({"logit_scale": 0.5}, "multiply logits by 0.5"),
                        ({"router_logit_softcapping": 30.0}, None), ({"my_logit_scale": 3.0}, "my_logit_scale: 3"), ({"my.own": 3.0}, None)):
        plain, gguf.GGUFWriter = gguf.GGUFWriter, Writer
        try:
            path = write_gguf(tmp_path / "m.gguf", names)
        finally:
            gguf.GGUFWriter = plain
        try:
            model = Model(Weights(path))
            check(wrong is None and model.unused == (["my_own"] if "my.own" in more else []), f"{more}", model.unused)
        except WeightsError as error:
            check(wrong is not None and wrong in str(error), f"{more}", error)


def test_a_head_is_decoded_once(tmp_path, tensors, monkeypatch):
    """By all models of the same weights; some rows of it are not the whole."""
    weights, n_rows = Weights(write_gguf(tmp_path / "m.gguf", {"token_embd.weight": array(64, 32), "output_norm.weight": array(32)}, gguf.GGMLQuantizationType.Q8_0)), []
    plain = gguf.quants.dequantize
    monkeypatch.setattr(gguf.quants, "dequantize", lambda data, kind: n_rows.append(len(data)) or plain(data, kind))
    x = array(3, 32)
    first = Model(weights).logits(x)
    assert np.array_equal(Model(weights).logits(x), first) and np.allclose(Model(weights).logits(x, 8), first[:, :8]) and n_rows == [64, 8]


def test_what_a_model_lacks(check, folder, tensors):
    for without, wrong in (("model.embed_tokens.weight", "known as the embedding"), ("model.norm.weight", "known as the last norm")):
        save_file({name: x for name, x in tensors.items() if name != without}, folder / "model.safetensors")
        with pytest.raises(WeightsError, match=wrong):
            Model(Weights(folder))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="output matrix of attention of layer 1"):
        Model(Weights(folder)).output(1)
    for config, wrong in (({}, "epsilon of the norms"), (CONFIG | {"num_hidden_layers": "many"}, "a number was expected")):
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(WeightsError, match=wrong):
            Model(Weights(folder))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, shape in (("model.embed_tokens.weight", (10,)), ("model.norm.weight", (31,)), ("model.layers.0.self_attn.o_proj.weight", (31, 32))):
        save_file(tensors | {name: array(*shape)}, folder / "model.safetensors")
        with pytest.raises(WeightsError, match=f"{name} has the shape"):
            Model(Weights(folder)).output(0)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match="config.json is not there"):
        Weights(folder)


def header(entry):
    text = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 16


@pytest.mark.parametrize("data, wrong", [
    (b"", "is empty"), (b"\1\2", "no safetensors file"), (b"\xff" * 8, "its header would have"), (header(b"{"), "no JSON"), (header(b"[1]"), "a JSON object was expected"),
    (header(b"[" * 100000), "no JSON"),
    (header({"x": 1}), "lacks its dtype"), (header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 99]}}), "lies outside"),
    (header({"x": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}), "lies outside"),
    (header({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}}), "lies outside"),
    (header({"x": {"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 16]}}), "lies outside"),
    (b"GGUF\3\0\0\0", "ends in the middle"), (b"GGUF\x09\0\0\0" + b"\0" * 16, "version 9"),
    (b"GGUF\3\0\0\0" + struct.pack("<QQ", 0, 1 << 60), "ends in the middle"), (b"GGUF\3\0\0\0" + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 62), "ends in the middle"),
    (b"GGUF\3\0\0\0" + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, 1 << 61), "ends in the middle"),
    (b"GGUF\3\0\0\0" + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<I", 77), "unknown type 77"),
    (b"GGUF\3\0\0\0" + struct.pack("<QQQ", 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 1 << 50, 0, 0), "lies outside"),
], ids=range(18))
def test_files_that_lie(folder, data, wrong):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=wrong) as told:
        Weights(folder)
    assert "model.safetensors" in str(told.value) and len(str(told.value)) < 500


def test_an_index_names_files_of_its_folder_alone(folder):
    for named in ({"x": "../model.safetensors"}, {"x": 3}, [1]):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
        with pytest.raises(WeightsError, match="no weight_map of files in this folder"):
            Weights(folder)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_bytes_that_are_changed(folder, tensors, kind, seeds):
    """A file with bytes changed in its header is read, or refused by a WeightsError; nothing else is raised."""
    if kind == "gguf":
        write_gguf(folder / "model.safetensors", {"token_embd.weight": array(4, 32)}, token_list=["a", "b"], tokenizer_model="gpt2")
    good, drawn = (folder / "model.safetensors").read_bytes(), random.Random(3)
    for _ in range(seeds(300, 5000)):
        data = bytearray(good)
        for _ in range(drawn.randint(1, 4)):
            data[drawn.randrange(min(len(data), 400))] = drawn.choice([0, 1, 127, 128, 255, drawn.randrange(256)])
        data = data[:drawn.choice([len(data), drawn.randrange(len(data))])]
        (folder / "model.safetensors").write_bytes(data)
        try:
            weights = Weights(folder)
            for name in weights.shapes:
                weights.rows(name)
        except WeightsError:
            pass


# ------------------------------------------------------------------------- vocabulary


def of_json(folder, **said):
    (folder / "tokenizer.json").write_text(json.dumps(said))
    return Vocabulary(folder / "tokenizer.json")


def of_gguf(folder, model, pieces, types):
    return Vocabulary(write_gguf(folder / "v.gguf", {}, token_list=pieces, token_types=types, tokenizer_model=model))


def test_byte_level(check, tmp_path):
    vocabulary = of_json(tmp_path, model={"vocab": {"The": 0, "\u0120Mary": 1, "\u00e2\u0138": 2, "\u010a": 3}}, decoder={"type": "ByteLevel"},
                         added_tokens=[{"id": 5, "content": "<|end|>"}, {"id": 6, "content": "\u202e"}])
    shown = [vocabulary.shown(i) for i in range(9)]
    check(shown == ["'The'", "' Mary'", "b'\\xe2\\x96'", "'\\n'", "4", "'<|end|>'", "'\\u202e'", "7", "8"], "texts, parts of letters, and ids", shown)
    check(vocabulary.id_of(" Mary") == 1 and vocabulary.id_of("<|end|>") == 5, "a word's token")
    with pytest.raises(KeyError, match="'The end' is not one token of the vocabulary; it begins with 'The'"):
        vocabulary.id_of("The end")


def test_sentencepiece(check, tmp_path):
    vocabulary = of_gguf(tmp_path, "llama", ["<s>", "\u2581Mary", "<0xE2>", "<0x41>", "a\u2581b"], [3, 1, 6, 6, 1])
    check([vocabulary.shown(i) for i in range(5)] == ["'<s>'", "' Mary'", "<0xE2>", "<0x41>", "'a b'"], "texts", [vocabulary.shown(i) for i in range(5)])
    check(vocabulary.id_of("A") == vocabulary.id_of("<0x41>") == 3 and vocabulary.bytes(2) == b"\xe2", "a byte that no other token has")
    with pytest.raises(ValueError, match="its tokenizer.ggml.model, rwkv, is none of gpt2, llama and t5"):
        of_gguf(tmp_path, "rwkv", ["a"], [1])
    check(Weights(write_gguf(tmp_path / "w.gguf", {"token_embd.weight": array(4, 32)})).vocabulary() is None, "a header without tokens")


@pytest.mark.parametrize("model, piece, decoded", [("llama", "\u2581<0x41>", " <0x41>"), ("gpt2", "\u0120a", " a")])
def test_types_of_tokens(tmp_path, model, piece, decoded):
    """Special tokens and those of users stand for their text as it is, as in llama.cpp; dmi-view shows the same, as one reader has both."""
    vocabulary = of_gguf(tmp_path, model, [piece] * 5 + ["<0x41>"] * 2, [1, 2, 3, 4, 5, 1, 6])
    assert [vocabulary.bytes(i).decode() for i in range(5)] == [decoded, piece, piece, piece, decoded]
    assert [vocabulary.shown(i) for i in (5, 6)] == ["'<0x41>'", "<0x41>" if model == "llama" else "'<0x41>'"]


FALLBACK = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}


@pytest.mark.parametrize("where", ["gguf", "json", "json without fallback", "added"])
def test_letters_beside_byte_tokens(tmp_path, where):
    """A tokenizer takes the token of a letter, and of a byte only where there is none."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581", "A", "\u2581A", "4", "\n"]
    if where == "gguf":
        vocabulary = of_gguf(tmp_path, "llama", pieces, [6] * 256 + [1] * 5)
    else:
        said = {"model": {"vocab": {piece: i for i, piece in enumerate(pieces)}, "byte_fallback": where != "json without fallback"}, "decoder": FALLBACK}
        if where == "json without fallback":
            said["decoder"] = FALLBACK["decoders"][0]
        if where == "added":
            said["added_tokens"] = [{"id": i, "content": piece} for i, piece in enumerate(pieces) if i > 255]
        vocabulary = of_json(tmp_path, **said)
    assert [vocabulary.id_of(word) for word in ("A", " A", " ", "4", "\n", "<0x41>", "<0x0A>")] == [257, 258, 256, 259, 260, 0x41, 0x0a]
    bytes_too = where != "json without fallback"
    assert vocabulary.shown(0x41) == ("<0x41>" if bytes_too else "'<0x41>'") and vocabulary.shown(257) == "'A'" and vocabulary.shown(258) == "' A'"
    assert (vocabulary.bytes(0xe2) == b"\xe2") == bytes_too
    if bytes_too:
        assert vocabulary.id_of("B") == vocabulary.id_of("<0x42>") == 0x42


def test_words_and_ids(tmp_path):
    """What `--tokens` of dla and `--words` of lens name."""
    vocabulary = of_json(tmp_path, model={"vocab": {"A": 0, "4": 1, "id:7": 2}})
    assert [analysis._token(word, vocabulary, 5) for word in ("4", "id:4", 4, "id:7", "id:0")] == [1, 4, 4, 2, 0]
    for word, said in [("44", "'44' is not one token of the vocabulary; it begins with '4'. For the id write id:44"), ("id:\u0664", "is not one token"),
                       ("id:9999999999", "is not one token")]:
        with pytest.raises(KeyError) as error:
            analysis._token(word, vocabulary, 5)
        assert said in error.value.args[0]
    with pytest.raises(ValueError, match="token 9: the model has 5"):
        analysis._token("id:9", vocabulary, 5)
    assert [analysis._token(word, None, 5) for word in ("4", "id:4")] == [4, 4]
    with pytest.raises(KeyError, match="no vocabulary beside them"):
        analysis._token("\u00b2", None, 5)


def test_decoders_that_are_not_read(tmp_path):
    for decoder, said in [({"type": "WordPiece"}, "its decoder WordPiece is none of"), ({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}, "a pattern that is no text")]:
        with pytest.raises(ValueError, match=said):
            of_json(tmp_path, model={"vocab": {"a": 0}}, decoder=decoder)


def test_tokenizer_json(check, tmp_path):
    path = tmp_path / "tokenizer.json"
    said = {"model": {"vocab": {"\u0120a": 0, "b": 2}}, "added_tokens": [{"id": 3, "content": "<e>"}], "decoder": {"type": "ByteLevel"}}
    path.write_text(json.dumps(said))
    vocabulary = Vocabulary(path)
    check([vocabulary.shown(i) for i in range(5)] == ["' a'", "1", "'b'", "'<e>'", "4"], "texts; ids that lack", [vocabulary.shown(i) for i in range(5)])
    for key in ("end_of_word_suffix", "continuing_subword_prefix"):
        path.write_text(json.dumps({"model": {"vocab": {"a": 0}, key: "</w>"}}))
        with pytest.raises(ValueError, match=f"its model says {key}, which is not read here"):
            Vocabulary(path)
    path.write_text(json.dumps({"model": {"vocab": [["\u2581a", -1.0], ["b", -2.0]]}, "decoder": {"type": "Metaspace"}}))
    check(Vocabulary(path).shown(0) == "' a'", "a list with scores")
    for wrong in ("[", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {"a": "b"}}}', '{"model": {"vocab": {"a": 1000000000000}}}', '{"model": {"vocab": {"a": -1}}}',
                  '{"model": {"vocab": {}}, "added_tokens": [7]}', "[" * 100000):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="tokenizer.json"):
            Vocabulary(path)
