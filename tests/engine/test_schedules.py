# SPDX-License-Identifier: Apache-2.0
"""The engine's outputs are the same bits whatever the schedule, and so is what is captured.

A cut-down model, served by tinygrad with its JIT on (the third pass and all later ones run in graphs) many times in
one process: library absent, loaded without a spec, capturing everything, capturing under another seed of the
driver's delays each pass, and with sites switched off and on at random between forwards.  Outputs are the
tokens, the KV caches and, from the driver's dumps, the logits; every record must equal the driver's own dump of
that buffer at that launch, and exactly those must be there that the call log asks for.

--long takes 30 seeds; without it four, and the library is there only to capture.
"""
import fnmatch
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import harness
import schedules_client
import segments
from harness import DMI_RUN, PRELOAD, ROOT, STANDIN, Tally
from standin_log import Log, read_dumps

np = pytest.importorskip("numpy")
pytest.importorskip("tinygrad")
import sites  # noqa: E402
from collector import Collector, digest  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, PRELOAD, STANDIN / "libcuda.so.1")

LAYERS = 2
TOKENS = 3
CLIENT = ROOT / "tests" / "engine" / "schedules_client.py"
SPEC = ROOT / "specs" / "tinygrad-smollm2.yaml"
LOGITS_RULE = "after 0 196608 r_512_32_3_18_32(n[0-9]+)?"
IS_LOGITS = [site.name == "final_logits" for site in sites.SITES]


