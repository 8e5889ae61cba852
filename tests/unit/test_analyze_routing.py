# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze routing: every number against numpy, from captured choices and from router logits; what cannot be answered is refused by name."""
import itertools
import json

import pytest

kit = pytest.importorskip("hostile_run", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
numpy = pytest.importorskip("numpy")
import dmi  # noqa: E402
from test_analyze_stats import ANALYZE, LIBRARY, READ, analyze, near, same, tensors_of  # noqa: E402

pytestmark = pytest.mark.built(ANALYZE, READ, LIBRARY)
EXPERTS, TOP, LAYERS = 8, 2, (1, 3)
REQUESTS = {"a": 12, "b": 7, "c": 5}
F32, I64 = (1, 4), (8, 8)


class Routing:
    """Logits of a router, and what follows: by layer and request."""

    def __init__(self, seed=0):
        rng = numpy.random.default_rng(seed)
        self.logits = {(layer, r): (rng.normal(size=(n, EXPERTS)) + numpy.arange(EXPERTS) / 3).astype("<f4")
                       for layer in LAYERS for r, n in REQUESTS.items()}
        self.ids, self.weights = {}, {}
        for key, logits in self.logits.items():
            p = numpy.exp(logits.astype(float) - logits.max(axis=1, keepdims=True))
            self.ids[key] = numpy.argsort(-logits, axis=1, kind="stable")[:, :TOP].astype("<i8")
            chosen = numpy.take_along_axis(p, self.ids[key], axis=1)
            self.weights[key] = (chosen / chosen.sum(axis=1, keepdims=True)).astype("<f4")
            if seed % 2:  # some kernels sort choices by expert
                order = numpy.argsort(self.ids[key], axis=1)
                self.ids[key], self.weights[key] = (numpy.take_along_axis(table[key], order, axis=1) for table in (self.ids, self.weights))


def write(folder, tables, parts=4):
    """A run of the requests in one batch, some rows of each a step; @tables: (site, dtype, {(layer, request): rows})"""
    sites = [kit.site(name, dtype="i64" if dtype == I64 else "f32") for name, dtype, _ in tables]
    chunks, launch, at = [kit.sites_chunk(sites)], 0, {r: 0 for r in REQUESTS}
    for number in itertools.count():
        spans, row = [], 0
        for r, n in REQUESTS.items():
            some = min(n - at[r], parts)
            if some:
                spans.append((r.encode(), at[r], row, some))
                row += some
        if not spans:
            break
        chunks.append(kit.chunk(len(chunks), kit.STEPS, kit.step(number, spans)))
        rows = []
        for layer in LAYERS:
            for site, (_, dtype, table) in enumerate(tables):
                launch += 1
                values = numpy.concatenate([table[layer, r.decode()][p:p + n] for r, p, _, n in spans])
                rows.append((site, layer, number, launch, values.shape, values.tobytes(), *dtype))
        chunks.append(kit.chunk(len(chunks), kit.RECORDS, *kit.records(rows)))
        for r, _, _, n in spans:
            at[r.decode()] += n
    return kit.write(folder, sites, kit.segment(*chunks))


def routing(run, *words, status=0):
    return json.loads(analyze("routing", run, "--json", *words, status=status).stdout)


def jaccard(a, b):
    return len(a & b) / len(a | b)


def expect_layer(got, layer, made, weights=True, logits=True):
    """One layer of the answer is what follows from the choices."""
    ids = {r: made.ids[layer, r] for r in REQUESTS}
    loads = {r: numpy.bincount(ids[r].ravel(), minlength=EXPERTS) for r in REQUESTS}
    load = sum(loads.values())
    assert got["layer"] == layer and got["load"] == load.tolist() and got["tokens"] == sum(REQUESTS.values())
    assert (got["experts"], got["choices"], got["idle"], got["busiest"]) == (EXPERTS, TOP, (load == 0).sum(), load.argmax())
    near(got["variation"], load.std() / load.mean())
    share = load[load > 0] / load.sum()
    near(got["entropy"], -(share * numpy.log(share)).sum())
    near(got["entropy_share"], -(share * numpy.log(share)).sum() / numpy.log(EXPERTS))
    pairs = [jaccard(set(x[i]), set(x[i + 1])) for x in ids.values() for i in range(len(x) - 1)]
    assert got["token_pairs"] == len(pairs)
    near(got["token_overlap"], numpy.mean(pairs))
    both = list(itertools.combinations(REQUESTS, 2))
    near(got["request_overlap"], numpy.mean([jaccard(set(ids[a].ravel()), set(ids[b].ravel())) for a, b in both]))
    shares = {r: x / x.sum() for r, x in loads.items()}
    near(got["request_likeness"], numpy.mean([numpy.minimum(shares[a], shares[b]).sum() / numpy.maximum(shares[a], shares[b]).sum() for a, b in both]))
    all_weights = numpy.concatenate([made.weights[layer, r] for r in REQUESTS]).astype(float)
    if weights:
        near(got["first_share"], (all_weights.max(axis=1) / all_weights.sum(axis=1)).mean())
    else:
        assert got["first_share"] is None
    x = numpy.concatenate([made.logits[layer, r] for r in REQUESTS]).astype(float)
    p = numpy.exp(x) / numpy.exp(x).sum(axis=1, keepdims=True)
    if logits:
        near(got["token_entropy"], -(p * numpy.log(p)).sum(axis=1).mean())
    else:
        assert got["token_entropy"] is None


@pytest.mark.parametrize("seed", [0, 7])
def test_captured_choices(tmp_path, seed):
    made = Routing(seed)
    run = write(tmp_path / "run", [("router_logits", F32, made.logits), ("topk_ids", I64, made.ids), ("topk_weights", F32, made.weights)])
    found = routing(run, "-o", tmp_path / "routing.safetensors")
    for layer, got in zip(LAYERS, found["layers"], strict=True):
        expect_layer(got, layer, made)
    metadata, tensors = tensors_of(tmp_path / "routing.safetensors")
    assert metadata["what"] == "routing" and json.loads(metadata["layers"]) == found["layers"]
    for layer, got in zip(LAYERS, found["layers"]):
        assert tensors[f"load.{layer}"].tolist() == got["load"]
    again = routing(write(tmp_path / "parts", [("router_logits", F32, made.logits), ("topk_ids", I64, made.ids), ("topk_weights", F32, made.weights)], parts=1))
    for layer, got in zip(LAYERS, again["layers"], strict=True):
        expect_layer(got, layer, made)


def test_choices_from_router_logits(tmp_path):
    made = Routing(1)
    run = write(tmp_path / "run", [("router_logits", F32, made.logits)])
    for layer, got in zip(LAYERS, routing(run, "--top-k", TOP)["layers"], strict=True):
        expect_layer(got, layer, made)
    done = analyze("routing", run, status=1)
    assert "topk_ids" in done.stderr and "--top-k" in done.stderr
    assert "9 choices" in analyze("routing", run, "--top-k", 9, status=2).stderr


def test_without_logits_the_number_of_experts_is_asked_for(tmp_path):
    made = Routing(2)
    run = write(tmp_path / "run", [("experts", I64, made.ids)])
    assert "--experts" in analyze("routing", run, "--ids", "experts", status=1).stderr
    for layer, got in zip(LAYERS, routing(run, "--ids", "experts", "--experts", EXPERTS)["layers"], strict=True):
        expect_layer(got, layer, made, weights=False, logits=False)
    one = routing(run, "--ids", "experts", "--experts", EXPERTS, "--layers", 3, "--request", "b")["layers"]
    assert [(row["layer"], row["tokens"], row["requests"], row["request_overlap"]) for row in one] == [(3, REQUESTS["b"], 1, None)]


def test_choices_that_are_no_expert_are_counted_and_left_out(tmp_path):
    made = Routing(3)
    run = write(tmp_path / "run", [("topk_ids", I64, made.ids)])
    done = analyze("routing", run, "--experts", 5, "--json", status=1)
    for layer, got in zip(LAYERS, json.loads(done.stdout)["layers"]):
        ids = numpy.concatenate([made.ids[layer, r] for r in REQUESTS])
        assert got["choices_invalid"] == (ids >= 5).sum() and got["load"] == numpy.bincount(ids[ids < 5], minlength=5).tolist()
    assert "no expert" in done.stderr


def test_a_site_that_holds_something_else_is_refused(tmp_path):
    made = Routing(4)
    wide = {key: numpy.zeros((len(x), 65), "<i8") for key, x in made.ids.items()}
    run = write(tmp_path / "run", [("topk_ids", I64, wide)])
    assert "65 choices" in analyze("routing", run, "--experts", 8, status=2).stderr
    done = analyze("routing", write(tmp_path / "other", [("router_logits", F32, made.logits), ("topk_ids", I64, made.ids)]), "--experts", 4, status=2)
    assert "8 logits" in done.stderr


def test_text_has_a_line_a_layer(tmp_path):
    made = Routing(5)
    lines = analyze("routing", write(tmp_path / "run", [("router_logits", F32, made.logits), ("topk_ids", I64, made.ids)])).stdout.splitlines()
    assert len(lines) == 1 + len(LAYERS) and lines[1].split()[:4] == ["1", "24", "8", "2"]


def test_python_has_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(READ))
    monkeypatch.setenv("DMI_ANALYZE_LIBRARY", str(LIBRARY))
    made = Routing(6)
    path = write(tmp_path / "run", [("router_logits", F32, made.logits)])
    with dmi.open(path) as run:
        for x, row in zip(dmi.stats.routing(run, top_k=TOP), routing(path, "--top-k", TOP)["layers"], strict=True):
            assert x.load.tolist() == row["load"] and (x.n_experts, x.n_choices, x.n_tokens, x.busiest) == (EXPERTS, TOP, row["tokens"], row["busiest"])
            for name in ("layer", "variation", "entropy", "token_overlap", "request_overlap", "request_likeness", "first_share", "token_entropy"):
                assert same(getattr(x, name), row[name]), name
