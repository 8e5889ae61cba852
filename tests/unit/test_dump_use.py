# SPDX-License-Identifier: Apache-2.0
"""dmi-dump where a run is odd, damaged or hostile, and where its user is mistaken."""
import json
import os
import re
import shutil
import struct
import subprocess

import pytest

from harness import BUILD, DMI_DUMP, ROOT
from test_dmi_dump import MAKE_RUN, Case, positions_of, read_safetensors, write_safetensors
from test_read_abi import flip_payload

MAKE_ODD_RUN = BUILD / "tests" / "unit" / "make_odd_run"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN)
BAD = ("\x1b", "\x9b", "\u202e", "\x7f")


class UseCase(Case):
    def odd_run(self, kind):
        out = self.folder / kind
        subprocess.run([MAKE_ODD_RUN, out, kind], check=True, timeout=60)
        return next(out.iterdir())

    def one_run(self, name, *words):
        return next(self.new_run(name, *words).iterdir())

    def dump(self, *words):
        done = subprocess.run([DMI_DUMP, *map(str, words)], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
        done.raw = done.stdout + done.stderr
        done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return done


@pytest.fixture
def case(tmp_path, check):
    return UseCase(tmp_path, check)


def test_export_comes_back_through_verify(case):
    for kind in ("plain", "anonymous", "killed"):
        run, path = case.one_run(kind, kind), case.folder / f"{kind}.safetensors"
        case.dump("export", run, "--force", "-o", path)
        facts, status = case.json("verify", run, "--against", path)
        case.check(f"verify --against its own export agrees in every tensor: {kind}", status == 0 and facts["agrees"] and
                   facts["compared"] == len(read_safetensors(path)[0]) and
                   all(t["error"] == 0 and t["rows"] == t["reference_rows"] for t in facts["tensors"]), facts)
    run = case.odd_run("again")
    case.dump("export", run, "--force", "-o", path)
    case.check("and where positions were computed again", case.dump("verify", run, "--against", path).returncode == 0)
    header, body = read_header(path)
    header["__metadata__"]["positions"] = "[[[1, 4]]]"
    write_header(path, header, body)
    done = case.dump("verify", run, "--against", path)
    case.check("positions that are said to be others are compared as others", done.returncode == 1 and
               "DIFFERS" in done.stdout, done)
    for positions in ("[[[0, 3]]]", "[[[0, -4]]]", "[[[0, 9223372036854775807], [1, 9223372036854775807]]]", "[[[-2, 4]]]",
                      "[[4]]", "[]", '[[["0", 4]]]'):
        header["__metadata__"]["positions"] = positions
        write_header(path, header, body)
        done = case.dump("verify", run, "--against", path)
        case.check(f"positions that do not fit are refused: {positions}", done.returncode == 2 and
                   "positions" in done.stderr, done)


def read_header(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


def write_header(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def test_the_latest_row_of_a_position_counts(case):
    run, path = case.odd_run("again"), case.folder / "again.safetensors"
    facts, status = case.json("export", run, "--force", "-o", path)
    rows, metadata = read_safetensors(path)
    case.check("export: each position once, as it was computed last", status == 0 and
               rows == {"r/s0": [[0], [1], [102], [203]]} and json.loads(metadata["positions"]) == [[[0, 4]]], (rows, metadata))
    case.check("export: superseded rows are counted", facts["superseded_rows"] == 3 and
               "3 rows are left out because a later launch" in case.dump("export", run, "--force", "-o", path).stdout, facts)
    shown, _ = case.json("show", "s0", "--rows", ":", run)
    case.check("show: likewise", [(r["position"], r["values"]) for r in shown] == [(0, [0]), (1, [1]), (2, [102]), (3, [203])],
               shown)
    done = case.dump("verify", run)
    case.check("verify: all of them count as captured", done.returncode == 0 and "expected 3 = captured 3" in done.stdout, done)


def test_positions_are_said_once(case):
    run, path = case.one_run("run"), case.folder / "all.safetensors"
    case.dump("export", run, "--force", "-o", path)
    metadata = read_safetensors(path)[1]
    lists, facts = json.loads(metadata["positions"]), json.loads(metadata["tensors"])
    case.check("tensors of one request share a list of [first, rows]", [[0, 6]] in lists and [[-1, 4]] in lists and
               len(lists) == 5 and len({facts[f"france/{key}"]["positions"] for key in ("q.0", "q.1", "ids")}) == 1, metadata)


def test_damage(case):
    run, path = case.one_run("run"), case.folder / "all.safetensors"
    case.dump("export", run, "--force", "-o", path)
    before = read_safetensors(path)[0]
    flip_payload(sorted(run.glob("seg-*.dmi"))[0], 3)
    done = case.dump("export", run, "--force", "-o", path)
    after, metadata = read_safetensors(path)
    lost = sum(len(rows) for rows in before.values()) - sum(len(rows) for rows in after.values())
    case.check("export: what is undamaged is written, what is not is named, and the status is 1", done.returncode == 1 and
               "DAMAGED: seg-000000.dmi, chunk " in done.stderr and lost > 0 and
               f"{lost} rows of theirs are left out" in done.stdout and
               all(all(row in before[key] for row in rows) for key, rows in after.items()), done)
    facts, lists = json.loads(metadata["tensors"]), json.loads(metadata["positions"])
    case.check("export: the positions tell which", all(
        sum(n for _, n in lists[facts[key]["positions"]]) == len(rows) for key, rows in after.items()), metadata)
    folder = case.folder / "npy"
    done = case.dump("export", "-f", "npy", run, "-o", folder)
    index = json.loads((folder / "index.json").read_text())["tensors"]
    case.check("export npy: the same, with its index, and no file beside it", done.returncode == 1 and
               set(index) == set(after) and {p.name for p in folder.iterdir()} == {"index.json"} |
               {e["file"] for e in index.values()}, done)
    case.check("export: nothing temporary is left", not list(case.folder.glob("*partial*")), list(case.folder.iterdir()))
    done = case.dump("show", "blocks.{layer}.h", "--rows", ":", run)
    case.check("show: damage is said, and the status is 1", done.returncode == 1 and "DAMAGED" in done.stderr, done)
    lone = sorted(run.glob("seg-*.dmi"))[0]
    for segment in run.glob("seg-*.dmi"):
        data = bytearray(segment.read_bytes())
        for at in range(128, len(data) - 64, 8):
            if data[at:at + 4] == b"DMIc" and struct.unpack_from("<H", data, at + 6)[0] == 3:
                data[at + 64] ^= 1  # the metadata of records
        segment.write_bytes(data)
    done = case.dump("show", "ids", run)
    case.check("show: where all records are gone it says so", done.returncode == 1 and
               "no record of site ids can be read: expected 4 records, dropped 0" in done.stderr and "DAMAGED" in done.stderr, done)
    case.check("a lone segment that is damaged: stats is 1", case.dump("stats", lone).returncode == 1)


def test_lone_segment(case):
    run = case.one_run("run")
    lone = case.folder / "seg-000000.dmi"
    shutil.copy(run / "seg-000000.dmi", lone)
    done = case.dump("stats", lone)
    case.check("stats of a lone segment: no counters, no failure", done.returncode == 0 and "accounting not known" in done.stdout, done)
    facts, status = case.json("stats", lone)
    case.check("and in JSON nobody knows", status == 0 and facts["holds"] is None and facts["accounting"]["balances"] is None, facts)


def test_where_export_writes(case):
    run = case.one_run("run")
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    os.symlink(run, case.folder / "link")
    for place in (run / "seg-000000.dmi", run / "new", run, case.folder / "link" / "x"):
        for form in ("safetensors", "npy"):
            done = case.dump("export", run, "-f", form, "-o", place)
            case.check(f"export into the run is refused: {form} {place.name}", done.returncode == 2 and
                       "lies in the run itself" in done.stderr, done)
    done = case.dump("export", run / "seg-000000.dmi", "-o", run / "x")
    case.check("also of one of its segments", done.returncode == 2 and "the run itself" in done.stderr, done)
    case.check("and the run is as it was", {p.name: p.read_bytes() for p in run.iterdir()} == before)
    folder = case.folder / "old"
    folder.mkdir()
    (folder / "stale.npy").write_text("stale")
    done = case.dump("export", run, "-f", "npy", "-o", folder)
    case.check("a folder that is not empty is refused", done.returncode == 2 and "is not empty" in done.stderr and
               [p.name for p in folder.iterdir()] == ["stale.npy"], done)
    empty = case.folder / "empty"
    empty.mkdir()
    case.check("an empty one is taken", case.dump("export", run, "-f", "npy", "-o", empty).returncode == 0 and
               (empty / "index.json").exists())
    path = case.folder / "kept.safetensors"
    path.write_text("kept")
    done = case.dump("export", run, "--force", "-o", path, "--request", "nobody")
    case.check("an export of nothing leaves what was there", done.returncode == 2 and path.read_text() == "kept", done)


def test_what_is_not_there(case):
    run = case.one_run("run")
    for words, said in ((("list", "--site", "logit", run), "no site or tensor 'logit'; near it: logits"),
                        (("list", "--tensors", "--site", "nosite", run), "no site or tensor 'nosite'"),
                        (("list", "--site", "q", "--layer", "7", run), "site q has no layer 7; there is 0-1"),
                        (("list", "--layer", "7", run), "the run has no layer 7; there is 0-1"),
                        (("list", "--requests", "--request", "fance", run), "no request 'fance'; near it: france"),
                        (("export", "--request", "fance", run), "near it: france"),
                        (("export", "--site", "qq", run), "near it: q"),
                        (("show", "france/q.7", run), "no site or tensor 'france/q.7'"),
                        (("show", "q", "--request", "fance", run), "near it: france")):
        done = case.dump(*words)
        case.check(f"what is not there is 2, with the nearest: {' '.join(map(str, words[:-1]))}", done.returncode == 2 and
                   said in done.stderr, done)
    case.check("and nothing was written", not list(case.folder.glob("*.safetensors")))
    rows, status = case.json("show", "france/q.1", "--rows", "0", run)
    case.check("show takes a tensor's name as it is printed", status == 0 and [r["tensor"] for r in rows] == ["france/q.1"], rows)
    rows, _ = case.json("show", "q.1", "--rows", "0", run)
    case.check("also without its request", sorted(r["tensor"] for r in rows) == ["../../x\n/q.1", "france/q.1"], rows)
    facts, _ = case.json("list", "--site", "q", "--layer", "1", run)
    case.check("list --site --layer without --tensors", [(s["site"], s["layers"], s["rows"]) for s in facts["sites"]] ==
               [("q", [1], 10)], facts)


def test_words(case):
    run = case.one_run("run")
    case.check("--version", case.dump("--version").stdout.startswith("dmi-dump "))
    for words, said in ((("list", "--rows", "x", run), "--rows: 'x'"), (("verify", "--tolerance", "-1", run), "--tolerance: '-1'"),
                        (("list", "--site"), "option '--site' requires an argument"), (("list", "--sit", "e", "--frob", run), "'--frob'"),
                        (("export", "-f", "pt", run), "--format: no format 'pt': safetensors, npy")):
        done = case.dump(*words)
        case.check(f"an error names its option: {said}", done.returncode == 2 and said in done.stderr, done)
    counters = run / "counters"
    data = bytearray(counters.read_bytes())
    dropped = 128 + 48 + 24 * 0  # site 0, ring_full
    data[128:136] = struct.pack("<Q", struct.unpack_from("<Q", data, 128)[0] + 1097)
    data[dropped:dropped + 8] = struct.pack("<Q", 1097)
    counters.write_bytes(data)
    done = case.dump("verify", run)
    case.check("verify says how many were dropped", "accounting balances: expected 1,125 = captured 28 + dropped 1,097 records" in
               done.stdout, done)
    data[dropped:dropped + 8] = struct.pack("<Q", 2**64 - 1)
    data[dropped + 24:dropped + 32] = struct.pack("<Q", 1098)
    counters.write_bytes(data)
    done, (facts, status) = case.dump("stats", run), case.json("verify", run)
    case.check("sums that wrap are a MISMATCH", done.returncode == 1 and "MISMATCH" in done.stdout and status == 1 and
               facts["accounting"]["balances"] is False and not facts["intact"], (done, facts))


def test_several_runs(case):
    out = case.new_run("several")
    case.new_run("several", "killed")
    (out / ".dmi-hidden").mkdir()
    done = case.dump("list", "--runs", out)
    case.check("list --runs of a folder with several runs: a line each", done.returncode == 0 and "holds 2 runs" in done.stdout and
               all(str(run) in done.stdout for run in out.glob("vm*")) and "killed" in done.stdout, done)
    facts, status = case.json("list", "--runs", out)
    case.check("and in JSON", status == 0 and sorted(r["state"] for r in facts["runs"]) == ["closed", "killed"], facts)
    done = case.dump("list", "--runs", out / ".dmi-hidden")
    case.check("a folder without runs has none to list", done.returncode == 2 and "holds no run" in done.stderr, done)


def test_of_several_runs_the_latest_is_read(case):
    """By the link, and where it leads nowhere, or is not there, by the start that the manifests say."""
    out = case.new_run("several")
    first, = out.iterdir()
    case.new_run("several", "killed")
    second, = (run for run in out.iterdir() if run != first)
    link, relative = out / "latest", out.relative_to(case.folder)

    def reads(run, what):
        for words in (("list",), ("stats",), ("verify",), ("show", "q")):
            done, alone = case.dump(*words, relative), case.dump(*words, run.relative_to(case.folder))
            line = f"dmi-dump: {relative} holds 2 runs; this is the latest, {run.relative_to(case.folder)}\n"
            case.check(f"{' '.join(words)}: {what}", done.stderr == line + alone.stderr and done.stdout == alone.stdout and done.returncode == alone.returncode, (done, line, alone))
        named, alone = case.dump("list", relative / "latest"), case.dump("list", run.relative_to(case.folder))
        case.check(f"latest itself is named without a line: {what}", named.raw == alone.raw and named.returncode == alone.returncode, (named, alone))
    reads(second, "the one that began last")
    link.symlink_to(first.name)
    reads(first, "the link has the last word")
    case.check("a slash after it changes nothing", case.dump("list", f"{relative}/latest/").raw == case.dump("list", relative / "latest").raw)
    for target in ("gone", f"../{out.name}/{first.name}", "/"):
        link.unlink()
        link.symlink_to(target)
        reads(second, f"a link that leads to {target}")
    link.unlink()
    link.symlink_to(first.name)
    shutil.rmtree(first)
    done = case.dump("list", relative)
    case.check("of one run alone nothing is said", done.returncode == 0 and "holds" not in done.stderr, done)
    done = case.dump("list", case.folder / "nowhere" / "latest")
    case.check("latest of a folder that is not there", done.returncode == 2 and "cannot open" in done.stderr, done)


def test_a_reader_that_leaves(case):
    """As head does: no word, and the status is that of what was looked at. A full disk is another matter."""
    run = case.one_run("left")
    for words in (("list", "--records"), ("stats",), ("show", "q", "--all")):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([DMI_DUMP, *words, run], cwd=case.folder, stdout=write, stderr=subprocess.PIPE, timeout=120)
        os.close(write)
        case.check(f"{' '.join(words)}: nothing is said", done.returncode == 0 and not done.stderr, done)
        with open("/dev/full", "wb") as full:
            done = subprocess.run([DMI_DUMP, *words, run], cwd=case.folder, stdout=full, stderr=subprocess.PIPE, timeout=120)
        case.check(f"{' '.join(words)}: but a full disk is", done.returncode == 2 and b"cannot write the output: No space left" in done.stderr, done)


def test_odd_names(case):
    run, path = case.odd_run("names"), case.folder / "odd.safetensors"
    for words in (("list",), ("list", "--tensors"), ("list", "--requests"), ("list", "--records"), ("stats",), ("verify",),
                  ("show", "x"), ("show", "nothing"), ("export", "--force", "-o", path), ("list", "--request", "nobody")):
        done = case.dump(*words, run)
        text = done.stdout + done.stderr
        case.check(f"{' '.join(map(str, words))}: a terminal sees nothing but text", not any(c in text for c in BAD) and
                   done.raw.decode("utf-8", errors="strict") and not any(line.startswith(("DAMAGED", "dmi-dump: DAMAGED")) for line in text.splitlines()),
                   text)
        if words[0] != "export":
            json.loads(subprocess.run([DMI_DUMP, *words, run, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      timeout=60).stdout.decode("utf-8", errors="strict") or "[]")
    header, body = read_header(path)
    metadata = header.pop("__metadata__")
    keys = set(header)
    case.check("a site named __metadata__ is a tensor under another name", isinstance(metadata, dict) and "__metadata__~2" in keys, keys)
    case.check("keys that would be one are kept apart, and from a true one", {"\ufffd/x", "\ufffd/x~2", "\ufffd/x~2~2", "\ufffd/x~3"} <= keys and
               len(keys) == 3 * 7 + 1, keys)
    case.check("no tensor shares its bytes with another", sum(e["data_offsets"][1] - e["data_offsets"][0] for e in header.values())
               == len(body) == 4 * (3 * 7 + 7), len(body))
    ref = case.folder / "ref.safetensors"
    write_safetensors(ref, {"a\nDAMAGED: forged/x": [[0.0]], "\x1b[31m\u202e": [[1.0]]})
    done = case.dump("verify", run, "--against", ref)
    case.check("keys of a reference reach the terminal as text, too", not any(c in done.stdout + done.stderr for c in BAD), done)


def test_a_part_of_a_run_is_like_the_whole(case):
    for kind in ("plain", "anonymous"):
        run, path = case.one_run(kind, kind), case.folder / f"{kind}.safetensors"
        case.dump("export", run, "--force", "-o", path)
        complete, metadata = read_safetensors(path)
        for site in ("q", "logits", "bias", "ids"):
            case.dump("export", run, "--force", "-o", path, "--site", site)
            part, of_part = read_safetensors(path)
            case.check(f"export --site {site} of a run ({kind}): the same rows and positions", part and all(
                complete[key] == rows and positions_of(metadata, key) == positions_of(of_part, key) for key, rows in part.items()) and
                set(part) == {key for key, fact in json.loads(metadata["tensors"]).items() if fact["site"] == site}, of_part)
    run = case.one_run("again")
    rows, _ = case.json("show", "bias", "--request", "france", "--rows", ":", run)
    case.check("rows of no token belong to every request, all of them", len(rows) == 4, rows)
    rows, _ = case.json("show", "q", "--layer", "1", "--request", "france", "--rows", ":", run)
    case.check("and those of a request to it alone", [r["position"] for r in rows] == list(range(6)), rows)


def test_kept_rows(case):
    path = case.folder / "golden.safetensors"
    case.dump("export", ROOT / "tests/golden/v2/valid", "--force", "-o", path)
    header, _ = read_header(path)
    metadata = header["__metadata__"]
    spans = json.loads(metadata["positions"])[json.loads(metadata["tensors"])["c/bf16.0"]["positions"]]
    case.check("a record of two row dimensions that keeps some rows: their positions", header["c/bf16.0"]["shape"] == [6, 4] and
               spans == [[0, 2], [3, 2], [7, 1], [11, 1]], metadata)


@pytest.mark.parametrize("words", (("stats", "--layer", "0"), ("verify", "--site", "q"), ("list", "--rows", "0:1"), ("export", "--all"), ("recover", "--force"), ("diff", "--records"),
                                   ("list", "-o", "x"), ("stats", "-f", "npy"), ("show", "--tolerance", "1")), ids=" ".join)
def test_an_option_that_a_command_does_not_take_is_refused(tmp_path, words, check):
    subprocess.run([MAKE_RUN, tmp_path / "run"], check=True, stdout=subprocess.PIPE)
    run = tmp_path / "run"
    command, *options = words
    places = {"show": ["q", run], "diff": [run, run]}.get(command, [run])
    done = subprocess.run([DMI_DUMP, command, *places, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    name = {"-o": "output", "-f": "format"}.get(options[0], options[0].lstrip("-"))
    check(done.returncode == 2 and f"{command} does not take --{name}" in done.stderr, "by name", done.stderr)


def test_one_is_said_as_one_and_a_place_once(tmp_path, check):
    subprocess.run([MAKE_RUN, tmp_path / "run"], check=True, stdout=subprocess.PIPE)
    run = next((tmp_path / "run").iterdir())
    flip_payload(run / "seg-000000.dmi", 0)
    said = {}
    for words in (("verify",), ("list",), ("stats",), ("recover", "-o", tmp_path / "kept"), ("diff", run)):
        done = subprocess.run([DMI_DUMP, words[0], run, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
        said[words[0]] = done.stdout
        wrong = [line for line in done.stdout.splitlines() if re.search(r"(?<![\d.,:])1 [a-z]+s\b(?<!this)(?<!is)", line)]
        check(not wrong, f"{words[0]}: nothing is one and several", wrong)
    place = "seg-000000.dmi, chunk 2"
    check(said["verify"].count(place) == 1, "the place stands once", said["verify"])
    check("1 record (" in said["recover"] and "that was written cannot be read" in said["recover"], "of one record", said["recover"])


def test_columns_are_as_wide_as_what_is_in_them(tmp_path, check):
    name = "a-request-with-a-name-that-is-wider-than-its-column"
    text = f"step 0 1 {name}:0:1:0:1:1:0\nput 2 0 1 i32 5\nstep 1 1 b:0:1:0:1:1:0\nput 2 0 1 i32 5\n"
    subprocess.run([BUILD / "tests" / "unit" / "make_schedule", tmp_path / "run", "job", "0", "1", "0", "1"], input=text, text=True, check=True, stdout=subprocess.PIPE, timeout=60)
    for option, title in (("--tensors", "DTYPE"), ("--requests", "STATE")):
        out = subprocess.run([DMI_DUMP, "list", option, tmp_path / "run"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
        table = out.splitlines()[out.splitlines().index("") + 1:]
        at = table[0].index(title)
        check(len(table) == 3 and at > len(name) and all(line[at - 1] == " " and line[at] != " " for line in table), option, out)
    done = subprocess.run([DMI_DUMP, "export", tmp_path / "run", "-o", tmp_path / "out"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    size = (tmp_path / "out").stat().st_size
    check(done.stdout == f"2 tensors, 8 bytes of values, to {tmp_path / 'out'}, a file of {size}\n", "an export's bytes, and the file's", done.stdout)


def test_a_full_disk_is_not_read(tmp_path, check):
    subprocess.run([MAKE_RUN, tmp_path / "run"], check=True, stdout=subprocess.PIPE)
    leaks = ["npz"] if os.environ.get("DMI_TEST_RUNTIME") else []  # minizip itself, where it cannot write
    for form in (form for form in ("safetensors", "npz", "csv", "jsonl") if form not in leaks):
        done = subprocess.run([DMI_DUMP, "export", tmp_path / "run", "-f", form, "-o", "/dev/full"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        check(done.returncode == 2 and "cannot write" in done.stderr and "No space left" in done.stderr and "cannot read" not in done.stderr, form, done.stderr)
