#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What flows back into tensors, tapped by the library, and the same by hooks of the tensors: gradients_client.py FOLDER DEVICE PROGRAM...

Hooks see first what FOLDER/PROGRAM.safetensors gets, {REQUEST/SITE.grad.LAYER: rows}; then the same is computed with taps. Prints a line of JSON for each thing that must hold,
as attach_client.py does. Each program has a process of its own, forked from one that has imported PyTorch.
"""
import itertools
import os
import pathlib
import sys
import threading
from functools import partial

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import attach_models as models  # noqa: E402
import dmi  # noqa: E402
import dmi.torch  # noqa: E402
from attach_client import by_row, check  # noqa: E402

FOLDER, DEVICE = pathlib.Path(sys.argv[1]), sys.argv[2]
STEPS, EXPECTED = itertools.count(), {}
N, WIDTH = 6, 8
SOME = {"resid_pre", "resid_mid", "resid_final", "q", "k_rot"}  # what most programs attach


class Flows(models.Reference):
    """{(site, layer): what flowed back last}, by hooks of the tensors themselves."""

    def keep(self, site, layer, x):
        if x.requires_grad:
            x.register_hook(partial(self.flowed, site, layer))

    def flowed(self, site, layer, gradient):
        super().keep(site, layer, gradient)


def announced(*names, tokens=N, of_thread=False):
    """The step that comes: a row of its batch is a request."""
    dmi.step_begin(next(STEPS), [dmi.Span(name, 0, tokens, n_prompt=tokens, first_row=row * tokens) for row, name in enumerate(names)], caches=False, of_thread=of_thread)


def expect(family, flows, *names, sites=frozenset(SOME)):
    for (site, layer), x in flows.sites.items():
        if sites and site not in sites:
            continue
        rows = by_row(family, site, x).cpu().unflatten(0, (len(names), -1))
        EXPECTED.update({f"{name}/{site}.grad" + ("" if layer is None else f".{layer}"): rows[row].contiguous().clone() for row, name in enumerate(names)})


def loss_of(model, ids, flows=None):
    logits = model(ids).logits
    if flows:
        flows.keep("final_logits", None, logits)
    return (logits.float() ** 2).mean()


def llama(dtype=torch.float32):
    return models.model_of("llama").to(DEVICE, dtype)


def ids(k=0):
    return ((models.prompt() + 5 * k) % (models.VOCABULARY - 4)).to(DEVICE)


# ---- models ----

def family(name, dtype=torch.float32):
    """Every site of a family's. The backward pass comes when its step is over, and another one is under way."""
    model = models.model_of(name).to(DEVICE, dtype)
    names = [f"{name}-{str(dtype)[6:]}-{row}" for row in "ab"]
    flows = Flows(name, model)
    loss_of(model, ids(), flows).backward()
    flows.end()
    expect(name, flows, *names, sites=None)
    with dmi.torch.attach(model, "all", gradients=True):
        announced(*names)
        loss = loss_of(model, ids())
        announced("another")
        loss.backward()
        dmi.step_end()


def types():
    for dtype in (torch.float32, torch.bfloat16, torch.float16)[:3 if DEVICE == "cpu" else 1]:  # of others the stand-in lacks kernels
        family("llama", dtype)


def with_hooks_then_taps(run, model):
    """@run(flows or None): what it computes is the same with hooks and with taps."""
    run(partial(Flows, "llama", model))
    with dmi.torch.attach(model, ",".join(SOME), gradients=True):
        run(None)
        dmi.step_end()


def follow(flows, model, k, *names):
    """The forward of a step. Returns (its loss, what hooks see)."""
    of = flows and flows()
    announced(*names)
    loss = loss_of(model, ids(k))
    return loss, of


def settle(of, *names, sites=frozenset(SOME)):
    if of:
        expect("llama", of, *names, sites=sites)
        of.end()


def two_forwards(flows, model):
    """One backward pass: of both."""
    one, of_one = follow(flows, model, 0, "one-a", "one-b")
    if of_one:
        of_one.end()
    two, of_two = follow(flows, model, 1, "two-a", "two-b")
    dmi.step_end()
    (one + 3 * two).backward()
    settle(of_one, "one-a", "one-b")
    settle(of_two, "two-a", "two-b")


def accumulated(flows, model):
    for k in range(3):
        loss, of = follow(flows, model, k, f"micro{k}-a", f"micro{k}-b")
        loss.backward()
        settle(of, f"micro{k}-a", f"micro{k}-b")


def twice(flows, model):
    """A tensor of a request holds what came last."""
    loss, of = follow(flows, model, 0, "twice-a", "twice-b")
    loss.backward(retain_graph=True)
    (5 * loss).backward()
    settle(of, "twice-a", "twice-b")


def never(flows, model):
    """Nothing comes, and nothing is expected."""
    follow(flows, model, 0, "never-a", "never-b")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            follow(flows, model, 1, "none-a", "none-b")


