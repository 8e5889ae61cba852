# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze and dmi.attention against attention by numpy: shapes, RoPE, windows, types, what lacks, and proofs that fail.

The runs hold random q, k, v and the z that follows from them, so that everything about an answer is known.
"""
import ctypes
import json
import os
import struct
import subprocess

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import dmi
from attention_kit import Captured, Model, write_config, write_run
from dmi.attention import AnswerRefused, attention
from dmi.run.reading import ReadError
from harness import BUILD, LIBRARIES

TOOL = BUILD / "tools" / "dmi-analyze"
ROTATED, BARE = ("q_rot", "k_rot", "v", "z"), ("q", "k", "v", "z")
pytestmark = pytest.mark.built(TOOL, LIBRARIES / "analyze" / "libdmi_analyze.so.1", LIBRARIES / "read" / "libdmi_read.so.1")


@pytest.fixture(autouse=True)
def fixture_libraries(monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARIES / "read" / "libdmi_read.so.1"))
    monkeypatch.setenv("DMI_ANALYZE_LIBRARY", str(LIBRARIES / "analyze" / "libdmi_analyze.so.1"))


def tool(*words, status=0, **env):
    done = subprocess.run([TOOL, *map(str, words)], env=os.environ | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == status, (done.returncode, done.stderr, done.stdout)
    return done


def weights_of(captured, **part):
    """[layers, heads, queries, keys] by numpy, of some of it."""
    all_of_it = np.stack(captured.weights)
    return all_of_it[part.get("layers", slice(None))][:, part.get("heads", slice(None))][:, :, part.get("queries", slice(None))]


MODELS = {
    "grouped": Model(heads=6, kv=2, dim=16),
    "one head each": Model(heads=3, kv=3, dim=8),
    "all share one": Model(heads=4, kv=1, dim=24),
    "odd size": Model(heads=2, kv=1, dim=10, value_dim=6),
    "pairs, a part": Model(pairs=True, part=0.5, dim=16, theta=500.0),
    "softcap": Model(cap=5.0),
    "a window in layer 1": Model(layers=3, window=5, windowed=(1,)),
    "windows of one": Model(window=1, windowed=(0, 1)),
    "its own multiplier": Model(multiplier=0.6),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("n", [1, 8, 45])
def test_attention_is_numpys(tmp_path, model, n):
    """Rotated by the engine, and by us: the same weights within 1e-6, and the proof holds."""
    captured = Captured(model, n, seed=n)
    for names in (ROTATED, BARE):
        with dmi.open(write_run(tmp_path / names[0], {"r1": captured}, names, chunks=(n // 2 + 1, 1))) as run:
            got = attention(run, config=write_config(tmp_path / "config.json", model.config()))
            assert np.abs(got.weights - weights_of(captured)).max() < 2e-6
            assert got.proof.state == "holds" and got.proof.error < 3e-6 and got.proof.n_rows == n * model.layers * model.heads
            assert got.request == "r1" and got.queries == list(range(n)) and not got.borrowed


@pytest.mark.parametrize("model", [MODELS["grouped"], MODELS["a window in layer 1"], MODELS["odd size"]], ids=str)
def test_blocks_and_threads_change_no_bit(tmp_path, model):
    """With the least memory keys come in blocks of 64 and queries in fours."""
    captured = Captured(model, 300)
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, BARE, chunks=(130, 7))) as run:
        config = write_config(tmp_path / "config.json", model.config())
        whole = attention(run, config=config)
        assert np.abs(whole.weights - weights_of(captured)).max() < 3e-5  # angles at position 300 are products in f32
        for memory, threads in ((1, 1), (1, 3), (300000, 2), (0, 4)):
            again = attention(run, config=config, memory=memory, threads=threads)
            assert np.array_equal(again.weights, whole.weights)
            assert again.proofs == whole.proofs


def test_heads_whose_kv_heads_are_not_neighbours(tmp_path):
    """Memory has room for one KV head: the one between them is not read in their company."""
    captured, out = Captured(Model(heads=4, kv=4, dim=32), 300), tmp_path / "a.npy"
    tool("attention", write_run(tmp_path / "run", {"r1": captured}, ROTATED), "-o", out, "--heads", "0,2,3", "--memory", "1")
    assert np.abs(np.load(out) - weights_of(captured, heads=[0, 2, 3])).max() < 2e-6


def test_kernels_agree_to_the_bit(tmp_path):
    """AVX2 and portable, by the C that the library has."""
    done = subprocess.run([BUILD / "tests" / "unit" / "kernels", "7"], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode in (0, 77), done.stdout
    if done.returncode == 77:
        pytest.skip("the processor has no AVX2")


def test_a_part_of_it(tmp_path):
    model = MODELS["grouped"]
    captured = Captured(model, 40)
    with dmi.open(write_run(tmp_path / "run", {"other": Captured(model, 9, seed=5), "r1": captured}, ROTATED)) as run:
        got = attention(run, "r1", layers=1, heads=[1, 4], queries=[3, 17, 18, 39])
        assert np.abs(got.weights[0] - captured.weights[1][[1, 4]][:, [3, 17, 18, 39]]).max() < 2e-6
        assert got.layers == [1] and got.heads == [1, 4] and sorted(got.proofs) == [(1, 1), (1, 4)]
        pairs = attention(run, "r1", heads=[(0, 2), (1, 5)])
        assert sorted(pairs.proofs) == [(0, 2), (1, 5)] and np.isnan(pairs.weights[0, 1]).all()
        with pytest.raises(ReadError, match="several requests"):
            attention(run)
        with pytest.raises(ReadError, match="there is no head 0.6: layers have 6 heads"):
            attention(run, "r1", heads=[(0, 6)])
        with pytest.raises(ReadError, match="not ascending"):
            attention(run, "r1", queries=[4, 3])


@pytest.mark.parametrize("dtype, bound", [("bf16", 3e-2), ("f16", 4e-3), ("f8e4m3", 6e-2)])
def test_types(tmp_path, dtype, bound):
    captured = Captured(MODELS["grouped"], 64, dtype=dtype)
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, ROTATED)) as run:
        got = attention(run)
        assert np.abs(got.weights - weights_of(captured)).max() < 2e-6  # from the same rounded q and k
        assert got.proof.state == "holds" and got.proof.bound == bound and 1e-5 < got.proof.error < bound / 2


# What is computed wrong on purpose: the proof must see all of it.
WRONG = {
    "another base": {"rope_theta": 100.0},
    "pairs for halves": {"model_type": "glm"},
    "another multiplier": {"attention_multiplier": 1.0},
    "a window": {"sliding_window": 9},
    "a softcap": {"attn_logit_softcapping": 2.0},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(tmp_path, wrong):
    run = write_run(tmp_path / "run", {"r1": Captured(Model(), 40)}, BARE)
    good, bad = write_config(tmp_path / "good.json", Model().config()), write_config(tmp_path / "bad.json", Model().config() | wrong)
    tool("attention", run, "--config", good)
    done = tool("attention", run, "--config", bad, status=4)
    assert "attention's weights times v are not z: head" in done.stderr and not done.stdout
    assert "fails: off by" in tool("attention", run, "--config", bad, "--unchecked").stdout
    with dmi.open(run) as opened:
        with pytest.raises(AnswerRefused):
            attention(opened, config=bad)
        assert attention(opened, config=bad, unchecked=True).proof.state == "fails"


@pytest.mark.parametrize("name", ["k_rot", "v", "z"])
def test_one_wrong_row_is_refused(tmp_path, name):
    """Of 40 rows of one layer one is another one's."""
    run = write_run(tmp_path / "run", {"r1": Captured(Model(), 40)}, ROTATED,
                    wrong={("r1", name): lambda x: np.concatenate([x[:20], x[21:22], x[21:]])})
    assert "are not z" in tool("attention", run, status=4).stderr


