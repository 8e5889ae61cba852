# SPDX-License-Identifier: Apache-2.0
"""The page Diff in Debian's chromium, light and dark: numbers are those of `dmi-view --json`, three maps share a cursor, and what a run lacks is no zero.

As test_browser.py: with --long alone, screenshots in build/view.
"""
import math
import re
import statistics

import pytest

from harness import BUILD, DMI_DUMP, only_run
from report import HOSTILE, MAKE_SCHEDULE, PREFILL, VIEW, as_json, schedule, small, view
from test_browser import LAYERS, SHOTS, TOKENS, fixture_page, pytestmark as browser_marks, quiet  # noqa: F401
from test_diff import ABSENT, EXTRA, LACKING, THERE, dropping, pair
from test_dump_diff import Run
from test_view import hostile

pytestmark = [*browser_marks, pytest.mark.built(VIEW, DMI_DUMP, MAKE_SCHEDULE, BUILD / "read" / "libdmi_read.so.1")]
COLOURS = {"light": {LACKING: [0, 158, 115], EXTRA: [222, 196, 0]}, "dark": {LACKING: [30, 190, 145], EXTRA: [240, 228, 66]}}


def same(text, x):
    return text in ("NaN", "Infinity", "-Infinity", "infinite") if x is None else math.isclose(float(text), x, rel_tol=1e-15)


def rows_of(page, label):
    return page.digits(f'table[aria-label="{label}"] tbody tr')


def place_in(page, name, layer, cell, cells, layers):
    """Where a cell lies in the window."""
    left, top, width, height = page.run("const r = document.getElementById(arguments[0]).getBoundingClientRect(); return [r.left, r.top, r.width, r.height]", f"diff-{name}")
    return int(left + 44 + (width - 44) * (cell + 0.5) / cells), int(top + (height - 18) * (layer + 0.5) / layers)


def colour_in(page, name, layer, cell, cells, layers):
    """The colours of a part of a cell, as hatches cross it, most frequent first."""
    return page.run("""const c = document.getElementById(`diff-${arguments[0]}`), k = c.width / c.clientWidth, [, layer, cell, cells, layers] = arguments, n = {};
        const x = 44 + (c.clientWidth - 44) * (cell + 0.25) / cells, y = (c.clientHeight - 18) * (layer + 0.3) / layers;
        const {data} = c.getContext('2d').getImageData(x * k, y * k, 16, 4);
        for (let i = 0; i < data.length; i += 4) { const key = [...data.slice(i, i + 3)].join(); n[key] = (n[key] ?? 0) + 1; }
        return Object.keys(n).sort((a, b) => n[b] - n[a])[0].split(',').map(Number)""", name, layer, cell, cells, layers)


