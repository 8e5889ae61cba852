# SPDX-License-Identifier: Apache-2.0
"""Policies that are changed while the serving engine serves, on a link that is too slow: each row that is captured is of the request and position
that it says of itself (the engine's fingerprint), each request has all its rows until it is shed and none from then on, and every drop is counted.

Somebody else's process changes the policy, by dmi-ctl, at random times. --long takes 3,000 random steps.
"""
import contextlib
import random
import re
import subprocess
import threading

import pytest

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")

import serving  # noqa: E402
from segments import Chunks  # noqa: E402
from test_serve_rows import MIXED, only  # noqa: E402

CTL = BUILD / "tools" / "dmi-ctl"
pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, CTL, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
POLICIES = [
    "{mode: best-effort}", "{mode: best-effort, strategy: keep-by-pattern, keep: ['r*[02468]']}", "{mode: best-effort, strategy: sample, share: 0.7}",
    "{mode: complete, wait_ms: 5, fallback: best-effort}", "{mode: best-effort, budget: {process: 300K}}",
    "{mode: best-effort, budget: {sites: {'*': 150K}}, strategy: keep-by-pattern, keep: ['tag:preemptions=0']}"]
HEAD = "ring: {bytes: 512K, slots: 1024}\noverload: {mode: best-effort}\nforward: [{kind: step, begin: step}]\n\n"
LINK = 400_000  # bytes a second: a part of what two sites of 576 floats a row come to


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("policies"))


class Changing(threading.Thread):
    """Changes the policy of the run that @out will hold, until it is to end."""

    def __init__(self, out, seed, slowly):
        super().__init__()
        self.most = 3 if slowly else 1.5  # seconds from one change to the next; a run takes 1,000 mappings
        self.out, self.random, self.over, self.n, self.refused = out, random.Random(seed), threading.Event(), 0, []

    def run(self):
        while not self.over.wait(self.random.uniform(0.2, self.most)):
            if not list(self.out.glob("[!.]*/control")):
                continue
            done = subprocess.run([CTL, "--json", self.out, "overload", self.random.choice(POLICIES)], check=False, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.n += done.returncode == 0
            if done.returncode == 1:
                self.refused.append(done.stdout + done.stderr)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.join()


def rows_by_step(chunks, number):
    """{(step's number, request): [(position, row of the record)]} of the site, and complaints about records of one step that keep other rows."""
    found, wrong, width = {}, [], None
    for record in chunks.records:
        if record.site != number:
            continue
        step, spans = chunks.steps[record.step]
        width = len(record.data) // record.dims[0]
        rows, mine = record.kept if record.kept is not None else range(record.dims[0]), {}
        for i, row in enumerate(rows):
            owner = next(((request, position + row - first) for request, first, n, position in spans if request and first <= row < first + n), None)
            if owner is None:
                wrong.append(f"step {step}, layer {record.layer}: row {row} is nobody's")
            else:
                mine.setdefault(owner[0], []).append((owner[1], record.data[i * width:(i + 1) * width]))
        for request, kept in mine.items():
            found.setdefault((step, request), {})[record.layer] = kept
    return found, wrong


def row_complaints(found, layer, numbers):
    wrong, n = [], 0
    for (step, request), layers in found.items():
        if layer not in layers:
            continue
        told = serving.fingerprint(np.frombuffer(b"".join(data for _, data in layers[layer]), np.float32).reshape(len(layers[layer]), -1))
        n += len(told)
        wrong += [f"step {step}: {request} at {p}: computed for {mark}" for (p, _), mark in zip(layers[layer], told) if mark != (numbers[request], p)]
    return n, wrong


def whole_complaints(chunks, found, n_layers):
    """Before the step in which it was shed a request has each of its rows in each layer, after that none; in that step, which may have been cut in its middle, either."""
    shed, wrong = {}, []
    for outcome in chunks.outcomes:
        if outcome.shed and outcome.request in shed:
            wrong.append(f"{outcome.request} is shed twice")
        if outcome.shed:
            shed[outcome.request] = outcome.number
    for step, spans in chunks.steps.values():
        for request, _, n, position in spans:
            if not request or not n:
                continue
            layers, at = found.get((step, request), {}), shed.get(request)
            complete = len(layers) == n_layers and all({p for p, _ in rows} >= set(range(position, position + n)) for rows in layers.values())
            if (at is None or step < at) and not complete:
                wrong.append(f"step {step}: {request}, shed at {at}, lacks rows: {sorted(layers)}")
            if at is not None and step > at and layers:
                wrong.append(f"step {step}: {request}, shed at {at}, has rows")
    return shed, wrong


@pytest.mark.parametrize("seed, site, mode", [
    (11, "resid_mid.1", "graph"), pytest.param(12, "q.0", "eager", marks=pytest.mark.long),
    pytest.param(13, "mlp_post.0", "piecewise", marks=pytest.mark.long)])
def test_policies(check, server, long, seed, site, mode):
    name, _, layer = site.partition(".")
    spec = re.sub(r"(?ms)^ring:.*?(?=^sites:)", HEAD, only(serving.spec_text("float32"), {name, "resid_final"}), count=1)
    options = ["--schedule", "random", "--seed", seed, "--steps-max", 1000 if long else 100, "--blocks", "14", "--chunk", "24", "--mode", mode,
               "--speculate", seed % 2 * 2, "--fingerprint", site]
    with Changing(server.folder / f"policies-{seed}" / "run", seed, long) as changing:
        served = server.serve(f"policies-{seed}", serving.some(*MIXED, tokens=8), *options, spec=spec, DMI_CONTROL="1", DMI_STANDIN_DTOH_BPS=LINK)
    numbers = {result["id"]: int(result["id"][1:]) for result in served.results}
    chunks, counters = Chunks(served.run), harness.Counters(served.run)
    number, final = (serving.site_names(served.run).index(n) for n in (name, "resid_final"))
    found, nobodys = rows_by_step(chunks, number)
    n, wrong = row_complaints(found, int(layer), numbers)
    steps = len(served.trace)
    check(not wrong and not nobodys and n > steps / 4, f"{site}: all of {n} rows in {steps} random steps are of the request and position of their record",
          (wrong + nobodys)[:5])
    shed, lacking = whole_complaints(chunks, found, 2)
    check(not lacking, f"{site}: {len(shed)} requests are shed, each from one step on, the others complete", lacking[:5])
    last, more = rows_by_step(chunks, final)
    check(not whole_complaints(chunks, last, 1)[1] and not more, "resid_final: so as well", whole_complaints(chunks, last, 1)[1][:5])
    check(shed and len(shed) < len(numbers), "the link is too slow for some", (len(shed), len(numbers)))
    sums = [counters.captured[i] + counters.dropped_sum(i) == counters.expected[i] for i in (number, final)]
    check(all(sums) and counters.steps_refused == 0, "captured and dropped are what was expected", (counters.expected, counters.dropped))
    check(all(set(d) <= {"shed"} for d in counters.dropped), "nothing is dropped but what is shed", counters.dropped)
    noted = harness.dump_json("list", served.run)["changes"]
    check(changing.n > 1 and len(noted) == changing.n and not changing.refused, "the policy was changed, and that is noted",
          (changing.n, len(noted), changing.refused[:1]))
    with contextlib.suppress(KeyError):
        listed = {r["request"]: r["shed"] for r in harness.dump_json("list", "--requests", served.run)["requests"] if r["shed"] is not None}
        check(listed == shed, "dmi-dump list --requests names them", (len(listed), len(shed)))
    harness.run([DMI_DUMP, "verify", served.run])
