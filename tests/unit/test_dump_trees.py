# SPDX-License-Identifier: Apache-2.0
"""dmi-dump export in the layouts of others that are trees of folders: TensorRT-LLM's debug dump, vLLM Hook's artifacts."""
import json
import resource
import subprocess

import numpy
import pytest

from damage import flip_payload
from harness import BUILD, DMI_DUMP, ROOT
from test_dump_formats import WIDTH, element, fixture_export, fixture_write  # noqa: F401

MAKE, MAKE_RUN, MAKE_ODD = (BUILD / "tests" / "unit" / name for name in ("make_schedule", "make_run", "make_odd_run"))
pytestmark = pytest.mark.built(DMI_DUMP, MAKE, MAKE_RUN, MAKE_ODD)


def schedule(folder, *ranks, text, job="job"):
    """A run of one rank: tp, its size, pp, its size."""
    subprocess.run([MAKE, folder, job, *map(str, ranks)], input=text, text=True, check=True, timeout=60)


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def index(folder):
    return [json.loads(line) for line in (folder / "index.jsonl").read_text(encoding="utf-8").splitlines()]


# ---- TensorRT-LLM


def test_tensorrt_llm(write, export, check):  # noqa: F811
    done = export(write(), "tensorrt-llm")
    names = ["resid_final", "resid_pre.0", "resid_pre.1", "resid_pre.3", "token_ids"]
    check(files(done.out) == [f"PP_0/TP_0/iteration_{n}/{name}.npy" for n in range(3) for name in names] + ["index.jsonl"], "a file a tensor and step",
          files(done.out))
    rows = [("a", p) for p in range(4)] + [("b", p) for p in range(2, 5)]
    found = numpy.load(done.out / "PP_0/TP_0/iteration_0/resid_pre.3.npy")
    check(found.dtype == numpy.float32 and found.shape == (8, WIDTH) and
          found[:7].tolist() == [[element(r, p, 3, c) for c in range(WIDTH)] for r, p in rows], "bf16 as f32, rows as in the batch, with its padding", found)
    ids = numpy.load(done.out / "PP_0/TP_0/iteration_1/token_ids.npy")
    check(ids.dtype == numpy.int32 and ids.tolist() == [[-9805], [-9704], [7]], "integers as they are", ids)
    lines = index(done.out)
    steps, tensors = [line for line in lines if "spans" in line], {line["file"]: line for line in lines if "file" in line}
    check([(s["pp"], s["tp"], s["iteration"], s["rows"]) for s in steps] == [(0, 0, 0, 8), (0, 0, 1, 3), (0, 0, 2, 2)] and
          steps[1]["spans"] == [{"request": "b", "first_row": 0, "rows": 1, "first_position": 5}, {"request": "a", "first_row": 1, "rows": 1, "first_position": 4}],
          "whose rows an iteration holds", steps)
    about = tensors["PP_0/TP_0/iteration_2/resid_pre.1.npy"]
    check(len(tensors) == 15 and (about["site"], about["layer"], about["dtype"], about["kept_rows"]) == ("resid_pre", 1, "bf16", None), "and what a file is", about)


def test_tensorrt_llm_ranks(tmp_path, export, check):  # noqa: F811
    """Two tensor parallel ranks of two stages, each with its own columns or layers."""
    for pp in range(2):
        for tp in range(2):
            schedule(tmp_path / "run", tp, 2, pp, 2, text=f"step 7 2 a:0:2:0:1:2:0\nrec 0 {pp} {3 * tp} 3 1\nrec 1 {pp} 0 2 {tp + 1}\n")
    done = export(tmp_path / "run", "tensorrt-llm")
    check(files(done.out) == [f"PP_{pp}/TP_{tp}/iteration_7/{name}.{pp}.npy" for pp in range(2) for tp in range(2) for name in "oq"] + ["index.jsonl"],
          "a folder a rank", files(done.out))
    for pp in range(2):
        for tp in range(2):
            q, o = (numpy.load(done.out / f"PP_{pp}/TP_{tp}/iteration_7/{name}.{pp}.npy") for name in "qo")
            first = (pp + 1) * 128 * 64 * 64
            check(q.tolist() == [[first + row * 64 + 3 * tp + c for c in range(3)] for row in range(2)], f"PP_{pp}/TP_{tp}: its columns", q)
            check(o.tolist() == [[(tp + 1) * (first + row * 64 + c) for c in range(2)] for row in range(2)], f"PP_{pp}/TP_{tp}: its summand", o)
    done = export(tmp_path / "run", "tensorrt-llm", "--rank", "tp=1,pp=0")
    check(files(done.out) == [f"PP_0/TP_1/iteration_7/{name}.0.npy" for name in "oq"] + ["index.jsonl"], "one of them", files(done.out))


