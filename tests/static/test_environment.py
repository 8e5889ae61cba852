# SPDX-License-Identifier: Apache-2.0
"""Every DMI_* environment variable that the sources read stands in docs/environment.md, and the reverse."""
import re

from tree import ROOT, tracked

IN_C = re.compile(r'"(DMI_[A-Z0-9_]+)=?"')
IN_SHELL = re.compile(r"\b(DMI_[A-Z0-9_]+)\b")
IN_TABLE = re.compile(r"^\| `(DMI_[A-Z0-9_]+)`", re.M)


def test_environment(check):
    used = {}
    for path in tracked(".c", ".h", ".def", ".S", ".py", ".sh", ""):
        if path.parts[0] in ("docs", "build"):
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        shell = text.startswith("#!") and "sh" in text.splitlines()[0]
        pattern = IN_SHELL if shell else re.compile(r"""["'](DMI_[A-Z0-9_]+)=?["']""") if path.suffix == ".py" \
            else IN_C
        for name in pattern.findall(text):
            used.setdefault(name, path)
    table = IN_TABLE.findall((ROOT / "docs/environment.md").read_text(encoding="utf-8"))
    unknown = [f"{name} ({used[name]})" for name in sorted(set(used) - set(table))]
    check(not unknown, "every variable is documented", unknown)
    unused = sorted(set(table) - set(used))
    check(not unused, "every documented variable is used", unused)
    twice = sorted({name for name in table if table.count(name) > 1})
    check(not twice, "no variable stands twice in the table", twice)