def test_values_that_are_not_finite_are_refused(tmp_path):
    def spoiled(x):
        x = x.copy()
        x[7, 0, 0] = np.nan
        return x
    run = write_run(tmp_path / "run", {"r1": Captured(Model(), 20)}, ROTATED, wrong={("r1", "k_rot"): spoiled})
    assert "off by nan" in tool("attention", run, status=4).stderr
    with dmi.open(run) as opened:  # queries that do not see the key are as they were
        assert np.isfinite(attention(opened, queries=range(7)).weights).all()


def test_without_v_or_z_it_says_so(tmp_path):
    captured = Captured(Model(), 12)
    for names in (("q_rot", "k_rot"), ("q_rot", "k_rot", "v"), ("q_rot", "k_rot", "z")):
        run = write_run(tmp_path / names[-1], {"r1": captured}, names)
        assert "A v = z  not checked" in tool("attention", run).stdout
        assert json.loads(tool("attention", run, "--json").stdout)["proof"]["state"] == "not checked"


REFUSED = {
    "no config": (BARE, None, "rows of q are not rotated yet: no config says how"),
    "an unknown model": (BARE, {"model_type": "newest"}, 'the model type "newest" is not known'),
    "norms": (BARE, {"model_type": "qwen3"}, "the model norms them by head before it rotates them"),
    "a RoPE that is not known": (BARE, {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "RoPE of the type longrope is not known"),
    "no k": (("q_rot", "v", "z"), None, "has no row of k or k_rot"),
    "a missing rank": (ROTATED, {"num_attention_heads": 8, "num_key_value_heads": 4}, "a rank's run is missing, or its sites lack `shard`"),
    "another head": (ROTATED, {"head_dim": 32}, "heads of 16 elements were captured, and the model's have 32"),
    "sinks without weights": (ROTATED, {"model_type": "gpt_oss"}, "its heads have sinks"),
    "ALiBi": (ROTATED, {"model_type": "bloom"}, "a term that grows with the distance"),
}


@pytest.mark.parametrize("names, config, why", REFUSED.values(), ids=REFUSED)
def test_what_lacks_is_named(tmp_path, names, config, why):
    run = write_run(tmp_path / "run", {"r1": Captured(Model(), 12)}, names)
    words = ["--config", write_config(tmp_path / "config.json", Model().config() | config)] if config else []
    done = subprocess.run([TOOL, "attention", run, *words], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2) and why in done.stderr, done.stderr


def test_norms_by_their_own_sites(tmp_path):
    """q_norm and k_norm are rotated here where the model norms."""
    model = Model()
    captured = Captured(model, 20)
    captured.values |= {"q_norm": captured.values["q"], "k_norm": captured.values["k"], "q": captured.values["v"], "k": captured.values["v"]}
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, ("q_norm", "k_norm", "v", "z", "q", "k"))) as run:
        got = attention(run, config=write_config(tmp_path / "config.json", model.config() | {"model_type": "qwen3"}))
        assert np.abs(got.weights - weights_of(captured)).max() < 2e-6


