# SPDX-License-Identifier: Apache-2.0
"""--fill-cached: rows of tokens that a prefix cache had, from a request that computed them with the same tokens from position 0 on.

A row says whose it is: its one element is 100 * the request's number + the position, so that a row of a wrong request, or of a wrong
position, shows.
"""
import json
import subprocess

import pytest

import dmi
from harness import BUILD, DMI_DUMP

MAKE = BUILD / "tests" / "unit" / "make_schedule"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE, BUILD / "read" / "libdmi_read.so.1")
HEAD, IDS, PRE, MID, MID_AGAIN = 3, 4, 5, 7, 11


class Span:
    """Of a request: tokens from @at on. @cached: tokens before it; @said: the ids that the engine said of them, None: none."""

    def __init__(self, name, tokens, at=0, n=None, cached=0, said=..., flags=0, phase=1):
        self.name, self.tokens, self.at, self.cached, self.flags, self.phase = name, tokens, at, cached, flags, phase
        self.n = len(tokens) - at if n is None else n
        self.said = tokens[at - cached:at] if said is ... else said

    def words(self, row):
        ids = "" if self.said is None else "=" + ",".join(map(str, self.said))
        return f"{self.name}:{row}:{self.n}:{self.at}:{self.phase}:{len(self.tokens)}:{self.flags}" + (f":{self.cached}{ids}" if self.cached else "")


def lines(steps, lacking=(), site=PRE, dtype="bf16", ids=True, before=()):
    """@steps: lists of Span, or a line as it is; @lacking: steps without a record of the site."""
    yield from before
    number = 0
    for step in steps:
        if isinstance(step, str):
            yield step
            continue
        n = sum(span.n for span in step)
        rows, words = 0, []
        for span in step:
            words.append(span.words(rows))
            rows += span.n
        yield f"step {number} {n} {' '.join(words)}"
        if ids:
            yield f"put {IDS} -1 1 i32 " + " ".join(str(token) for span in step for token in span.tokens[span.at:span.at + span.n])
        if number not in lacking:
            yield f"put {site} 0 1 {dtype} " + " ".join(str(row(span.name, p)) for span in step for p in range(span.at, span.at + span.n))
        number += 1


def row(name, position):
    return 16 * (ord(name) - 97) + position  # below 256: exact in bf16


