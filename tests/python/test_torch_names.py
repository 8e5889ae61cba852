# SPDX-License-Identifier: Apache-2.0
"""dmi.torch where PyTorch is not installed: names, groups and layers; the struct of dmi_tap(). The rest: tests/engine/test_attach.py."""
import importlib.util
import re
import sys

import pytest

import dmi.torch
from dmi.torch import families, names
from harness import BUILD, ROOT, environment, run

TAP_LOG = BUILD / "tests" / "engine" / "libtap_log.so"
SEND = """
import dmi.taps as library
print(library.loaded())
print(library.send("q.rot", 0x1000, 0x20, library.DTYPES["bfloat16"], (2, 5, 4, 8), (160, 32, 8, 1), 2, 0b11, 3, 12))
print(library.send("embed", 0xffff000000000000, 0, library.DTYPES["int64"], (7,), (-2,), 8, 0b1, -1, 0))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch():
    dmi.torch.tap(object(), "q", 3)
    assert dmi.torch.family_of(object()) is None
    with pytest.raises(ImportError, match="needs PyTorch"):
        dmi.torch.attach(object())
    assert "torch" not in sys.modules


@pytest.mark.built(TAP_LOG)
def test_struct():
    said = run([sys.executable, "-u", "-c", SEND], env=environment(LD_PRELOAD=TAP_LOG, PYTHONPATH=ROOT / "python")).stdout.splitlines()
    assert said == [
        "True", "120 1 q.rot 1000 20 layer 3 of 12 dtype 3 rows 3 flags 0 2/320 5/64 4/16 8/2", "7",
        "120 1 embed ffff000000000000 0 layer -1 of 0 dtype 8 rows 1 flags 0 7/-16", "7"]
    assert run([sys.executable, "-c", SEND.splitlines()[1] + "\nprint(library.loaded())"],
               env=environment(PYTHONPATH=ROOT / "python")).stdout == "False\n"


@pytest.mark.parametrize("text, layers", [
    (None, range(12)), ("3,7-9,last", (3, 7, 8, 9, 11)), ("2,middle,last-2", (2, 6, 9)), ("0", (0,)), (" 4 , 5 ", (4, 5)), (7, (7,)),
    ([1, 3], (1, 3)), ("last-2-last", (9, 10, 11)), (0, (0,))])
def test_layers(text, layers):
    assert names.parse_layers(text, 12) == set(layers)


@pytest.mark.parametrize("text, complaint", [
    ("12", "the model has 12, 0 to 11"), ("5-3", "5-3"), ("last-12", "0 to 11"), ("first", "a number, a range"), ("", "a number, a range"), ([], "no layers"), ("3:5", "is written 3-4"), (":", "is written 0-last"),
    ("-1", "a number, a range"), ("3;4", "a number, a range"), ("1-2-3", "a number, a range")])
def test_wrong_layers(text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        names.parse_layers(text, 12)


@pytest.mark.parametrize("text, wanted", [
    ("q", [(("q",), None)]),
    ("resid_*, embed", [(("resid_pre", "resid_mid", "resid_post", "resid_final"), None), (("embed",), None)]),
    (["q,k", "v"], [(("q",), None), (("k",), None), (("v",), None)]),
    ("logits", [(("final_logits",), None)]),
    ("eagle3", [(("resid_pre",), "2,middle,last-2")]),
    ("all", [(names.NAMES, None)]),
    ("blocks.3.hook_resid_pre", [(("resid_pre",), "3")]),
    ("blocks.{i}.attn.hook_rot_q,blocks.*.mlp.hook_post", [(("q_rot",), None), (("mlp_post",), None)]),
    ("hook_embed", [(("embed",), None)]),
])
def test_sites(text, wanted):
    assert [(wish.names, wish.layers) for wish in names.parse_sites(text)] == wanted


def test_gradients():
    assert [wish.names for wish in names.parse_sites("q, gradients,k")] == [("q",), ("k",)]
    assert names.asks_gradients("q, gradients,k") and names.asks_gradients(["q", "gradients"]) and not names.asks_gradients("q,k")


def test_modules():
    assert names.parse_sites("module:model.layers.*.mlp:in")[0].module == ("model.layers.*.mlp", "in")


@pytest.mark.parametrize("text, complaint", [
    ("gradients", "beside gradients, as residuals,gradients"), ("q.grad", "as q,gradients"),
    ("resid_per", "near it: resid_pre"), ("residual", "residuals"), ("wwww", "there are: resid_pre, ln1"), ("zz*", "nothing is called"),
    ("module:model.norm", "module:PATTERN:in"), ("module:model.norm:output", "module:PATTERN:in"), (" , ", "no sites"),
    ("pattern", "q_rot k_rot^T"), ("blocks.2.attn.hook_attn_scores", "dmi.torch.tap(scores, 'attn_scores', layer)"), ("q,pattern", "keep no scores"),
    ("blocks.3.hook_resid_per", "hook_resid_pre"), ("blocks.3.ln1.hook_normalized", "nothing is called")])
def test_wrong_sites(text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        names.parse_sites(text)


def test_names_that_nothing_keeps():
    """docs/taps.md has them for engines that tap them, and says that attach() does not."""
    page = (ROOT / "docs" / "taps.md").read_text()
    listed = [name.strip() for row in table(page, "name") for name in row[0].split(",")]
    assert set(listed) == set(names.NAMES) | set(names.NOT_KEPT)
    assert "`attn_scores` and `pattern`" in page.partition("# attach:")[2]


def test_groups_are_those_of_dmi_run():
    text = (ROOT / "policy" / "tap_names.c").read_text()
    there = {group: (taps, layers or None) for group, taps, layers in re.findall(r'\{ "(\w+)", "([\w,*]+)", (?:NULL|"([\w,-]+)") \}', text)}
    assert there == names.PRESETS


def test_places_are_those_of_dmi_run():
    text = (ROOT / "policy" / "tap_names.c").read_text().partition("#define TAP_NAMES")[2].partition("/* clang-format on */")[0]
    assert tuple(re.findall(r"PLACE\((\w+)\)", text)) == names.WRITABLE


def test_groups_name_what_exists():
    for group, (text, layers) in names.PRESETS.items():
        assert names.parse_sites(group)[0].names, group
        assert layers is None or names.parse_layers(layers, 32) == {2, 16, 29}
    assert set(names.LENS.values()) <= set(names.NAMES)


def table(page, title):
    """The rows of a page's table whose first column has this title; cells without code quotes."""
    lines = page.partition(f"| {title} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_page():
    """docs/taps.md lists every site once, and what each family lacks."""
    page = (ROOT / "docs" / "taps.md").read_text()
    sites = [row[0].strip("`") for row in table(page, "site")]
    assert sorted(sites) == sorted(names.NAMES) == sorted(families.CONVENTIONS)
    seen = []
    for named, lacks, _ in table(page, "family (`model_type`)"):
        for kind in re.findall(r"`(\w+)`", named):
            config = type("Config", (), {"model_type": kind, "use_parallel_residual": "parallel" in named})
            family = families.family_of_config(config)
            assert set(re.findall(r"`(\w+)`", lacks)) == set(family.lacks), kind
            assert set(family.points) | set(family.lacks) == set(names.PER_LAYER), kind
            seen.append(kind)
    assert set(seen) == set(families.known())


def test_options_of_attach_are_joined(monkeypatch):
    from dmi.torch import script
    got = {}
    monkeypatch.setattr(script, "watch", lambda **options: got.update(options))
    monkeypatch.setattr(script.runpy, "run_path", lambda *_, **__: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", [])
    script.main(["--sites", "q", "--layers", "0", "--sites", "k,v", "--layers", "5-7", "x.py", "--layers", "9"])
    assert got == {"sites": "q,k,v", "layers": "0,5-7"} and sys.argv == ["x.py", "--layers", "9"]
