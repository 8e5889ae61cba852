# SPDX-License-Identifier: Apache-2.0
"""Edits in the serving engine: what is written, for one request of several, against the same edits in Hugging Face.

  cells      the edits of reference/edit_cells.py, eagerly, in graphs and piecewise: every site of the edited request that an edit reaches is
             within 1e-5 of Hugging Face's edited activations, greedy tokens are equal, and sites before the first edit have the
             bits of a run without the library; so has every row of all other requests
  bfloat16   the same within 1.5 times Hugging Face's own bfloat16 error, with its edits
  idle       places without edits, and edits for no request: the bits of a run without the library
  tinygrad   its graphs: a request is edited after others made the graphs, within 3e-3 a row; before and after it the same prompt has the same bits
  caches     rows of a prompt that edited requests have in the prefix cache go to those with the salt of the edits alone
  ranks      edits of what ranks divide, sum and repeat: as in one process, and what cannot be is missed by name
  curve      the score of a concept rises with the coefficient as Hugging Face's does, and is its when the concept is taken out

--long takes every cell in every mode, and chunks, preemption, drafts and random delays of streams.
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import uuid

import pytest

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("safetensors")
from safetensors.numpy import load_file  # noqa: E402

import edit_cells  # noqa: E402
import serving  # noqa: E402
from edit_cells import CELLS, CURVE, N_TOKENS  # noqa: E402
from serve.dtypes import from_bf16  # noqa: E402
from sketch import sketch  # noqa: E402
from test_edit_changes import Accounts  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
F32_BOUND = 1e-5
BF16_FACTOR = 1.5
SKETCH_FACTOR = 4  # eight columns estimate a row's norm within a factor of 2: above and below the line, that is 4
MIXED = ["france", "count", "one"]
REFERENCE = serving.REFERENCE / "edits.safetensors"
SAID = json.loads((serving.REFERENCE / "edits.json").read_text())
MODES = {
    "eager": [],
    "graph": ["--mode", "graph"],
    "piecewise": ["--mode", "piecewise"],
    "chunked": ["--mode", "piecewise", "--chunk", "7"],
    "alone": ["--batch", "1"],
    "preempted": ["--mode", "graph"],
    "speculative": ["--mode", "graph", "--speculate", "3", "--draft-layers", "1"],
}
# Both requests that cells edit give their blocks back while they generate, and come in another order.
PREEMPTED = {"steps": {"3": {"preempt": ["france"]}, "5": {"preempt": ["count"]}, "6": {"order": ["count", "one", "france"]}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("edits"), layers=edit_cells.LAYERS)


@functools.cache
def reference():
    return load_file(REFERENCE)


def requests(dtype="float32", cell=None):
    """All sample their tokens; in bfloat16 all are forced, the edited one to what Hugging Face samples in float32."""
    if dtype == "float32":
        return [{**request, "ignore_stop": True} for request in serving.free(*MIXED, tokens=N_TOKENS)]
    some = serving.some(*MIXED, tokens=N_TOKENS)
    return [{**r, "forced_tokens": SAID["tokens"][cell]} if r["id"] == CELLS[cell]["request"] else r for r in some]


def edits_text(entries):
    vectors = {name: {"file": str(REFERENCE), "tensor": f"vector/{name}", **how} for name, how in edit_cells.VECTORS.items()}
    return edit_cells.text_of(entries, vectors)


@pytest.fixture(scope="module")
def plain(server):
    """plain(dtype, cell) - the same requests without the library, dumped"""
    def plain(dtype, cell=None):
        return server.serve(f"plain-{dtype}-{cell}", requests(dtype, cell), "--no-prefix-cache", dtype=dtype, dump=True)
    return functools.cache(plain)


# ---- comparisons

def relative(x, y):
    """(of the tensor, of the worst row): norm of the difference over norm"""
    off, norms = np.linalg.norm(x - y, axis=1), np.linalg.norm(y, axis=1)
    return np.linalg.norm(off) / np.linalg.norm(norms), (off / norms).max()


def errors(tensors, cell, request=None):
    """{site with layer: (of the tensor, of the worst row)} of what the edited request has, against the reference of @cell."""
    found, request = {}, request or CELLS[cell]["request"]
    for key in (key.partition("/")[2] for key in reference() if key.startswith(f"{cell}/")):
        positions, rows = tensors[request, key]
        want = reference()[f"{cell}/{key}"]
        kept = [i for i, p in enumerate(positions) if p < len(want)]  # drafts may go on beyond the last token
        rows = rows[kept].reshape(len(kept), -1)
        found[key] = relative(sketch(from_bf16(rows) if rows.dtype == np.uint16 else rows), want[[positions[i] for i in kept]])
    return found


def same_bits(got, want, keys, below=None):
    """Complaints: rows of @keys are those of the run without the library, at positions below @below."""
    wrong = []
    for key in keys:
        if key not in got:
            wrong.append(f"{key} is missing")
            continue
        mine, theirs = dict(zip(*got[key])), dict(zip(*want[key]))
        at = [p for p in theirs if below is None or p < below]
        wrong += [f"{key} at {p}" for p in at if p not in mine or mine[p].tobytes() != theirs[p].tobytes()][:2]
    return wrong


def captured(check, what, served):
    """{(request, site with layer): (positions, rows)} of what was captured, all of it."""
    counters = harness.Counters(served.run)
    expected, got = (sum(tallies, harness.Tally()) for tallies in (counters.expected, counters.captured))
    check(expected == got and expected.records, f"{what}: captured all of {expected}", got)
    harness.run([DMI_DUMP, "verify", served.run])
    problems = [line for line in served.stderr.splitlines() if line.startswith("dmi:") and not re.search(r"armed|in force|edits add|rows written of \d+ due$", line)]
    check(not problems, f"{what}: the library reports no problem", problems[:5])
    return serving.exported_rows(served.out, served.folder / "export")


def check_accounts(check, what, served, request):
    """Every row that an edit wanted was written; an edit of one layer, and all tokens, wanted each row that the request computed."""
    accounts = Accounts(served.run / "edits")
    due, written = (sum(account[i] for account in accounts.all) for i in (2, 3))
    check(due == written > 0 and not any(account[4] for account in accounts.all), f"{what}: all of {due} rows that are due are written", accounts.all)
    rows = sum(item["n"] + item["drafts"] for step in served.trace for item in step["items"] if item["request"] == request)
    check(what.split()[0] != "add" or accounts.of("edit-0")[0] == rows, f"{what}: {rows} rows were computed", accounts.all)


def check_others(check, what, served, tensors, plain, edited=()):
    """All requests but the @edited ones are as without the library."""
    others = [name for name in MIXED if name not in edited]
    check([served.sampled[name] for name in others] == [plain.sampled[name] for name in others], f"{what}: tokens of the others are the same")
    want = plain.dump().tensors()
    keys = [key for key in want if key[0] in others and not key[1].startswith("final_logits")]
    wrong = same_bits(tensors, want, keys)
    check(not wrong and len(keys) > 300 * len(others), f"{what}: {len(keys)} tensors of the others are the same bits", wrong[:5])


# ---- cells

def serve_cell(server, cell, mode, dtype="float32", **env):
    entries = edit_cells.named(CELLS[cell]["edits"], CELLS[cell]["request"])
    (server.folder / "schedule").write_text(json.dumps(PREEMPTED))
    options = ["--no-prefix-cache", *MODES[mode], *(["--schedule", server.folder / "schedule"] if mode == "preempted" else [])]
    name = "-".join([cell, mode, dtype, *map(str, env.values())])
    return server.serve(name, requests(dtype, cell), *options, dtype=dtype, spec=serving.spec_text(dtype),
                        edits=edits_text(entries), **env)


def check_reached(check, what, off, least=200):
    """@off, of errors(), is within the bound."""
    wrong = [f"{key}: tensor {t:.1e}, row {r:.1e}" for key, (t, r) in off.items() if not (t <= F32_BOUND and r <= SKETCH_FACTOR * F32_BOUND)]
    worst = max((t, key) for key, (t, _) in off.items())
    check(not wrong and len(off) > least, f"{what}: {len(off)} tensors within {F32_BOUND} of Hugging Face's, the worst {worst[0]:.1e}", wrong[:8])


def check_cell(check, server, plain, cell, mode, **env):
    what, request = f"{cell} {mode}", CELLS[cell]["request"]
    served, alone = serve_cell(server, cell, mode, **env), plain("float32")
    happened(check, what, mode, served)
    tensors = captured(check, what, served)
    check(served.sampled[request] == SAID["tokens"][cell], f"{what}: greedy tokens are Hugging Face's", served.sampled[request])
    check_reached(check, what, errors(tensors, cell))
    without = errors(alone.dump().tensors(), cell) if alone.sampled[request] == served.sampled[request] else {}
    check(not without or max(t for t, _ in without.values()) > 100 * F32_BOUND, f"{what}: without the edits they are not")
    check_accounts(check, what, served, request)
    check_others(check, what, served, tensors, alone, (request,))
    want, n_prompt = alone.dump().tensors(), len(serving.REQUESTS[request]["prompt_tokens"])
    before = [key for key in want if key[0] == request and f"{cell}/{key[1]}" not in reference() and key[1] not in ("token_ids", "final_logits")]
    wrong = same_bits(tensors, want, before, n_prompt)
    check(not wrong and (before or cell == "project_out"), f"{what}: {len(before)} tensors before the edits are the same bits", wrong[:5])


def happened(check, what, mode, served):
    """What a mode is there for did take place."""
    items = [item for step in served.trace for item in step["items"]]
    if "--mode" in MODES[mode]:
        check(any(step["replayed"] for step in served.trace), f"{what}: graphs were replayed")
    if mode == "preempted":
        preempted = [name for step in served.trace for name in step["preempted"]]
        check({"france", "count"} <= set(preempted), f"{what}: requests were", preempted)
    if mode == "chunked":
        check(sum(item["request"] == "count" and item["start"] < 17 for item in items) > 2, f"{what}: a prompt came in several steps")
    if mode == "speculative":
        check(any(item["drafts"] for item in items), f"{what}: there were drafts")


SHORT = [("add", "graph"), ("project_out", "piecewise"), ("kept", "speculative")]


@pytest.mark.parametrize("cell, mode", [
    *SHORT, *(pytest.param(cell, mode, marks=pytest.mark.long) for cell in CELLS for mode in MODES if (cell, mode) not in SHORT)])
def test_cells(check, server, plain, cell, mode):
    check_cell(check, server, plain, cell, mode)


@pytest.mark.long
def test_delays(check, server, plain, seeds):
    """Kernels of different streams at random times."""
    for seed in range(seeds(1, 10)):
        cell = list(CELLS)[seed % len(CELLS)]
        check_cell(check, server, plain, cell, "graph", DMI_STANDIN_DELAY_SEED=seed + 1, DMI_STANDIN_DELAY_MAX_NS=20000)


@pytest.mark.parametrize("cell, mode", [("add", "graph"), *(pytest.param(cell, mode, marks=pytest.mark.long) for cell, mode in (
    ("add", "eager"), ("project_out", "piecewise"), ("project_out", "graph"), ("kept", "eager"), ("columns", "piecewise")))])
def test_bfloat16(check, server, plain, cell, mode):
    what, request = f"{cell} {mode} bfloat16", CELLS[cell]["request"]
    # of all requests, as a single one says little: with edits and without
    known = {site: {key: max(error[key], serving.HF_BF16_ERROR[site][key]) for key in error} for site, error in SAID["hf_bf16_error"].items()}
    served = serve_cell(server, cell, mode, "bfloat16")
    tensors = captured(check, what, served)
    worst = {}
    for key, (tensor, row) in errors(tensors, cell).items():
        site = key.split(".")[0]
        worst[site] = [max(a, b) for a, b in zip(worst.get(site, (0, 0)), (tensor, row))]
    wrong = [f"{site}: tensor {t:.1e} of {known[site]['tensor']:.1e}, row {r:.1e} of {known[site]['token']:.1e}" for site, (t, r) in worst.items()
             if t > BF16_FACTOR * known[site]["tensor"] or r > BF16_FACTOR * SKETCH_FACTOR * known[site]["token"]]
    check(not wrong and len(worst) > 12, f"{what}: {len(worst)} sites within {BF16_FACTOR} of Hugging Face's own error", wrong)
    check_others(check, what, served, tensors, plain("bfloat16", cell), (request,))


# ---- prefix caches and ranks

HOLD = """
from cuda.bindings import driver as cu
cu.cuInit(0)
cu.cuCtxCreate(None, 0, 0)
print(flush=True)
input()
"""


def salt_of(folder, edits, request):
    """The salt of the edits that @request would get, as dmi-ctl names it in a process that waits."""
    folder.mkdir()
    (folder / "spec.yaml").write_text(serving.spec_text("float32"))
    (folder / "edits.yaml").write_text(edits)
    command = [DMI_RUN, "--spec", folder / "spec.yaml", "--edits", folder / "edits.yaml", "--out", folder / "run", "--", sys.executable, "-c", HOLD]
    with subprocess.Popen([str(word) for word in command], env=harness.environment(DMI_CONTROL=1), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as held:
        held.stdout.readline()
        answer = harness.run([BUILD / "tools" / "dmi-ctl", "--json", harness.only_run(folder / "run"), "edit", "salt", request])
        held.communicate("\n", timeout=60)
    return json.loads(answer.stdout)["salt"]


def test_prefix_caches(check, server, plain):
    """Requests of one prompt: cached rows of edited ones go to those with their salt alone."""
    edits = edits_text(edit_cells.named(CELLS["project_out"]["edits"], "x*"))
    salt = salt_of(server.folder / "salt", edits, "x1")
    prompt = {"prompt_tokens": serving.REQUESTS["count"]["prompt_tokens"], "max_tokens": N_TOKENS, "ignore_stop": True}
    tags = {"tags": {"cache_salt": f"mine/{salt}"}}
    served = server.serve("caches", [{"id": "x1", **prompt, **tags}, {"id": "y", "arrival": 10, **prompt}, {"id": "x2", "arrival": 10, **prompt, **tags},
                                     {"id": "x3", "arrival": 12, **prompt}], "--mode", "graph", spec=serving.spec_text("float32"), edits=edits)
    tensors = serving.exported_rows(served.out, served.folder / "export")
    cached = {r["id"]: sum(i["cached"] for step in served.trace for i in step["items"] if i["request"] == r["id"]) for r in served.results}
    check(cached == {"x1": 0, "y": 0, "x2": 16, "x3": 16}, "cached are rows of the same salt", cached)
    for request in ("x1", "x2"):
        check(served.sampled[request] == SAID["tokens"]["project_out"], f"{request}: tokens are Hugging Face's", served.sampled)
        check_reached(check, request, errors(tensors, "project_out", request))
    want = plain("float32").dump().tensors()
    for request in ("y", "x3"):
        got = {key: rows for (name, key), rows in tensors.items() if name == request}
        alone = {key: dict(zip(*want["count", key])) for key in got}
        wrong = [f"{key} at {p}" for key, rows in got.items() for p, row in zip(*rows) if row.tobytes() != alone[key][p].tobytes()]
        check(not wrong and len(got) > 300, f"{request}, without the salt: {len(got)} tensors have the bits of a run without the library", wrong[:5])
    accounts = [Accounts(served.run / "edits").of(f"edit-{i}") for i in range(3)]
    check(accounts == [(n * 56, n * 32, {"cache_shared": n * 8, "cached": n * 16}) for n in (1, 30, 30)],
          "rows of the one without the salt are missed: those that it computed and those that it took from the cache", accounts)


def divided(parts):
    """The HookSpec with places that ranks divide: heads of z and columns of mlp_post, of which each has a part as large as @parts says."""
    head, *sites = re.split(r"(?m)^(?=  - name: )", serving.spec_text("float32"))
    for i, site in enumerate(sites):
        if site.startswith("  - name: z\n"):
            sites[i] = site.replace("{count: 'arg[8].i32'}", "{count: 'arg[8].i32 / 64'}, {count: 64}").replace("of: tp}", f"of: tp, parts: {parts}}}") + "    write: {}\n"
        if site.startswith("  - name: mlp_post\n"):
            sites[i] = site.replace("of: tp}", f"of: tp, parts: {parts}}}") + "    write: {}\n"
    return head + "".join(sites)


def rank_edits(folder):
    """(those that ranks can do, those that they cannot), with the part of the rows that are due on each of them: all, one rank's, or none."""
    dice, vectors = np.random.default_rng(5), {}
    for name, n in (("row", 576), ("head", 64), ("three", 3)):
        np.save(folder / f"{name}.npy", dice.normal(size=n).astype(np.float32))
        vectors[name] = {"file": str(folder / f"{name}.npy")}
    can = [{"name": "row", "site": "z", "layers": "0", "do": [{"add": "row"}]}, {"name": "last-head", "site": "z", "layers": "0", "heads": "8", "do": [{"add": "head"}]},
           {"name": "columns", "site": "mlp_post", "layers": "0", "columns": "5,800,1535", "do": [{"set": "three"}]},
           {"name": "along-heads", "site": "z", "layers": "1", "do": [{"project_out": "head"}]}, {"name": "summand", "site": "mlp_out", "layers": "0", "do": [{"add": "row"}]},
           {"name": "all", "site": "embed", "do": [{"scale": 1.5}]}]
    cannot = [{"name": "along-row", "site": "z", "layers": "1", "do": [{"project_out": "row"}]}, {"name": "double", "site": "mlp_out", "layers": "1", "do": [{"scale": 2}]}]
    return [[{**e, "requests": "france"} for e in some] for some in (can, cannot)], vectors


