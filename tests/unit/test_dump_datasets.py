# SPDX-License-Identifier: Apache-2.0
"""dmi-dump export for trainers: loss masks from outside, one dataset of several runs."""
import fcntl
import json
import os
import subprocess

import numpy
import pytest
import safetensors.numpy

from harness import DMI_DUMP
from replay_kit import wait_for
from test_dump_formats import LAYERS, MAKE, STEPS, element, files, fixture_export, fixture_write, lines, read, wanted  # the fixtures are those of pytest

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
    check(json.loads(export(done.out.parent / "run", "vllm", "--loss-mask", path, "--tokens", "1:3", "--json").stdout)["without_loss"] == 1, "of these tokens none counts")
    done = export(done.out.parent / "run", "vllm", "--loss-mask", path, "--tokens", "1:4", "--layers", "0")
    check(mask_of(done.out / "a.safetensors") == [0, 0, 1] and mask_of(done.out / "b.safetensors") == [1, 0, 1], "of chosen tokens theirs")


def test_a_request_without_a_mask_is_left_out(write, export, masks, check):
    done = export(write(), "vllm", "--loss-mask", masks({"request": "b", "spans": []}), status=1)
    check(files(done.out) == ["b.safetensors"] and mask_of(done.out / "b.safetensors") == [0] * 4, "an empty mask is one")
    check("request 'a' is left out: " in done.stderr and "has no line for it" in done.stderr and
          done.stdout.endswith("samples: 1 written, 1 left out (1 without a loss mask); 1 of those written without a token in the loss\n"), "by name and count", (done.stdout, done.stderr))


def test_a_mask_of_no_request_is_said_once(write, export, masks, check):
    rows = [{"request": name, "spans": []} for name in ("a", "b", "bb", "zzzz")]
    done = export(write(), "vllm", "--loss-mask", masks(*rows))
    check(done.stderr.count("\n") == 1 and "2 requests" in done.stderr and "line 3: 'bb'" in done.stderr and "near it: b" in done.stderr, "with the nearest name", done.stderr)


def test_masks_go_by_the_ids_that_are_shown(write, export, masks, check):
    steps = [[("a", 0, 2)], [("a", 2, 1)], [("a", 0, 3)]]
    run = write(steps=steps, change=lambda line: line.replace("a:0:1:2:2:0:0", "a:0:1:2:2:0:2"))
    names = files(export(run, "vllm").out)
    assert names == ["a%7E2.safetensors", "a.safetensors"], names
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


# ---- one dataset of several runs


def two_runs(write):
    """requests a and b, then a and c; both name one a"""
    return write("one"), write("two", steps=[[("a", 0, 5), ("c", 0, 2)], [("c", 2, 1), ("a", 5, 2)]])


def uuid_of(run):
    done = subprocess.run([DMI_DUMP, "list", run, "--json"], stdout=subprocess.PIPE, check=True, timeout=60)
    return json.loads(done.stdout)["uuid"]


