# SPDX-License-Identifier: Apache-2.0
"""Own kernels in the place of PyTorch's (tests/standin/operators): each against PyTorch's operator for the CPU, on the stand-in driver.

check.py holds the operators and draws shapes, strides, types and values by a seed. The long form tries all of them, the short one those of SHORT.
"""
import collections
import json
import re
import subprocess
import sys

import pytest

import harness
import torch_cuda_env

OPERATORS = harness.ROOT / "tests" / "standin" / "operators"
sys.path.insert(0, str(OPERATORS))
import kernels  # noqa: E402

pytestmark = pytest.mark.built(harness.STANDIN / "libcuda.so.1", torch_cuda_env.RUNTIME / "libcudart.so.13", harness.STANDIN / "blas" / "libcublas.so.13")
SHORT = ["add with alpha", "two types", "sum", "softmax", "index put", "linear"]


def registered(library):
    """Mangled names of kernels, sorted: what a library registers has its name among the library's constants."""
    sections = subprocess.run(["readelf", "-SW", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    offset, size = (int(word, 16) for word in re.search(r"\.rodata\s+PROGBITS\s+\w+ (\w+) (\w+)", sections).groups())
    with open(library, "rb") as file:
        file.seek(offset)
        return sorted({name.decode() for name in re.findall(rb"(?<![\w$.])(_Z[\w$.]+)(?=\0)", file.read(size))})


def test_names_are_the_wheels(check):
    """A whole name of the table means one kernel at most, and each own kernel stands in the place of one at least."""
    python, _ = torch_cuda_env.python_with_cuda()
    mangled = registered(next(python.parent.parent.glob("lib/python3*/site-packages/torch/lib/libtorch_cuda.so")))
    plain = subprocess.run(["c++filt"], input="\n".join(mangled), stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    names = kernels.names()
    check(len(mangled) > 10000 and len(plain) == len(mangled), "the wheel's kernels were found", len(mangled))
    twice = {name for name, n in collections.Counter(plain).items() if n > 1 and name in names}
    check(not twice, "no name means two kernels", sorted(twice)[:3])
    used = {names[name] for name in set(plain) & set(names)}
    check(used == set(names.values()), "each own kernel has a place", sorted(set(names.values()) - used)[:5])


def test_operators_against_the_cpu(long, seeds, check):
    python, env = torch_cuda_env.python_with_cuda()
    for seed in range(seeds(1, 2)):
        ran = subprocess.run([python, OPERATORS / "check.py", str(seed), "8" if long else "2", *([] if long else SHORT)], env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        check(not ran.returncode and len(lines) >= (90 if long else len(SHORT)), f"seed {seed}: all ran", ran.stderr[-1000:])
        for line in lines:
            check(not line["wrong"], f"seed {seed}: {line['operator']}", line["wrong"][:3])


# What fused attention and normalization cannot do here: {what: (code, what names the kernel)}
REFUSED = {
    "the backward pass of layer_norm": ("x = torch.ones(4, 16, device='cuda', requires_grad=True)\nF.layer_norm(x, (16,)).sum().backward()", "layer_norm_grad_input_kernel"),
    "dropout": ("x = torch.ones(1, 2, 4, 16, device='cuda')\nF.scaled_dot_product_attention(x, x, x, dropout_p=0.5)\ntorch.cuda.synchronize()", "the kernel attention_f32 trapped"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_there_is_refused_by_name(what):
    """A program that asks for it fails, and `missing` or the stand-in names the kernel."""
    python, env = torch_cuda_env.python_with_cuda()
    code, name = REFUSED[what]
    ran = subprocess.run([OPERATORS / "missing", python, "-c", f"import torch, torch.nn.functional as F\n{code}"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         check=False)
    assert ran.returncode and name in ran.stderr, ran.stderr[-2000:]
