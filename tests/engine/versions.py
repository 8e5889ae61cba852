# SPDX-License-Identifier: Apache-2.0
"""Versions of packages besides those that the environments of tests hold: tools/setup/versions.txt lists them, each is fetched once."""
import pathlib
import re
import shutil
import sys
import zipfile

import columns
import engine_env
import torch_env

LISTED = engine_env.SETUP / "versions.txt"
WHEELS = dict(re.findall(r"(?m)^([\w.-]+): (.+)$", LISTED.read_text()))
TRANSFORMERS = [name for name in WHEELS if name.startswith("transformers-")]


def folder_of(name):
    """The folder with the packages of a line, to be put in front of others in PYTHONPATH."""
    folder, wheels = engine_env.FOLDER / name, WHEELS[name].split()
    with engine_env.once(name, WHEELS[name] + pathlib.Path(__file__).read_text()) as make:
        log = engine_env.FOLDER / f"{name}.log"
        if make and name.startswith(("vllm", "sglang")):
            columns.step(f"fetching {name} from the Python package index",
                         [*engine_env.pip(sys.executable, "download"), "-d", folder / "wheels", *wheels], log)
            for wheel in (folder / "wheels").glob("*.whl"):
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(folder, filter(engine_env.is_wanted, packed.namelist()))
            shutil.rmtree(folder / "wheels")
            (folder / "sitecustomize.py").write_text(engine_env.SITE)
            if name.startswith("vllm"):  # before 0.28 it runs on a CPU where its version says so, and then it does without Triton
                with open(folder / "vllm/platforms/__init__.py", "a", encoding="utf-8") as platforms:
                    platforms.write("\ndef vllm_version_matches_substr(substr):\n    return substr == 'cpu'\n")
        elif make:
            python, _ = torch_env.python_with_torch()
            columns.step(f"fetching {name} from the Python package index", [*engine_env.pip(python, "install"), "--target", folder, *wheels], log)
    return folder


def before(name, env):
    """@env with the packages of @name, if it is not None, in front of the others."""
    if name is None:
        return env
    return env | {"PYTHONPATH": ":".join(filter(None, (str(folder_of(name)), env.get("PYTHONPATH"))))}
