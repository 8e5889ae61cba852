# SPDX-License-Identifier: Apache-2.0
"""Results of a check, as TAP (https://testanything.org), plus what the checks share."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Tap:
    def __init__(self):
        self.n = self.failed = 0

    def ok(self, name, complaints=()):
        """One result; it fails if there is any complaint."""
        self.n += 1
        complaints = list(complaints)
        self.failed += bool(complaints)
        print(f"{'not ' if complaints else ''}ok {self.n} - {name}")
        for complaint in complaints:
            print(f"# {complaint}")
            # meson keeps the stdout of a TAP program to itself
            print(f"{name}: {complaint}", file=sys.stderr)

    def skip(self, name, reason):
        self.n += 1
        print(f"ok {self.n} - {name} # SKIP {reason}")

    def done(self):
        print(f"1..{self.n}")
        sys.exit(1 if self.failed else 0)


def run(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True).stdout


def listing():
    """The project's files: git's view of them, or what lies there where this is no git checkout."""
    try:
        names = run("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        return [pathlib.Path(name) for name in names.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        skip = ("build", ".git", "RUN")
        return [path for path in paths if not path.parts[0].startswith(skip) and "__pycache__" not in path.parts]


def tracked(*suffixes):
    """The project's files with one of these suffixes (any, if none is given)."""
    for path in sorted(set(listing())):
        if (path.suffix in suffixes or not suffixes) and (ROOT / path).is_file():
            yield path


def needed(elf):
    """The libraries that an ELF file asks the loader for."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", str(elf)))


def code_of(text):
    """C text with comments and the insides of strings blanked, line numbers kept."""
    def blank(match):
        found = match.group(0)
        if found[0] == "/":
            return re.sub(r"[^\n]", " ", found)
        return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.S)
