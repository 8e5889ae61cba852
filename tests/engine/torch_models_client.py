# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's in PyTorch's CUDA, in the ways in which programs run them: torch_models_client.py FOLDER KIND DEVICE PROGRAM...

KIND: plain; hooks, in which forward hooks note what taps should see; or written, in which forward hooks do what the edit of test_torch_models.py
does. The programs announce their steps, and know nothing else of DMI. Each is a process of its own, forked from one that has imported PyTorch.
FOLDER/PROGRAM.safetensors has what it computed, FOLDER/PROGRAM.sites.safetensors what hooks saw: {REQUEST/SITE.LAYER: rows}. Prints a line of JSON for each thing
that must hold, as attach_client.py does.
"""
import gc
import itertools
import os
import pathlib
import sys
import threading

sys.setdlopenflags(os.RTLD_LAZY)  # without a driver most of the CUDA libraries that torch is linked to are not there
import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import attach_models as models  # noqa: E402
import dmi  # noqa: E402
import dmi.huggingface  # noqa: E402
from attach_client import by_row, check  # noqa: E402

KIND = "plain"
DEVICE = "cuda"
LAYERS = models.LAYERS = 2
# What the edit of test_torch_models.py adds behind EDITED in the requests whose names end with -b: TIMES the vector of FOLDER/vector.safetensors.
EDITED, TIMES = 0, 2.5
WRITTEN_ROW = 1  # of that request in the batch
STEPS = itertools.count()


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def model_of(name="llama", dtype=torch.float32, device=None):
    models.CONFIGS[name][1]["num_hidden_layers"] = LAYERS
    model = models.model_of(name).to(dtype)
    model.generation_config.eos_token_id = None
    model = model.to(device or DEVICE)
    if KIND == "written":
        write(model, load_file(sys.argv[1] + "/vector.safetensors")["v"].to(model.device, dtype))
    return model


def write(model, vector):
    """A hook that adds to the second request of a batch."""
    def hook(_, given, out):
        x = out[0] if isinstance(out, tuple) else out
        x[WRITTEN_ROW].add_(TIMES * vector)
    models.blocks_of(model)[EDITED].register_forward_hook(hook)


def batches(n=3):
    return [(models.prompt() + 5 * k) % (models.VOCABULARY - 4) for k in range(n)]


class Rows(models.Reference):
    """What hooks see of forwards that follow each other: their tokens in one tensor."""

    def keep(self, site, layer, x):
        before = self.sites.get((site, layer))
        super().keep(site, layer, x)
        if before is not None:
            self.sites[site, layer] = torch.cat([before, x], 2 if site.endswith("_rot") else 1)


class Program:
    """What one program computed, and what hooks saw."""

    def __init__(self, name, of_thread=False):
        self.name, self.of_thread, self.outputs, self.again = name, of_thread, {}, []
        self.reversed = ()  # forwards whose second request is the first of the batch

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
        return f"{self.name}-{n}-{('ba' if n in self.reversed else 'ab')[row]}"

    def forward(self, n, ids, call, model, family="llama"):
        """The logits that @call gives of @ids, kept."""
        self.keep(n, ids, self.announced(n, ids, call), model, family)

    def keep(self, n, ids, logits, model, family="llama"):
        """What the forward @n of @ids left."""
        logits = logits.detach().cpu()
        self.outputs[f"logits.{n}"] = logits.flip(0) if n in self.reversed else logits.clone()

        def again():
            reference = models.Reference(family, model)
            logits = model(ids.to(model.device)).logits
            reference.end()
            return {**reference.sites, ("final_logits", None): logits}
        self.again.append((self, n, family, [0] * len(ids), again))

    def generated(self, n, model, given, **options):
        """The tokens that generate() finds, and its logits, kept."""
        def call(**more):
            torch.manual_seed(3)
            return model.generate(**given, max_new_tokens=5, output_logits=True, return_dict_in_generate=True, **{"do_sample": False} | options | more)
        with dmi.huggingface.requests(self.request(n, 0), self.request(n, 1)):
            out = call()
        self.outputs |= {f"tokens.{n}": out.sequences.cpu(), f"logits.{n}": torch.stack(out.logits, 1).cpu()}

        def again():
            reference = Rows("llama", model)
            logits = torch.stack(call(disable_compile=True).logits, 1)
            reference.end()
            return {**reference.sites, ("final_logits", None): logits}
        self.again.append((self, n, "llama", (given["attention_mask"] == 0).sum(1).tolist(), again))

    @torch.no_grad()
    def seen(self):
        """{key: rows} of what hooks see in eager forwards of the same tokens; what pads the left of a request is left out."""
        found = {}
        for program, n, family, pads, again in self.again:
            for (site, layer), x in again().items():
                rows = by_row(family, site, x).cpu().unflatten(0, (len(pads), -1))
                for row, pad in enumerate(pads):
                    found[f"{program.request(n, row)}/{site}" + ("" if layer is None else f".{layer}")] = rows[row][0 if site == "final_logits" else pad:].contiguous().clone()
        return found

    def save(self, folder):
        save_file(self.outputs, folder / f"{self.name}.safetensors")
        if KIND == "hooks" and self.again:
            save_file(self.seen(), folder / f"{self.name}.sites.safetensors")


def eager(program, dtype=torch.float32, device=None, family="llama"):
    model = model_of(family, dtype, device)
    for n, ids in enumerate(batches()):
        program.forward(n, ids, lambda ids=ids: model(ids.to(device or DEVICE)).logits, model, family)


def half(program):
    eager(program, torch.bfloat16)


def qwen3(program):
    eager(program, family="qwen3")


def gemma3(program):
    eager(program, torch.bfloat16, family="gemma3")


def gpt_oss(program):
    eager(program, family="gpt_oss")


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
    """Graphs in one pool and in another one; one is deleted, another captured in its place, and the cache is emptied between replays."""
    model, given = model_of(), batches()[0].cuda()
    graphs = [capture(model, given)]
    graphs.append(capture(model, given, graphs[0][0].pool()))
    graphs.append(capture(model, given, torch.cuda.graph_pool_handle()))
    for n, (ids, which) in enumerate(zip(batches(6), (0, 1, 2, 0, 1, 2))):
        def replay(ids=ids, which=which):
            given.copy_(ids)
            graphs[which][0].replay()
            return graphs[which][1].cpu()
        program.forward(n, ids, replay, model)
        if n == 1:
            graphs[0] = None
        if n == 2:
            graphs[0] = capture(model, given, graphs[2][0].pool())
        torch.cuda.empty_cache()
        beside = [torch.full((1000,), k, device="cuda") for k in range(8)]  # where a graph that is gone had its memory
        check(all(bool((x == k).all().item()) for k, x in enumerate(beside)), "memory beside graphs keeps its values")


def deleted_under_way(program):
    """
    A graph of a pool is deleted while its replay is under way. Meanwhile another graph is captured, in another pool, and replayed on another stream, for requests in
    the other order. Its replay, too, is under way when the first one goes on.
    """
    program.reversed = (1,)
    from torch_gates import Gates  # of Triton, which computes on no CPU
    model, given = model_of(), [ids.cuda() for ids in batches(3)]
    gates, streams = Gates(models.blocks_of(model)[0]), [torch.cuda.Stream() for _ in range(2)]
    pools = [torch.cuda.graph_pool_handle() for _ in streams]
    staying = [capture(model, given[2], pool) for pool in pools]

    def graph_of(k):
        """Without torch.cuda.graph(), which waits for the device."""
        global WRITTEN_ROW
        gates.at, WRITTEN_ROW, captured = k, 1 - k, torch.cuda.CUDAGraph()
        with torch.cuda.stream(streams[k]):
            captured.capture_begin(pool=pools[k])
            logits = model(given[k]).logits
            captured.capture_end()
        return captured, logits

    def replay(k, captured, logits):
        with torch.cuda.stream(streams[k]):
            captured.replay()
        return logits
    # What is new in a stream, a pool or a capture, twice: the driver may wait for the device there.
    before = [graph_of(k) for k in range(2)]
    for k in range(2):
        replay(k, *before[k])
    torch.cuda.synchronize()
    dmi.flush()
    del before
    gc.collect()
    gates.close(60)
    results = []
    for k in range(2):
        captured, logits = graph_of(k)
        results.append(program.announced(k, given[k], lambda k=k, graph=captured, logits=logits: replay(k, graph, logits)))
        del captured  # the first one is gone before the second one is captured
        gc.collect()
    check(gates.are_closed() and not any(stream.query() for stream in streams), "both replays are under way")
    for k, stream in enumerate(streams):
        gates.open(k)
        stream.synchronize()
    for k, logits in enumerate(results):
        program.keep(k, given[k], logits, model)
    for k, (captured, logits) in enumerate(staying, 2):
        def call(captured=captured, logits=logits):
            captured.replay()
            return logits
        program.forward(k, given[2], call, model)


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
    several = [model_of() for _ in parts]
    torch.cuda.synchronize()

    def work(mine, model):
        torch.set_grad_enabled(False)  # of a thread
        with torch.cuda.stream(torch.cuda.Stream()):
            ready.wait()
            for n, ids in enumerate(batches()):
                mine.forward(n, ids, lambda ids=ids: model(ids.cuda()).logits, model)
            torch.cuda.current_stream().synchronize()
    running = [threading.Thread(target=work, args=given) for given in zip(parts, several)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for mine in parts:
        program.outputs |= {f"{mine.name}.{name}": x for name, x in mine.outputs.items()}
        program.again += mine.again


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


def separate_attention():
    """For programs that have a mask where the eager forward that they are compared with has none: PyTorch chooses other kernels by that, whose sums differ in their last bits."""
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def half_gradients(program):
    """A forward and its backward pass, both by flash attention."""
    checkpoints(program, torch.bfloat16, False)


def checkpoints(program, dtype=torch.float32, checkpointed=True):
    """Gradients of activations that are computed once more: what taps see is each forward's once."""
    torch.set_grad_enabled(True)
    model = model_of(dtype=dtype)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    for n, ids in enumerate(batches(2)):
        def call(ids=ids):
            logits = model(ids.to(DEVICE), use_cache=False).logits
            logits.square().mean().backward()
            return logits
        program.forward(n, ids, call, model)
    program.outputs |= {f"gradient.{name}": p.grad.cpu() for name, p in model.named_parameters()}