@pytest.mark.parametrize("n, parts", [(2, [2, 1]), pytest.param(3, [1, 1, 1], marks=pytest.mark.long)], ids=["uneven", "three"])
def test_ranks(check, server, tmp_path, n, parts):
    """Vectors, columns and heads are cut by rank, one rank adds to a sum, and each does the same to what all have: as one process does. Sums over what
    ranks divide, and other operations on a summand, are missed as `rank`, and said."""
    (can, cannot), vectors = rank_edits(tmp_path)
    requests = serving.free("france", "count", tokens=3)
    options = ["--no-prefix-cache", "--mode", "graph"]
    spec = divided(parts)
    one = server.serve(f"one-{n}", requests, *options, layers=2, spec=spec, edits=edit_cells.text_of(can, vectors))
    plain = server.serve(f"ranks-plain-{n}", requests, *options, "--ranks", n, layers=2, spec=spec)
    served = server.serve(f"ranks-{n}", requests, *options, "--ranks", n, layers=2, spec=spec, edits=edit_cells.text_of(can + cannot, vectors))
    check(served.tokens == one.tokens and served.tokens["count"] == plain.tokens["count"], "tokens are those of one process", [served.tokens, one.tokens])
    got, want, before = (serving.exported_rows(s.out, s.folder / "export") for s in (served, one, plain))
    off = {key: relative(rows, want[key][1])[1] for key, (_, rows) in got.items() if key[0] == "france" and key[1] != "token_ids"}
    check(len(off) > 25 and max(off.values()) < F32_BOUND, "each site is as in one process", sorted(off.items(), key=lambda item: -item[1])[:4])
    check(any(relative(got[key][1], before[key][1])[1] > 0.1 for key in off), "the edits do something")
    others = [key for key in got if key[0] == "count"]
    check(len(others) > 25 and all(got[key][1].tobytes() == before[key][1].tobytes() for key in others), "the other request has the bits that it has without edits")
    runs = sorted(harness.runs_of(served.out), key=lambda run: json.loads((run / "manifest.json").read_text()).get("ranks", {}).get("tp", [0])[0])
    accounts = {e["name"]: sorted(Accounts(run / "edits").of(e["name"]) for run in runs) for e in can + cannot}
    rows = 7
    every, first = [(rows, rows, {})] * n, [(0, 0, {})] * (n - 1) + [(rows, rows, {})]
    missed = [(rows, 0, {"rank": rows})] * n
    wanted = {"row": every, "last-head": first, "columns": every, "along-heads": every, "summand": first, "all": every, "along-row": missed, "double": missed}
    check(accounts == wanted, "accounts", accounts)
    for words in ('"along-row" writes nothing here: it needs a sum over a row that ranks divide', '"double" writes nothing here: each rank of tp has a summand of mlp_out'):
        check(words in served.stderr, "why nothing is written is said", served.stderr[-2000:])


