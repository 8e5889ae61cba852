# SPDX-License-Identifier: Apache-2.0
"""What pages show of PyTorch's models, typed where the wheel is installed beside PyTorch: without a driver, and on the stand-in driver. Each command prints what
the page shows."""
import re
import shutil
import subprocess
import sys

import pytest

import bare_debian
import pages
import taps_page
import torch_cuda_env
import torch_env
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, environment
from test_cpu import captured, tensors

LOOK = """
import ctypes, sys, dmi, torch
assert dmi.__file__.startswith(sys.prefix)
if torch.cuda.is_available():
    sys.exit("PyTorch has a device")
try:
    ctypes.CDLL("libcuda.so.1")
    print("a driver")
except OSError:
    print("no driver")
"""
PACKER = ROOT / "build" / "wheel"
SAID = "dmi: the model's tensors are on the CPU: taps read them there (kernels and graphs are what a GPU adds)"
pytestmark = [pytest.mark.built(PRELOAD, DMI_RUN, DMI_DUMP), pytest.mark.long]


def pip(*words, **more):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, check=False, **more)
    assert done.returncode == 0, (words, done.stdout[-3000:])
    return done.stdout


@pytest.fixture(name="wheel", scope="module")
def fixture_wheel(tmp_path_factory):
    if not (PACKER / "wheel").is_dir():
        pytest.skip(f"{PACKER} does not exist: what packs wheels could not be had")
    return pip(sys.executable, ROOT / "tools/setup/wheel.py", BUILD, tmp_path_factory.mktemp("wheel"), env=environment(PYTHONPATH=PACKER)).split()[-1]


def environment_here(wheel, folder, python, env, before):
    """An environment of this machine's Python, with the packages of another one; each program there begins with the line @before."""
    pip(python, "-m", "venv", "--without-pip", folder)
    pip(python, "-m", "pip", "--python", folder / "bin/python", "install", "-q", "--no-index", "--no-deps", wheel)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "torch.pth").write_text(f"{next(python.parents[1].glob('lib/python3*/site-packages'))}\n{before}")
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"} | {name: str(value) for name, value in env.items() if name.startswith(("LD_LIB", "TRITON", "DMI_STANDIN_CACHE"))}


STANDIN = "stand-in driver"
# What fused attention is for, of which the wheel of PyTorch has machine code alone.
PLAIN = "import torch; " + "; ".join(f"torch.backends.cuda.enable_{kernel}_sdp(False)" for kernel in ("flash", "mem_efficient", "cudnn")) + "\n"


