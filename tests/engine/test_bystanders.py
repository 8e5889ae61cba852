#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that never touch CUDA do not notice that the library is loaded into them.

LD_PRELOAD is inherited: a shell, a compiler, a Python without an engine get the library too.  They must
write no file, start no thread, say nothing, and find no cuInit where there is no driver.
"""
import os
import pathlib
import sys

import harness
from harness import PRELOAD, ROOT, STANDIN, Checks

SPEC = ROOT / "specs" / "tinygrad-smollm2.yaml"
COUNT = "import os; print(len(os.listdir('/proc/self/task')))"


def main():
    bystander = pathlib.Path(sys.argv[1]).resolve()
    harness.need(PRELOAD, bystander)
    checks, folder = Checks(), harness.workspace()
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
        "dlsym(RTLD_DEFAULT, cuInit)": [bystander],
        "_exit from Python": [sys.executable, "-c", "import os; os._exit(5)"],
    }
    settings = {
        "with a spec": dict(LD_PRELOAD=PRELOAD, DMI_SPEC=SPEC, DMI_OUT=folder / "out"),
        "without one": dict(LD_PRELOAD=PRELOAD),
        "with one that is not there": dict(LD_PRELOAD=PRELOAD, DMI_SPEC=folder / "none.yaml", DMI_OUT=folder / "out"),
    }
    # No LD_LIBRARY_PATH: no driver, unless the machine has one, which these programs do not load.
    plain = harness.environment()
    del plain["LD_LIBRARY_PATH"]
    here = folder / "cwd"
    here.mkdir()
    for name, command in programs.items():
        alone = harness.run(command, env=plain, cwd=here, check=False)
        for setting, more in settings.items():
            env = {**plain, **{k: str(v) for k, v in more.items()}}
            under = harness.run(command, env=env, cwd=here, check=False)
            same = (alone.returncode, alone.stdout, alone.stderr) == (under.returncode, under.stdout, under.stderr)
            checks.check(same, f"{name}, {setting}: same exit code and output", "" if same else
                         f"{(alone.returncode, alone.stdout, alone.stderr)} became {(under.returncode, under.stdout, under.stderr)}")
    checks.check(not (folder / "out").exists(), "no folder was made for runs")
    checks.check(not os.listdir(here), "no file was left where the programs ran", ", ".join(os.listdir(here)))
    seen = harness.run([bystander], env={**plain, "LD_PRELOAD": str(PRELOAD)}).stdout.split()
    checks.check(seen == ["threads", "1", "cuInit", "no"], "no driver: one thread, and cuInit is not found", " ".join(seen))
    if (STANDIN / "libcuda.so.1").exists():
        seen = harness.run([bystander, STANDIN / "libcuda.so.1"], env={**plain, "LD_PRELOAD": str(PRELOAD)}).stdout.split()
        checks.check(seen[-2:] == ["cuInit", "yes"], "a driver was loaded: cuInit is found", " ".join(seen))
    checks.exit()


if __name__ == "__main__":
    main()
