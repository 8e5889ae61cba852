# SPDX-License-Identifier: Apache-2.0
"""The pages Attention, Heads and Attribution in Debian's chromium, light and dark: numbers are those of `dmi-view --json`, keys and clicks do what docs/viewer.md says. With --long alone."""
import json
import math
import statistics

import numpy as np
import pytest

import browser
from attention_kit import Captured, Model, write_run
from report import HOSTILE, VIEW, as_json, dla_answer, view
from test_analyze import ROTATED
from test_browser import SHOTS, fixture_page, quiet, same  # noqa: F401

pytestmark = [pytest.mark.long, pytest.mark.built(VIEW), pytest.mark.skipif(not browser.BROWSER or not browser.DRIVER, reason="chromium and chromium-driver are not installed")]
N, LAYERS, HEADS = 40, 3, 4
IDS = np.random.default_rng(3).integers(0, 12, N).tolist()
ROWS = "return [...document.querySelectorAll(`table[aria-label=\"${arguments[0]}\"] tbody tr`)].map((r) => [...r.children].map((c) => c.firstChild?.title || c.textContent))"


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    requests = {"r1": Captured(Model(layers=LAYERS), N, scale=1.5), "r2": Captured(Model(layers=LAYERS), 9, seed=7)}
    return write_run(tmp_path / "run", requests, ROTATED, ids=IDS, wrong={("r2", "z"): lambda x: x * 1.5})


