#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs on PyTorch to be captured, which know nothing of DMI: torch_cases.py NAME FILE, or --list. See marks.py.

Whatever is not there (Triton, NCCL, transformers, a backend of attention) skips its case by name. Names and signatures are
those of PyTorch 2.11.
"""
import os
import pathlib
import sys
import tempfile
import threading
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic results on several streams
import marks  # noqa: E402
from marks import COLS, ROW_BYTES, Marks, Skip, say  # noqa: E402
from smoke_driver import Driver, Kernels  # noqa: E402

warnings.filterwarnings("ignore")
STEPS = 12


class TorchDevice:
    """What Marks needs of a device, as smoke_driver.PlainDevice has it: PyTorch's memory, stream and copies."""

    def __init__(self):
        self.torch = import_torch()
        self.torch.zeros(1, device="cuda")  # its context is current now
        self.kernels = Kernels(Driver())

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def empty(self, rows, cols):
        return self.torch.empty(rows, cols, device="cuda")

    def first(self, tensor, rows):
        return tensor[:rows]

    def address(self, tensor):
        return tensor.data_ptr()

    def clone(self, tensor):
        return tensor.clone()

    def copy(self, to, source):
        to.copy_(source)

    def to_bytes(self, tensor):
        return tensor.cpu().numpy().tobytes()


def import_torch():
    try:
        import torch
    except ImportError as problem:
        raise Skip(f"PyTorch does not import: {problem}") from None
    if not torch.cuda.is_available():
        raise Skip(f"PyTorch {torch.__version__} sees no device")
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return torch


def rows_of(tensor):
    """As many whole rows of a mark as @tensor holds."""
    return tensor.numel() * tensor.element_size() // ROW_BYTES


def bits(torch, tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


class Program:
    """A computation that is run eagerly, then as replays of a graph with new inputs, its tensors marked."""

    def __init__(self, max_rows=4096):
        self.device = TorchDevice()
        self.torch = self.device.torch
        self.marks = Marks(self.device, max_rows)
        self.in_graph = False

    def mark(self, tensor, tapped=True):
        tensor = tensor.detach().contiguous()
        self.marks.mark(tensor.data_ptr(), rows_of(tensor), self.in_graph, tapped)
        return tensor

    def run(self, forward, inputs, warm_ups=3):
        """@forward: of one static input; the graph is captured after @warm_ups, as PyTorch's documentation wants it."""
        torch, static = self.torch, inputs[0].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for n in range(warm_ups):
                static.copy_(inputs[n % len(inputs)])
                say(f"eager {n}", bits(torch, forward(static)))
            graph = torch.cuda.CUDAGraph()
            self.in_graph = True
            with torch.cuda.graph(graph, stream=side):
                out = forward(static)
            self.in_graph = False
            for n, value in enumerate(inputs):
                static.copy_(value)
                graph.replay()
                self.marks.replayed(self.marks.aside())
                say(f"replay {n}", bits(torch, out))
        torch.cuda.synchronize()
        return self.marks.bytes()


def inputs_of(torch, shape, dtype, n=STEPS):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(*shape, generator=generator).to(dtype).cuda() for _ in range(n)]


def parameter(torch, shape, dtype, seed):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5).to(dtype).cuda()


