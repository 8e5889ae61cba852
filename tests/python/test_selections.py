# SPDX-License-Identifier: Apache-2.0
"""Layers, rows, tokens, requests and sites are chosen alike by dmi-dump, dmi-replay and Python: tests/unit/selections.def, and what is not there."""
import json
import re
import subprocess
import sys

import pytest

from harness import BUILD, DMI_DUMP, ROOT

sys.path[:0] = [str(ROOT / "python")]
import dmi  # noqa: E402
from dmi.torch import names  # noqa: E402

DMI_REPLAY, DMI_ANALYZE, DMI_VIEW = (BUILD / "tools" / name for name in ("dmi-replay", "dmi-analyze", "dmi-view"))
MAKE_SCHEDULE, MAKE_RUN = (BUILD / "tests" / "unit" / name for name in ("make_schedule", "make_run"))
LIBRARY = BUILD / "read" / "libdmi_read.so.1"
pytestmark = pytest.mark.built(DMI_DUMP, DMI_REPLAY, DMI_ANALYZE, DMI_VIEW, MAKE_SCHEDULE, MAKE_RUN, LIBRARY)
TABLE = re.findall(r'^(LAYERS|SLICES)\("(.*)", "(.*)"\)$', (ROOT / "tests/unit/selections.def").read_text(), re.MULTILINE)
# request r: 10 positions of site q in 10 layers; request s: 2 in layer 0 of site h
SCHEDULE = "step 0 10 r:0:10:0:1:10:0\n" + "".join(f"put 0 {k} 1 f32 {' '.join(str(10 * k + i) for i in range(10))}\n" for k in range(10)) + \
    "step 1 2 s:0:2:0:1:2:0\nput 2 0 1 f32 7 8\n"


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selections") / "run"
    subprocess.run([MAKE_SCHEDULE, folder, "job", "0", "1", "0", "1"], input=SCHEDULE, text=True, check=True, stdout=subprocess.PIPE, timeout=60)
    return folder


@pytest.fixture(autouse=True)
def fixture_library(monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARY))


