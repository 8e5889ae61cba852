# SPDX-License-Identifier: Apache-2.0
"""dmi-dump diff: two runs, row against row, whatever the order in which they computed them."""
import json
import math
import random
import struct
import subprocess
from dataclasses import dataclass, field

import pytest

from damage import flip_payload
from harness import BUILD, DMI_DUMP

MAKE, MAKE_RUN = (BUILD / "tests" / "unit" / name for name in ("make_schedule", "make_run"))
pytestmark = pytest.mark.built(DMI_DUMP, MAKE, MAKE_RUN)
WIDTH, PREFILL, DECODE = 4, 1, 2
Q, H = 0, 2


def value(request, position, layer, column):
    return struct.unpack("f", struct.pack("f", 1 + sum(map(ord, request)) / 1000 + position / 16 + layer / 128 + column / 1024))[0]


@dataclass
class Run:
    """A run to be written: [[(request, first position, tokens)]] a step; rows of other values by (request, position, layer)."""
    steps: list
    changed: dict = field(default_factory=dict)
    layers: int = 2
    dtype: str = "f32"
    width: int = WIDTH
    padding: int = 0

    def row(self, request, position, layer):
        return self.changed.get((request, position, layer), [value(request, position, layer, c) for c in range(self.width)])

    def lines(self):
        for number, spans in enumerate(self.steps):
            words, rows, first = [], [], 0
            for request, position, n in spans:
                words.append(f"{request}:{first}:{n}:{position}:{PREFILL if n > 1 else DECODE}:0:0")
                rows += [(request, p) for p in range(position, position + n)]
                first += n
            yield f"step {number} {first + self.padding} {' '.join(words)}"
            for layer in range(self.layers):
                values = [x for row in rows for x in self.row(*row, layer)] + self.padding * self.width * [number]
                yield f"put {Q} {layer} {self.width} {self.dtype} {' '.join(map(repr, values))}"

    def write(self, out):
        done = subprocess.run([MAKE, out, "job", "0", "1", "0", "1"], input="\n".join(self.lines()) + "\n", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 0, done.stderr
        return out


def diff(*words, status=0):
    done = subprocess.run([DMI_DUMP, "diff", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == status, (words, done.returncode, done.stdout[-1500:], done.stderr[-600:])
    return done


def facts(*words, status=0):
    return json.loads(diff(*words, "--json", status=status).stdout)


TOGETHER = [[("a", 0, 4), ("b", 0, 3)], [("b", 3, 1), ("a", 4, 1)], [("a", 5, 1)]]
ALONE = [[("b", 0, 2)], [("b", 2, 2)], [("a", 0, 1)], [("a", 1, 4)], [("a", 5, 1)]]


@pytest.fixture(name="one")
def fixture_one(tmp_path):
    return Run(TOGETHER).write(tmp_path / "one")


def test_the_same_in_another_order(one, tmp_path, check):
    other = Run(ALONE, padding=2).write(tmp_path / "other")
    said = facts(one, other)
    check((said["equal"], said["compared"], said["rows"], said["same_rows"], said["first"]) == (True, 4, 20, 20, None), "all is compared", said)
    text = diff(one, other).stdout
    check("All 4 tensors are the same, bit for bit, in 20 rows." in text, "and the text says it", text)


def test_where_they_part(one, tmp_path, check):
    """Of a row at position 5 and one at 2 of a later layer, the second was computed first."""
    changed = {("a", 5, 0): [9, 9, 9, 9], ("a", 2, 1): [*(value("a", 2, 1, c) for c in range(3)), 7.5]}
    other = Run(ALONE, changed).write(tmp_path / "other")
    said = facts(one, other, status=1)
    check(said["first"] == {"tensor": "a/q.1", "position": 2, "element": 3, "run": value("a", 2, 1, 3), "other": 7.5}, "in the order of launches", said["first"])
    tensors = {t["key"]: t for t in said["tensors"]}
    check({k for k, t in tensors.items() if not t["passes"]} == {"a/q.0", "a/q.1"} and said["differing"] == 2, "by tensor", tensors)
    check(tensors["a/q.0"]["first"]["position"] == 5 and tensors["a/q.0"]["same_rows"] == 5, "each with its first row", tensors["a/q.0"])
    far = [abs(9 - value("a", 5, 0, c)) for c in range(WIDTH)]
    check(math.isclose(tensors["a/q.0"]["greatest"], max(far)) and math.isclose(tensors["a/q.0"]["mean"], sum(far) / (6 * WIDTH)),
          "greatest and mean", tensors["a/q.0"])
    site, = said["sites"]
    check((site["rows"], site["same_rows"], site["differing"], site["first"]["tensor"]) == (20, 18, 2, "a/q.1"), "by site", site)
    text = diff(one, other, status=1).stdout
    check(f"they first differ at a/q.1, position 2, element 3: {value('a', 2, 1, 3):.9g} and 7.5" in text and "2 of 4 tensors differ" in text,
          "and in words", text)


def test_what_is_allowed(one, tmp_path, check):
    near = [value("a", 3, 0, c) * 1.01 for c in range(WIDTH)]
    other = Run(ALONE, {("a", 3, 0): near}).write(tmp_path / "other")
    diff(one, other, status=1)
    check("agree" in diff(one, other, "--tolerance", "0.02").stdout, "of a tensor")
    diff(one, other, "--tolerance", "0.001", status=1)
    check(facts(one, other, "--row-tolerance", "0.011")["same_rows"] == 19, "of a row")
    said = facts(one, other, "--row-tolerance", "0.009", status=1)
    check(said["first"]["tensor"] == "a/q.0" and said["first"]["position"] == 3, "what is beyond it is named", said["first"])


def test_what_only_one_has(one, tmp_path, check):
    fewer = Run([[("a", 0, 3)], [("b", 0, 4)]], layers=1).write(tmp_path / "fewer")
    said = facts(one, fewer, status=1)
    check(said["only_in_run"] == {"q": 2} and said["only_in_other"] == {} and not said["rows_only_in_other"], "tensors", said)
    check({t["key"]: t["lacking_rows"] for t in said["tensors"]} == {"a/q.0": 3, "b/q.0": 0}, "rows that the other lacks", said["tensors"])
    shorter = Run([[("a", 0, 3)], [("b", 0, 4)]]).write(tmp_path / "shorter")
    said = facts(one, shorter, status=1)
    check(said["differing"] == 2 and said["rows"] == said["same_rows"] == 14, "these alone make a tensor differ", said)
    said = facts(fewer, one, status=1)
    check(said["only_in_other"] == {"q": 2} and said["rows_only_in_other"] == 3 and said["differing"] == 0, "and the other way round", said)
    text = diff(fewer, one, status=1).stdout
    check("Only in the other run (tensors): q (2)" in text and "that both have: 3 rows" in text, "in words", text)
    check(facts(fewer, one, "--layer", "0", "--request", "b")["rows"] == 4, "what is selected may be all there")
    nothing = Run([[("z", 0, 2)]]).write(tmp_path / "nothing")
    check("Nothing could be compared" in diff(one, nothing, status=1).stdout, "nothing in common")


def test_types_and_shapes(one, tmp_path, check):
    wide = Run(ALONE, dtype="f64").write(tmp_path / "wide")
    said = facts(one, wide, status=1)
    check(said["same_rows"] == 0 and said["tensors"][0]["greatest"] == 0, "another type has other bits, and the same values", said["tensors"][0])
    check(facts(one, wide, "--tolerance", "0")["equal"], "--tolerance 0 asks for values alone")
    other = Run(ALONE, width=5).write(tmp_path / "other")
    said = facts(one, other, status=1)
    check(all(t["other_shape"] for t in said["tensors"]), "another width", said["tensors"])
    check("rows are 4 wide, in the other run 5" in diff(one, other, status=1).stdout, "is said")


def test_what_is_no_number(one, tmp_path, check):
    nan = Run(TOGETHER, {("a", 1, 0): [math.nan, math.inf, 1, 2]}).write(tmp_path / "nan")
    same = Run(ALONE, {("a", 1, 0): [math.nan, math.inf, 1, 2]}).write(tmp_path / "same")
    check(facts(nan, same)["equal"], "the same bits are the same")
    said = facts(one, nan, "--tolerance", "1e9", status=1)
    tensor = next(t for t in said["tensors"] if not t["passes"])
    check(tensor["key"] == "a/q.0" and tensor["greatest"] is None and tensor["error"] is None, "on one side it is infinitely far", tensor)
    infinite = Run(TOGETHER, {("a", 1, 0): [math.inf, 1, 1, 2]}).write(tmp_path / "infinite")
    for words in ((one, infinite), (infinite, one)):
        site = facts(*words, status=1)["sites"][0]
        check(site["error"] is None and site["least_cosine"] == 0, "so is what is infinite on either side", site)


def test_requests_with_other_names(one, tmp_path, check):
    changed = {("x", p, layer): [value("a", p, layer, c) for c in range(WIDTH)] for p in range(6) for layer in range(2)}
    other = Run([[("x", 0, 6)]], changed).write(tmp_path / "other")
    check(facts(one, other, "--request", "a=x")["rows"] == 12, "ID=NAME")
    both = {("y", p, layer): [value("b", p, layer, c) for c in range(WIDTH)] for p in range(4) for layer in range(2)}
    more = Run([[("x", 0, 6), ("y", 0, 2)], [("y", 2, 2)]], changed | both).write(tmp_path / "more")
    check(facts(one, more, "--request", "a=x", "--request", "b=y")["rows"] == 20, "of several")
    diff(one, other, status=1)
    for words, said in ((("--request", "c=x"), "no request 'c'"), (("--request", "a=z"), "no request 'z'"), (("--request", "z"), "no request 'z'"),
                        (("--request", "a=x", "--request", "b=z"), "no request 'z'")):
        check(said in diff(one, other, *words, status=2).stderr, "a name that its run has not", words)
    diff(one, other, "--request", "a", status=1)


def test_runs_without_requests(tmp_path, check):
    runs = [tmp_path / name for name in "ab"]
    for run in runs:
        subprocess.run([MAKE_RUN, run, "anonymous"], check=True, stdout=subprocess.PIPE, timeout=60)
    said = facts(*runs)
    check(said["equal"] and said["rows"] == said["same_rows"] > 10, "are compared in their order", said["sites"])


def test_ranks_are_joined(tmp_path, check):
    step = "step 0 2 a:0:2:0:1:0:0\n"
    for rank, columns in ((0, "1 2 5 6"), (1, "3 4 7 8")):
        subprocess.run([MAKE, tmp_path / "two", "job", str(rank), "2", "0", "1"], input=f"{step}put {Q} 0 2 f32 {columns}\n", text=True,
                       check=True, timeout=60)
    subprocess.run([MAKE, tmp_path / "one", "job", "0", "1", "0", "1"], input=f"{step}put {Q} 0 4 f32 1 2 3 4 5 6 7 8\n", text=True,
                   check=True, timeout=60)
    check(facts(tmp_path / "two", tmp_path / "one")["same_rows"] == 2, "two ranks and one hold the same")


@pytest.mark.parametrize("which", ["run", "other"])
def test_damage(tmp_path, check, which):
    runs = {"run": Run(TOGETHER).write(tmp_path / "run"), "other": Run(ALONE).write(tmp_path / "other")}
    flip_payload(next(runs[which].glob("*/seg-*.dmi")), 0)
    done = diff(*runs.values(), "--json", status=1)
    said = json.loads(done.stdout)
    check(0 < said["unreadable_rows"] <= 20 and said["unreadable_rows"] + said["same_rows"] == 20 and not said["equal"], "rows that cannot be read are no difference", said)
    check(said["rows_only_in_other"] == 0, "nor rows that the run lacks", said)
    check(done.stderr.count("dmi-dump: ") == 1 and "chunk" in done.stderr, "what cannot be read is named once", done.stderr)


def test_usage(one, tmp_path, check):
    check("needs two runs" in diff(one, status=2).stderr, "one run is not enough")
    check(str(tmp_path / "none") in diff(one, tmp_path / "none", status=2).stderr, "a run that is not there is named")
    check("one argument too many" in diff(one, one, one, status=2).stderr, "and three are too many")


def serve(dice, requests):
    """Steps of a random engine that computes all positions of @requests once."""
    done, steps = dict.fromkeys(requests, 0), []
    while left := [r for r in requests if done[r] < requests[r]]:
        spans = []
        for r in dice.sample(left, dice.randint(1, len(left))):
            n = min(dice.choice([1, 1, 1, 2, 5]), requests[r] - done[r])
            spans.append((r, done[r], n))
            done[r] += n
        steps.append(spans)
    return steps


@pytest.mark.parametrize("seed", range(12))
def test_random_engines(check, tmp_path, seed):
    """Two engines, the same requests, some rows changed: found, all of them and no others. Over a thousand records of a few."""
    dice = random.Random(seed)
    requests = {f"r{i}": dice.randint(1, 90 if seed < 2 else 12) for i in range(12 if seed < 2 else 5)}
    layers = 20 if seed < 2 else 2
    places = [(r, p, layer) for r, n in requests.items() for p in range(n) for layer in range(layers)]
    changed = {at: [dice.random() for _ in range(WIDTH)] for at in dice.sample(places, min(len(places), dice.randint(0, 6)))}
    runs = Run(serve(dice, requests), layers=layers), Run(serve(dice, requests), changed, layers=layers, padding=1)
    said = facts(*(run.write(tmp_path / name) for run, name in zip(runs, "ab")), status=int(bool(changed)))
    wanted = {}
    for request, _, layer in changed:
        wanted[f"{request}/q.{layer}"] = wanted.get(f"{request}/q.{layer}", 0) + 1
    found = {t["key"]: t["rows"] - t["same_rows"] for t in said["tensors"] if not t["passes"]}
    check(found == wanted and said["rows"] == len(places), f"{len(changed)} changed rows of {len(places)}", (found, wanted))
    order = [(f"{r}/q.{layer}", p) for spans in runs[0].steps for layer in range(layers) for r, first, n in spans for p in range(first, first + n)]
    first = min((order.index((f"{r}/q.{layer}", p)) for r, p, layer in changed), default=None)
    check((said["first"] and (said["first"]["tensor"], said["first"]["position"])) == (None if first is None else order[first]),
          "and the first of them in the order of launches", said["first"])