def unmodified():
    """PyTorch and nothing else: an eager loop and a captured one, without marks, taps or kernels of the test's own."""
    torch = import_torch()
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 256)).cuda()
    inputs = inputs_of(torch, (16, 256), torch.float32)
    static, graph = inputs[0].clone(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        for value in inputs:
            say("eager", bits(torch, net(value)))
        with torch.cuda.graph(graph):
            out = net(static)
        for value in inputs:
            static.copy_(value)
            graph.replay()
            say("replay", bits(torch, out))
    return b""


def eager_and_graph():
    """Elementwise kernels, reductions, in-place updates: buffers are overwritten as in an engine."""
    p = Program()
    torch = p.torch
    bias = parameter(torch, (64, 256), torch.float32, 1)

    def forward(x):
        h = torch.add(x, bias)
        p.mark(h)
        h.mul_(0.5).add_(x)
        p.mark(h)
        h = torch.softmax(h, -1) + h.mean(-1, keepdim=True)
        p.mark(h)
        return h

    return p.run(forward, inputs_of(torch, (64, 256), torch.float32))


def cublaslt():
    """Matrix products of cuBLASLt, with bias and activation in the epilogue, and of cuBLAS."""
    p = Program()
    torch = p.torch
    w = [parameter(torch, (512, 512), torch.bfloat16, i) for i in range(3)]
    b = parameter(torch, (512,), torch.bfloat16, 9)

    def forward(x):
        h = p.mark(torch.nn.functional.linear(x, w[0], b))
        h = p.mark(torch._addmm_activation(b, h, w[1].t(), use_gelu=True))
        return p.mark(torch.mm(h, w[2]))

    return p.run(forward, inputs_of(torch, (32, 512), torch.bfloat16))


def cudnn():
    """Convolutions of cuDNN."""
    p = Program()
    torch = p.torch
    if not torch.backends.cudnn.is_available():
        raise Skip("cuDNN is not available")
    w = parameter(torch, (32, 32, 3, 3), torch.float16, 1)

    def forward(x):
        h = p.mark(torch.nn.functional.conv2d(x, w, padding=1))
        return p.mark(torch.relu(torch.nn.functional.conv2d(h, w, padding=1)))

    return p.run(forward, inputs_of(torch, (2, 32, 16, 16), torch.float16))


def sdpa():
    """Attention by each backend that this device has."""
    p = Program(8192)
    torch = p.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q = parameter(torch, (2, 4, 64, 64), torch.bfloat16, 1)
    works = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            works.append(backend)
        except RuntimeError:
            pass
    torch.cuda.synchronize()
    print("backends:", " ".join(backend.name for backend in works))

    def forward(x):
        for backend in works:
            with sdpa_kernel(backend):
                x = p.mark(torch.nn.functional.scaled_dot_product_attention(x, q, q, is_causal=True))
        return x

    return p.run(forward, inputs_of(torch, (2, 4, 64, 64), torch.bfloat16))


def import_triton():
    try:
        import smoke_triton
    except ImportError as problem:
        raise Skip(f"Triton does not import: {problem}") from None
    return smoke_triton


def triton():
    """A kernel of Triton's, with a matrix product."""
    p = Program()
    torch, kernels = p.torch, import_triton()
    w = parameter(torch, (64, 64), torch.float16, 1)

    def forward(x):
        h = p.mark(kernels.product(x, w))
        z = torch.empty(x.shape, device="cuda", dtype=torch.float16)
        kernels.double(z, h)
        return p.mark(z)

    x = inputs_of(torch, (64, 64), torch.float16)
    try:
        forward(x[0])
    except Exception as problem:  # no compiler, no headers: Triton builds its launcher on the machine
        raise Skip(f"Triton does not work here: {type(problem).__name__}: {problem}".splitlines()[0]) from None
    return p.run(forward, x)


def triton_pdl():
    """Triton's launches with launch_pdl, which may start before the kernel in front of them has ended."""
    p = Program()
    torch, kernels = p.torch, import_triton()
    if torch.cuda.get_device_capability()[0] < 9:
        raise Skip("programmatic dependent launch needs compute capability 9.0")

    def forward(x):
        h = x
        for _ in range(8):
            z = torch.empty_like(h)
            kernels.double_early(z, h)
            h = z
        return p.mark(h)

    x = inputs_of(torch, (64, 64), torch.float32)
    try:
        forward(x[0])
    except Exception as problem:
        raise Skip(f"Triton does not work here: {type(problem).__name__}: {problem}".splitlines()[0]) from None
    return p.run(forward, x)


def expandable_segments():
    """PYTORCH_ALLOC_CONF=expandable_segments:True: a marked tensor lies across pieces of mapped memory."""
    p = Program(64 << 10)
    torch = p.torch
    large = torch.empty((48 << 20) // 4, device="cuda")  # pieces have 2 or 20 MiB
    n = (8 << 20) // 4
    p.marks.to = large[n * 2 - n // 2:n * 3 - n // 2].reshape(-1, COLS)  # 12 to 20 MiB, and below over 20 MiB
    first = p.marks.to

    def forward(x):
        p.marks.to = first
        h = p.mark(x * 2)
        p.marks.to = large[(18 << 18):(26 << 18)].reshape(-1, COLS)
        return p.mark(h + 1)

    say("segments", str(torch.cuda.memory.get_allocator_backend()).encode())
    return p.run(forward, inputs_of(torch, (n,), torch.float32, 2), warm_ups=2)


def malloc_async():
    """PYTORCH_ALLOC_CONF=backend:cudaMallocAsync: memory nodes in graphs, and pools."""
    p = Program()
    torch = p.torch
    if torch.cuda.memory.get_allocator_backend() != "cudaMallocAsync":
        raise Skip(f"the allocator is {torch.cuda.memory.get_allocator_backend()}")
    w = parameter(torch, (256, 256), torch.float32, 1)

    def forward(x):
        return p.mark(torch.relu(p.mark(x @ w)) @ w)

    return p.run(forward, inputs_of(torch, (64, 256), torch.float32))


def compile_reduce_overhead():
    """torch.compile(mode="reduce-overhead"): Inductor's kernels in its CUDA graph trees."""
    p = Program()
    torch = p.torch
    w = [parameter(torch, (256, 256), torch.float32, i) for i in range(4)]

    def body(x):
        for weight in w:
            x = torch.nn.functional.rms_norm(torch.nn.functional.silu(x @ weight) + x, (256,))
        return x

    body = torch.compile(body, mode="reduce-overhead")
    x = inputs_of(torch, (32, 256), torch.float32)
    with torch.no_grad():
        for n, value in enumerate(x):
            torch.compiler.cudagraph_mark_step_begin()
            try:
                out = body(value)
            except Exception as problem:
                if n:
                    raise
                raise Skip(f"Inductor does not work here: {type(problem).__name__}: {problem}".splitlines()[0]) from None
            say(f"call {n}", bits(torch, p.mark(out)))
    return p.marks.bytes()


def capture_while_draining():
    """One thread captures in the strictest mode while records of another one's launches are on their way."""
    p = Program(2048)
    torch = p.torch
    x = inputs_of(torch, (512, 128), torch.float32, 4)
    go, found, problems = threading.Event(), [], []
    one, source = Marks(p.device, 2048), x[0].clone()
    static, out = x[1].clone(), torch.empty(512, 128, device="cuda")

    def other():
        try:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side), torch.no_grad():
                for _ in range(3):
                    torch.add(static, 1, out=out)
                side.synchronize()
                go.wait(30)
                for _ in range(4):
                    graph = torch.cuda.CUDAGraph()
                    two = Marks(p.device, 2048)
                    with torch.cuda.graph(graph, stream=side):
                        torch.add(static, 1, out=out)
                        two.mark(out.data_ptr(), rows_of(out), in_graph=True)
                    graph.replay()
                    two.replayed(two.aside())
                    found.append((graph, two))
        except Exception as problem:  # of whatever kind: it is the answer
            problems.append(problem)

    torch.cuda.synchronize()
    thread = threading.Thread(target=other)
    thread.start()
    with torch.cuda.stream(torch.cuda.Stream()):
        for n in range(400):  # no allocation in this thread: its buffers are there
            p.device.kernels.embed(p.device.stream(), one.to.data_ptr(), source.data_ptr(), rows_of(source), COLS)
            marks.tap(p.device.stream(), source.data_ptr(), rows_of(source))
            if n == 40:
                go.set()
    thread.join(60)
    torch.cuda.synchronize()
    if problems:
        raise problems[0]
    data = bits(torch, source) * 400
    return data + b"".join(two.bytes() for _, two in found)


def nccl():
    """An all-reduce of NCCL's in a graph, then destroy_process_group(), which waits for what captured graphs hold."""
    torch = import_torch()
    import torch.distributed as dist
    if not dist.is_available() or not dist.is_nccl_available():
        raise Skip("this PyTorch has no NCCL")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        try:
            dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda", 0))
            dist.all_reduce(torch.ones(8, device="cuda"))
            torch.cuda.synchronize()
        except Exception as problem:
            raise Skip(f"NCCL does not work here: {type(problem).__name__}: {problem}".splitlines()[0]) from None
        p = Program()

        def forward(x):
            h = x * 2
            dist.all_reduce(h)
            return p.mark(h + 1)

        data = p.run(forward, inputs_of(torch, (64, 256), torch.float32))
        dist.destroy_process_group()
        print("destroyed")
    return data


def many_copies():
    """A graph of 700 marks."""
    p = Program()
    torch = p.torch

    def forward(x):
        for i in range(700):
            p.mark(x[i % 8])
        return x + 1

    return p.run(forward, inputs_of(torch, (8, 4, 32), torch.float32, 3), warm_ups=1)


def green_context():
    """Launches on the stream of a green context, with a quarter of the multiprocessors."""
    p = Program()
    torch = p.torch
    try:
        from torch.cuda.green_contexts import GreenContext
        n = torch.cuda.get_device_properties(0).multi_processor_count
        context = GreenContext.create(max(8, n // 4 // 8 * 8), 0)
        context.set_context()
    except (ImportError, RuntimeError, AttributeError) as problem:
        raise Skip(f"no green context: {problem}".splitlines()[0]) from None
    x = inputs_of(torch, (64, 256), torch.float32, 4)
    for n, value in enumerate(x):
        say(f"green {n}", bits(torch, p.mark(value * 2 + 1)))
    torch.cuda.synchronize()
    context.pop_context()
    for n, value in enumerate(x):
        say(f"primary {n}", bits(torch, p.mark(value * 3 + 1)))
    return p.marks.bytes()


def transformers():
    """A small Llama of random weights, from its configuration: greedy tokens and logits."""
    torch = import_torch()
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as problem:
        raise Skip(f"transformers does not import: {problem}".splitlines()[0]) from None
    p = Program()
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128))
    model = model.to(torch.bfloat16).cuda().eval()

    def hook(module, args, out):
        p.mark(out[0] if isinstance(out, tuple) else out)

    model.model.layers[1].register_forward_hook(hook)
    ids = torch.arange(1, 17).reshape(1, 16).cuda()
    with torch.no_grad():
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, pad_token_id=0)
        say("logits", bits(torch, model(tokens).logits))
    print("tokens:", *tokens[0].tolist())
    return p.marks.bytes()


def import_taps():
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))
    import dmi.torch
    return dmi.torch


