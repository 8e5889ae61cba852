# SPDX-License-Identifier: Apache-2.0
"""dmi-view RUN OTHER: the numbers of dmi-dump diff, how far each row is from the other run's, and which rows one of them lacks."""
import math

import numpy as np
import pytest

from damage import flip_payload
from harness import BUILD, DMI_DUMP, dump_json, only_run
from report import MAKE_SCHEDULE, PREFILL, VIEW, Report, as_json, floats, schedule, small, view
from test_dump_diff import Run
from test_view import fixture_library, hostile  # noqa: F401

pytestmark = [pytest.mark.built(VIEW, DMI_DUMP, MAKE_SCHEDULE, BUILD / "read" / "libdmi_read.so.1"), pytest.mark.usefixtures("library")]
ABSENT, THERE, DAMAGED, LACKING, EXTRA, SHAPE = range(6)


def pair(folder, **change):
    """Two runs of `a` and `b`: the other one has a token of `a` more, one of `b` less, a layer less, and other values in three rows; and their Runs."""
    folder.mkdir(exist_ok=True)
    ours = Run([[("a", 0, 4), ("b", 0, 3)], [("a", 4, 1)], [("a", 5, 1)]], layers=3)
    theirs = Run([[("b", 0, 2)], [("a", 0, 5)], [("a", 5, 2)]], layers=2, changed={("a", 2, 1): [9.0, 2.0, 3.0, 4.0], ("a", 4, 0): [math.nan, 1.0, 1.0, 1.0], ("b", 1, 1): [0.0] * 4})
    for name, value in change.items():
        setattr(theirs, name, value)
    return only_run(ours.write(folder / "ours")), only_run(theirs.write(folder / "theirs")), ours, theirs


def same_numbers(check, said, wanted, what):
    """All that dmi-dump diff --json says of sites, tensors and totals."""
    for key in ("sites", "first", "compared", "differing", "rows", "same_rows", "unreadable_rows", "equal", "rows_only_in_other"):
        check(said[key] == wanted[key], f"{what}: {key}", (said[key], wanted[key]))
    for key in ("only_in_run", "only_in_other"):
        check({entry["site"]: entry["tensors"] for entry in said[key]} == (wanted[key] or {}), f"{what}: {key}", (said[key], wanted[key]))
    tensors = [tensor for entry in said["maps"] for tensor in entry["tensors"] if tensor]
    check(tensors == wanted["tensors"], f"{what}: tensors", (tensors[:2], wanted["tensors"][:2]))


def error_of(x, y):
    """Norm of the difference / norm of x, and the greatest difference; NaN on one side is infinitely far."""
    x, y = np.array(x, "f4").astype(float), np.array(y, "f4").astype(float)
    if np.isnan(x - y).any():
        return math.inf, math.inf
    far = np.linalg.norm(x - y)
    return (far / np.linalg.norm(x) if far else 0), np.abs(x - y).max()


def test_numbers_are_those_of_dmi_dump(check, tmp_path):
    run, other, _, _ = pair(tmp_path)
    for words in ((), ("--request", "a"), ("--layers", "1"), ("--tokens", "1:3"), ("--site", "q")):
        same_numbers(check, as_json(run, other, *words)["diff"], dump_json("diff", run, other, *words, check=False), words)
    said = as_json(other, run)["diff"]
    same_numbers(check, said, dump_json("diff", other, run, check=False), "the other way round")
    check(said["path"] == str(run) and as_json(run)["diff"] is None, "the other run's path; no other run", said["path"])


def test_each_row_and_what_one_lacks(check, tmp_path):
    run, other, ours, theirs = pair(tmp_path)
    said = as_json(run, other)
    check([(m["id"], m["site"], m["layers"], m["first"], m["cells"]) for m in said["diff"]["maps"]] == [("a", "q", [0, 1, 2], 0, 7), ("b", "q", [0, 1, 2], 0, 3)], "maps of this run's layers",
          said["diff"]["maps"])
    for entry in said["diff"]["maps"]:
        request = entry["id"]
        n, m = (6, 7) if request == "a" else (3, 2)
        for k, layer in enumerate(entry["layers"]):
            for position in range(entry["cells"]):
                i = k * entry["cells"] + position
                state = ABSENT if layer == 2 and position >= n else LACKING if layer == 2 or position >= m else EXTRA if position >= n else THERE
                check(entry["state"][i] == state, f"{request}, layer {layer}, position {position}: its state", (entry["state"][i], state))
                if state == THERE:
                    error, greatest = error_of(ours.row(request, position, layer), theirs.row(request, position, layer))
                    found = [math.inf if x is None else x for x in (entry["error"][i], entry["greatest"][i])]
                    check(np.allclose(found, (error, greatest), rtol=1e-6), f"{request}, layer {layer}, position {position}: how far", (found, error, greatest))
    theirs_alone = as_json(other)["maps"]
    check(said["other_maps"] == theirs_alone and said["maps"] == as_json(run)["maps"], "maps of both are those of each by itself")
    view(run, other, "-o", tmp_path / "r.html")
    for page, entry in zip(Report(tmp_path / "r.html").said["diff"]["maps"], said["diff"]["maps"], strict=True):
        for name in ("error", "greatest"):
            check(np.array_equal(floats(page[name]), np.array([math.inf if x is None else x for x in entry[name]], "f4")), f"{page['id']}: {name} on the page")


def test_a_run_and_itself(check, tmp_path):
    run, _, _, _ = pair(tmp_path)
    said = as_json(run, run)["diff"]
    check(said["equal"] and said["first"] is None and not any(any(entry["error"]) for entry in said["maps"]), "nothing differs", said["first"])
    check({state for entry in said["maps"] for state in entry["state"]} == {THERE}, "all rows are there")


