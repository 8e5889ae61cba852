#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dmi.torch.tap() and attach() do at their edges, on the CPU: taps_client.py BACKEND [digest|library]

Prints a line of JSON for each thing that must hold, as attach_client.py does, and the digest of a compiled model's logits.
"""
import contextlib
import copy
import hashlib
import io
import os
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.torch  # noqa: E402
from attach_client import Recorder, check, count_graphs, trace  # noqa: E402
from dmi import taps as library  # noqa: E402
from dmi.torch import taps  # noqa: E402


def raises(what, part, action):
    """@action raises ValueError, and its text holds @part."""
    try:
        action()
    except ValueError as error:
        check(part in str(error), what, error)
    else:
        check(False, what, "it did not raise")


def taps_in(x):
    """One of a tensor that is used no more, one before a change in place, one after it, and one of a view."""
    dead = x * 3
    dmi.torch.tap(dead, "dead", 0)
    h = x * 2
    dmi.torch.tap(h, "before", 1, n_layers=4)
    h.add_(1)
    dmi.torch.tap(h, "after", 2)
    dmi.torch.tap(h.t(), "view")
    return h.sin()


def operator(backend):
    x = torch.arange(12.0).reshape(3, 4)
    wanted = {("dead", 0): x * 3, ("before", 1): x * 2, ("after", 2): x * 2 + 1, ("view", None): (x * 2 + 1).t()}
    counting, count = count_graphs(backend)
    for what, run in (("eager", taps_in), (backend, torch.compile(taps_in, backend=counting, fullgraph=True))):
        recorder = Recorder()
        with taps.redirect(recorder):
            for _ in range(2):
                recorder.calls.clear()
                out = run(x)
        check(torch.allclose(out, (x * 2 + 1).sin()), f"{what}: the result")
        check(sorted(map(str, recorder.calls)) == sorted(map(str, wanted)), f"{what}: each tap once", recorder.calls)
        wrong = [at for at, value in wanted.items() if not torch.equal(recorder.sites.get(at, x[:0]), value)]
        check(not wrong, f"{what}: a dead tensor, one before a change in place and a view have the right values", wrong)
    check(count[0] == 1, "one graph", count[0])
    for what, run in (("eager", taps_in), (backend, torch.compile(taps_in, backend=backend, fullgraph=True))):
        recorder, x = Recorder(), x.detach().requires_grad_()
        with taps.redirect(recorder):
            run(x).sum().backward()
        check(torch.allclose(x.grad, 2 * (2 * x + 1).cos()) and len(recorder.calls) == 4, f"{what}: taps do not disturb gradients")
    check(not any(taps_in(x) is None for _ in range(2)), "without a library nothing is tapped")


class OnCuda:
    """What the library's sink asks of a tensor, of one that is not on this machine."""
    is_cuda, is_cpu, device, dtype, layout, shape = True, False, torch.device("cuda", 3), torch.bfloat16, torch.strided, (2, 5, 7)

    def dim(self):
        return 3

    def is_neg(self):
        return False

    def stride(self):
        return (70, 14, 2)

    def element_size(self):
        return 2

    def data_ptr(self):
        return 0x7000


def to_library():
    """With tests/engine/tap_log.c preloaded."""
    check(library.loaded(), "a library that takes taps is found")
    taps._PLAIN, torch._C._cuda_getCurrentRawStream = (OnCuda, torch.Tensor), lambda index: 0x900 + index
    current, entered = [3], []
    torch._C._cuda_getDevice = lambda: current[0]
    torch.cuda.device = lambda index: (entered.append(index), contextlib.nullcontext())[1]
    dmi.torch.tap(torch.zeros(3), "here")
    dmi.torch.tap(torch.zeros(3, device="meta"), "nowhere")
    dmi.torch.tap(OnCuda(), "q", 3, n_layers=12)
    current[0] = 0
    dmi.torch.tap(OnCuda(), "embed", rows=(1,))
    taps.deliver(taps.to_library, OnCuda(), "resid_post", 1, 12, None, writable=True)
    check(entered == [3, 3], "the tensor's device is the current one", entered)


def never_raises():
    def failing(*_):
        raise RuntimeError("the sink fails")
    model, ids = models.model_of("llama"), models.prompt()
    plain = model(ids).logits
    with dmi.torch.attach(model, "all", sink=failing):
        check(torch.equal(model(ids).logits, plain), "a sink that fails does not reach the model")
    with taps.redirect(failing):
        dmi.torch.tap(torch.zeros(3), "x")
        dmi.torch.tap(None, "x")
        dmi.torch.tap(torch.zeros((1,) * 7), "x")
    with dmi.torch.attach(model, "token_ids,resid_pre,k_rot", sink=Recorder()):
        embedded = model.get_input_embeddings()(ids)
        check(torch.equal(model(inputs_embeds=embedded).logits, plain), "a model that is given embeddings goes on")


