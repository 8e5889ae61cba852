# SPDX-License-Identifier: Apache-2.0
"""dmi-dump export in the layouts of others that are trees of folders: TensorRT-LLM's debug dump, vLLM Hook's artifacts."""
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys

import numpy
import pytest
import safetensors

from damage import flip_payload
from harness import BUILD, DMI_DUMP, ROOT
from test_dump_formats import WIDTH, as_float, element, fixture_export, fixture_write  # noqa: F401

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
    rows = [("a", p) for p in range(4)] + [("b", p) for p in range(3)]
    found = numpy.load(done.out / "PP_0/TP_0/iteration_0/resid_pre.3.npy")
    check(found.dtype == numpy.float32 and found.shape == (8, WIDTH) and
          found[:7].tolist() == [[element(r, p, 3, c) for c in range(WIDTH)] for r, p in rows], "bf16 as f32, rows as in the batch, with its padding", found)
    ids = numpy.load(done.out / "PP_0/TP_0/iteration_1/token_ids.npy")
    check(ids.dtype == numpy.int32 and ids.tolist() == [[-9803], [-9704], [7]], "integers as they are", ids)
    lines = index(done.out)
    steps, tensors = [line for line in lines if "spans" in line], {line["file"]: line for line in lines if "file" in line}
    check([(s["pp"], s["tp"], s["iteration"], s["rows"]) for s in steps] == [(0, 0, 0, 8), (0, 0, 1, 3), (0, 0, 2, 2)] and
          steps[1]["spans"] == [{"request": "b", "first_row": 0, "rows": 1, "first_position": 3}, {"request": "a", "first_row": 1, "rows": 1, "first_position": 4}],
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
    done = export(run, "tensorrt-llm", "--site", "resid_pre", "--layers", "0-1")
    check(files(done.out) == [f"PP_0/TP_0/iteration_{n}/resid_pre.{layer}.npy" for n in range(3) for layer in (0, 1)] + ["index.jsonl"], "sites and layers",
          files(done.out))
    done = export(run, "tensorrt-llm", "--site", "mlp_out", status=2)
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
    check("1 records cannot be read: 2 rows of theirs" in done.stdout, "which is counted", done.stdout)


# ---- vLLM Hook

HEADS, KV_HEADS, DIM = 2, 1, 3
STEPS = [[("a", 0, 4), ("b", 0, 3)], [("b", 3, 1), ("a", 4, 1)], [("a", 5, 1)]]
POSITIONS = {"a": range(6), "b": range(4)}


def qk_lines(steps=STEPS, dtype="bf16", sites=(9, 10), layers=(0, 2), heads=True, first_head=(0, 0), n_heads=(HEADS, KV_HEADS), lacking=(), odd=()):
    """Queries and keys, by their formula: element() of column c; @lacking: (site, layer, step); @odd: (site, layer) whose heads have one element"""
    for number, spans in enumerate(steps):
        words, rows, row = [], [], 0
        for request, position, n in spans:
            words.append(f"{request}:{row}:{n}:{position}:{1 if n > 1 else 2}:0:0")
            rows += [(request, p) for p in range(position, position + n)]
            row += n
        yield f"step {number} {row} {' '.join(words)}"
        for layer in layers:
            for site, begin, n in zip(sites, first_head, n_heads):
                values = " ".join(str(element(r, p, layer + site % 2, begin * DIM + c)) for r, p in rows for c in range(n * DIM))
                if (site, layer, number) not in lacking:
                    yield f"heads {n * DIM if (site, layer) in odd else n if heads else 0}"
                    yield f"put {site} {layer} {n * DIM} {dtype} {values}"


@pytest.fixture(name="hooked")
def fixture_hooked(tmp_path):
    def hooked(name="run", tp=(0, 1), **how):
        subprocess.run([MAKE, tmp_path / name, "job", *map(str, tp), "0", "1", "hidden"], input="".join(f"{line}\n" for line in qk_lines(**how)), text=True,
                       check=True, timeout=60)
        return tmp_path / name
    return hooked


def bits_of(path):
    """{key: array}; bf16 as f32, 8-bit floats as bits"""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    with safetensors.safe_open(path, "np") as file:  # the package checks the file
        keys = set(file.keys())
    entries = {key: entry for key, entry in json.loads(data[8:8 + n]).items() if key != "__metadata__"}
    assert keys == set(entries)
    found = {}
    for key, entry in entries.items():
        first, end = entry["data_offsets"]
        array = numpy.frombuffer(data[8 + n + first:8 + n + end], {"BF16": "<u2", "F32": "<f4", "F8_E5M2": "u1", "F64": "<f8"}[entry["dtype"]])
        found[key] = as_float(array, entry["dtype"]).reshape(entry["shape"])
    return found


def load(folder):
    """(config, {module: (layer, [q of a request], [k of a request])}, qk.json) of each rank, as vLLM Hook's analyzers take them"""
    ranks = []
    for path in sorted(folder.glob("*/tp_rank_*/qk.safetensors")):
        meta, tensors = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")), bits_of(path)
        modules = {}
        for item in meta["layer_order"]:
            q, k = tensors[item["key_q"]], tensors[item["key_k"]]
            lengths = meta.get("q_seq_lens") or meta["seq_lens"]
            queries = [q[i, :lengths[i]] for i in range(meta["batch_size"])] if item["hookq_mode"] == "all_tokens" else list(q)
            modules[item["module_name"]] = item["layer_num"], queries, [k[i, :n] for i, n in enumerate(meta.get("k_seq_lens") or meta["seq_lens"])]
        assert path.parent.name == f"tp_rank_{meta['tp_rank']}" and path.parents[1].name == meta["run"]
        ranks.append((meta["config"], modules, meta, tensors))
    return ranks


def formula(request, site, layer, n_heads, first_head=0):
    return [[element(request, p, layer + site % 2, first_head * DIM + c) for c in range(n_heads * DIM)] for p in POSITIONS[request]]


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f8e5m2", "f64"])
def test_vllm_hook(hooked, export, check, dtype):  # noqa: F811
    done = export(hooked(dtype=dtype), "vllm-hook")
    (config, modules, meta, tensors), = load(done.out)
    check(files(done.out) == sorted(["index.json", f"{meta['run']}/tp_rank_0/qk.json", f"{meta['run']}/tp_rank_0/qk.safetensors"]), "two files", files(done.out))
    check(config == {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 6, "head_dim": 3, "attention_multiplier": 1 / math.sqrt(3)}, "config", config)
    check((meta["requests"], meta["seq_lens"], meta["batch_size"], meta["hookq_mode"]) == (["a", "b"], [6, 4], 2, "all_tokens"), "the batch", meta)
    check(list(modules) == [f"model.layers.{layer}.self_attn.attn" for layer in (0, 2)] and "model__layers__2__self_attn__attn__q" in tensors, "names", list(modules))
    for layer, queries, keys in modules.values():
        for i, request in enumerate("ab"):
            check(queries[i].tolist() == formula(request, 9, layer, HEADS) and keys[i].tolist() == formula(request, 10, layer, KV_HEADS),
                  f"{request}, layer {layer}: exact", queries[i])
    padding = [array[1, 4:] for array in tensors.values()]
    check(all(p.shape[0] == 2 and not p.any() for p in padding), "what lies after a request's tokens is 0", padding)


def test_vllm_hook_attention(hooked, export, check):  # noqa: F811
    """The attention of each request's last token, as Attention Tracker computes it."""
    (config, modules, meta, _), = load(export(hooked(dtype="f32"), "vllm-hook", "--queries", "last", "--layers", "2").out)
    check(meta["hookq_mode"] == "last_token" and "q_seq_lens" not in meta and list(modules) == ["model.layers.2.self_attn.attn"], "one query a request", meta)
    layer, queries, keys = modules["model.layers.2.self_attn.attn"]
    for i, request in enumerate("ab"):
        q = queries[i].reshape(config["num_attention_heads"], config["head_dim"])
        k = keys[i].reshape(len(keys[i]), config["num_key_value_heads"], config["head_dim"])
        scores = numpy.einsum("hd,khd->hk", q / 1e3, k.repeat(2, axis=1)) * config["attention_multiplier"]
        want_q, want_k = numpy.array(formula(request, 9, layer, HEADS)[-1]), numpy.array(formula(request, 10, layer, KV_HEADS))
        want = [[sum(want_q[h * DIM + d] / 1e3 * want_k[t][d] for d in range(DIM)) / math.sqrt(DIM) for t in range(len(want_k))] for h in range(HEADS)]
        check(numpy.allclose(scores, want), f"{request}: scores of the last token", scores)


def test_vllm_hook_ranks(hooked, export, check):  # noqa: F811
    """Queries divided over two ranks: joined, or one by itself."""
    for tp in range(2):
        run = hooked(tp=(tp, 2), dtype="f32", sites=(0, 8), n_heads=(1, 1), first_head=(tp, tp), layers=(0,))
    done = export(run, "vllm-hook")
    (config, modules, _, _), = load(done.out)
    check(config["num_attention_heads"] == 2 and modules["model.layers.0.self_attn.attn"][1][0].tolist() == formula("a", 0, 0, 2), "joined: all heads", config)
    check("q and k are exported" in done.stderr, "that they may be of before the rotary embedding is said", done.stderr)
    (config, modules, meta, _), = load(export(run, "vllm-hook", "--rank", "1").out)
    check(meta["tp_rank"] == 1 and modules["model.layers.0.self_attn.attn"][1][0].tolist() == formula("a", 0, 0, 1, 1), "a rank's own", meta)
    check((config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]) == (2, 2, 6), "whose config is that of all", config)


