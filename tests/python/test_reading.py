# SPDX-License-Identifier: Apache-2.0
"""dmi.open(): what it gives is what `dmi-dump export` writes, and what make_run.c wrote."""
import json
import os
import pickle
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest
from safetensors import safe_open

from harness import BUILD, DMI_DUMP, ROOT

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "unit")]
import dmi  # noqa: E402
from damage import flip_payload  # noqa: E402
from dmi.run import reading, structs  # noqa: E402

MAKE_RUN, MAKE_ODD_RUN, MAKE_SCHEDULE = (BUILD / "tests" / "unit" / name for name in ("make_run", "make_odd_run", "make_schedule"))
LIBRARY = BUILD / "read" / "libdmi_read.so.1"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN, MAKE_SCHEDULE, LIBRARY)


@pytest.fixture(autouse=True)
def fixture_library(monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARY))


def make(program, folder, *words, text=None):
    subprocess.run([program, folder, *words], input=text, text=True, check=True, stdout=subprocess.PIPE, timeout=60)
    return folder


@pytest.fixture(name="path")
def fixture_path(tmp_path):
    return make(MAKE_RUN, tmp_path / "run")


def value(request, position, layer, column):
    """As make_run.c says."""
    return request + position / 16 + max(layer, 0) / 128 + column / 1024


