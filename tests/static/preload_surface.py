#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libdmi_preload.so brings nothing new into its host: preload_surface.py LIBRARY MAP"""
import fnmatch
import re
import sys

from tap import Tap, needed, run

# What a program must never do because of us, as the loader sees it. libyaml's own assertions are the one
# exception: they guard its API against NULL, and hold for what policy/ hands it.
FORBIDDEN = {"exit", "_exit", "abort", "quick_exit", "printf", "puts", "putchar", "vprintf", "err", "errx",
             "__printf_chk", "__vprintf_chk", "perror", "system", "popen"}


def exports_of(library):
    names = set()
    for line in run("nm", "-D", "--defined-only", "--without-symbol-versions", library).splitlines():
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


def main():
    library, version_script = sys.argv[1:3]
    tap = Tap()
    tap.ok("NEEDED is libc and its loader only",
           [name for name in needed(library) if not re.fullmatch(r"libc\.so\.6|ld-linux.*\.so\.\d+", name)])
    exported = exports_of(library)
    with open(version_script, encoding="utf-8") as file:
        listed = globals_of(file.read())
    tap.ok("every export is listed in the map",
           sorted(name for name in exported if not any(fnmatch.fnmatchcase(name, p) for p in listed)))
    tap.ok("every name in the map is exported",
           sorted(p for p in listed if not any(fnmatch.fnmatchcase(name, p) for name in exported)))
    tap.ok("the map names at least dlsym", [] if "dlsym" in listed else ["dlsym is absent"])
    asked = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--undefined-only", library).splitlines()}
    tap.ok("it ends no process and prints nothing", sorted((asked & FORBIDDEN) - exported))
    tap.ok("its stack is not executable",
           [line for line in run("readelf", "-lW", library).splitlines() if "GNU_STACK" in line and "E " in line.split("0x")[-1]])
    tap.ok("it has no text relocations", ["TEXTREL"] if "TEXTREL" in run("readelf", "-dW", library) else [])
    tap.done()


if __name__ == "__main__":
    main()