def test_tensorrt_llm_ranks_without_a_place(tmp_path, export, check):  # noqa: F811
    for dp in range(2):
        schedule(tmp_path / "run", 0, 1, 0, 1, text=f"dp {dp} 2\nstep 0 1 a{dp}:0:1:0:1:1:0\nrec 2 0 {dp} 2 1\n")
    done = export(tmp_path / "run", "tensorrt-llm", status=2)
    check("two ranks would be PP_0/TP_0" in done.stderr and "--rank dp=R" in done.stderr and not done.out.exists(), "is refused", done.stderr)
    done = export(tmp_path / "run", "tensorrt-llm", "--rank", "dp=1")
    check(numpy.load(done.out / "PP_0/TP_0/iteration_0/h.0.npy").tolist() == [[128 * 4096 + 1, 128 * 4096 + 2]], "unless one is chosen", files(done.out))


def test_tensorrt_llm_without_steps(tmp_path, export, check):  # noqa: F811
    subprocess.run([MAKE_RUN, tmp_path / "run", "anonymous"], check=True, stdout=subprocess.PIPE, timeout=60)
    done = export(tmp_path / "run", "tensorrt-llm")
    lines = index(done.out)
    check(all(line["file"].startswith(f"PP_0/TP_0/iteration_{line['forward']}/") for line in lines) and len({line["forward"] for line in lines}) > 1,
          "an iteration is a forward", lines[:3])


def test_tensorrt_llm_places(tmp_path, export, check):  # noqa: F811
    subprocess.run([MAKE_ODD, tmp_path / "odd", "names"], check=True, timeout=60)
    done = export(tmp_path / "odd", "tensorrt-llm")
    found = files(done.out)
    check(all(len(f.split("/")) == 4 for f in found if f != "index.jsonl") and all(c.isprintable() for f in found for c in f), "no name leads elsewhere", found)
    check({line["file"] for line in index(done.out) if "file" in line} == set(found) - {"index.jsonl"}, "the index has them all", found)
    twice = "step 3 1 a:0:1:0:1:1:0\nrec 2 0 0 2 1\n" + "step 3 1 a:0:1:1:2:1:0\nrec 2 0 0 2 1\nrec 2 0 0 2 5\n"
    schedule(tmp_path / "twice", 0, 1, 0, 1, text=twice)
    done = export(tmp_path / "twice", "tensorrt-llm")
    found = [numpy.load(done.out / f"PP_0/TP_0/iteration_3/h.0{more}.npy").tolist() for more in ("", "~2", "~3")]
    check([f[0][0] for f in found] == [128 * 4096, 129 * 4096, 5 * 129 * 4096], "a number that comes twice overwrites nothing", found)


@pytest.mark.parametrize("dtype, stored", [("f8e4m3", "u1"), ("f64", "<f8"), ("f16", "<f2"), ("bf16", "<f4")])
def test_tensorrt_llm_types(write, export, check, dtype, stored):  # noqa: F811
    done = export(write(steps=[[("a", 0, 1)]], dtype=dtype, layers=(0,), final=False), "tensorrt-llm")
    found = numpy.load(done.out / "PP_0/TP_0/iteration_0/resid_pre.0.npy")
    check(found.dtype == numpy.dtype(stored) and index(done.out)[-1]["dtype"] == dtype, "bits as they are, but bf16", found)
    if dtype in ("f64", "bf16"):
        check(found[0].tolist() == [element("a", 0, 0, c) for c in range(WIDTH)], "its values", found)


