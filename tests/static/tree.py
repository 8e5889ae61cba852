# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the project's files, and what ELF files say of themselves."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


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
