# SPDX-License-Identifier: Apache-2.0
"""Programs that never touch CUDA do not notice that the library is loaded into them.

LD_PRELOAD is inherited: a shell, a compiler, a Python without an engine get the library too.  They must
write no file, start no thread, say nothing, and find no cuInit where there is no driver.
"""
import os
import sys

import pytest

import harness
from harness import BUILD, PRELOAD, ROOT, STANDIN

BYSTANDER = BUILD / "tests" / "engine" / "bystander"
pytestmark = pytest.mark.built(PRELOAD, BYSTANDER)
SPEC = ROOT / "specs" / "tinygrad-smollm2.yaml"
COUNT = "import os; print(len(os.listdir('/proc/self/task')))"


@pytest.fixture
def plain():
    """No LD_LIBRARY_PATH: no driver, unless the machine has one, which these programs do not load."""
    env = harness.environment()
    del env["LD_LIBRARY_PATH"]
    return env


def test_programs_do_not_notice(check, plain, tmp_path):
    folder = tmp_path
    source = folder / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n')
    programs = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python, its threads": [sys.executable, "-c", COUNT],
        "python, forked": [sys.executable, "-c", "import os; pid = os.fork(); pid and os.waitpid(pid, 0)"],
        "sh -c true": ["sh", "-c", "true"],
        "sh, its threads": ["sh", "-c", "ls /proc/$$/task | wc -l"],
        "sh -c 'exit 3'": ["sh", "-c", "exit 3"],
        "a compiler": ["cc", "-O1", "-o", folder / "hello", source],
        "what it compiled": [folder / "hello"],
        "dlsym(RTLD_DEFAULT, cuInit)": [BYSTANDER],
        "_exit from Python": [sys.executable, "-c", "import os; os._exit(5)"],
    }
    settings = {
        "with a spec": dict(LD_PRELOAD=PRELOAD, DMI_SPEC=SPEC, DMI_OUT=folder / "out"),
        "without one": dict(LD_PRELOAD=PRELOAD),
        "with one that is not there": dict(LD_PRELOAD=PRELOAD, DMI_SPEC=folder / "none.yaml", DMI_OUT=folder / "out"),
    }
    here = folder / "cwd"
    here.mkdir()
    for name, command in programs.items():
        alone = harness.run(command, env=plain, cwd=here, check=False)
        for setting, more in settings.items():
            env = {**plain, **{k: str(v) for k, v in more.items()}}
            under = harness.run(command, env=env, cwd=here, check=False)
            same = (alone.returncode, alone.stdout, alone.stderr) == (under.returncode, under.stdout, under.stderr)
            check(same, f"{name}, {setting}: same exit code and output", "" if same else
                  f"{(alone.returncode, alone.stdout, alone.stderr)} became {(under.returncode, under.stdout, under.stderr)}")
    check(not (folder / "out").exists(), "no folder for runs was created")
    check(not os.listdir(here), "no file was left where the programs ran", ", ".join(os.listdir(here)))


def test_without_a_driver(plain):
    """One thread, and cuInit is not found."""
    seen = harness.run([BYSTANDER], env={**plain, "LD_PRELOAD": str(PRELOAD)}).stdout.split()
    assert seen == ["threads", "1", "cuInit", "no"]


@pytest.mark.built(STANDIN / "libcuda.so.1")
def test_with_a_driver(plain):
    """It was loaded: cuInit is found."""
    seen = harness.run([BYSTANDER, STANDIN / "libcuda.so.1"], env={**plain, "LD_PRELOAD": str(PRELOAD)}).stdout.split()
    assert seen[-2:] == ["cuInit", "yes"]