def test_vllm_hook_sites(hooked, export, check):  # noqa: F811
    """Before and after the rotary embedding."""
    run = hooked(sites=(0, 8, 9, 10), first_head=(0, 0, 0, 0), n_heads=(HEADS, KV_HEADS, HEADS, KV_HEADS), layers=(0,))
    for words, site in (((), 9), (("--site", "q"), 0), (("--site", "q_rot"), 9)):
        done = export(run, "vllm-hook", *words)
        queries = load(done.out)[0][1]["model.layers.0.self_attn.attn"][1]
        check(queries[1].tolist() == formula("b", site, 0, HEADS) and "are exported" not in done.stderr, f"{words}: what attention multiplies, or what is asked for",
              queries[1])


def test_vllm_hook_heads(hooked, export, check):  # noqa: F811
    run = hooked(heads=False)
    done = export(run, "vllm-hook", status=2)
    check("--head-dim says" in done.stderr and not done.out.exists(), "how many elements a head has is not guessed", done.stderr)
    (config, *_), = load(export(run, "vllm-hook", "--head-dim", "3").out)
    check((config["num_attention_heads"], config["head_dim"]) == (2, 3), "it can be said", config)
    for words, said in ((("--head-dim", "4"), "do not divide"), (("--head-dim", "0"), "no number from 1"), (("--queries", "x"), "neither all nor last")):
        done = export(run, "vllm-hook", *words, status=2)
        check(said in done.stderr and not done.out.exists(), f"{words} is refused", done.stderr)
    done = export(run, "vllm", "--queries", "last", status=2)
    check("are for export --format vllm-hook" in done.stderr, "elsewhere too", done.stderr)


