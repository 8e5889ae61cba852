# SPDX-License-Identifier: Apache-2.0
"""Vectors that are rows of a recorded run: what edits get of them, and what is said of those that are not there."""
import json
import subprocess

import pytest

from harness import BUILD, DMI_RUN
from test_dmi_dump import value
from test_edits_files import Files

MAKE_RUN = BUILD / "tests" / "unit" / "make_run"
pytestmark = pytest.mark.built(DMI_RUN, MAKE_RUN)
DONOR = {"run": "donor", "request": "france", "site": "q", "tokens": "2:4"}


@pytest.fixture
def files(tmp_path):
    """A run beside the edits, of whose request france positions 0 to 5 were captured, in two layers."""
    subprocess.run([MAKE_RUN, tmp_path / "donor"], check=True, stdout=subprocess.PIPE, timeout=60)
    return Files(tmp_path)


def patching(files, changes, tokens):
    """The kit, whose edits patch rows of DONOR with these changes, at these positions."""
    text = {"editspec": 1, "vectors": {"v": {**DONOR, **changes}}, "edits": [{"name": "e", "site": "m", "do": [{"patch": "v"}], "tokens": tokens}]}
    files.edits = lambda **_: ((files.folder / "edits.json").write_text(json.dumps(text)),
                               ["--spec", files.folder / "spec.yaml", "--edits", files.folder / "edits.json"])[1]
    return files


GOOD = {"positions": ({}, "0:2", [2, 3]), "one": ({"tokens": "5"}, "all", [5]), "all": ({"tokens": "0:6"}, "-8:-2", range(6))}


@pytest.mark.parametrize("name", GOOD)
def test_rows_of_a_run(files, name):
    changes, tokens, positions = GOOD[name]
    taken = patching(files, changes, tokens).taken()
    assert taken == {layer: [value(1, p, layer, i) for p in positions for i in range(16)] for layer in (0, 1)}, taken


def test_values_are_divided_by_the_scale(files):
    numbers, = patching(files, {"site": "logits", "tokens": "3"}, "all").taken().values()
    assert numbers == [value(1, 3, 0, i) for i in range(32)], numbers


REFUSED = {"no run": ({"run": "nowhere"}, "nowhere"), "no request": ({"request": "frances"}, "france"), "no site": ({"site": "qq"}, "qq"),
           "beyond the end": ({"tokens": "5:7"}, "not all of the positions were captured"), "far beyond": ({"tokens": "70:72"}, "at these positions"),
           "the end of a prompt that is not known": ({"tokens": "-2:"}, "at these positions"),
           "no numbers of an activation": ({"site": "ids"}, "another type than f32"), "rows of nobody": ({"site": "bias"}, "at these positions")}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_not_there(files, name):
    changes, said = REFUSED[name]
    lines = patching(files, changes, "0:2").refused()
    assert len(lines) == 1 and "edits.json:1:1: the vector \"v\"" in lines[0] and said in lines[0], lines