def graph_of_gradients(program):
    """A forward and its backward pass in one graph."""
    separate_attention()
    torch.set_grad_enabled(True)
    model, given, side = model_of(), batches()[0].cuda(), torch.cuda.Stream()

    def step():
        model.zero_grad(set_to_none=False)
        logits = model(given, use_cache=False).logits
        logits.square().mean().backward()
        return logits
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        logits = step()
    for n, ids in enumerate(batches()):
        def replay(ids=ids):
            given.copy_(ids)
            captured.replay()
            return logits
        program.forward(n, ids, replay, model)
    program.outputs |= {f"gradient.{name}": p.grad.cpu() for name, p in model.named_parameters()}


def prompts():
    """Two requests of which the first is padded on the left."""
    ids, mask = models.prompt(2, 7), torch.ones(2, 7, dtype=torch.long)
    ids[0, :4], mask[0, :4] = 0, 0
    return {"input_ids": ids.to(DEVICE), "attention_mask": mask.to(DEVICE)}


def generate(program, n=1, **options):
    model, given = model_of(), prompts()
    dmi.huggingface.attach(model)
    for k in range(n):
        program.generated(k, model, given, **options)


def generate_static(program):
    generate(program, cache_implementation="static", disable_compile=True)


def generate_sampled(program):
    generate(program, do_sample=True, top_k=20, top_p=0.9, temperature=0.8)


