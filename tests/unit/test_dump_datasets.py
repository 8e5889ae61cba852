# SPDX-License-Identifier: Apache-2.0
"""dmi-dump export for trainers: loss masks from outside."""
import json

import numpy
import pytest
import safetensors.numpy

from harness import DMI_DUMP
from test_dump_formats import LAYERS, MAKE, STEPS, fixture_export, fixture_write, read, wanted  # the fixtures are those of pytest

pytestmark = pytest.mark.built(DMI_DUMP, MAKE)
assert fixture_export and fixture_write
LENGTHS = {"a": 6, "b": 4}


def mask_of(path):
    with safetensors.safe_open(path, "np") as file:
        found = file.get_tensor("loss_mask")
        assert found.dtype == numpy.int64 and file.get_tensor("token_ids").shape == found.shape
    return found.tolist()


@pytest.fixture(name="masks")
def fixture_masks(tmp_path):
    def masks(*lines):
        path = tmp_path / "masks.jsonl"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path
    return masks


def test_a_loss_mask_from_outside(write, export, masks, check):
    path = masks({"request": "b", "mask": [0, 1, 0, 1]}, "\n", {"request": "a", "spans": [[3, 5], [0, 1], [4, 6], [2, 2]], "note": "ours"})
    done = export(write(), "vllm", "--loss-mask", path)
    check(mask_of(done.out / "a.safetensors") == [1, 0, 0, 1, 1, 1] and mask_of(done.out / "b.safetensors") == [0, 1, 0, 1], "spans and lists", done.out)
    hidden, ids, _, _ = read(done.out / "a.safetensors", more=["loss_mask"])
    check(hidden.tolist() == wanted("a", range(6), (*LAYERS, 9)) and ids.tolist() == [-100 * ord("a") - p for p in range(6)], "beside what was there before")
    check(done.stderr == "" and done.stdout.endswith("samples: 2 written, 0 left out\n"), "nothing else is said", (done.stdout, done.stderr))
    done = export(done.out.parent / "run", "vllm", "--loss-mask", path, "--tokens", "1:4", "--layers", "0")
    check(mask_of(done.out / "a.safetensors") == [0, 0, 1] and mask_of(done.out / "b.safetensors") == [1, 0, 1], "of chosen tokens theirs")


def test_a_request_without_a_mask_is_left_out(write, export, masks, check):
    done = export(write(), "vllm", "--loss-mask", masks({"request": "b", "spans": []}), status=1)
    check([p.name for p in done.out.iterdir()] == ["b.safetensors"] and mask_of(done.out / "b.safetensors") == [0] * 4, "an empty mask is one")
    check("request 'a' is left out: " in done.stderr and "has no line for it" in done.stderr and
          done.stdout.endswith("samples: 1 written, 1 left out (1 without a loss mask)\n"), "by name and count", (done.stdout, done.stderr))


def test_a_mask_of_no_request_is_said_once(write, export, masks, check):
    rows = [{"request": name, "spans": []} for name in ("a", "b", "bb", "zzzz")]
    done = export(write(), "vllm", "--loss-mask", masks(*rows))
    check(done.stderr.count("\n") == 1 and "2 requests" in done.stderr and "line 3: 'bb'" in done.stderr and "nearest: b" in done.stderr, "with the nearest name", done.stderr)


def test_masks_go_by_the_ids_that_are_shown(write, export, masks, check):
    steps = [[("a", 0, 2)], [("a", 2, 1)], [("a", 0, 3)]]
    run = write(steps=steps, change=lambda line: line.replace("a:0:1:2:2:0:0", "a:0:1:2:2:0:2"))
    names = [p.name for p in export(run, "vllm").out.iterdir()]
    assert sorted(names) == ["a%7E2.safetensors", "a.safetensors"], names
    done = export(run, "vllm", "--loss-mask", masks({"request": "a~2", "mask": [0, 1, 1]}, {"request": "a", "mask": [1, 0, 0]}))
    check(mask_of(done.out / "a%7E2.safetensors") == [0, 1, 1] and mask_of(done.out / "a.safetensors") == [1, 0, 0], "the second of a name by ID~2")


WRONG = {
    "no JSON": ('{"request": "a", "spans": [}\n', "no JSON"),
    "no object": ("[1]\n", "an object"),
    "no request": ('{"spans": []}\n', '"request"'),
    "an id that is no string": ('{"request": 3, "spans": []}\n', '"request"'),
    "neither": ('{"request": "a"}\n', '"spans" or "mask"'),
    "both": ('{"request": "a", "spans": [], "mask": [0, 0, 0, 0, 0, 0]}\n', '"spans" or "mask"'),
    "an id twice": ('{"request": "b", "spans": []}\n', "has a line already, line 1"),
    "a short mask": ('{"request": "a", "mask": [0, 1, 1]}\n', "3 entries, and 6 tokens"),
    "a long mask": ('{"request": "a", "mask": [0, 1, 1, 1, 1, 1, 1]}\n', "7 entries, and 6 tokens"),
    "a mask of other numbers": ('{"request": "a", "mask": [0, 1, 1, 1, 1, 0.5]}\n', "neither 0 nor 1"),
    "a mask that is no list": ('{"request": "a", "mask": 1}\n', "neither 0 nor 1"),
    "a span beyond the end": ('{"request": "a", "spans": [[0, 2], [4, 7]]}\n', "[4, 7]"),
    "a span before the beginning": ('{"request": "a", "spans": [[-1, 2]]}\n', "[-1, 2]"),
    "a span backwards": ('{"request": "a", "spans": [[3, 2]]}\n', "[3, 2]"),
    "a span of three": ('{"request": "a", "spans": [[1, 2, 3]]}\n', "[1, 2, 3]"),
    "a span of words": ('{"request": "a", "spans": [["0", 2]]}\n', '["0", 2]'),
    "a key twice": ('{"request": "a", "spans": [], "spans": [[0, 1]]}\n', "duplicate"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_an_error(write, export, masks, check, name):
    line, said = WRONG[name]
    run, first = write(steps=STEPS, layers=(0,)), {"request": "b", "spans": []}
    done = export(run, "vllm", "--loss-mask", masks(first, line), status=2)
    check("masks.jsonl:2: " in done.stderr and said in done.stderr and not done.out.exists(), f"{name}: file, line, mend", done.stderr)
    if name == "no JSON":
        done = export(run, "vllm", "--loss-mask", run / "none.jsonl", status=2)
        check("none.jsonl" in done.stderr and not done.out.exists(), "a file that is not there", done.stderr)
        done = export(run, "npy", "--loss-mask", masks(first), status=2)
        check("--loss-mask" in done.stderr and "vllm" in done.stderr, "a format that has none", done.stderr)