class Pass:
    """Runs of the client in folders of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.spec = folder / "spec.yaml"
        self.spec.write_text(sites.cut_down_spec(SPEC.read_text(), LAYERS))

    def run(self, name, passes, capture=False, seed=None, switch=False, first_seed=1, **more):
        folder = self.folder / name
        folder.mkdir()
        command = [sys.executable, CLIENT, "--layers", LAYERS, "--passes", passes, "--tokens", TOKENS, "--first-seed", first_seed]
        if switch:
            command.append("--switch")
        if capture:
            command = [DMI_RUN, "--spec", self.spec, "--out", folder / "run", "--", *command]
        env = harness.environment(DEV="CUDA:PTX", JIT="1", DMI_STANDIN_LOG=folder / "calls", CACHEDB=os.environ.get("CACHEDB", self.folder / "cache.db"),
                                  **({"DMI_STANDIN_DELAY_SEED": seed} if seed else {}), **more)
        collector = None
        if capture:
            collector = Collector(folder / "dumps", folder / "calls")
            env.update(DMI_STANDIN_DUMP=collector.rules, DMI_STANDIN_DUMP_FILE=str(folder / "dumps"))
            collector.start()
        else:
            env.update(DMI_STANDIN_DUMP=LOGITS_RULE, DMI_STANDIN_DUMP_FILE=str(folder / "logits"))
        result = harness.run(command, env=env, timeout=3000)
        return folder, result.stdout, collector.stop() if collector else None


def logits_of(folder, digests):
    if digests is None:
        return [digest(np.frombuffer(dump.data, dtype=np.float32)) for dump in read_dumps(folder / "logits")]
    by_launch = {seq: d for (seq, site), d in digests.items() if IS_LOGITS[site]}
    return [by_launch[seq] for seq in sorted(by_launch)]


def check_outputs(check, name, n, plain, ran):
    """Each of @n passes said what the first pass without the library did."""
    folder, said, digests = ran
    lines, want = said.splitlines(), plain[1].splitlines()[0]
    check(len(lines) == n and set(lines) == {want}, f"{name}: tokens and KV caches of {n} passes are those without the library",
          f"{len(lines)} lines: {sorted(set(lines) - {want})[:2]}" if set(lines) != {want} else "")
    # tinygrad's sampling noise is within them: they are the same at the same pass
    want, logits = logits_of(plain[0], None), logits_of(folder, digests)
    check(len(logits) == n * TOKENS and logits == want[:len(logits)], f"{name}: and so are the logits of {len(logits)} forwards, bit for bit")


def on_in_forward(n_forwards, switch):
    """[site: is it on?] of each forward."""
    on = [True] * len(sites.SITES)
    for change in itertools.islice(schedules_client.switches(), n_forwards):
        if switch and change:
            on = [change[1] if fnmatch.fnmatchcase(site.name, change[0]) else old for site, old in zip(sites.SITES, on)]
        yield list(on)


def check_capture(check, name, ran, switch=False):
    """Records are those that were asked for, equal in bits to the driver's dumps, and accounting balances."""
    folder, _, digests = ran
    run = harness.only_run(folder / "run")
    launches = Log(folder / "calls").launches
    wants, forwards = sites.wanted(launches)
    on = list(on_in_forward(len(forwards), switch))
    wanted = {(w.forward, w.site, w.occurrence): w for w in wants if on[w.forward][w.site]}
    records, _ = segments.read_run(run)
    got = {(r.forward, r.site, r.occurrence): r for r in records}
    check(len(got) == len(records) and set(got) == set(wanted),
          f"{name}: {len(records)} records of {len(forwards)} forwards, those that were asked for"
          + (f" ({len(wants) - len(wanted)} were switched off)" if switch else ""),
          f"missing {sorted(set(wanted) - set(got))[:3]}, too many {sorted(set(got) - set(wanted))[:3]}"
          if set(got) != set(wanted) else "")
    wrong = []
    for key in set(got) & set(wanted):
        record, want = got[key], wanted[key]
        site = sites.SITES[want.site]
        rows = np.frombuffer(record.data, dtype=site.dtype).reshape(record.dims[0], -1)
        layer = None if record.layer < 0 else record.layer
        if layer != want.layer or digests.get((want.seq, want.site)) != digest(rows):
            wrong.append(key)
    check(not wrong, f"{name}: their layers are right, and their bits the driver's", f"{len(wrong)} wrong: {sorted(wrong)[:3]}" if wrong else "")
    counters = harness.Counters(run)
    expected, captured = sum(counters.expected, Tally()), sum(counters.captured, Tally())
    check(expected == captured and captured.records == len(records) and counters.state == counters.CLOSED,
          f"{name}: all that was expected is captured: {expected}",
          "" if expected == captured else captured)
    in_graphs = sum(launch["exec"] != 0 for launch in launches if not launch["kernel"].startswith("dmi_"))
    check(in_graphs > len(launches) // 4, f"{name}: {in_graphs} of the engine's kernels ran in graphs")
    if switch:
        check_switches(check, name, launches, on)


def check_switches(check, name, launches, on):
    """A graph's copies of a kernel are one node. It does not run where all of its sites are off; one that is on but not wanted (another kind of forward) may."""
    forward, want = -1, 0
    for launch in launches:
        forward += any(begins.fullmatch(launch["kernel"]) is not None for begins in sites.BEGIN.values())
        if launch["exec"] and forward >= 0:
            want += any(on[forward][i] for i, site in enumerate(sites.SITES) if site.regex.fullmatch(launch["kernel"]))
    nodes = sum(launch["kernel"].startswith(("dmi_copy_graph_", "dmi_copies_graph_", "dmi_copies_alone_")) for launch in launches)
    check(nodes == want, f"{name}: in graphs {nodes} nodes of copies ran, those of kernels with sites that were on", "" if nodes == want else want)


class Served:
    """Runs of the client by what they show, and of how many passes each is. @names: those that tests ask for."""

    def __init__(self, runs, names, n_seeds, n_switched):
        self.passes = {"absent": max(n_seeds, n_switched), "idle": 4, "capturing": 4, "seeded": n_seeds, "switched": n_switched}
        how = {"absent": {}, "seeded": {"capture": True, "seed": 1}, "switched": {"capture": True, "seed": 1001, "first_seed": 1001, "switch": True},
               "idle": {"LD_PRELOAD": PRELOAD}, "capturing": {"capture": True}}
        with ThreadPoolExecutor(max_workers=2) as pool:
            running = {name: pool.submit(runs.run, name, self.passes[name], **options) for name, options in how.items() if name in names}
        self.results = {name: future.result() for name, future in running.items()}


@pytest.fixture(scope="module")
def served(long, seeds, tmp_path_factory):
    with sites.cut_down(LAYERS):
        yield Served(Pass(tmp_path_factory.mktemp("schedules")), QUICK + (ONLY_LONG if long else ()), seeds(4, 30), seeds(4, 20))


# The third pass is the first that runs in graphs.
QUICK, ONLY_LONG = ("absent", "seeded", "switched"), ("idle", "capturing")


def by_name(*names):
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] if name in ONLY_LONG else []) for name in names])


@by_name(*QUICK, *ONLY_LONG)
def test_outputs(check, served, name):
    check_outputs(check, name, served.passes[name], served.results["absent"], served.results[name])


@by_name("seeded", "switched", "capturing")
def test_capture(check, served, name):
    check_capture(check, name, served.results[name], switch=name == "switched")
