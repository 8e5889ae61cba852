# SPDX-License-Identifier: Apache-2.0
"""Code that runs inside the application's process never ends it, prints to its stdout or runs a program."""
import re

import pytest

from tree import ROOT, code_of, tracked

FOLDERS = ("core", "kernels", "policy", "storage", "cupti", "preload")
WORDS = ("exit", "_exit", "_Exit", "quick_exit", "abort", "assert", "raise", "printf", "vprintf", "puts", "putchar",
         "perror", "err", "errx", "warn", "warnx", "system", "popen", "setenv", "putenv", "unsetenv", "chdir",
         "setlocale", "umask")
CALL = re.compile(rf"(?<![\w.>])(?:{'|'.join(WORDS)})\s*\(")
STREAM = re.compile(r"\bstdout\b|\bSTDOUT_FILENO\b")
# (folder or file, what is called there): why it may.
ALLOWED = {
    # preload/hooks.def and the wrappers define the interposed _exit, which flushes and goes on to the real one.
    ("preload", "_exit"): "the interposed _exit itself",
    ("preload", "_Exit"): "the interposed _Exit itself",
    # NVTX looks for tools in the environment alone: by the constructor, where a spec names ranges and no tool is set.
    ("preload/hook/nvtx.c", "setenv"): "NVTX_INJECTION64_PATH",
}


# What may write to a stream in tools/dump: names in a run are not ours, and tools/common/report.c makes text of them.
PRINTS = re.compile(r"(?<![\w.>])(printf|fprintf|puts|fputs|putchar|fputc|putc|fwrite|write|perror|dprintf)\s*\(")
PRINTERS = {"options.c": "--help and --version, constant text"}


def test_dmi_dump_prints_in_one_place():
    complaints = [f"{path}:{number}: {match.group(1)}()" for path in tracked(".c", ".h")
                  if path.parts[:2] == ("tools", "dump") and path.name not in PRINTERS
                  for number, line in enumerate(code_of((ROOT / path).read_text(encoding="utf-8")).splitlines(), 1)
                  for match in PRINTS.finditer(line)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("folder", FOLDERS)
def test_is_a_good_guest(folder):
    complaints = []
    for path in tracked(".c", ".h", ".cu", ".cuh"):
        if path.parts[0] != folder:
            continue
        for number, line in enumerate(code_of((ROOT / path).read_text(encoding="utf-8")).splitlines(), 1):
            for match in CALL.finditer(line):
                word = match.group(0).rstrip("( \t")
                if (folder, word) in ALLOWED or (str(path), word) in ALLOWED:
                    continue
                complaints.append(f"{path}:{number}: {word}()")
            if STREAM.search(line):
                complaints.append(f"{path}:{number}: stdout")
    assert not complaints, "\n".join(complaints)
