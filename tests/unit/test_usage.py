# SPDX-License-Identifier: Apache-2.0
"""Every tool refuses a command line in the same words: its name, what is wrong, where help is."""
import os
import subprocess

import pytest

from harness import BUILD

TOOLS = ("analyze", "ctl", "dump", "replay", "run", "sites", "top", "trace", "view")
pytestmark = pytest.mark.built(*(BUILD / "tools" / f"dmi-{tool}" for tool in TOOLS))


def refused(tool, *words):
    """Lines on stderr."""
    done = subprocess.run([BUILD / "tools" / f"dmi-{tool}", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"dmi-{tool}: ") for line in lines) and f"dmi-{tool}: try: dmi-{tool} --help" in lines
    return lines


@pytest.mark.parametrize("tool", TOOLS)
def test_an_option_that_is_none(tool, check):
    check("unrecognized option '--nosuch'" in refused(tool, "--nosuch", "x")[0], "is named")
    check("doesn't allow an argument" in refused(tool, "--help=3")[0], "one that takes no value")
    check("unrecognized option" in refused(tool, "x", "--nosuch")[0] if tool != "run" else True, "also after other words")


@pytest.mark.parametrize("tool, option", [("analyze", "--rank"), ("dump", "--site"), ("replay", "--to"), ("run", "--spec"), ("sites", "--out"),
                                          ("top", "--interval"), ("trace", "--step"), ("view", "--head")])
def test_an_option_without_its_value(tool, option, check):
    check(f"option '{option}' requires an argument" in refused(tool, option)[0], "is named")


@pytest.mark.parametrize("tool, one", [("analyze", "stats"), ("dump", "verify"), ("sites", "match"), ("trace", "diff")])
def test_a_word_that_is_no_command(tool, one, check):
    lines = refused(tool, "nosuch", "x")
    check("'nosuch' is no command: expected " in lines[0] and one in lines[0], "is named, and those that are", lines)


FILES = {"heads": ("analyze", "focus", "RUN", "--spans", "JSON", "--heads"), "spans": ("analyze", "focus", "RUN", "--heads", "JSON", "--spans"),
         "passages": ("analyze", "rerank", "RUN", "--query", "france", "--null", "france", "--passages"), "config": ("analyze", "attention", "RUN", "--request", "france", "--config"),
         "with": ("view", "RUN", "-o", "OUT", "--with"), "mask": ("dump", "export", "RUN", "-f", "vllm", "-o", "OUT", "--loss-mask"), "against": ("dump", "verify", "RUN", "--against"),
         "kernels": ("sites", "kernels"), "recording": ("sites", "match", "--reference", "JSON", "-o", "OUT")}


@pytest.mark.built(BUILD / "tests" / "unit" / "make_run")
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none(name, tmp_path, check):
    """A pipe without a writer is not waited for, and a device without an end is not read: one sentence says what it is."""
    subprocess.run([BUILD / "tests" / "unit" / "make_run", tmp_path / "run"], check=True, stdout=subprocess.PIPE)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "empty").touch()
    tool, *words = FILES[name]
    places = {"RUN": tmp_path / "run", "OUT": tmp_path / "out", "JSON": tmp_path / "x.json"}
    kinds = {tmp_path / "pipe": "is a pipe: a regular file is expected", "/dev/zero": "is a device: a regular file is expected", tmp_path / "empty": "is empty",
             **({} if name == "config" else {tmp_path: "is a folder: a regular file is expected"})}
    for path, said in kinds.items():
        done = subprocess.run([BUILD / "tools" / f"dmi-{tool}", *(places.get(word, word) for word in words), path], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=20, check=False)
        check(done.returncode == (1 if tool == "sites" else 2) and done.stderr == f"dmi-{tool}: {path} {said}\n", f"--{name}: {said}", (done.returncode, done.stderr))
    check(not (tmp_path / "out").exists(), "nothing is written")
