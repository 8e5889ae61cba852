# SPDX-License-Identifier: Apache-2.0
"""What a mutant is: a few lines of the product that are replaced by wrong ones.

tests/mutants/NAME.mutant is a header, one `Key: value` a line, and one or more replacements:

    Test: unit/test_ring
    Why: a record that never comes would hold the ring for ever

    In ring_poll:
    - return ready > slot->seq ? RING_MISMATCH : over ? RING_NOT_RUN : RING_PENDING;
    + return ready > slot->seq ? RING_MISMATCH : RING_PENDING;

`Test` is the test (SUITE/NAME) that passes without the mutant and fails with it; `Only` names the functions of a test in
Python that are run (all if it is left out); `Build` is asan or tsan where the test needs that sanitizer; `Why` says what
would go unnoticed.

`In NAME:` names a function, macro, struct or table of C, a def, class or table of Python, or a function of the page's scripts. No file is named. The lines after
`-` are complete lines, found exactly once in all definitions of that name in the product; how they are indented and where they are
broken does not matter. The lines after `+`, if any, take their place and get the indentation of the first line that they replace.
The next `-` begins the next replacement.
"""
import itertools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/static"))
from tree import tracked  # noqa: E402

FOLDERS = ("core", "include", "kernels", "policy", "storage", "cupti", "read", "analyze", "preload", "tools", "python")
# In C, a definition reaches from one line that begins with a word to the next; labels and `#if` are inside of it.
BEGINS_IN_C = re.compile(r"^(?:#define|(?!\w+:$)[A-Za-z_])", re.M)


class MutantError(Exception):
    pass


def product():
    """The text of each source of the product, by its path."""
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in tracked(".c", ".h", ".cu", ".cuh", ".def", ".py", ".js")
            if path.parts[0] in FOLDERS}


def definitions(path, text, name):
    """Where @text defines @name, as pairs of offsets; a declaration looks the same and does no harm."""
    if name not in text:
        return
    if path.suffix in (".py", ".js"):
        for m in re.finditer(rf"^([ \t]*)(?:def |class |function |const )?{name}\b.*\n(?:\1[ \t]+.*\n|\1[)\]}}].*\n|[ \t]*\n)*", text, re.M):
            yield m.span()
        return
    begins = [m.start() for m in BEGINS_IN_C.finditer(text)] + [len(text)]
    for begin, end in itertools.pairwise(begins):
        if re.search(rf"\b{name}\b", re.match(r"[^{;=]*", text[begin:end]).group()):
            yield begin, end


def indent(line):
    return len(line) - len(line.lstrip())


class Replacement:
    def __init__(self, name):
        self.name, self.old, self.new = name, [], []

    def find(self, sources):
        """Where the lines stand. Return: path, offsets of begin and end, and what takes their place."""
        words = [re.escape(word) for word in " ".join(self.old).split()]
        lines = re.compile(r"^[ \t]*" + r"\s+".join(words) + r"[ \t]*\n", re.M)
        found = [(path, m) for path, text in sources.items() for span in definitions(path, text, self.name)
                 for m in lines.finditer(text, *span)]
        if len(found) != 1:
            raise MutantError(f"in {self.name}, these lines were found {len(found)} times: {' '.join(self.old)!r}")
        path, m = found[0]
        shift = indent(m.group()) - indent(self.old[0])
        return path, *m.span(), "".join(" " * (indent(line) + shift) + line.strip() + "\n" for line in self.new)


class Mutant:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        self.fields, self.replacements = {}, []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                self.take(line)
        self.only, self.variant = self.fields.get("Only", "").split(), self.fields.get("Build", "")
        self.suite, _, self.test = self.fields.get("Test", "").partition("/")
        if not self.test or "Why" not in self.fields or not self.replacements or not all(r.old for r in self.replacements):
            raise MutantError(f"{path.name}: Test: SUITE/NAME, Why: and lines to replace were expected")

    def take(self, line):
        """One line of the file."""
        last = self.replacements[-1] if self.replacements else None
        if field := re.fullmatch(r"(Test|Only|Build|Why):\s*(.*?)\s*", line):
            self.fields[field[1]] = field[2]
        elif begin := re.fullmatch(r"In (\w+):", line):
            self.replacements.append(Replacement(begin[1]))
        elif last and line[0] == "-":
            if last.new:
                last = Replacement(last.name)
                self.replacements.append(last)
            last.old.append(line[1:])
        elif last and line[0] == "+":
            last.new.append(line[1:])
        else:
            raise MutantError(f"{self.path.name}: no line of a mutant: {line!r}")

    def apply(self, sources):
        """What becomes of @sources (of product()): the changed files' texts, by their paths."""
        changed = {}
        try:
            found = [r.find(sources) for r in self.replacements]
        except MutantError as error:
            raise MutantError(f"{self.path.name}: {error}") from error
        for path, begin, end, new in sorted(found, reverse=True):
            text = changed.get(path, sources[path])
            changed[path] = text[:begin] + new + text[end:]
        return changed


def mutants():
    """All of them, by name."""
    return [Mutant(path) for path in sorted((ROOT / "tests/mutants").glob("*.mutant"))]


def stale(all_mutants):
    """What is wrong with those that do not apply to the product as it is."""
    sources, wrong = product(), []
    for mutant in all_mutants:
        try:
            mutant.apply(sources)
        except MutantError as error:
            wrong.append(str(error))
    return wrong