def test_where_they_part_first(check, tmp_path):
    run, other, _, _ = pair(tmp_path)
    said = as_json(run, other)["diff"]
    check(said["first_at"] == {"request": 0, "id": "a", "other_request": 1, "site": "q", "layer": 1} and said["first"]["position"] == 2, "as the page finds it", said["first_at"])


def test_requests_of_other_names(check, tmp_path):
    """ID=NAME; requests that the other run lacks."""
    run, _, ours, _ = pair(tmp_path)
    other = only_run(Run([[("z", 0, 6)]], layers=3).write(tmp_path / "named"))
    words = ("--request", "a=z")
    said = as_json(run, other, *words)
    same_numbers(check, said["diff"], dump_json("diff", run, other, *words, check=False), "a=z")
    entry, = said["diff"]["maps"]
    check((entry["id"], entry["request"], entry["other_request"]) == ("a", 0, 0) and [m["id"] for m in said["other_maps"]] == ["z"] and [m["id"] for m in said["maps"]] == ["a"],
          "whose maps these are", entry["id"])
    said = as_json(run, other, "--request", "b")
    check(said["other_maps"] == [] and said["diff"]["only_in_run"] == [{"site": "q", "tensors": 3}], "what only this run has is no error", said["diff"]["only_in_run"])
    check(set(said["diff"]["maps"][0]["state"]) == {LACKING}, "and no zero", said["diff"]["maps"][0]["state"])


def test_rows_that_cannot_be_compared(check, tmp_path):
    """Rows have another width, or are damaged on either side."""
    run, other, _, _ = pair(tmp_path, width=5, changed={})
    said = as_json(run, other)["diff"]
    check({state for entry in said["maps"] for state in entry["state"][:2]} == {SHAPE} and all(t["other_shape"] for m in said["maps"] for t in m["tensors"] if t), "another shape", said["maps"])
    for which in (0, 1):
        both = pair(tmp_path / str(which))[:2]
        flip_payload(next(both[which].glob("*.dmi")), 1)
        said = as_json(*both, status=1)["diff"]
        wanted = dump_json("diff", *both, check=False)
        damaged = sum(entry["state"].count(DAMAGED) for entry in said["maps"])
        check(said["unreadable_rows"] == wanted["unreadable_rows"] == damaged > 0, "damaged rows are counted, and no zero", (said["unreadable_rows"], damaged))


def test_a_row_that_is_infinite_in_the_run(check, tmp_path):
    """It is infinitely far from one that is not."""
    run = only_run(Run([[("a", 0, 3)]], layers=1, changed={("a", 1, 0): [math.inf, 1.0, 1.0, 1.0]}).write(tmp_path / "run"))
    other = only_run(Run([[("a", 0, 3)]], layers=1).write(tmp_path / "other"))
    view(run, other, "-o", tmp_path / "r.html")
    entry, = Report(tmp_path / "r.html").said["diff"]["maps"]
    check(floats(entry["error"]).tolist() == floats(entry["greatest"]).tolist() == [0, math.inf, 0], "by both numbers", floats(entry["error"]))


def dropping(folder, n):
    """A run of one site that dropped @n records of it, as the ring was full."""
    return schedule(folder, [f"step 0 3 r:0:3:0:{PREFILL}:3:0", "put 1 0 2 f32 1 2 3 4 5 6", *([f"drop 1 1 {n}"] if n else [])])


def test_what_each_run_dropped(check, tmp_path):
    run, other = dropping(tmp_path / "run", 0), dropping(tmp_path / "other", 7)
    said = as_json(run, other)
    ours, theirs = (next(site["account"] for site in sites if site["account"]["rows"]) for sites in (said["sites"], said["diff"]["accounts"]))
    check((ours["dropped"], theirs["dropped"], sum(theirs["reasons"].values())) == (0, 7, 7), "the accounts of both", (ours, theirs))
    check(said["diff"]["accounts"] == as_json(other)["sites"] and said["diff"]["total"] == as_json(other)["total"], "those of the other run are those that it has by itself")


def test_what_is_left_out_is_said(check, tmp_path):
    n = 6000
    runs = [schedule(tmp_path / name, [f"step 0 {n} long:0:{n}:0:{PREFILL}:{n}:0", *(f"wide {layer} 1 5" for layer in range(3))]) for name in ("x", "y")]
    out = tmp_path / "r.html"
    view(*runs, "-o", out, "--max-bytes", "256K")
    said = Report(out).said
    check(out.stat().st_size <= 256 << 10 and "in 1 of 1 maps of differences several positions share a cell" in said["left_out"], "how large it may be", (out.stat().st_size, said["left_out"]))
    said = as_json(*runs, "--max-bytes", "256K")["diff"]
    check(said["maps"][0]["per"] > 1 and set(said["maps"][0]["state"]) == {THERE} and said["equal"], "cells of several rows", said["maps"][0]["per"])


def test_an_other_run_that_is_hostile_or_missing(check, tmp_path):
    run, out = small(tmp_path / "run"), tmp_path / "r.html"
    other = hostile(tmp_path / "hostile")
    view(run, other, "-o", out, status=1)
    check(not any(c in Report(out).data for c in "<>&"), "no text of it ends the script")
    view(other, run, "-o", out, "--force", status=1)
    check(not any(c in Report(out).data for c in "<>&"), "nor as the first run's")
    done = view(run, tmp_path / "none", "-o", tmp_path / "new.html", status=2)
    check("none" in done.stderr and done.stderr.count("\n") == 1 and not (tmp_path / "new.html").exists(), "one sentence, and no report", done.stderr)
