# SPDX-License-Identifier: Apache-2.0
"""What python/dmi/vectors/torch_load.py makes of files, many of them in one process, which imports torch once: torch_vectors_client.py TORCH_LOAD FOLDER.

Of each .pt of the folder a line {"name": ..., "error": ...} or {"name": ..., "layers": [[layer, numbers, to]], "unused": [...]}.
"""
import importlib.util
import json
import os
import pathlib
import sys
from array import array

sys.setdlopenflags(os.RTLD_LAZY)
import torch  # noqa: E402

spec = importlib.util.spec_from_file_location("torch_load", sys.argv[1])
torch_load = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_load)


def main(folder):
    for path in sorted(pathlib.Path(folder).glob("*.pt")):
        answer, data = torch_load.answer_of(torch, path)
        data = b"".join(data)
        layers, at = [], 0
        for layer, width, to in answer.pop("layers", []):
            layers.append([layer, array("f", data[at:at + 4 * width]).tolist(), to])
            at += 4 * width
        print(json.dumps({"name": path.name, "layers": layers, "whole": at == len(data)} | answer), flush=True)


main(sys.argv[2])
