# SPDX-License-Identifier: Apache-2.0
"""docs/format.md against the code: a reader made from the page alone reads what the library writes, bit for bit as
dmi-dump exports it, and refuses what is wrong."""
import json
import pathlib
import re
import shutil
import struct
import subprocess

import pytest

from damage import write_manifest
from harness import BUILD, DMI_DUMP

format_reader = pytest.importorskip("format_reader", reason="needs the packages of tools/setup/python.txt",
                                    exc_type=ImportError)
xxhash = pytest.importorskip("xxhash")
MAKE_RUN, MAKE_ODD_RUN, WRITE_RUN = (BUILD / "tests" / "unit" / name for name in ("make_run", "make_odd_run", "write_run"))
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN, WRITE_RUN)


def exported(run, path):
    """{key: bytes of the tensor} of dmi-dump's safetensors"""
    subprocess.run([DMI_DUMP, "export", "--format", "safetensors", "--force", "-o", path, run], check=True, stdout=subprocess.DEVNULL)
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {key: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for key, v in header.items() if key != "__metadata__"}


def make(folder, *words):
    done = subprocess.run([MAKE_RUN, folder, *words], check=True, text=True, stdout=subprocess.PIPE)
    return pathlib.Path(done.stdout.strip())


@pytest.fixture
def made(tmp_path):
    return make(tmp_path / "out")


@pytest.mark.parametrize("rung, codecs", [("smallest", {0, 1}), ("packed", {0, 2}), ("stored", {0})])
def test_a_run_reads_as_dmi_dump_exports_it(check, tmp_path, rung, codecs):
    made = make(tmp_path / "out", rung)
    run = format_reader.Run(made)
    check(run.codecs == codecs, "the codecs of the rung", run.codecs)
    want = {f"{request.decode()}/{name}": b"".join(rows[p] for p in sorted(rows))
            for (request, name), rows in run.tensors().items()}
    got = exported(made, tmp_path / "x.safetensors")
    check(len(want) >= 12, "requests, sites and layers are all there", sorted(want))
    check(all(got.get(k) == v for k, v in want.items()), "every tensor of every request is what dmi-dump exports",
          [k for k, v in want.items() if got.get(k) != v])
    check(all(tuple(a + b for a, b in zip(t["captured"], t["dropped"])) == t["expected"] for t in run.tallies),
          "the accounting balances", run.tallies)