@pytest.fixture(name="make")
def fixture_make(tmp_path):
    def make(steps, name="run", kind="hidden", **how):
        text = "".join(f"{line}\n" for line in lines(steps, **how))
        done = subprocess.run([MAKE, tmp_path / name, "job", "0", "1", "0", "1", kind], input=text, text=True, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 0, done.stderr
        return tmp_path / name
    return make


A = [11, 12, 13, 14]
B = [*A, 15, 16]  # begins as A
D = [*B, 17]
OTHER = "are in no request with the same tokens"
SALT = [f'tags {{"cache_salt": "{salt}"}}' for salt in ("x", "y")]
SHARES = "flags 1"  # the engine says that it shares cached prefixes
ALSO = {"off": ', "off": true', "ignore": ', "cache": "ignore"', "live": ', "live": true', "": ""}


def change(also="", version=2):
    """An edit comes into force."""
    return f'change , "version": {version}, "edits": [{{"name": "e", "site": "resid_pre", "uid": 1, "hash": "0", "number": 0{ALSO[also]}}}]'


OF_EDITS = 'tags {"cache_salt": "mine/dmi-0123456789abcdef"}'
AB = [[Span("a", A)], [Span("b", B, 4, cached=4)]]
NONE = ({"b": "----bb"}, f"positions 0 to 3 {OTHER}")
CASES = {  # steps; what else; {request: whose row each of its positions has, - none}; what is said of the last one, if it is no sample
    "the request that computed them": ([[Span("a", A)], [Span("b", B, 4, cached=4)]], {}, {"b": "aaaabb"}, None),
    "the first of several": ([[Span("a", A)], [Span("b", A)], [Span("c", B, 4, cached=4)]], {}, {"c": "aaaacc"}, None),
    "the one that has records": ([[Span("a", A)], [Span("b", A)], [Span("c", B, 4, cached=4)]], {"lacking": {0}}, {"c": "bbbbcc"}, None),
    "a chain": ([[Span("a", A)], [Span("b", B, 4, cached=4)], [Span("d", D, 6, cached=6)]], {}, {"b": "aaaabb", "d": "aaaabbd"}, None),
    "the same step": ([[Span("a", A), Span("b", B, 4, cached=4)]], {}, {"b": "aaaabb"}, None),
    "not a later one": ([[Span("b", B, 4, cached=4)], [Span("a", A)]], {}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "not another first token": ([[Span("a", [99, *A[1:]])], [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "not another token within": ([[Span("a", [11, 99, 13, 14])], [Span("b", B, 4, cached=4)]], {}, {"b": "a---bb"}, f"positions 1 to 3 {OTHER}"),
    "not another last token": ([[Span("a", [11, 12, 13, 99])], [Span("b", B, 4, cached=4)]], {}, {"b": "aaa-bb"}, f"positions 3 to 3 {OTHER}"),
    "not a part elsewhere": ([[Span("a", [77, *A])], [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "a piece of each": ([[Span("a", A[:2])], [Span("c", A, 2, cached=2)], [Span("b", B, 4, cached=4)]], {}, {"b": "aaccbb"}, None),
    "ids that were not said": ([[Span("a", A)], [Span("b", B, 4, cached=4, said=None)]], {}, {"b": "----bb"}, "from position 0 on are not known"),
    "no ids at all": ([[Span("a", A)], [Span("b", B, 4, cached=4)]], {"ids": False}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "another salt": ([SALT[0], [Span("a", A)], SALT[1], [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "the same salt": ([SALT[0], [Span("a", A)], 'tags {"cache_salt": "x", "n": 1}', [Span("b", B, 4, cached=4)]], {}, {"b": "aaaabb"}, None),
    "a salt of one": ([[Span("a", A)], SALT[1], [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "another adapter": (['tags {"dmi.cache": {"lora": ["l", "/l"]}}', [Span("a", A)], 'tags {"n": 1}', [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"},
                        f"positions 0 to 3 {OTHER}"),
    "another data rank": (["dp 0 2", [Span("a", A)], "dp 1 2", [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"}, f"positions 0 to 3 {OTHER}"),
    "no beams": (['tags {"dmi.beams": 2}', [Span("a", A)], 'tags {"n": 1}', [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"},
                 f"positions 0 to 3 {OTHER}"),
    "attention that sees later tokens": ([[Span("a", A)], 'tags {"dmi.attention": "bidirectional"}', [Span("b", B, 4, cached=4)]], {}, {"b": "----bb"},
                                         "attention sees later tokens"),
    "a spec of such a model": ([[Span("a", A)], [Span("b", B, 4, cached=4)]], {"kind": "bidirectional"}, {"b": "----bb"}, "attention sees later tokens"),
    "rejected rows": ([[Span("a", A[:3])], [Span("a", A, 3, phase=3)], "accept a 1 0", [Span("b", B, 4, cached=4)]], {}, {"b": "aaa-bb"},
                      f"positions 3 to 3 {OTHER}"),
    "a request that was preempted itself": ([[Span("b", B, 0, 4)], [Span("b", B, 4, cached=4)]], {}, {"b": "bbbbbb"}, None),
    "edits, and requests without their salt": ([SHARES, change(), *AB], {}, {"b": "aaaabb"}, None),
    "edits, and an engine that may not share": ([change(), *AB], {}, *NONE),
    "edits, and a step that does not say it": ([SHARES, change(), AB[0], "flags 0", AB[1]], {}, *NONE),
    "an edit that ignores caches": ([SHARES, change("ignore"), *AB], {}, *NONE),
    "an edit that was one before": ([SHARES, change("ignore"), change(version=3), *AB], {}, *NONE),
    "an edit that is off": ([change("off"), *AB], {}, {"b": "aaaabb"}, None),
    "a salt of edits": ([SHARES, change(), OF_EDITS, *AB], {}, {"b": "aaaabb"}, None),
    "edits changed between the requests": ([SHARES, change(), OF_EDITS, AB[0], change(version=3), AB[1]], {}, *NONE),
    "an edit that changes within a request": ([SHARES, change("live"), OF_EDITS, *AB], {}, *NONE),
    "chunks of a prompt": ([[Span("a", A, 0, 2)], [Span("a", A, 2, 2)], [Span("b", B, 4, cached=4)]], {}, {"b": "aaaabb"}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_come_from(make, check, name):
    steps, how, wanted, fault = CASES[name]
    with dmi.open(make(steps, **how)) as run:
        before = {tensor.key: (tensor.positions, tensor.float32().ravel().tolist()) for tensor in run.values()}
        view = run.select(fill_cached=True)
        for request, owners in wanted.items():
            tensor = view[f"{request}/resid_pre.0"]
            want = [(p, row(owner, p), owner) for p, owner in enumerate(owners) if owner != "-"]
            got = list(zip(tensor.positions, tensor.float32().ravel().tolist(), [r.donor or request for r in tensor.rows()]))
            check(got == want, f"{request}: each position once, its row, and whose it is", got)
        said = view.sample_fault(view[f"{request}/resid_pre.0"])
        check(said is None if fault is None else said and fault in said[1], "a sample, or why it is none", said)
        check(before == {tensor.key: (tensor.positions, tensor.float32().ravel().tolist()) for tensor in run.values()}, "nothing stays filled")


def test_rows_of_joined_ranks(check, tmp_path):
    """Divided over two ranks: both parts are the donor's. And pipeline stages: the ids are on the first alone."""
    q, steps = 9, [[Span("a", A)], [Span("b", B, 4, cached=4)]]
    for rank in range(2):
        text = [line.replace(f"put {PRE} ", f"put {q} ").replace("bf16", "f32") for line in lines(steps)]
        text += [f"put {2} 1 1 i32 {rank} {rank}"]
        subprocess.run([MAKE, tmp_path / "tp", "job", str(rank), "2", "0", "1", "hidden"], input="".join(f"{x}\n" for x in text), text=True, check=True, timeout=60)
        text = [line for line in lines(steps) if line.startswith("step") or (f"put {PRE} " if rank else f"put {IDS} ") in line]
        subprocess.run([MAKE, tmp_path / "pp", "job", "0", "1", str(rank), "2", "hidden"], input="".join(f"{x}\n" for x in text), text=True, check=True, timeout=60)
    for name, site in (("tp", "q_rot"), ("pp", "resid_pre")):
        with dmi.open(tmp_path / name) as run:
            tensor = run.select(fill_cached=True)[f"b/{site}.0"]
            check(tensor.positions == [*range(6)] and tensor.donors == [(0, 4, "a")], f"{name}: all positions", (tensor.positions, tensor.donors))


def dump(*words, status=0):
    done = subprocess.run([DMI_DUMP, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


CHAIN = CASES["a chain"][0]
LEFT = [Span("e", [11, 12, 99, 98], 3, cached=3)]


def test_an_export_counts_and_names_them(make, check, tmp_path):
    run = make([*CHAIN, LEFT])
    done = dump("export", run, "-f", "vllm", "--fill-cached", "-o", tmp_path / "out", status=1)
    check(done.stdout.splitlines()[1:] == ["cached tokens of 'b' have rows of 'a'", "cached tokens of 'd' have rows of 'a', 'b'",
                                           "samples: 3 written (2 with rows of other requests), 1 left out (1 with a cached prefix)"], "lines", done.stdout)
    check("request 'e' is left out: token_ids lacks position 2, which a prefix cache had; positions 2 to 2 are in no request" in done.stderr,
          "why", done.stderr)
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(tmp_path / "out" / "d.safetensors", "numpy") as file:
        check(file.get_tensor("token_ids").tolist() == D, "all ids are there", file.get_tensor("token_ids"))
        check(json.loads(file.metadata()["filled"]) == {name: [[0, 4, "a"], [4, 2, "b"]] for name in ("token_ids", "resid_pre.0")},
              "the file names the donors", file.metadata())
    said = json.loads(dump("export", run, "-f", "jsonl", "--fill-cached", "-o", tmp_path / "x", "--request", "d", "--tokens", "3:5", "--json").stdout)
    check((said["filled"], said["filled_rows"]) == ({"d": ["a", "b"]}, 4), "JSON says it, of what was chosen", said)
    found = [(o["position"], o.get("donor")) for o in map(json.loads, (tmp_path / "x").read_text().splitlines()) if o["site"] == "resid_pre"]
    check(found == [(3, "a"), (4, "b")], "each line of a chosen window", found)
    done = dump("export", run, "--fill-cached", "-o", tmp_path / "y", status=1)
    check("e/resid_pre.0 lacks rows of cached tokens; positions 2 to 2 are in no request" in done.stderr, "a file of tensors says what it lacks", done.stderr)
    done = dump("export", run, "--fill-cached", "--tokens", "3:", "-o", tmp_path / "w")
    check(done.stderr == "", "but nothing that was not asked for", done.stderr)
    done = dump("export", run, "-f", "tensorrt-llm", "--fill-cached", "-o", tmp_path / "z", status=2)
    check("--fill-cached: format tensorrt-llm has records as they are" in done.stderr, "records as they are are not filled", done.stderr)


def test_one_dataset_of_several_runs_with_masks_and_windows(make, check, tmp_path):
    """Each run is filled from its own requests: f's cached tokens are c's, though a of the other run has the same."""
    safetensors, out = pytest.importorskip("safetensors"), tmp_path / "out"
    one, two = make(CHAIN[:2], "one"), make([[Span("c", A)], [Span("f", B, 4, cached=4)]], "two")
    (tmp_path / "masks").write_text("".join(json.dumps({"request": name, "spans": [[0, 3]] if name < "f" else []}) + "\n" for name in "abcf"), encoding="utf-8")
    words = ["-f", "vllm", "-o", out, "--append", "--tokens", "2:", "--loss-mask", tmp_path / "masks"]
    done = dump("export", one, *words, status=1)
    check(done.stdout.splitlines()[-1] == "samples: 1 written, 0 there already, 1 left out (1 with a cached prefix)", "b lacks what the cache had", done.stdout)
    done = dump("export", one, two, *words, "--fill-cached")
    check(done.stdout.splitlines()[1:] == [
        "cached tokens of 'b' have rows of 'a'", "cached tokens of 'f' have rows of 'c'",
        "samples: 3 written (2 with rows of other requests), 1 there already, 0 left out; 1 of those written without a token in the loss"],
          "what was left out is added, and all runs are summed", done.stdout)
    for name, donor, mask in (("b", "a", [1, 0, 0, 0]), ("f", "c", [0] * 4)):
        with safetensors.safe_open(out / f"{name}.safetensors", "numpy") as file:
            check((file.get_tensor("token_ids").tolist(), file.get_tensor("loss_mask").tolist()) == (B[2:], mask), "ids and mask of the window", name)
            check(json.loads(file.metadata()["filled"]) == {tensor: [[0, 2, donor]] for tensor in ("token_ids", "resid_pre.0")}, "a donor of its own run",
                  file.metadata())
    with dmi.open([one, two]) as runs:
        said = {request.id: request.tensors["resid_pre.0"].donors for request in runs.select(fill_cached=True).requests}
        check(said == {"a": [], "b": [(0, 4, "a")], "c": [], "f": [(0, 4, "c")]}, "as in Python", said)
    said = json.loads(dump("export", two, one, *words, "--fill-cached", "--json").stdout)
    check((said["samples"], said["samples_filled"], said["there_already"], said["filled"]) == (0, 0, 4, {}), "and nothing is filled twice", said)
    done = dump("export", one, two, "-f", "vllm", "-o", tmp_path / "f", "--request", "f", "--tokens", "response", "--fill-cached", status=1)
    check("none of its tokens is in response" in done.stderr, "a window of what was generated", done.stderr)


def test_rows_by_request_are_refused_by_name(check, tmp_path):
    text = "".join(f"{line}\n" for line in [*lines(CHAIN[:2]), f"put {HEAD} -1 1 f32 1 2"])
    subprocess.run([MAKE, tmp_path / "heads", "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
    said = "dmi-dump: --fill-cached takes no rows of the site head: they stand one a request\n"
    done = dump("export", tmp_path / "heads", "--fill-cached", "-o", tmp_path / "out")
    check(done.stderr == said, "that site alone, once", done.stderr)
    done = dump("export", tmp_path / "heads", "--fill-cached", "--site", "head", "-o", tmp_path / "alone", status=1)
    check(done.stderr == said, "and nothing was got where it is what was asked for", done.stderr)


def test_other_scales_are_no_donors(make, check):
    """Sites 7 and 11 have one name, and scales of 4 and 2."""
    steps = [[Span("a", A)], [Span("b", B, 4, cached=4)]]
    text = [line.replace(f"put {MID} ", f"put {MID_AGAIN} ") if i > 2 else line for i, line in enumerate(lines(steps, site=MID, dtype="f32"))]
    with dmi.open(make(text)) as run:
        tensor = run.select(fill_cached=True)["b/resid_mid.0"]
        check(tensor.positions == [4, 5] and OTHER in run.sample_fault(tensor)[1], "as their values are others", tensor.positions)


def test_a_recovered_run_is_filled_as_the_first(make, check, tmp_path):
    dump("recover", make(CHAIN), "-o", tmp_path / "new")
    dump("export", tmp_path / "new", "-f", "vllm", "--fill-cached", "-o", tmp_path / "out")


def test_many_requests_take_no_quadratic_time(make, check, tmp_path):
    """2,000 requests that share a prompt of 8 tokens: each is compared along its own tokens only."""
    shared = [5] * 8
    steps = [[Span("a", [*shared, 1])]]
    text = list(lines(steps))
    for i in range(1, 2000):
        text += [f"step {i} 1 r{i}:0:1:8:2:9:0:8={','.join(map(str, shared))}", f"put {IDS} -1 1 i32 {i}", f"put {PRE} 0 1 bf16 1"]
    done = subprocess.run([MAKE, tmp_path / "many", "job", "0", "1", "0", "1", "hidden"], input="".join(f"{line}\n" for line in text), text=True, timeout=60)
    assert done.returncode == 0
    said = json.loads(dump("export", tmp_path / "many", "-f", "vllm", "--fill-cached", "-o", tmp_path / "out", "--json").stdout)
    check((said["samples"], said["samples_filled"], said["filled_rows"]) == (2000, 1999, 1999 * 16), "all have the rows of the first", said["samples"])
