# SPDX-License-Identifier: Apache-2.0
"""What dmi-run does with options, specs and environment."""
import os
import pathlib
import re
import shutil
import shlex
import signal
import stat
import subprocess
import sys
import time

import pytest

from harness import BUILD, DMI_RUN, ROOT, STANDIN

pytestmark = pytest.mark.built(DMI_RUN)
LINKED = BUILD / "tests" / "preload" / "driver_calls_link"  # linked against the driver by name
GOOD = """hookspec: 1
name: good
vars: {a: 1}
sites:
  - {name: q, kernel: k, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: a}]}
"""
UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
BAD = GOOD.replace("f32", "f33").replace("kernel", "kernal")


def any_library(folder, name="libdmi_preload.so"):
    """A shared library that does nothing to a program, under a name of ours."""
    for line in open("/proc/self/maps", encoding="ascii"):
        path = line.split()[-1]
        if "/libc.so" in path or "/libc-" in path:
            return shutil.copy(pathlib.Path(path).with_name("libm.so.6"), folder / name)
    raise FileNotFoundError("libm.so.6")


# What is said of every command here that starts no CUDA.
NOTHING = re.compile(r"dmi: nothing was written to /.*/[\w-]+: no process of the command has initialised CUDA, or tapped a tensor, with libdmi_preload.so loaded, "
                     "unless a line above says otherwise")


class Case:
    def __init__(self, folder, library):
        self.folder, self.library = folder, library

    def run(self, *args, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DMI_", "LD_"))}
        clean.update({"DMI_PRELOAD_PATH": str(self.library), **env})
        # only for a dmi-run built with AddressSanitizer, which wants to be the first library of all
        clean["ASAN_OPTIONS"] = "verify_asan_link_order=0"
        done = subprocess.run([DMI_RUN, *map(str, args)], cwd=self.folder, env=clean, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True)
                              if not NOTHING.fullmatch(line.strip()) and "no row was edited: no process" not in line)
        return done

    def environment(self, *args, **env):
        """(the command's environment, what dmi-run printed on stderr)"""
        done = self.run(*args, "--", "env", "-0", **env)
        return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry), done.stderr