def selection():
    model, recorder = models.model_of("llama"), Recorder()

    def tapped(*args, **kwargs):
        recorder.calls.clear()
        with dmi.torch.attach(model, *args, **kwargs, sink=recorder):
            model(models.prompt())
        return set(recorder.calls)

    check(tapped("blocks.1.hook_resid_pre,hook_embed") == {("resid_pre", 1), ("embed", None)}, "TransformerLens's names")
    check(tapped("eagle3") == {("resid_pre", 1), ("resid_pre", 0), ("resid_pre", 2)}, "eagle3: layers 2, n // 2, n - 3", recorder.calls)
    check(tapped("resid_*", "last") == {("resid_pre", 2), ("resid_mid", 2), ("resid_post", 2), ("resid_final", None)}, "patterns and layers")
    check(tapped("module:*.act_fn:out,module:model.norm:in", "0-1") == {
        ("mlp.act_fn.out", 0), ("mlp.act_fn.out", 1), ("model.norm.in", None)}, "modules by path", recorder.calls)
    bare = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with dmi.torch.attach(bare, "module:*:out", sink=recorder):
        recorder.calls.clear()
        bare(torch.ones(2, 4))
    check(recorder.calls == [("0.out", None), ("1.out", None)], "of a model of no family", recorder.calls)
    raises("a wrong name has its nearest", "resid_mid", lambda: tapped("resid_midd"))
    raises("a wrong module has its nearest", "near it: model.norm", lambda: tapped("module:model.nrm:out"))
    raises("a layer that is not there", "0 to 2", lambda: tapped("q", "7"))
    raises("a model of no family", "qwen3_moe", lambda: dmi.torch.attach(bare, "q"))
    raises("a site that the family lacks, alone", "side by side", lambda: dmi.torch.attach(models.model_of("phi"), "resid_mid"))
    with dmi.torch.attach(model, "q", sink=recorder):
        raises("a second time", "attached already: detach() first", lambda: dmi.torch.attach(model, "k"))
        os.environ["DMI_ATTACH"] = "q"
        raises("a second time, after dmi-run", "give dmi-run --tap and --write", lambda: dmi.torch.attach(model, "k"))
        del os.environ["DMI_ATTACH"]
    with dmi.torch.attach(model, "all", sink=hash):
        saved = io.BytesIO()
        torch.save(model, saved)
        check(b"_KeysHook" in saved.getvalue(), "an attached model can be saved as one object")
    before = trace(model)
    idle = dmi.torch.attach(model, "all")
    check(not library.loaded() and not idle.active and trace(model) == before, "without library and sink the model stays as it is")


def refused():
    """Whatever was compiled: the model, in place or not, a part of it, its forward()."""
    def by_part(model):
        model.model.layers[1] = torch.compile(model.model.layers[1])

    def by_forward(model):
        model.forward = torch.compile(model.forward)
    kept = []
    for what, compile_it in (("torch.compile(model)", lambda model: kept.append(torch.compile(model))), ("model.compile()", torch.nn.Module.compile),
                             ("a layer", by_part), ("forward", by_forward)):
        model = models.model_of("llama")
        compile_it(model)
        raises(f"compiled already: {what}", "compiled already", lambda model=model: dmi.torch.attach(model, "q", sink=Recorder()))
    model = models.model_of("llama")
    torch.compile(model)
    with dmi.torch.attach(model, "q", sink=Recorder()) as attached:
        check(attached.active, "what was compiled and thrown away does not matter")
    raises("compiled already: what torch.compile() returned", "compiled already",
           lambda: dmi.torch.attach(torch.compile(models.model_of("llama")), "q", sink=Recorder()))


def places(backend):
    """Layers are right after the places moved, and of a copy nothing is tapped under a wrong one."""
    model, ids, recorder = models.model_of("llama"), models.prompt(), Recorder()
    with dmi.torch.attach(model, "resid_pre", sink=recorder) as attached:
        fast = torch.compile(model, backend=backend)
        fast(ids)
        moved = [module for module in model.modules() if taps.PLACE in module._buffers]
        old = [module._buffers[taps.PLACE] for module in moved]
        for module, place in zip(moved, reversed(old)):  # each one lies where another lay
            module._buffers[taps.PLACE] = place
        torch._dynamo.reset()
        recorder.calls.clear()
        hidden = fast(ids, output_hidden_states=True).hidden_states
        recorder.sites.clear()
        fast(ids)
        wrong = [layer for layer in range(models.LAYERS) if not torch.allclose(
            recorder.sites["resid_pre", layer], hidden[layer].flatten(0, 1), atol=1e-5)]
        check(not wrong, "a place that moved to another's address is not taken for it", wrong)
        twin = copy.deepcopy(model)
        recorder.calls.clear()
        torch.compile(twin, backend=backend)(ids)
        check(not recorder.calls, "a copy of the model taps nothing in its graphs", recorder.calls)
        attached.detach()


def digest(backend):
    """Of the logits that a compiled model with taps gives, whatever becomes of the taps."""
    model = models.model_of("qwen3")
    dmi.torch.attach(model, "all", sink=lambda *_: None)
    out = torch.compile(model, backend=backend)(models.prompt())
    print("logits", hashlib.sha256(out.logits.numpy().tobytes()).hexdigest())


def main():
    backend, what = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    if what == ["library"]:
        to_library()
        return
    if not what:
        operator(backend)
    torch.set_grad_enabled(False)
    if what == ["digest"]:
        digest(backend)
        return
    never_raises()
    selection()
    refused()
    places(backend)


if __name__ == "__main__":
    main()
