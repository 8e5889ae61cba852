# SPDX-License-Identifier: Apache-2.0
"""check.py SEED ROUNDS [PART...]: every operator that has own kernels, on the stand-in against PyTorch's for the CPU.

Shapes, strides, types and values are random, by the seed. A line of JSON for each operator: its name, how many results were
compared, and what differed or was refused. PART: only operators whose names hold one.
"""
import json
import math
import os
import random
import sys

sys.setdlopenflags(os.RTLD_LAZY)
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

F32, BF16, F64, F16, I64, I32, BOOL, U8 = torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8
FLOATS, HALVES, INTS = (F32, BF16, F64), (F32, BF16), (I64, I32)
rng = random.Random()


def values(n, dtype, low=-4.0, high=4.0):
    if dtype == BOOL:
        return torch.tensor([rng.random() < 0.5 for _ in range(n)])
    if dtype == U8:
        return torch.tensor([rng.randrange(256) for _ in range(n)], dtype=U8)
    if dtype in INTS:
        return torch.tensor([rng.randint(-9, 9) or 1 for _ in range(n)], dtype=dtype)
    return torch.tensor([rng.uniform(low, high) for _ in range(n)], dtype=F64).to(dtype)


def shape(least=0, most=4):
    return [rng.choice((1, 2, 3, 5, 8, 17)) for _ in range(rng.randint(least, most))]


class Pair:
    """The same tensor on the CPU and on the device."""

    def __init__(self, host, device):
        self.host, self.device = host, device


def view(sizes, dtype, low=-4.0, high=4.0):
    """A tensor of @sizes: dense, with turned dimensions, every second element, or one that repeats."""
    kind = rng.choice(("dense", "dense", "turned", "stepped", "repeated"))
    base = list(sizes)
    if kind == "turned":
        order = list(range(len(sizes)))
        rng.shuffle(order)
        base = [sizes[d] for d in order]
    elif kind == "stepped" and sizes:
        base[-1] *= 2
    elif kind == "repeated" and sizes:
        base[rng.randrange(len(sizes))] = 1
    n = math.prod(base)
    host = values(n, dtype, low, high).reshape(base)
    pair = []
    for tensor in (host, host.cuda()):
        if kind == "turned":
            tensor = tensor.permute([order.index(d) for d in range(len(sizes))])
        elif kind == "stepped" and sizes:
            tensor = tensor[..., ::2]
        pair.append(tensor.expand(sizes))
    return Pair(*pair)


def dense(sizes, dtype, low=-4.0, high=4.0):
    n = math.prod(sizes)
    host = values(n, dtype, low, high).reshape(sizes)
    return Pair(host, host.cuda())


def indices(sizes, limit, below_zero=False, dtype=None):
    n = math.prod(sizes)
    host = torch.tensor([rng.randrange(-limit if below_zero else 0, limit) for _ in range(n)], dtype=dtype or I64).reshape(sizes)
    return Pair(host, host.cuda())


CASES = {}


def case(name):
    def add(make):
        CASES[name] = make
        return make
    return add


def simple(name, function, dtypes, n=1, low=-4.0, high=4.0):
    """An operator of @n tensors of one shape, or of shapes that are broadcast."""
    def make():
        sizes, dtype = shape(), rng.choice(dtypes)
        given = [view(sizes, dtype, low, high)]
        for _ in range(n - 1):
            given.append(view([1 if rng.random() < 0.2 else size for size in sizes], dtype, low, high))
        return function, given
    CASES[name] = make


def number(name, function, dtypes, low=-4.0, high=4.0):
    """An operator of a tensor and a number."""
    def make():
        dtype = rng.choice(dtypes)
        scalar = rng.choice((-3, -1, 2, 5)) if dtype in INTS else rng.choice((True, False)) if dtype == BOOL else rng.choice((-1.5, 0.3, 2.0, 7.0))
        return (lambda x: function(x, scalar)), [view(shape(), dtype, low, high)]
    CASES[name] = make


NUMBERS = FLOATS + INTS
for own, low, high in (("exp", -4, 4), ("sin", -9, 9), ("cos", -9, 9), ("sqrt", 0, 9), ("log", 0.1, 9), ("tanh", -4, 4), ("sigmoid", -6, 6), ("rsqrt", 0.1, 9),
                       ("reciprocal", 0.1, 9)):
    simple(own, getattr(torch, own), FLOATS, low=low, high=high)
