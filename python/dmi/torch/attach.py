# SPDX-License-Identifier: Apache-2.0
"""python -m dmi.torch.attach [--sites SITES] [--write SITES] [--layers LAYERS] SCRIPT [ARGUMENT ...]

Runs SCRIPT, unchanged, with every model of Hugging Face's attached at its first forward. A program only: in other programs
dmi.torch.attach is the function.
"""
import sys

if __name__ != "__main__":
    raise ImportError("dmi.torch.attach is a function: import dmi.torch")

from dmi.torch.script import main  # noqa: E402

main(sys.argv[1:])