def exported(path, out):
    subprocess.run([DMI_DUMP, "export", path, "-o", out], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    data = out.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {key: (entry["dtype"], entry["shape"], data[8 + n + entry["data_offsets"][0]:8 + n + entry["data_offsets"][1]])
            for key, entry in header.items()}


@pytest.mark.parametrize("program, kind", [(MAKE_RUN, ()), (MAKE_RUN, ("anonymous",)), (MAKE_RUN, ("killed",)), (MAKE_ODD_RUN, ("drafts",)),
                                           (MAKE_ODD_RUN, ("again",)), (MAKE_ODD_RUN, ("flat",)), (MAKE_ODD_RUN, ("names",))])
def test_what_export_writes(check, tmp_path, program, kind):
    path = make(program, tmp_path / "run", *kind)
    wanted = exported(path, tmp_path / "out.safetensors")
    with dmi.open(path) as run:
        found = {t.key: (t.dtype.upper(), [len(t), int(np.prod(t.shape[1:], dtype=int))], bytes(t.bytes())) for t in run.values()}
        several = {t.key: bytes(data) for t, data in run._several(list(run.values()))}
    # export lays rows out flat
    flat = {key: (dtype, [shape[0], int(np.prod(shape[1:], dtype=int))], data) for key, (dtype, shape, data) in wanted.items()}
    check(found == flat, f"{len(flat)} tensors, each with its rows and bytes", set(found) ^ set(flat))
    check(several == {key: data for key, (_, _, data) in found.items()}, "and the same when they are read at once")


def test_values_and_types(check, path):
    with dmi.open(path) as run:
        q, h, logits, ids = run["france/q.1"], run["france/blocks.1.h"], run["france/logits"], run["france/ids"]
        rows = q.numpy()
        check(rows.shape == q.shape and all(rows.reshape(len(q), -1)[i, c] == np.float32(value(1, p, 1, c))
                                            for i, p in enumerate(q.positions) for c in range(rows[0].size)), "f32, rows by position", rows)
        check(q.positions == list(range(6)) and q[-1].shape == q.shape[1:] and np.array_equal(q[2:4], rows[2:4]), "slices and indices")
        check(np.array_equal(np.asarray(q), rows), "numpy takes it as it is")
        with pytest.raises(TypeError, match="install ml_dtypes"):
            h.numpy()
        wanted = np.array([[value(1, p, 1, c) for c in range(h.float32()[0].size)] for p in h.positions])
        check(h.dtype == "bf16" and np.allclose(h.float32().reshape(len(h), -1), wanted, rtol=2**-7), "bf16 as float32")
        check(logits.site.scale == 4 and np.allclose(logits.float32() * 4, logits.numpy()), "float32() gives true values, numpy() stored ones")
        check(ids.numpy().dtype == np.int32 and list(ids.numpy().ravel()) == [100 + p for p in range(6)], "integers", ids.numpy())


def test_types_of_8_bits(check):
    """All 256 patterns, by the formulas of their definition."""
    def decode(byte, n_exponent, n_fraction, bias, has_infinity):
        sign, e, f = -1 if byte & 128 else 1, byte >> n_fraction & (1 << n_exponent) - 1, byte & (1 << n_fraction) - 1
        if has_infinity and e == (1 << n_exponent) - 1:
            return float("nan") if f else sign * float("inf")
        if not has_infinity and byte & 127 == 127:
            return float("nan")
        return sign * ((f / 2**n_fraction) * 2.0**(1 - bias) if not e else (1 + f / 2**n_fraction) * 2.0**(e - bias))
    every = bytearray(range(256))
    for name, form in (("f8e4m3", (4, 3, 7, False)), ("f8e5m2", (5, 2, 15, True))):
        wanted = np.array([decode(b, *form) for b in range(256)], np.float32)
        check(np.array_equal(reading._float32(every, name), wanted, equal_nan=True), name)


def test_rows_say_where_they_come_from(check, path):
    with dmi.open(path) as run:
        rows = run["france/q.0"].rows()
        check([(r.position, r.step, r.forward) for r in rows] == [(p, 40 + f, f) for p, f in enumerate((0, 0, 0, 1, 2, 3))], "rows", rows)
        check(all(r.damaged is None for r in rows) and not any(r.rejected or r.superseded for r in rows) and rows[0].launch < rows[3].launch, "their launches")
        said = [(r.id, r.state, r.n_prefill, r.n_decode, r.n_cached) for r in run.requests]
        check([r[0] for r in said] == ["france", "../../x\n"] and said[1][4] == 7, "requests", said)


def test_what_there_is_none_of(check, path):
    with dmi.open(path) as run:
        for name, kind, index in (("dmi_read_step", structs._Step, (run.n_steps,)), ("dmi_read_span", structs._Span, (0, 99)),
                                  ("dmi_read_span", structs._Span, (run.n_steps, 0)), ("dmi_read_record", structs._Record, (run.n_records,))):
            with pytest.raises(reading.ReadError, match="no such"):
                run._get(name, kind, structs.U64(index[0]), *map(structs.U32, index[1:]))
        last = run._get("dmi_read_record", structs._Record, structs.U64(run.n_records - 1))
        check(last.launch > 0 and last.n_rows > 0, "the last one is there", last.launch)


def test_step_by_step(check, path):
    with dmi.open(path) as run:
        steps = list(run.steps(float32=True))
        check([(s.step, s.forward) for s in steps] == [(40 + i, i) for i in range(4)], "every step", [(s.step, s.forward) for s in steps])
        check(steps[0].tensors["france/q.0"][0] == [0, 1, 2] and np.array_equal(steps[2].tensors["france/q.0"][1], run["france/q.0"][4:5]),
              "with its rows")
        n = sum(len(positions) for s in steps for positions, _ in s.tensors.values())
        check(n == sum(map(len, run.values())), "all of them", n)
        wrong = [(s.step, key) for s in steps for key, (positions, rows) in s.tensors.items()
                 if positions[0] is not None and not np.array_equal(rows, run[key].float32()[[run[key].positions.index(p) for p in positions]])]
        check(not wrong, "each where it belongs", wrong[:3])


def test_rows_of_the_response(check, tmp_path):
    """A prompt of 3 tokens and 3 that were generated; of resid_mid, scaled by 4, each row is its position."""
    lines = "".join(f"step {i} {n} r:0:{n}:{first}:{phase}:3:0\nput 7 0 2 f32 {' '.join(str(4 * p) for p in range(first, first + n) for _ in range(2))}\n"
                    for i, (first, n, phase) in enumerate(((0, 3, 1), (3, 1, 2), (4, 1, 2), (5, 1, 2))))
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "a", "j", "0", "1", "0", "1", "hidden", text=lines)) as run:
        request, = run.requests
        rows = request.response["resid_mid.0"]
        check((rows.positions, rows.shape, len(rows)) == ([3, 4, 5], (3, 2), 3), "from the first token that was generated", rows)
        check(rows.float32().tolist() == [[p, p] for p in (3, 4, 5)] and rows.float32(slice(1, 2)).tolist() == [[4, 4]], "true values", rows.float32())
        check(rows[0].tolist() == [12, 12] and rows[-1].tolist() == [20, 20] and rows[:2].tolist() == [[12, 12], [16, 16]] and
              bytes(rows.bytes(slice(2, 3))) == bytes(run["r/resid_mid.0"].bytes(slice(5, 6))), "slices and indices are its own")
        check([row.position for row in rows.rows(slice(1, None))] == [4, 5] and list(request.response) == list(request.tensors) == ["resid_mid.0"], "where they come from")
        again = pickle.loads(pickle.dumps(rows))
        check(again.positions == rows.positions and np.array_equal(again.numpy(), rows.numpy()), "in another process")
        with pytest.raises(KeyError, match="near it: resid_mid.0"):
            request.response["resid_mid.1"]
        with pytest.raises(ValueError, match="lacks positions from 3 on"):
            run.select(tokens=(4, 99)).requests[0].response["resid_mid.0"]
    lines = "step 0 1 r:0:1:0:0:0:0\nput 2 0 1 i32 5\n"
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "b", "j", "0", "1", "0", "1", text=lines)) as run, pytest.raises(ValueError, match="where its generation begins"):
        run.requests[0].response["h.0"]


