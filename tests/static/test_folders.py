# SPDX-License-Identifier: Apache-2.0
"""Folders depend one way: include <- core <- {kernels, policy, storage, cupti} <- {preload, read}; read <- analyze <- tools."""
import re

from tree import ROOT, tracked

BELOW = {
    "include": set(),
    "core": {"include"},
    "kernels": {"include", "core"},
    "policy": {"include", "core"},
    "storage": {"include", "core"},
    "cupti": {"include", "core"},
    "preload": {"include", "core", "kernels", "policy", "storage", "cupti"},
    "read": {"include", "core", "policy", "storage"},
    "analyze": {"include", "core", "policy", "storage", "read"},
    "tools": {"include", "core", "policy", "storage", "cupti", "read", "analyze"},
}
# Who may speak CUDA's types at all; the others are "CUDA-free" by design (docs/architecture.md).
CUDA = {"kernels", "cupti", "preload"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def folder_of(path, name):
    """The folder of the project that an #include in the file `path` leads to, or None."""
    first = name.split("/")[0]
    if first == "dmi":
        return "include"
    if "/" in name and first in BELOW:
        return first
    if (ROOT / path.parent / name).exists():
        return path.parts[0]
    return None


def test_folders(check):
    files = [path for path in tracked(".c", ".h", ".S", ".cu", ".cuh", ".def", ".inc") if path.parts[0] in BELOW]
    for folder, below in BELOW.items():
        complaints, cuda = [], []
        for path in files:
            if path.parts[0] != folder:
                continue
            for style, name in INCLUDE.findall((ROOT / path).read_text(encoding="utf-8")):
                target = folder_of(path, name)
                if target not in below | {folder, None}:
                    complaints.append(f"{path} includes {name}")
                if style == '"' and target is None and not (ROOT / "build").joinpath(name).exists() \
                        and (ROOT / name).exists():
                    complaints.append(f"{path} includes {name}, outside the layers")
                if folder not in CUDA and target is None and re.match(r"(cuda|cupti|nvtx|nvToolsExt)", name):  # theirs, not our folder cupti
                    cuda.append(f"{path} includes {name}")
        check(not complaints, f"{folder} includes only {', '.join(sorted(below)) or 'nothing of ours'}", complaints)
        if folder not in CUDA:
            check(not cuda, f"{folder} knows nothing of CUDA", cuda)