def graph_of_gradients(flows, model):
    """The gradient's own graph leads back into the same tensors."""
    loss, of = follow(flows, model, 0, "graph-a", "graph-b")
    gradient, = torch.autograd.grad(loss, [model.get_input_embeddings().weight], create_graph=True)
    (gradient ** 2).sum().backward()
    settle(of, "graph-a", "graph-b")


def checkpointed(flows, model):
    """The layers are computed again in the backward pass, and the forward's tensors are what it flows back into."""
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    loss, of = follow(flows, model, 0, "checkpoint-a", "checkpoint-b")
    announced("another")
    loss.backward()
    settle(of, "checkpoint-a", "checkpoint-b")
    model.gradient_checkpointing_disable()


def of_models():
    model = llama()
    for run in (two_forwards, accumulated, twice, never, checkpointed):
        with_hooks_then_taps(partial(run, model=model), model)
    with dmi.torch.attach(model, "resid_post", gradients=True):
        announced("detached-a", "detached-b")
        loss = loss_of(model, ids())
    loss.backward()
    dmi.step_end()


def second_order():
    model = llama()
    model.config._attn_implementation = "eager"  # the others have no second derivative
    with_hooks_then_taps(partial(graph_of_gradients, model=model), model)


def reentrant():
    """What such a checkpoint is given has a gradient; what it computes has none that is tapped, which is said."""
    model = llama()
    model.train()

    def run(flows):
        model.gradient_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
        loss, of = follow(flows, model, 0, "reentrant-a", "reentrant-b")
        announced("another")
        loss.backward()
        settle(of, "reentrant-a", "reentrant-b", sites={"resid_pre", "resid_final"})
    with_hooks_then_taps(run, model)


def threads():
    """Each with a model and steps of its own."""
    two = [llama(), llama()]

    def work(number):
        model = two[number]
        for k in range(4):
            announced(f"thread{number}-{k}-a", f"thread{number}-{k}-b", of_thread=True)
            loss = loss_of(model, ids(number + k))
            dmi.step_end()
            loss.backward()
    for number, model in enumerate(two):
        for k in range(4):
            flows = Flows("llama", model)
            loss_of(model, ids(number + k)).backward()
            settle(flows, f"thread{number}-{k}-a", f"thread{number}-{k}-b")
    attached = [dmi.torch.attach(model, "residuals,q,k_rot,gradients") for model in two]
    running = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for one in attached:
        one.detach()


def edited():
    """What the backward pass flows through is what the edit left."""
    model, vector = llama(), torch.linspace(-1, 1, models.WIDTH)
    save_file({"v": vector}, FOLDER / "vector.safetensors")

    def change(_, given, out):
        x = out[0] if isinstance(out, tuple) else out
        x.data.add_(3 * vector.to(x))
    handle, flows = models.blocks_of(model)[1].register_forward_hook(change), Flows("llama", model)
    loss = loss_of(model, ids())
    loss.backward()
    handle.remove()
    settle(flows, "edited-a", "edited-b", sites=SOME | {"resid_post"})
    with dmi.torch.attach(model, "residuals,q,k_rot,resid_post,gradients", write="resid_post"), dmi.edit(FOLDER / "vector.safetensors", times=3, layers=1):
        announced("edited-a", "edited-b")
        ours = loss_of(model, ids())
        ours.backward()
        dmi.step_end()
        check(torch.equal(ours, loss), "the edit is in force", (ours.item(), loss.item()))


def collected():
    """In the program itself."""
    model = llama()
    flows = Flows("llama", model)
    loss_of(model, ids()).backward()
    settle(flows, "collected-a", "collected-b")
    with dmi.torch.attach(model, "residuals,q,k_rot", gradients=True), dmi.collect(sites="resid_*") as got:
        announced("collected-a", "collected-b")
        loss_of(model, ids()).backward()
        dmi.step_end()
    for layer in range(models.LAYERS):
        check(torch.equal(got["collected-b"]["resid_mid.grad"][layer], EXPECTED[f"collected-b/resid_mid.grad.{layer}"]), "dmi.collect() has it", layer)
    check(set(got["collected-a"]) == {site + more for site in ("resid_pre", "resid_mid", "resid_final") for more in ("", ".grad")}, "and the tensors themselves", set(got["collected-a"]))


# ---- taps by hand ----

def random():
    return torch.randn(N, WIDTH).to(DEVICE).requires_grad_()


