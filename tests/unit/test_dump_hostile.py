# SPDX-License-Identifier: Apache-2.0
"""dmi-dump and runs that somebody built to harm it, or that a disk harmed: each command ends soon, in bounded memory, and either reads
what is undamaged and names the rest, or says in a sentence why not.

What was once found wrong, and the test that holds it right (storage: tests/unit/test_storage_NAME.c; use: test_dump_use.py):

| | case | test |
|---|---|---|
| 1 | a payload bit flips: the rest is exported and named, no file of zeros | use: test_damage; here: test_flips_and_cuts |
| 2 | more segments than descriptors | storage_reader: a_run_may_have_more_segments_than_descriptors_are_allowed |
| 3 | positions repeated for each tensor | use: test_positions_are_said_once |
| 4 | show of a damaged run says so | use: test_damage; here: test_flips_and_cuts |
| 5 | a FIFO, a link or a device in the folder, or given as a file | storage_reader: only_regular_files_are_opened; here: test_no_fifo_is_waited_for |
| 6 | a sparse segment of a terabyte | storage_reader: a_terabyte_of_holes_is_passed_over |
| 7 | 2^32-1 rows of no width | here: test_rows_without_width |
| 8 | more tensors than memory | here: test_bounds; here: test_many_tensors_of_a_small_file |
| 9 | overlapping spans | storage_golden: invalid_segments_are_damage; here: test_overlapping_spans |
| 10 | much metadata in a sparse file | here: test_much_metadata |
| 11 | 60,000 requests, as many sites as there may be, 100,000 names | here: test_bounds; test_dump_requests.py: test_a_crowd; here: test_many_sites |
| 12 | escapes and line ends in what a run says of itself | use: test_odd_names; here: test_hostile_texts |
| 13 | a missing step, one after its record, one twice | storage_reader: steps_that_cannot_be_are_damage |
| 14 | step flags (ignored), rows 0, spans beyond the batch | storage_golden: invalid_segments_are_damage; here: test_steps_that_claim_too_much |
| 15 | a footer that lies | storage_reader: a_footer_that_lies_is_not_believed; storage_golden: invalid_segments_are_damage |
| 16 | the manifest contradicts the segments | storage_reader: a_manifest_that_contradicts_the_segments_is_damage |
| 17 | sums that wrap | storage_reader: sums_that_wrap_do_not_balance; use: test_words |
| 18 | other zstd frames | storage_codec: a_plane_is_one_zstd_frame_and_nothing_else; storage_golden: invalid_segments_are_damage |
| 19 | names that are another's, or a format's | use: test_odd_names; test_read.c: nul_ends_no_name |
| 20 | layers that are not 0, 1, 2... in JSON | here: test_layers_in_json |
| 21 | a stray segment of a high number | storage_reader: a_stray_segment_of_a_high_number_is_one_line |
| 22 | positions up to 2^63 | storage_golden: invalid_segments_are_damage; here: test_the_last_positions |
| 23 | a reference of very many keys | here: test_bounds |
| | an export comes back through verify --against | use: test_export_comes_back_through_verify |
| | an export into the run; old files beside new ones | use: test_where_export_writes; test_dump_force.py |
| | --site and --layer of list; what is not there is 1; show takes printed names | use: test_what_is_not_there |
| | several processes | use: test_several_runs; test_ranks.py |
| | a full ring is no record that is too large | tests/preload/test_failures.py, test_overload.py |
| | verify says how many were dropped; --version; errors name the option | use: test_words |
| | checksum, frame and unknown codec are three sentences | here: test_each_cause_has_its_sentence; storage_golden: what_is_not_known_is_named_by_its_number_and_loses_no_more_than_itself |
| | stats of a lone good segment | use: test_lone_segment |
| | a damaged run in diff: named, and the status is 1 | here: test_every_command_on_every_wrong_segment |
"""
import json
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import subprocess

import pytest

from harness import BUILD, DMI_DUMP, ROOT, cpu_seconds
from test_dmi_dump import write_safetensors
from test_dump_use import UseCase, read_header

