#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's on the CPU, tapped by the library, in a process without a driver: cpu_client.py FOLDER WHAT FAMILY...

WHAT: eager, or a backend of torch.compile. What forward hooks of attach_models.py see of FAMILY in DTYPE is in FOLDER/FAMILY-DTYPE.safetensors, as {SITE.LAYER: rows};
the request of that name has the taps. Each family has a process of its own, forked from one that has tapped, too: each opens a run of its own.
"""
import itertools
import os
import pathlib
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.torch  # noqa: E402
from attach_client import by_row, expected  # noqa: E402

STEPS = itertools.count()
DTYPES = {"eager": (torch.float32, torch.bfloat16, torch.float16)}


def forward(folder, what, name, dtype):
    """Twice: the second batch lies where the first one did."""
    torch.manual_seed(7)
    model, request = models.model_of(name, experts="eager" if what == "eager" else "batched_mm").to(dtype), f"{name}-{str(dtype)[6:]}"
    batches = [models.prompt(), models.prompt().flip(0)]
    seen = []
    for ids in batches:
        reference = models.Reference(name, model)
        logits = model(ids).logits
        reference.end()
        seen.append((reference.sites, logits))
    with dmi.torch.attach(model, "all"):
        run = model if what == "eager" else torch.compile(model, backend=what)
        for number, (ids, (sites, logits)) in enumerate(zip(batches, seen)):
            n = ids.numel()
            dmi.step_begin(next(STEPS), [dmi.Span(f"{request}-{number}", 0, n, phase=dmi.Phase.PREFILL, n_prompt=n)])
            same = torch.equal(run(ids).logits, logits)
            print(request, number, same if what == "eager" else "compiled", flush=True)
            rows = {f"{site}.{layer}": by_row(name, site, x).contiguous().clone() for (site, layer), x in sites.items() if (site, layer) in expected(name)}
            save_file(rows, folder / f"{request}-{number}.safetensors")
    dmi.step_end()


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    folder, what, *families = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    dmi.torch.tap(torch.arange(6.0).reshape(2, 3), "resid_pre", 0)
    for name in families:
        child = os.fork()
        if not child:
            for dtype in DTYPES.get(what, (torch.float32,)):
                forward(folder, what, name, dtype)
            sys.stdout.flush()
            os._exit(0)
        if ended := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{name}: {ended}")


if __name__ == "__main__":
    main()
