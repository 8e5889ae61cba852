#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Qwen3 with random weights and a static cache: a prompt, then a step for each token, in one way.

Usage: hugging_face_model.py --mode MODE [--take WHAT] [--sites WHICH] [--aside FILE] ... (--help)

hugging_face.py runs it once for each configuration of hugging_face_plan.py. It prints what it measured as a line `result: ` with JSON.
Status 77: this machine cannot; the last line says why. Names are those of PyTorch 2.11 and transformers 5.19. The prompt is
computed eagerly in every mode, as generate() does.
"""
import argparse
import functools
import hashlib
import json
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import hugging_face_plan as plan  # noqa: E402
import torch_cases  # noqa: E402
from marks import COLS, Skip  # noqa: E402
from torch_cases import bits, import_taps, rows_of  # noqa: E402

SEED = 11
TURNS, TURN = 5, 20  # turns of the sites that are switched, and steps in each
WARM_UPS, CHECKED = 3, 8  # steps before the timed ones: in graphs the first are eager, or compile; the others' logits count, too

warnings.filterwarnings("ignore")


class Event:
    """A CPU's: all work is done when it is asked for."""

    def __init__(self):
        self.time = 0.0

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.time - self.time) * 1e3


class Device:
    """A GPU, with a stream of the program's own, or a CPU."""

    def __init__(self, name):
        self.name, self.is_gpu = name, name == "cuda"
        self.torch = torch_cases.import_torch() if self.is_gpu else torch_on_cpu()
        if self.is_gpu:
            self.stream = self.torch.cuda.Stream()
            self.torch.cuda.set_stream(self.stream)

    def event(self, timing=False):
        return self.torch.cuda.Event(enable_timing=timing) if self.is_gpu else Event()

    def pinned(self, like):
        return self.torch.empty(like.shape, dtype=like.dtype, pin_memory=self.is_gpu)

    def wait(self):
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def times(self, n, action, before=lambda: None):
        """Milliseconds of each of @n times @action on the stream; nobody waits between them. @before is not counted."""
        pairs = [(self.event(True), self.event(True)) for _ in range(n)]
        for start, end in pairs:
            before()
            start.record()
            action()
            end.record()
        self.wait()
        return [start.elapsed_time(end) for start, end in pairs]

    def memory(self):
        """Bytes: the most that tensors had, and what is taken of the device now, by whomever."""
        if not self.is_gpu:
            return {}
        free, total = self.torch.cuda.mem_get_info()
        return {"peak_bytes": self.torch.cuda.max_memory_allocated(), "in_use_bytes": total - free}


def torch_on_cpu():
    try:
        import torch
    except ImportError as problem:
        raise Skip(f"PyTorch does not import: {problem}") from None
    return torch


def import_transformers():
    try:
        import transformers
        from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache
    except ImportError as problem:
        raise Skip(f"transformers does not import: {problem}".splitlines()[0]) from None
    return transformers.__version__, Qwen3Config, Qwen3ForCausalLM, StaticCache


class Decoder:
    """The model, its cache, and the token that comes next: always the most likely one."""

    def __init__(self, device, options):
        self.version, config_type, model_type, cache_type = import_transformers()
        self.device, self.torch, torch = device, device.torch, device.torch
        torch.manual_seed(SEED)
        config = config_type(**plan.SIZES[options.size], tie_word_embeddings=True, max_position_embeddings=4096)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device.name):
            self.model = model_type(config).eval()
            self.prompt = torch.randint(config.vocab_size, (options.batch, options.prompt))
            self.token = torch.zeros(options.batch, 1, dtype=torch.int64)
        torch.set_default_dtype(torch.float32)
        n_steps = WARM_UPS + CHECKED + (3 * TURNS * (TURN + 1) if options.take == "turns" else options.steps)
        self.cache = cache_type(config=config, max_cache_len=options.prompt + n_steps)
        self.more, self.found, self.n_tokens = {}, [], 0
        if device.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def layers(self):
        return self.model.model.layers

    def forward(self, ids):
        """Return: the last token's logits, and [(key, tensor)] that hooks kept, or the hidden states that were asked for."""
        self.found.clear()
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1, **self.more)
        kept = list(self.found) or [(f"hidden.{i}", tensor) for i, tensor in enumerate(out.hidden_states or ())]
        self.found.clear()
        return out.logits, kept

    def then(self, logits, n_tokens):
        self.n_tokens += n_tokens
        self.token.copy_(logits[:, -1].argmax(-1, keepdim=True))

    def watch(self, pairs, take, places=plan.SITES):
        """take(KEY, TENSOR) for each of @pairs, (site, layer), by forward hooks."""
        for site, layer in pairs:
            path, side = places[site]
            hook_on(self.layers()[layer].get_submodule(path), side, f"{site}.{layer}", take)