@pytest.mark.parametrize("rung", ["smallest", "packed"])
def test_200_flipped_bits_are_found_by_the_rules_of_the_page(tmp_path, rung):
    made = make(tmp_path / "out", rung)
    names = sorted(p.name for p in made.glob("*") if p.stat().st_size)
    missed = []
    for i in range(200):
        name = names[i % len(names)]
        data = bytearray((made / name).read_bytes())
        bit = i * 2654435761 % (8 * len(data))
        copy = tmp_path / "flipped"
        shutil.copytree(made, copy)
        data[bit // 8] ^= 1 << bit % 8
        (copy / name).write_bytes(data)
        try:
            format_reader.Run(copy)
            missed.append(f"{name}, bit {bit}")
        except Exception:  # whatever it stumbles over: the bit was found
            pass
        shutil.rmtree(copy)
    assert not missed


def test_a_run_whose_first_segments_were_released(check, tmp_path):
    """Their steps are repeated by the segments whose records name them, and their sums stand in the manifest."""
    subprocess.run([WRITE_RUN, tmp_path / "out", "0", "6000", "0", "40000", "0", "300"], check=True, stdout=subprocess.DEVNULL)
    made = next((tmp_path / "out").iterdir())
    run = format_reader.Run(made)
    check(run.released and run.manifest["segments"][0]["released"], "segments were released", run.manifest["segments"][0])
    check(run.repeated > 1, "segments repeat steps", run.repeated)
    check(wanted(run.tensors()) == exported(made, tmp_path / "x.safetensors"), "tensors are what dmi-dump exports")
    gone = {s["site"]: (s["records"], s["rows"], s["bytes"]) for s in run.manifest["released"]}
    check(gone == {i: t["released"] for i, t in enumerate(run.tallies) if any(t["released"])}, "counters say the same", gone)
    check(all(t["captured"] == t["expected"] for t in run.tallies), "the accounting balances", run.tallies)


def test_the_golden_run_has_what_is_rare():
    run = format_reader.Run(GOLDEN / "v2/valid")
    special = [r for r in run.records if r.n_row_dims == 2]
    assert len(run.records) == 9 and run.manifest["job"] == "kit-job"
    assert special[0].kept == [11, 3, 4, 0, 7, 1] and special[0].dims == (2, 3, 4)
    assert run.steps[special[0].step].spans[0].n_prompt == 40
    assert set(run.tensors()[b"c", "bf16.0"]) == {11, 3, 4, 0, 7, 1}


def test_the_golden_packed_run_by_the_page():
    """Planes of codec 2, by the formula that test_storage_golden.c has."""
    run = format_reader.Run(GOLDEN / "v2/packed")
    wide = struct.pack("<12288f", *((1 + i % 97 / 128) * 2 ** (i % 5) for i in range(12288)))
    found = {len(r.data): r.data for r in run.records}
    assert 2 in run.codecs and not run.unknown, run.codecs
    assert found == {len(wide): wide, len(wide) // 2: b"".join(wide[at + 2:at + 4] for at in range(0, len(wide), 4))}


def test_the_golden_run_says_ids_of_cached_tokens():
    spans = format_reader.Run(GOLDEN / "v2/cached").steps[0].spans
    assert [span.cached_ids for span in spans] == [(7, 0, 2147483647, 11, 5), None, (11, 5)]
    assert [span.cached_ids for step in format_reader.Run(GOLDEN / "v2/valid").steps.values() for span in step.spans] == [None] * 9


def test_the_golden_accounts_of_edits():
    assert format_reader.Run(GOLDEN / "v2/valid").accounts is None
    assert format_reader.Run(GOLDEN / "v2/edits").accounts == [
        (2, 1, b"calm", b"abc", 7, 4, {10: 3}, 0), (2, 1, b"calm", b"a\0\xff\n?", 5, 5, {}, 1), (2, 1, b"calm", b"", 2, 0, {3: 2}, 0),
        (2, 3, b"calm", b"", 10**12, 10**12, {}, 0)]


def test_the_golden_pack_of_edits_by_the_page(check):
    """Its parts fill it, and its hashes are those of the note that names it."""
    note = json.loads((GOLDEN / "v2/edits-pack/note.json").read_text())
    data = (GOLDEN / "v2/edits-pack" / note["file"]).read_bytes()
    magic, n_tensors, n_text, n_numbers = struct.unpack_from("<8sIIQ", data)
    at = 24 + 24 * n_tensors
    numbers, text = data[at:at + 4 * n_numbers], data[at + 4 * n_numbers:]
    tensors = list(struct.iter_unpack("<IiQQ", data[24:at]))
    check(magic == b"DMIEDIT1" and len(text) == n_text and n_tensors > 0, "the parts fill the file", (magic, n_text, len(text)))
    check([first for _, _, first, _ in tensors] == [sum(n for *_, n in tensors[:i]) for i in range(n_tensors)] and sum(n for *_, n in tensors) == n_numbers, "tensors", tensors)
    check(note["bytes"] == len(data) and note["xxh3"] == f"{format_reader.xxh3(data):016x}", "the file's hash")
    by_page = xxhash.xxh3_64_intdigest(numbers, seed=xxhash.xxh3_64_intdigest(text))
    check({edit["hash"] for edit in note["edits"]} == {f"{by_page:016x}"}, "the hash of text and numbers", (note, f"{by_page:016x}"))
    names = re.findall(r"- \{name: (\w+)", text.decode())
    check([names[edit["number"]] for edit in note["edits"]] == [edit["name"] for edit in note["edits"]], "the text has the edits", (note, names))


def test_the_golden_packed_steps_by_the_page(check):
    run = format_reader.Run(GOLDEN / "v2/steps-packed")
    steps = [run.steps[i] for i in range(len(run.steps))]
    check(not run.unknown and [step.step for step in steps] == [7000 + i for i in range(120)], "each is there", (run.unknown, len(steps)))
    check(all((span.first_position, span.first_row, span.n_tokens, span.n_prompt) == (i + k, k, 1, 4) and span.request.startswith(b"cmpl-%08x-1234-5678-" % k)
              for i, step in enumerate(steps) for k, span in enumerate(step.spans)) and all(len(step.spans) == 3 for step in steps), "with its spans")
    check([step.tags for step in steps if step.tags] == [b'{"a": 1}'] * 2, "and its tags")
    for path in sorted((GOLDEN / "v2/steps-packed-invalid").glob("*.dmi")):
        said = subprocess.run([DMI_DUMP, "verify", path], text=True, capture_output=True).stdout
        check("thing is wrong" in said, "dmi-dump verify", (path, said))


def test_numbers_of_columns_by_the_page(check, tmp_path):
    """Their last groups may be 0; there are ten at most."""
    made = pytest.importorskip("made_trace", exc_type=ImportError)
    for first, good in ((b"\x80\x00", True), (b"\x80" * 9 + b"\x00", True), (b"\x80" * 10 + b"\x00", False), (b"\xff" * 9 + b"\x02", False)):
        zero, n = made.number(0), 1
        meta = made.columns([(made.KERNEL, 0, 1, 1, (1, 1, 1), (32, 1, 1))], ["k"], [first], *[[zero] * n] * 7)
        folder = made.run(tmp_path / first.hex(), (made.TRACE, meta))
        said = subprocess.run([DMI_DUMP, "verify", folder], text=True, capture_output=True).stdout
        check(("thing is wrong" in said) != good, "dmi-dump verify", (first, said))


def wanted(tensors):
    return {f"{request.decode()}/{name}": b"".join(rows[p] for p in sorted(rows)) for (request, name), rows in tensors.items()}


def test_the_golden_ranks_are_joined_by_the_page(check, tmp_path):
    ranks = format_reader.Ranks(sorted((GOLDEN / "v2/ranks").iterdir()))
    first = ranks.runs[0]
    check([len(first.accepted), [(r, reason) for r, reason, _ in first.ends]] == [2, [(b"a", 1)]], "outcomes", first.ends)
    want = wanted(ranks.tensors())
    got = exported(GOLDEN / "v2/ranks", tmp_path / "x.safetensors")
    check(got == want and len(want) == 12, "tensors are what dmi-dump exports of the folder",
          [k for k in {**want, **got} if got.get(k) != want.get(k)])
    positions = sorted(ranks.tensors()[b"a", "q.0"])
    check(positions == [0, 1, 2, 3, 4], "rejected rows are in no tensor", positions)


def test_changes_by_the_page(check, tmp_path):
    """Of chunks, each once though segments repeat them, and of the manifest, where writers noted them before."""
    subprocess.run([MAKE_ODD_RUN, tmp_path / "out", "changes"], check=True, stdout=subprocess.DEVNULL)
    made = next((tmp_path / "out").iterdir())

    def listed(run):
        said = json.loads(subprocess.run([DMI_DUMP, "list", "--json", run], check=True, stdout=subprocess.PIPE).stdout)["changes"]
        return [(c["time_ns"], c["launch"], c["step_sequence"], c["what"]) for c in said]

    def read(run):
        return [(*place, words["what"]) for *place, words in format_reader.Run(run).changes]

    want = [(1000 + i, i + 1, i, f"sites {'on' if i % 2 else 'off'} \"s{i}\"\n") for i in range(12)]
    check(len(list(made.glob("seg-*"))) > 2 and listed(made) == read(made) == want, "each is there once", (listed(made), read(made)))
    last = sorted(made.glob("seg-*"))[-1]
    check(listed(last) == want, "a segment that has the last record says what was changed before", listed(last))
    subprocess.run([DMI_DUMP, "recover", made, "-o", tmp_path / "new"], check=True, stdout=subprocess.DEVNULL)
    check(listed(tmp_path / "new") == want, "dmi-dump recover keeps them", listed(tmp_path / "new"))
    old = [(7, 0, 0, "sites off *"), (8, 1, 1, "é")]
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["changes"] = [dict(zip(("time_ns", "launch", "step", "what"), c)) for c in old]
    write_manifest(made, manifest)
    check(listed(made) == read(made) == old + want, "those of a manifest come first", listed(made))


def test_outcomes_by_the_page(check, tmp_path):
    subprocess.run([MAKE_ODD_RUN, tmp_path / "out", "drafts"], check=True, stdout=subprocess.DEVNULL)
    run = format_reader.Run(next((tmp_path / "out").iterdir()))
    check(wanted(run.tensors()) == exported(tmp_path / "out", tmp_path / "x.safetensors"), "drafts and preemption",
          wanted(run.tensors()))
    check([(r, reason) for r, reason, _ in run.ends] == [(b"a", 2), (b"c", 3), (b"never", 3)], "ends", run.ends)


def test_the_golden_trace_by_the_page(check):
    run = format_reader.Run(GOLDEN / "v2" / "trace")
    want = [{"number": i, "step": i - 1 if i else format_reader.NONE, "begin_ns": 1000 * i + 1, "end_ns": 1000 * i + 999,
             "launch_ns": 1000 * i + 2, "device_ns": 700 + i, "gap_ns": 5 - i, "stall_ns": 11, "context": 300 * i, "launches": 41,
             "graph_launches": 2, "own": 7, "flags": 3, "rows": 8, "requests": 3, "prefill": 4, "decode": 2, "device": 1, "thread": 77,
             "loads": 1, "allocations": 6, "source": 5, "waits": 9, "wait_us": 44, "engine_step": format_reader.NONE, "waited_ns": 0} for i in range(3)]
    check(run.step_times == want, "times of steps", run.step_times)
    entries = format_reader.Run(GOLDEN / "v2" / "trace-steps").step_times
    check([dict(entry, engine_step=format_reader.NONE) for entry in entries] == want and [entry["engine_step"] for entry in entries] == [5, 6, 7], "with the engine's step", entries)
    later = format_reader.Run(GOLDEN / "v2" / "trace-waits").step_times
    check(later == [dict(entry, waited_ns=1000 * i + 500) for i, entry in enumerate(entries)], "and the end of the last wait", later)
    check(run.marks == [(101 + i, -1 - i, 1 + i, "" if i else "steps") for i in range(5)], "marks", run.marks)
    want = [(110, 190, 4, 7, 1, 2, "Forward", {"rows": 3}), (195, 198, format_reader.NONE, 8, 0, 1, "Sample", {}), (100, 200, 4, 7, 0, 1, "", {})]
    check(format_reader.Run(GOLDEN / "v2" / "ranges").ranges == want, "ranges")
    ran = format_reader.Run(GOLDEN / "v2" / "ran").ran
    check([(r.kind, r.name, r.stream, r.grid, r.how) for r in ran] ==
          [(k + 1, ("_Z4gemmPf", "rms_norm", "")[k], 7 + k, (3 * k, 2, 1), k) for k in (0, 1, 2, 0, 1, 2)], "shapes of what ran", ran)
    check([(r.begin, r.end, r.step, r.correlation, r.graph, r.node, r.n_bytes) for r in ran] ==
          [(1000 + 10 * i - 25 * (i % 2), 1000 + 10 * i + i, i % 5, i // 2, 9 if i % 4 else 0, 2**64 - 1 - i if i % 4 else 0, 2**64 - 1 if i == 4 else 100 * i)
           for i in range(6)], "what ran", ran)
    ran = format_reader.Run(GOLDEN / "v2" / "ran-sites").ran
    check([(r.site, r.layer) for r in ran] == [(i % 5, i % 30 if i % 5 else 0) if i % 7 == 0 else (0, 0) for i in range(20)], "sites and layers", ran)
    for path in sorted((GOLDEN / "v2").glob("trace-*/*.dmi")):
        said = subprocess.run([DMI_DUMP, "verify", path], text=True, capture_output=True).stdout
        check(("thing is wrong" in said) == (path.parent.name == "trace-invalid"), "dmi-dump verify", (path, said))


@pytest.mark.parametrize("folder, text", [("v1/valid", "has format version 1; this program reads version 2"),
                                          ("v2/newer", "version 3, which is newer")])
def test_other_versions_are_named(folder, text):
    with pytest.raises(format_reader.OtherVersion, match=text):
        format_reader.Run(GOLDEN / folder)
