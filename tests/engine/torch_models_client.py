# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's in PyTorch's CUDA, in the ways in which programs run them: torch_models_client.py FOLDER KIND PROGRAM...

KIND: plain; hooks, in which forward hooks note what taps should see; or written, in which forward hooks do what the edit of test_torch_models.py
does. The programs announce their steps, and know nothing else of DMI. Each is a process of its own, forked from one that has imported PyTorch.
FOLDER/PROGRAM.safetensors has what it computed, FOLDER/PROGRAM.sites.safetensors what hooks saw: {REQUEST/SITE.LAYER: rows}. Prints a line of JSON for each thing
that must hold, as attach_client.py does.
"""
import itertools
import os
import pathlib
import sys
import threading

import torch
import torch._inductor.config
from safetensors.torch import save_file

import attach_models as models
import dmi
from attach_client import by_row, check

KIND = "plain"
LAYERS = models.LAYERS = 2
# What the edit of test_torch_models.py adds behind EDITED in the requests whose names end with -b.
EDITED, TIMES = 0, 2.5
VECTOR = torch.linspace(-1, 1, models.WIDTH)
STEPS = itertools.count()


def model_of(name="llama", dtype=torch.float32, device="cuda"):
    models.CONFIGS[name][1]["num_hidden_layers"] = LAYERS
    model = models.model_of(name).to(dtype)
    model.generation_config.eos_token_id = None
    model = model.to(device)
    if KIND == "written":
        models.blocks_of(model)[EDITED].register_forward_hook(write)
    return model


def write(_, given, out):
    """Adds to the second row of a batch."""
    x = out[0] if isinstance(out, tuple) else out
    if x.shape[0] > 1:
        x[1].add_(TIMES * VECTOR.to(x.device, x.dtype))


def batches(n=3):
    return [(models.prompt() + 5 * k) % (models.VOCABULARY - 4) for k in range(n)]


class Program:
    """What one program computed, and what hooks saw."""

    def __init__(self, name, of_thread=False):
        self.name, self.of_thread, self.outputs, self.forwards = name, of_thread, {}, []

    def announced(self, n, ids, call):
        """@call(), as step @n of the program: the forward of @ids. A row of the batch is a request."""
        tokens = ids.shape[1]
        dmi.step_begin(next(STEPS), [dmi.Span(self.request(n, row), 0, tokens, n_prompt=tokens, first_row=row * tokens) for row in range(len(ids))], caches=False,
                       of_thread=self.of_thread)
        out = call()
        dmi.step_end()
        for row in range(len(ids)):
            dmi.request_end(self.request(n, row), dmi.End.LENGTH)
        return out

    def request(self, n, row):
        return f"{self.name}-{n}-{'ab'[row]}"

    def forward(self, n, ids, call, model):
        """The logits that @call gives of @ids, kept."""
        self.outputs[f"logits.{n}"] = self.announced(n, ids, call).detach().cpu().clone()
        self.forwards.append((self, n, ids, model))

    def seen(self):
        """{key: rows} of what hooks see in an eager forward of the same ids."""
        found = {}
        for program, n, ids, model in self.forwards:
            reference = models.Reference("llama", model)
            logits = model(ids.to(model.device)).logits
            reference.end()
            for (site, layer), x in {**reference.sites, ("final_logits", None): logits}.items():
                rows = by_row("llama", site, x).cpu().unflatten(0, ids.shape)
                for row in range(len(ids)):
                    found[f"{program.request(n, row)}/{site}" + ("" if layer is None else f".{layer}")] = rows[row].contiguous().clone()
        return found

    def save(self, folder):
        save_file(self.outputs, folder / f"{self.name}.safetensors")
        if KIND == "hooks":
            save_file(self.seen(), folder / f"{self.name}.sites.safetensors")


def eager(program, dtype=torch.float32, device="cuda"):
    model = model_of(dtype=dtype, device=device)
    for n, ids in enumerate(batches()):
        program.forward(n, ids, lambda ids=ids: model(ids.to(device)).logits, model)


def half(program):
    eager(program, torch.bfloat16)


def second_device(program):
    eager(program, device="cuda:1")


def graph(program):
    """Captured by hand, replayed with other ids."""
    model, given = model_of(), batches()[0].cuda()
    captured, logits = capture(model, given)
    for n, ids in enumerate(batches()):
        def replay(ids=ids):
            given.copy_(ids)
            captured.replay()
            return logits
        program.forward(n, ids, replay, model)


def capture(model, given, pool=None):
    """(graph of a forward of @given, where it leaves the logits)"""
    model(given)  # what the first forward alone does
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, pool=pool):
        logits = model(given).logits
    return captured, logits


def pools(program):
    """Graphs in one pool and in another one; one is deleted, and the cache is emptied between replays."""
    model, given = model_of(), batches()[0].cuda()
    graphs = [capture(model, given)]
    graphs.append(capture(model, given, graphs[0][0].pool()))
    graphs.append(capture(model, given, torch.cuda.graph_pool_handle()))
    for n, (ids, which) in enumerate(zip(batches(5), (0, 1, 2, 1, 2))):
        def replay(ids=ids, which=which):
            given.copy_(ids)
            graphs[which][0].replay()
            return graphs[which][1].cpu()
        program.forward(n, ids, replay, model)
        if n == 1:
            graphs[0] = None
        torch.cuda.empty_cache()
        beside = [torch.full((1000,), k, device="cuda") for k in range(8)]  # where a graph that is gone had its memory
        check(all(bool((x == k).all().item()) for k, x in enumerate(beside)), "memory beside graphs keeps its values")


def compiled(program, mode="reduce-overhead"):
    model = model_of()
    fast = torch.compile(model, mode=mode)
    for n, ids in enumerate(batches(4)):
        def call(ids=ids):
            torch.compiler.cudagraph_mark_step_begin()
            return fast(ids.cuda()).logits
        program.forward(n, ids, call, model)
    if mode:
        from torch._inductor import cudagraph_trees
        manager = cudagraph_trees.get_container(0).tree_manager
        check(manager is not None and manager.path_state == cudagraph_trees.ExecutionState.EXECUTION, "the last forward replayed a graph of a tree")


def compiled_default(program):
    compiled(program, None)


def threads(program):
    """Two models in two threads, each with a stream of its own."""
    ready, parts = threading.Barrier(2), [Program(f"{program.name}{k}", of_thread=True) for k in range(2)]

    def work(mine):
        with torch.cuda.stream(torch.cuda.Stream()):
            model = model_of()
            ready.wait()
            for n, ids in enumerate(batches()):
                mine.forward(n, ids, lambda ids=ids: model(ids.cuda()).logits, model)
            torch.cuda.current_stream().synchronize()
    several = [threading.Thread(target=work, args=(mine,)) for mine in parts]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    for mine in parts:
        program.outputs |= {f"{mine.name}.{name}": x for name, x in mine.outputs.items()}
        program.forwards += mine.forwards


def side_stream(program):
    """A forward on a stream that waits for another one, which then waits for it."""
    model, side = model_of(), torch.cuda.Stream()
    for n, ids in enumerate(batches()):
        def call(ids=ids):
            there = ids.cuda(non_blocking=True)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                logits = model(there).logits
                there.record_stream(side)
            torch.cuda.current_stream().wait_stream(side)
            logits.record_stream(torch.cuda.current_stream())
            return logits
        program.forward(n, ids, call, model)


def checkpoints(program):
    """Gradients of activations that are computed once more: what taps see is each forward's once."""
    torch.set_grad_enabled(True)
    model = model_of()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    for n, ids in enumerate(batches(2)):
        def call(ids=ids):
            logits = model(ids.cuda(), use_cache=False).logits
            logits.square().mean().backward()
            return logits
        program.outputs[f"logits.{n}"] = program.announced(n, ids, call).detach().cpu()
    program.outputs |= {f"gradient.{name}": p.grad.cpu() for name, p in model.named_parameters()}


PROGRAMS = {one.__name__: one for one in (eager, half, second_device, graph, pools, compiled, compiled_default, threads, side_stream, checkpoints)}


def run(folder, name):
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch._inductor.config.shape_padding = False  # it measures, on random numbers
    torch._inductor.config.compile_threads = 1
    for kernel in ("flash", "mem_efficient", "cudnn"):  # machine code alone
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(False)
    program = Program(name)
    PROGRAMS[name](program)
    torch.cuda.synchronize()
    program.save(folder)


def main():
    global KIND
    folder, KIND, *wanted = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    for name in wanted:
        child = os.fork()
        if not child:
            run(folder, name)
            sys.stdout.flush()
            sys.exit()
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        check(ended == 0, f"{name} ends", ended)


if __name__ == "__main__":
    main()