kit = pytest.importorskip("hostile_run", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
MAKE_RUN = BUILD / "tests" / "unit" / "make_run"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN)
GOLDEN = ROOT / "tests" / "golden" / "v2"
SANITIZED = bool(os.environ.get("DMI_TEST_RUNTIME"))
SECONDS = 120 if SANITIZED else 20
MEMORY = 3 << 30  # bytes of address space
COMMANDS = (("list",), ("list", "--tensors"), ("list", "--records"), ("list", "--requests"), ("stats",), ("verify",))
BAD = ("\x1b", "\x9b", "\u202e", "\x7f", "\r", "\0")
Q = [kit.site("q")]


def cpu_of_children():
    """Seconds, of those that have ended: what else the machine does is not in it."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def dump(*words, memory=MEMORY):
    """The process, ended; its text must be UTF-8."""
    def limit():
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    begin = cpu_of_children()
    try:
        done = subprocess.run([DMI_DUMP, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=20 * SECONDS, preexec_fn=limit)
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess(late.cmd, "none: still running", b"", b"")
    done.took = cpu_of_children() - begin
    done.out, done.err = done.stdout.decode(), done.stderr.decode()
    return done


def complaints(done, *, statuses=(0, 1), said=()):
    """What is wrong with how a command ended: nothing raw, in time, one of these statuses, with these words."""
    text = done.out + done.err
    found = [f"status {done.returncode}"] if done.returncode not in statuses else []
    found += [f"raw {c!r}" for c in BAD if c in text]
    found += [f"took {done.took:.1f} CPU seconds"] if done.took > SECONDS else []
    found += [f"not said: {s}" for s in said if s not in text]
    found += ["no sentence"] if done.returncode and not done.err.strip() and "MISMATCH" not in text and "DIFFERS" not in text else []
    return found and [*found, done.args, text[-600:]]


def make(folder, *words):
    subprocess.run([MAKE_RUN, folder, *words], check=True, stdout=subprocess.PIPE, timeout=60)
    return next(p for p in folder.iterdir() if p.is_dir())


def small(folder, rows, steps=(), sites=None, **more):
    """A run of these records and steps, in one chunk each."""
    sites = sites or Q
    chunks = [kit.sites_chunk(sites)]
    if steps:
        chunks.append(kit.chunk(1, kit.STEPS, b"".join(steps)))
    chunks.append(kit.chunk(len(chunks), kit.RECORDS, *kit.records(rows)))
    tally = {}
    for row in rows:
        was = tally.get(row[0], (0, 0, 0))
        n_rows = row[4][0]
        tally[row[0]] = (was[0] + 1, was[1] + n_rows, was[2] + len(row[5]))
    return kit.write(folder, sites, kit.segment(*chunks), expected=tally, **more)


def test_the_table_above_names_tests_that_are_there(check):
    texts = "".join(path.read_text(encoding="utf-8") for path in pathlib.Path(__file__).parent.glob("test_*.[cp]*"))
    rows = [line.split(" | ")[-1] for line in __doc__.splitlines() if line.startswith("| ")][1:]
    names = {name for row in rows for name in re.findall(r"\b(?:test_)?[a-z]+(?:_[a-z0-9]+)+\b(?!\.(?:py|c))(?!:)", row)}
    check(len(rows) > 30 and len(names) > 25, "rows and tests", (len(rows), sorted(names)))
    for name in names:
        check(re.search(rf"(START_TEST\({name}\)|^def {name}\()", texts, re.M), name)


def test_the_kit_writes_a_sound_run(tmp_path, check):
    raw = struct.pack("<4f", 1, 2, 3, 4)
    run = small(tmp_path / "run", [(0, 0, 0, 1, (2, 2), raw)], [kit.step(0, [(b"r", 0, 0, 2)])])
    done = dump("verify", run)
    check(not complaints(done, statuses=(0,), said=("every checksum is right", "accounting balances")), "a run of the kit is sound", done)
    rows = json.loads(dump("show", "q", run, "--json").out)
    check([r["values"] for r in rows] == [[1, 2], [3, 4]], "and has the values that were put into it", rows)


def test_no_fifo_is_waited_for(tmp_path, check):
    run, fifo = make(tmp_path / "out"), tmp_path / "fifo"
    os.mkfifo(fifo)
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "manifest.json")
    unclosed = tmp_path / "unclosed"
    unclosed.mkdir()
    shutil.copy(next(run.rglob("seg-000000.dmi")), unclosed)
    os.mkfifo(unclosed / "counters")
    for words in (("list", fifo), ("list", "/dev/null"), ("list", folder), ("list", unclosed), ("verify", run, "--against", fifo),
                  ("verify", run, "--against", "/dev/zero"), ("verify", run, "--against", tmp_path), ("diff", run, fifo)):
        bad = complaints(dump(*words), statuses=(1, 2))
        check(not bad, f"what is no regular file is refused: {words[0]} {words[-1]}", bad)


def test_rows_without_width(tmp_path, check):
    run = small(tmp_path / "run", [(0, 0, kit.NONE, 1, (2**32 - 1, 0), b"")])
    for words in COMMANDS + (("show", "q"), ("show", "q", "--all", "--rows", "0:2")):
        bad = complaints(dump(*words, run))
        check(not bad, f"2^32-1 rows without elements: {' '.join(words)}", bad)
    for form in ("safetensors", "npy", "npz", "jsonl", "csv"):
        bad = complaints(dump("export", run, "-f", form, "-o", tmp_path / form), statuses=(0, 1, 2))
        written = sum(p.stat().st_size for p in [tmp_path / form, *(tmp_path / form).glob("*")] if p.is_file())
        check(not bad and written < 1 << 20, f"export to {form}", (bad, written))


@pytest.mark.long  # test_dump_use.py test_bounds has a tenth of it
def test_many_tensors_of_a_small_file(tmp_path, check):
    spans = [(b"%d" % i, 0, i, 1) for i in range(65536)]
    rows = [(0, layer, 0, 1 + layer, (65536, 0), b"") for layer in range(320)]
    run = small(tmp_path / "run", rows, [kit.step(0, spans)])
    size = (run / "seg-000000.dmi").stat().st_size
    for words in (("verify",), ("list",), ("show", "q"), ("stats",)):
        bad = complaints(dump(*words, run), statuses=(0, 1, 2))
        check(not bad, f"20 million tensors in {size >> 10} KiB: {words[0]} ends", bad)
    done = dump("export", run, "-o", tmp_path / "x")
    check(not complaints(done, statuses=(2,), said=("choose some with",)), "export says what to do", done)


def test_overlapping_spans(tmp_path, check):
    steps = [kit.step(0, [(b"%d" % i, 0, 0, 64) for i in range(1000)], n_rows=64)]
    run = small(tmp_path / "run", [(0, 0, 0, 1, (64, 4), bytes(1024))], steps)
    done, path = dump("verify", run), tmp_path / "x"
    check(not complaints(done, statuses=(1,), said=("seg-000000.dmi", "step")), "spans that overlap are damage", done)
    bad = complaints(dump("export", run, "-o", path), statuses=(1,))
    check(not bad and path.stat().st_size < 1 << 20, "and blow nothing up", bad)


def write_holes(folder, kind, n, n_meta, first):
    """@n chunks of zeros for metadata, after what @first says of each, in a file of few blocks."""
    sites = kit.sites_chunk(Q)
    meta = first.ljust(n_meta, b"\0")
    run = kit.write(folder, Q, kit.segment(sites))
    size = (run / "seg-000000.dmi").stat().st_size
    with open(run / "seg-000000.dmi", "r+b") as file:
        for i in range(n):
            file.seek(size + i * (64 + n_meta))
            file.write(kit.hole(1 + i, kind, n_meta, kit.xxh3(meta)) + first)
        file.truncate(size + n * (64 + n_meta))
    return run


@pytest.mark.parametrize("kind, first", [
    (kit.RECORDS, b""),  # no record, and what a later writer may have put after the tables
    (kit.STEPS, struct.pack("<II", 2**28, 0) + bytes(72) + struct.pack("<II", 48, 0)),  # an entry as long as its chunk
    (kit.OUTCOMES, struct.pack("<IIII", 0, 48, 0, 0)), (99, b"")], ids=["records", "steps", "outcomes", "unknown"])
def test_much_metadata(tmp_path, check, kind, first):
    run = write_holes(tmp_path / "run", kind, 40, 2**28, first)
    for words in (("list",), ("verify",)):
        bad = complaints(dump(*words, run, memory=1 << 30), statuses=(1,), said=("DAMAGED: seg-000000.dmi, chunk 1", "holes"))
        check(not bad, f"40 chunks of 256 MiB of metadata that are holes: {words[0]}", bad)


@pytest.mark.long
def test_many_sites(tmp_path, check):
    sites = [kit.site(f"site{i}") for i in range(65536)]
    run = small(tmp_path / "run", [(i, 0, kit.NONE, 1 + i, (1, 1), bytes(4)) for i in range(0, 65536, 8)], sites=sites)
    for words in COMMANDS + (("show", "site8"), ("export", "-o", tmp_path / "x")):
        bad = complaints(dump(*words, run), statuses=(0,))
        check(not bad, f"as many sites as there may be: {' '.join(map(str, words[:2]))}", bad)


HOSTILE = "a\x1b[2J\x9b\u202e\x7f\r\nDAMAGED: forged\0end"


def test_hostile_texts(tmp_path, check):
    more = {"model": HOSTILE, "conventions": {HOSTILE: HOSTILE}, "absent": {HOSTILE: HOSTILE}}
    sites = [kit.site("q", note=HOSTILE, kernel=HOSTILE, kind=HOSTILE, tap=HOSTILE), kit.site(HOSTILE.replace("\0", ""))]
    rows = [(0, 0, 0, 1, (1, 1), bytes(4)), (1, 0, 0, 2, (1, 1), bytes(4))]
    data = kit.segment(kit.sites_chunk(sites, **more), kit.chunk(1, kit.STEPS, kit.step(0, [(HOSTILE.encode(), 0, 0, 1)])),
                       kit.chunk(2, kit.RECORDS, *kit.records(rows)))
    problems = [{"site": HOSTILE, "reason": HOSTILE, "sentence": HOSTILE, "times": 2}]
    run = kit.write(tmp_path / "run", sites, data, problems, {0: (1, 1, 4), 1: (1, 1, 4)}, **more)
    for words in COMMANDS + (("show", "q"), ("show", "none"), ("export", "-o", tmp_path / "x"), ("diff", run)):
        done = dump(*words, run)
        forged = [line for line in (done.out + done.err).splitlines() if line.startswith(("DAMAGED", "dmi-dump: DAMAGED: forged"))]
        bad = complaints(done, statuses=(0, 1, 2))
        check(not bad and not forged, f"nothing of a run reaches the terminal raw: {words[0]} {words[-1]}", (bad, forged))
        if words[0] != "export":
            parsed = dump(*words, run, "--json")
            raw = [c for c in BAD + ("\u2028", "\u200b") if c in parsed.out]
            check(not raw, f"nor does its JSON bring it there: {words[0]} {words[-1]}", raw)
            check(json.loads(parsed.out or "[]") is not None, f"and its JSON parses: {words[0]} {words[-1]}", parsed.out[-300:])


@pytest.mark.parametrize("names", [("q\0a", "q\0b"), ("q", "q\0"), ("", "q"), ("q", None)])
def test_sites_whose_names_are_none_are_not_joined(tmp_path, check, names):
    """A name that C would cut makes one site of two: the dictionary is damage."""
    run = small(tmp_path / "run", [(0, 0, kit.NONE, 1, (1, 1), b"aaaa"), (1, 0, kit.NONE, 2, (1, 1), b"bbbb")], sites=[kit.site(name) for name in names])
    for words in (("list",), ("stats",), ("verify",), ("export", "-o", tmp_path / "x")):
        bad = complaints(dump(*words, run), statuses=(1, 2), said=("the site dictionary is not what",))
        check(not bad, f"is refused: {words[0]}", bad)
    check(not (tmp_path / "x").exists(), "and nothing is exported")


def test_what_files_say_in_json_is_escaped_and_the_same(tmp_path, check):
    name = "a\x9bb\u202e\u2028\U000e0041c"
    run = small(tmp_path / "run", [(0, 0, 0, 1, (1, 1), bytes(4))], [kit.step(0, [(name.encode(), 0, 0, 1)])])
    dump("export", run, "-f", "jsonl", "-o", tmp_path / "x")
    lines = (tmp_path / "x").read_text().split("\n")
    replayed = subprocess.run([BUILD / "tools" / "dmi-replay", run, "--to", "-", "--format", "jsonl"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=60)
    for text, what in (("\n".join(lines), "export"), (replayed.stdout.decode(), "replay"), (dump("list", "--requests", "--json", run).out, "list")):
        check(text and not any(c in text for c in name if not c.isascii()), f"{what}: nothing is raw", text[:300])
        check(name in json.dumps([json.loads(line) for line in text.split("\n") if line] if what != "list" else json.loads(text), ensure_ascii=False), f"{what}: the id is what it was",
              text[:300])


def test_steps_that_claim_too_much(tmp_path, check):
    row = [(0, 0, 0, 1, (4, 1), bytes(16))]
    for name, step, status in (("flags that nobody knows", kit.step(0, [(b"r", 0, 0, 4)], flags=1), 0),
                               ("no rows, and spans that have some", kit.step(0, [(b"r", 0, 0, 4)], n_rows=0), 1),
                               ("spans beyond the batch", kit.step(0, [(b"r", 0, 2**32 - 2, 4)], n_rows=4), 1),
                               ("more tokens than rows", kit.step(0, [(b"r", 0, 0, 2**32 - 1)], n_rows=4), 1)):
        run = small(tmp_path / name.replace(" ", "-"), row, [step])
        bad = complaints(dump("verify", run), statuses=(status,), said=("chunk 1",) if status else ())
        check(not bad, f"{name}: verify is {status}", bad)


def test_layers_in_json(tmp_path, check):
    run = small(tmp_path / "run", [(0, layer, kit.NONE, 1 + i, (1, 1), bytes(4)) for i, layer in enumerate((-1, 1, 2, 2**31 - 1))])
    facts = json.loads(dump("list", run, "--json").out)
    check(facts["sites"][0]["layers"] == [1, 2, 2**31 - 1], "layers in JSON are numbers, each by itself", facts["sites"])
    text = dump("list", run).out
    check("-,1-2,2147483647" in text, "and in text ranges", text)


def test_the_last_positions(tmp_path, check):
    last = 2**63 - 1
    rows = [(0, 0, 0, 1, (3, 1), struct.pack("<3f", 1, 2, 3))]
    run = small(tmp_path / "run", rows, [kit.step(0, [(b"r", last - 3, 0, 3)])])
    for words in COMMANDS + (("show", "q"), ("show", "q", "--tokens", f"{last - 2}:"), ("export", "-o", tmp_path / "x"), ("diff", run),
                             ("list", "--requests", "--tokens", "last")):
        bad = complaints(dump(*words, run), statuses=(0,))
        check(not bad, f"the last positions that there are: {' '.join(map(str, words[:3]))}", bad)
    shown = json.loads(dump("show", "q", run, "--json").out)
    check([r["position"] for r in shown] == [last - 3, last - 2, last - 1], "and they are those", shown)
    over = small(tmp_path / "over", rows, [kit.step(0, [(b"r", last - 1, 0, 3)])])
    bad = complaints(dump("verify", over), statuses=(1,), said=("position",))
    check(not bad, "one beyond them is damage", bad)


def lone(folder, path):
    """A folder with this file as its only segment."""
    folder.mkdir()
    shutil.copy(path, folder / "seg-000000.dmi")
    return folder


@pytest.mark.parametrize("group", ["invalid", "outcomes", "unknown", "outcomes-unknown"])
def test_every_command_on_every_wrong_segment(tmp_path, check, group):
    for path in sorted((GOLDEN / group).glob("*.dmi")):
        run = lone(tmp_path / path.stem, path)
        for words in COMMANDS + (("show", "f32"), ("export", "-o", tmp_path / f"{path.stem}.out"), ("diff", path)):
            said = ("NOT KNOWN: seg-000000.dmi" if group.endswith("unknown") else "DAMAGED: seg-000000.dmi",) if words == ("verify",) else ()
            if path.stem in ("flags", "longer_metadata", "longer_spans", "phase", "list", "size") and group.endswith("unknown"):
                said = ()  # what nobody needs to know of is passed over
            bad = complaints(dump(*words, run), statuses=(1, 2), said=said)
            check(not bad, f"{group}/{path.stem}: {words[0]} {words[-1]}", bad)


def test_each_cause_has_its_sentence(check):
    said = set()
    for name, group, words in (("codec", "unknown", "NOT KNOWN"), ("frame", "invalid", "DAMAGED"), ("plane_size", "invalid", "DAMAGED")):
        done = dump("verify", GOLDEN / group / f"{name}.dmi")
        lines = [line for line in done.err.splitlines() if line.startswith(f"dmi-dump: {words}")]
        said |= {lines[0].split(": ", 3)[-1] if lines else ""}
    check(len(said) == 3 and "" not in said, "codec, frame and size are three sentences", said)


def harm(data, rng):
    """One flipped bit, or a cut, or a run of zeros, in a copy of @data; and what it was."""
    data, kind, at = bytearray(data), rng.choice(("flip", "cut", "zeros")), rng.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    else:
        data[at:at + 200] = bytes(len(data[at:at + 200]))
    return bytes(data), f"{kind} at {at}"


def test_flips_and_cuts(tmp_path, check, seeds):
    seed = int(os.environ.get("TEST_SEED", "20261123"))
    rng = random.Random(seed)
    run = make(tmp_path / "out")
    files = sorted(p for p in run.iterdir() if p.stat().st_size)
    for i in range(seeds(16, 60)):
        path = files[i % len(files)]
        before = path.read_bytes()
        after, what = harm(before, rng)
        if after == before:
            continue
        path.write_bytes(after)
        name = f"{path.name}, {what}, seed {seed}"
        bad = complaints(dump("verify", run), statuses=(1,), said=(path.name,))
        check(not bad, f"verify finds and names it: {name}", bad)
        out = tmp_path / f"{i}.safetensors"
        for words in COMMANDS[:5] + (("show", "q"), ("export", "-o", out), ("diff", run)):
            bad = complaints(dump(*words, run), statuses=(0, 1))
            check(not bad, f"{words[0]} goes on: {name}", bad)
        check(out.exists() and not list(tmp_path.glob("*partial*")), f"what is undamaged is exported: {name}")
        path.write_bytes(before)
    check(dump("verify", run).returncode == 0, "and nothing of the run has changed")


def test_bounds(tmp_path, check):
    case = UseCase(tmp_path, check)
    run = case.odd_run("many")
    begin = cpu_seconds()
    done = case.dump("export", run)
    case.check("more tensors than can be used: refused, and what to do is said", done.returncode == 2 and
               "choose some with --site" in done.stderr, done)
    facts, status = case.json("list", "--tensors", "--site", "s7", "--request", "64999", run)
    case.check("and a selection of them works", status == 0 and [t["key"] for t in facts["tensors"]] == ["64999/s7"], facts)
    facts, status = case.json("list", "--requests", run)
    case.check("requests in time proportional to their number", status == 0 and len(facts["requests"]) == 65000)
    write_safetensors(case.folder / "big.safetensors", {f"n{i}/site{i}": [[1.0]] for i in range(100000)})
    done = case.dump("verify", "--against", case.folder / "big.safetensors", case.one_run("small"))
    case.check("a reference of many names likewise", done.returncode == 1 and cpu_seconds() - begin < 60, cpu_seconds() - begin)
    flat, path = case.odd_run("flat"), case.folder / "flat.safetensors"
    case.check("rows without elements", case.dump("export", flat, "--force", "-o", path).returncode == 0 and
               read_header(path)[0]["r/s0"]["shape"] == [5, 0] and
               case.dump("verify", flat, "--against", path).returncode == 0 and
               case.dump("show", "s0", flat).returncode == 0)