def test_positions_that_lack_are_named(tmp_path):
    captured = Captured(Model(), 20)
    run = write_run(tmp_path / "run", {"r1": captured}, ROTATED, lacking={"r1": 3})
    assert "layer 0 has no row of k or k_rot at positions 0 to 2" in tool("attention", run, status=1).stderr
    with dmi.open(run) as opened, pytest.raises(ReadError, match="no row of q or q_rot at position 1"):
        attention(opened, queries=[1])


def test_rows_without_a_dimension_of_heads(tmp_path):
    captured = Captured(Model(), 20)
    run = write_run(tmp_path / "run", {"r1": captured}, ROTATED, flat=ROTATED)
    assert "captured without a dimension of heads, and no config says" in tool("attention", run, status=1).stderr
    with dmi.open(run) as opened:
        got = attention(opened, config=write_config(tmp_path / "config.json", Model().config()))
        assert np.abs(got.weights - weights_of(captured)).max() < 2e-6


def test_strongest_pairs_and_map(tmp_path):
    captured = Captured(Model(), 30)
    run = write_run(tmp_path / "run", {"r1": captured}, ROTATED)
    said = json.loads(tool("attention", run, "--json", "--top", 7, "--skip-first", "--tokens", "10:20", "--layers", 1).stdout)
    weights = captured.weights[1][:, 10:20, 1:]
    best = sorted(((w, h, 10 + i, 1 + j) for (h, i, j), w in np.ndenumerate(weights)), reverse=True)[:7]
    assert [(p["head"], p["query"], p["key"]) for p in said["pairs"]] == [b[1:] for b in best]
    assert np.allclose([p["weight"] for p in said["pairs"]], [b[0] for b in best], atol=2e-6)
    assert said["queries"] == 10 and said["keys"] == 20 and said["proof"]["state"] == "holds"
    cells = json.loads(tool("attention", run, "--json", "--map", "--layers", 0, "--heads", 2).stdout)["map"]
    assert np.allclose(cells["cells"], captured.weights[0][2], atol=2e-6) and cells["queries"] == list(range(30))
    assert "of one head" in tool("attention", run, "--map", status=2).stderr
    assert len([line for line in tool("attention", run, "--map", "--layers", 0, "--heads", 2).stdout.splitlines() if line[:9].strip().isdigit()]) >= 30


