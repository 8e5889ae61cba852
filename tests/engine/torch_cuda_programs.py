# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch on a device: copies, streams, threads, graphs, allocators, devices, processes. test_torch_cuda.py runs them.

They run in the environment of tools/setup/torch-cuda.txt, know nothing of DMI, and are pytest's, so that each is one outcome. Every
value is compared with what the CPU computes, bit by bit: kernels are Triton's and compute with whole numbers, so that no rounding is
in the way. Random numbers alone are compared with those of another way to draw them.
"""
import os
import threading

import pytest
import torch
import torch.multiprocessing
import triton
import triton.language as tl

# Threads meet at random in each round: enough for both orders.
ROUNDS = 4
MODE = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
CACHES = "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
ASYNC = "cudaMallocAsync" in MODE


@triton.jit
def axpy(x, y, n, a, BLOCK: tl.constexpr):
    """y = a * x + y"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.load(x + at, mask=inside) * a + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def slow(x, n, rounds, BLOCK: tl.constexpr):
    """x = rounds * x in many steps, so that a copy that does not wait comes too early"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    one = tl.load(x + at, mask=inside)
    total = one * 0
    for _ in range(rounds):
        total += one
    tl.store(x + at, total, mask=inside)


def add(x, y, a=1.0):
    axpy[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), a, BLOCK=128)


def numbers(n=1000, device="cpu", begin=0):
    """@n whole numbers, made by the CPU."""
    return torch.arange(begin, begin + n, dtype=torch.float32).to(device)


def same(got, want):
    return torch.equal(got.cpu(), want.cpu())


# ---- copies ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def program_copies_keep_every_byte(dtype):
    noise = torch.randint(0, 256, (4096,), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))
    host = (noise % 2 == 1) if dtype == torch.bool else noise.view(dtype)
    there = host.cuda()
    beside = torch.empty_like(there)
    beside.copy_(there)
    part = there[16:32]
    assert torch.equal(beside.cpu().view(torch.uint8), host.view(torch.uint8))
    assert torch.equal(part.cpu().view(torch.uint8), host[16:32].view(torch.uint8))


def program_pinned_memory():
    host = numbers().pin_memory()
    assert host.is_pinned() and not numbers().is_pinned()
    there = host.to("cuda", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert same(back, host)


def program_a_kernel():
    x, y = numbers(device="cuda"), numbers(device="cuda", begin=5)
    add(x, y, 3.0)
    assert same(y, numbers() * 3 + numbers(begin=5))


def program_numbers_of_the_device():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert "DMI" in torch.cuda.get_device_name() and torch.cuda.get_device_capability() >= (7, 5)
    assert torch.cuda.device_count() == 2 and torch.cuda.can_device_access_peer(0, 1) in (False, True)


# ---- streams and events ----

def program_side_streams_are_joined_by_events():
    main, sides = torch.cuda.current_stream(), [torch.cuda.Stream(priority=p) for p in (0, -1, 0)]
    x = numbers(device="cuda")
    slow[(8,)](x, 1000, 300, BLOCK=128)
    parts, ends = [], []
    begun = main.record_event()
    for k, side in enumerate(sides):
        with torch.cuda.stream(side):
            side.wait_event(begun)
            part = numbers(device="cuda", begin=k)
            add(x, part, float(k))
            part.record_stream(main)
            parts.append(part)
            ends.append(side.record_event())
    for end in ends:
        main.wait_event(end)
    for part in parts:
        add(part, x)
    want = numbers() * 300
    for k in range(3):
        want = want + (numbers() * 300 * k + numbers(begin=k))
    assert same(x, want)


def program_events_know_time_and_order():
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = numbers(device="cuda")
    first.record()
    slow[(8,)](x, 1000, 1000, BLOCK=128)
    last.record()
    last.synchronize()
    assert first.query() and last.query() and first.elapsed_time(last) > 0


def program_threads_each_have_a_stream():
    wrong = []

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            for r in range(ROUNDS):
                x, y = numbers(device="cuda", begin=k), numbers(device="cuda", begin=r)
                add(x, y, float(k))
                if not same(y, numbers(begin=k) * k + numbers(begin=r)):
                    wrong.append((k, r))
    add(numbers(device="cuda"), numbers(device="cuda"))  # compiled before
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- graphs ----

def graph_of(work, **options):
    work()  # what Triton compiles and loads
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, **options):
            work()
    except torch.AcceleratorError as error:
        if "no kernel image" in str(error):
            pytest.skip("a capture of PyTorch's begins with a kernel of its own, which tests/standin/operators does not have")
        raise
    return graph


def program_a_graph_by_hand():
    x, y = numbers(device="cuda"), numbers(device="cuda")
    graph = graph_of(lambda: add(x, y, 2.0))
    y.copy_(numbers())
    for k in range(3):
        x.copy_(numbers(begin=k))
        graph.replay()
    assert same(y, numbers() + 2 * (numbers() + numbers(begin=1) + numbers(begin=2)))


def program_a_graph_with_memory_of_its_own():
    x, kept = numbers(device="cuda"), []

    def work():
        kept[:] = [torch.empty_like(x)]
        kept[0].copy_(x)
        passing = torch.empty_like(x)
        passing.copy_(x)
        add(passing, kept[0], 4.0)
    graph = graph_of(work)
    for k in range(2):
        x.copy_(numbers(begin=k))
        graph.replay()
        assert same(kept[0], 5 * numbers(begin=k))


def program_graphs_share_a_pool_and_one_goes():
    x = numbers(device="cuda")
    results = []

    def work(a):
        y = torch.empty_like(x)
        y.copy_(x)
        add(x, y, a)
        results.append(y)
    one = graph_of(lambda: work(1.0))
    two = graph_of(lambda: work(2.0), pool=one.pool())
    three = graph_of(lambda: work(3.0), pool=torch.cuda.graph_pool_handle())
    one.replay()
    two.replay()
    three.replay()
    assert same(results[3], numbers() * 3) and same(results[5], numbers() * 4)
    del one
    torch.cuda.empty_cache()
    beside = [numbers(device="cuda", begin=k) for k in range(8)]  # where a graph that is gone had its memory
    x.copy_(numbers(begin=9))
    two.replay()
    torch.cuda.empty_cache()
    three.replay()
    assert same(results[3], numbers(begin=9) * 3) and same(results[5], numbers(begin=9) * 4)
    assert all(same(t, numbers(begin=k)) for k, t in enumerate(beside))


def program_a_graph_forks_to_a_side_stream():
    x, y, z = (numbers(device="cuda", begin=k) for k in range(3))
    side = torch.cuda.Stream()

    def work():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            add(x, y, 2.0)
        add(x, z, 3.0)
        torch.cuda.current_stream().wait_stream(side)
        add(y, z)
    graph = graph_of(work)
    for k, t in enumerate((x, y, z)):
        t.copy_(numbers(begin=k))
    graph.replay()
    assert same(z, numbers() * 3 + numbers(begin=2) + numbers() * 2 + numbers(begin=1))


def program_random_numbers_of_a_graph():
    """Replays draw what eager code draws by the same seed."""
    x = torch.empty(1000, device="cuda")
    torch.manual_seed(3)
    wanted = [x.uniform_().cpu() for _ in range(3)]
    graph = graph_of(x.uniform_)
    torch.manual_seed(3)
    for numbers_of_seed in wanted:
        graph.replay()
        assert same(x, numbers_of_seed)
    assert not same(wanted[0], wanted[1])


def program_what_a_capture_forbids_ends_it():
    x = numbers(device="cuda")
    graph_of(lambda: add(x, x))
    with pytest.raises(RuntimeError, match="captur"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.cpu()
    x.copy_(numbers())
    add(x, x)
    assert same(x, 2 * numbers())


# ---- memory ----

@pytest.mark.skipif(not CACHES, reason="nothing is cached")
def program_a_block_comes_back():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    x = numbers(1 << 20, "cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    del x
    y = numbers(1 << 20, "cuda", begin=3)
    add(y, y)
    assert same(y, 2 * numbers(1 << 20, begin=3)) and torch.cuda.memory_allocated() - before == 4 << 20
    del y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before


def program_more_than_there_is():
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(torch.cuda.mem_get_info()[1] + 1, dtype=torch.uint8, device="cuda")
    x = numbers(device="cuda")
    add(x, x)
    assert same(x, 2 * numbers())


def program_blocks_of_many_sizes():
    draw = torch.Generator().manual_seed(11)
    kept = {}
    for k in range(60):
        n = int(torch.randint(1, 1 << 18, (), generator=draw))
        kept[k] = numbers(n, "cuda", begin=k)
        if k % 3 == 0:
            gone = int(torch.randint(0, k + 1, (), generator=draw))
            kept.pop(gone, None)
        if k % 20 == 0:
            torch.cuda.empty_cache()
    assert all(same(t, numbers(t.numel(), begin=k)) for k, t in kept.items())


@pytest.mark.skipif(ASYNC or not CACHES, reason="the driver's pools keep no history")
def program_a_memory_snapshot():
    torch.cuda.memory._record_memory_history()
    x = numbers(1 << 20, "cuda")
    del x
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert snapshot["segments"] and {"alloc", "free_requested"} <= set(actions)


# ---- devices ----

def program_two_devices():
    pairs = [(numbers(device=f"cuda:{d}", begin=d), numbers(device=f"cuda:{d}")) for d in range(2)]
    for d, (x, y) in enumerate(pairs):
        with torch.cuda.device(d):
            add(x, y, 2.0)
    for d, (_, y) in enumerate(pairs):
        assert y.device.index == d and same(y, numbers(begin=d) * 2 + numbers())
    across = pairs[0][1].to("cuda:1")
    with torch.cuda.device(1):
        add(across, pairs[1][1])
    assert same(pairs[1][1], numbers() * 2 + numbers() + numbers(begin=1) * 2 + numbers())


# ---- processes ----

class Rows(torch.utils.data.Dataset):
    """Whole numbers, which a loader's processes make."""

    def __len__(self):
        return 8

    def __getitem__(self, k):
        return numbers(100, begin=k)


