# SPDX-License-Identifier: Apache-2.0
"""docs/limits.md says what the code says: its messages are in the sources, its drop reasons exist, its files are there."""
import ast
import re

from sources import ROOT, product, read

TEXT = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("|") and not line.startswith(("|---", "| limit"))]


def literals():
    """All text that the product's C, and its adapters, may print; what %s and its like stand for is a gap, as `...` in the document."""
    text = "\n".join(re.sub(r'"\s*\n?\s*"', "", read(path)) for path in product(".c", ".h"))
    return [re.sub(r"%[-+ #0-9.]*(?:ll|l|z|h)*[a-z]", "\0", found) for found in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)] + [
        text for path in sorted((ROOT / "python" / "dmi").rglob("*.py")) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (text := text_of(node))]


def text_of(node):
    """A string of Python's; the values in an f-string are gaps."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def parts(message):
    """The stretches of a quoted message between its gaps."""
    return [part.strip(" :,") for part in re.split(r"\.\.\.|: switched off|: not captured", message) if part.strip(" :,")]


def test_every_message_is_in_the_sources():
    found = [piece for literal in literals() for piece in literal.split("\0")]
    missing = [part for row in ROWS for message in re.findall(r'"([^"]+)"', row) for part in parts(message)
               if not any(part in piece for piece in found)]
    assert not missing, missing


def test_every_file_is_there():
    names = set(re.findall(r"`((?:docs|tests|preload|tools|specs)/[\w./-]+)`", TEXT))
    assert len(names) > 20 and not [name for name in names if not (ROOT / name).exists()]


def test_every_drop_reason_is_explained():
    header = (ROOT / "include/dmi/counters.h").read_text(encoding="utf-8")
    names = re.findall(r'"(\w+)"', header[header.index("names[DMI_DROP_COUNT]"):header.index("return reason")])
    assert len(names) > 10 and not [name for name in names if f"`{name}`" not in TEXT and name != "unknown"]
