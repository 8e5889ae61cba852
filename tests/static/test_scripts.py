# SPDX-License-Identifier: Apache-2.0
"""Python and shell scripts are clean for pyflakes and shellcheck."""
import re
import shutil
import subprocess

import pytest

from tree import ROOT, tracked


def interpreter(path):
    with open(ROOT / path, "rb") as file:
        line = file.readline(80)
    if path.suffix == ".py" or line.startswith(b"#!") and b"python" in line:
        return "python"
    if line.startswith(b"#!") and line.rstrip().endswith((b"sh", b"bash")):
        return "shell"
    return None


def excused(complaint):
    """True if the line that pyflakes complains about says `# noqa` (as flake8 has it)."""
    match = re.match(r"([^:]+):(\d+):", complaint)
    if not match:
        return False
    lines = (ROOT / match.group(1)).read_text(encoding="utf-8").splitlines()
    number = int(match.group(2))
    return number <= len(lines) and "# noqa" in lines[number - 1]


@pytest.mark.parametrize("kind, names", [("python", ("pyflakes3", "pyflakes")), ("shell", ("shellcheck",))], ids=["python", "shell"])
def test_is_clean(kind, names):
    scripts = [str(path) for path in tracked() if interpreter(path) == kind]
    assert scripts, f"no {kind} script was found"
    program = next((name for name in names if shutil.which(name)), None)
    if not program:
        pytest.skip(f"{names[0]} is not installed")
    done = subprocess.run([program, *scripts], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    complaints = [line for line in done.stdout.splitlines() or (["failed"] if done.returncode else []) if not excused(line)]
    assert not complaints, "\n".join(complaints)
