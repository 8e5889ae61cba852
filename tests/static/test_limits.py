# SPDX-License-Identifier: Apache-2.0
"""What docs/ says of limits is what the code says: messages are in the sources, drop reasons exist, files are there.

Rows stand in docs/limits.md and at the end of the page of their subject, in tables that begin with "| limit |".
"""
import ast
import re

from sources import ROOT, product, read

HEAD = "| limit |"
PAGES = {path.name: text for path in sorted((ROOT / "docs").glob("*.md")) if HEAD in (text := path.read_text(encoding="utf-8"))}
TEXT = "\n".join(PAGES.values())


def rows(text):
    """The rows of a page's tables of limits."""
    found, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("|") and (inside or line.startswith(HEAD))
        if inside and not line.startswith(("|---", HEAD)):
            found.append(line)
    return found


ROWS = [row for text in PAGES.values() for row in rows(text)]


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


def test_the_first_table_has_all_whose_user_sees_nothing():
    first, _, rest = PAGES["limits.md"].partition("## The application sees it")
    elsewhere = rows(rest) + [row for name, text in PAGES.items() if name != "limits.md" for row in rows(text)]
    assert len(rows(first)) > 20 and not [row for row in rows(first) if "**nothing**" not in row]
    assert len(elsewhere) > 100 and not [row for row in elsewhere if "**nothing**" in row]


def test_the_first_page_names_each_page_with_rows():
    assert len(PAGES) > 8 and not [name for name in PAGES if name != "limits.md" and f"]({name}#" not in PAGES["limits.md"]]


def test_a_table_of_limits_is_found_among_others():
    text = "| limit | why |\n|---|---|\n| a | b |\n\n| key | value |\n|---|---|\n| c | d |\n"
    assert rows(text) == ["| a | b |"]
