#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Edits by taps of vLLM's own models, against the same arithmetic in hooks of Hugging Face's model with the same weights: vllm_edits_client.py FAMILY HOW FOLDER

HOW is vllm_model_client.py's. The last tokens of a prompt are edited, in layers 0 and 1: as attention is causal, the rows before keep their bits.
Prints a line of JSON for each thing that must hold: [holds, what, detail].
"""
import pathlib
import sys

import vllm_model_client as models  # first: it imports vLLM as it must be
import torch

import dmi
import dmi.torch
import edits_client as edits
from attach_client import check
from dmi.torch import names

FIRST, LAYERS = 7, (0, 1)


class Hooks(edits.Hooks):
    """Of the model's rows from FIRST on."""

    def __init__(self, model, site, v):
        def change(x):
            x[FIRST:] += 2.5 * v
            return x
        super().__init__(model, site, LAYERS, change, row=0)


def announced(run, device, step):
    assert dmi.step_begin(step, [dmi.Span("r", 0, models.T, n_prompt=models.T)], caches=False) == 0
    device.on = True
    with torch.no_grad():
        out = run()
    device.on = False
    dmi.step_end()
    dmi.request_end("r", dmi.End.LENGTH)
    return out


def main():
    family, how, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    ours, theirs, run, _ = models.built(family, how, folder)
    device, what = edits.Writing(), f"{family}, {how}"
    device.on = False
    attached = dmi.torch.attach(ours, write=names.WRITABLE, sink=device)
    check(not attached.missing, f"{what}: all places are there", attached.missing)
    plain = announced(run, device, 0)
    for step, site in enumerate(names.WRITABLE, 1):
        path, v = edits.vector_of(folder, edits.width(theirs, site))
        once = site in names.ONCE
        with dmi.edit(path, times=2.5, layers=None if once else "0-1", sites=site, tokens=f"{FIRST}:{models.T}") as done:
            found = announced(run, device, step)
        with torch.no_grad(), Hooks(theirs, site, v):
            wanted = theirs(models.IDS[None]).logits[0]
        off = ((found - wanted).abs().max() / wanted.abs().max()).item()
        check(off <= 2e-5, f"{what}, add at {site}: as Hugging Face's", off)
        check(torch.equal(found[:FIRST], plain[:FIRST]), f"{what}, {site}: other rows keep their bits", (found[:FIRST] - plain[:FIRST]).abs().max())
        check((found[FIRST:] - plain[FIRST:]).abs().max() > 1e-3, f"{what}, {site}: the edit does something")
        rows, = done.rows.values()
        due = (models.T - FIRST) * (1 if once else len(LAYERS))
        check((rows.due, rows.written) == (due, due), f"{what}, {site}: rows are counted", rows)


if __name__ == "__main__":
    main()