def generate_compiled(program):
    """transformers compiles the forward of a token, and replays it."""
    generate(program, 2, cache_implementation="static")


class Marked:
    """Rows of the second request of a manager's batches, for a hook: @mask [row, 1] is filled before each step."""

    def __init__(self, model, most):
        self.mask = torch.zeros(most, 1, dtype=torch.bool, device=model.device)
        vector = load_file(sys.argv[1] + "/vector.safetensors")["v"].to(model.device)

        def hook(_, given, out):
            x = out[0] if isinstance(out, tuple) else out
            x.copy_(torch.where(self.mask[:x.shape[-2]], x + TIMES * vector, x))
        models.blocks_of(model)[EDITED].register_forward_hook(hook)

    def watch(self, processor):
        step = processor._generation_step

        def marking(model):
            batch = processor.inputs_and_outputs
            batch = batch.io_pairs[batch.current_pair].host_io if hasattr(batch, "io_pairs") else batch
            rows = [each.state.request_id == "req_1" for each in batch.requests_in_batch for _ in range(each.query_length)]
            synchronize()  # the batch before may be under way
            self.mask.zero_()
            self.mask[:len(rows), 0] = torch.tensor(rows, device=DEVICE)
            synchronize()
            step(model)
        processor._generation_step = marking


def in_order(processor):
    """
    Each forward waits for the default stream. transformers 5.19 prepares batches there and, where batches take turns, clears their memory; it computes and copies on streams of its own,
    which wait for nothing there, so what it prepared or cleared late may take the place of a batch.
    """
    step = processor._generation_step

    def waiting(model):
        torch.cuda.current_stream().synchronize()
        step(model)
    processor._generation_step = waiting


