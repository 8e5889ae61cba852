# SPDX-License-Identifier: Apache-2.0
"""dmi-dump show --map: what is drawn is what the values say, by a scale that is stated, and a pipe gets ASCII alone."""
import json
import math
import os
import pty
import re
import struct
import subprocess

import pytest

from harness import BUILD, DMI_DUMP, ROOT

kit = pytest.importorskip("hostile_run", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
MAKE_RUN, MAKE_ODD_RUN = (BUILD / "tests" / "unit" / name for name in ("make_run", "make_odd_run"))
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN)
GOLDEN = ROOT / "tests" / "golden" / "v2" / "valid"
SHADES = ".:-=+*#%@"
ESCAPE = re.compile(r"\x1b\[(38;5;\d+|38;5;231;48;5;196|0)m")
COLOURS = (17, 18, 19, 20, 26, 32, 38, 44, 43, 78, 113, 149, 185, 221, 227, 230)


def dump(*words, **env):
    return subprocess.run([DMI_DUMP, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                          env={**os.environ, **env})


def on_terminal(*words, **env):
    """What a terminal gets."""
    master, slave = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    done = subprocess.Popen([DMI_DUMP, *map(str, words)], stdout=slave, stderr=slave, env={**variables, "TERM": "xterm", **env})
    os.close(slave)
    text = b""
    try:
        while piece := os.read(master, 65536):
            text += piece
    except OSError:  # the end, on Linux
        pass
    os.close(master)
    done.wait(timeout=60)
    return text.decode(errors="strict").replace("\r\n", "\n")


def maps(text):
    """[(title, {row: cells})] of what was printed"""
    found = []
    for line in text.splitlines():
        row = re.fullmatch(r" *(\d+) \|(.*)\|", line)
        if row:
            found[-1][1][int(row[1])] = row[2]
        elif " across, " in line:
            found.append((line, {}))
    return found


def shade(value, cells, shades=SHADES):
    """The character of a cell, by the words of the manual page"""
    if not math.isfinite(value):
        return "!"
    above = [c for c in cells if math.isfinite(c) and c > 0]
    if value == 0:
        return " "
    least, most = min(above), max(above)
    level = len(shades) - 1
    while level and value < least * (most / least) ** (level / len(shades)):
        level -= 1
    return shades[level]


def blocks_of(values, n):
    """The root mean square of each of n blocks."""
    blocks = [[] for _ in range(n)]
    for i, v in enumerate(values):
        blocks[i if len(values) <= n else i * n // len(values)].append(v)
    return [math.sqrt(sum(v * v for v in b) / len(b)) if all(map(math.isfinite, b)) else math.nan for b in blocks]


def test_blocks_of_a_width(check):
    name = "../../x\n/f32.1"
    done = dump("show", "f32.1", GOLDEN, "--map")
    drawn = maps(done.stdout)
    rows = json.loads(dump("show", "f32.1", GOLDEN, "--rows", ":", "--json").stdout)
    check(done.returncode == 0 and len(drawn) == len({r["tensor"] for r in rows}), "a map for each request", done)
    mine = [r for r in rows if r["tensor"] == name]
    cells = {r["position"]: blocks_of(r["values"], 48) for r in mine}
    every = [c for row in cells.values() for c in row]
    want = {p: "".join(shade(c, every) for c in row) for p, row in cells.items()}
    check(want and want in [rows for _, rows in drawn], "each cell has the shade of its values", (want, drawn))
    check(f"to {max(every):.3g}" in done.stdout and f". {min(every):.3g}" in done.stdout and "root mean square" in done.stdout,
          "the scale is stated, with numbers", done.stdout)


def test_wide_tensors_are_cut_into_blocks(tmp_path, check):
    values = [math.sin(i) * (1 + i / 50) for i in range(1000)]
    raw = struct.pack("<1000f", *values)
    run = kit.write(tmp_path / "run", [kit.site("q")],
                    kit.segment(kit.sites_chunk([kit.site("q")]), kit.chunk(1, kit.RECORDS, *kit.records([(0, -1, kit.NONE, 1, (1, 1000), raw)]))))
    cells = blocks_of(struct.unpack("<1000f", raw), 64)
    (_, rows), = maps(dump("show", "q", run, "--map").stdout)
    check(rows == {0: "".join(shade(c, cells) for c in cells)}, "64 columns where there is no terminal", rows)
    told = json.loads(dump("show", "q", run, "--map", "--json").stdout)
    check(len(told) == 1 and all(abs(a - b) < 1e-12 * b for a, b in zip(told[0]["cells"], cells)), "JSON has the numbers", told)


def test_layers_across(check):
    done = dump("show", "f32", GOLDEN, "--map")
    told = {(r["tensor"], r["position"]): r["cells"] for r in json.loads(dump("show", "f32", GOLDEN, "--map", "--json").stdout)}
    rows = json.loads(dump("show", "f32", GOLDEN, "--rows", ":", "--json").stdout)
    check(done.returncode == 0 and "layers 0 to 2 across, 3 columns" in done.stdout, "a column a layer", done.stdout)
    request = "../../x\n"
    good = n = 0
    for row in rows:
        name, layer = row["tensor"].rsplit(".", 1)
        if name == f"{request}/f32":
            n += 1
            cell = told[f"{request}/f32.0", row["position"]][int(layer)]
            good += cell is not None and abs(cell - blocks_of(row["values"], 1)[0]) < 1e-9
    check(n > 0 and good == n, "each cell is the row's root mean square", (good, n))
    check("? not captured (" in done.stdout and any("?" in cells for _, rows in maps(done.stdout) for cells in rows.values()),
          "what was not captured is said", done.stdout)


def test_what_is_not_finite_and_zero(tmp_path, check):
    values = [0, 1, math.nan, 2, -math.inf, 4, 8, 16]
    sites = [kit.site("q")]
    data = kit.segment(kit.sites_chunk(sites), kit.chunk(1, kit.RECORDS, *kit.records([(0, -1, kit.NONE, 1, (1, 8), struct.pack("<8f", *values))])))
    run = kit.write(tmp_path / "run", sites, data)
    done = dump("show", "q", run, "--map")
    (_, rows), = maps(done.stdout)
    check(rows[0] == "".join(shade(abs(v), [abs(x) for x in values]) for v in values) and rows[0][2] == rows[0][4] == "!" and
          rows[0][0] == " ", "NaN and infinity are seen, 0 is blank", rows)
    check("! holds NaN or infinity (2 cells)" in done.stdout and "blank: 0 (1 cells)" in done.stdout, "and counted", done.stdout)
    text = on_terminal("show", "q", run, "--map")
    check("\x1b[38;5;231;48;5;196m!\x1b[0m" in text, "in colour too", text)


def test_colours_are_for_terminals(check):
    words = ("show", "f32.1", GOLDEN, "--map")
    text = on_terminal(*words)
    plain = ESCAPE.sub("", text)
    check("█" in text and "\x1b" not in plain and {int(c) for c in re.findall(r"38;5;(\d+)m", text)} <= set(COLOURS),
          "a terminal gets blocks in 256 colours, and no other escapes", text[:600])
    cells = json.loads(dump(*words, "--json").stdout)[0]
    drawn = re.findall(r"\x1b\[38;5;(\d+)m█", next(line for line in text.splitlines() if re.match(r" *\d+ \|", line)))
    every = [c for row in json.loads(dump(*words, "--json").stdout) if row["tensor"] == cells["tensor"] for c in row["cells"]]
    check([int(c) for c in drawn] == [shade(c, every, COLOURS) for c in cells["cells"]], "each in its colour", drawn)
    for name, text in (("a pipe", dump(*words).stdout), ("NO_COLOR", on_terminal(*words, NO_COLOR="1")), ("TERM=dumb", on_terminal(*words, TERM="dumb"))):
        check("\x1b" not in text and "█" not in text and maps(text), f"{name}: ASCII", text[:300])


def test_rows(tmp_path, check):
    subprocess.run([MAKE_ODD_RUN, tmp_path / "out", "drafts"], check=True, stdout=subprocess.PIPE, timeout=60)
    done = dump("show", "a/s0", tmp_path / "out", "--map", "--rejected", "--superseded")
    (_, rows), = maps(done.stdout)
    check(sorted(rows) == list(range(8)), "a position has one line, whatever was rejected", rows)
    done = dump("show", "a/s0", tmp_path / "out", "--map", "--rows", "2:5")
    check(sorted(maps(done.stdout)[0][1]) == [2, 3, 4], "--rows", done)
    sites = [kit.site("q")]
    raw = struct.pack("<100f", *range(100))
    data = kit.segment(kit.sites_chunk(sites), kit.chunk(1, kit.RECORDS, *kit.records([(0, -1, kit.NONE, 1, (100, 1), raw)])))
    done = dump("show", "q", kit.write(tmp_path / "run", sites, data), "--map")
    check(len(maps(done.stdout)[0][1]) == 64 and "... 36 more rows" in done.stdout, "64 rows, and how many more", done.stdout[-300:])