simple("silu", F.silu, FLOATS)
simple("gelu", F.gelu, FLOATS)
simple("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), FLOATS)
simple("neg", torch.neg, NUMBERS)
simple("isneginf", lambda x: torch.isneginf(torch.log(x)), HALVES, low=0.0)
simple("abs", torch.abs, NUMBERS)
simple("logical_not", torch.logical_not, HALVES + INTS + (BOOL,))
simple("bitwise_not", torch.bitwise_not, INTS + (BOOL,))
for own, dtypes in (("add", NUMBERS + (BOOL,)), ("sub", NUMBERS), ("mul", NUMBERS + (BOOL,)), ("div", FLOATS), ("maximum", NUMBERS), ("minimum", NUMBERS),
                    ("remainder", NUMBERS), ("floor_divide", NUMBERS), ("eq", NUMBERS + (BOOL,)), ("ne", NUMBERS), ("lt", NUMBERS), ("le", NUMBERS),
                    ("gt", NUMBERS), ("ge", NUMBERS), ("logical_and", HALVES + INTS + (BOOL,)), ("logical_or", HALVES + INTS + (BOOL,)),
                    ("bitwise_and", INTS + (BOOL,)), ("bitwise_or", INTS + (BOOL,)), ("bitwise_xor", INTS + (BOOL,))):
    simple(own, getattr(torch, own), dtypes, n=2)
    if own not in ("maximum", "minimum", "logical_and", "logical_or"):
        number(own + " of a number", getattr(torch, own), dtypes)
simple("add with alpha", lambda a, b: torch.add(a, b, alpha=3), NUMBERS, n=2)
number("a number divided", lambda x, s: s / x, FLOATS, low=0.5)
number("a number less a tensor", lambda x, s: s - x, NUMBERS)
number("clamp from below", lambda x, s: x.clamp(min=s), NUMBERS)
number("clamp from above", lambda x, s: x.clamp(max=s), NUMBERS)
simple("clamp", lambda x: x.clamp(-2, 3), NUMBERS)
number("fill", lambda x, s: torch.empty_like(x).fill_(s), NUMBERS + (BOOL,))
number("pow", lambda x, s: x ** s, FLOATS, low=0.2)
simple("square", lambda x: x ** 2, NUMBERS)
simple("cube", lambda x: x ** 3, NUMBERS)
simple("contiguous", lambda x: x.contiguous(), NUMBERS + (BOOL,))


@case("two types")
def two_types():
    sizes = shape()
    first, second = rng.sample(NUMBERS + (BOOL,), 2)
    return rng.choice((torch.add, torch.mul)), [view(sizes, first), view(sizes, second)]


@case("to a type")
def to_type():
    first, second = rng.sample(NUMBERS + (BOOL, F16), 2)
    if second in INTS and first not in INTS:
        return (lambda x: x.to(second)), [view(shape(), first, 0, 9)]
    return (lambda x: x.to(second)), [view(shape(), first)]


@case("copy into a view")
def copy_view():
    sizes, dtype = shape(1), rng.choice(NUMBERS)

    def function(x):
        wide = torch.zeros(*sizes[:-1], sizes[-1] * 2, dtype=dtype, device=x.device)
        wide[..., ::2] = x
        return wide
    return function, [view(sizes, dtype)]


@case("_foreach_copy_")
def foreach_copy():
    first = rng.choice((F32, BF16, F16, I64, I32, BOOL))
    second = rng.choice([first] + ([F32, BF16] if first in HALVES else []))

    def function(*given):
        copies = [torch.empty(x.shape, dtype=second, device=x.device) for x in given]
        torch._foreach_copy_(copies, list(given))
        return tuple(copies)
    return function, [dense(sizes, first) for sizes in (*(shape(1) for _ in range(rng.choice((1, 3, 70)))), [70000])]


@case("where")
def where():
    sizes, dtype = shape(), rng.choice((F32, BF16, BOOL) + INTS)
    return torch.where, [view(sizes, BOOL), view(sizes, dtype), view(sizes, dtype)]


@case("masked_fill")
def masked_fill():
    sizes, dtype = shape(), rng.choice(FLOATS + INTS)
    return (lambda x, m: x.masked_fill(m, 3)), [view(sizes, dtype), view(sizes, BOOL)]


def reduction(name, function, dtypes):
    def make():
        sizes, dtype = shape(1), rng.choice(dtypes)
        dims = rng.choice((None, rng.randrange(len(sizes))))
        keep = rng.random() < 0.5
        return (lambda x: function(x) if dims is None else function(x, dim=dims, keepdim=keep)), [view(sizes, dtype)]
    CASES[name] = make


reduction("sum", torch.sum, NUMBERS + (BOOL,))
reduction("mean", torch.mean, FLOATS)
reduction("any", torch.any, HALVES + INTS + (BOOL,))
reduction("all", torch.all, HALVES + INTS + (BOOL,))
reduction("amax", lambda x, **k: torch.amax(x, **k), NUMBERS)
reduction("amin", lambda x, **k: torch.amin(x, **k), NUMBERS)
reduction("argmax", torch.argmax, NUMBERS)
reduction("argmin", torch.argmin, NUMBERS)
reduction("max", lambda x, **k: torch.max(x, **k), NUMBERS)
reduction("min", lambda x, **k: torch.min(x, **k), NUMBERS)
reduction("norm", lambda x, **k: torch.linalg.vector_norm(x, **k), HALVES)
reduction("var", lambda x, **k: torch.var(x, correction=0, **k), HALVES)


@case("sum of bf16 as float")
def sum_as():
    return (lambda x: x.sum(-1, dtype=F32)), [view(shape(1), BF16)]


def softmax(function):
    def make():
        sizes = shape(0, 2) + [rng.choice((1, 3, 17, 100, 1025, 3000))]
        return (lambda x: function(x, dim=-1)), [dense(sizes, rng.choice(HALVES))]
    return make


CASES["softmax"] = softmax(F.softmax)
CASES["log_softmax"] = softmax(F.log_softmax)
CASES["softmax as float"] = lambda: ((lambda x: F.softmax(x, dim=-1, dtype=F32)), [dense(shape(1), BF16)])


@case("layer_norm")
def layer_norm():
    """And rms_norm(). Rows of some lengths, and some that begin in the middle of a word, take the kernels that are not vectorized."""
    width, dtype, weighted = rng.choice((3, 8, 64, 100)), rng.choice((F32, BF16, F16)), rng.random() < 0.5
    function = rng.choice((F.layer_norm, F.rms_norm))

    def call(x, *weights):
        return function(x, (width,), *(weights[:1] if function == F.rms_norm else weights), eps=1e-3)
    return call, [view(shape(0, 2) + [width], dtype), *(dense([width], dtype) for _ in range(2 if weighted else 0))]


@case("cumsum")
def cumsum():
    sizes, dtype = shape(2), rng.choice(HALVES + INTS)
    dim = rng.randrange(len(sizes))
    return (lambda x: x.cumsum(dim, dtype=dtype)), [view(sizes, dtype)]


@case("arange")
def arange():
    dtype, first, step = rng.choice(NUMBERS), rng.randint(-5, 5), rng.choice((1, 2, 3))
    return (lambda x: torch.arange(first, first + step * 11, step, dtype=dtype, device=x.device)), [dense([1], F32)]


for own in ("triu", "tril"):
    def triangle(own=own):
        k = rng.randint(-2, 2)
        return (lambda x: getattr(torch, own)(x, diagonal=k)), [view(shape(2), rng.choice(HALVES + INTS + (BOOL,)))]
    CASES[own] = triangle


@case("cat")
def cat():
    sizes, dtype = shape(1), rng.choice(HALVES + (I64, BOOL))
    dim = rng.randrange(len(sizes))
    given = [(view if rng.random() < 0.5 else dense)([rng.choice((1, 4, 6)) if d == dim else size for d, size in enumerate(sizes)], dtype)
             for _ in range(rng.choice((2, 3, 5)))]
    return (lambda *x: torch.cat(x, dim)), given


@case("cat of wide rows")
def cat_wide():
    sizes, dtype = shape(0, 2) + [rng.choice((4, 16, 64)), 16], rng.choice(HALVES + (I64,))
    dim = rng.randrange(len(sizes))
    return (lambda *x: torch.cat(x, dim)), [dense(sizes, dtype) for _ in range(rng.choice((2, 3)))]


@case("index")
def index():
    sizes, dtype = shape(2), rng.choice(HALVES + (I64, BOOL))
    which = shape(1, 2)
    if rng.random() < 0.5:
        return (lambda x, i: x[i]), [view(sizes, dtype), indices(which, sizes[0], True)]
    return (lambda x, i, j: x[i, j]), [view(sizes, dtype), indices(which, sizes[0], True), indices(which, sizes[1], True)]


@case("nonzero")
def nonzero():
    return torch.nonzero, [view(shape(1), rng.choice(HALVES + INTS + (BOOL,)), -1, 1)]


@case("index by a mask")
def index_by_mask():
    sizes = shape(1)
    return (lambda x, m: x[m]), [view(sizes, rng.choice(HALVES + (I64, BOOL))), view(sizes, BOOL)]


@case("index put")
def index_put():
    n, sizes, dtype = rng.choice((5, 9)), shape(0, 2), rng.choice(HALVES + (I64, BOOL))
    which = rng.sample(range(n), 4)

    def function(x, y):
        x = x.clone()
        x[torch.tensor(which).to(x.device)] = y
        return x
    return function, [view([n] + sizes, dtype), view([4] + sizes, dtype)]


@case("index_copy")
def index_copy():
    n, sizes, dtype = rng.choice((5, 9)), shape(0, 2), rng.choice(HALVES + (I64,))
    which = rng.sample(range(n), 4)
    return (lambda x, y: x.clone().index_copy_(0, torch.tensor(which).to(x.device), y)), [view([n] + sizes, dtype), view([4] + sizes, dtype)]


@case("index_add")
def index_add():
    n, many, sizes, dtype = rng.choice((5, 9)), rng.choice((3, 12, 40)), shape(0, 2), rng.choice(HALVES)
    return (lambda x, i, y: x.clone().index_add_(0, i, y, alpha=2)), [view([n] + sizes, dtype), indices([many], n), view([many] + sizes, dtype)]


@case("embedding")
def embedding():
    n, width = rng.choice((3, 17)), rng.choice((4, 16, 64, 5))
    return F.embedding, [indices(shape(1, 2), n, dtype=rng.choice(INTS)), dense([n, width], rng.choice(HALVES))]


@case("index_select")
def index_select():
    n, sizes, dtype = rng.choice((5, 9)), shape(0, 2), rng.choice(HALVES + (I64, BOOL, U8))
    return (lambda x, i: x.index_select(0, i)), [view([n] + sizes, dtype), indices([rng.choice((1, 3, 12))], n, dtype=rng.choice(INTS))]


@case("gather")
def gather():
    n, sizes, dtype = rng.choice((5, 9)), shape(0, 2), rng.choice(HALVES + (I64, BOOL))
    return (lambda x, i: torch.gather(x, -1, i)), [view(sizes + [n], dtype), indices(sizes + [rng.choice((1, 3))], n)]


@case("scatter")
def scatter():
    n, dtype = 9, rng.choice(HALVES + (I64, BOOL))
    which = Pair(*(torch.tensor([rng.sample(range(n), 4) for _ in range(3)]).to(device) for device in ("cpu", "cpu")))
    which.device = which.host.cuda()
    which.host = which.device.cpu()
    return (lambda x, i, y: x.clone().scatter_(1, i, y)), [view([3, n], dtype), which, view([3, 4], dtype)]


@case("scatter of a number")
def scatter_number():
    n, dtype = 9, rng.choice(HALVES + (I64,))
    return (lambda x, i: x.clone().scatter_(1, i, 5)), [view([3, n], dtype), indices([3, 4], n)]


def sorts(name, function, most):
    def make():
        sizes, dtype = shape(0, 2) + [rng.choice((1, 5, 17, 40, most))], rng.choice(HALVES + INTS)
        dim = rng.randrange(len(sizes))
        return (lambda x: function(x, dim)), [view(sizes, dtype)]
    CASES[name] = make


sorts("sort", lambda x, dim: torch.sort(x, dim=dim, stable=True), 200)
sorts("sort down", lambda x, dim: torch.sort(x, dim=dim, stable=True, descending=True), 200)


@case("topk")
def topk():
    """Of equal elements, which may be any, the values alone."""
    n, dtype, largest = rng.choice((5, 64, 300)), rng.choice(HALVES + (I64,)), rng.random() < 0.7
    k = rng.choice((1, 4, 5))
    return (lambda x: torch.topk(x, k, largest=largest)[0]), [view(shape(0, 2) + [n], dtype)]


def attention(sizes, dtype, mask):
    """Queries, keys, values, with heads beside tokens in memory, as models have them; a mask, of which one kind may mask all keys of a query."""
    batch, heads, kv_heads, n, n_keys, width = sizes
    given = []
    for n_heads, n_rows in ((heads, n), (kv_heads, n_keys), (kv_heads, n_keys)):
        x = dense([batch, n_rows, n_heads, width], dtype, -1, 1)
        given.append(Pair(x.host.transpose(1, 2), x.device.transpose(1, 2)))
    if mask:
        given.append(dense([batch, rng.choice((1, heads)), n, n_keys], rng.choice((BOOL, dtype))))
    return given


def attention_of(dtypes):
    dtype, mask = rng.choice(dtypes), rng.random() < 0.5
    causal = not mask and rng.random() < 0.5
    kv_heads = rng.choice((1, 2))
    heads, n = kv_heads * (rng.choice((1, 3)) if not mask and dtype != F32 else 1), rng.choice((1, 6, 33))
    sizes = (rng.choice((1, 2)), heads, kv_heads, n, n if causal else rng.choice((1, 7, 40)), rng.choice((8, 16, 80, 128)))

    def function(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=kv_heads != heads)
    return function, attention(sizes, dtype, mask)


@case("attention")
def fused_attention():
    """Where PyTorch takes fused kernels: without a mask and in half precision "flash", else "memory efficient"."""
    return attention_of((F32, BF16, F16))


def gradients(function, *given):
    """The result of @function, and the gradients of its squares with respect to all floats of @given."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
    result = function(*leaves)
    result.square().sum().backward()
    return (result.detach(), *(x.grad for x in leaves if x.requires_grad))


@case("gradient of softmax")
def softmax_gradient():
    function = rng.choice((F.softmax, F.log_softmax))
    return (lambda x: gradients(lambda x: function(x, dim=-1), x)), [dense(shape(0, 2) + [rng.choice((1, 3, 17, 100, 1000))], rng.choice(HALVES))]


@case("gradient of attention")
def attention_gradient():
    """Against what float64 gives, as little may be left of large numbers."""
    function, given = attention_of(HALVES)

    def run(*given):
        if given[0].is_cuda:
            with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
                return gradients(function, *given)
        exact = gradients(function, *(x.double() if x.is_floating_point() else x for x in given))
        return tuple(x.to(given[0].dtype) for x in exact)
    return run, given


@case("gradient of the loss")
def loss_gradient():
    n, classes = rng.choice((1, 5, 17)), rng.choice((3, 64))
    reduction = rng.choice(("mean", "sum"))
    targets = indices([n], classes)
    if n > 1:
        targets.host[0] = targets.device[0] = -100  # is ignored
    return (lambda x, t: gradients(lambda x, t: F.cross_entropy(x, t, reduction=reduction), x, t)), [dense([n, classes], F32), targets]


@case("gradient of embedding")
def embedding_gradient():
    n, width = rng.choice((3, 17)), rng.choice((4, 16, 5))
    return (lambda i, x: gradients(lambda i, x: F.embedding(i, x, padding_idx=1), i, x)), [indices(shape(1, 2), n), dense([n, width], F32)]


for own, function in (("silu", F.silu), ("square", lambda x: x ** 2), ("rsqrt", torch.rsqrt), ("mean", lambda x: x.mean(-1, keepdim=True))):
    def gradient(function=function):
        return (lambda x: gradients(function, x)), [view(shape(1), F32, 0.2, 4.0)]
    CASES["gradient of " + own] = gradient


def words(seed, offset, n, at_a_time):
    """
    [n and more, made whole]: words of Philox4x32-10, @at_a_time of four for an element; and how far that moves the generator. Each thread takes four words at a time,
    and makes elements of them that lie a grid apart.
    """
    threads, per = 256 * min(-(-n // 256), 8 * torch.cuda.get_device_properties(0).multi_processor_count), 4 // at_a_time
    rounds = -(-n // (threads * per))
    counter = np.zeros((4, rounds, threads), np.uint64)
    counter[0] = offset // 4 + np.arange(rounds, dtype=np.uint64)[:, None]
    counter[2] = np.arange(threads, dtype=np.uint64)
    keys, low = [seed & 0xFFFFFFFF, seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = np.stack([second >> np.uint64(32) ^ counter[1] ^ np.uint64(keys[0]), second & low, first >> np.uint64(32) ^ counter[3] ^ np.uint64(keys[1]), first & low])
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return counter.reshape(per, at_a_time, rounds, threads).transpose(2, 0, 3, 1), 4 * rounds  # [round, element of a thread, thread, word]


def uniform(seed, offset, n, double):
    found, used = words(seed, offset, n, 2 if double else 1)
    if double:
        return (found[..., 0] ^ found[..., 1] << np.uint64(21)) * 2.0 ** -53 + 2.0 ** -54, used
    return found[..., 0].astype(np.float32) * np.float32(2.0 ** -32) + np.float32(2.0 ** -33), used


def standard_normal(seed, offset, n, double):
    """By Box and Muller: of two numbers of a thread the first is the length for both, the second the angle."""
    flat, used = uniform(seed, offset, n, double)
    flat = flat.astype(np.float64)
    length, angle = np.sqrt(-2 * np.log(flat[:, ::2])), 2 * np.pi * flat[:, 1::2]
    return np.stack([length * np.sin(angle), length * np.cos(angle)], 2).reshape(flat.shape), used


def made(own, seed, offset, n, dtype, a, b):
    """What torch.Tensor's OWN_(a, b) gives, and how far it moves the generator."""
    double = dtype == F64
    if own == "random":
        many = b - a >= 1 << 28
        found, used = words(seed, offset, n, 2 if many else 1)
        whole = found[..., 0] << np.uint64(32) | found[..., 1] if many else found[..., 0]
        return torch.from_numpy((whole % np.uint64(b - a)).astype(np.int64).reshape(-1)[:n] + a).to(dtype), used
    x, used = (standard_normal if own == "normal" else uniform)(seed, offset, n, double)
    x = {"uniform": lambda: x * (b - a) + a, "normal": lambda: x * b + a, "exponential": lambda: -np.log(x) / a, "bernoulli": lambda: x < a}[own]()
    x = torch.from_numpy(x.astype(np.float64).reshape(-1)[:n]).to(dtype)
    return torch.where(x == b, a, x).to(dtype) if own == "uniform" else x, used  # the upper bound is left out


@case("random numbers")
def random_numbers():
    """The second tensor of numbers after a seed, against what is computed here; in bits but for logarithms, sines and rounding."""
    own, sizes, seed = rng.choice(("uniform", "normal", "exponential", "bernoulli", "random")), rng.choice(([10], [300], [7, 40], [70000])), rng.randrange(1 << 40)
    dtype = rng.choice((F32, BF16, F16, F64) if own != "random" else (F32, BF16, F16, I64, I32, U8, BOOL))
    a, b = {"uniform": (-1.5, 2.5), "normal": (0.5, 3.0), "exponential": (4.0, None), "bernoulli": (0.3, None),
            "random": (0, 2) if dtype == BOOL else (3, 1 << 40) if dtype == I64 and rng.random() < 0.5 else (3, 103)}[own]
    n, stepped = math.prod(sizes), rng.random() < 0.3

    def function(x):
        if not x.is_cuda:
            _, used = made(own, seed, 0, n, dtype, a, b)
            return made(own, seed, used, n, dtype, a, b)[0].reshape(sizes)
        torch.manual_seed(seed)
        for _ in range(2):
            x = torch.empty([*sizes[:-1], 2 * sizes[-1]], dtype=dtype, device="cuda")[..., ::2] if stepped else torch.empty(sizes, dtype=dtype, device="cuda")
            getattr(x, own + "_")(*(value for value in (a, b) if value is not None))
        return x
    return function, [dense([1], F32)]


@case("random numbers of GPUs")
def random_of_gpus():
    """What a GPU prints after torch.manual_seed(0) and (42)."""
    def function(x):
        if not x.is_cuda:
            return (torch.tensor([0.3990, 0.5167, 0.0249, 0.9401, 0.9459]), torch.tensor([-0.9247, -0.4253, -2.6438, 0.1452, -0.1209]),
                    torch.tensor([0.6130, 0.0101, 0.3984, 0.0403, 0.1563]), torch.tensor([0.1940, 2.1614, -0.1721, 0.8491, -1.9244]))
        found = []
        for seed in (0, 42):
            for draw in (torch.rand, torch.randn):
                torch.manual_seed(seed)
                found.append(torch.from_numpy(np.round(draw(5, device="cuda").cpu().numpy(), 4)))
        return tuple(found)
    return function, [dense([1], F32)]


MATRICES = (F32, BF16, F64, F16)


@case("linear")
def linear():
    dtype, k = rng.choice(MATRICES), rng.choice((1, 5, 16))
    given = [dense(shape(1, 3) + [k], dtype), dense([rng.choice((1, 7)), k], dtype)]
    return F.linear, given + ([dense([given[1].host.shape[0]], dtype)] if rng.random() < 0.5 else [])


@case("matmul")
def matmul():
    dtype, m, n, k, batch = rng.choice(MATRICES), *(rng.choice((1, 4, 9)) for _ in range(3)), shape(0, 2)
    first, second = dense(batch + ([m, k] if rng.random() < 0.5 else [k, m]), dtype), dense(batch + ([k, n] if rng.random() < 0.5 else [n, k]), dtype)

    def function(a, b):
        return torch.matmul(a if a.shape[-2:] == (m, k) else a.transpose(-1, -2), b if b.shape[-2:] == (k, n) else b.transpose(-1, -2))
    return function, [first, second]


@case("mv")
def mv():
    dtype, m, k = rng.choice(MATRICES), rng.choice((1, 7)), rng.choice((1, 5, 16))
    return torch.mv, [view([m, k], dtype), view([k], dtype)]


# How far a result may be from the CPU's, in parts of the largest value: rounding of the type, and sums in another order.
LIMITS = {F32: 4e-6, F64: 1e-12, BF16: 2.0 ** -7, F16: 2.0 ** -10}


def difference(got, wanted):
    """None, or what differs."""
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"{got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
    limit = LIMITS.get(wanted.dtype)
    if limit is None or not wanted.numel():
        return None if torch.equal(got, wanted) else f"{got.flatten()[:8].tolist()}, not {wanted.flatten()[:8].tolist()}"
    got, wanted = got.double(), wanted.double()
    if not torch.equal(got.isfinite(), wanted.isfinite()):
        return "other elements that are not finite"
    apart = (got - wanted).nan_to_num().abs().max().item()
    most = wanted.nan_to_num(posinf=0, neginf=0).abs().max().item()
    return None if apart <= limit * max(most, 1.0) else f"{apart} apart, of {most}"


def compare(name, function, given):
    """Wrong things of one call."""
    wanted = function(*(pair.host for pair in given))
    try:
        got = function(*(pair.device for pair in given))
        torch.cuda.synchronize()
    except RuntimeError as error:
        return [f"{str(error).splitlines()[0]}: {[(tuple(p.host.shape), p.host.stride(), str(p.host.dtype)) for p in given]}"]
    results = zip(got, wanted) if isinstance(wanted, tuple) else [(got, wanted)]
    wrong = [difference(one.cpu(), other) for one, other in results]
    return [f"{text}: {[(tuple(p.host.shape), p.host.stride(), str(p.host.dtype)) for p in given]}" for text in wrong if text]


def main():
    seed, rounds, parts = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for name in CASES:
        if parts and not any(part in name for part in parts):
            continue
        rng.seed(f"{seed} {name}")
        wrong = [text for _ in range(rounds) for text in compare(name, *CASES[name]())]
        print(json.dumps({"operator": name, "rounds": rounds, "wrong": wrong}), flush=True)


main()