def generate_batch(program, **options):
    """transformers' continuous batching: the second prompt is computed in parts, as a batch has at most 10 tokens."""
    global KIND
    separate_attention()
    kind, KIND = KIND, "plain"  # rows of a request are others in each batch: Marked knows them
    model, ids, new = model_of(), models.prompt(2, 7), 5
    KIND = kind
    dmi.huggingface.attach(model)
    config = transformers.ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=10, seed=7, return_logprobs=True, allow_block_sharing=False, **options)
    greedy = transformers.GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    marked = Marked(model, 64) if kind == "written" else None
    with model.continuous_batching_context_manager(greedy, continuous_batching_config=config, block=True) as manager:
        if marked:
            marked.watch(manager.batch_processor)
        elif DEVICE == "cuda":
            in_order(manager.batch_processor)
        with dmi.huggingface.requests(program.request(0, 0), program.request(0, 1)):
            names, done = manager.add_requests(ids.tolist(), max_new_tokens=new), {}
        while len(done) < 2:
            if (result := manager.get_result(timeout=60)) is None or result.error:
                break
            done[result.request_id] = result
    check(len(done) == 2, "both requests come to their end")
    done = [done[name] for name in names]
    program.outputs |= {"tokens.0": torch.tensor([one.generated_tokens for one in done]), "logits.0": torch.tensor([one.logprobs for one in done])}

    def again():
        whole = torch.cat([ids, program.outputs["tokens.0"]], 1).to(DEVICE)
        whole = whole if options else whole[:, :-1]  # of two batches in turn the second is on its way when a request ends
        reference = models.Reference("llama", model)
        logits = model(whole).logits
        reference.end()
        return {**reference.sites, ("token_ids", None): whole.int(), ("final_logits", None): logits[:, ids.shape[1] - 1:]}  # one for each token that is chosen
    program.again.append((program, 0, "llama", [0, 0], again))


def generate_batch_graphs(program):
    """The same in graphs, with two batches in turn: padded, and each launched before the tokens of the one before are known."""
    generate_batch(program, use_cuda_graph=True, use_async_batching=True)


def profiled(program):
    """torch.profiler, by CUPTI, beside whatever else uses it."""
    model = model_of()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
        for n, ids in enumerate(batches()):
            program.forward(n, ids, lambda ids=ids: model(ids.cuda()).logits, model)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    check(len(kernels) > 100 and all(event.time_range.end >= event.time_range.start for event in kernels), "the profiler saw the kernels", len(kernels))


PROGRAMS = {one.__name__: one for one in (eager, half, second_device, graph, pools, deleted_under_way, compiled, compiled_default, threads, side_stream, checkpoints, half_gradients,
                                         graph_of_gradients, qwen3, gemma3, gpt_oss, generate, generate_sampled, generate_static, generate_compiled, generate_batch, generate_batch_graphs, profiled)}


def prepare():
    """What all programs have in common: nothing that measures."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch._inductor.config.shape_padding = False  # it measures
    torch._inductor.config.compile_threads = 1


def run(folder, name):
    prepare()
    program = Program(name)
    PROGRAMS[name](program)
    synchronize()
    program.save(folder)


def main():
    global KIND, DEVICE
    folder, KIND, DEVICE, *wanted = pathlib.Path(sys.argv[1]), *sys.argv[2:]
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
