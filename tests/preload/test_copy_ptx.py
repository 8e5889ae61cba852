# SPDX-License-Identifier: Apache-2.0
"""What the loops of the copy kernels cost, by the PTX that nvcc made: for each access there is one that divides nothing
and tests nothing but its end (packed data), and one that divides nothing (rows)."""
import collections
import re

import pytest

from harness import BUILD

PTX = BUILD / "kernels" / "dmi_kernels.ptx"
pytestmark = pytest.mark.built(PTX)

ENTRY = re.compile(r"\.entry (\w+)\([^)]*\)[^{]*\{(.*?)\n\}", re.S)
ACCESSES = ["u8", "u16", "u32", "u64", "v4.u32"]


def loops(body):
    """The instructions of each loop that has no other inside: from a label to the branch back to it."""
    lines = [line.strip() for line in body.split("\n")]
    lines = [line for line in lines if line and not line.startswith("//")]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    for i, line in enumerate(lines):
        to = re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line)
        if to and labels[to[1]] < i:
            yield [x for x in lines[labels[to[1]]:i + 1] if not x.endswith(":")]


def gathers(body):
    """{access: the loops that load and store so}"""
    found = collections.defaultdict(list)
    for loop in loops(body):
        loads = {m[1] for x in loop if (m := re.match(r"ld\.global\.(\S+)\s", x))}
        stores = {m[1] for x in loop if (m := re.match(r"st\.global\.(\S+)\s", x))}
        if len(stores) == 1 and stores <= loads <= stores | {"u32"}:  # a list of rows is u32
            found[stores.pop()].append(loop)
    return found


def divides(loop):
    return any(re.match(r"(@\S+ )?(div|rem)\.", x) for x in loop)


def compares(loop):
    return sum(x.startswith("setp.") for x in loop)


@pytest.mark.parametrize("name", ("dmi_copy_eager", "dmi_copy_graph_rows"))
def test_loops(check, name):
    found = gathers(dict(ENTRY.findall(PTX.read_text(encoding="ascii")))[name])
    missing = [a for a in ACCESSES if not found[a]]
    check(not missing, "there are loops for each access", missing)
    plain = {a: [x for x in found[a] if not divides(x)] for a in ACCESSES}
    missing = [a for a in ACCESSES if not any(compares(x) == 1 for x in plain[a])]
    check(not missing, "packed data is copied without a division or a carry", missing)
    missing = [a for a in ACCESSES if not any(compares(x) > 1 for x in plain[a])]
    check(not missing, "rows are copied without a division", missing)
    for access in ACCESSES:
        print(f"{access}: " + ", ".join(
            f"{len(x)} instructions, {sum(y.startswith(('div', 'rem')) for y in x)} of them divisions"
            for x in sorted(found[access], key=len)))
