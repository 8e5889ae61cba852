# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze attention of what the serving engine captured: merged QKV, batches, chunks, a paged and shared KV cache, graphs, bf16.

  weights   float32: within 1e-2 of Hugging Face's attentions (tests/reference/smollm2_attention.safetensors); both types: within 1e-5 of
            softmax in float64 of the dump's own rows
  proof     A v = z of every layer and head, also where RoPE is done here, and where k and v lie in the paged cache
  prefix    rows that the prefix cache had come from another request, and are believed as A v = z holds; of another request's they are refused

Two layers; with --long all 30, and bf16 in them.
"""
import functools
import json

import pytest

import harness
from harness import BUILD, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("safetensors")
from safetensors.numpy import load_file  # noqa: E402

import serving  # noqa: E402
from serve.dtypes import from_bf16  # noqa: E402
from serve.gguf import packaged_model  # noqa: E402

ANALYZE = BUILD / "tools" / "dmi-analyze"
pytestmark = pytest.mark.built(DMI_RUN, PRELOAD, ANALYZE, STANDIN / "libcuda.so.1", *serving.KERNELS)
HEADS, KV, DIM = 9, 3, 64
LEFT_OUT = {"embed", "resid_pre", "ln1", "attn_out", "resid_mid", "ln2", "mlp_post", "mlp_out", "resid_final", "final_ln", "final_logits"}
OPTIONS = ["--mode", "graph", "--batch", "2", "--chunk", "24"]
ROTATED_HERE = ["--q-rot", "none", "--k-rot", "none", "--rope-order", "halves"]  # q and k are views of the merged buffer
LENGTHS = {"france": 16, "chat-list": 52}
BOUND = {"float32": 1e-3, "bfloat16": 3e-2}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def run_of(server):
    """A function: (what was served, {request: tokens that the prefix cache had}) of a type and a number of layers, served once."""
    @functools.cache
    def serve(dtype, layers, paged=False):
        spec = serving.spec_text(dtype, LEFT_OUT)
        served = server.serve(f"{dtype}-{layers}-{paged}", requests(), *OPTIONS, dtype=dtype, layers=layers, spec=serving.paged(spec, dtype) if paged else spec)
        return served, {item["request"]: item["cached"] for step in served.trace for item in step["items"] if item["cached"]}
    return serve


def requests():
    """chat-list comes when chat-code has computed their first 24 tokens, of which one block of 16 is shared."""
    return [*serving.some("chat-code", "france", tokens=11), *serving.some("count", tokens=1), *[{**r, "arrival": 4} for r in serving.some("chat-list", tokens=10)]]


def ask(served, request, *words, status=0):
    done = harness.run([ANALYZE, "attention", served.run, "--request", request, "--config", packaged_model(), "--json", *words], check=False)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)["proof"] if done.stdout else done.stderr


def weights(served, request, *words):
    """[layers, heads, queries, keys], and the proof"""
    path = served.folder / "weights.npy"
    proof = ask(served, request, "-o", path, "--force", *words)
    return np.load(path), proof


def softmax_of(dump, request, layer, n):
    """[heads, n, n] of the dump's rows"""
    def rows(site, heads):
        x = np.stack([dump.row(request, f"{site}.{layer}", p) for p in range(n)])
        return (from_bf16(x) if x.dtype == np.uint16 else x).astype(np.float64).reshape(n, heads, DIM)
    q, k = rows("q_rot", HEADS), rows("k_rot", KV).repeat(HEADS // KV, 1)
    s = np.einsum("ihd,jhd->hij", q, k) * DIM ** -0.5
    s[:, ~np.tri(n, dtype=bool)] = -np.inf
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cases(short, more):
    return pytest.mark.parametrize("dtype, layers", [*short, *(pytest.param(*case, marks=pytest.mark.long) for case in more)])


@cases([("float32", 2), ("bfloat16", 2)], [("float32", 30), ("bfloat16", 30)])
def test_attention(check, server, run_of, dtype, layers):
    served, cached = run_of(dtype, layers)
    check(cached == {"chat-list": 16} and any(step["replayed"] for step in served.trace), "a prefix was cached, graphs were replayed", cached)
    check(any(len(step["items"]) > 1 for step in served.trace), "requests share steps", served.trace[:5])
    dump = server.serve(f"{dtype}-{layers}-dump", requests(), "--no-prefix-cache", dtype=dtype, layers=layers, dump=True).dump()
    reference = load_file(serving.REFERENCE / "smollm2_attention.safetensors")
    for request, words in (("france", []), ("chat-list", ["--fill-cached"])):
        got, proof = weights(served, request, *words)
        print(f"{request}, {layers} layers in {dtype}: A v - z {proof['error']:.2e} of z")
        check(proof["state"] == "holds" and proof["bound"] == BOUND[dtype] and proof["error"] < BOUND[dtype] / 1.5, f"{request}: A v = z", proof)
        n = LENGTHS[request] - 1  # the last token was sampled, and not computed
        check(got.shape == (layers, HEADS, n, n), f"{request}: all queries and keys", got.shape)
        own = max(np.abs(got[i] - softmax_of(dump, request, i, n)).max() for i in range(layers))
        check(own < 1e-5, f"{request}: softmax of the rows that an engine without a cache computes", own)
        theirs = [(np.abs(got[i] - want[:, :n, :n].astype(np.float32)).max(), i) for i in range(layers) if (want := reference.get(f"{request}/attentions.{i}")) is not None]
        print(f"{request}, {layers} layers in {dtype}: {max(theirs)[0]:.2e} from Hugging Face's float32, layer {max(theirs)[1]}")
        check(theirs and (dtype != "float32" or max(theirs)[0] < 1e-2), f"{request}: Hugging Face's attentions", theirs)
        here, proof = weights(served, request, *words, *ROTATED_HERE)
        check(proof["state"] == "holds" and np.abs(here - got).max() < (1e-4 if dtype == "float32" else 5e-2), f"{request}: rotated here, of the merged buffer", proof)


def test_rows_of_a_cached_prefix(check, run_of):
    """Without them there is no answer; with those of another request there is one if A v = z holds, and only then."""
    served, _ = run_of("float32", 2)
    said = ask(served, "chat-list", status=1)
    check("no row of k or k_rot" in said and "0 to 15" in said, "the positions that lack are named", said)
    proof = ask(served, "chat-list", "--prefix", f"{served.run}:chat-code")
    check(proof["state"] == "holds" and proof["error"] < 1e-5, "the request that computed them", proof)
    said = ask(served, "chat-list", "--prefix", f"{served.run}:count", status=4)
    check("weights times v are not z" in said, "of another prompt they are refused", said)


def test_keys_and_values_in_the_paged_cache(check, run_of):
    """k_rot and v as they lie in the cache, by the list of slots."""
    served, _ = run_of("float32", 2, paged=True)
    for request, words in (("france", []), ("chat-list", ["--fill-cached"])):
        proof = ask(served, request, *words)
        check(proof["state"] == "holds" and proof["error"] < 1e-5, f"{request}: A v = z", proof)
