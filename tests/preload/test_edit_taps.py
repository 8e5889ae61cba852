# SPDX-License-Identifier: Apache-2.0
"""Taps as places for edits: what may be written is, in the rows that the edit wants and in no others; all else is missed, and said."""
import pathlib
import struct
import sys

import pytest

from kit import START, spec
from test_edit_changes import Accounts, pack

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("tap_client.py")
SITES = "  - {tap: x, write: {}, capture: none}\n  - {tap: y}"
EDITS = "editspec: 1\nedits:\n" + "".join(f"  - {{name: e{i}, site: x, layers: '{i}', requests: a, do: [{{set: 7}}]}}\n" for i in range(8))
SEVEN, = struct.unpack("<I", struct.pack("<f", 7.0))
F16, BF16 = 0x4700, 0x40e0


def plain(layer, row):
    return [layer + 1 << 16 | row * 4 + i for i in range(4)]


def with_halves(words, bits, places):
    """@words with halves of them exchanged."""
    data = bytearray(struct.pack("<4I", *words))
    for at in places:
        struct.pack_into("<H", data, at, bits)
    return list(struct.unpack("<4I", data))


# What row 2 holds after the edit of its layer, and why it was missed.
ROW_2 = {0: [SEVEN] * 4, 4: with_halves(plain(4, 2), F16, (0, 2, 4, 6)), 5: with_halves(plain(5, 2), BF16, (0, 4, 8, 12))}
SAID = {1: "plain taps are no places", 2: "its type is none of f32, f16 and bf16", 3: "its elements lie over one another"}


@pytest.mark.parametrize("sites, name", [("{tap: x, write: {}}", "x"), ("{tap: x, write: {}, capture: none}", "x"), ("{tap: y}\n  - {tap: x, write: {}}", "y")])
def test_where_nothing_is_tapped_the_run_says_so(bench, sites, name):
    """A place that is captured, too, is two sites of one entry: one of them says it."""
    result = bench.run([*START, "launch first 0 1 64 p 64 1", "sync"], spec(f"  - {sites}"))
    told = [p["sentence"] for p in result.run().manifest["problems"]]
    bench.check(result.stderr.count("nothing was tapped as") == 1 and f"nothing was tapped as {name} " in result.stderr, "one line in the log", result.stderr)
    bench.check(sum(sentence.startswith("nothing was tapped as x ") for sentence in told) == 1, "each entry once in the manifest", told)


def test_taps_as_places(bench):
    edits = bench.folder / "edits"
    edits.write_bytes(pack(EDITS))
    result = bench.run([], spec(SITES, head="ring: {bytes: 4M, slots: 8192}\n"), command=[sys.executable, CLIENT, "places"], timeout=120, DMI_EDITS=edits)
    bench.check(result.code == 0 and result.folders, "the program runs", result.stderr[-1500:])
    accounts, run = Accounts(result.folders[0] / "edits"), result.run()
    for layer in range(8):
        found = [r.words for r in run.records if r.layer == layer and len(r.words) == 32]
        rows = [list(found[0][4 * i:4 * i + 4]) for i in range(8)] if found else []
        want = [plain(layer, i) for i in range(8)]
        want[2] = ROW_2.get(layer, [SEVEN] * 4 if layer in (6, 7) else want[2])
        bench.check(len(found) == 2 and rows == want, f"layer {layer}: rows", (rows, want))
        missed = {"unsupported": 2} if layer in SAID else {}
        bench.check(accounts.of(f"e{layer}") == (2, 0 if missed else 2, missed), f"layer {layer}: accounts", accounts.of(f"e{layer}"))
    bench.check('edit "e0" at x: 2 rows written of 2 due\n' in result.stderr and 'edit "e1" at x: 0 rows written of 2 due; missed: 2 unsupported' in result.stderr,
                "at the end it is said what was written", result.stderr[-1500:])
    bench.check(not run.balance(), "records balance", run.balance())