def hook_on(module, side, key, take):
    def before(module, args, kwargs):
        take(key, args[0] if args else kwargs["hidden_states"])

    def after(module, args, out):
        take(key, out[0] if isinstance(out, tuple) else out)

    if side == "in":
        module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        module.register_forward_hook(after)


# ---- how a step is run


def eager(decoder, options):
    return lambda: decoder.forward(decoder.token)


def in_graph(decoder, options):
    """One step, captured by hand. What it returns is overwritten by the next replay."""
    torch = decoder.torch
    if not decoder.device.is_gpu:
        raise Skip("a CPU has no graphs")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=decoder.device.stream):
        returned = decoder.forward(decoder.token)

    def replay():
        graph.replay()
        return returned
    return replay


def each_tensor(value, action):
    """@value, a tensor or what holds some, with what @action returns in the place of each."""
    if isinstance(value, (tuple, list)):
        return type(value)(each_tensor(v, action) for v in value)
    if isinstance(value, dict):
        return {key: each_tensor(v, action) for key, v in value.items()}
    return action(value) if hasattr(value, "data_ptr") else value


def in_pieces(decoder, options):
    """A step whose layers are a graph each, with their taps; what is between them is eager."""
    if not decoder.device.is_gpu:
        raise Skip("a CPU has no graphs")
    torch, layers, shared = decoder.torch, decoder.layers(), []

    class Piece(torch.nn.Module):
        """Captured at its first call. All layers are given the same besides the residual stream: the first one copies it for all."""

        def __init__(self, layer, is_first):
            super().__init__()
            self.layer, self.graph, self.is_first = layer, None, is_first
            self.attention_type = getattr(layer, "attention_type", None)

        def forward(self, *given, **named):
            tensors = []
            each_tensor((given, named), tensors.append)
            if not shared:
                shared.extend(tensor.clone() for tensor in tensors)
            for to, tensor in zip(shared, tensors if self.is_first else ()):
                to.copy_(tensor)
            if not self.graph:
                static = iter(shared if self.is_first else [tensors[0], *shared[1:]])
                given, named = each_tensor((given, named), lambda _: next(static))
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=decoder.device.stream):
                    self.returned = self.layer(*given, **named)
            self.graph.replay()
            return self.returned

    for i, layer in enumerate(list(layers)):
        layers[i] = Piece(layer, i == 0)
    return eager(decoder, options)


def compiled(decoder, options):
    """What it returns is overwritten by the next step."""
    torch = decoder.torch
    how = {"backend": options.backend} if options.backend else {"mode": "reduce-overhead"}
    forward = torch.compile(decoder.forward, **how)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        return forward(decoder.token)
    return step


def skipped_graphs():
    """How many graphs of the compiler's are launched kernel by kernel, and not as a CUDA graph."""
    from torch._dynamo.utils import counters
    return counters["inductor"]["cudagraph_skips"]


MODES = {"eager": eager, "graph": in_graph, "pieces": in_pieces, "compiled": compiled}

# ---- what is taken of a step: each has before() and after(logits, kept) around every forward


class Nothing:
    def __init__(self, decoder, options):
        self.decoder, self.options, self.n_sites = decoder, options, 0
        self.pairs = plan.chosen(options.sites, len(decoder.layers()))

    def before(self):
        pass

    def after(self, logits, kept):
        pass

    def end(self):
        pass


class Taps(Nothing):
    """dmi.torch.attach(): without the library to a function that does nothing, so that a compiled graph is the same."""

    def __init__(self, decoder, options):
        super().__init__(decoder, options)
        taps = import_taps()
        from dmi import taps as library
        self.attached = taps.attach(decoder.model, self.wishes(), sink=None if library.loaded() else lambda *_: None)
        if self.attached.missing:
            raise SystemExit(f"not there: {self.attached.missing}")
        self.n_sites = sum(len(site.layers or (None,)) for site in self.attached.sites)

    def wishes(self):
        return plan.wishes(self.pairs)