def tool(program, *words):
    done = subprocess.run([program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode()


def dump(*words):
    return tool(DMI_DUMP, *words)


def tensors(run, *words):
    """{key: rows}"""
    status, out, said = dump("list", "--tensors", "--json", *words, run)
    assert status == 0, said
    return {t["key"]: t["rows"] for t in json.loads(out)["tensors"]}


def shown(run, *words):
    """Positions."""
    status, out, said = dump("show", "q.3", run, "--json", *words)
    assert status == 0, said
    return " ".join(str(row["position"]) for row in json.loads(out))


def by_python(call):
    """What a call gives, or "!" and what it says."""
    try:
        return call()
    except (KeyError, ValueError) as error:
        return "!" + error.args[0]


def test_the_table_is_read_completely():
    text = (ROOT / "tests/unit/selections.def").read_text()
    assert len(TABLE) == text.count("\nLAYERS(") + text.count("\nSLICES(") > 45


def test_layers(run, check):
    with dmi.open(run) as opened:
        for kind, text, means in TABLE:
            if kind != "LAYERS":
                continue
            read = by_python(lambda: " ".join(str(t.layer) for t in opened.tensors(sites="q", layers=text)))
            attached = by_python(lambda: " ".join(str(k) for word in names.layer_words(text) for k in names.layers_of(word, 10) if k < 10))
            if means[0] == "!":
                status, _, said = dump("list", "--layers", text, run)
                check(status == 2 and means[1:] in said, f"dmi-dump --layers '{text}' says what is wrong", said)
                check(read[0] == "!" and means[1:] in read and attached[0] == "!", f"layer='{text}' in Python, too", (read, attached))
                spelling = said.splitlines()[0].partition(" is written")[2]
                check(spelling == attached.partition(" is written")[2], f"'{text}': attach() names the same spelling", (said, attached))
            else:
                ordered = " ".join(sorted(means.split()))
                check(" ".join(re.findall(r"q\.(\d+)", " ".join(tensors(run, "--site", "q", "--layers", text)))) == ordered, f"dmi-dump --layers '{text}'")
                check(read == ordered and attached == means, f"layer='{text}'", (read, attached))


def test_positions(run, check):
    with dmi.open(run) as opened:
        for kind, text, means in TABLE:
            if kind != "SLICES":
                continue
            read = by_python(lambda: " ".join(map(str, opened.select(requests="r", tokens=text)["r/q.3"].positions)))
            if means[0] == "!":
                for option in ("--tokens", "--rows"):
                    status, _, said = dump("show", "q", run, option, text)
                    check(status == 2 and means[1:] in said, f"dmi-dump {option} '{text}' says what is wrong", said)
                check(read[0] == "!" and means[1:] in read, f"tokens='{text}' in Python, too", read)
            else:
                check(shown(run, "--rows", text) == means, f"dmi-dump --rows '{text}'", shown(run, "--rows", text))
                check(shown(run, "--tokens", text, "--rows", ":") == means, f"dmi-dump --tokens '{text}'")
                check(read == means, f"tokens='{text}'", read)


def test_options_add_up(run, check):
    check(set(tensors(run, "--site", "q", "--site", "h", "--layers", "0")) == {"r/q.0", "s/h.0"}, "sites")
    check(set(tensors(run, "--layers", "2", "--layers", "5-6", "--site", "q")) == {"r/q.2", "r/q.5", "r/q.6"}, "layers")
    check(set(tensors(run, "--request", "r", "--request", "s", "--layers", "0")) == {"r/q.0", "s/h.0"}, "requests")
    check(tensors(run, "--site", "q.0", "--tokens", "0:2", "--tokens", "-1") == {"r/q.0": 3}, "tokens")
    check(shown(run, "--rows", "0", "--rows", "-1") == "0 9", "rows")
    check(shown(run, "--step", "1", "--step", "0", "--rows", "0:2") == "0 1", "steps")
    check("two ranks" in dump("list", run, "--rank", "0", "--rank", "tp=1")[2], "but an axis has one rank")
    with dmi.open(run) as opened:
        check({t.key for t in opened.tensors(sites=["q", "h"], layers=[0, "last"], requests=["r", "s"])} == {"r/q.0", "r/q.9", "s/h.0"}, "in Python")
        check(set(opened.select(sites=["h", "r/q.3"])) == {"s/h.0", "r/q.3"}, "and for a view")
    status, out, said = tool(DMI_REPLAY, run, "--to", "-", "--format", "jsonl", "--site", "h", "--site", "q", "--layers", "0", "--layers", "last", "--tokens", "0,-1")
    records = [line for line in map(json.loads, out.splitlines()) if line["type"] == "record"]
    check(status == 0 and sorted((r["site"], r["layer"], sum(e["rows"] for e in r["rows"])) for r in records) == [("h", 0, 2), ("q", 0, 2), ("q", 9, 2)],
          "dmi-replay", (said, records))


MISSING = [  # words, what Python's load() takes, what is said
    (("--site", "qq"), {"sites": "qq"}, "the run has no site or tensor 'qq'; near it: q"),
    (("--site", "q", "--site", "g"), {"sites": ["q", "g"]}, "the run has no site or tensor 'g'; near it: q, "),
    (("--site", "r/q.12"), {"sites": "r/q.12"}, "the run has no site or tensor 'r/q.12'; near it: "),
    (("--request", "rr"), {"requests": "rr"}, "the run has no request 'rr'; near it: r, s"),
    (("--request", "r", "--request", "t"), {"requests": ["r", "t"]}, "the run has no request 't'; near it: r, s"),
    (("--layers", "10"), {"layers": 10}, "the run has no layer 10; there is 0-9"),
    (("--layers", "0,20-30"), {"layers": "0,20-30"}, "the run has no layer 20-30; there is 0-9"),
    (("--site", "h", "--layers", "last"), {"sites": "h", "layers": "last"}, "site h has no layer 'last'; there is 0"),
    (("--rank", "3"), None, "the run has no rank tp=3"),
]


@pytest.mark.parametrize("words, given, said", MISSING, ids=lambda words: str(words)[:40])
def test_what_the_run_has_not_is_one_sentence(run, words, given, said, check, tmp_path):
    """With the status of wrong usage, whichever tool says it."""
    for command in (("list",), ("list", "--tensors"), ("list", "--records"), ("export", "-o", tmp_path / "out"), ("diff", run),
                    *([("stats",)] if words[0] in ("--request", "--rank") and len(words) < 5 else [])):
        status, _, lines = dump(*command, *words, run)
        check(status == 2 and said in lines and lines.count("\n") == 1, f"dmi-dump {command[0]}", lines)
    status, out, lines = tool(DMI_REPLAY, run, "--to", "-", *words)
    check(status == 2 and said in lines and not out and lines.count("\n") == 1, "dmi-replay", lines)
    with dmi.open(run) as opened:
        calls = [lambda: opened.load(**given), lambda: opened.tensors(**given), lambda: opened.select(**given)] if given else [lambda: opened.select(tp=3)]
        for call in calls:
            with pytest.raises(KeyError) as caught:
                call()
            check(said in caught.value.args[0] and "\n" not in caught.value.args[0], "Python", caught.value.args)
        check(len(opened) == 11, "and all is as before")


NAMELESS = [("--request", "X"), ("--tokens", "prompt"), ("--tokens", "0:2,last"), ("--site", "X/q.0")]


@pytest.mark.parametrize("words", NAMELESS, ids=" ".join)
def test_a_run_whose_engine_named_no_requests(words, check, tmp_path):
    """A request, and words for tokens that go by requests, are refused by one sentence: neither everything nor nothing is what was asked for."""
    run, given = tmp_path / "run", {words[0].strip("-").removesuffix("s") + "s": words[1]}
    subprocess.run([MAKE_RUN, run, "anonymous"], check=True, stdout=subprocess.PIPE, timeout=60)
    said = {"--request": "the run has no request 'X': its engine named none", "--tokens": "the run's engine named no requests",
            "--site": "the run has no site or tensor 'X/q.0'; near it: q"}[words[0]]
    programs = [(DMI_DUMP, "list", run), (DMI_DUMP, "list", "--records", run), (DMI_DUMP, "list", "--requests", run), (DMI_DUMP, "export", "-o", tmp_path / "out", run),
                (DMI_REPLAY, run, "--to", "-"), (DMI_ANALYZE, "stats", run), (DMI_VIEW, run, "-o", tmp_path / "report.html"),
                *([(DMI_DUMP, "show", "q", run), (DMI_DUMP, "stats", run)] if words[0] != "--site" else [])]
    for program in programs:
        status, _, lines = tool(*program, *words)
        check(status == 2 and said in lines and lines.count("\n") == 1, f"{program[0].name} {program[1]}", (status, lines))
    check(not list(tmp_path.glob("out*")) and not (tmp_path / "report.html").exists(), "nothing is written")
    with dmi.open(run) as opened:
        n = len(opened)
        with pytest.raises(KeyError) as caught:
            opened.select(**given)
        check(said in caught.value.args[0] and len(opened) == n, "Python, and all is as before", caught.value.args)


def test_what_is_there_has_no_such_rows(run, check, tmp_path):
    """Not a status of 0 with nothing."""
    for program in ((DMI_DUMP, "list", run), (DMI_DUMP, "stats", run), (DMI_DUMP, "show", "q", run), (DMI_DUMP, "export", "-o", tmp_path / "out", run), (DMI_REPLAY, run, "--to", "-"),
                    (DMI_ANALYZE, "stats", run), (DMI_VIEW, run, "-o", tmp_path / "report.html")):
        status, _, lines = tool(*program, "--tokens", "90:")
        check(status == (2 if program[0] == DMI_VIEW else 1) and "captured" in lines, f"{program[0].name} {program[1]}", (status, lines))
    status, _, lines = tool(DMI_VIEW, run, "-o", tmp_path / "report.html", "--values", "qq")
    check(status == 2 and "--values: the run has no site or tensor 'qq'; near it: q" in lines and not (tmp_path / "report.html").exists(), "dmi-view --values", lines)


def test_a_prompt_that_nobody_knows(check, tmp_path):
    """Rows of one request are there, of the other it cannot be said: it is named."""
    run = tmp_path / "run"
    schedule = "step 0 12 r:0:10:0:1:10:0 u:10:2:0:1:0:0\nput 0 0 1 f32 1 2 3 4 5 6 7 8 9 10 11 12\n"
    subprocess.run([MAKE_SCHEDULE, run, "job", "0", "1", "0", "1"], input=schedule, text=True, check=True, stdout=subprocess.PIPE, timeout=60)
    for program in ((DMI_DUMP, "list", run), (DMI_DUMP, "stats", run), (DMI_DUMP, "show", "q", run), (DMI_DUMP, "export", "-o", tmp_path / "out", run),
                    (DMI_ANALYZE, "stats", run), (DMI_VIEW, run, "-o", tmp_path / "report.html"), (DMI_REPLAY, run, "--to", "-")):
        status, _, lines = tool(*program, "--tokens", "prompt")
        check(status == 1 and "'u'" in lines and "where its generation begins" in lines, f"{program[0].name} {program[1]}", (status, lines))
        check(tool(*[word if word != tmp_path / "out" else tmp_path / "again" for word in program], *(["--force"] if program[0] == DMI_VIEW else []), "--tokens", "prompt", "--request", "r")[0] == 0,
              "the other one alone")


def test_a_run_that_is_followed_may_get_what_it_has_not(run, check):
    """Nothing is known ahead: it is said at the end."""
    status, _, said = tool(DMI_REPLAY, run, "--to", "-", "--follow", "--request", "later")
    check(status == 1 and "the run has no request 'later'" in said, "at the end", said)
    status, _, said = tool(DMI_REPLAY, run, "--to", "-", "--follow", "--layers", "last")
    check(status == 2 and "--follow does not go with --layers last" in said, "what counts from an end", said)