@pytest.mark.parametrize("capture", ["after", "before"])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 20))])
def test_in_graphs(bench, capture, seed):
    """Each replay writes the rows of its own step before any stream reads them, also after an update to other memory; a capture at the same tap comes
    before or after the edit, as it says."""
    edits = bench.folder / "edits"
    edits.write_bytes(pack("editspec: 1\nedits:\n  - {name: e, site: x, requests: a, do: [{set: 7}]}\n"))
    sites = SITES.replace("capture: none", f"capture: {capture}")
    result = bench.run([], spec(sites, head="ring: {bytes: 4M, slots: 8192}\n"), command=[sys.executable, CLIENT, "places_in_graphs"], timeout=120, DMI_EDITS=edits,
                       DMI_STANDIN_DELAY_SEED=seed)
    bench.check(result.code == 0 and result.stdout.startswith("0\n") and result.folders, "the program runs, and the exec is updated", result.stdout + result.stderr[-1500:])
    run = result.run()
    found = {}
    for r in run.records:
        found.setdefault((r.site, r.layer), []).append([list(r.words[4 * i:4 * i + 4]) for i in range(8)])
    for step in range(8):
        before = [plain(step // 4, i) for i in range(8)]
        after = [[SEVEN] * 4 if i == step else row for i, row in enumerate(before)]
        read = [rows[step] for (_, layer), rows in found.items() if rows[step] == after]
        bench.check(len(found) == 3 and len(read) == (3 if capture == "after" else 2), f"step {step}: two readers, and a capture {capture} it", found)
        bench.check(capture == "after" or any(rows[step] == before for rows in found.values()), f"step {step}: what was there before", found)
    bench.check(Accounts(result.folders[0] / "edits").of("e") == (8, 8, {}) and not run.balance(), "accounts, and records", run.balance())


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 20))])
def test_places_in_turn(bench, seed):
    """What is tapped later has all that was written before, though no launch lies between; an exec takes updates that lack some of the taps."""
    edits = bench.folder / "edits"
    edits.write_bytes(pack("editspec: 1\nedits:\n" + "".join(f"  - {{name: e{i}, site: x, layers: '{i}', do: [{{set: {7 + i}}}]}}\n" for i in range(3))))
    result = bench.run([], spec(SITES), command=[sys.executable, CLIENT, "places_in_turn"], timeout=120, DMI_EDITS=edits, DMI_STANDIN_DELAY_SEED=seed)
    bench.check(result.code == 0 and result.stdout.startswith("0\n" * 5) and result.folders, "the program runs, and the exec is updated", result.stdout + result.stderr[-1500:])
    run = result.run()
    found = [struct.unpack("<f", struct.pack("<I", r.words[0]))[0] if r.words[0] >> 16 != 1 else None for r in run.records]
    bench.check(found == [9, 8, 9, 9, None, 9], "what the last place wrote", found)
    bench.check(not run.balance(), "records balance", run.balance())


@pytest.mark.parametrize("names", [("all", "some"), ("some",)], ids="-".join)
def test_without_steps(bench, names):
    """An edit of all requests and tokens writes every row; one of some rows misses them."""
    edits, of = bench.folder / "edits", {"all": "layers: '0'", "some": "layers: '1', tokens: generated"}
    edits.write_bytes(pack("editspec: 1\nedits:\n" + "".join(f"  - {{name: {name}, site: x, do: [{{set: 7}}], {of[name]}}}\n" for name in names)))
    result = bench.run([], spec(SITES), command=[sys.executable, CLIENT, "places_without_steps"], timeout=120, DMI_EDITS=edits)
    bench.check(result.code == 0 and result.folders, "the program runs", result.stderr[-1500:])
    accounts = Accounts(result.folders[0] / "edits")
    found = [(r.layer, r.words) for r in result.run().records]
    kernels = [tuple(seed << 16 | i for i in range(32)) for seed in (1, 2)]
    of_all = [(SEVEN,) * 32] * 2 if "all" in names else kernels
    bench.check(found == [(0, of_all[0]), (1, kernels[0]), (0, of_all[1]), (1, kernels[1])], "rows", found)
    bench.check(accounts.of("all") == ((16, 16, {}) if "all" in names else (0, 0, {})) and accounts.of("some") == (16, 0, {"no_step": 16}), "accounts", accounts.all)


@pytest.mark.parametrize("only", sorted(SAID))
def test_what_no_place_is_named(bench, only):
    """One line a site says why."""
    edits = bench.folder / "edits"
    edits.write_bytes(pack(EDITS))
    sites = SITES.replace("tap: x", f"tap: x, layers: '{only}'").replace("tap: y", "tap: y, layers: '0'")
    result = bench.run([], spec(sites, head="ring: {bytes: 4M, slots: 8192}\n"), command=[sys.executable, CLIENT, "places"], timeout=120, DMI_EDITS=edits)
    lines = [line for line in result.stderr.splitlines() if "edits write nothing here" in line]
    bench.check(len(lines) == 1 and f"tapped in layer {only}" in lines[0] and SAID[only] in lines[0], "the reason", result.stderr[-1500:])
