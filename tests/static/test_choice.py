# SPDX-License-Identifier: Apache-2.0
"""Which tests ./bootstrap test chooses: by name, by the files that changed, for the short run and the long one; and how often it runs them."""
import argparse
import json
import pathlib
import sys

import pytest

from harness import BUILD
from tree import ROOT

sys.path.insert(0, str(ROOT / "tools/setup"))
import tests as chooser  # noqa: E402


@pytest.fixture(name="plain", scope="module")
def fixture_plain():
    """This build's tests, as if all were the short run's: the sanitized builds' are not here."""
    rows = chooser.introspect(BUILD, "tests")
    return [chooser.Test("plain", {**row, "suite": [suite for suite in row["suite"] if suite != "dmi:long"]}) for row in rows]


def names(tests):
    return {test.name for test in tests}


def row(name, *suites):
    return {"name": name, "suite": [f"dmi:{suite}" for suite in suites], "cmd": [f"/build/{name}"], "depends": []}


def test_the_table_names_folders_and_tests_that_are_there(check, plain):
    table = chooser.concerns()
    gone = [prefix for prefix in table if not ((ROOT / prefix).is_dir() if prefix.endswith("/") else (ROOT / prefix).is_file())]
    check(not gone, "each prefix is one of a file", gone)
    for name in {name for wanted in table.values() for name in wanted}:
        chooser.by_name(plain, [name], False)  # says which name no test and no suite has


def test_every_folder_of_the_product_has_a_row_or_concerns_all(plain):
    assert chooser.concerned(plain, ["core/atomic.h"], chooser.concerns()) is None
    for folder in ("preload", "storage", "read", "policy", "kernels", "tools/dump", "python/dmi"):
        chosen = chooser.concerned(plain, [f"{folder}/new.c"], chooser.concerns())
        assert len(chosen) > len([t for t in plain if t.is_in("static")]), folder


def test_a_test_s_own_file_concerns_that_test(plain):
    static = {t.name for t in plain if t.is_in("static")}
    for path, wanted in (("tests/unit/test_ring.c", {"test_ring"}), ("tests/unit/test_ranks.py", {"test_ranks"}),
                         ("tests/engine/test_runners.py", {"runners"})):
        assert names(chooser.concerned(plain, [path], chooser.concerns())) == static | wanted


def test_documents_concern_no_engine(plain):
    chosen = chooser.concerned(plain, ["docs/format.md"], chooser.concerns())
    assert "test_format" in names(chosen) and not any(t.is_in("engine") for t in chosen)


@pytest.mark.parametrize("long, wanted", [(False, {"a", "b"}), (True, {"a", "c", "d"})])
def test_the_short_run_and_the_long_one(long, wanted):
    tests = [chooser.Test("plain", r) for r in (row("a", "unit"), row("b", "unit", "short"), row("c", "unit", "long"), row("d", "bench"),
                                             row("e", "bench", "long"))]
    assert {t.name for t in tests if t.belongs(long)} == wanted


def test_the_thread_sanitizer_s_build_runs_its_own_suite():
    tests = [chooser.Test("tsan", row("a", "unit", "tsan")), chooser.Test("tsan", row("b", "unit"))]
    assert [t.belongs(False) for t in tests] == [True, False]
    assert names(chooser.by_name(tests, ["a"], False)) == {"a"}


def test_names_of_tests_suites_and_builds():
    tests = [chooser.Test(build, r) for build in ("plain", "asan") for r in (row("a", "unit"), row("b", "unit", "long"), row("c", "preload"))]

    def labels(*given, long=False):
        return [t.label for t in chooser.by_name(tests, given, long)]
    assert labels("a") == ["unit/a", "asan/unit/a"]
    assert labels("asan/*/a", "plain/unit/b") == ["asan/unit/a", "unit/b"]
    assert labels("unit") == ["unit/a", "asan/unit/a"]
    assert labels("unit", long=True) == ["unit/a", "unit/b", "asan/unit/a", "asan/unit/b"]
    with pytest.raises(SystemExit, match="no test and no suite is named 'pre'; near it: preload"):
        labels("pre")


def test_what_meson_is_given_means_the_same():
    text = chooser.quoted(["it's", "a\\b", True, 7])
    assert text == r"['it\'s', 'a\\b', true, 7]"
    assert pathlib.Path(chooser.ROOT) == ROOT


def test_each_repeat_is_run_though_one_fails(tmp_path, monkeypatch, capfd):
    for name, path in {"QUEUE": "queue", "LOG": "queue/build/meson-logs/all.json", "CPU": "queue/cpu.jsonl"}.items():
        monkeypatch.setattr(chooser, name, tmp_path / path)
    fails_once = {"cmd": ["sh", "-c", "test -e once || { touch once; exit 1; }"], "env": {}, "protocol": "exitcode", "is_parallel": True, "timeout": 60,
                  "priority": 0, "workdir": str(tmp_path)}
    chooser.write_queue([chooser.Test("plain", row("a", "unit") | fails_once)], False)
    chooser.run(argparse.Namespace(repeat=3, load=0))
    capfd.readouterr()
    assert [json.loads(line)["result"] for line in chooser.LOG.read_text().splitlines()] == ["FAIL", "OK", "OK"]