def whole(entry, layer, head):
    """[query][key] of a head at full resolution, or None."""
    found = next((h["weights"] for h in entry["patterns"]["heads"] if (h["layer"], h["head"]) == (layer, head)), None)
    return found and [found[i * (i + 1) // 2:(i + 1) * (i + 2) // 2] for i in range(entry["queries"])]


def test_heads(check, page, run, tmp_path):
    """Scores, ranked by a column, cut by a layer and a least value; a click shows the head."""
    view(run, "-o", tmp_path / "r.html")
    entry = as_json(run)["attention"][0]
    page.open(tmp_path / "r.html", "#heads/0")
    names = list(entry["scores"])

    def rows(order):
        found = page.run(ROWS, "Heads")
        check([row[0] for row in found] == [f"{i // HEADS}.{i % HEADS}" for i in order], "heads in their order", [row[0] for row in found])
        for row, i in zip(found, order):
            wanted = [*(entry["scores"][name][i] for name in names), entry["errors"][i]]
            check(all(map(same, row[1:], wanted)), f"numbers of {row[0]}", (row, wanted))
    rows(range(LAYERS * HEADS))
    page.click("button[aria-label='sort by induction']")
    by = sorted(range(LAYERS * HEADS), key=lambda i: -entry["scores"]["induction"][i])
    rows(by)
    page.screenshot(SHOTS / f"heads-{page.theme}.png")
    check(page.fragment() == "#heads/0/induction/down/all/", "the address says it", page.fragment())
    page.click("button[aria-label='sort by induction']")
    rows(by[::-1])
    page.choose("Layer", 1)
    rows([i for i in by[::-1] if i // HEADS == 1])
    least = entry["scores"]["induction"][by[5]]
    page.choose("Layer", "all")
    page.run("const i = document.querySelector('input[aria-label=\"At least\"]'); i.value = arguments[0]; i.dispatchEvent(new Event('input'))", str(least))
    rows(by[5::-1])
    fragment = page.fragment()
    page.open(tmp_path / "r.html", fragment)
    rows(by[5::-1])
    page.click("table[aria-label=Heads] tbody tr:nth-child(1) a")
    check(page.fragment().startswith(f"#attention/0/{by[5] // HEADS}/{by[5] % HEADS}/"), "a click shows its attention", page.fragment())
    page.open(tmp_path / "r.html", "#heads/1")
    check(page.text("#proof").startswith("Refused: attention's weights times v are not z"), "a request that is refused", page.text("#main"))
    quiet(check, page, "heads")


def test_attention(check, page, run, tmp_path):
    """The chosen token's keys and queries, and the strongest pairs, of one head and of one beside it."""
    view(run, "-o", tmp_path / "r.html", "--head", "1.2", "--head", "2.0")
    entry = as_json(run, "--head", "1.2", "--head", "2.0")["attention"][0]
    page.open(tmp_path / "r.html", "#attention/r1/1/2/30")
    page.screenshot(SHOTS / f"attention-{page.theme}.png")

    def at(layer, head, token, first=True, other="-", order="head"):
        weights = whole(entry, layer, head)
        keys = sorted([(w, -k) for k, w in enumerate(weights[token]) if w > 0 and (first or k)], reverse=True)[:10]
        found = page.run(ROWS, f"What token {token} attends to")[:len(keys)]
        check([int(row[0]) for row in found] == [-k for _, k in keys] and all(same(row[2], w) for row, (w, _) in zip(found, keys)), f"{layer}.{head}: what {token} attends to", (found, keys))
        check([row[1] for row in found] == [str(IDS[int(row[0])]) for row in found], "tokens", found)
        queries = sorted([(weights[i][token], -i) for i in range(token, N) if weights[i][token] > 0 and (first or i)], reverse=True)[:10]
        found = page.run(ROWS, f"Who attends to token {token}")[:len(queries)]
        check([int(row[0]) for row in found] == [-i for _, i in queries] and all(same(row[2], w) for row, (w, _) in zip(found, queries)), f"who attends to {token}", (found, queries))
        pairs, i = entry["pairs" if first else "pairs_but_first"], (layer * HEADS + head) * 6
        found = page.run(ROWS, f"Strongest pairs of head {layer}.{head}")
        check([(int(row[0]), int(row[2])) for row in found] == list(zip(pairs["queries"], pairs["keys"]))[i:i + 6] and all(map(same, (row[4] for row in found), pairs["weights"][i:i + 6])),
              "strongest pairs", found)
        check(page.fragment() == f"#attention/0/{layer}/{head}/{token}/{order}/{'all' if first else 'later'}/{other}", "the address says it", page.fragment())
    at(1, 2, 30)
    check(page.text("#proof").startswith("Checked: A v = z holds, off by"), "what is checked", page.text("#proof"))
    text = page.run("return [...document.querySelectorAll('#of-head .text:first-of-type span')].map((s) => s.title)")
    check([float(title.split(": ")[1]) for title in text] == whole(entry, 1, 2)[30], "the text is shaded by its weights", text)
    for keys, layer, head, token in ((["Left"], 1, 2, 29), (["Home"], 1, 2, 0), (["End"], 1, 2, N - 1), (["Left", "]"], 2, 2, N - 2), (["Up", "Up"], 2, 0, N - 2), (["[", "Down", "Down"], 1, 2, N - 2)):
        page.keys(*keys)
        check(page.fragment() == f"#attention/0/{layer}/{head}/{token}/head/all/-", f"{keys}", page.fragment())
    page.keys("s")
    at(1, 2, N - 2, first=False)
    page.run("const i = document.querySelector('input[aria-label=\"Second head\"]'); i.value = '2.0'; i.dispatchEvent(new Event('input'))")
    check(page.texts("#large section > div:first-child h2") == ["Head 1.2", "Head 2.0"], "two heads beside each other", page.texts("#large h2"))
    boxes = page.run("return ['of-head', 'of-other'].map((id) => document.getElementById(id).getBoundingClientRect().top)")
    check(boxes[0] == boxes[1], "beside, not below", boxes)
    at(1, 2, N - 2, first=False, other="2.0")
    page.run("document.querySelector('#of-other .text span:nth-child(5)').click()")
    at(1, 2, 4, first=False, other="2.0")
    page.choose("Sort heads by", "sink")
    check("/sink/later/" in page.fragment() and page.text("#tiles-say") == "heads 1 to 12 of 12, sink first", "sorted", page.fragment())
    box = page.run("const r = document.getElementById('tiles').getBoundingClientRect(); return [r.left, r.top]")
    click = {"type": "pointer", "id": "mouse", "actions": [{"type": "pointerMove", "x": int(box[0] + 54 + 20), "y": int(box[1] + 20)}, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]}
    page.call("POST", "/actions", {"actions": [click]})
    second = sorted(range(LAYERS * HEADS), key=lambda i: -entry["scores"]["sink"][i])[1]
    check(page.fragment().startswith(f"#attention/0/{second // HEADS}/{second % HEADS}/"), "a click on a thumbnail", page.fragment())
    quiet(check, page, "attention")


def test_cells_of_thumbnails(check, page, run, tmp_path):
    """The colour of each cell is that of its own weight: 0 is the background, and where colours are alike weights are."""
    view(run, "-o", tmp_path / "r.html")
    entry = as_json(run)["attention"][0]
    page.open(tmp_path / "r.html", "#attention/0/0/0/39")
    at = """const c = document.getElementById('tiles'), k = c.width / c.clientWidth, d = c.getContext('2d').getImageData(0, 0, c.width, c.height), n = arguments[0];
        return [...Array(arguments[1])].map((_, head) => [...Array(n * n)].map((_, i) => { const x = Math.floor((head * 54 + 3 + (i % n + 0.5) * 48 / n) * k), y = Math.floor((3 + (Math.floor(i / n) + 0.5) * 48 / n) * k);
            return [0, 1, 2].map((c_) => d.data[4 * (y * c.width + x) + c_]).join(); }))"""
    colours = page.run(at, N, LAYERS * HEADS)
    back = ",".join(page.run("return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g)"))
    cells = np.array(entry["thumbnails"]).reshape(LAYERS * HEADS, -1)
    seen, wrong = {}, 0
    for head in range(LAYERS * HEADS):
        for i in range(N, N * (N - 1)):  # not the first and last rows, on which the frame lies
            if 0 < i % N < N - 1:
                code = int(cells[head][i])
                wrong += seen.setdefault(code, colours[head][i]) != colours[head][i]
    check(wrong == 0 and seen[0] == back and len(set(seen.values())) > len(seen) * 0.8, "a colour a weight", (wrong, seen.get(0), back, len(seen)))


def test_a_head_by_its_thumbnail(check, page, tmp_path):
    """A head that is not there at full resolution says so, and its numbers are about right."""
    one = Captured(Model(layers=4, heads=8, kv=2), 30)
    run = write_run(tmp_path / "run", {"r1": one}, ROTATED)
    view(run, "-o", tmp_path / "r.html")
    entry = as_json(run)["attention"][0]
    there = {(h["layer"], h["head"]) for h in entry["patterns"]["heads"]}
    layer, head = next((k, h) for k in range(4) for h in range(8) if (k, h) not in there)
    page.open(tmp_path / "r.html", f"#attention/0/{layer}/{head}/20")
    check(f"dmi-view --head {layer}.{head} puts the head here at full resolution" in page.text("#of-head"), "it is said", page.text("#of-head")[:300])
    rows = page.run(ROWS, "What token 20 attends to")
    off = [abs(float(row[2].removeprefix("about ")) - one.weights[layer][head][20][int(row[0])]) for row in rows]
    check(all(row[2].startswith("about ") for row in rows) and max(off) < 0.008, "numbers are about right", rows)
    quiet(check, page, "thumbnail")


def test_attribution(check, page, tmp_path):
    """Parts of an answer of `python -m dmi dla`, the largest first; a grid of heads and MLPs; keys move the token; a click on a head shows its attention."""
    run, out = write_run(tmp_path / "run", {"r1": Captured(Model(layers=2, heads=3, kv=3), 6)}, ROTATED), tmp_path / "r.html"
    uuid = as_json(run)["run"]["uuid"]
    checks = json.dumps([{"name": "sum of the parts = difference of the logits \u202e", "error": 1e-6, "bound": 1e-4, "rows": 5}])
    answer = dla_answer(tmp_path / "dla.safetensors", uuid, layers=2, request="r1", texts=HOSTILE[:5], checks=checks)
    view(run, "--with", answer, "-o", out)
    entry, = as_json(run, "--with", answer)["dla"]
    page.open(out, "#dla/0")
    page.screenshot(SHOTS / f"dla-{page.theme}.png")

    def at(token):
        parts = {"embedding": entry["embedding"][token], "constant": entry["constant"][token]}
        for layer in range(2):
            parts |= {f"head {layer}.{h}": entry["heads"][(token * 2 + layer) * 3 + h] for h in range(3)} | {f"mlp {layer}": entry["mlps"][token * 2 + layer]}
        parts |= {f"edit {name}": entry["of_edits"][token * 2 + i] for i, name in enumerate(("calm", "loud"))}
        wanted = sorted(parts, key=lambda name: -abs(parts[name]))
        rows = page.run("return [...document.querySelectorAll('table[aria-label=Parts] tbody tr')].map((r) => [r.children[0].textContent, r.children[1].firstChild.title])")
        check([row[0] for row in rows] == wanted and all(same(row[1], parts[row[0]]) for row in rows), f"parts at {token}", (rows, parts))
        said = page.run("return document.getElementById('dla-readout').title")
        check(f"is {entry['difference'][token]!r}; the parts sum up to {entry['sum'][token]!r}" in said and said.startswith(f"position {token}"), "the difference, and the sum", said)
        grid = page.run("return [...document.querySelectorAll('#dla-grid td')].map((c) => c.title.split(': '))")
        check(len(grid) == 8 and all(same(number, parts[name]) for name, number in grid), "the grid", grid)
        check(page.fragment() == f"#dla/0/{token}", "the address says it", page.fragment())
    at(4)
    for key, token in (("Left", 3), ("Home", 0), ("Right", 1), ("End", 4)):
        page.keys(key)
        at(token)
    check("Checked: sum of the parts = difference of the logits \\u{202e}, off by" in page.text("#main") and HOSTILE[1].replace(" ", "\u00b7") in page.text("#main"), "what was checked, of which words", page.text("#main")[:300])
    check(page.run("return document.querySelectorAll('img, b, script:not(#data)').length") == 1, "hostile texts stay texts")
    page.click("table[aria-label=Parts] a")
    check(page.until(lambda: page.fragment().startswith("#attention/0/")), "a click on a head", page.fragment())
    quiet(check, page, "attribution")


def test_much(check, page, tmp_path):
    """600 tokens, 32 layers of 8 heads, at 100 ms an interaction: medians, and bounded at three times as much."""
    run = write_run(tmp_path / "run", {"long": Captured(Model(layers=32, heads=8, kv=2, dim=8), 600)}, ROTATED, ids=list(range(600)))
    view(run, "-o", tmp_path / "r.html")
    loads, draws = [], []
    for _ in range(3):
        loads.append(page.open(tmp_path / "r.html", "#attention"))
        for key in ("ArrowLeft", "]", "ArrowDown", "s", "ArrowLeft"):
            draws.append(page.run("const began = performance.now(); document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true})); "
                                  "return performance.now() - began", key))
    print(f"{page.theme}: loaded after {1000 * statistics.median(loads):.0f} ms, an interaction {statistics.median(draws):.0f} ms, {(tmp_path / 'r.html').stat().st_size / 1e6:.1f} MB")
    check(statistics.median(loads) < 3 and statistics.median(draws) < 300, "fast enough", (loads, draws))
    spans = page.run("return document.querySelectorAll('.text span').length")
    check(spans <= 800, "only what is near is in the document", spans)
    quiet(check, page, "much")


def test_hostile_ids(check, page, tmp_path):
    """Requests whose ids are markup, and places that are none."""
    ids = [text for text in HOSTILE if "\0" not in text][:6]
    run = write_run(tmp_path / "run", {text: Captured(Model(layers=1), 6, seed=i) for i, text in enumerate(ids)}, ROTATED)
    view(run, "-o", tmp_path / "r.html")
    for fragment in ("#attention", "#heads", "#attention/</script>/9/9/9/9/9/9.9", "#attention/0/-1/1e9/NaN/__proto__/constructor/..", "#heads/1/__proto__/up/<b>/1e999", "#attention/3/0/0/x/head/later/0.1"):
        page.open(tmp_path / "r.html", fragment)
        made = page.run("return document.querySelectorAll('img, b, iframe, object, embed, svg, script:not(#data)').length")
        check(made == 1 and page.text("#main") and page.call("GET", "/title") == "DMI report", f"{fragment}: no element but the page's own", made)
        check(math.isfinite(page.run("return document.getElementById('main').clientWidth")), "a page is there")
        quiet(check, page, fragment)
