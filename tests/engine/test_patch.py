# SPDX-License-Identifier: Apache-2.0
"""Activation patching in the serving engine: rows of a recorded run take the place of a request's own, as Hugging Face's with a hook before each block.

  table    the share of a logit difference that one token's row restores, layer by layer, is Hugging Face's within 0.01; --long: every layer
  all      every row of a prompt, each from its own position, in steps of a few tokens: what the engine computes from there on is the donor's
"""
import json

import pytest

import serving
from harness import DMI_DUMP, DMI_RUN, PRELOAD, STANDIN, dump_json

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
SAID = json.loads((serving.REFERENCE / "patch.json").read_text())
LAYERS = 30
# The stream that enters a block after the first: a sum that no memory holds before the norm has read it.
SPEC = serving.spec_text("float32") + """  - name: resid_in
    kernel: '^add_norm_mlp_f32$'
    pointer: arg[2]
    plus: arg[1]
    when: before
    dtype: f32
    dims: [{row: true, count: 'arg[4].i32'}, {count: 'arg[5].i32'}]
    layer: occ + 1
    capture: none
    write: {reach: [resid_pre, ln1, q, k, v]}
"""


def request(name, who):
    return {"id": name, "prompt_tokens": SAID["tokens"][who], "max_tokens": 1, "ignore_stop": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("patch"), layers=LAYERS)


@pytest.fixture(scope="module")
def donor(server):
    return server.serve("donor", [request("donor", "donor"), request("receiver", "receiver")], "--no-prefix-cache", spec=SPEC)


def rows_of_run(served):
    return serving.exported_rows(served.out, served.folder / "export")


def difference(rows, name):
    """The logit of one word less that of the other, at the prompt's last token."""
    logits = rows[name, "final_logits"][1][-1].astype(float)
    return logits[SAID["words"][0]] - logits[SAID["words"][1]]


def text(donor, vectors, entries):
    where = {"run": str(donor.run), "request": "donor", "site": "resid_pre"}
    return json.dumps({"editspec": 1, "vectors": {name: {**where, "tokens": tokens} for name, tokens in vectors.items()}, "edits": entries})


@pytest.mark.parametrize("mode, layers", [("graph", [18, 21, 24, 27]), pytest.param("piecewise", range(1, LAYERS), marks=pytest.mark.long)])
def test_the_table_is_hugging_faces(check, server, donor, mode, layers):
    cells = [(position, layer) for position in SAID["restored"] for layer in layers]
    entries = [{"name": f"p{p}-{n}", "site": "resid_in", "layers": str(n), "do": [{"patch": f"at{p}"}], "requests": f"p{p}-{n}", "tokens": f"{p}:{int(p) + 1}"}
               for p, n in cells]
    served = server.serve(mode, [request(entry["name"], "receiver") for entry in entries], "--no-prefix-cache", "--mode", mode, spec=SPEC,
                          edits=text(donor, {f"at{p}": p for p in SAID["restored"]}, entries))
    before, after = rows_of_run(donor), rows_of_run(served)
    ends = {who: difference(before, who) for who in SAID["difference"]}
    check(all(abs(ends[who] - SAID["difference"][who]) < 1e-3 for who in ends), "without patches the logits differ as Hugging Face's", ends)
    found = {(p, n): (difference(after, f"p{p}-{n}") - ends["receiver"]) / (ends["donor"] - ends["receiver"]) for p, n in cells}
    off = {cell: (share, SAID["restored"][cell[0]][cell[1]]) for cell, share in found.items()}
    wrong = {cell: both for cell, both in off.items() if not abs(both[0] - both[1]) < 0.01}
    check(not wrong, f"{len(off)} shares within 0.01 of Hugging Face's, the worst {max(abs(a - b) for a, b in off.values()):.1e}", wrong)