def test_tensorrt_llm_selections(write, export, check):  # noqa: F811
    run = write()
    done = export(run, "tensorrt-llm", "--site", "resid_pre", "--layer", "0:2")
    check(files(done.out) == [f"PP_0/TP_0/iteration_{n}/resid_pre.{layer}.npy" for n in range(3) for layer in (0, 1)] + ["index.jsonl"], "sites and layers",
          files(done.out))
    done = export(run, "tensorrt-llm", "--site", "mlp_out", status=1)
    check(not done.out.exists() and "mlp_out" in done.stderr, "nothing selected", done.stderr)
    for words in (("--request", "a"), ("--tokens", "last"), ("--rejected",)):
        done = export(run, "tensorrt-llm", *words, status=2)
        check("do not go with it" in done.stderr and not done.out.exists() and not list(done.out.parent.glob("*partial*")), f"{words[0]} is refused",
              list(done.out.parent.iterdir()))


def test_tensorrt_llm_large(tmp_path, export, check):  # noqa: F811
    """More elements than are converted, or lines of the index than are kept, at a time."""
    text = "step 0 2 a:0:2:0:1:2:0\nwide 0 70000\n" + "".join(f"step {n} 1 a:0:1:{n + 1}:2:2:0\nrec 2 1 0 2 1\n" for n in range(1, 400))
    schedule(tmp_path / "run", 0, 1, 0, 1, text=text)
    done = export(tmp_path / "run", "tensorrt-llm")
    check(numpy.load(done.out / "PP_0/TP_0/iteration_0/h.0.npy").ravel().tolist() == list(range(140000)), "a wide tensor")
    check(sum("file" in line for line in index(done.out)) == 400 == len(files(done.out)) - 1, "every file has a line")
    wide = " ".join(str(i % 251) for i in range(63 * 64))
    schedule(tmp_path / "bf16", *(0, 1, 0, 1), text=f"step 0 63 a:0:63:0:1:63:0\nput 2 0 64 bf16 {wide}\nput 2 1 64 bf16 {wide}\nput 2 2 64 bf16 {wide}\n")
    found = numpy.load(export(tmp_path / "bf16", "tensorrt-llm").out / "PP_0/TP_0/iteration_0/h.2.npy")
    check(found.ravel().tolist() == [i % 251 for i in range(63 * 64)], "bf16 in pieces", found.shape)


def test_tensorrt_llm_kept_rows(export, check):  # noqa: F811
    done = export(ROOT / "tests/golden/v2/valid", "tensorrt-llm")
    kept = {line["file"]: line["kept_rows"] for line in index(done.out) if line.get("kept_rows")}
    shapes = {f: numpy.load(done.out / f).shape for f in kept}
    check(kept == {"PP_0/TP_0/iteration_104/bf16.0.npy": [11, 3, 4, 0, 7, 1]} and list(shapes.values()) == [(2, 3, 4)], "which rows of the batch a file has",
          (kept, shapes))


def test_tensorrt_llm_that_fails(tmp_path, check):
    """A file that becomes too large, after others were written."""
    schedule(tmp_path / "run", 0, 1, 0, 1, text="step 0 2 a:0:2:0:1:2:0\nrec 2 1 0 2 1\nwide 0 70000\n")
    done = subprocess.run([DMI_DUMP, "export", tmp_path / "run", "-f", "tensorrt-llm", "-o", tmp_path / "out"], stderr=subprocess.PIPE, text=True, timeout=60,
                          restore_signals=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)))
    check(done.returncode == 2 and "cannot write" in done.stderr, "is said", done)
    check([p.name for p in tmp_path.iterdir()] == ["run"], "and nothing of it stays", list(tmp_path.iterdir()))


def test_tensorrt_llm_damage(write, export, check):  # noqa: F811
    run = write()
    flip_payload(sorted(run.rglob("seg-*.dmi"))[0], 12)  # resid_pre.1 of the last step
    done = export(run, "tensorrt-llm", status=1)
    check("DAMAGED" in done.stderr and "PP_0/TP_0/iteration_2/resid_pre.1.npy" not in files(done.out) and len(files(done.out)) == 15,
          "a record that cannot be read has no file", (done.stderr, files(done.out)))