def test_selection(check, tmp_path):
    """Values of make_odd_run's drafts: 100 * forward + position."""
    with dmi.open(make(MAKE_ODD_RUN, tmp_path / "run", "drafts")) as run:
        everything = len(run)
        for tokens, wanted in (("prompt", [0, 1, 2, 3]), ("generated", [104, 105, 206, 307]), ("last", [307]), ((2, 5), [2, 3, 104])):
            view = run.select(requests="a", tokens=tokens)
            check(list(view["a/s0"].numpy().ravel()) == wanted and set(view) == {"a/s0"}, f"tokens={tokens}", view["a/s0"].numpy())
        check({r.position for r in run.select(rejected=True)["a/s0"].rows() if r.rejected} == {6, 7, 8}, "rejected rows")
        check(sum(r.superseded for r in run.select(superseded=True)["b/s0"].rows()) == 4, "superseded rows")
        check(len(run) == len(run.select()) == everything and list(run["a/s0"].numpy().ravel()) == [0, 1, 2, 3, 104, 105, 206, 307], "the run is as it was", len(run))
        check(list(view.select(tokens="prompt")["a/s0"].numpy().ravel()) == [0, 1, 2, 3] and set(view.select(rejected=True)) == {"a/s0"}, "a view of a view: what is said anew")
        again = pickle.loads(pickle.dumps(view.select(tokens="all", rejected=True)))
        check(set(again) == {"a/s0"} and {r.position for r in again["a/s0"].rows() if r.rejected} == {6, 7, 8}, "and of it in another process", again["a/s0"].positions)
        with pytest.raises(ValueError, match="prompt, response"):
            run.select(tokens="some")
        with pytest.raises(KeyError, match="no rank tp=3"):
            run.select(tp=3)


def test_names_of_transformerlens(check, tmp_path):
    text = "step 0 2 a:0:2:0:1:0:0\nput 0 1 4 f32 1 2 3 4 5 6 7 8\nput 2 1 1 f32 1 2\nstep 1 1 b:0:1:0:1:0:0\nput 0 1 4 f32 9 9 9 9\n"
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", text=text)) as run:
        cache = run.cache("a")
        check(set(cache) == {"blocks.1.attn.hook_q", "h.1"} and cache["blocks.1.attn.hook_q"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]],
              "theirs where there is one, else ours", list(cache))
        with pytest.raises(ValueError, match="2 requests: say which"):
            run.cache()
        check([t.key for t in run.tensors(sites="q", layers=1)] == ["a/q.1", "b/q.1"], "tensors()")