class Turns(Taps):
    """The sites of plan.spec() in turns: all switched off, few on, all on. Between turns the drain is waited for; it is not counted."""

    def __init__(self, decoder, options):
        super().__init__(decoder, options)
        import dmi
        self.dmi, self.n = dmi, 0

    def before(self):
        """Of prompts the last row of each is kept: a step says which that is."""
        if self.options.mode == "eager":
            self.n, n = self.n + 1, self.n_tokens // self.options.batch
            self.dmi.step_begin(self.n, [self.dmi.Span(f"r{i}", 0, n, i * n) for i in range(self.options.batch)])

    def times(self, step, n_steps, before=lambda: None):
        """{what is on: milliseconds of each step}"""
        found = {}
        for _ in range(TURNS):
            for name, patterns in (("off", ()), (f"{plan.FEW} sites", ("few_*",)), (f"{self.n_sites} sites", ("few_*", "more_*"))):
                self.dmi.site_enable("*", False)
                for pattern in patterns:
                    self.dmi.site_enable(pattern, True)
                self.device_times(1, step, before)
                found.setdefault(name, []).extend(self.device_times(n_steps, step, before))
                self.dmi.flush(10)
        return found

    def device_times(self, *words):
        return self.decoder.device.times(*words)


class ToHost:
    """Copies to pinned memory, in @n_sets sets of buffers by turns: one is written again when its last copies are done."""

    def __init__(self, device, n_sets):
        self.device, self.sets, self.n = device, [({}, device.event()) for _ in range(n_sets)], 0

    def begin(self):
        self.n += 1
        self.sets[self.n % len(self.sets)][1].synchronize()

    def copy(self, key, tensor):
        buffers = self.sets[self.n % len(self.sets)][0]
        place = key, tuple(tensor.shape)
        if place not in buffers:
            buffers[place] = self.device.pinned(tensor)
        buffers[place].copy_(tensor, non_blocking=True)

    def end(self):
        self.sets[self.n % len(self.sets)][1].record()


class Hidden(Nothing):
    """output_hidden_states=True, copied to the host after the step."""

    def __init__(self, decoder, options):
        super().__init__(decoder, options)
        decoder.more["output_hidden_states"] = True
        self.n_sites, self.host = len(decoder.layers()) + 1, ToHost(decoder.device, 2)

    def before(self):
        self.host.begin()

    def after(self, logits, kept):
        for key, tensor in kept:
            self.host.copy(key, tensor)
        self.host.end()


class Hooks(Hidden):
    """Forward hooks that copy: within the graph, if there is one; from what the compiled step returns, as the compiler leaves
    copies to the host out of graphs.
    """

    def __init__(self, decoder, options):
        Nothing.__init__(self, decoder, options)
        self.n_sites = len(self.pairs)
        self.host = ToHost(decoder.device, 1 if options.mode == "graph" else 2)
        returned = options.mode == "compiled"
        decoder.watch(self.pairs, (lambda key, tensor: decoder.found.append((key, tensor))) if returned else self.host.copy)


class Marked:
    """Launches of the test's own kernels: one begins a forward, one reads what is marked. @push, @pop: of ranges"""

    def __init__(self, device, push, pop, max_rows):
        self.device, self.push, self.pop = device, push, pop
        self.to, self.row = device.empty(max_rows, COLS), device.empty(2, COLS)

    def begin(self):
        device = self.device
        address = device.address(self.row)
        device.kernels.layer(device.stream(), address, address + 4 * COLS, 1, COLS, 1.0)

    def mark(self, address, rows):
        self.device.kernels.embed(self.device.stream(), self.device.address(self.to), address, rows, COLS)

    def enter(self, layer, address, rows):
        self.push(f"model.layers.{layer}.mlp")
        self.mark(address, rows)

    def leave(self, address, rows):
        self.mark(address, rows)
        self.pop()