class Nothing(torch.autograd.Function):
    """A function with no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


def tapped(name, x, after, hooks):
    """@after(x) is a loss: what flows back into x."""
    if hooks:
        x.register_hook(lambda gradient: EXPECTED.__setitem__(f"{name}/stream.grad.0", gradient.reshape(len(gradient), -1).cpu().clone()))
        after(x).backward()
        return
    announced(name, tokens=len(x))
    dmi.torch.tap(x, "stream", 0, rows=(0,), gradient=True)
    dmi.step_end()
    after(x).backward()


KINDS = {
    "expanded": ((N, WIDTH), lambda x: x.sum()),
    "transposed": ((N, WIDTH), lambda x: (x.t() @ torch.linspace(-1, 1, N * 4).reshape(N, 4).to(x)).square().sum()),
    "permuted": ((N, 2, WIDTH), lambda x: (x.permute(2, 1, 0).contiguous() * torch.arange(N).to(x)).square().sum()),
    "two_readers": ((N, WIDTH), lambda x: (x.exp() * x[:, :1]).sum()),
    "in_place_later": ((N, WIDTH), lambda x: x.mul_(3).sin().sum()),
    "scalars": ((N,), lambda x: x.square().sum()),
}


def by_hand():
    for hooks in (True, False):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)[:4 if DEVICE == "cpu" else 1]:
            for kind, (shape, after) in KINDS.items():
                torch.manual_seed(1)
                x = torch.randn(shape).to(DEVICE, dtype).requires_grad_() * 1
                tapped(f"{kind}-{str(dtype)[6:]}", x, after, hooks)
    prompt = torch.linspace(-1, 1, N * WIDTH).reshape(N, WIDTH).to(DEVICE).requires_grad_()  # nothing computed it: it lives on
    for k in range(3):
        EXPECTED[f"leaf{k}/stream.grad.0"] = (2 * (k + 1) * prompt).detach().cpu()
        announced(f"leaf{k}")
        dmi.torch.tap(prompt, "stream", 0, gradient=True)
        ((k + 1) * prompt.square()).sum().backward()
    x = random() * 1
    announced("nothing")
    dmi.torch.tap(x, "stream", 0, gradient=True)
    (Nothing.apply(x).sum() + random().sum()).backward()
    dmi.torch.tap(x.detach(), "stream", 0, gradient=True)
    announced("after")
    after = dmi.torch.edit(random() * 1, "stream", 0, gradient=True)
    after.square().sum().backward()
    dmi.step_end()
    EXPECTED["after/stream.grad.0"] = (2 * after).detach().cpu()


def passes():
    """A layer that runs twice: the gradients come in reverse."""
    weight, x, seen = torch.randn(WIDTH, WIDTH).to(DEVICE), random(), []
    announced("passes")
    for _ in range(2):
        x = torch.nn.functional.silu(x @ weight)
        x.register_hook(lambda gradient: seen.append(gradient.cpu().clone()))
        dmi.torch.tap(x, "stream", 0, gradient=True)
    x.square().sum().backward()
    dmi.step_end()
    EXPECTED["passes/stream.grad.0"] = seen[1]


def graph():
    """Forward and backward in one CUDA graph: each replay is a step."""
    model, given = llama(), ids().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def both():
        loss_of(model, given).backward()
    for k in range(2):
        given.copy_(ids(k))
        flows = Flows("llama", model)
        both()
        settle(flows, f"replay{k}-a", f"replay{k}-b")
    with dmi.torch.attach(model, "residuals,q,k_rot", gradients=True):
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            both()
        for k in range(2):
            given.copy_(ids(k))
            announced(f"replay{k}-a", f"replay{k}-b")
            captured.replay()
            dmi.step_end()
    torch.cuda.synchronize()


def dropped():
    """Gradients that cannot be tapped are expected, and drops."""
    weight = random()
    announced("sparse")
    dmi.torch.tap(weight, "stream", 0, gradient=True)
    torch.nn.functional.embedding(torch.tensor([0, 2]).to(DEVICE), weight, sparse=True).sum().backward()
    dmi.step_end()


def forked():
    """A child that goes on with the parent's forward has a run of its own, in which the gradient is of no step."""
    x = random() * 1
    announced("parent")
    dmi.torch.tap(x, "stream", 0, gradient=True)
    if not (child := os.fork()):
        x.square().sum().backward()
        os._exit(0)
    check(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child ends")
    x.square().sum().backward()
    dmi.step_end()
    EXPECTED["parent/stream.grad.0"] = (2 * x).detach().cpu()


def compiled():
    """An error by name, whatever the backend; without a gradient to come none."""
    for backend in ("eager", "aot_eager"):
        for sites, whole in (("resid_pre,q", True), ("k_rot", True), ("resid_post", False)):
            torch._dynamo.reset()
            model = llama()
            with dmi.torch.attach(model, sites, gradients=True):
                run = torch.compile(model, backend=backend) if whole else model
                for block in () if whole else models.blocks_of(model):
                    block.compile(backend=backend)
                with torch.no_grad():
                    run(ids())
                try:
                    loss_of(run, ids()).backward()
                    said = "nothing"
                except RuntimeError as error:
                    said = str(error)
                check("grad: gradients are not tapped in compiled code: run the model eagerly" in said, "an error says so", (backend, sites, said[:200]))


PROGRAMS = {one.__name__: one for one in (types, of_models, second_order, reentrant, threads, edited, collected, by_hand, passes, graph, dropped, forked, compiled)}


def main():
    torch.set_num_threads(1)
    for name in sys.argv[3:]:
        if child := os.fork():
            if ended := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                sys.exit(f"{name}: {ended}")
            continue
        PROGRAMS.get(name, partial(family, name))()
        if EXPECTED:
            save_file(EXPECTED, FOLDER / f"{name}.safetensors")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