def test_vllm_hook_has_requests_in_the_order_of_their_first_steps(hooked, export, check):  # noqa: F811
    steps = [[("b", 0, 2)], [("a", 0, 3), ("b", 2, 1)], [("B", 0, 2)]]
    (_, modules, meta, _), = load(export(hooked(steps=steps, dtype="f32"), "vllm-hook").out)
    check((meta["requests"], meta["seq_lens"]) == (["b", "a", "B"], [3, 3, 2]), "in qk.json", meta)
    for layer, queries, _ in modules.values():
        for i, (request, n) in enumerate((("b", 3), ("a", 3), ("B", 2))):
            check(queries[i].tolist() == [[element(request, p, layer + 1, c) for c in range(HEADS * DIM)] for p in range(n)], f"{request}: its own rows", queries[i])


@pytest.mark.parametrize("odd, status, said", [({(9, 2), (10, 2)}, 1, ".2 has heads of another number or size"), ({(10, 2)}, 1, ".2 has heads of another number or size"),
                                               ({(10, 0), (10, 2)}, 2, ".0 has heads of another size")])
def test_vllm_hook_refuses_heads_that_differ(hooked, export, check, odd, status, said):  # noqa: F811
    done = export(hooked(dtype="f32", odd=odd), "vllm-hook", status=status)
    check(said in done.stderr and not done.out.exists(), "by name", done.stderr)