def test_what_is_not_there_is_an_error(check, tmp_path):
    """In any call that selects; each names what is near."""
    with dmi.open(make(MAKE_ODD_RUN, tmp_path / "run", "drafts")) as run:
        for call, error, said in ((lambda: run.select(requests="aa"), KeyError, "no request 'aa'; near it: a"), (lambda: run.load(sites="s00"), KeyError, "no site or tensor 's00'; near it: s0"),
                                  (lambda: run.load(requests="zz"), KeyError, "no request 'zz'"), (lambda: run.cache("zz"), KeyError, "no request 'zz'"),
                                  (lambda: run.tensors(layers=7), KeyError, "no layer 7"), (lambda: run.load(layers="5-9"), KeyError, "no layer 5-9"),
                                  (lambda: run.select(sites="s0", layers=3), KeyError, "no layer 3"), (lambda: run.load(layers=True), ValueError, "was expected"),
                                  (lambda: run.load(layers="0:2"), ValueError, "'0:2' is written 0-1"), (lambda: run.select(requests=["a", "zz"]), KeyError, "'zz'"),
                                  (lambda: run.select(requests=[]), ValueError, "no name"), (lambda: run.select(tokens="3-5"), ValueError, "is written 3:6"),
                                  (lambda: run.select(tokens="1:2:3"), ValueError, "is none of"), (lambda: run.select(tokens="5:1"), ValueError, "is none of"), (lambda: run.select(tokens="last[0]"), ValueError, "is none of"),
                                  (lambda: run.select(tokens="prompt[]"), ValueError, "is none of"),
                                  (lambda: run.select(tokens=slice(0, 4, 2)), ValueError, "was expected")):
            with pytest.raises(error, match=said):
                call()
        for tokens, wanted in (("2:4", [2, 3]), (":2", [0, 1]), (slice(6, None), [206, 307]), ((0, None), [0, 1, 2, 3, 104, 105, 206, 307]),
                               ((-3, -1), [105, 206]), (5, [105]), ("-2:", [206, 307]), (-1, [307]), ([0, "4:6", "last"], [0, 104, 105, 307]), ("prompt,-1", [0, 1, 2, 3, 307]),
                               ("response[0:2]", [104, 105]), ("prompt[-1:],generated[-1]", [3, 307]), ("response[2:9]", [206, 307]),
                               (slice(-1), [0, 1, 2, 3, 104, 105, 206])):
            view = run.select(requests="a", tokens=tokens)
            check(list(view["a/s0"].numpy().ravel()) == wanted, f"tokens={tokens}", view["a/s0"].numpy())


def test_rows_without_elements_have_true_values(check, tmp_path):
    with dmi.open(make(MAKE_ODD_RUN, tmp_path / "run", "flat")) as run:
        shapes = {(t.float32().shape, t.numpy().shape) for t in run.values()}
        check(shapes and all(a == b and a[1] == 0 for a, b in shapes), "as many rows as were captured", shapes)
        check(all(array.shape[1] == 0 for array in run.load(float32=True).values()), "and together")


def test_a_tensor_that_is_not_one_is_named(check, tmp_path):
    text = "step 0 1 a:0:1:0:1:1:0\nput 0 1 1 f32 1\nstep 1 1 a:0:1:1:2:1:0\nput 0 1 2 f32 1 2\nput 2 1 1 i32 5\n"
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", text=text)) as run:
        with pytest.warns(RuntimeWarning, match="a/q.1 is left out: it changes its dtype or width"):
            check(set(run.load()) == {"a/h.1"}, "the others are there")


def test_what_the_package_has_by_itself(check):
    done = subprocess.run([sys.executable, "-c", "import dmi; print(dmi.__version__, dmi.export.speculators.__name__)"], stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=60)
    version, name = done.stdout.split()
    check(version.count(".") == 2 and name == "speculators", "dmi.export and dmi.__version__", done.stdout)


