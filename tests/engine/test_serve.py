# SPDX-License-Identifier: Apache-2.0
"""The serving engine: right against Hugging Face, the same bits whatever the schedule, and captured whole.

  reference  float32, all layers: every site and row against Hugging Face's activations, rounded as the reference is:
             at most 1e-4 a tensor and 1e-3 a row, of sketches (8 values a row) 3e-4 and 3e-3. bfloat16: at most 1.5 times Hugging Face's own bfloat16 error
  schedules  two layers: tokens and every row are the same bits eager, in graphs, piecewise, in batches of 1, 3 and 8, in chunks,
             preempted, from the prefix cache, with drafts, and under random schedules
  captured   under the library with specs/engine-smollm2.yaml: outputs stay the same, nothing is dropped, records equal the
             engine's own dump in bits, superseded computations included and padding left out, at the right requests and positions
  paged      keys and values taken from the paged cache, by the list of slots
  parts      tensor-parallel ranks (even, uneven) and pipeline stages: joined within 1e-5 of one process, captured by each
  marks      captured rows that say themselves for whom they were computed

--long takes all requests and more seeds. The scheduler by itself is test_serve_scheduler.py's.
"""
import collections
import json
from types import SimpleNamespace as Some

import pytest

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("safetensors")
from safetensors.numpy import load_file  # noqa: E402

import serving  # noqa: E402
from serve.dtypes import from_bf16  # noqa: E402
from sketch import sketch  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
BOUNDS = {"full": (1e-4, 1e-3), "sketch": (3e-4, 3e-3)}  # of a sketch's few values one rounded the other way weighs more
BF16_FACTOR = 1.5
QUICK = ["france", "count", "one"]
# Prompts that begin alike, and one that needs several blocks.
MIXED = ["france", "chat-short", "chat-code", "one", "chat-list", "count"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("serve"))


# ---- the reference

def errors(x, y):
    """(of the tensor, of the worst row): norm of the difference over norm"""
    return np.linalg.norm(x - y) / np.linalg.norm(y), (np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)).max()


def halved(x):
    """As the reference is stored: then float16's rounding is in both, but for the few values at a boundary."""
    return x.astype(np.float16).astype(np.float32)


def worst_errors(dump, names):
    """{(site, kind): (tensor, row, tensors)} over requests and layers; kind: full or sketch."""
    worst = {}
    for kind, transform in (("full", lambda x: x), ("sketch", sketch)):
        reference = load_file(serving.REFERENCE / f"{kind}.safetensors")
        for (request, key), (positions, rows) in dump.tensors().items():
            if f"{request}/{key}" in reference and request in names:
                x = transform(from_bf16(rows) if dump.dtypes[key] == "BF16" else rows)
                tensor, row = errors(halved(x), reference[f"{request}/{key}"][positions].astype(np.float32))
                known = worst.get((key.split(".")[0], kind), (0, 0, 0))
                worst[key.split(".")[0], kind] = max(known[0], tensor), max(known[1], row), known[2] + 1
    return worst


ALL_SITES = {"embed", "resid_pre", "ln1", "q", "k", "v", "q_rot", "k_rot", "z", "attn_out", "resid_mid", "ln2", "mlp_post", "mlp_out",
             "resid_final", "final_ln", "final_logits"}


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_reference(check, server, long, dtype):
    names = list(serving.REQUESTS) if long else QUICK
    served = server.serve(f"reference-{dtype}", serving.some(*names), "--no-prefix-cache", dtype=dtype, layers=30, dump=True)
    worst = worst_errors(served.dump(), names)
    check({site for site, kind in worst if kind == "sketch"} == ALL_SITES, f"all {len(ALL_SITES)} sites have a reference")
    for (site, kind), (tensor, row, n) in sorted(worst.items()):
        bounds = BOUNDS[kind]
        if dtype == "bfloat16":
            known = serving.HF_BF16_ERROR[site]
            # Eight columns estimate a row's norm within a factor of 2: above and below the line, that is 4.
            bounds = BF16_FACTOR * known["tensor"], BF16_FACTOR * known["token"] * (4 if kind == "sketch" else 1)
        check(tensor <= bounds[0] and row <= bounds[1], f"{dtype} {site}, {kind}: {n} tensors within {bounds[0]:.1e}, rows {bounds[1]:.1e}",
              f"tensor {tensor:.2e}, row {row:.2e}")
    if dtype == "float32":
        wrong = [name for name in names if served.sampled[name] != expected_tokens(name)]
        check(not wrong, "the likeliest token after each position is the reference's", wrong)