def test_diff(check, page, tmp_path):
    run, other, _, _ = pair(tmp_path)
    out = tmp_path / "r.html"
    view(run, other, "-o", out)
    said = as_json(run, other)
    diff, entry = said["diff"], said["diff"]["maps"][0]
    cells, layers = entry["cells"], entry["layers"]
    norms = {which: next(m for m in said[key] if (m["id"], m["site"]) == ("a", "q")) for which, key in (("ours", "maps"), ("theirs", "other_maps"))}

    def norm(which, layer, cell):
        m = norms[which]
        row = m["layers"].index(layer) if layer in m["layers"] else -1
        return m["norm"][row * m["cells"] + cell] if row >= 0 and cell < m["cells"] else "none"

    def at(k, cell):
        i, text = k * cells + cell, page.run("return document.getElementById('diff-readout').title")
        place, numbers = text.split(": ", 1)
        check(place == f"layer {layers[k]}, position {cell}" and page.fragment() == f"#diff/0/q/error/log/all/{k}/{cell}", "the cursor's place, and the address", (text, page.fragment()))
        if entry["state"][i] == ABSENT:
            check(numbers == "no row in either run", f"{place}: who has it", text)
            return
        ours, theirs = (part.rsplit(" ", 1)[1] for part in numbers.split(", ")[-2:])
        for found, wanted in ((ours, norm("ours", layers[k], cell)), (theirs, norm("theirs", layers[k], cell))):
            check(found == wanted == "none" or same(found, wanted), f"{place}: norms", text)
        if entry["state"][i] == THERE:
            parts = numbers.split(", ")
            check(same(parts[0].removeprefix("error "), entry["error"][i]) and same(parts[1].removeprefix("greatest difference "), entry["greatest"][i]), f"{place}: how far", text)
        else:
            check(numbers.startswith({LACKING: "only in this run", EXTRA: "only in the other run"}[entry["state"][i]]), f"{place}: who has it", text)
    page.open(out, "#diff/0/q/error/log/all/1/2")
    page.screenshot(SHOTS / f"diff-{page.theme}.png")
    at(1, 2)
    for keys, k, cell in ((["Right"], 1, 3), (["]", "End"], 2, 6), (["Up"], 1, 6), (["Left", "Left"], 1, 4), (["[", "Home"], 0, 0), (["Down", "Down"], 2, 0)):
        for key in keys:
            page.keys(key)
        at(k, cell)
    for name, k, cell in (("error", 0, 5), ("run", 1, 1), ("other", 0, 6)):
        page.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", f"diff-{name}")
        x, y = place_in(page, name, k, cell, cells, len(layers))
        page.call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [{"type": "pointerMove", "x": x, "y": y}, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]}]})
        at(k, cell)
        check(page.text("#diff-hover") == page.text("#diff-readout"), f"{name}: what is under the pointer")
    page.keys("Home")
    quiet(check, page, "diff, keys and clicks")
    for i, state in enumerate(entry["state"]):
        found = colour_in(page, "error", *divmod(i, cells), cells, len(layers))
        check(all((found == colour) == (state == which) for which, colour in COLOURS[page.theme].items()), f"cell {i}: a colour of its own", (found, state))
    check(len({tuple(colour_in(page, name, 2, 1, cells, len(layers))) for name in ("error", "run", "other")}) == 3, "of a layer that the other run lacks: only here, a norm, no row")
    page.console()  # says that the test itself has read pixels
    page.keys("f")
    check(page.fragment() == "#diff/0/q/error/log/all/1/2", "f: where they part first", page.fragment())
    page.keys("End")
    page.click("button:not([aria-label])")
    check(page.fragment() == "#diff/0/q/error/log/all/1/2" and "first differ at a/q.1, position 2, element 0" in page.text("#main"), "so does a click", page.fragment())
    column = page.digits("#diff-column tbody tr")
    check([row[0] for row in column] == [str(layer) for layer in layers] and same(column[1][1], entry["error"][cells + 2]) and column[2][5] == "only in this run", "all layers of the position", column)
    for row, wanted in zip(rows_of(page, "Differences by site"), diff["sites"], strict=True):
        check(row[:6] == [str(wanted[key]) for key in ("site", "layers", "tensors", "differing", "rows", "same_rows")] and
              all(same(text, wanted[key]) for text, key in zip(row[6:], ("greatest", "mean", "error", "least_cosine"))), "by site", row)
    for row, wanted in zip(rows_of(page, "Tensors"), [t for t in entry["tensors"] if t], strict=True):
        check(row[:4] == [str(wanted[key]) for key in ("key", "rows", "same_rows", "lacking_rows")] and
              all(same(text, wanted[key]) for text, key in zip(row[4:], ("greatest", "mean", "error", "cosine"))), "by layer", row)
    for measure in ("greatest", "error"):
        for scale in ("linear", "rank", "cut", "log"):
            page.choose("Measure", measure)
            page.choose("Scale", scale)
            check(page.fragment() == f"#diff/0/q/{measure}/{scale}/all/1/2", f"{measure}, {scale}", page.fragment())
    page.choose("Request", 1)
    check(page.fragment().startswith("#diff/1/q/"), "another request", page.fragment())
    names = page.run("return [...document.querySelectorAll('canvas, select, input, nav')].map((e) => e.getAttribute('aria-label') ?? e.parentElement.textContent)")
    check(all(names) and len(names) == 9, "what can be used has a name", names)
    quiet(check, page, "diff")
    page.open(out, "#map/0/q/error/log/all/1/2")
    check(page.run("return document.getElementById('readout').title").endswith(f"error {entry['error'][cells + 2]!r}") and page.text("#legend").find("only in the other run") > 0, "Map has the error, too", page.text("#readout"))
    quiet(check, page, "map of errors")