@pytest.fixture
def case(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    return Case(tmp_path, any_library(tmp_path))


@pytest.fixture
def says(check):
    """says(what, (fact, what to print if it does not hold)...)"""
    return lambda what, *facts: check(all(fact for fact, _ in facts), what, [detail for fact, detail in facts if not fact])


def test_help_goes_to_stdout(case):
    done = case.run("--help")
    assert done.returncode == 0 and "--strict" in done.stdout, done


def test_version_is_printed(case):
    done = case.run("--version")
    assert done.returncode == 0 and done.stdout.startswith("dmi-run "), done


@pytest.mark.parametrize("args, part", [
    pytest.param(["--", "true"], "--spec FILE", id="no spec"),
    pytest.param(["--spec", "good.yaml"], "no command", id="no command"),
    pytest.param(["--spec", "good.yaml", "--check", "true"], "runs no command", id="--check with a command"),
    pytest.param(["--sepc", "good.yaml", "true"], "--sepc", id="an unknown option"),
    pytest.param(["--spec", "good.yaml", "--tap", "q", "true"], "expected one", id="a spec and taps"),
    pytest.param(["--layers", "1", "--trace", "true"], "--layers without", id="layers without taps and a spec"),
    pytest.param(["--layers", "1", "--spec", "good.yaml", "true"], "which no site that is captured has", id="layers of sites that have none"),
    pytest.param(["--preset", "residual", "true"], "residuals, attention", id="a preset that is none"),
    pytest.param(["--preset", "mlp", "--preset", "logits", "true"], "expected one", id="two presets"),
    pytest.param(["--strict", "--tap", "q", "--layers", "1:3", "true"], "'1:3' is written 1-2", id="layers as positions are written"),
    pytest.param(["--preset", "eagle3", "--layers", "1", "true"], "layers of its own", id="a preset with layers, and layers"),
    pytest.param(["--attach", "module:*:out", "true"], "--tap NAME", id="modules to attach, and no tap's name"),
    pytest.param(["--attach", "gradients", "true"], "of which sites?", id="gradients of nothing"),
    pytest.param(["--attach", "residuals,resid_pst", "true"], 'did you mean "resid_post"? Expected one of token_ids,embed,', id="a site to attach that no model has"),
    pytest.param(["--attach", "*_pst", "true"], "no model has a site of that name. Expected one of", id="a pattern that fits none"),
    pytest.param(["--attach", "pattern", "true"], "--attach pattern: no model has", id="what attention does not keep"),
    pytest.param(["--attach", "q,module:x", "true"], "--attach module:x: no model", id="a module without a side"),
    pytest.param(["--attach", "blocks.2.hook_resid_pre", "true"], "a group (residuals, attention,", id="a layer within a name"),
    pytest.param(["--write", "resid_*", "true"], "names of taps", id="a pattern of places"),
    pytest.param(["--model", "main", "--tap", "q", "true"], "--model without", id="a model, and none is attached"),
    pytest.param(["--write", "q", "--spec", "good.yaml", "true"], "--write", id="places beside a HookSpec"),
    pytest.param(["--tap", "resd_pre*", "--check"], "did you mean", id="a pattern of no tap, checked"),
    pytest.param(["--tap", "resd_pre*", "true"], "did you mean", id="a pattern of no tap"),
    pytest.param(["--tap", "a,b!", "true"], 'found "b!"', id="what is no name of a tap"),
    pytest.param(["--tap", "q", "--layers", "nosuch", "true"], "found no layer", id="layers that are none"),
    pytest.param(["--attach", "q", "--layers", "9-3", "true"], "found no layer", id="layers of models that are none"),
    pytest.param(["--write", "resid_pst", "true"], 'no model has a place of that name; did you mean "resid_post"? Expected some of embed,ln1,q,', id="a place that no model has"),
    pytest.param(["--attach", "q", "--write", "q,resid_pre", "true"], "--write resid_pre: no model has a place", id="a site that is no place"),
    pytest.param(["--steer", "v.npy", "--write", "nosuch", "--lenient", "true"], "--write nosuch: no model", id="a place to steer at that no model has"),
    pytest.param(["--spec", "good.yaml", "-D", "b=1", "true"], '"b=1"', id="a variable that the spec lacks"),
    pytest.param(["--spec", "good.yaml", "-D", "a=1", "-D", "a", "true"], "expected NAME=INTEGER", id="a variable without a value"),
    pytest.param(["--spec", "good.yaml", "--out", "good.yaml/out", "true"], "Not a directory", id="an unusable folder"),
    pytest.param(["--trace", "--out", "good.yaml", "true"], "Not a directory", id="a file as the folder"),
    pytest.param(["--tap", "q", "--log", "none/log", "true"], "--log none/log: No such file", id="a log that cannot be written"),
    pytest.param(["--tap", "q", "--log", ".", "true"], "--log .: Is a directory", id="a folder as the log"),
    pytest.param(["--ring-bytes", "12X", "--spec", "good.yaml", "true"], "12X", id="a ring size that is none"),
    pytest.param(["--ring-bytes", "0", "--spec", "good.yaml", "true"], "--ring-bytes 0", id="a ring size of 0"),
    pytest.param(["--ring-bytes", "9999999999999G", "--spec", "good.yaml", "true"], "9G", id="a ring size too large"),
])
def test_wrong_usage(case, args, part):
    done = case.run(*args)
    assert done.returncode == 2 and part in done.stderr and not done.stdout, done


def test_checking(says, case):
    done = case.run("--spec", "good.yaml", "--check")
    says("--check accepts a good spec", (done.returncode == 0 and not done.stderr, done),
         ('"good": 1 site, 0 kinds' in done.stdout, done.stdout))
    (case.folder / "two.yaml").write_text("hookspec: 1\nsites:\n- {tap: q}\n- {tap: p, name: q, scale: 2}\n")
    done = case.run("--spec", "two.yaml", "--check")
    says("--check names sites of one name that mean different values, status 0",
         (done.returncode == 0 and "two.yaml:4:3: warning: " in done.stderr and "at line 3" in done.stderr, done))
    done = case.run("--spec", "bad.yaml", "--check")
    says("--check shows all errors of a bad one, status 2", (done.returncode == 2 and not done.stdout, done),
         ("bad.yaml:5:15: " in done.stderr and "bad.yaml:5:52: " in done.stderr, done.stderr),
         ("2 errors" in done.stderr, done.stderr))
    (case.folder / "tab.yaml").write_text("hookspec: 1\nsites:\n\t- {tap: q}\n")
    done = case.run("--spec", "tab.yaml", "--check")
    says("a tab is called one", (done.returncode == 2 and "tab.yaml:3:1: not YAML: found a tab; expected spaces" in done.stderr, done))
    (case.folder / "edits.yaml").write_text("editspec: 1\nedits: []\n")
    done = case.run("--spec", "edits.yaml", "--check")
    says("a file of edits is one error, with the way out", (done.returncode == 2 and "found a file of edits; expected a HookSpec: dmi-run --edits takes it" in done.stderr and "1 error" in done.stderr, done))
    done = case.run("--tap", "resd_pre*", "--check")
    says("no place is named that no user wrote", (done.returncode == 2 and done.stderr.startswith('--tap: found "resd_pre*"'), done))
    done = case.run("--spec", "good.yaml", "-D", "b=1", "--check")
    says("-D of an undeclared variable is an error", (done.returncode == 2 and '"b=1"' in done.stderr, done))
    done = case.run("--spec", "good.yaml", "--check", DMI_VARS="a=x")
    says("so is a wrong value in DMI_VARS", (done.returncode == 2 and '"a=x"' in done.stderr, done))
    done = case.run("--check", DMI_SPEC="good.yaml")
    says("DMI_SPEC stands in for --spec", (done.returncode == 0, done))
    says("--check makes no folder", (not (case.folder / "dmi-out").exists(), "dmi-out exists"))


SPEC = """hookspec: 1
forward: [{kind: any, begin: {kernel: '^begin$'}}]
sites:
- {name: resid_mid, kernel: '^mid$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 4}, {count: 8}], occurrences: {expect: 4}, layer: occ, write: {}}
- {name: resid_post, kernel: '^post$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 4}, {count: 8}], occurrences: {expect: 4}, layer: occ + 1}
- {name: embed, kernel: '^embed$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 4}, {count: 8}]}
"""


@pytest.mark.parametrize("args, only, layers", [
    (["--only", "resid_mid"], "resid_mid", ""), (["--only", "resid_*", "--only", "embed"], "resid_*,embed", ""),
    (["--layers", "0,2-3"], "", "0,2-3"), (["--only", "resid_post", "--layers", "4"], "resid_post", "4"),
    (["--only", "resid_post", "--trace", "--layers", "1"], "resid_post", "1")])
def test_a_spec_is_narrowed(case, args, only, layers):
    (case.folder / "three.yaml").write_text(SPEC)
    said, stderr = case.environment("--spec", "three.yaml", *args, DMI_ONLY="old", DMI_ONLY_LAYERS="9", DMI_TAP_LAYERS="")
    assert (said["DMI_ONLY"], said["DMI_ONLY_LAYERS"], said["DMI_TAP_LAYERS"], stderr) == (only, layers, "", "")


@pytest.mark.parametrize("args, words", [
    (["--spec", "three.yaml", "--only", "resid_pots"], 'found "resid_pots", and no site that is captured is called so; did you mean "resid_post"?; expected some of resid_mid, resid_post, embed'),
    (["--spec", "three.yaml", "--only", "embed,"], 'found ""'), (["--spec", "three.yaml", "--only", "q*"], 'found "q*"'),
    (["--spec", "three.yaml", "--layers", "3-x"], 'found "3-x" among the layers'),
    (["--spec", "three.yaml", "--layers", "last"], "kernels do not say how many there are"),
    (["--spec", "three.yaml", "--layers", "5-9"], 'the layers "5-9", which no site that is captured has'),
    (["--spec", "three.yaml", "--only", "resid_mid", "--layers", "4"], "which no site that is captured has"),
    (["--spec", "three.yaml", "--only", "embed", "--layers", "0"], "which no site that is captured has"),
    (["--spec", "places.yaml", "--only", "resid_mid"], "the HookSpec captures no site; places for edits stay"),
    (["--spec", "places.yaml", "--layers", "0"], "which no site that is captured has"),
    (["--trace", "-D", "a=1"], "-D with --trace alone"), (["--trace", "--ring-bytes", "1M"], "--ring-bytes with --trace alone"),
    (["--only", "q", "--tap", "q"], "--only without --spec"), (["--trace", "--only", "q"], "--only without --spec")])
def test_what_cannot_be_narrowed_is_wrong_usage(case, args, words):
    (case.folder / "three.yaml").write_text(SPEC)
    (case.folder / "places.yaml").write_text("".join(line.replace("write: {}", "write: {}, capture: none") for line in SPEC.splitlines(True) if "resid_post" not in line and "embed" not in line))
    done = case.run(*args, "--", "touch", "ran")
    assert done.returncode == 2 and words in done.stderr and not (case.folder / "ran").exists(), done


def test_edits_are_not_narrowed_in_silence(case):
    (case.folder / "three.yaml").write_text(SPEC)
    (case.folder / "edits.yaml").write_text("editspec: 1\nedits: [{name: off, site: resid_mid, layers: '0-2', do: [zero]}]\n")
    for words in (["--layers", "1"], ["--only", "resid_post", "--layers", "1"]):
        done = case.run("--spec", "three.yaml", "--edits", "edits.yaml", *words, "--", "true")
        assert f"{words[0]} says what is captured; the edits of edits.yaml stay as they are" in done.stderr, done
    done = case.run("--spec", "three.yaml", "--edits", "edits.yaml", "--", "true")
    assert "stay as they are" not in done.stderr, done


@pytest.mark.parametrize("args, env, taps, layers", [
    (["--tap", "q,resid_*", "--layers", "1,last"], {}, "q,resid_*", "1,last"),
    (["--tap", "q", "--layers", "1", "--tap", "resid_*", "--layers", "last"], {}, "q,resid_*", "1,last"),
    (["--tap", "q"], {"DMI_SPEC": "/none", "DMI_TAP_LAYERS": "7"}, "q", ""),
    (["--preset", "attention", "--layers", "3"], {}, "q,k,v,q_rot,k_rot,z,attn_out", "3"),
    (["--tap", "my_tap", "--preset", "logits"], {}, "my_tap,final_logits", ""),
    (["--preset", "eagle3"], {}, "resid_pre", "2,middle,last-2")])
def test_taps_in_place_of_a_spec(case, args, env, taps, layers):
    said, stderr = case.environment(*args, **env)
    assert (said["DMI_SPEC"], said["DMI_TAP"], said["DMI_TAP_LAYERS"], stderr) == ("", taps, layers, "")
    assert "libdmi_preload.so" in said["LD_PRELOAD"]


@pytest.mark.parametrize("args, attach, taps", [
    (["--attach", "resid_*,q"], "resid_*,q", "resid_*,q"),
    (["--attach", "attention,module:*.act_fn:out", "--tap", "mlp.act_fn.out"], "attention,module:*.act_fn:out",
     "mlp.act_fn.out,q,k,v,q_rot,k_rot,z,attn_out"),
    (["--attach", "resid_*,mlp,gradients", "--attach", "hook_embed", "--tap", "mine"], "resid_*,mlp,gradients,hook_embed",
     "mine,resid_*,mlp_in,mlp_post,mlp_out,router_logits,topk_ids,topk_weights,hook_embed,resid_*.grad,mlp_in.grad,mlp_post.grad,mlp_out.grad,"
     "router_logits.grad,topk_weights.grad,embed.grad"),
    (["--attach", "blocks.*.hook_resid_pre attn.hook_z", "--tap", "mine"], "blocks.*.hook_resid_pre attn.hook_z", "mine,blocks.*.hook_resid_pre,attn.hook_z"),
    (["--attach", "residuals,blocks.2.attn.hook_z", "--spec", "good.yaml"], "residuals,blocks.2.attn.hook_z", None)])
def test_attach(case, args, attach, taps):
    said, stderr = case.environment(*args, "--layers" if taps else "-Da=2", *(["3,last"] if taps else []), PYTHONPATH="/mine")
    assert (said["DMI_ATTACH"], said.get("DMI_TAP"), stderr) == (attach, taps, "")
    assert (said["DMI_ATTACH_LAYERS"], said.get("DMI_TAP_LAYERS")) == (("3,last", "3,last") if taps else ("", None))
    start, package, mine = said["PYTHONPATH"].split(":")
    assert pathlib.Path(start, "sitecustomize.py").is_file() and pathlib.Path(package, "dmi", "__init__.py").is_file() and mine == "/mine"


@pytest.mark.parametrize("args, attach, taps, write, layers", [
    (["--write", "resid_post,mlp_out", "--layers", "3"], "", "", "resid_post,mlp_out", "3"),
    (["--attach", "q", "--write", "mlp_out"], "q", "q", "mlp_out", ""),
    (["--tap", "q", "--write", "q"], None, "q", "q", ""),
    (["--steer", "v.npy", "--layers", "1", "--model", "main", "--model", "*/judge"], "", "", "resid_post", ""),
    (["--steer", "v.npy", "--write", "mlp_out"], "", "", "mlp_out", "")])
def test_places(case, args, attach, taps, write, layers):
    """Where there are places dmi-ctl, and dmi.edit, may change what is written; Python attaches them unless the program taps itself."""
    (case.folder / "v.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n" + bytes(4))
    said, stderr = case.environment(*args)
    assert stderr == "" and said["DMI_CONTROL"] == "1" and said["DMI_SPEC"] == ""
    assert (said["DMI_TAP"], said["DMI_TAP_WRITE"], said["DMI_TAP_LAYERS"]) == (taps, write, layers)
    assert (said.get("DMI_ATTACH"), said.get("DMI_ATTACH_WRITE")) == (attach, write if attach is not None else None)
    assert ("DMI_EDITS" in said) == ("--steer" in args) and said.get("DMI_ATTACH_MODEL", "") == ("main,*/judge" if "--model" in args else "")


def test_arming(says, case):
    env, err = case.environment("--spec", "good.yaml", "--out", "a/b/out", "-D", "a=5", "-Da=6", "--log", "l.txt",
                                "--ring-bytes", "2M")
    want = {"LD_PRELOAD": str(case.library), "DMI_SPEC": str(case.folder / "good.yaml"),
            "DMI_OUT": str(case.folder / "a/b/out"), "DMI_VARS": "a=5,a=6", "DMI_LOG": str(case.folder / "l.txt"),
            "DMI_RING_BYTES": "2097152"}
    says("the command's environment is what the options say", (not err, err),
         *((env.get(k) == v, f"{k}={env.get(k)}, expected {v}") for k, v in want.items()))
    mode = stat.S_IMODE((case.folder / "a/b/out").stat().st_mode)
    says("the folder is created for the user alone", (mode & 0o077 == 0, oct(mode)))
    env, err = case.environment("--spec", "good.yaml", "--out", "a/b/out", "-D", "a=2", DMI_VARS="a=1")
    says("-D comes after DMI_VARS, so it counts", (env.get("DMI_VARS") == "a=1,a=2", env.get("DMI_VARS")))
    says("what no option says stays unset", ("DMI_LOG" not in env and "DMI_RING_BYTES" not in env, env))
    jobs = [case.environment("--spec", "good.yaml")[0].get("DMI_JOB", "") for _ in range(2)]
    says("each command gets a job id of its own", (all(UUID.fullmatch(j) for j in jobs) and jobs[0] != jobs[1], jobs))
    env, _ = case.environment("--spec", "good.yaml", DMI_JOB="mine")
    says("a job id that is set stays", (env.get("DMI_JOB") == "mine", env.get("DMI_JOB")))
    env, _ = case.environment("--spec", "good.yaml", DMI_LOG="here.txt")
    says("a file that the environment names is seen from here, too", (env.get("DMI_LOG") == str(case.folder / "here.txt"), env.get("DMI_LOG")))
    env, _ = case.environment("--spec", "good.yaml", "--log", "none")
    says("--log none is no file, dmi-out is the default folder",
         (env.get("DMI_LOG") == "none", env.get("DMI_LOG")),
         (env.get("DMI_OUT") == str(case.folder / "dmi-out"), env.get("DMI_OUT")))
    other = shutil.copy(case.library, case.folder / "other.so")
    env, _ = case.environment("--spec", "good.yaml", LD_PRELOAD=str(other))
    says("other preloads stay, after the library", (env.get("LD_PRELOAD") == f"{case.library}:{other}", env))
    env, _ = case.environment("--spec", "good.yaml", LD_PRELOAD=f"{other}:{case.library}")
    says("ours is not put there twice", (env.get("LD_PRELOAD") == f"{other}:{case.library}", env))
    done = case.run("--spec", "good.yaml", "sh", "-c", 'echo "$1"; exit 7', "sh", "--check")
    says("-- may be left out; the command's options are its own",
         (done.returncode == 7 and done.stdout == "--check\n" and not done.stderr, done))


HINDERED = [
    pytest.param(["--spec", "bad.yaml"], {}, "bad.yaml:5:15: ", id="a bad spec"),
    pytest.param(["--spec", "none.yaml"], {}, "none.yaml: cannot read the HookSpec", id="a missing spec"),
    pytest.param(["--spec", "bad.yaml", "-D", "x=1"], {}, "bad.yaml:5:15: ", id="a bad spec and a wrong variable"),
    pytest.param(["--spec", "good.yaml"], {"DMI_VARS": "x=1"}, '"x=1"', id="a wrong variable of the environment"),
    pytest.param(["--spec", "good.yaml"], {"DMI_OUT": "file/out"}, "Not a directory", id="an unusable folder of the environment"),
    pytest.param(["--spec", "good.yaml"], {"DMI_OUT": "file"}, "Not a directory", id="a file as the folder of the environment"),
    pytest.param(["--spec", "good.yaml"], {"DMI_PRELOAD_PATH": "none.so"}, "cannot find", id="a missing library"),
    pytest.param(["--spec", "good.yaml"], {"DMI_PRELOAD_PATH": "FOLDER/with space/libdmi_preload.so"}, "space or colon",
                 id="a library that cannot be named"),
]


@pytest.fixture
def hindered(case, env):
    """The environment of a row of HINDERED, whose files lie in the case's folder."""
    (case.folder / "with space").mkdir()
    shutil.copy(case.library, case.folder / "with space")
    (case.folder / "file").write_text("")
    return {name: value.replace("FOLDER", str(case.folder)) for name, value in env.items()}


@pytest.mark.parametrize("args, env, part", HINDERED)
def test_hindered_it_says_so_and_runs_the_command_without_capture(case, hindered, args, part):
    done = case.run(*args, "--", "sh", "-c", 'echo "out:$LD_PRELOAD"; exit 5', **hindered)
    assert done.returncode == 5 and done.stdout == "out:\n", done
    assert part in done.stderr and 'running "sh" without capture' in done.stderr, done.stderr


@pytest.mark.parametrize("args, env, part", HINDERED)
def test_hindered_and_strict_it_does_not_run_the_command(case, hindered, args, part):
    done = case.run("--strict", *args, "--", "sh", "-c", "echo ran", **hindered)
    assert done.returncode == 2 and not done.stdout, done
    assert part in done.stderr and "not running" in done.stderr, done.stderr


def test_documents(says, case):
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        done = case.run("--spec", path, "--check")
        says(f"specs/{path.name} has no error", (done.returncode == 0, done.stderr))
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/hookspec.md").read_text(encoding="utf-8"), re.M | re.S)
    whole = next(block for block in blocks if block.startswith("hookspec:"))
    kinds = "".join(f"  - {{kind: {kind}, begin: {{kernel: '{kind}'}}}}\n" for kind in ("decode", "x"))
    lines = ["hookspec: 1\nvars: {heads: 9, max_context: 512}\nforward:\n" + kinds + "sites:\n"]
    head = "    kernel: k\n    pointer: arg[0]\n    dtype: f32\n"
    for block in blocks:  # pieces of a spec become a whole one
        if block.startswith("  - name:"):
            lines.append(block)
        elif block.startswith("dims:"):
            for dims in re.split(r"^(?=dims:)", block, flags=re.M)[1:]:
                lines.append(f"  - name: d{len(lines)}\n{head}" + re.sub("^", "    ", dims.rstrip(), flags=re.M) + "\n")
        elif block.startswith("occurrences:"):
            for line in block.splitlines():
                lines.append(f"  - name: o{len(lines)}\n{head}    dims: [{{row: true, count: 1}}]\n    {line}\n")
    for name, text, sites in (("doc.yaml", whole, 1), ("pieces.yaml", "".join(lines), len(lines) - 1)):
        (case.folder / name).write_text(text, encoding="utf-8")
        done = case.run("--spec", name, "--check")
        says(f"docs/hookspec.md: the examples ({name}) have no error",
             (done.returncode == 0 and f": {sites} site" in done.stdout, done.stderr + done.stdout + text))


def test_a_command_that_does_not_exist_is_127(case):
    done = case.run("--spec", "good.yaml", "--", "no-such-program-here")
    assert done.returncode == 127 and "no-such-program-here: No such file" in done.stderr, done


def test_a_command_that_cannot_be_executed_is_126(case):
    (case.folder / "file").write_text("")
    done = case.run("--spec", "good.yaml", "--", case.folder / "file")
    assert done.returncode == 126, done


def test_a_signal_that_ends_the_command_is_seen(case):
    done = case.run("--spec", "good.yaml", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == -9, done


# ---- processes that the library is not in ----

LOADS = "import ctypes, sys, time; time.sleep(float(sys.argv[1])); ctypes.CDLL('./libcuda.so.1'); time.sleep(60)"
WAIT = "i=0; until [ -s said ] || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done"


def wait_for_watchers(folder):
    """Until no watcher of a command in @folder is there: it ends after the command; 10 s at most."""
    for _ in range(500):
        if not any(lives_in(process, folder) for process in pathlib.Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.02)


def lives_in(process, folder):
    """Is it a watcher that has a file of @folder open, or is in it?"""
    try:
        return (process / "comm").read_text() == "dmi-watch\n" and any(
            os.readlink(link).startswith(str(folder)) for link in [process / "cwd", *(process / "fd").iterdir()])
    except OSError:
        return False


class Watched(Case):
    """Commands with processes that load a libcuda.so.1; what is said of them is in the file `said`."""

    def __init__(self, folder, library):
        super().__init__(folder, library)
        any_library(folder, "libcuda.so.1")
        (folder / "loads.py").write_text(LOADS)
        (folder / "wait.sh").write_text(WAIT)

    def shell(self, script, log="said"):
        """Runs @script: WAIT waits until something was said, 10 s at most; LOADS N loads the driver after N seconds.
        Return: (the words that it printed, the lines that were said)"""
        text = script.replace("WAIT", "sh wait.sh").replace("LOADS", f"{shlex.quote(sys.executable)} loads.py")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DMI_", "LD_"))}
        clean.update(DMI_PRELOAD_PATH=str(self.library), ASAN_OPTIONS="verify_asan_link_order=0")
        words = [DMI_RUN, "--spec", "good.yaml", *(["--log", log] if log else []), "--", "sh", "-c", text]
        with open(self.folder / ("stderr" if log else "said"), "ab") as err:
            done = subprocess.run(list(map(str, words)), cwd=self.folder, env=clean, text=True, timeout=60, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=err)
        wait_for_watchers(self.folder)
        said = self.folder / "said"
        return done.stdout.split(), said.read_text().splitlines() if said.exists() else []


@pytest.fixture
def watched(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    return Watched(tmp_path, any_library(tmp_path))


PYTHON = os.path.realpath(sys.executable)
NAMED = re.compile(r"dmi: process (\d+) \((.*)\) has loaded the CUDA driver without (\S+): nothing of it is captured; (.*)")
CLEARED, IGNORED = "it was started without LD_PRELOAD", "the loader did not follow LD_PRELOAD"


@pytest.mark.parametrize("script, why", [
    pytest.param("env -u LD_PRELOAD LOADS 0 & echo $!; WAIT; kill $!", CLEARED, id="a child without LD_PRELOAD"),
    pytest.param("env -i LOADS 0 & echo $!; WAIT; kill $!", CLEARED, id="a child with a cleared environment"),
    pytest.param("LD_PRELOAD=/nowhere/libdmi_preload.so LOADS 0 & echo $!; WAIT; kill $!", IGNORED, id="a child whose loader ignores it"),
    pytest.param("(WAIT; kill $$) & echo $$; exec env -u LD_PRELOAD LOADS 0", CLEARED, id="the command itself"),
    pytest.param("sh -c 'env -u LD_PRELOAD LOADS 0 & echo $!; WAIT; kill $!'; true", CLEARED, id="a grandchild"),
    pytest.param("sh -c 'env -u LD_PRELOAD LOADS 2 & echo $! | tee pid; sleep 1'; WAIT; kill $(cat pid)", CLEARED, id="a child whose parent has ended"),
    pytest.param("LOADS 0 & a=$!; sleep 1; env -u LD_PRELOAD LOADS 0 & echo $!; WAIT; kill $a $!", CLEARED, id="beside one with the library"),
])
def test_a_process_without_the_library_is_named(watched, script, why):
    printed, said = watched.shell(script)
    named = [NAMED.fullmatch(line) for line in said]
    assert len(said) == 1 and named[0], said
    assert named[0].groups()[:3] == (printed[0], PYTHON, "libdmi_preload.so") and named[0][4].startswith(why), (printed, said)


@pytest.mark.built(LINKED, STANDIN / "libcuda.so.1")
def test_a_program_linked_against_the_driver_is_named(watched):
    (watched.folder / "script").write_text("init 0\nsleep 60000\n")
    start = f"env -u LD_PRELOAD LD_LIBRARY_PATH={shlex.quote(str(STANDIN))} {shlex.quote(str(LINKED))} script link"
    printed, said = watched.shell(f"{start} >/dev/null & echo $!; WAIT; kill $!")
    assert len(said) == 1 and f"process {printed[0]} ({os.path.realpath(LINKED)})" in said[0], (printed, said)


def test_an_executable_is_named_once(watched):
    _, said = watched.shell("for i in 1 2 3; do env -u LD_PRELOAD LOADS 0 & pids=\"$pids $!\"; done; WAIT; sleep 1.5; kill $pids")
    assert len(said) == 1, said


def test_processes_with_the_library_and_those_without_a_driver_are_not_named(watched):
    _, said = watched.shell("LOADS 0 & a=$!; env -u LD_PRELOAD sleep 9 & sleep 1.5; kill $a $!; wait", log=None)
    assert [bool(NOTHING.fullmatch(line)) for line in said] == [True], said


@pytest.mark.parametrize("script, lines", [
    pytest.param("true", 1, id="a command without CUDA"),
    pytest.param("mkdir dmi-out/.hidden", 1, id="one that was interrupted while its run was begun"),
    pytest.param("mkdir dmi-out/a-run", 0, id="one that has a run"),
    pytest.param("sleep 2 & sleep 0.5", 0, id="one whose children live on"),
])
def test_a_command_that_wrote_nothing_is_named(watched, script, lines):
    _, said = watched.shell(script, log=None)
    assert [bool(NOTHING.fullmatch(line)) for line in said] == [True] * lines, said


def test_it_is_said_on_stderr(watched):
    printed, said = watched.shell("env -u LD_PRELOAD LOADS 0 & echo $!; WAIT; kill $!", log=None)
    assert len(said) == 1 and NAMED.fullmatch(said[0])[1] == printed[0], said


def test_with_log_none_nothing_is_said(watched):
    watched.shell("env -u LD_PRELOAD LOADS 0 & sleep 1; kill $!", log="none")
    assert (watched.folder / "stderr").read_bytes() == b""


STATE = """
import os, signal, sys, time
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child")
except ChildProcessError:
    print("no child")
print(os.getpid(), os.getppid(), os.getsid(0), os.getpgid(0), sorted(signal.sigpending()), sorted(os.listdir("/proc/self/fd")),
      [os.readlink(f"/proc/self/fd/{i}") for i in (0, 1, 2)])
"""


def test_the_command_is_as_it_would_be_alone(watched):
    """Its process id is dmi-run's, it has no child, no descriptor and no signal that it did not have."""
    words = [sys.executable, "-c", STATE]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DMI_", "LD_"))}
    clean.update(DMI_PRELOAD_PATH=str(watched.library), ASAN_OPTIONS="verify_asan_link_order=0")

    def blocked():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    said = []
    for front in ([], [str(DMI_RUN), "--spec", "good.yaml", "--"]):
        with open(watched.folder / "err", "wb") as err, \
                subprocess.Popen(front + words, cwd=watched.folder, env=clean, stdout=subprocess.PIPE, stderr=err, stdin=subprocess.DEVNULL,
                                 text=True, preexec_fn=blocked) as p:
            out = p.communicate(timeout=60)[0]
        said.append(re.sub(r"pipe:\[\d+\]", "pipe", out.replace(str(p.pid), "ITS PID")))
    assert said[0] == said[1] and said[0].startswith("no child\nITS PID"), said


def test_the_watch_ends_with_the_command(watched):
    """Whoever reads stderr to its end waits for the command, and for nothing else."""
    words = [DMI_RUN, "--spec", "good.yaml", "--", "sh", "-c", "sleep 1; kill -9 $$"]
    p = subprocess.Popen([str(w) for w in words], cwd=watched.folder, stderr=subprocess.PIPE,
                         env={**os.environ, "DMI_PRELOAD_PATH": str(watched.library), "ASAN_OPTIONS": "verify_asan_link_order=0"})
    _, err = p.communicate(timeout=20)
    assert p.returncode == -9 and NOTHING.fullmatch(err.decode().strip()), (p.returncode, err)