SCALED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def scaled(kind, theta, dim):
    """Frequencies and amplitude as the papers have them, in float64."""
    s, f = SCALED[kind], theta ** (-np.arange(0, dim, 2) / dim)
    if kind == "linear":
        return f / s["factor"], 1.0
    if kind == "llama3":
        length = s["original_max_position_embeddings"] * f / (2 * np.pi)
        smooth = np.clip((length - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0, 1)
        return f * (smooth + (1 - smooth) / s["factor"]), 1.0
    lo, hi = (dim * np.log(s["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta)) for turns in (32, 1))
    ramp = np.clip((np.arange(dim // 2) - max(np.floor(lo), 0)) / (min(np.ceil(hi), dim - 1) - max(np.floor(lo), 0)), 0, 1)
    return f / s["factor"] * ramp + f * (1 - ramp), 0.1 * np.log(s["factor"]) + 1


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaled_rope(tmp_path, monkeypatch, kind, key):
    model = Model(dim=32, more={key: SCALED[kind] | ({"rope_theta": 10000.0} if key == "rope_parameters" else {})})
    frequencies, amplitude = scaled(kind, model.theta, model.dim)

    def rotate(_, x, positions):
        angles = positions[:, None] * frequencies
        cosine, sine = np.cos(angles)[:, None] * amplitude, np.sin(angles)[:, None] * amplitude
        a, b = x[..., :16], x[..., 16:]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)
    monkeypatch.setattr(Model, "rotate", rotate)
    captured = Captured(model, 200, scale=1.0)
    config = model.config()
    if key == "rope_parameters":
        del config["rope_theta"]
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, BARE)) as run:
        got = attention(run, config=write_config(tmp_path / "config.json", config))
        assert np.abs(got.weights - weights_of(captured)).max() < 1e-5  # angles are products in f32
        assert got.proof.state == "holds"


def test_sinks_take_a_share(tmp_path):
    model = Model(more={"model_type": "gpt_oss", "dmi_sinks": [[0.5, 3.0, -1.0, 2.0], [9.0, 0.0, 1.0, -40.0]]})
    captured = Captured(model, 20, sinks=model.more["dmi_sinks"])
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, ROTATED)) as run:
        got = attention(run, config=write_config(tmp_path / "config.json", model.config()))
        assert np.abs(got.weights - weights_of(captured)).max() < 2e-6 and got.proof.state == "holds"
        assert got.weights[1, 0].sum(-1).min() < 0.1


def test_a_prefix_of_another_run(tmp_path):
    """Keys and values of positions that lack: of the right tokens they give the right weights, of others the proof fails."""
    whole, other = Captured(Model(), 30), Captured(Model(), 30, seed=1)
    run = write_run(tmp_path / "run", {"r1": whole}, ROTATED, lacking={"r1": 6})
    donors = write_run(tmp_path / "donors", {"right": whole, "wrong:one": other}, ROTATED)
    for request, words in (("right", [f"{donors}:right"]), (None, [write_run(tmp_path / "a:b", {"right": whole}, ROTATED)])):
        out = tmp_path / "a.safetensors"
        said = json.loads(tool("attention", run, "--json", "--prefix", *words, "-o", out, "--force").stdout)
        assert said["borrowed"] == 6 and said["proof"]["state"] == "holds" and said["queries"] == 24
        assert np.abs(load_file(out)["weights"] - np.stack(whole.weights)[:, :, 6:]).max() < 2e-6
    assert "are not z" in tool("attention", run, "--prefix", f"{donors}:wrong:one", status=4).stderr
    assert "it has several requests: name one" in tool("attention", run, "--prefix", donors, status=2).stderr
    assert "--prefix" in tool("attention", run, "--prefix", tmp_path / "none", status=2).stderr
    without = write_run(tmp_path / "without", {"r1": whole}, ("q_rot", "k_rot"), lacking={"r1": 6})
    assert "without v and z nothing shows" in tool("attention", without, "--prefix", f"{donors}:right", status=4).stderr
    with dmi.open(run) as opened, dmi.open(donors) as prefix:
        assert attention(opened, prefix=prefix, prefix_request="right").borrowed == 6
        with pytest.raises(AnswerRefused):
            attention(opened, prefix=prefix, prefix_request="wrong:one")


def test_the_config_of_the_run(tmp_path):
    """What an adapter noted stands in for --config, which has the last word."""
    model = Model(pairs=True, part=0.5)
    captured = Captured(model, 20)
    run = write_run(tmp_path / "run", {"r1": captured}, BARE, about={"config": json.dumps(model.config()), "tokenizer": "/t"})
    tool("attention", run)
    assert "are not z" in tool("attention", run, "--config", write_config(tmp_path / "c.json", Model().config()), status=4).stderr
    with dmi.open(run) as opened:
        assert opened.about("tokenizer") == "/t" and opened.about("other") is None
        assert np.abs(attention(opened).weights - weights_of(captured)).max() < 2e-6
    bad = write_run(tmp_path / "bad", {"r1": captured}, BARE, about={"config": "{"})
    assert "the config that the run holds (--config gives another one): it is no JSON" in tool("attention", bad, status=2).stderr


@pytest.mark.parametrize("said, why", [
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"), ({"scale_attn_weights": False}, "scale_attn_weights"), ({"use_logn_attn": True}, "use_logn_attn"),
    ({"attn_temperature_tuning": 4}, "attn_temperature_tuning"), ({"softmax_scale": 0.1}, "softmax_scale"), ({"rope_scaling": {"rope_type": "linear", "factor": 1, "my_beta": 2}}, "RoPE's my_beta"),
    ({"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "attn_temperature_tuning": 0, "softmax_scale": None, "scale_attention_softmax_in_fp32": True, "attention_bias": True,
      "attention_out_multiplier": 0.5, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, None)], ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_what_a_config_says_of_scores_and_is_not_done_is_refused(tmp_path, said, why):
    model = Model()
    run = write_run(tmp_path / "run", {"r1": Captured(model, 12)}, BARE)
    config = write_config(tmp_path / "c.json", model.config() | said)
    done = tool("attention", run, "--config", config, status=1 if why else 0)
    assert not why or why in done.stderr and ("which is not read here" in done.stderr or "is not known" in done.stderr), done.stderr


def gguf(path, keys, tensors=()):
    """A GGUF's header. Source: docs/gguf.md of the ggml project, version 3."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def value(v):
        if isinstance(v, list):
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
        if isinstance(v, str):
            return struct.pack("<I", 8) + text(v)
        return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<Ii", 5, v)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(text(k) + value(v) for k, v in keys.items())
    path.write_bytes(head + b"".join(text(name) + struct.pack("<IQIQ", 1, 8, 0, 0) for name in tensors) + bytes(64))
    return path


def header(model, architecture):
    return {"general.architecture": architecture, "tokenizer.ggml.tokens": ["a", "b"],
            **{f"{architecture}.{key}": value for key, value in {
                "block_count": model.layers, "attention.head_count": model.heads, "attention.head_count_kv": model.kv,
                "attention.key_length": model.dim, "embedding_length": 64, "context_length": 128, "rope.freq_base": model.theta}.items()}}


def test_the_header_of_a_gguf(tmp_path):
    model = Model(theta=5000.0)
    run = write_run(tmp_path / "run", {"r1": Captured(model, 20)}, BARE)
    tool("attention", run, "--config", gguf(tmp_path / "q.gguf", header(model, "qwen2")))
    llama = gguf(tmp_path / "l.gguf", header(model, "llama"))
    assert "nothing says whether the engine turns halves of a head or pairs (--rope-order)" in tool("attention", run, "--config", llama, status=1).stderr
    tool("attention", run, "--config", llama, "--rope-order", "halves")
    assert "are not z" in tool("attention", run, "--config", llama, "--rope-order", "pairs", status=4).stderr
    scaled = gguf(tmp_path / "s.gguf", header(model, "qwen2"), ["rope_freqs.weight"])
    assert "RoPE of the type of the tensor rope_freqs is not known" in tool("attention", run, "--config", scaled, status=1).stderr
    biased = gguf(tmp_path / "b.gguf", header(model, "qwen2") | {"qwen2.attention.max_alibi_bias": 8.0})
    assert "its config says attention_max_alibi_bias, which is not read here" in tool("attention", run, "--config", biased, status=1).stderr
    noted = write_run(tmp_path / "noted", {"r1": Captured(model, 20)}, BARE,
                      about={"config": json.dumps({k: v for k, v in header(model, "llama").items() if not isinstance(v, list)} | {"dmi_rope_order": "halves"})})
    tool("attention", noted)
    data = llama.read_bytes()
    for n in (4, 12, 24, 30, 100, len(data) - 70):
        (tmp_path / "cut.gguf").write_bytes(data[:n])
        assert "GGUF" in tool("attention", run, "--config", tmp_path / "cut.gguf", status=2).stderr


def test_files_of_answers(tmp_path):
    captured = Captured(Model(), 80)
    run, out = write_run(tmp_path / "run", {"r1": captured}, ROTATED, chunks=(9,)), tmp_path / "a.safetensors"
    tool("attention", run, "-o", out, "--heads", "1,3", "--tokens", "4:", "--memory", "1")
    found = load_file(out)
    tool("attention", run, "-o", tmp_path / "no.npy", "--heads", "1,3", "--tokens", "4:", "--memory", "1", TMPDIR="/nowhere")  # where no block can be kept
    assert np.array_equal(np.load(tmp_path / "no.npy"), found["weights"])
    assert np.abs(found["weights"] - np.stack(captured.weights)[:, [1, 3], 4:]).max() < 2e-6
    assert found["layers"].tolist() == [0, 1] and found["heads"].tolist() == [1, 3] and found["queries"].tolist() == list(range(4, 80))
    with safe_open(out, "np") as file:
        said = file.metadata()
    assert said["what"] == "attention" and said["request"] == "r1" and said["run"] and json.loads(said["parameters"])["tokens"] == "4:"
    check = json.loads(said["checks"])[0]
    assert check["name"] == "A v = z" and check["error"] < check["bound"] == 1e-3 and check["rows"] == 2 * 2 * 76
    assert out.stat().st_mode & 0o777 == 0o600
    assert "there already" in tool("attention", run, "-o", out, status=2).stderr
    tool("attention", run, "-o", tmp_path / "a.npy")
    assert np.abs(np.load(tmp_path / "a.npy") - np.stack(captured.weights)).max() < 2e-6
    tool("attention", run, "-o", run / "a.npy", status=2)
    bad = write_run(tmp_path / "bad", {"r1": captured}, ROTATED, wrong={("r1", "v"): lambda x: x[::-1]})
    tool("attention", bad, "-o", tmp_path / "b.npy", status=4)
    assert not list(tmp_path.glob("b.npy*")) and not list(tmp_path.glob(".*"))


BAD_CONFIGS = {
    "": "", "[]": "this is no model's config", "{}": "no num_hidden_layers",
    '{"num_hidden_layers": 2, "num_attention_heads": -1}': "no whole number from 1 to",
    '{"num_hidden_layers": 99999, "num_attention_heads": 1}': "no whole number from 1 to 4096",
    '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "model_type": "llama", "rope_theta": -1}': "which cannot be",
    '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "model_type": "llama", "partial_rotary_factor": 7}': "which cannot be",
    '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "model_type": "llama", "rope_scaling": {"type": "llama3", "factor": 2}}':
        "lacks its factor or",
}


@pytest.mark.parametrize("text", BAD_CONFIGS)
def test_bad_configs(tmp_path, text):
    run = write_run(tmp_path / "run", {"r1": Captured(Model(), 5)}, ROTATED)
    (tmp_path / "config.json").write_text(text)
    assert BAD_CONFIGS[text] in tool("attention", run, "--config", tmp_path, status=2).stderr


def test_bad_words(tmp_path):
    run = write_run(tmp_path / "run", {"r1": Captured(Model(), 5)}, ROTATED)
    for words, why in ((["--heads", "9"], "there is none of these: layers have 4 heads"), (["--tokens", "9:12"], "no query of the request"),
                       (["--layers", "7"], "layer 7"), (["--request", "r2"], "r2"), (["--threads", "0"], "no number from 1 to 256"),
                       (["--memory", "x"], "is no size"), (["--multiplier", "0"], "no number above 0"), (["--config", "/nowhere"], "cannot open /nowhere"),
                       (["more"], "takes a run, and nothing more"), (["--what"], "unrecognized option")):
        done = subprocess.run([TOOL, "attention", run, *words], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode in (1, 2) and why in done.stderr, (words, done.stderr)


def test_structs_of_another_size():
    """A caller of an older or a newer header: what its struct lacks is left out, what the library lacks is 0."""
    library = dmi.attention.library()
    assert library.dmi_analyze_version() == 1
    why = ctypes.create_string_buffer(100)
    options, handle = dmi.attention._Options(), ctypes.c_void_p()
    options.size = 0
    assert library.dmi_analyze_open(None, ctypes.byref(options), ctypes.byref(handle), why, ctypes.c_uint64(100)) == -22
    assert b"size was not set" in why.value


def test_rollout_and_what_others_draw(tmp_path):
    """Rollout as its authors write it; arrays as CircuitsVis and BertViz ask for them."""
    captured = Captured(Model(layers=3, heads=4, kv=2, dim=8), 9, seed=5)
    run = write_run(tmp_path / "run", {"r1": captured}, ROTATED)
    with dmi.open(run) as opened:
        answer, some = attention(opened), attention(opened, layers="0,2", queries=[4, 5])
        apart = attention(opened, layers="0,2")
        two = attention(opened, heads=[(0, 1), (1, 2)])
    wanted, last = [], np.eye(9)
    for weights in captured.weights:
        share = 0.5 * weights.mean(0) + 0.5 * np.eye(9)
        last = share / share.sum(1, keepdims=True) @ last
        wanted.append(last)
    found = answer.rollout()
    assert found.shape == (3, 9, 9) and np.abs(found - wanted).max() < 1e-6 and np.abs(found.sum(-1) - 1).max() < 1e-12, found[0]
    assert (np.triu(found[-1], 1) == 0).all() and np.abs(answer.rollout(0)[0] - captured.weights[0].mean(0)).max() < 1e-6
    with pytest.raises(ValueError, match="2 queries of 6 keys"):
        some.rollout()
    with pytest.raises(ValueError, match=r"\[0, 2\] do not follow one another"):
        apart.rollout()
    with pytest.raises(ValueError, match="all heads"):
        two.rollout()
    with pytest.raises(ValueError, match="below 1"):
        answer.rollout(1)
    drawn = answer.circuitsvis(1, [f"t{i}" for i in range(9)])
    assert drawn["tokens"][-1] == "t8" and (drawn["attention"] == answer.weights[1]).all() and answer.circuitsvis(0)["tokens"][3] == "3"
    with pytest.raises(ValueError, match="tokens: 2, positions: 9"):
        answer.circuitsvis(1, ["a", "b"])
    with pytest.raises(KeyError, match="no layer 7"):
        answer.circuitsvis(7)
