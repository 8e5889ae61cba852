# SPDX-License-Identifier: Apache-2.0
"""What users do with DMI in PyTorch's CUDA, and the same by hooks: torch_uses_client.py FOLDER USE

Without the library a use does by hooks what it does with DMI where the library is in the process. Both leave FOLDER/USE.safetensors, with the same
names; test_torch_uses.py compares them in bits. Where DMI captures into a run, the file of the hooks has {REQUEST/SITE.LAYER: rows}, and the other one nothing of it.
"""
import pathlib
import sys

import torch
import torch._inductor.config
import triton
import triton.language as tl
from safetensors.torch import load_file, save_file

import attach_models as models
import dmi
import dmi.huggingface
import dmi.torch
import torch_models_client as ways
from attach_client import check

BY_HOOKS = not dmi.loaded()
OUT = {}
REQUESTS = ("a", "b")
SCALE = 2.5
STEPS = iter(range(1000))


def announced(n, tokens):
    """Step @n: two requests of @tokens each, named anew in each step."""
    dmi.step_begin(next(STEPS), [dmi.Span(f"{name}{n}", 0, tokens, n_prompt=tokens, first_row=row * tokens) for row, name in enumerate(REQUESTS)], caches=False)


def ended(n):
    dmi.step_end()
    for name in REQUESTS:
        dmi.request_end(f"{name}{n}", dmi.End.LENGTH)


def forward(n, call):
    announced(n, models.prompt().shape[1])
    OUT[f"logits.{n}"] = call().detach().cpu().clone()
    ended(n)


def change_at(model, layer, change, rows=(0, 1)):
    """A hook by which @change(x) of a block's output, in @rows of the batch, takes its place; to be removed."""
    def hook(_, given, out):
        x = out[0] if isinstance(out, tuple) else out
        for row in rows:
            x[row].copy_(change(x, row))
    return models.blocks_of(model)[layer].register_forward_hook(hook)


def vector(folder):
    return load_file(folder / "vector.safetensors")["v"].cuda()


def forwards(folder):
    """Three, that nothing changes."""
    model, ids = ways.model_of(), models.prompt().cuda()
    for n in range(3):
        forward(n, lambda: model(ids).logits)


# ---- dmi.collect() ----

def collected(folder):
    """Of a program that generates, and is attached by dmi-run."""
    model, given = ways.model_of(), ways.prompts()
    if BY_HOOKS:
        reference = ways.Rows("llama", model)
        model.generate(**given, max_new_tokens=4, do_sample=False)
        reference.end()
        for row, pad in enumerate((given["attention_mask"] == 0).sum(1).tolist()):
            OUT.update({f"{REQUESTS[row]}/{site}.{layer}": reference.sites[site, layer][row][pad:].cpu().clone() for site in ("resid_pre", "resid_mid", "resid_post") for layer in range(2)})
        return
    dmi.huggingface.attach(model)
    with dmi.collect(sites="resid_*") as got, dmi.huggingface.requests(*REQUESTS):
        model.generate(**given, max_new_tokens=4, do_sample=False)
    OUT.update({f"{name}/{site}.{layer}": of[site][layer] for name, of in got.items() for site in ("resid_pre", "resid_mid", "resid_post") for layer in range(2)})


# ---- edits ----

def block(folder):
    """dmi.edit() around one of three forwards, of one request."""
    model, ids = ways.model_of(), models.prompt().cuda()
    v = vector(folder)
    for n in range(3):
        call = lambda: model(ids).logits  # noqa: E731
        edited_forward(folder, n, n == 1, call, lambda: change_at(model, 0, lambda x, row: x[row] + SCALE * v, (1,)))


def edited_forward(folder, n, on, call, hook):
    if not on:
        forward(n, call)
    elif BY_HOOKS:
        handle = hook()
        forward(n, call)
        handle.remove()
    else:
        with dmi.edit(folder / "vector.safetensors", times=SCALE, layers=0, sites="resid_post", requests="b*") as done:
            forward(n, call)
        rows, = done.rows.values()
        check((rows.due, rows.written, rows.missed) == (6, 6, {}), "rows are counted", rows)