def test_a_cache_has_every_position(check, tmp_path):
    text = "step 0 2 a:0:2:2:1:4:0:2\nput 0 1 1 f32 1 2\nput 3 -1 1 f32 5\n"
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", text=text)) as run:
        with pytest.raises(ValueError, match=r"a/q.1 lacks positions 0-1, which a prefix cache had: its rows are not positions"):
            run.cache("a")
        cache = run.select(tokens="2:").cache("a")
        check(cache["blocks.1.attn.hook_q"].tolist() == [[1], [2]] and cache["head"].tolist() == [[5]], "chosen positions are all there", cache)
    text = "step 0 6 a:0:6:0:1:4:0\nput 0 1 1 f32 1 2 3 4 5 6\n"
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "more", "job", "0", "1", "0", "1", text=text)) as run:
        with pytest.raises(ValueError, match=r"a/q.1 has rows of positions that do not follow one another: its rows are not positions"):
            run.select(tokens="0,3:").cache()
        check(run.select(tokens="-2:").cache()["blocks.1.attn.hook_q"].tolist() == [[5], [6]], "a range from the end is one")


def test_a_growing_run(check, path):
    run_folder = next(path.iterdir())
    second = sorted(run_folder.glob("seg-*.dmi"))[1]
    aside = path / "aside"
    second.rename(aside)
    with dmi.open(run_folder) as run:
        tensor, before = run["france/q.0"], run.n_records
        aside.rename(second)
        check(run.refresh() and run.n_records > before, "a refresh takes in what came since", (before, run.n_records))
        check(not run.refresh(), "and one of what is complete does not")
        with pytest.raises(reading.ReadError, match="take the tensor from it again"):
            tensor.numpy()
        check(len(run["france/q.0"]) == 6 and [r.state for r in run.follow()] == ["closed"], "what is closed is followed no further")


def test_damage(check, path):
    flip_payload(sorted(next(path.iterdir()).glob("seg-*.dmi"))[0], 3)
    with dmi.open(path) as run:
        bad = {t.key: [r.position for r in t.rows(check=True) if r.damaged] for t in run.values()}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            read = {t.key: bytes(t.bytes()) for t in run.values()}
            several = {t.key: bytes(data) for t, data in run._several(list(run.values()))}
        check(said and all("damaged" in str(w.message) for w in said), "a warning says it", [str(w.message) for w in said])
        check(read == several, "what is undamaged is there either way")
        check(run.verify() >= 1 and any(f.damage and f.file and f.chunk is not None for f in run.findings), "findings name the place", run.findings)
        check(0 < sum(map(bool, bad.values())) <= len(run), "of some tensors rows are lost, and rows() says which", bad)


def test_what_is_wrong_is_said(check, path, tmp_path):
    with pytest.raises(reading.ReadError, match="nothing"):
        dmi.open(tmp_path / "nothing")
    run = dmi.open(path)
    with pytest.raises(KeyError, match="near it: france/q"):
        run["france/qq.1"]  # pylint: disable=pointless-statement
    with pytest.raises(IndexError, match="step must be 1"):
        run["france/q.1"].numpy(slice(None, None, 2))
    with pytest.raises(IndexError):
        run["france/q.1"][6]  # pylint: disable=pointless-statement
    tensor = run["france/q.1"]
    run.close()
    with pytest.raises(reading.ReadError, match="closed"):
        tensor.numpy()
    run.close()
    check("france" not in repr(run) and "closed" in repr(run), "a run says what it is", repr(run))


def test_the_export_is_read_by_safetensors(check, path, tmp_path):
    """The oracle of these tests is itself read by its real consumer."""
    exported(path, tmp_path / "out.safetensors")
    with safe_open(tmp_path / "out.safetensors", "np") as file, dmi.open(path) as run:
        keys = [t.key for t in run.values() if t.dtype != "bf16"]
        check(keys and all(np.array_equal(file.get_tensor(key).ravel(), run[key].numpy().ravel()) for key in keys), f"{len(keys)} tensors")


@pytest.mark.parametrize("index", (1.5, "0", None, (0, 1), [0], 2**70, slice(0.5, 2), slice("a", None), slice(0, 4, 2), np.zeros(2), ...), ids=repr)
def test_an_odd_index_is_an_index_error(path, index):
    with dmi.open(path) as run:
        tensor = next(t for t in run.values() if len(t) > 1)
        with pytest.raises(IndexError):
            tensor[index]
        if not isinstance(index, int) and index is not None:
            with pytest.raises(IndexError):
                tensor.numpy(index)
        assert (tensor[np.int64(-1)] == tensor.numpy()[-1]).all()
        with pytest.raises(KeyError, match="taken by their key"):
            run[3]