def expected_tokens(name):
    request = serving.REQUESTS[name]
    first = len(request["prompt_tokens"]) - 1
    return request["argmax_at_each_position"][first:first + len(request["forced_tokens"])]


# ---- the same bits whatever the schedule

SCHEDULES = {
    "graph": ["--mode", "graph"],
    "piecewise": ["--mode", "piecewise", "--chunk", "24"],
    "batch-1": ["--batch", "1"],
    "batch-3": ["--batch", "3", "--mode", "graph"],
    "chunked": ["--chunk", "7"],
    "preempted": ["--blocks", "12", "--chunk", "16", "--mode", "graph"],
    "speculative": ["--speculate", "3", "--draft-layers", "1", "--mode", "graph"],
    "own-draft": ["--speculate", "2", "--draft-layers", "2", "--chunk", "20"],
}


@pytest.fixture(scope="module")
def plain(server):
    return {forced: server.serve(f"plain-{forced}", (serving.some if forced else serving.free)(*MIXED, tokens=10), "--no-prefix-cache",
                                 dump=forced) for forced in (True, False)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(check, server, plain, name):
    dumped = server.serve(f"{name}-dumped", serving.some(*MIXED, tokens=10), *SCHEDULES[name], dump=True)
    n, wrong = serving.differing_rows(plain[True].dump(), dumped.dump())
    check(not wrong and n > 4000, f"{name}: {n} rows are the same bits as eager, alone and uncached", wrong[:5])
    for forced, requests in ((True, serving.some), (False, serving.free)):
        served = server.serve(f"{name}-{forced}", requests(*MIXED, tokens=10), *SCHEDULES[name])
        check(served.sampled == plain[forced].sampled and served.tokens == plain[forced].tokens,
              f"{name}: tokens are the same, {'forced' if forced else 'sampled'}", [served.sampled, plain[forced].sampled])
        happened(check, name, served, forced)


def happened(check, name, served, forced):
    """What a schedule is there for did take place."""
    items = [item for step in served.trace for item in step["items"]]
    if "--mode" in SCHEDULES[name]:
        check(any(step["replayed"] for step in served.trace), f"{name}: graphs were replayed")
        check(any(step["padded"] > step["rows"] for step in served.trace), f"{name}: some with padding")
    if name == "preempted":
        check(any(step["preempted"] for step in served.trace), f"{name}: requests were")
    if name == "batch-3":
        check(any(item["cached"] for item in items), f"{name}: tokens came from the prefix cache")
    if name == "own-draft" and not forced:
        n_tokens, n_steps = sum(len(r["tokens"]) for r in served.results), sum(len(step["items"]) for step in served.trace)
        check(n_steps < n_tokens, f"{name}: drafts were accepted: {n_tokens} tokens in {n_steps} items")
    if name == "speculative":
        check(any(item["drafts"] for item in items), f"{name}: there were drafts")


def test_random_schedules(check, server, plain, long, seeds):
    alone = plain[True].sampled
    for seed in range(seeds(2, 8)):
        options = ["--schedule", "random", "--seed", seed, "--steps-max", 300 if long else 60, "--blocks", "14", "--chunk", "24",
                   "--mode", ("eager", "graph", "piecewise")[seed % 3], "--speculate", seed % 2]
        served = server.serve(f"random-{seed}", serving.some(*MIXED, tokens=10), *options)
        wrong = [r for r in served.results if not any(r["sampled"] == tokens[:len(r["sampled"])] for tokens in alone.values())]
        check(not wrong and len(served.results) > 10, f"seed {seed}: tokens of {len(served.results)} requests in {len(served.trace)} steps "
              "are those of requests served plainly", wrong[:3])
        check(sum(r["preemptions"] for r in served.results) > 0, f"seed {seed}: requests were preempted")


def test_schedule_file(check, server, plain, tmp_path):
    """What a file says happens, and nothing else changes."""
    (tmp_path / "schedule").write_text(json.dumps({
        "arrivals": {"one": 4},
        "steps": {"1": {"order": ["chat-code", "france"]}, "3": {"preempt": ["france"], "abort": ["count"]}, "4": {"chunk": 2}}}))
    served = server.serve("file", serving.some(*MIXED, tokens=10), "--schedule", tmp_path / "schedule", "--no-prefix-cache")
    ids = [[item["request"] for item in step["items"]] for step in served.trace]
    check(min(i for i, of_step in enumerate(ids) if "one" in of_step) == 4, "a request arrives at its step", ids)
    check(ids[1][:2] == ["chat-code", "france"], "rows have the order asked for", ids[1])
    check([s["preempted"] for s in served.trace if s["preempted"]] == [["france"]] and served.trace[3]["aborted"] == ["count"],
          "who is preempted, and who aborted", served.trace[3])
    check([i["n"] for i in served.trace[4]["items"] if i["request"] == "france"] == [2], "a chunk is as small as asked for", served.trace[4])
    whole = {name: tokens for name, tokens in plain[True].sampled.items() if name != "count"}
    check({name: tokens for name, tokens in served.sampled.items() if name != "count"} == whole, "tokens are the same")
    check({r["id"]: r["reason"] for r in served.results} == {name: "aborted" if name == "count" else "length" for name in MIXED},
          "reasons are given")


# ---- captured

CAPTURED = {
    "eager": [],
    "graph": ["--mode", "graph", "--chunk", "24"],
    "piecewise": ["--mode", "piecewise"],
    "preempted-graph": SCHEDULES["preempted"],
    "speculative": ["--speculate", "2", "--draft-layers", "1", "--mode", "graph"],
    **{f"random-{seed}": ["--schedule", "random", "--seed", str(seed), "--steps-max", "30" if seed == 4 else "60", "--blocks", "14", "--chunk", "24",
                          "--speculate", "2", "--mode", ("eager", "graph", "piecewise")[seed % 3]] for seed in range(4, 10)},
}


def modes(short, more):
    """Cases of (mode, dtype): those of the short run, and what the long one has on top."""
    return pytest.mark.parametrize("name, dtype", [*short, *(pytest.param(*case, marks=pytest.mark.long) for case in more)])


@modes([("piecewise", "float32"), ("speculative", "float32"), ("random-4", "float32"), ("graph", "bfloat16")],
       [("eager", "float32"), ("graph", "float32"), ("preempted-graph", "float32"), *((f"random-{seed}", "float32") for seed in range(5, 10))])
def test_captured(check, server, name, dtype):
    check_captured(check, server, "captured", name, dtype, serving.spec_text(dtype))


@modes([("preempted-graph", "bfloat16")],
       [("eager", "float32"), ("graph", "float32"), ("piecewise", "float32"), ("speculative", "float32"), ("random-5", "float32")])
def test_paged(check, server, name, dtype):
    """Keys and values from where they lie in the paged cache: the same rows as those that were written into it."""
    check_captured(check, server, "paged", name, dtype, serving.paged(serving.spec_text(dtype), dtype))


TAPS = serving.TAPS.read_text()


@modes([("graph", "float32")],
       [("eager", "float32"), ("piecewise", "float32"), ("preempted-graph", "float32"), ("speculative", "bfloat16"), ("random-4", "float32")])
def test_tapped(check, server, name, dtype):
    """The same of taps alone: no kernel is named."""
    check_captured(check, server, "tapped", name, dtype, TAPS)


def check_captured(check, server, how, name, dtype, spec):
    """Served under the library, the same tokens come, and all of the dump's rows are captured."""
    requests, options, what = serving.some(*MIXED, tokens=10), CAPTURED[name], f"{name} {dtype}"
    dumped = server.serve(f"dumped-for-{how}-{name}-{dtype}", requests, *options, dtype=dtype, dump=True)
    served = server.serve(f"{how}-{name}-{dtype}", requests, *options, dtype=dtype, spec=spec)
    check(served.results == dumped.results and served.trace == dumped.trace, f"{what}: the same tokens in the same steps")
    check_run(check, what, served, dumped.dump())


def check_run(check, what, served, dump, complete=True):
    """The one run of @served lacks nothing, and holds what @dump has."""
    counters = harness.Counters(served.run)
    expected, captured = (sum(tallies, harness.Tally()) for tallies in (counters.expected, counters.captured))
    check(expected == captured and expected.records and counters.state == counters.CLOSED, f"{what}: captured all of {expected}", captured)
    harness.run([DMI_DUMP, "verify", served.run])
    problems = [line for line in served.stderr.splitlines() if line.startswith("dmi:") and "armed" not in line]
    check(not (complete and problems), f"{what}: the library reports no problem", problems[:5])
    n, wrong = serving.record_complaints(served.run, dump)
    check(not wrong and n, f"{what}: {n} rows of records are the dump's, bit for bit", wrong[:5])
    n, wrong = serving.export_complaints(serving.exported_rows(served.out, served.out / "export"), dump)
    check(not wrong and n, f"{what}: {n} exported rows are at the dump's requests and positions", wrong[:5])
    check_requests(check, what, served, dump)


def check_requests(check, what, served, dump):
    """What a reader says of each request is what the engine did with it."""
    told = {r["request"]: r for r in harness.dump_json("list", served.out, "--requests")["requests"]}
    items = {result["id"]: [] for result in served.results}  # one that is aborted while it waits has none, and ends all the same
    for item in (item for step in served.trace for item in step["items"]):
        items.setdefault(item["request"], []).append(item)
    rejected = collections.Counter()
    key = next(key for key in dump.dtypes if key.startswith("resid_mid"))
    for (request, site, _), rows in dump.rejected.items():
        rejected[request] += len(rows) if site == key else 0
    wrong = [] if told.keys() == items.keys() else [f"{sorted(told)}, there were {sorted(items)}"]
    for result in served.results:
        if (request := result["id"]) in told:
            said, did = told[request], items[request]
            state = "aborted" if result["reason"] == "aborted" else "finished"
            pairs = {"state": state, "reason": result["reason"], "cached": sum(i["cached"] for i in did), "steps": len(did),
                     "computed": sum(i["n"] + i["drafts"] for i in did), "rejected": rejected[request]}
            wrong += [f"{request}: {name} {said[name]}, not {value}" for name, value in pairs.items() if said[name] != value]
            # One that goes on where it was, from the prefix cache, was not seen to be preempted.
            if said["preemptions"] > result["preemptions"]:
                wrong.append(f"{request}: preempted {said['preemptions']} times, not {result['preemptions']}")
    check(not wrong, f"{what}: {len(told)} requests: states, reasons, and tokens cached, computed and rejected", wrong[:5])


def test_cached_rows_are_those_of_another_request(check, server, plain):
    """Filled, each tensor has all positions, with the bits of the run that computes every token."""
    served = server.serve("filled", serving.some(*MIXED, tokens=10), "--batch", "3", "--mode", "graph", spec=serving.spec_text("float32"))
    n_cached = sum(item["cached"] for step in served.trace for item in step["items"])
    want = {key: found for key, found in plain[True].dump().tensors().items() if key[1] != "final_logits"}
    exported = serving.exported_rows(served.out, served.folder / "export", "--fill-cached")
    lengths = {request: max(positions) + 1 for (request, _), (positions, _) in want.items()}
    exported = {key: found for key, found in exported.items() if key in want}
    n, wrong = serving.export_complaints(exported, Some(tensors=lambda: want))
    check(n_cached and not wrong and all(list(positions) == list(range(lengths[key[0]])) for key, (positions, _) in exported.items()),
          f"{n_cached} cached tokens: {n} rows are those of the run without a cache, bit for bit", wrong[:5])


# ---- several processes

PARTS = {
    "three ranks": (3, 1, []),
    "two ranks, uneven": (2, 1, ["--mode", "graph"]),
    "two stages": (1, 2, ["--mode", "piecewise"]),
    "two ranks in two stages": (2, 2, []),
}
JOINED_BOUND = 1e-5


@pytest.mark.parametrize("name", PARTS)
def test_parts(check, server, plain, name):
    n_ranks, n_stages, options = PARTS[name]
    n, folder = n_ranks * n_stages, name.replace(" ", "-").replace(",", "")
    requests, options = serving.some(*MIXED, tokens=10), ["--ranks", n_ranks, "--stages", n_stages, "--no-prefix-cache", *options]
    dumped = server.serve(f"{folder}-dumped", requests, *options, dump=True)
    dumps = [dumped.dump(part=i) for i in range(n)]
    tensors = [dump.tensors() for dump in dumps]
    check(dumped.sampled == plain[True].sampled, f"{name}: tokens are those of one process")
    want, got = plain[True].dump().tensors(), serving.joined(dumps, n_ranks)
    check(got.keys() == want.keys(), f"{name}: all sites of all layers are somewhere", sorted(want.keys() ^ got.keys())[:5])
    worst = max((np.linalg.norm(got[key][1] - want[key][1]) / np.linalg.norm(want[key][1]), key) for key in want if key[1] != "token_ids")
    check(worst[0] <= JOINED_BOUND, f"{name}: {len(want)} joined tensors are within {JOINED_BOUND}", worst)
    differ = [str(key) for i in range(n) for key, (_, rows) in tensors[i].items()
              if key[1].split(".")[0] not in serving.SIDE_BY_SIDE | serving.PARTIAL
              and rows.tobytes() != tensors[i - i % n_ranks][key][1].tobytes()]
    check(not differ, f"{name}: what all ranks of a stage hold is the same bits", differ[:5])
    defines = [[] if i < n_ranks else ["first_layer=1", "first_sum=1"] for i in range(n)]
    parts = server.serve_parts(f"{folder}-captured", requests, *options, defines=defines, spec=serving.spec_text("float32"))
    check(parts[0].results == dumped.results, f"{name}: captured, the tokens are the same")
    for i, part in enumerate(parts):
        only_stage = n_stages > 1  # a stage lacks sites of the others, and the library says so
        check_run(check, f"{name}, process {i}", part, dumps[i], complete=not only_stage)


# ---- fingerprints

MARKED = ["embed", "resid_pre.1", "ln1.1", "q", "k.0", "v.1", "q_rot", "k_rot.1", "z.0", "attn_out", "resid_mid.1", "ln2", "mlp_post.1",
          "mlp_out.0", "resid_final", "final_ln", "final_logits"]


@pytest.mark.long  # test_serve_rows.py has three of them under random schedules
@pytest.mark.parametrize("site", MARKED)
def test_fingerprints(check, server, site):
    requests = serving.some(*MIXED, tokens=6)
    served = server.serve(f"mark-{site}", requests, "--mode", "graph", "--chunk", "24", "--blocks", "12", "--fingerprint", site,
                          dtype="bfloat16" if site == "q" else "float32", spec=serving.spec_text("bfloat16" if site == "q" else "float32"))
    numbers = {request["id"]: i for i, request in enumerate(requests, 1)}
    n, wrong = 0, []
    for (request, key), (positions, rows) in serving.exported_rows(served.out, served.folder / "export").items():
        if key == site or key.split(".")[0] == site:
            n += len(positions)
            rows = rows if rows.dtype == np.float32 else from_bf16(rows)
            told = serving.fingerprint(rows)
            wrong += [f"{request} {key} at {p}: made for {mark}" for p, mark in zip(positions, told) if mark != (numbers[request], p)]
    check(n > 30 and not wrong, f"{site}: {n} captured rows hold the request and position that they are exported as", wrong[:5])