@pytest.fixture(name="place", scope="module", params=["environment", "bare Debian 12", STANDIN])
def fixture_place(request, wheel, tmp_path_factory):
    """(where a shell is at home, or None: anywhere; words that start it; what it has in its environment): DMI's wheel and PyTorch are installed there. No driver is found,
    or the stand-in's."""
    if request.param == "environment":
        home, words, env = None, [], environment_here(wheel, tmp_path_factory.mktemp("installed"), *torch_env.python_with_torch(), torch_env.PREAMBLE)
    elif request.param == STANDIN:
        env = environment_here(wheel, tmp_path_factory.mktemp("installed"), *torch_cuda_env.python_with_cuda(), PLAIN)
        assert subprocess.run(["python", "-c", LOOK], env=env, stderr=subprocess.PIPE, text=True, check=False).stderr == "PyTorch has a device\n"
        return None, [], env
    else:
        root = bare_debian.root()
        home, words, env = root / bare_debian.HOME[1:], bare_debian.command(root), bare_debian.install(root, wheel)
    said = subprocess.run([*words, "python", "-c", LOOK], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    if said.endswith("a driver\n"):
        pytest.skip("this machine has a driver where the loader looks")
    assert said.endswith("no driver\n"), said
    return home, words, env


@pytest.fixture(name="page")
def fixture_page(check, place, tmp_path):
    """Type what a page shows there, in an empty folder with @files."""
    home, words, env = place

    def typed(text, files=()):
        text = text if words or "TRITON_PTXAS_PATH" not in env else text.replace(SAID + "\n", "")  # what no model on a device says
        folder = home or tmp_path
        shutil.rmtree(folder / "dmi", ignore_errors=True)
        (folder / "dmi").mkdir()
        for name, content in files:
            (folder / "dmi" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return pages.check_page(check, folder, text, installed=env, shell=[*words, "bash"])
    return typed


def test_first_capture(request, check, page):
    """The Hugging Face way: its pieces are one script."""
    text = pages.section("docs/first-capture.md", "Hugging Face and other PyTorch models")
    typed = "".join(found[0] for found in re.finditer(r"^```console\n.*?^```\n", text, re.S | re.M))
    captured, *_ = page(typed, [("first.py", "".join(re.findall(r"```python\n(.*?)```", text, re.S)))])
    shown = "".join(re.findall(r"```text\n(.*?)```", text, re.S))
    check(shown and "\n".join(captured.printed).endswith(shown.strip()), "the script prints what the page shows", captured.printed)
    check((SAID in captured.printed) == (STANDIN not in request.node.callspec.id), "the library says where the tensors are", captured.printed)


def test_first_edit(page):
    page(pages.section("docs/first-edit.md", "Hugging Face in one command"))


@pytest.mark.parametrize("place", ["environment", "bare Debian 12"], indirect=True)  # its engine has arrays of numpy
def test_runs_in_python(page):
    page(pages.section("docs/python.md"))


def test_the_front_pages_command(check, page):
    """The one of README.md's first lines, on a script that knows nothing of DMI."""
    command, = re.findall(r"without a GPU or a driver.*?`(dmi-run .*?)`", (ROOT / "README.md").read_text())
    script = pages.section("docs/first-edit.md").partition("```python\n")[2].partition("```")[0]
    ran = page(f"```console\n$ {command}\n...\n{SAID}\n...\n$ dmi-dump verify RUN\n...\n```\n", [("script.py", script)])
    check(any(line.startswith("accounting balances: expected 1,767 = captured 1,767 + dropped 0") for line in ran[-1].printed), "57 tensors of 31 forwards", ran[-1])


THERE = pytest.mark.parametrize("place", [STANDIN], indirect=True)  # other tests have taps of the CPU


def taps_typed(check, folder, page, command, others=()):
    """What @command of docs/taps.md captures, and what hooks saw in it, by key."""
    files = [*taps_page.files(), *others]
    page(f"```console\n$ {command}\n...\n```\n", files)
    return captured(check, folder, "dmi-out"), tensors(folder / "seen.safetensors")


@pytest.fixture(name="at")
def fixture_at(place, tmp_path):
    """The folder in which the page's commands are typed."""
    return (place[0] or tmp_path) / "dmi"


def chosen(wanted, *sites, layers=range(taps_page.LAYERS)):
    """Those of @wanted that a command names; what belongs to no layer is always among them."""
    names = {f"{site}.{layer}" for site in sites for layer in layers} | set(sites)
    return {key: x for key, x in wanted.items() if key.partition("/")[2] in names}


COMMANDS = {"--tap": (("q", "k", "resid_pre"), taps_page.CHOSEN), "--preset": (("resid_pre", "resid_mid", "resid_final"), range(taps_page.LAYERS))}


@THERE
@pytest.mark.parametrize("option", COMMANDS)
def test_taps_to_capture(check, at, page, option):
    """Each command of "Which to capture", on an engine that taps."""
    command, = (line for line in taps_page.commands() if option in line)
    found, seen = taps_typed(check, at, page, command)
    sites, layers = COMMANDS[option]
    wanted = chosen(seen, *sites, layers=layers)
    check(len(wanted) >= 3 * len(layers) and found == wanted, "what is named is captured, with the bits that hooks saw", sorted(found.keys() ^ wanted.keys())[:9])


@THERE
def test_taps_of_a_spec(check, at, page):
    command, = (line for line in taps_page.commands() if "--spec" in line)
    found, seen = taps_typed(check, at, page, command)
    dtype, (_, width), data = seen["r2/resid_pre.3"]
    check(found == {"r2/resid_pre.3": (dtype, [2, width], data[-2 * len(data) // 5:])}, "two tokens of a request are captured, as they are in memory", found.keys())


@THERE
def test_taps_of_programs_that_know_nothing(check, at, page):
    commands = taps_page.synopses()
    check(len(commands) == 2, "the page has two ways", commands)
    for command in commands:
        command = command.replace("python -m", "dmi-run --preset residuals --layers 3,last -- python -m")
        found, seen = taps_typed(check, at, page, command)
        wanted = chosen(seen, "resid_pre", "resid_mid", "resid_final", layers=(3, taps_page.LAYERS - 1))
        check(len(wanted) == 15 and found == wanted, f"{command}: what is named is captured, with the bits that hooks saw", sorted(found.keys() ^ wanted.keys())[:9])


@THERE
def test_taps_by_hand(check, at, page):
    """The page's blocks in Python and in C, and each call in its sentences."""
    found, seen = taps_typed(check, at, page, "dmi-run --tap scaled -- python by_hand.py")
    check(found == seen, "a line of Python taps", found)
    source, = taps_page.blocks("c")
    subprocess.run(["gcc", "-x", "c", "-shared", "-fPIC", f"-I{ROOT / 'include'}", "-", "-o", at / "tapped.so"], input=source + taps_page.C, text=True, check=True)
    tapped = (at / "tapped.so").read_bytes()
    found, seen = taps_typed(check, at, page, "dmi-run --tap resid_pre -- python from_c.py", [("tapped.so", tapped)])
    check(found == seen, "the page's function in C taps", found)
    _, calls = taps_page.statements()
    check(len(calls) == len(taps_page.NEEDS), "each call of the page is known", calls)
    page("```console\n$ dmi-run --tap scaled,pattern -- python statements.py\n...\n```\n", taps_page.files())