def export_to(out, *words, status=0):
    done = subprocess.run([DMI_DUMP, "export", "-f", "vllm", "-o", out, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def samples_of(out):
    """[(run, request)] of the index, each checked against its file; all files are in it"""
    index = json.loads((out / "index.json").read_text(encoding="utf-8"))
    assert sorted(p.name for p in out.iterdir()) == sorted(["index.json", *(s["file"] for s in index["samples"])])
    for number, sample in enumerate(index["samples"]):
        hidden, ids, _, metadata = read(out / sample["file"])
        assert sample["sample"] == number and (metadata["run"], metadata["request"]) == (sample["run"], sample["request"])
        assert len(ids) == len(hidden) == sample["tokens"]
        name = sample["request"]
        assert hidden.tolist() == wanted(name, range(len(ids)), (*LAYERS, 9)) and ids.tolist() == [-100 * ord(name) - p for p in range(len(ids))]
    return [(s["run"], s["request"]) for s in index["samples"]]


def test_one_dataset_of_several_runs(write, check, tmp_path):
    one, two = two_runs(write)
    out, all_of_it = tmp_path / "out", [(uuid_of(one), "a"), (uuid_of(one), "b"), (uuid_of(two), "a"), (uuid_of(two), "c")]
    done = export_to(out, one, two)
    check(samples_of(out) == all_of_it, "samples are numbered through", samples_of(out))
    check(done.stdout.splitlines()[-1] == "samples: 4 written, 0 left out" and "20 tensors" in done.stdout, "and summed once", done.stdout)
    index = json.loads((out / "index.json").read_text(encoding="utf-8"))
    check({key: value for key, value in index.items() if key != "samples"} == {
        "format": "vllm", "sites": ["resid_pre"], "layers": ["resid_pre.0", "resid_pre.1", "resid_pre.3", "resid_final"], "dtype": "bf16", "width": 5,
        "tokens": "all", "loss_mask": False}, "what all of them are", index)
    done = export_to(tmp_path / "json", one, two, "--json")
    check(json.loads(done.stdout)["samples"] == 4 and json.loads(done.stdout)["tensors"] == 20, "one document", done.stdout)


def test_a_dataset_goes_on(write, check, tmp_path):
    one, two = two_runs(write)
    out = tmp_path / "out"
    export_to(out, one, "--append")
    before = {p.name: p.stat().st_mtime_ns for p in out.glob("*.safetensors")}
    done = export_to(out, one, two, "--append")
    check("samples: 2 written, 2 there already, 0 left out\n" in done.stdout and len(samples_of(out)) == 4, "what is there already stays", done.stdout)
    again = export_to(out, two, one, "--append", "--json")
    check(json.loads(again.stdout)["samples"] == 0 and json.loads(again.stdout)["there_already"] == 4 and len(samples_of(out)) == 4, "a second call adds nothing", again.stdout)
    check({name: (out / name).stat().st_mtime_ns for name in before} == before, "nor touches it")
    check(sorted(p.name for p in tmp_path.iterdir()) == ["one", "out", "two"], "nothing else stays")


def test_a_request_is_of_one_of_the_runs(write, check, tmp_path):
    one, two = two_runs(write)
    out = tmp_path / "out"
    done = export_to(out, one, two, "--request", "c", "--request", "b")
    check(samples_of(out) == [(uuid_of(one), "b"), (uuid_of(two), "c")] and done.stderr == "", "each from the run that has it", done.stderr)
    done = export_to(tmp_path / "only", one, two, "--request", "c")
    check(samples_of(tmp_path / "only") == [(uuid_of(two), "c")] and done.stdout.endswith("samples: 1 written, 0 left out\n"), "a run may have none", done.stdout)
    done = export_to(tmp_path / "none", one, two, "--request", "c", "--request", "zz", status=1)
    check("no run has the request 'zz'" in done.stderr and samples_of(tmp_path / "none") == [(uuid_of(two), "c")], "what none has is said once", done.stderr)
    done = export_to(tmp_path / "site", one, two, "--site", "mlp_out", status=2)
    check("mlp_out" in done.stderr and not (tmp_path / "site").exists(), "a site is of each", done.stderr)


def test_a_killed_export_goes_on(write, check, tmp_path):
    """The index is there before the files: what it names and is not there was on its way at the kill."""
    one, two = two_runs(write)
    out, want = tmp_path / "out", None
    export_to(out, one, two)
    want = sorted(samples_of(out))
    for name in ("a~2.safetensors", "b.safetensors"):
        (out / name).unlink()
    done = export_to(out, one, two, "--append")
    check("samples: 2 written, 2 there already, 0 left out\n" in done.stdout and sorted(samples_of(out)) == want, "what lacks is written", done.stdout)


def test_requests_that_grew_are_named(write, check, tmp_path):
    whole, out = write("whole"), tmp_path / "out"
    export_to(out, whole, "--append")
    index = json.loads((out / "index.json").read_text(encoding="utf-8"))
    index["samples"][0]["tokens"] = 4
    (out / "index.json").write_text(json.dumps(index), encoding="utf-8")
    done = export_to(out, whole, "--append", status=1)
    check("request 'a' is left out: the dataset has it with 4 tokens, and there are 6 by now" in done.stderr and
          done.stdout.endswith("samples: 0 written, 1 there already, 1 left out (1 that grew after they were written)\n"), "by name", (done.stdout, done.stderr))


def test_a_dataset_waits_for_requests_that_still_run(write, check, tmp_path):
    """A call beside the run that is written takes what has ended; the next one takes the rest."""
    run, out = tmp_path / "grows", tmp_path / "out"
    with subprocess.Popen([MAKE, run, "job", "0", "1", "0", "1", "hidden"], stdin=subprocess.PIPE, text=True) as process:
        for line in lines():
            print(f"end b 1\n{line}" if line.startswith("step 2 ") else line, file=process.stdin, flush=True)
        wait_for(lambda: subprocess.run([DMI_DUMP, "list", run, "--requests"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60).stdout.count("finished") == 1)
        done = export_to(out, run, "--append", status=1)
        check("request 'a' is left out: it still runs" in done.stderr and
              done.stdout.endswith("samples: 1 written, 0 there already, 1 left out (1 that still run)\n"), "what still runs is named", (done.stdout, done.stderr))
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    done = export_to(out, run, "--append")
    check("samples: 1 written, 1 there already, 0 left out\n" in done.stdout and sorted(samples_of(out)) == [(uuid_of(run), "a"), (uuid_of(run), "b")], "and comes once it has ended",
          done.stdout)


OTHERS = {
    "layers": ({}, ["--layers", "0,1"], '"layers"'),
    "a site": ({"others": [f"put 7 {layer} 5 bf16 " + " ".join("1" * 35) for layer in LAYERS]}, ["--tokens", "0:1"], '"tokens"'),
    "an element type": ({"dtype": "f32"}, [], '"dtype" "bf16", and these have "f32"'),
    "a loss mask": ({}, ["--loss-mask", "masks"], '"loss_mask"'),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_samples_are_refused(write, masks, check, tmp_path, name):
    how, words, said = OTHERS[name]
    out, mask = tmp_path / "out", masks({"request": "a", "spans": []}, {"request": "b", "spans": []})
    export_to(out, write("one"))
    before = (out / "index.json").read_text(encoding="utf-8")
    done = export_to(out, write("two", **({} if name == "a site" else how)), "--append", *[mask if word == "masks" else word for word in words], status=2)
    check(said in done.stderr and "another folder" in done.stderr, f"{name}: by name", done.stderr)
    check((out / "index.json").read_text(encoding="utf-8") == before and len(list(out.iterdir())) == 3, "and nothing changes")


def test_what_is_no_dataset_is_left_alone(write, export, check, tmp_path):
    one, two = two_runs(write)
    npy = export(one, "npy", out="npy").out
    done = export_to(npy, two, "--append", status=2)
    check("no dataset" in done.stderr and not list(npy.glob("*.safetensors")), "a folder of another format", done.stderr)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("x", encoding="utf-8")
    check("no dataset" in export_to(tmp_path / "mine", two, "--append", status=2).stderr, "or of others")
    (tmp_path / "mine" / "index.json").write_text('{"format": "vllm", "samples": [{"file": "../x"}]}', encoding="utf-8")
    check("no dataset" in export_to(tmp_path / "mine", two, "--append", status=2).stderr, "or that says what no export says")
    out = tmp_path / "out"
    export_to(out, one)
    (out / "a~2.safetensors").write_text("mine", encoding="utf-8")
    export_to(out, two, "--append")
    check((out / "a~2.safetensors").read_text(encoding="utf-8") == "mine" and (out / "a~3.safetensors").exists(), "a file that the index lacks stays", list(out.iterdir()))
    for words, said in ((["-f", "npz"], "several runs"), (["--append", "--force"], "--force"), ([tmp_path / "none"], "none")):
        done = export_to(tmp_path / "new", one, two, *words, status=2)
        check(said in done.stderr and not (tmp_path / "new").exists(), f"{words}", done.stderr)


def test_a_mask_is_of_one_request(write, masks, check, tmp_path):
    one, two = two_runs(write)
    path = masks(*({"request": name, "spans": [[0, 1]]} for name in "abcd"))
    done = export_to(tmp_path / "out", one, two, "--loss-mask", path, status=2)
    check("masks.jsonl:1: 'a' are two requests" in done.stderr and "--append" in done.stderr, "not of two runs'", done.stderr)
    other = write("other", steps=[[("c", 0, 3)]])
    done = export_to(tmp_path / "both", one, other, "--loss-mask", path)
    check(done.stderr.count("\n") == 1 and "1 request that is not" in done.stderr and "line 4: 'd'" in done.stderr and done.stdout.endswith("samples: 3 written, 0 left out\n"),
          "ids that no run has are said after the last", (done.stdout, done.stderr))


def test_two_exports_to_one_dataset_do_not_mix(write, check, tmp_path):
    one, two = two_runs(write)
    out = tmp_path / "out"
    export_to(out, one)
    fd = os.open(out, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = export_to(out, two, "--append", status=2)
    check("another export" in done.stderr and len(samples_of(out)) == 2, "one waits for nobody", done.stderr)
    os.close(fd)
    export_to(out, two, "--append")
    check(len(samples_of(out)) == 4, "and comes later")


# ---- several sites


def beside(line):
    """each layer of resid_pre is, 10 higher and each element 1 more, a layer of k_rot, too"""
    words = line.split()
    more = ["put", "10", str(int(words[2]) + 10), *words[3:5], *(str(int(word) + 1) for word in words[5:])] if line.startswith("put 5 ") else []
    return line + ("\n" + " ".join(more) if more else "")


def test_several_sites_are_stacked(write, export, check):
    run = write(change=beside)
    for words, layers in ((["--site", "k_rot", "--site", "resid_pre"], (10, 11, 13, 0, 1, 3, 9)), (["--site", "resid_pre", "--site", "k_rot", "--layers", "last"], (9, 13))):
        done = export(run, "vllm", *words)
        names = [f"k_rot.{layer}" if layer > 9 else f"resid_pre.{layer}" if layer < 9 else "resid_final" for layer in layers]
        for name, n in LENGTHS.items():
            hidden, _, _, metadata = read(done.out / f"{name}.safetensors")
            want = [[[element(name, p, layer % 10 if layer > 9 else layer, c) + (layer > 9) for c in range(5)] for layer in layers] for p in range(n)]
            check(hidden.tolist() == want and json.loads(metadata["layers"]) == names, f"{name}: one site after the other, each with its layers", hidden)
        index = json.loads((done.out / "index.json").read_text(encoding="utf-8"))
        check(index["layers"] == names and index["sites"] == words[1:4:2], "and the index says which", index)


def test_several_sites_that_do_not_fit(write, export, check):
    run = write(change=beside)
    gap = write("gap", change=beside, steps=[[("a", 0, 2)], [("b", 0, 2)]], lacking={(1, 1)})
    done = export(gap, "vllm", "--site", "resid_pre", "--site", "k_rot", "--layers", "0-12", status=1)
    check("request 'b' is left out: resid_pre.1 is not there" in done.stderr, "what lacks is named with its site", done.stderr)
    for words, said, status in ((["--site", "resid_pre", "--site", "resid_pre"], "named twice", 2), (["--site", "resid_pre", "--site", "mlp_out"], "'mlp_out'", 2),
                                (["--site", "resid_pre", "--site", "k_rot", "--layers", "12"], "12", 2)):
        done = export(run, "vllm", *words, status=status)
        check(said in done.stderr and not done.out.exists(), f"{words}", done.stderr)
    check("--site" in export(run, "vllm-hook", "--site", "q", "--site", "q_rot", status=2).stderr, "a layout of one site says so")
    other = write("other", others=[f"put 10 2 1 bf16 {' '.join('1' * 7)}"], steps=[[("a", 0, 6)]])
    done = export(other, "vllm", "--site", "resid_pre", "--site", "k_rot", status=1)
    check("k_rot.2 has another element type or width" in done.stderr, "nor what is of another width", done.stderr)


# ---- tokens relative to the response


WINDOWS = {  # positions of a and of b, as the index says it
    "response": ((4, 5), (3,), "response"), "response[0:1]": ((4,), (3,), "response[0:1]"), "response[-1]": ((5,), (3,), "response[-1:]"),
    "response[:16]": ((4, 5), (3,), "response[0:16]"), "prompt[-2:]": ((2, 3), (1, 2), "prompt[-2:]"), "prompt[0]": ((0,), (0,), "prompt[0:1]"),
    "generated[0:-1]": ((4,), None, "response[0:-1]"), "response[1:9]": ((5,), None, "response[1:9]"), "prompt[:-3]": ((0,), None, "prompt[0:-3]")}


@pytest.mark.parametrize("tokens", WINDOWS)
def test_tokens_relative_to_the_response(write, export, check, tokens):
    """a: four tokens of its prompt and two generated; b: three and one"""
    run, wants, said = write(), dict(zip("ab", WINDOWS[tokens])), WINDOWS[tokens][2]
    lacks = [name for name, positions in wants.items() if positions is None]
    done = export(run, "vllm", "--tokens", tokens, status=1 if lacks else 0)
    for name, positions in wants.items():
        if positions is None:
            check(f"request '{name}' is left out: none of its tokens is in {said}\n" in done.stderr and "1 without the tokens that are asked for" in done.stdout,
                  "what has none is named", (done.stdout, done.stderr))
            continue
        hidden, ids, _, metadata = read(done.out / f"{name}.safetensors")
        check(ids.tolist() == [-100 * ord(name) - p for p in positions] and hidden.tolist() == wanted(name, positions, (*LAYERS, 9)), f"{name}: these", ids)
        check(json.loads(metadata["positions"]) == [[positions[0], len(positions)]], "positions are those of the request", metadata)
    check(files(done.out) == [f"{name}.safetensors" for name in "ab" if wants[name]] and json.loads((done.out / "index.json").read_text())["tokens"] == said,
          "and the index says so")
    done = export(run, "npy", "--tokens", tokens, status=1 if lacks else 0)
    check(numpy.load(done.out / "a%2Fresid_pre.1.npy").shape[0] == len(wants["a"]) and done.stderr.count("is left out") == len(lacks), "in every format", done.stderr)


def test_a_request_whose_generation_begins_nobody_knows_where_is_named(write, export, check):
    run = write(steps=[[("a", 0, 4), ("b", 0, 2)], [("b", 2, 1)]])
    for form in ("vllm", "safetensors"):
        done = export(run, form, "--tokens", "response[0:4]", status=1)
        check("request 'a' is left out: it is not known where its generation begins" in done.stderr and "'b'" not in done.stderr, f"{form}: by name", done.stderr)
    alone = write("alone", steps=[[("a", 0, 4)]])
    done = export(alone, "vllm", "--tokens", "response", status=1, out="none")
    check("request 'a' is left out: it is not known" in done.stderr and "samples: 0 written, 1 left out (1 whose generation begins at an unknown token)" in done.stdout,
          "also where there is no other", (done.stdout, done.stderr))
    said = write("said", steps=[[("a", 0, 4)], [("a", 4, 1)]], change=lambda line: line.replace("a:0:4:0:1:0:0", "a:0:4:0:1:2:0"))
    check(read(export(said, "vllm", "--tokens", "response[:2]", out="said_out").out / "a.safetensors")[1].tolist() == [-9702, -9703], "what the engine says counts")


def test_every_command_takes_windows(write, check, tmp_path):
    run = write()
    shown = json.loads(subprocess.run([DMI_DUMP, "show", "resid_pre.0", run, "--tokens", "response[-1]", "--json"], stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    check([(row["tensor"][0], row["position"]) for row in shown] == [("a", 5), ("b", 3)], "show", shown)
    done = subprocess.run([DMI_DUMP, "list", run, "--records", "--site", "resid_final", "--tokens", "prompt[:1]"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    check(done.stdout.count("resid_final") == 1, "list: the records with rows of them", done.stdout)
    out = tmp_path / "stream.jsonl"
    done = subprocess.run([DMI_DUMP.parent / "dmi-replay", run, "--to", f"file:{out}", "--format", "jsonl", "--site", "resid_final", "--tokens", "response[0:1]"],
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    check("replayed 1 record, 2 rows" in done.stdout, "a replay", done.stdout)