def test_vllm_hook_multiplier(hooked, export, check):  # noqa: F811
    (config, *_), = load(export(hooked(), "vllm-hook", "--multiplier", "0.0078125").out)
    check(config["attention_multiplier"] == 0.0078125, "as it was said", config)
    for wrong in ("0", "-1", "nan", "inf", "x"):
        done = export(hooked(wrong), "vllm-hook", "--multiplier", wrong, status=2)
        check("is no number above 0" in done.stderr, wrong, done.stderr)


def test_vllm_hook_what_lacks(hooked, export, check):  # noqa: F811
    done = export(hooked("gap", lacking={(10, 2, 2)}), "vllm-hook", status=1)
    check("request 'a' is left out: k_rot.2 lacks position 5" in done.stderr, "keys that lack tokens", done.stderr)
    (_, modules, meta, _), = load(done.out)
    check(meta["requests"] == ["b"] and modules["model.layers.0.self_attn.attn"][1][0].tolist() == formula("b", 9, 0, HEADS), "the other is there", meta)
    done = export(hooked("one", steps=[[("a", 0, 2)], [("b", 0, 2)]], lacking={(9, 2, 0)}), "vllm-hook", status=1)
    check("request 'a' is left out: q_rot.2 is not there" in done.stderr, "a layer of one request", done.stderr)
    for name, how, words, said in (("keyless", {"lacking": {(10, layer, n) for layer in (0, 2) for n in range(3)}}, (), "a site k_rot is there"),
                                   ("nothing", {"steps": []}, (), "a site q is there"), ("none", {}, ("--request", "z"), "z"),
                                   ("other", {}, ("--layers", "1"), "has no layer 1; there is 0,2"), ("site", {}, ("--site", "q"), "a site q is there")):
        done = export(hooked(name, **how), "vllm-hook", *words, status=2 if name in ("none", "other") else 1)
        check(said in done.stderr and not done.out.exists(), name, done.stderr)
    done = export(hooked("resid"), "vllm-hook", "--site", "resid_pre", status=2)
    check("begins with q" in done.stderr, "a site that is none of queries", done.stderr)


def test_vllm_hook_names_and_damage(hooked, export, check):  # noqa: F811
    names = ["../../x", "/etc/x", "a\x01", "x" * 60]
    run = hooked("names", steps=[[(name, 0, 2) for name in names]])
    done = export(run, "vllm-hook")
    (_, _, meta, _), = load(done.out)
    check(sorted(meta["requests"]) == sorted(names) and len(files(done.out)) == 3, "requests are not file names", meta["requests"])
    run = hooked("damaged")
    flip_payload(sorted(run.rglob("seg-*.dmi"))[0], 8)  # of the last step
    done = export(run, "vllm-hook", status=1)
    (_, _, meta, _), = load(done.out)
    check(meta["requests"] == ["b"] and "DAMAGED" in done.stderr and "request 'a' is left out" in done.stderr, "no zeros in place of what is damaged",
          (meta, done.stderr))
    done = export(hooked("some"), "vllm-hook", "--tokens", "prompt", "--request", "a")
    (_, modules, meta, _), = load(done.out)
    check(meta["positions"] == [[[0, 4]]], "whose positions they are is beside them", meta)
    check(meta["seq_lens"] == [4] and modules["model.layers.2.self_attn.attn"][1][0].tolist() == formula("a", 9, 2, HEADS)[:4], "tokens are chosen", meta)
    (_, modules, meta, _), = load(export(hooked("parts"), "vllm-hook", "--tokens", "1,-2:", "--request", "a", out="chosen").out)
    check(meta["positions"] == [[[1, 1], [4, 2]]] and modules["model.layers.2.self_attn.attn"][1][0].tolist() == [formula("a", 9, 2, HEADS)[i] for i in (1, 4, 5)],
          "also where they do not follow one another", meta)


