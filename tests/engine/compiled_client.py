#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Edits in graphs of PyTorch's compiler: compiled_client.py module|llama BACKEND FOLDER [cpu]

module: a small one that calls dmi.torch.edit(); llama: one of Hugging Face's, attached at all its places before it is compiled, once. What an edit makes
of the edited request is what the same arithmetic in eager hooks makes; other requests keep the bits that the same graph gives without edits.
Prints a line of JSON for each thing that must hold, as attach_client.py does.
"""
import pathlib
import sys

import edits_client as edits  # first: it imports PyTorch as it must be
import torch

import dmi
import dmi.torch
from attach_client import TOLERANCE, check
from dmi.torch import names, taps

N_TOKENS, STEPS = 6, iter(range(1000))


def announced(model, x, device):
    """A forward of three requests of @N_TOKENS each, by their names."""
    spans = [dmi.Span(name, 0, N_TOKENS, n_prompt=N_TOKENS, first_row=i * N_TOKENS) for i, name in enumerate(edits.NAMES)]
    assert dmi.step_begin(next(STEPS), spans, caches=False) == 0
    device.on = True
    out = model(x)
    device.on = False
    dmi.step_end()
    for name in edits.NAMES:
        dmi.request_end(name, dmi.End.LENGTH)
    return out


def compare(found, wanted, plain, what, tolerance):
    others = [i for i in range(len(edits.NAMES)) if i != edits.ROW]
    off = (found[edits.ROW] - wanted[edits.ROW]).abs().max().item() / max(wanted[edits.ROW].abs().max().item(), 1e-9)
    check(off <= tolerance, f"{what}: as eager arithmetic", off)
    check(torch.equal(found[others], plain[others]), f"{what}: other requests keep their bits")
    check((wanted[edits.ROW] - plain[edits.ROW]).abs().max() > 1e-3, f"{what}: the edit does something")


class Small(torch.nn.Module):
    """Two layers that add to a stream; what is passed on is what edit() returned."""

    def __init__(self, change):
        super().__init__()
        self.layers, self.change = torch.nn.ModuleList(torch.nn.Linear(32, 32, bias=False) for _ in range(2)), change

    def forward(self, x):
        kept = []
        for i, layer in enumerate(self.layers):
            x = x + torch.nn.functional.silu(layer(x))
            kept.append(x)  # from before the edit, which must not see it
            x = self.change(x, i)
        return torch.stack([*kept, torch.tanh(x)], 1)


def module(backend, device, folder):
    path, v = edits.vector_of(folder, 32)
    torch.manual_seed(3)
    x = torch.randn(3, N_TOKENS, 32)
    tapped = Small(lambda x, i: dmi.torch.edit(x, "resid_post", i))

    def by_hand(x, i):
        x = x.clone()
        x[edits.ROW] += 2 * v
        return x
    wanted = Small(by_hand)
    wanted.load_state_dict(tapped.state_dict())
    check(torch.equal(dmi.torch.edit(x, "resid_post", 0), x), "on the CPU, and without a sink: the tensor's values")
    with taps.redirect(device):
        for what, run, tolerance in (("eager", tapped, 1e-6), (backend, torch.compile(tapped, backend=backend, fullgraph=True), TOLERANCE[backend])):
            plain = announced(run, x, device)
            with dmi.edit(path, times=2, sites="resid_post", requests="b") as done:
                found = announced(run, x, device)
            compare(found, wanted(x), plain, f"edit(), {what}", tolerance)
            check(torch.equal(found[:, 0], plain[:, 0]), f"edit(), {what}: the tensor that was given keeps its values")
            rows, = done.rows.values()
            check((rows.due, rows.written) == (2 * N_TOKENS, 2 * N_TOKENS), f"edit(), {what}: rows are counted", rows)
    with torch.enable_grad(), taps.redirect(device):
        x = torch.randn(1, 2, 32, requires_grad=True)
        gradient, = torch.autograd.grad(torch.compile(lambda x: dmi.torch.edit(x * 3, "resid_post", 0).sum(), backend=backend)(x), x)
        check(torch.equal(gradient, torch.full_like(x, 3)), "a gradient passes", gradient)


def llama(backend, device, folder):
    """One graph for all places: edits come and go while it stays."""
    model, ids = edits.small(torch.float32), torch.arange(3 * N_TOKENS).reshape(3, N_TOKENS) % 29 + 1

    def logits(model):
        return lambda ids: model(ids, use_cache=False).logits
    with dmi.torch.attach(model, write=names.WRITABLE, sink=device):
        fast = logits(torch.compile(model, backend=backend, fullgraph=True))
        plain = announced(fast, ids, device)
        compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for site in names.WRITABLE:
            path, v = edits.vector_of(folder, edits.width(model, site))
            once = site in names.ONCE
            with dmi.edit(path, times=2.5, layers=None if once else "1-2", sites=site, requests="b") as done:
                found = announced(fast, ids, device)
            device.on = False
            with edits.Hooks(model, site, (1, 2), lambda x, v=v: x + 2.5 * v):
                wanted = logits(model)(ids)
            compare(found, wanted, plain, f"{backend}, add at {site}", max(TOLERANCE[backend], 1e-6))
            rows, = done.rows.values()
            check((rows.due, rows.written) == ((1 if once else 2) * N_TOKENS,) * 2, f"{backend}, {site}: rows are counted", rows)
        check(torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled, "nothing was compiled again")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    globals()[sys.argv[1]](sys.argv[2], edits.sink(), pathlib.Path(sys.argv[3]))