def program_a_loader_that_forks():
    x = numbers(device="cuda")  # CUDA is in use before
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    for k, batch in enumerate(loader):
        there = batch.to("cuda", non_blocking=True)
        add(there.flatten(), there.flatten())
        assert batch.is_pinned() and same(there, 2 * torch.stack([numbers(100, begin=2 * k), numbers(100, begin=2 * k + 1)]))
    assert same(x, numbers())


def in_a_child(queue):
    try:
        x = numbers(device="cuda")
        add(x, x)
        queue.put(x.cpu().tolist())
    except RuntimeError as error:
        queue.put(str(error))


@pytest.mark.parametrize("how", ["spawn", "fork"])
def program_a_process_that_begins(how):
    numbers(device="cuda")
    context = torch.multiprocessing.get_context(how)
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(queue,))
    child.start()
    said = queue.get(timeout=120)
    child.join()
    if how == "fork":
        assert "forked subprocess" in said
    else:
        assert said == (2 * numbers()).tolist()
    x = numbers(device="cuda")
    add(x, x)
    assert same(x, 2 * numbers())


def add_in_a_child(shared, done, go_on):
    add(shared, shared)
    torch.cuda.synchronize()
    done.set()
    go_on.wait(60)


@pytest.mark.skipif(bool(MODE), reason="such memory is not shared between processes")
def program_memory_is_shared_with_a_process():
    context = torch.multiprocessing.get_context("spawn")
    shared, done, go_on = numbers(1 << 18, "cuda"), context.Event(), context.Event()
    child = context.Process(target=add_in_a_child, args=(shared, done, go_on))
    child.start()
    assert done.wait(120)
    assert same(shared, 2 * numbers(1 << 18))
    go_on.set()
    child.join()
    assert child.exitcode == 0
