# SPDX-License-Identifier: Apache-2.0
"""Every tool refuses a command line in the same words: its name, what is wrong, where help is."""
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
