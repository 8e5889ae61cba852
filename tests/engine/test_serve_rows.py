# SPDX-License-Identifier: Apache-2.0
"""Every row the right row: choices of rows on the serving engine, who each row is of, and outputs that nothing changes.

  chosen     every site narrowed by tokens, requests, tags or steps: exported are exactly those positions, the engine's own
             bits, and no other row was copied; eager, in padded graphs, piecewise, preempted
  whose      random schedules (arrivals, chunks, preemptions, aborts, orders, drafts), where each row of one tensor says itself for
             whom it was computed: every captured row is exported under that request and position
  outputs    tokens are the same without the library, with it idle, capturing everything, and under random delays

--long takes 5,000 random steps and 10 seeds of delays.
"""
import functools
import json

import pytest

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")

import serving  # noqa: E402
from segments import read_run  # noqa: E402
from serve.dtypes import from_bf16  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
MIXED = ["france", "chat-short", "chat-code", "one", "chat-list", "count"]
MODES = {
    "eager": ["--chunk", "20"],
    "graph": ["--mode", "graph", "--chunk", "24"],
    "piecewise": ["--mode", "piecewise"],
    "preempted": ["--blocks", "12", "--chunk", "16", "--mode", "graph"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("rows"))


# ---- chosen rows

def n_prompt(request):
    return len(serving.REQUESTS[request]["prompt_tokens"])


class Computed:
    """What a schedule computed: from the engine's trace of it."""

    def __init__(self, trace):
        self.last, self.before_preemption, self.in_step = set(), set(), {}
        preempted = set()
        for number, step in enumerate(trace):
            preempted |= set(step["preempted"])
            for item in step["items"]:
                positions = range(item["start"], item["start"] + item["n"] + item["drafts"])
                request = item["request"]
                self.last.add((request, positions[-1]))
                self.in_step.setdefault(number, set()).update((request, p) for p in positions)
                if request not in preempted:
                    self.before_preemption |= {(request, p) for p in positions}

    def of_every(self, n):
        return set().union(*(rows for step, rows in self.in_step.items() if step % n == 0))


# name: keys of each site, which (request, position) they keep
CHOICES = {
    "prompt": ({"tokens": "prompt"}, lambda c, r, p: p < n_prompt(r)),
    "generated": ({"tokens": "generated"}, lambda c, r, p: p >= n_prompt(r)),
    "last": ({"tokens": "last"}, lambda c, r, p: (r, p) in c.last),
    "window": ({"tokens": "'3:17'"}, lambda c, r, p: 3 <= p < 17),
    "one-request": ({"requests": "count"}, lambda c, r, p: r == "count"),
    "some-generated": ({"requests": "'chat-*'", "tokens": "generated"}, lambda c, r, p: r.startswith("chat-") and p >= n_prompt(r)),
    "tagged": ({"requests": "'tag:preemptions=0'"}, lambda c, r, p: (r, p) in c.before_preemption),
    "every-third": ({"steps": "{every: 3, of: engine}"}, lambda c, r, p: (r, p) in c.of_every(3)),
}


def narrowed(text, keys):
    """Every site of the spec with @keys."""
    lines = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    return text.replace("    pointer: ", lines + "    pointer: ")


@pytest.fixture(scope="module")
def plain(server):
    """plain(mode) - a run without the library, dumped"""
    return functools.cache(lambda mode: server.serve(f"dumped-{mode}", serving.some(*MIXED, tokens=8), *MODES[mode], dump=True))


# All choices in graphs: test_several_choices has them in one run.
@pytest.mark.parametrize("mode, choice", [
    ("eager", "generated"), ("piecewise", "last"), ("preempted", "tagged"),
    *(pytest.param(*case, marks=pytest.mark.long) for case in [
        *(("graph", choice) for choice in CHOICES), ("eager", "one-request"), ("piecewise", "window"), ("preempted", "some-generated")])])
def test_chosen(check, server, plain, mode, choice):
    keys, keeps = CHOICES[choice]
    spec = narrowed(serving.spec_text("float32"), keys)
    served = server.serve(f"{mode}-{choice}", serving.some(*MIXED, tokens=8), *MODES[mode], spec=spec)
    computed, dump = Computed(served.trace), plain(mode).dump()
    what = f"{mode}, {choice}"
    check(served.results == plain(mode).results, f"{what}: the same tokens")
    want = {}
    for (request, key), (positions, rows) in dump.tensors().items():
        kept = [i for i, p in enumerate(positions) if keeps(computed, request, p)]
        if kept:
            want[request, key] = [positions[i] for i in kept], rows[kept]
    got = serving.exported_rows(served.out, served.folder / "export")
    check(got.keys() == want.keys() and len(want) > 30, f"{what}: {len(want)} tensors are there and no other",
          f"missing {sorted(want.keys() - got.keys())[:3]}, too many {sorted(got.keys() - want.keys())[:3]}")
    wrong = [key for key in want.keys() & got.keys() if list(got[key][0]) != want[key][0] or
             got[key][1].tobytes() != want[key][1].tobytes()]
    check(not wrong, f"{what}: positions and bits are the engine's", wrong[:5])
    counters = harness.Counters(served.run)
    expected, captured = (sum(tallies, harness.Tally()) for tallies in (counters.expected, counters.captured))
    n_rows = sum(record.dims[0] for record in read_run(served.run)[0])
    check(expected == captured and expected.rows == n_rows, f"{what}: every row that was copied was asked for", f"{expected} {captured}")
    check(n_rows <= sum(len(rows) for rows in dump.rows.values()), f"{what}: no row of padding was copied")
    harness.run([DMI_DUMP, "verify", served.run])


def test_several_choices(check, server, plain):
    """Sites of one graph that keep different rows each."""
    parts = serving.spec_text("float32").split("  - name: ")
    names = list(CHOICES)
    keys_of = {i: CHOICES[names[i % len(names)]] for i in range(1, len(parts))}
    spec = parts[0] + "".join("  - name: " + narrowed(part, keys_of[i + 1][0]) for i, part in enumerate(parts[1:]))
    served = server.serve("several", serving.some(*MIXED, tokens=8), *MODES["graph"], spec=spec)
    computed, dump = Computed(served.trace), plain("graph").dump().tensors()
    got = serving.exported_rows(served.out, served.folder / "export")
    dictionary = json.loads((served.run / "manifest.json").read_text())["dictionary"]["sites"]
    dictionary = [site for site in dictionary if "action" not in site]  # a place for edits has no rows
    wrong, n = [], 0
    for i, site in enumerate(dictionary, 1):
        if sum(other["name"] == site["name"] for other in dictionary) > 1:
            continue  # two sites of one name keep what either does
        for (request, key), (positions, rows) in dump.items():
            if key.split(".")[0] != site["name"]:
                continue
            kept = [k for k, p in enumerate(positions) if keys_of[i][1](computed, request, p)]
            have = got.get((request, key), ([], rows[:0]))
            n += len(kept)
            if list(have[0]) != [positions[k] for k in kept] or have[1].tobytes() != rows[kept].tobytes():
                wrong.append(f"{request}/{key}")
    check(n > 500 and not wrong, f"{n} rows, each of the choice of its own site", wrong[:5])


# ---- whose row

def only(text, names):
    """The spec with the sites called @names alone."""
    head, *sites = text.split("  - name: ")
    return head + "".join("  - name: " + s for s in sites if s.split("\n", 1)[0] in names)


@pytest.mark.parametrize("seed, site, mode", [
    (1, "resid_mid.1", "graph"), (2, "q", "piecewise"),
    *(pytest.param(*case, marks=pytest.mark.long) for case in [
        (3, "resid_pre.1", "eager"), (4, "mlp_post.0", "graph"), (5, "final_logits", "graph")])])
def test_whose(check, server, long, seed, site, mode):
    requests = serving.some(*MIXED, tokens=8)
    name, _, layer = site.partition(".")
    options = ["--schedule", "random", "--seed", seed, "--steps-max", 1000 if long else 120, "--blocks", "14", "--chunk", "24", "--mode", mode,
               "--speculate", seed % 2 * 2, "--fingerprint", site]
    spec = only(serving.spec_text("float32"), {name})
    served = server.serve(f"whose-{seed}", requests, *options, spec=spec)
    numbers = {result["id"]: int(result["id"][1:]) for result in served.results}
    n, wrong = 0, []
    for (request, key), (positions, rows) in serving.exported_rows(served.out, served.folder / "export").items():
        if layer and key != site:
            continue
        n += len(positions)
        told = serving.fingerprint(rows if rows.dtype == np.float32 else from_bf16(rows))
        wrong += [f"{request} at {p}: computed for {mark}" for p, mark in zip(positions, told) if mark != (numbers[request], p)]
    steps = len(served.trace)
    check(not wrong and n > 2 * steps, f"{site}, seed {seed}: all of {n} rows in {steps} random steps are of the request and position "
          "that they are exported as", wrong[:5])
    what_happened(check, seed, served)
    counters = harness.Counters(served.run)
    check(counters.expected == counters.captured and counters.steps_refused == 0, f"seed {seed}: nothing was dropped or refused")
    harness.run([DMI_DUMP, "verify", served.run])


def what_happened(check, seed, served):
    items = [item for step in served.trace for item in step["items"]]
    counts = {"preempted": sum(len(s["preempted"]) for s in served.trace), "aborted": sum(len(s["aborted"]) for s in served.trace),
              "cached": sum(i["cached"] > 0 for i in items), "padded": sum(s["padded"] > s["rows"] for s in served.trace)}
    needed = {"preempted", "aborted", "cached"} | ({"padded"} if seed not in (3,) else set())
    check(all(counts[k] for k in needed), f"seed {seed}: requests were {', '.join(sorted(needed))}", counts)


# ---- outputs

@pytest.mark.long  # in the short run test_chosen compares what is served while it is captured, test_schedules.py what delays do
def test_outputs(check, server, seeds):
    requests, options = serving.free(*MIXED, tokens=8), MODES["preempted"]
    plain = server.serve("absent", requests, *options)
    idle = server.serve("idle", requests, *options, LD_PRELOAD=PRELOAD)
    check(idle.results == plain.results and idle.trace == plain.trace, "idle: the same tokens in the same steps")
    spec = serving.spec_text("float32")
    for seed in range(seeds(1, 10)):
        served = server.serve(f"delays-{seed}", requests, *options, spec=spec, DMI_STANDIN_DELAY_SEED=seed + 1, DMI_STANDIN_DELAY_MAX_NS=20000)
        check(served.results == plain.results and served.trace == plain.trace, f"capturing all, delays of seed {seed + 1}: the same tokens")