def taps_compiled():
    """Taps in what the compiler builds, in its CUDA graphs: what they take is what the program returns."""
    p = Program()
    torch, taps = p.torch, import_taps()
    weight = parameter(torch, (256, 256), torch.float32, 5)

    def forward(x):
        h = torch.nn.functional.silu(x @ weight)
        taps.tap(h, "tapped")
        return torch.softmax(h + x, -1), h

    compiled = torch.compile(forward, mode="reduce-overhead")
    with torch.no_grad():
        for n, value in enumerate(inputs_of(torch, (64, 256), torch.float32)):
            torch.compiler.cudagraph_mark_step_begin()
            out, h = compiled(value)
            p.mark(h, tapped=False)
            say(f"compiled {n}", bits(torch, out))
    return p.marks.bytes()


def attached():
    """dmi.torch.attach() on a model of Hugging Face's: generate(), and replays of a CUDA graph of its forward."""
    p = Program()
    torch, taps = p.torch, import_taps()
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as problem:
        raise Skip(f"transformers does not import: {problem}".splitlines()[0]) from None
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)).cuda().eval()
    found = taps.attach(model, "resid_pre", "1,last")

    def hook(module, args, kwargs):
        p.mark(args[0] if args else kwargs["hidden_states"], tapped=False)

    for layer in (1, 3):
        model.model.layers[layer].register_forward_pre_hook(hook, with_kwargs=True)
    ids = torch.arange(1, 17).reshape(2, 8).cuda()
    with torch.no_grad():
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0)
    print("tokens:", *tokens.flatten().tolist())

    def forward(x):
        return model(x, use_cache=False).logits

    data = p.run(forward, [(ids + n) % 512 for n in range(4)], warm_ups=2)
    found.detach()
    return data


CASES = {f.__name__: f for f in (unmodified, eager_and_graph, cublaslt, cudnn, sdpa, triton, triton_pdl, expandable_segments, malloc_async,
                                 compile_reduce_overhead, capture_while_draining, nccl, many_copies, green_context, transformers,
                                 taps_compiled, attached)}

if __name__ == "__main__":
    marks.main(CASES, "PyTorch")