def test_a_run_is_the_same_in_another_process(path, tmp_path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with dmi.open(path.name) as run:
        run = run.select(requests="france", tokens=(1, 3))
        wanted = {key: t.bytes() for key, t in run.items()}
        assert wanted
        tensor = next(iter(run.values()))
        (tmp_path / "pickled").write_bytes(pickle.dumps([run, tensor, run]))
        run.close()
    with pytest.raises(reading.ReadError, match="is closed"):
        pickle.dumps(run)
    with pytest.raises(reading.ReadError, match="is closed"):
        run.select()
    text = ("import pickle, sys\nrun, tensor, same = pickle.load(open(sys.argv[1], 'rb'))\n"
            "assert run is same and tensor.run is run and tensor.bytes() == run[tensor.key].bytes()\n"
            "pickle.dump({key: t.bytes() for key, t in run.items()}, open(sys.argv[2], 'wb'))")
    subprocess.run([sys.executable, "-c", text, tmp_path / "pickled", tmp_path / "read"], check=True, timeout=60, cwd="/",
                   env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert pickle.loads((tmp_path / "read").read_bytes()) == wanted


def test_rows_of_a_tensor_that_changes_stand_alone(check, tmp_path):
    """Two rows of two f32, two of three, one of two f16: one name, layer and request."""
    text = "step 0 2 a:0:2:0:1:3:0\nput 0 1 2 f32 1 2 3 4\nstep 1 2 a:0:2:2:1:3:0\nput 0 1 3 f32 5 6 7 8 9 10\nstep 2 1 a:0:1:4:1:3:0\nput 0 1 2 f16 14336 13312\n"
    with dmi.open(make(MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", text=text)) as run:
        tensor = run["a/q.1"]
        check(tensor.mixed and tensor.positions == [0, 1, 2, 3, 4], "positions", tensor.positions)
        check([(r.dtype, r.shape, r.damaged) for r in tensor.rows(check=True)] == 2 * [("f32", (2,), False)] + 2 * [("f32", (3,), False)] + [("f16", (2,), False)],
              "what each row is", tensor.rows())
        check([tensor[i].tolist() for i in range(5)] == [[1, 2], [3, 4], [5, 6, 7], [8, 9, 10], [0.5, 0.25]] and tensor[4].dtype == np.float16, "each row")
        check(tensor[2:4].tolist() == [[5, 6, 7], [8, 9, 10]] and tensor.float32(slice(-1, None)).tolist() == [[0.5, 0.25]], "rows that are alike")
        for read in (tensor.numpy, tensor.bytes, tensor.float32, lambda: tensor[1:3]):
            with pytest.raises(ValueError, match="a/q.1 changes its dtype or width from record to record, so it is not one tensor"):
                read()
        with pytest.warns(RuntimeWarning, match="a/q.1 is left out: it changes its dtype or width from record to record"):
            check(not run.load(sites="q"), "load() leaves it out by name")
        steps = [{key: (positions, rows.tolist()) for key, (positions, rows) in step.tensors.items()} for step in run.steps()]
        check(steps == [{"a/q.1": ([0, 1], [[1, 2], [3, 4]])}, {"a/q.1": ([2, 3], [[5, 6, 7], [8, 9, 10]])}, {"a/q.1": ([4], [[0.5, 0.25]])}], "steps", steps)


def test_ranks_that_contradict_each_other_are_named_and_not_joined(tmp_path):
    step = "step 0 2 a:0:2:0:1:2:0\nrec 0 0 0 3 1\nrec 2 0 0 6 1\n"
    make(MAKE_SCHEDULE, tmp_path / "two", "job", "0", "2", "0", "1", text=step)
    make(MAKE_SCHEDULE, tmp_path / "two", "job", "1", "2", "0", "1", "sum", text=step)
    run = dmi.open(tmp_path / "two")
    assert list(run) == ["a/h.0"]
    said = [f.text for f in run.findings if f.text.startswith("site q: rank tp 1, pp 0, dp 0 says that it is the sum over tp, and rank tp 0, pp 0, dp 0 ")]
    assert len(said) == 1, run.findings
