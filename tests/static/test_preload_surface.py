# SPDX-License-Identifier: Apache-2.0
"""libdmi_preload.so brings nothing new into the application."""
import fnmatch
import re

import pytest

from harness import PRELOAD, ROOT
from tree import needed, run

pytestmark = pytest.mark.built(PRELOAD)

# What a program must never do because of us, as the loader sees it. libyaml's own assertions are the one
# exception: they guard its API against NULL, and hold for what policy/ hands it.
FORBIDDEN = {"exit", "_exit", "abort", "quick_exit", "printf", "puts", "putchar", "vprintf", "err", "errx",
             "__printf_chk", "__vprintf_chk", "perror", "system", "popen"}


def exports():
    names = set()
    for line in run("nm", "-D", "--defined-only", "--without-symbol-versions", str(PRELOAD)).splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] != "A":  # A: the version nodes themselves
            names.add(fields[2])
    return names


def globals_of(text):
    """The names (and patterns) in the global: parts of a linker's version script."""
    text = re.sub(r"/\*.*?\*/|#[^\n]*", "", text, flags=re.S)
    names, listed = set(), False
    for word in re.findall(r"global\s*:|local\s*:|[^\s;{}:]+|[{}]", text):
        if word.startswith("global"):
            listed = True
        elif word.startswith("local") or word in "{}":
            listed = False
        elif listed:
            names.add(word)
    return names


def listed_in_the_map():
    return globals_of((ROOT / "preload/dmi_preload.map").read_text(encoding="utf-8"))


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def test_needs_libc_and_its_loader_only():
    assert [name for name in needed(PRELOAD) if not re.fullmatch(r"libc\.so\.6|ld-linux.*\.so\.\d+", name)] == []


def test_every_export_is_listed_in_the_map():
    assert sorted(name for name in exports() if not matches(name, listed_in_the_map())) == []


def test_every_name_in_the_map_is_exported():
    exported = exports()
    assert sorted(p for p in listed_in_the_map() if not any(fnmatch.fnmatchcase(name, p) for name in exported)) == []


def test_the_map_names_at_least_dlsym():
    assert "dlsym" in listed_in_the_map()


def test_ends_no_process_and_prints_nothing():
    asked = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--undefined-only", str(PRELOAD)).splitlines()}
    assert sorted((asked & FORBIDDEN) - exports()) == []


def test_its_stack_is_not_executable():
    lines = [line for line in run("readelf", "-lW", str(PRELOAD)).splitlines() if "GNU_STACK" in line]
    assert [line for line in lines if "E " in line.split("0x")[-1]] == []


def test_has_no_text_relocations():
    assert "TEXTREL" not in run("readelf", "-dW", str(PRELOAD))