@pytest.mark.parametrize("mode", ["graph", pytest.param("piecewise", marks=pytest.mark.long), pytest.param("eager", marks=pytest.mark.long)])
def test_a_donor_that_is_served_beside_them(check, server, donor, mode):
    """What an edit saves in one request gives another one the same shares, in the same step or a later one; a request that came too early has none."""
    saves = [{"name": f"save{p}", "site": "resid_in", "do": [{"save": f"at{p}"}], "requests": "donor", "tokens": f"{p}:{int(p) + 1}"} for p in SAID["restored"]]
    cells = [(position, layer) for position in SAID["restored"] for layer in (18, 24)]
    takes = [{"name": f"p{p}-{n}", "site": "resid_in", "layers": str(n), "do": [{"patch": f"bank:at{p}"}], "requests": f"*p{p}-{n}", "tokens": f"{p}:{int(p) + 1}"}
             for p, n in cells]
    asked = [request("early-" + takes[0]["name"], "receiver"), dict(request("donor", "donor"), max_tokens=8), *(request(t["name"], "receiver") for t in takes)]
    served = server.serve(f"live-{mode}", asked, "--no-prefix-cache", "--mode", mode, "--batch", "2", spec=SPEC + "edits: {bank: 4M}\n",
                          edits=json.dumps({"editspec": 1, "edits": saves + takes}))
    before, after = rows_of_run(donor), rows_of_run(served)
    ends = {who: difference(before, who) for who in SAID["difference"]}
    found = {(p, n): (difference(after, f"p{p}-{n}") - ends["receiver"]) / (ends["donor"] - ends["receiver"]) for p, n in cells}
    wrong = {cell: (share, SAID["restored"][cell[0]][cell[1]]) for cell, share in found.items() if not abs(share - SAID["restored"][cell[0]][cell[1]]) < 0.01}
    check(not wrong, f"{len(found)} shares within 0.01 of Hugging Face's", wrong)
    sites = [key[1] for key in before if key[0] == "donor"]
    check(all((after["donor", key][1][:len(before["donor", key][1])] == before["donor", key][1]).all() for key in sites), "the donor is as it was, in bits")
    accounts = {e["edit"]: (e["due"], e["written"], e["missed_by_reason"]) for e in dump_json("stats", served.run, "--edits")["edit_accounts"]}
    check(all(accounts[t["name"]][:2] == (1, 1) for t in takes[1:]) and all(accounts[s["name"]][:2] == (29, 29) for s in saves), "each row is written", accounts)
    share = (difference(after, asked[0]["id"]) - ends["receiver"]) / (ends["donor"] - ends["receiver"])
    first = accounts[takes[0]["name"]]
    check(first[:2] in ((2, 1), (2, 2)) and (abs(share) < 1e-3) == (first[1] == 1), "a row without its source is missed, and as it was", (share, first))


def test_each_position_has_its_own_row(check, server, donor):
    """The receiver's prompt comes in steps of five tokens; after the patch its stream is the donor's."""
    n, layer = len(SAID["tokens"]["donor"]), 20
    entry = {"name": "all", "site": "resid_in", "layers": str(layer), "do": [{"patch": "rows"}], "requests": "patched", "tokens": f"0:{n}"}
    served = server.serve("all", [request("patched", "receiver"), request("receiver", "receiver")], "--no-prefix-cache", "--chunk", "5", spec=SPEC,
                          edits=text(donor, {"rows": f"0:{n}"}, [entry]))
    before, after = rows_of_run(donor), rows_of_run(served)
    sites = [f"{site}.{k}" for k in range(layer, LAYERS) for site in ("resid_pre", "q", "k", "v", "mlp_post")]
    off = {key: np.abs(after["patched", key][1] - before["donor", key][1]).max() / np.abs(before["donor", key][1]).max() for key in sites}
    check(max(off.values()) < 1e-5, f"{len(sites)} tensors are the donor's", max(off.items(), key=lambda item: item[1]))
    check(abs(difference(after, "patched") - difference(before, "donor")) < 1e-3, "and the logits", difference(after, "patched"))
    first = f"resid_pre.{layer - 1}"
    check((after["patched", first][1] == before["receiver", first][1]).all(), "before it the stream is the receiver's own, in bits")
    check(all((after["receiver", key][1] == before["receiver", key][1]).all() for key in sites), "and the other request's in bits")