class Values(Taps):
    """Taps, ranges and marks; hooks put the same tensors aside. In compiled steps there are only taps, and what is put aside is
    what the step returns.
    """

    def __init__(self, decoder, options):
        super().__init__(decoder, options)
        self.rows, self.marked, found = [], None, decoder.found
        if options.mode == "compiled":
            decoder.watch(self.pairs, lambda key, tensor: found.append((key, tensor)))
        else:
            decoder.watch(self.pairs, lambda key, tensor: found.append((key, tensor.clone())))
            mlp_in = [("mlp_in", layer) for layer in range(len(decoder.layers()))]
            decoder.watch(mlp_in, lambda key, tensor: found.append((key, tensor.clone())), plan.MLP)
        if decoder.device.is_gpu:
            self.mark(decoder, options)

    def wishes(self):
        return super().wishes() + ([plan.LOGITS] if self.options.mode != "compiled" else [])

    def mark(self, decoder, options):
        nvtx = decoder.torch.cuda.nvtx
        hidden = plan.SIZES[options.size]["hidden_size"]
        marked = self.marked = Marked(torch_cases.TorchDevice(), nvtx.range_push, nvtx.range_pop, options.prompt * hidden * 2 // (4 * COLS))
        for layer, block in enumerate(decoder.layers() if options.mode != "compiled" else ()):
            hook_on(block.mlp, "in", layer, lambda layer, tensor: marked.enter(layer, tensor.data_ptr(), rows_of(tensor)))
            hook_on(block.mlp, "out", layer, lambda layer, tensor: marked.leave(tensor.data_ptr(), rows_of(tensor)))

    def before(self):
        if self.marked:
            self.marked.begin()

    def after(self, logits, kept):
        more = [(plan.LOGITS, logits)] if self.options.mode != "compiled" else []
        self.rows.append([(key, tensor.clone()) for key, tensor in kept + more])

    def end(self):
        aside = plan.Aside()
        add = aside.put if self.options.mode == "compiled" else functools.partial(put, aside)
        for key, tensor in (pair for row in self.rows for pair in row):
            add(key, bits(self.decoder.torch, tensor))
        aside.write(self.options.aside)


def put(aside, key, data):
    """What is put aside is compared by all names that it has."""
    site, _, layer = key.partition(".")
    if site != "mlp_in":
        aside.put(key, data)
    for name in plan.also_named(site, int(layer)) if site in plan.MLP else ():
        aside.put(name, data)


TAKES = {"nothing": Nothing, "taps": Taps, "turns": Turns, "hooks": Hooks, "hidden": Hidden, "values": Values}

# ---- one configuration


class Session:
    """All of one run."""

    def __init__(self, options):
        self.options, self.device = options, Device(options.device)
        self.decoder = Decoder(self.device, options)
        self.take = TAKES[options.take](self.decoder, options)
        self.digest = hashlib.sha256()

    def forward(self, run, n_tokens):
        self.take.n_tokens = n_tokens
        self.take.before()
        logits, kept = run()
        self.take.after(logits, kept)
        self.decoder.then(logits, n_tokens)
        return logits

    def prompt(self):
        return self.forward(lambda: self.decoder.forward(self.decoder.prompt), self.options.prompt * self.options.batch)

    def check(self, logits):
        self.digest.update(bits(self.device.torch, logits))

    def steps(self):
        """Return: a function that runs one more, in the mode that was asked for, warmed up."""
        self.check(self.prompt())
        step, first = MODES[self.options.mode], eager(self.decoder, self.options)
        if self.options.mode == "compiled":
            first = step(self.decoder, self.options)
        for _ in range(WARM_UPS):
            self.check(self.forward(first, self.options.batch))
        run = step(self.decoder, self.options) if self.options.mode in ("graph", "pieces") else first
        for _ in range(CHECKED):
            self.check(self.forward(run, self.options.batch))
        return lambda: self.forward(run, self.options.batch)

    def run(self):
        step = self.steps()
        result = {"mode": self.options.mode, "take": self.options.take, "n_sites": self.take.n_sites, "logits": self.digest.hexdigest()[:32]}
        reset = self.decoder.cache.reset
        if self.options.take == "turns":
            is_prompt = self.options.mode == "eager"
            times = self.take.times(self.prompt, 3, reset) if is_prompt else self.take.times(step, TURN)
            result["prompt_turns_ms" if is_prompt else "turns_ms"] = times
        else:
            result["step_ms"] = self.device.times(self.options.steps, step)
        if self.options.mode == "eager" and self.options.take not in ("values", "turns"):
            self.device.times(2, self.prompt, reset)  # buffers of either set
            result["prompt_ms"] = self.device.times(self.options.prompts, self.prompt, reset)
        if self.options.mode == "compiled":
            result["skipped_graphs"] = skipped_graphs()
        result.update(self.device.memory(), n_tokens=self.decoder.n_tokens, prompt=self.options.prompt * self.options.batch)
        self.take.end()
        return result


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--take", choices=TAKES, default="nothing")
    parser.add_argument("--sites", choices=("none", "few", "many", "most"), default="none")
    parser.add_argument("--aside", help="the file for what --take values puts aside")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=plan.SIZES, default="0.6B")
    parser.add_argument("--backend", help="of torch.compile, instead of its mode reduce-overhead")
    parser.add_argument("--batch", type=int, default=1, help="prompts")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each")
    parser.add_argument("--steps", type=int, default=48, help="that are timed")
    parser.add_argument("--prompts", type=int, default=4, help="that are timed, eagerly")
    return parser.parse_args(words)


def main():
    try:
        session = Session(arguments())
        with session.device.torch.no_grad():
            print(plan.RESULT + json.dumps(session.run()), flush=True)
    except Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(77)


if __name__ == "__main__":
    main()
