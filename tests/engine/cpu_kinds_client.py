#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors on the CPU of all kinds, tapped and edited by the library, in a process without a driver: cpu_kinds_client.py FOLDER

FOLDER/expected.safetensors gets {REQUEST/SITE.LAYER: rows} of what was tapped, which is overwritten at once. Prints a line of JSON for each thing that must hold, as
attach_client.py does.
"""
import itertools
import os
import pathlib
import sys
import threading
import types

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.huggingface  # noqa: E402
import dmi.torch  # noqa: E402
from attach_client import check  # noqa: E402

N, WIDTH = 6, 8
STEPS, EXPECTED = itertools.count(), {}


def base(dtype=torch.float32):
    return torch.randn(16, 16).to(dtype)


KINDS = {
    "transposed": lambda: base()[:WIDTH, :N].t(),
    "every_other": lambda: base()[:2 * N:2, 1::2],
    "backward_rows": lambda: base()[4:4 + N].unfold(1, WIDTH, 8)[:, 1],
    "f16": lambda: base(torch.float16)[:N, :WIDTH],
    "bf16": lambda: base(torch.bfloat16)[:N, :WIDTH].contiguous(),
    "heads": lambda: base()[:4, :12].reshape(2, N, 4).transpose(0, 1),
}


def announced(request, n=N, **more):
    assert dmi.step_begin(next(STEPS), [dmi.Span(request, 0, n, n_prompt=n)], caches=False, **more) == 0


def tapped(request, x, site="resid_pre", **more):
    """It holds something else at once."""
    EXPECTED[f"{request}/{site}.0"] = x.detach().reshape(len(x), -1).contiguous().clone()
    announced(request, len(x), **more)
    dmi.torch.tap(x, site, 0, rows=[0])
    x.detach().zero_()
    dmi.step_end()


def captures():
    for name, make in KINDS.items():
        tapped(name, make())
    with torch.inference_mode():
        tapped("inference", base()[:N, :WIDTH] * 2)
    with torch.enable_grad():
        tapped("grad", torch.randn(N, WIDTH, requires_grad=True) * 2)
    negated = torch.view_as_complex(torch.randn(N, WIDTH, 2)).conj().imag
    assert negated.is_neg()
    tapped("negated", negated)
    x = torch.randn(1, WIDTH).expand(N, WIDTH)
    EXPECTED["expanded/resid_pre.0"] = x.contiguous()
    announced("expanded")
    dmi.torch.tap(x, "resid_pre", 0)
    tapped("computed_by_threads", torch.randn(N, 4096) @ torch.randn(4096, 4096))


def in_threads():
    """Each has steps of its own."""
    def work(number):
        for i in range(20):
            tapped(f"thread-{number}-{i}", torch.randn(N, WIDTH), of_thread=True)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def edits(folder):
    """In place, whatever its strides; the bits are those of PyTorch's own addition. Elements that lie over one another are left alone."""
    v = torch.randn(WIDTH)
    np.save(folder / "v.npy", v.numpy())
    for name, make in KINDS.items():
        for mode in (torch.no_grad, torch.inference_mode):
            with mode(), dmi.edit(folder / "v.npy", times=2, sites="resid_post") as done:
                x = make()
                wanted = x + 2 * v.to(x.dtype).reshape(x.shape[1:])
                announced(f"edited-{name}-{mode.__name__}")
                dmi.torch.tap(x, "resid_post", 0, rows=(0,), writable=True)
                dmi.step_end()
            rows, = done.rows.values()
            check(torch.equal(x, wanted) and (rows.due, rows.written) == (N, N), f"{name}, {mode.__name__}: written in place", rows)
    x = torch.zeros(1, WIDTH).expand(N, WIDTH)
    try:
        with dmi.edit(folder / "v.npy", sites="resid_post") as done:
            announced("overlapping")
            dmi.torch.tap(x, "resid_post", 0, writable=True)
            dmi.step_end()
    except dmi.edits.NotDone:
        pass
    check(not x.any() and done.rows["v"].missed == {"unsupported": N}, "elements that lie over one another", done.rows)
    x = torch.full((N, WIDTH), 1e-40)
    wanted = x * 0.5
    (folder / "half.yaml").write_text("editspec: 1\nedits: [{name: half, site: resid_post, do: [{scale: 0.5}]}]\n")
    with dmi.edit(folder / "half.yaml"):
        announced("denormal")
        torch.set_flush_denormal(True)
        dmi.torch.tap(x, "resid_post", 0, writable=True)
        torch.set_flush_denormal(False)
        dmi.step_end()
    check(torch.equal(x, wanted) and x.all(), "numbers below the least normal one are kept, whatever the thread does with them", x[0, 0].item())


