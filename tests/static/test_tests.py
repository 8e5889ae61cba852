# SPDX-License-Identifier: Apache-2.0
"""No test is forgotten: each test file is run by a test that meson knows, and each mutant names one of those and applies."""
import json
import os
import pathlib
import re

import pytest

from harness import BUILD
from mutant import MutantError, Replacement, mutants, stale
from tree import ROOT, tracked

IN_PYTHON = re.compile(r"test_\w+\.py")
IN_C = re.compile(r"(test|fuzz)_\w+\.c")
IS_A_TEST = re.compile(r"^def test_|^    def test_", re.M)

# What lines of mutants are looked for in.
C = """#define LIMIT 3
int both(int a, int b);

int both(int a, int b)
{
    if (a)
        return a +
               b;
#if 1
    return 1;
#endif
}

int twice(int i)
{
    i++;
again:
    i++;
    return 0;
}
"""
PYTHON = """class One:
    def method(self):
        return 1

    def other(self):
        return 2
"""


def introspected(what):
    """meson's own description of the build folder."""
    return json.loads((BUILD / "meson-info" / f"intro-{what}.json").read_text())


def files_named(pattern):
    return {path for path in tracked() if path.parts[0] == "tests" and pattern.fullmatch(path.name)}


def words_of_all_tests():
    return {os.path.realpath(word) for test in introspected("tests") for word in test["cmd"]}


def forgotten(files, known):
    return "\n".join(f"{path} is in no test of a meson.build" for path in sorted(files) if str(ROOT / path) not in known)


def test_each_file_in_python_is_run():
    files = files_named(IN_PYTHON)
    assert len(files) > 20
    missing = forgotten(files, words_of_all_tests())
    assert not missing, missing


def test_each_file_in_c_is_run():
    """It is a source of a program that a test runs, or hands to another one."""
    words, known = words_of_all_tests(), set()
    for target in introspected("targets"):
        if words & set(target["filename"]):
            known.update(name for group in target["target_sources"] for name in group.get("sources", []))
    files = files_named(IN_C)
    assert len(files) > 20
    missing = forgotten(files, known)
    assert not missing, missing


def test_each_file_beside_them_holds_no_test():
    """pytest would find `def test_...` in files of other names too, and meson would not run it."""
    others = [path for path in tracked(".py") if path.parts[0] == "tests" and not IN_PYTHON.fullmatch(path.name)]
    assert [str(path) for path in others if IS_A_TEST.search((ROOT / path).read_text(encoding="utf-8"))] == []


def test_each_file_in_python_holds_a_test():
    assert [str(path) for path in sorted(files_named(IN_PYTHON))
            if not IS_A_TEST.search((ROOT / path).read_text(encoding="utf-8"))] == []


def test_each_mutant_names_a_test():
    known = {f"{suite.split(':')[-1]}/{test['name']}" for test in introspected("tests") for suite in test["suite"]}
    assert [f"{m.name}: {m.suite}/{m.test}" for m in mutants() if f"{m.suite}/{m.test}" not in known] == []


def test_each_mutant_names_functions_that_there_are():
    known = {name for path in tracked(".py") if path.parts[0] == "tests" for name in re.findall(r"^def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.M)}
    assert [f"{m.name}: {name}" for m in mutants() for name in m.only if name not in known] == []


def test_each_mutant_applies():
    """Else it is found out by the long tests alone, long after the code has moved on."""
    wrong = stale(mutants())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name, lines, count", [
    ("both", ["return a + b;"], 1), ("both", ["return 1;"], 1), ("both", ["return 0;"], 0), ("both", ["a;"], 0), ("twice", ["i++;"], 2), ("LIMIT", ["#define LIMIT 3"], 1),
    ("method", ["return 1"], 1), ("method", ["return 2"], 0)])
def test_lines_are_found_in_their_definition_alone(name, lines, count):
    sources = {pathlib.Path("a.c"): C, pathlib.Path("a.py"): PYTHON}
    replacement = Replacement(name)
    replacement.old, replacement.new = lines, ["x", "    y"]
    if count == 1:
        path, begin, end, new = replacement.find(sources)
        found = sources[path][begin:end]
        indentation = re.match(" *", found).group()
        assert "".join(found.split()) == "".join("".join(lines).split()) and found[-1] == "\n"
        assert new == f"{indentation}x\n{indentation}    y\n"
    else:
        with pytest.raises(MutantError, match=f"found {count} times"):
            replacement.find(sources)
