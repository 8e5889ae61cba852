# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze stats: every number against numpy, for each type of element; the same bits however rows were captured."""
import fcntl
import json
import os
import struct
import subprocess
import warnings

import pytest

import dmi
from harness import BUILD, LIBRARIES

kit = pytest.importorskip("hostile_run", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
numpy = pytest.importorskip("numpy")
ANALYZE = BUILD / "tools" / "dmi-analyze"
READ, LIBRARY = LIBRARIES / "read" / "libdmi_read.so.1", LIBRARIES / "analyze" / "libdmi_analyze.so.1"
pytestmark = pytest.mark.built(ANALYZE, READ, LIBRARY)
ERROR = 0.00390625 * (1 + 1e-4)
LAYERS, WIDTH, ROWS = 8, 1500, 21
# name: number on disk, what numpy reads its elements as
DTYPES = {"f32": (1, "<f4"), "f16": (2, "<f2"), "bf16": (3, "<u2"), "f64": (4, "<f8"), "i8": (5, "i1"), "i16": (6, "<i2"), "i32": (7, "<i4"),
          "i64": (8, "<i8"), "u8": (9, "u1"), "u16": (10, "<u2"), "u32": (11, "<u4"), "u64": (12, "<u8"), "bool": (13, "u1"),
          "f8e4m3": (14, "u1"), "f8e5m2": (15, "u1")}


def analyze(*words, status=0, **env):
    done = subprocess.run([ANALYZE, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
                          env={**os.environ, **env})
    assert done.returncode == status, done.stderr
    return done


def stats(run, *words, status=0, **env):
    return json.loads(analyze("stats", run, "--json", *words, status=status, **env).stdout)


def small_floats(bits, n_exponent, n_mantissa, finite_only):
    """Of numbers of @bits: what docs/format.md says that they are."""
    exponent, mantissa = bits >> n_mantissa & (1 << n_exponent) - 1, bits & (1 << n_mantissa) - 1
    bias, top = (1 << n_exponent - 1) - 1, (1 << n_exponent) - 1
    value = numpy.where(exponent > 0, 1 + mantissa / 2.0 ** n_mantissa, mantissa / 2.0 ** n_mantissa)
    value = value * 2.0 ** (numpy.maximum(exponent, 1).astype(float) - bias)
    special = (exponent == top) & ((mantissa == (1 << n_mantissa) - 1) if finite_only else True)
    value = numpy.where(special, numpy.where(mantissa > 0, numpy.nan, numpy.inf), value)
    return numpy.where(bits >> (n_exponent + n_mantissa) & 1, -1, 1) * value


def true(raw, dtype):
    """Elements as doubles"""
    if dtype == "bf16":
        return (raw.astype("<u4") << 16).view("<f4").astype(float)
    if dtype in ("f8e4m3", "f8e5m2"):
        return small_floats(raw.astype(int), *((4, 3, True) if dtype == "f8e4m3" else (5, 2, False)))
    return raw.astype(float)


def elements(dtype, shape, seed=0):
    """Values of a type, with a channel that stands out: finite ones"""
    rng = numpy.random.default_rng(seed)
    values = rng.normal(size=shape)
    values[..., 507] *= 40
    values[rng.random(shape) < 0.05] = 0
    if dtype == "bf16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    kind = DTYPES[dtype][1]
    if dtype in ("f8e4m3", "f8e5m2"):
        return rng.integers(0, 0x60, shape).astype(kind)
    if dtype == "bool":
        return (values > 1).astype(kind)
    return (values if "f" in kind else numpy.abs(values) * 2 if "u" in kind else values * 2).astype(kind)


def write(folder, layers, dtype="f32", parts=(ROWS,), scale=1.0, site="resid_pre"):
    """A run of one site: @layers: by layer, rows of request "r"; @parts: how many rows each step has."""
    number, kind = DTYPES[dtype]
    size = numpy.dtype(kind).itemsize
    sites = [kit.site(site, dtype=dtype, scale=scale)]
    chunks, at, launch = [kit.sites_chunk(sites)], 0, 0
    for i, n in enumerate(parts):
        chunks.append(kit.chunk(len(chunks), kit.STEPS, kit.step(i, [(b"r", at, 0, n)])))
        rows = []
        for layer, values in enumerate(layers):
            launch += 1
            rows.append((0, layer, i, launch, (n, values.shape[1]), values[at:at + n].tobytes(), number, size))
        chunks.append(kit.chunk(len(chunks), kit.RECORDS, *kit.records(rows)))
        at += n
    return kit.write(folder, sites, kit.segment(*chunks))


def kurtosis(x):
    d = x - x.mean()
    return (d ** 4).mean() / (d ** 2).mean() ** 2


def near(got, want, tolerance=1e-6):
    assert got == pytest.approx(want, rel=tolerance, abs=1e-300), (got, want)


def expect_quantile(got, x, q):
    want = numpy.sort(x)[int(numpy.floor(q * (len(x) - 1)))]
    assert abs(got - want) <= abs(want) * ERROR + 1e-40, (q, got, want)


def expect_layer(got, x):
    """One layer of the answer is what numpy says of all its rows."""
    finite = x[numpy.isfinite(x)]
    norms = numpy.sqrt((x ** 2).sum(axis=1))
    norms = norms[numpy.isfinite(x).all(axis=1)]
    near(got["mean"], finite.mean(), 1e-6)
    near(got["sd"], finite.std())
    near(got["kurtosis"], kurtosis(finite))
    assert (got["least"], got["most"]) == (finite.min(), finite.max())
    assert got["nan"] == numpy.isnan(x).sum() and got["infinite"] == numpy.isinf(x).sum()
    near(got["share_zero"], (x == 0).sum() / x.size)
    near(got["share_nonfinite"], 1 - finite.size / x.size)
    near(got["norm"]["mean"], norms.mean())
    near(got["norm"]["sd"], norms.std())
    near(got["norm"]["max"]["value"], norms.max())
    expect_quantile(got["norm"]["median"], norms, 0.5)
    magnitude = numpy.where(numpy.isfinite(x), abs(x), -1)
    row, channel = numpy.unravel_index(magnitude.argmax(), x.shape)
    assert (got["max"]["token"], got["max"]["channel"], got["max"]["value"]) == (row, channel, x[row, channel])
    for name in ("p0.1", "p1", "p50", "p99", "p99.9"):
        expect_quantile(got["quantiles"][name], finite, float(name[1:]) / 100)
        expect_quantile(got["magnitudes"][name], abs(finite), float(name[1:]) / 100)


def scores(x):
    """How far each channel's root mean square lies above the median, in robust standard deviations"""
    with numpy.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a channel without finite values has no mean
        rms = numpy.sqrt(numpy.nanmean(numpy.where(numpy.isfinite(x), x, numpy.nan) ** 2, axis=0))
        middle = numpy.nanmedian(rms)
        return (rms - middle) / (1.4826 * numpy.nanmedian(abs(rms - middle)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_numpys(tmp_path, dtype):
    layers = [elements(dtype, (ROWS, WIDTH), seed) for seed in range(2)]
    run = write(tmp_path / "run", layers, dtype, scale=4.0 if dtype == "f16" else 1.0)
    found = stats(run)
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    for row, raw in zip(found["layers"], layers):
        expect_layer(row, true(raw, dtype) / (4.0 if dtype == "f16" else 1.0))
        assert row["dtype"] == dtype and row["channels"] == WIDTH and row["rows"] == ROWS


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_what_is_not_finite_is_counted_and_left_out(tmp_path, dtype):
    x = elements("f32", (ROWS, WIDTH))
    x[3, 5], x[4, 6], x[4, 7], x[:, 9], x[20, 1499] = numpy.nan, numpy.inf, -numpy.inf, numpy.nan, numpy.inf
    x[2] = numpy.nan
    raw = (x.view("<u4") >> 16).astype("<u2") if dtype == "bf16" else x.astype(DTYPES[dtype][1])
    x = true(raw, dtype)
    x[:, 9] = numpy.nan
    clean = numpy.delete(x, 9, axis=1)
    run, other = write(tmp_path / "run", [raw], dtype), write(tmp_path / "other", [numpy.delete(raw, 9, axis=1)], dtype)
    row = stats(run)["layers"][0]
    assert row["norm"]["rows"] == 0 and row["norm"]["max"] is None and row["norm"]["mean"] is None
    assert row["nan"] == numpy.isnan(x).sum()
    expect_layer(stats(other)["layers"][0], clean)
    channels = stats(run, "--by", "channel")["channels"]
    for c, (got, want) in enumerate(zip(channels, scores(x))):
        finite = x[:, c][numpy.isfinite(x[:, c])]
        assert got["nonfinite"] == ROWS - len(finite)
        if len(finite):
            near(got["mean"], finite.mean(), 1e-6) if abs(finite.mean()) > 1e-3 else None
            near(got["sd"], finite.std())
            assert got["max"] == abs(finite).max()
            near(got["score"], want)
        else:
            assert got["mean"] is got["sd"] is got["max"] is got["score"] is None


def test_channels_that_stand_out_in_a_quarter_of_the_layers(tmp_path):
    layers = [numpy.random.default_rng(i).normal(size=(ROWS, 64)).astype("<f4") for i in range(LAYERS)]
    layers[2][:, 7] *= 30
    layers[5][:, 7] *= 60  # 2 of 8: a quarter
    layers[1][:, 9] *= 30  # 1 of 8
    found = stats(write(tmp_path / "run", layers))
    for row, x in zip(found["layers"], layers):
        assert row["outlier_channels"] == (scores(x.astype(float)) > 6).sum()
    outlier, = found["outlier_channels"]
    near(outlier.pop("score"), scores(layers[5].astype(float))[7])
    assert outlier == {"site": "resid_pre", "channel": 7, "layers": 2, "of_layers": LAYERS, "furthest_layer": 5}


@pytest.mark.parametrize("width", [WIDTH, 2300])
def test_the_same_bits_however_rows_were_captured_and_by_any_threads(tmp_path, width):
    layers = [elements("f32", (ROWS, width), seed) for seed in range(2)]
    layers[1][1, width - 3] = layers[1][2, 4] = 999
    layers[1][9, 6] = numpy.nan
    answers = []
    for i, parts in enumerate([(ROWS,), (1,) * ROWS, (5, 3, 13)]):
        answers.append(stats(write(tmp_path / str(i), layers, parts=parts)))
        del answers[-1]["run"]
        for threads in (2, 5):
            again = stats(tmp_path / str(i), "--threads", threads)
            assert {key: value for key, value in again.items() if key != "run"} == answers[-1], threads
    assert answers[0] == answers[1] == answers[2]
    place = answers[0]["layers"][1]["max"]
    assert (place["value"], place["token"], place["channel"]) == (999, 1, width - 3), "the first of equals"


def test_the_first_token_is_left_out_where_it_is_asked_for(tmp_path):
    x = elements("f32", (ROWS, WIDTH))
    x[0, 507] = 23338
    run = write(tmp_path / "run", [x], parts=(5, 16))
    expect_layer(stats(run)["layers"][0], x.astype(float))
    row = stats(run, "--skip-first")["layers"][0]
    assert row["rows"] == ROWS - 1 and row["rows_skipped"] == 1
    row["max"]["token"] -= 1
    expect_layer(row, x[1:].astype(float))
    tokens = stats(run, "--skip-first", "--by", "token")["tokens"]
    assert [t["token"] for t in tokens] == list(range(1, ROWS))


def test_a_line_a_token(tmp_path):
    layers = [elements("f32", (ROWS, WIDTH), seed) for seed in range(2)]
    layers[1][4, 4] = numpy.nan
    run = write(tmp_path / "run", layers, parts=(5, 3, 13))
    tokens = stats(run, "--by", "token")["tokens"]
    assert stats(run, "--by", "token", "--threads", 2)["tokens"] == tokens
    assert [(t["layer"], t["token"]) for t in tokens] == [(layer, i) for layer in range(2) for i in range(ROWS)]
    for t in tokens:
        x = layers[t["layer"]][t["token"]].astype(float)
        finite = x[numpy.isfinite(x)]
        assert t["nonfinite"] == len(x) - len(finite) and t["max"] == abs(finite).max()
        near(t["mean"], finite.mean(), 1e-6)
        if t["nonfinite"]:
            assert t["norm"] is None
        else:
            near(t["norm"], numpy.sqrt((x ** 2).sum()))


def tensors_of(path):
    """(metadata, {key: array}) of a safetensors file"""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    metadata = header.pop("__metadata__")
    kinds = {"F64": "<f8", "U64": "<u8"}
    return metadata, {key: numpy.frombuffer(data[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]], kinds[e["dtype"]]).reshape(e["shape"])
                      for key, e in header.items()}


def test_a_result_is_a_file_that_says_what_it_is(tmp_path):
    layers = [elements("f32", (ROWS, WIDTH), seed) for seed in range(2)]
    run, path = write(tmp_path / "run", layers, parts=(5, 16)), tmp_path / "stats.safetensors"
    found = stats(run, "-o", path)
    metadata, tensors = tensors_of(path)
    assert metadata["what"] == "stats" and metadata["run"] == kit.UUID_TEXT and metadata["formula"] == "1" and metadata["checks"] == "[]"
    assert json.loads(metadata["parameters"]) == {"skip_first": 0, "quantile_error": 0.00390625} and metadata["tool"].startswith("dmi-analyze ")
    assert json.loads(metadata["layers"]) == found["layers"] and json.loads(metadata["outlier_channels"]) == found["outlier_channels"]
    assert oct(path.stat().st_mode & 0o777) == "0o600" and len(tensors) == 2 * (4 + 3)
    for layer, x in enumerate(layer.astype(float) for layer in layers):
        name = f"resid_pre.{layer}"
        assert numpy.allclose(tensors[f"{name}/channel.mean"], x.mean(axis=0), rtol=1e-9, atol=1e-12)
        assert numpy.allclose(tensors[f"{name}/channel.sd"], x.std(axis=0), rtol=1e-9)
        assert (tensors[f"{name}/channel.max"] == abs(x).max(axis=0)).all()
        assert numpy.allclose(tensors[f"{name}/channel.score"], scores(x), rtol=1e-6)
        assert numpy.allclose(tensors[f"r/{name}/row.norm"], numpy.sqrt((x ** 2).sum(axis=1)), rtol=1e-12)
        assert numpy.allclose(tensors[f"r/{name}/row.mean"], x.mean(axis=1), rtol=1e-9, atol=1e-12)
        assert (tensors[f"r/{name}/row.max"] == abs(x).max(axis=1)).all()
    assert "--force" in analyze("stats", run, "-o", path, status=2).stderr
    stats(run, "-o", path, "--force")
    assert "run" in analyze("stats", run, "-o", run / "x.safetensors", status=2).stderr
    assert sorted(p.name for p in run.iterdir()) == ["counters", "manifest.json", "seg-000000.dmi", "spec.yaml"]


def test_damage_is_counted_and_the_rest_is_answered(tmp_path):
    layers = [elements("f32", (ROWS, WIDTH), seed) for seed in range(2)]
    run = write(tmp_path / "run", layers)
    segment = run / "seg-000000.dmi"
    data = bytearray(segment.read_bytes())
    data[data.index(layers[1].tobytes()) + 99] ^= 1
    segment.write_bytes(data)
    done = analyze("stats", run, "--json", status=1)
    good, bad = json.loads(done.stdout)["layers"]
    expect_layer(good, layers[0].astype(float))
    assert bad["rows"] == 0 and bad["rows_damaged"] == ROWS and bad["mean"] is None and "21 damaged rows" in done.stderr
    assert stats(run, "--by", "token", status=1)["tokens"][-1]["layer"] == 0


@pytest.mark.parametrize("requests, why", [("rs", "from request to request"), ("rr", "from record to record")])
def test_a_layer_of_two_widths_is_left_out_by_name(tmp_path, requests, why):
    sites, x = [kit.site("resid_pre")], numpy.ones((2, 6), "<f4")
    chunks = [kit.sites_chunk(sites)]
    for i, (request, width) in enumerate(zip(requests, (4, 6))):
        chunks.append(kit.chunk(len(chunks), kit.STEPS, kit.step(i, [(request.encode(), 2 * i, 0, 2)])))
        rows = [(0, layer, i, 2 * i + layer + 1, (2, 6 if layer else width), x[:, :6 if layer else width].tobytes()) for layer in range(2)]
        chunks.append(kit.chunk(len(chunks), kit.RECORDS, *kit.records(rows)))
    done = analyze("stats", kit.write(tmp_path / "run", sites, kit.segment(*chunks)), "--json", "-o", tmp_path / "file", status=1)
    left_out, row = json.loads(done.stdout)["layers"]
    assert f"its type or width changes {why}" in done.stderr and "layer 0" in done.stderr and why in left_out["left_out"] and left_out["mean"] is None
    assert row["rows"] == 4 and row["mean"] == 1 and row["left_out"] is None
    assert {key.split("/")[-2] for key in tensors_of(tmp_path / "file")[1]} == {"resid_pre.1"}


def test_text_has_a_line_a_layer(tmp_path):
    x = numpy.zeros((2, 4), "<f4")
    x[1] = [0, 4, 0, 0]
    done = analyze("stats", write(tmp_path / "run", [x], parts=(2,)))
    title, line = done.stdout.splitlines()
    assert title.split() == ["SITE", "LAYER", "ROWS", "NORM", "MEAN", "SD", "KURTOSIS", "MAX", "CHANNEL", "TOKEN", "ZERO", "NONFINITE", "OUTLIERS"]
    assert line.split()[:3] == ["resid_pre", "0", "2"] and line.split()[7:] == ["4", "1", "1", "87.5%", "0.0%", "-"]


def same(a, b):
    """Numbers of Python's objects and of JSON"""
    return (a != a and b is None) or a == b


def test_python_has_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(READ))
    monkeypatch.setenv("DMI_ANALYZE_LIBRARY", str(LIBRARY))
    layers = [elements("f32", (ROWS, WIDTH), seed) for seed in range(2)]
    layers[1][4, 4], layers[1][:, 9] = numpy.nan, numpy.inf
    path = write(tmp_path / "run", layers, parts=(5, 16))
    found, channels, tokens = stats(path), stats(path, "--by", "channel")["channels"], stats(path, "--by", "token")["tokens"]
    with dmi.open(path) as run:
        answer = dmi.stats.stats(run, rows=True, threads=2)
        assert len(answer.layers) == 2 and answer.layer("resid_pre", 1) == answer.layers[1]
        for row, x in zip(found["layers"], answer.layers):
            for name in ("site", "layer", "mean", "sd", "kurtosis", "least", "most", "left_out"):
                assert same(getattr(x, name), row[name]), name
            assert (x.n_channels, x.n_rows, x.n_nan, x.n_infinite, x.n_outliers) == (WIDTH, ROWS, row["nan"], row["infinite"], row["outlier_channels"])
            assert (x.peak.value, x.peak.tensor, x.peak.token, x.peak.channel) == (
                row["max"]["value"], f"r/resid_pre.{x.layer}", row["max"]["token"], row["max"]["channel"])
            assert (x.norm_peak is None) == (row["norm"]["max"] is None) == (x.layer == 1)
            for of, member in (("values", "quantiles"), ("magnitudes", "magnitudes")):
                assert answer.quantile("resid_pre", x.layer, 0.99, of) == row[member]["p99"]
            mine = [c for c in channels if c["layer"] == x.layer]
            for name, member in (("mean", "mean"), ("sd", "sd"), ("peak", "max"), ("score", "score"), ("n_bad", "nonfinite")):
                assert all(same(a, c[member]) for a, c in zip(answer.channels("resid_pre", x.layer)[name].tolist(), mine, strict=True)), name
            mine = [t for t in tokens if t["layer"] == x.layer]
            for name, member in (("norm", "norm"), ("mean", "mean"), ("peak", "max"), ("n_bad", "nonfinite")):
                assert all(same(a, t[member]) for a, t in zip(answer.rows(f"r/resid_pre.{x.layer}")[name].tolist(), mine, strict=True)), name
        assert [(o.channel, o.n_layers, o.score) for o in answer.outliers] == [(o["channel"], o["layers"], o["score"]) for o in found["outlier_channels"]]
        assert dmi.stats.stats(run, skip_first=1).layers[0].n_skipped == 1
        with pytest.raises(ValueError):
            dmi.stats.stats(run).rows("r/resid_pre.0")
        with pytest.raises(dmi.reading.ReadError, match="topk_ids"):
            dmi.stats.routing(run)


def test_an_answer_whenever_the_run_has_grown(tmp_path):
    """While this process locks its counters, the run is alive."""
    x = elements("f32", (ROWS, WIDTH))
    run, out = write(tmp_path / "run", [x], parts=(5, 3, 13)), tmp_path / "stats.safetensors"
    first = (write(tmp_path / "first", [x[:8]], parts=(5, 3)) / "seg-000000.dmi").read_bytes()
    segment = run / "seg-000000.dmi"
    whole = segment.read_bytes()
    assert whole.startswith(first)
    segment.write_bytes(first)
    with open(run / "counters", "r+b") as counters:
        fcntl.lockf(counters, fcntl.LOCK_EX)
        with subprocess.Popen([ANALYZE, "stats", run, "--follow", "-o", out], stdout=subprocess.PIPE, text=True) as tool:
            said = [line_of_a_layer(tool.stdout)]
            with open(segment, "ab") as file:
                file.write(whole[len(first):])
            said.append(line_of_a_layer(tool.stdout))
            assert tool.poll() is None  # the run may grow still
            fcntl.lockf(counters, fcntl.LOCK_UN)
            rest = tool.stdout.read()
    assert [line.split()[2] for line in said] == ["8", str(ROWS)] and "SITE" not in rest and tool.returncode == 0
    once = stats(run)["layers"][0]
    assert f"{once['max']['value']:.4g}" in said[1], said
    assert json.loads(tensors_of(out)[0]["layers"])[0]["rows"] == ROWS


def line_of_a_layer(stream):
    return next(line for line in stream if line.split()[:2] == ["resid_pre", "0"])
