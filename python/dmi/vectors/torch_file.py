# SPDX-License-Identifier: Apache-2.0
"""Vectors in files of torch.save(): torch.load(weights_only=True) in a process of its own, by this Python, with limits of time and memory (torch_load.py)."""
from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from array import array
from typing import Any

from . import tensors, torch_load
from .tensors import VectorError

MAX_ANSWER = 1 << 20  # bytes of its first line


def _environment() -> dict[str, str]:
    """Without what DMI puts into programs, and with one thread."""
    left = {name: value for name, value in os.environ.items() if name not in ("DMI_ATTACH", "DMI_ATTACH_WRITE")}
    preload = [path for path in re.split("[: ]+", left.pop("LD_PRELOAD", "")) if path and os.path.basename(path) != "libdmi_preload.so"]
    return left | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | ({"LD_PRELOAD": ":".join(preload)} if preload else {})


def _ended(status: int) -> str:
    """Why there is no answer."""
    if status in (-signal.SIGXCPU, -signal.SIGALRM):
        return (f"reading it took longer than {torch_load.CPU_S} s of a CPU, or than {torch_load.WALL_S} s with the import of torch; "
                "a file of tensors takes no such time")
    end = f"by signal {-status}" if status < 0 else f"with status {status}"
    return f"the process of {sys.executable} that read it with torch ended {end}; {torch_load.WAY_OUT}"


def _asked(path: pathlib.Path) -> bytes:
    if not sys.executable:
        raise VectorError("this program names no Python that could read it with torch")
    command = [sys.executable, torch_load.__file__, path, str(os.getpid())]
    try:
        done = subprocess.run(command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=torch_load.WALL_S + 10, check=False)
    except subprocess.TimeoutExpired:
        raise VectorError(_ended(-signal.SIGALRM)) from None
    if done.returncode or not done.stdout:
        raise VectorError(_ended(done.returncode))
    return done.stdout


def read(path: pathlib.Path) -> tuple[dict, None, dict, dict, list]:
    """({layer, None: of each: numbers}, None, {}, {layer: avg_proj}, [(key, of what) that is not read]): it never says whose layers these are"""
    tensors.mapped(path).release()  # a regular file that holds something
    data = _asked(path)
    n = data.find(b"\n", 0, MAX_ANSWER) + 1
    answer: Any = json.loads(data[:n] or b"{}")
    if "error" in answer:
        raise VectorError(answer["error"])
    layers, to, first = {}, {}, n
    for layer, width, target in answer["layers"]:
        layers[layer] = array("f", data[first:first + 4 * width])
        first += 4 * width
        if target is not None:
            to[layer] = target
    if first != len(data):
        raise VectorError(_ended(0))
    return layers, None, {}, to, [tuple(one) for one in answer["unused"]]