def recomputed():
    """What gradient checkpointing computes again is tapped once, and edited in the forward."""
    model, ids = models.model_of("llama").train(), models.prompt()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with torch.enable_grad(), dmi.torch.attach(model, "resid_pre", layers="0"):
        announced("recomputed", ids.numel())
        embedded = model.model.embed_tokens(ids)
        loss = model(inputs_embeds=embedded, use_cache=False).logits.sum()
        loss.backward()
        dmi.step_end()
    EXPECTED["recomputed/resid_pre.0"] = embedded.detach().reshape(ids.numel(), -1).clone()


def collected():
    """dmi.collect() gives the program what a hook saw, as soon as the block ends, by the request's name, place or output; so does the run that is under way."""
    model, seen = models.model_of("llama"), []
    for key, value in {"pad_token_id": 0, "eos_token_id": None, "do_sample": False}.items():
        setattr(model.generation_config, key, value)
    dmi.huggingface.attach(model)
    hook = model.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].clone().reshape(-1, given[0].shape[-1])))
    with dmi.torch.attach(model, "resid_pre", layers="0,last"):
        with dmi.collect(sites=["resid_pre"], layers="0") as got, dmi.huggingface.requests("collected"):
            model.generate(models.prompt()[:1], max_new_tokens=3)
    hook.remove()
    of = got["collected"], got[0], got[types.SimpleNamespace(request_id="collected")]
    check(all(torch.equal(one.resid_pre[0], torch.cat(seen)) for one in of), "dmi.collect() has the values that a hook sees", got)
    with dmi.open(next(pathlib.Path(os.environ["DMI_OUT"]).iterdir())) as run:
        check(np.array_equal(run["collected/resid_pre.0"].numpy(), torch.cat(seen).numpy()), "and so has the run, while it is written", list(run)[-4:])
        cache = run.cache("collected")
        check(np.array_equal(cache["blocks.0.hook_resid_pre"], torch.cat(seen).numpy()), "and its cache, by TransformerLens's names", list(cache))
    EXPECTED["collected/resid_pre.0"] = torch.cat(seen)


def of_a_child(name, queue):
    tapped(name, torch.randn(N, WIDTH))
    queue.put([(key, value.numpy()) for key, value in EXPECTED.items() if key.startswith(name)])


def in_processes():
    """Of torch.multiprocessing: each opens a run of its own."""
    for how in ("fork", "spawn"):
        context = torch.multiprocessing.get_context(how)
        queue = context.Queue()
        child = context.Process(target=of_a_child, args=(f"child-{how}", queue))
        child.start()
        EXPECTED.update((key, torch.from_numpy(value)) for key, value in queue.get())
        child.join()


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    folder = pathlib.Path(sys.argv[1])
    captures()
    in_threads()
    edits(folder)
    recomputed()
    collected()
    in_processes()
    dmi.torch.tap(torch.zeros(2, 2, device="meta"), "resid_pre", 0)
    dmi.torch.tap(torch.zeros(2, 2, device="meta"), "resid_pre", 1)
    save_file(EXPECTED, folder / "expected.safetensors")


if __name__ == "__main__":
    main()
