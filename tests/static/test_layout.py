# SPDX-License-Identifier: Apache-2.0
"""All C is laid out as .clang-format says, by the version of clang-format that tools/setup/python.txt names."""
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from sources import ROOT, read, tracked


def version_wanted():
    return re.search(r"^clang-format==(\S+)", read("tools/setup/python.txt"), re.M).group(1)


def formatter():
    """clang-format in the version wanted, or None."""
    beside = pathlib.Path(sys.prefix) / "bin/clang-format"
    for program in (str(beside), str(ROOT / "build/venv/bin/clang-format"), shutil.which("clang-format")):
        if program and pathlib.Path(program).exists():
            said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
            if re.search(rf"\b{re.escape(version_wanted())}\b", said):
                return program
    return None


def test_c_is_laid_out_by_clang_format():
    program = formatter()
    if not program:
        pytest.skip(f"clang-format {version_wanted()} is not installed")
    paths = [str(path) for path in tracked(".c", ".h", ".cu", ".cuh")]
    done = subprocess.run([program, "--dry-run", "--Werror", *paths], cwd=ROOT, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stdout, re.M)))
    assert not wrong, "\n".join(f"{path}: not as clang-format {version_wanted()} lays it out" for path in wrong)
    assert done.returncode == 0, done.stdout
