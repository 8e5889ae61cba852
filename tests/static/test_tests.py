# SPDX-License-Identifier: Apache-2.0
"""No test is forgotten: each test file is run by a test that meson knows, and each mutant names one of those and applies."""
import json
import os
import re
import subprocess

from harness import BUILD
from tree import ROOT, tracked

IN_PYTHON = re.compile(r"test_\w+\.py")
IN_C = re.compile(r"(test|fuzz)_\w+\.c")
IS_A_TEST = re.compile(r"^def test_|^    def test_", re.M)


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
    wrong = []
    for path in tracked(".patch"):
        named = re.search(r"^Test:[ \t]*(\S+)", (ROOT / path).read_text(encoding="utf-8"), re.M)
        if path.parts[1] == "mutants" and (not named or named.group(1) not in known):
            wrong.append(f"{path}: {named.group(1) if named else 'no test is named'}")
    assert not wrong, "\n".join(wrong)


def test_each_mutant_names_functions_that_there_are():
    known = {name for path in tracked(".py") if path.parts[0] == "tests" for name in re.findall(r"^def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.M)}
    named = {path: re.findall(r"^Only:[ \t]*(.*)", (ROOT / path).read_text(encoding="utf-8"), re.M) for path in tracked(".patch")}
    assert [f"{path}: {name}" for path, lines in named.items() for line in lines for name in line.split() if name not in known] == []


def test_each_mutant_applies():
    """Else it is found out by the long tests alone, long after the code has moved on."""
    wrong = []
    for path in (path for path in tracked(".patch") if path.parts[1] == "mutants"):
        done = subprocess.run(["patch", "-p1", "--dry-run", "--force", "-i", ROOT / path], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            wrong.append(f"{path}: {done.stdout.splitlines()[-1]}")
    assert not wrong, "\n".join(wrong)
