#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every DMI_* environment variable that the sources read stands in docs/environment.md, and the reverse."""
import re

from tap import ROOT, Tap, tracked

IN_C = re.compile(r'"(DMI_[A-Z0-9_]+)=?"')
IN_SHELL = re.compile(r"\b(DMI_[A-Z0-9_]+)\b")
IN_TABLE = re.compile(r"^\| `(DMI_[A-Z0-9_]+)`", re.M)


def main():
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
    tap = Tap()
    tap.ok("every variable is documented", [f"{name} ({used[name]})" for name in sorted(set(used) - set(table))])
    tap.ok("every documented variable is used", sorted(set(table) - set(used)))
    tap.ok("no variable stands twice in the table", sorted({name for name in table if table.count(name) > 1}))
    tap.done()


if __name__ == "__main__":
    main()