# ---- runs that are not as they should be


@pytest.mark.parametrize("form", ["tensorrt-llm", "vllm-hook"])
def test_odd_and_hostile_runs(tmp_path, check, form):
    """Whatever a segment holds, the export ends by itself, and what it could not write is gone."""
    segments = sorted((ROOT / "tests/golden/v2").glob("*/*.dmi"))
    check(len(segments) > 50, "segments", len(segments))
    for segment in segments:
        done = subprocess.run([DMI_DUMP, "export", segment, "-f", form, "-o", tmp_path / "out"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        there = (tmp_path / "out").exists()
        left = [p.name for p in tmp_path.iterdir() if p.name != "out"]
        if done.returncode not in (0, 1, 2) or left or (done.returncode == 2 and there):
            check(False, segment.name, (done.returncode, done.stderr[-500:], left))
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


# ---- memory


@pytest.mark.parametrize("form, words", [("tensorrt-llm", ()), ("vllm-hook", ("--head-dim", "100"))])
def test_memory_is_bounded(tmp_path, check, form, words):
    """Of 200 MB in records of 2 MB, some at a time are in memory."""
    if os.environ.get("DMI_TEST_RUNTIME"):
        pytest.skip("a sanitizer keeps what is freed")
    text = "".join(f"step {n} 50 a:0:50:{50 * n}:1:{50 * n + 50}:0\nwide 0 10000 9\nwide 0 10000 10\n" for n in range(50))
    subprocess.run([MAKE, tmp_path / "run", "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
    program = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    done = subprocess.run([sys.executable, "-c", program, DMI_DUMP, "export", tmp_path / "run", "-f", form, "-o", tmp_path / "out", *words],
                          stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    check(written > 200e6 and int(done.stdout) < 60e3, "less than a third of it", f"{done.stdout.strip()} KiB for {written} bytes")


def test_vllm_hook_is_a_dataset_of_several_runs(hooked, export, check, tmp_path):  # noqa: F811
    """A batch a run; a second call adds nothing, and what is asked for otherwise is refused."""
    one, two = hooked(dtype="f32"), hooked("two", dtype="f32", steps=[[("a", 0, 3), ("c", 0, 2)]])
    out = export(one, "vllm-hook", two).out
    batches = {meta["run"]: meta for _, _, meta, _ in load(out)}
    said = json.loads((out / "index.json").read_text(encoding="utf-8"))["samples"]
    check([(s["run"], s["request"]) for s in said] == [(run, name) for run in dict.fromkeys(s["run"] for s in said) for name in batches[run]["requests"]] and
          [s["tokens"] for s in said] == [6, 4, 3, 2] and all((out / s["file"]).is_file() for s in said), "samples are numbered through", said)

    def again(*words, status=0):
        return subprocess.run([DMI_DUMP, "export", "-f", "vllm-hook", "-o", out, "--append", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=60)
    done = again(two, one)
    check(done.returncode == 0 and "samples: 0 written, 4 there already, 0 left out" in done.stdout, "nothing twice", (done.stdout, done.stderr))
    three = hooked("three", dtype="f32", steps=[[("d", 0, 2)]])
    for words, said in (([three, "--queries", "last"], '"queries"'), ([three, "--layers", "2"], '"layers"')):
        done = again(*words)
        check(done.returncode == 2 and said in done.stderr and len(load(out)) == 2, f"{words}: by name", done.stderr)
    done = again(three)
    check(done.returncode == 0 and len(load(out)) == 3, "another run", done.stderr)
    only = export(one, "vllm-hook", "--request", "a", out="only").out
    done = subprocess.run([DMI_DUMP, "export", "-f", "vllm-hook", "-o", only, "--append", one], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, timeout=60)
    check(done.returncode == 2 and "without request 'b'" in done.stderr, "a batch is not added to", done.stderr)