def test_ten_thousand_tokens(check, page, tmp_path):
    """Interactive within a second of loading, and each interaction within 100 ms; medians, and bounded at three times as much."""
    runs = [schedule(tmp_path / name, [f"step 0 {TOKENS} long:0:{TOKENS}:0:{PREFILL}:{TOKENS}:0", *(f"wide {layer} 4 5" for layer in range(n))]) for name, n in (("x", LAYERS), ("y", LAYERS - 1))]
    out, loads, draws = tmp_path / "r.html", [], []
    view(*runs, "-o", out)
    for _ in range(5):
        page.open(out, "#diff/0/resid_pre/error/log/all/3/100")
        loads.append(page.run("""const done = performance.now(); const entry = performance.getEntriesByType('navigation')[0];
            return document.getElementById('diff-readout').textContent ? entry.domContentLoadedEventEnd - entry.startTime : done"""))
        for key in ("ArrowRight", "]", "+", "ArrowRight", "-"):
            draws.append(page.run("const began = performance.now(); document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true})); "
                                  "return performance.now() - began", key))
    print(f"{page.theme}: loaded after {statistics.median(loads):.0f} ms, an interaction {statistics.median(draws):.0f} ms, {out.stat().st_size / 1e6:.1f} MB")
    check(statistics.median(loads) < 3000 and statistics.median(draws) < 300, "fast enough", (loads, draws))
    quiet(check, page, "much")


def test_runs_that_have_little_in_common(check, page, tmp_path):
    """Nothing to compare; nothing that differs; hostile text in either."""
    out = tmp_path / "r.html"
    run, none = small(tmp_path / "run"), only_run(Run([[("q", 0, 2)]]).write(tmp_path / "none"))
    for name, words, text, status in (("nothing in common", (run, none), "Nothing could be compared", 0), ("the same", (run, run), "are the same, in", 0)):
        view(*words, "-o", out, "--force", status=status)
        page.open(out, "#diff")
        check(text in page.text("#main") and page.texts("#pages a[aria-current]") == ["Diff"], name, page.text("#main")[:200])
        page.keys("f")
        page.keys("Right")
        quiet(check, page, name)
    view(dropping(tmp_path / "whole", 0), dropping(tmp_path / "dropped", 7), "-o", out, "--force")
    page.open(out, "#diff")
    said = page.text("#diff-dropped")
    check(re.fullmatch(r"This run dropped no record of site (\w+)\. The other run dropped 7 records of site \1 \(\w+ 7\) and lost 0\.", said), "what each dropped", said)
    evil = hostile(tmp_path / "hostile")
    for words in ((evil, run), (run, evil), (evil, evil)):
        view(*words, "-o", out, "--force", status=1)
        for fragment in ("#diff", f"#diff/{len(HOSTILE)}/x", "#diff/0/%3Cimg%3E/<b>/../x", "#map/0/x/error"):
            page.open(out, fragment)
            check(page.call("GET", "/title") == "DMI report" and page.run("return document.querySelectorAll('img, b, iframe, object, embed, svg, script:not(#data)').length") == 1,
                  f"{fragment}: text stays text")
            quiet(check, page, fragment)