@pytest.mark.long
@pytest.mark.parametrize("n, parts", [(1, "equal"), (2, [2, 1])], ids=["stages", "ranks-in-stages"])
def test_stages(check, server, tmp_path, n, parts):
    """Each stage does what edits say of its layers, as one process does; in another stage no row is due."""
    (can, _), vectors = rank_edits(tmp_path)
    requests, spec, text = serving.free("france", "count", tokens=3), divided(parts), edit_cells.text_of(can, vectors)
    one = server.serve(f"one-stage-{n}", requests, "--no-prefix-cache", "--mode", "graph", layers=2, spec=spec, edits=text)
    served = server.serve_parts(f"stages-{n}", requests, "--no-prefix-cache", "--mode", "graph", "--ranks", n, "--stages", 2, layers=2, spec=spec, edits=text,
                                defines=[[] if i < n else ["first_layer=1", "first_sum=1"] for i in range(2 * n)], DMI_JOB=str(uuid.uuid4()))
    out = served[0].folder / "all"
    out.mkdir()
    for part in served:
        shutil.copytree(part.run, out / part.run.name)
    got, want = serving.exported_rows(out, out.parent / "export"), serving.exported_rows(one.out, one.folder / "export")
    off = {key: relative(rows, want[key][1])[1] for key, (_, rows) in got.items() if key[0] == "france" and key[1] != "token_ids"}
    check(len(off) > 25 and max(off.values()) < F32_BOUND, "each site is as in one process", sorted(off.items(), key=lambda item: -item[1])[:4])
    for e in can:
        accounts = [Accounts(part.run / "edits").of(e["name"]) for part in served]
        here = [i for i, (due, _, _) in enumerate(accounts) if due]
        stage = int(e.get("layers", "0"))
        check(all(a[0] == a[1] and not a[2] for a in accounts) and here and {i // n for i in here} == {stage}, f"{e['name']}: accounts", accounts)


# ---- nothing to do

@pytest.mark.parametrize("mode, entries", [
    ("graph", [{"name": "nobody", "site": "mlp_out", "requests": "somebody-else", "do": ["zero"]}]),
    pytest.param("piecewise", [{"name": "nothing", "site": site, "do": [{"add": "noise", "times": 0}]} for site in ("attn_out",)],
                 marks=pytest.mark.long),
    *(pytest.param(mode, None, marks=pytest.mark.long) for mode in ("eager", "graph", "piecewise"))])
def test_idle(check, server, plain, mode, entries):
    what = f"{entries[0]['name'] if entries else 'no edits'} {mode}"
    served = server.serve(what.replace(" ", "-"), requests(), "--no-prefix-cache", *MODES[mode], spec=serving.spec_text("float32"),
                          edits=entries and edits_text(entries))
    check_others(check, what, served, captured(check, what, served), plain("float32"))


# ---- tinygrad

@pytest.mark.long
def test_tinygrad(check, tmp_path):
    """One process serves one prompt four times, and edits the third: its prompt and its tokens are then graphs."""
    pytest.importorskip("tinygrad")
    tokens, prompt = SAID["tokens"]["add"], serving.REQUESTS["france"]["prompt_tokens"]
    (tmp_path / "requests").write_text(json.dumps({"requests": [{"id": name, "prompt_tokens": prompt, "forced_tokens": tokens[:-1]}
                                                                for name in ("first", "second", "edited", "after")]}))
    (tmp_path / "edits.json").write_text(edits_text([{"name": "add", "site": "resid_pre", "layers": "10", "requests": "edited",
                                                      "do": [{"add": "noise", "times": 12}]}]))
    harness.run([DMI_RUN, "--spec", harness.ROOT / "specs" / "tinygrad-smollm2-edits.yaml", "--edits", tmp_path / "edits.json",
                 "--out", tmp_path / "run", "--", sys.executable, harness.ROOT / "tests" / "engine" / "tinygrad_client.py", "--announce",
                 "--requests", tmp_path / "requests", "--out", tmp_path / "answers"],
                env=harness.environment(DEV="CUDA:PTX", JIT=1, CACHEDB=os.environ.get("CACHEDB", tmp_path / "cache.db")), timeout=3000)
    rows = serving.exported_rows(tmp_path / "run", tmp_path / "export")
    told = [int(row.argmax()) for row in rows["edited", "final_logits"][1]]
    check(told == tokens, "greedy tokens are Hugging Face's", told)
    check(told != [int(row.argmax()) for row in rows["first", "final_logits"][1]], "they are others than without the edit")
    worst, n = {}, 0
    for key in (key.partition("/")[2] for key in reference() if key.startswith("add/")):
        if ("edited", key) in rows:
            positions, x = rows["edited", key]
            x = x.reshape(len(x), -1) / (1e12 if key == "final_logits" else 1)
            off = np.linalg.norm(sketch(x) - reference()[f"add/{key}"][positions], axis=1) / np.linalg.norm(x, axis=1)
            worst[key.split(".")[0]] = max(worst.get(key.split(".")[0], 0), off.max())
            n += 1
    check(set(worst) == {"resid_pre", "resid_mid", "mlp_post", "resid_final", "final_logits"} and n > 60 and max(worst.values()) < 3e-3,
          f"rows of {n} tensors are within 3e-3 of Hugging Face's", worst)
    keys = [key for request, key in rows if request == "first" and key != "final_logits"]  # tinygrad adds noise to those
    wrong = [f"{name} {key}" for name in ("second", "after") for key in keys if rows[name, key][1].tobytes() != rows["first", key][1].tobytes()]
    check(not wrong and len(keys) > 90, f"{len(keys)} tensors of what is not edited are the same bits before and after", wrong[:5])
    same = {key for key in keys if rows["edited", key][1].tobytes() == rows["first", key][1].tobytes()}
    before = {f"{site}.{layer}" for site in ("resid_pre", "resid_mid", "mlp_post") for layer in range(10)}
    check(same == before, "of the edited request those up to the edit", sorted(same ^ before)[:5])


# ---- a concept

def test_curve(check, server):
    """One run: a request for each coefficient, and one from which the concept is taken."""
    prompt = SAID["curve"]["prompt_tokens"]
    ids = {f"times{c}": c for c in CURVE}
    entries = [{"name": name, "site": "mlp_out", "layers": "9", "do": [{"add": "joy", "times": c}], "requests": name} for name, c in ids.items()]
    entries += edit_cells.named([{"site": site, "do": [{"project_out": "joy"}]} for site in edit_cells.WRITES], "without")
    served = server.serve("curve", [{"id": name, "prompt_tokens": prompt, "max_tokens": 1} for name in (*ids, "without")], "--no-prefix-cache",
                          "--mode", "piecewise", spec=serving.spec_text("float32"), edits=edits_text(entries))
    rows = serving.exported_rows(served.out, served.folder / "export")
    unit = reference()["vector/joy"] / np.linalg.norm(reference()["vector/joy"].astype(np.float64))
    score = {name: float(rows[name, "resid_final"][1][-1].astype(np.float64) @ unit) for name in (*ids, "without")}
    scores, want = [score[name] for name in ids], SAID["curve"]["scores"]
    size = np.linalg.norm(rows["times0", "resid_final"][1][-1])
    check(np.all(np.diff(scores) > 1), "the score rises with the coefficient", scores)
    check(np.abs(np.subtract(scores, want)).max() < F32_BOUND * size, "scores are Hugging Face's", [scores, want])
    check(abs(score["without"]) < F32_BOUND * size and abs(SAID["curve"]["projected_out"]) < F32_BOUND * size,
          "taken out the concept has the score 0, as in Hugging Face", score["without"])


# ---- readers

def test_readers(check, server, monkeypatch):
    """A place has no records, and nobody shows it as a tensor that lacks them."""
    monkeypatch.setenv("DMI_READ_LIBRARY", str(BUILD / "read" / "libdmi_read.so.1"))
    import dmi
    once = "    write: {reach: [resid_mid, ln2, mlp_post]}\n"
    spec = serving.spec_text("float32").replace(once, once + "    capture: none\n")
    served = server.serve("readers", serving.free("france", tokens=2), layers=2, spec=spec)
    dictionary = json.loads((served.run / "manifest.json").read_text())["dictionary"]["sites"]
    names = [site["name"] for site in dictionary]
    shown = list(dict.fromkeys(name for name in names if name != "attn_out"))
    check(len(names) == 22 and names.count("mlp_out") == 2 and names.count("attn_out") == 1, "the run has places", names)
    for command in ("list", "stats"):
        told = [site["site"] for site in harness.dump_json(command, served.run)["sites"]]
        check(told == shown, f"dmi-dump {command} shows what is captured", told)
    answer = harness.run([DMI_DUMP, "show", "attn_out", served.run], check=False)
    check(answer.returncode == 1 and "attn_out is a place for edits, and is not captured" in answer.stderr, "dmi-dump show says what a place is",
          answer.stderr)
    replayed = harness.run([BUILD / "tools" / "dmi-replay", served.run, "--to", "-", "--format", "jsonl"])
    told = {site["name"] for item in map(json.loads, replayed.stdout.splitlines()) for site in item.get("sites", ())}
    check(told == set(shown), "dmi-replay tells of what is captured", told)
    top = json.loads(harness.run([BUILD / "tools" / "dmi-top", "--once", "--json", served.run]).stdout)
    told = [site["site"] for site in top["runs"][0]["sites"]]
    check(sorted(told) == sorted(shown), "dmi-top shows what is captured", told)
    with dmi.open(served.run) as run:
        told = [(site.name, site.writes) for site in run.sites]
        check(told == [(site["name"], "action" in site) for site in dictionary], "dmi.open() knows which entries are places", told)
        check(not run.findings, "and nothing is amiss")