def replayed(folder):
    """dmi.edit() around one of three replays of a graph that was captured before."""
    model, ids = ways.model_of(), models.prompt().cuda()
    v = vector(folder)
    graph, logits = ways.capture(model, ids)

    def call():
        graph.replay()
        return logits
    for n in range(3):
        if BY_HOOKS and n == 1:
            edited_forward(folder, n, True, lambda: model(ids).logits, lambda: change_at(model, 0, lambda x, row: x[row] + SCALE * v, (1,)))
        else:
            edited_forward(folder, n, n == 1, call, None)


def steered(folder):
    """dmi-run --steer, in generate() that knows nothing of it."""
    model, given = ways.model_of(), ways.prompts()
    if BY_HOOKS:
        v = vector(folder)
        change_at(model, 1, lambda x, row: x[row] + SCALE * v)
    out = model.generate(**given, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True)
    OUT.update({"tokens": out.sequences.cpu(), "logits": torch.stack(out.logits, 1).cpu()})


def patched(folder):
    """Rows of the first request take the place of the second one's, by the bank of edits."""
    model, ids = ways.model_of(), models.prompt().cuda()
    if BY_HOOKS:
        change_at(model, 0, lambda x, row: x[0], (1,))
    else:
        dmi.torch.attach(model, write="resid_post")
    forward(0, lambda: model(ids).logits)
    OUT["other"] = OUT["logits.0"][0].clone()


# ---- taps and sites ----

class Small(torch.nn.Module):
    """Taps by hand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32, bias=False) for _ in range(2))
        self.seen = []

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = x + torch.nn.functional.silu(layer(x))
            if BY_HOOKS:
                self.seen.append(x)
            dmi.torch.tap(x, "stream", layer=i, n_layers=2)
        return torch.tanh(x)


def replay_of(model, given):
    """@model of @given, captured once."""
    model(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.seen.clear()
        result = model(given)
    kept = list(model.seen)

    def replay(_):
        graph.replay()
        model.seen[:] = kept
        return result
    return replay


def taps(folder, how="eager"):
    model, x = Small().cuda(), torch.linspace(-2, 2, 12 * 32).reshape(2, 6, 32).cuda()
    given = x.clone()
    call = replay_of(model, given) if how == "graph" else torch.compile(model, mode="reduce-overhead") if how == "compiled" and not BY_HOOKS else model
    for n in range(4):
        given.copy_(x * (n + 1) / 4)
        model.seen.clear()
        torch.compiler.cudagraph_mark_step_begin()
        forward(n, lambda: call(given))
        if BY_HOOKS:
            OUT.update({f"{name}{n}/stream.{layer}": seen[row].cpu().clone() for layer, seen in enumerate(model.seen) for row, name in enumerate(REQUESTS)})


def taps_graph(folder):
    taps(folder, "graph")


def taps_compiled(folder):
    taps(folder, "compiled")


@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    """y = 2 * x"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def kernels(folder, graph=False):
    """Sites by the names of kernels: one of Triton's, and softmax; and by an NVTX range, in which a kernel is the first."""
    x, y = torch.linspace(-2, 2, 12 * 32).reshape(12, 32).cuda(), torch.empty(12, 32, device="cuda")

    def work():
        twice[(3,)](x, y, 12 * 32, BLOCK=128)
        with torch.cuda.nvtx.range("model.layers.1.act"):
            z = torch.nn.functional.silu(y)
        return z, torch.softmax(z, -1)
    work()
    torch.cuda.synchronize()
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            results = work()
    for n in range(3):
        x.copy_(torch.linspace(-2, 2 + n, 12 * 32).reshape(12, 32))
        announced(n, 6)
        if graph:
            captured.replay()
        else:
            results = work()
        ended(n)
        z, soft = results
        OUT[f"result.{n}"] = soft.cpu()
        if BY_HOOKS:
            for row, name in enumerate(REQUESTS):
                rows = slice(6 * row, 6 * row + 6)
                OUT.update({f"{name}{n}/twice": y[rows].cpu(), f"{name}{n}/softmax": soft[rows].cpu(), f"{name}{n}/act.1": z[rows].cpu()})


def kernels_graph(folder):
    kernels(folder, True)


USES = {one.__name__: one for one in (forwards, collected, block, replayed, steered, patched, taps, taps_graph, taps_compiled, kernels, kernels_graph)}


def main():
    folder, use = pathlib.Path(sys.argv[1]), sys.argv[2]
    ways.prepare()
    USES[use](folder)
    torch.cuda.synchronize()
    save_file({name: x.contiguous() for name, x in OUT.items()}, folder / f"{use}.safetensors")


if __name__ == "__main__":
    main()
