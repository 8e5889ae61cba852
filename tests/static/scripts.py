#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python and shell scripts are clean for pyflakes and shellcheck."""
import re
import shutil
import subprocess

from tap import ROOT, Tap, tracked


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


def main():
    tap = Tap()
    scripts = {"python": [], "shell": []}
    for path in tracked():
        kind = interpreter(path)
        if kind:
            scripts[kind].append(str(path))
    for kind, names in (("python", ("pyflakes3", "pyflakes")), ("shell", ("shellcheck",))):
        program = next((name for name in names if shutil.which(name)), None)
        title = f"{names[0]} finds nothing in {len(scripts[kind])} {kind} scripts"
        if not program:
            tap.skip(title, f"{names[0]} is not installed")
        elif not scripts[kind]:
            tap.ok(title)
        else:
            done = subprocess.run([program, *scripts[kind]], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            complaints = done.stdout.splitlines() or (["failed"] if done.returncode else [])
            tap.ok(title, [line for line in complaints if not excused(line)])
    tap.done()


if __name__ == "__main__":
    main()
