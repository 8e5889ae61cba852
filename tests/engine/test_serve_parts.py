# SPDX-License-Identifier: Apache-2.0
"""A model on several processes, each with a run of its own: readers join heads, hidden columns, vocabulary, sums and layers.

What is joined must be, bit for bit, what the processes' own dumps say together; one rank alone is what it captured; a rank that is not
there is named.
"""
import shutil
import uuid

import pytest

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")

import serving  # noqa: E402
from serve.dtypes import from_bf16  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
MIXED = ["france", "chat-short", "one", "count"]
PARTS = {  # ranks, stages, dtype, options
    "three ranks": (3, 1, "float32", []),
    "two ranks, uneven": (2, 1, "float32", ["--mode", "graph"]),
    "three ranks in bfloat16": (3, 1, "bfloat16", ["--mode", "graph"]),
    "two stages": (1, 2, "float32", ["--mode", "piecewise"]),
    "two ranks in two stages": (2, 2, "float32", ["--blocks", "8", "--chunk", "12"]),
}
QUICK = ("three ranks in bfloat16", "two ranks in two stages")


def to_bf16(x):
    """float64 rounded once to bfloat16, to nearest even, as uint16; from_bf16()'s inverse for what it gives."""
    bits = x.astype(np.float64).view(np.uint64)
    lower = bits & np.uint64((1 << 45) - 1)
    half, odd = np.uint64(1 << 44), (bits >> np.uint64(45)) & np.uint64(1)
    bits = bits - lower + ((lower > half) | ((lower == half) & (odd == 1))).astype(np.uint64) * np.uint64(1 << 45)
    return (bits.view(np.float64).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def joined(dumps, n_ranks):
    """{(request, site with layer): (positions, rows)} of the processes' dumps, stage by stage, in the engine's own dtype."""
    found = {}
    for stage in range(0, len(dumps), n_ranks):
        parts, dtypes = [dump.tensors() for dump in dumps[stage:stage + n_ranks]], dumps[stage].dtypes
        for key, (positions, rows) in parts[0].items():
            every, site = [part[key][1] for part in parts], key[1].split(".")[0]
            if site in serving.SIDE_BY_SIDE:
                rows = np.concatenate(every, axis=1)
            elif site in serving.PARTIAL and dtypes[key[1]] == "BF16":
                rows = to_bf16(sum(from_bf16(part).astype(np.float64) for part in every))
            elif site in serving.PARTIAL:
                rows = sum(part.astype(np.float64) for part in every).astype(np.float32)
            found[key] = positions, rows
    return found


def differing(got, want):
    """Complaints: tensors that are missing, too many, or not the same bits at the same positions."""
    wrong = [f"missing {key}" for key in sorted(want.keys() - got.keys())] + [f"too many {key}" for key in sorted(got.keys() - want.keys())]
    return wrong + [f"{key} differs" for key in want.keys() & got.keys()
                    if list(got[key][0]) != list(want[key][0]) or got[key][1].tobytes() != want[key][1].tobytes()]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return serving.Server(tmp_path_factory.mktemp("parts"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in PARTS])
def test_joined(check, server, name):
    n_ranks, n_stages, dtype, more = PARTS[name]
    n, folder = n_ranks * n_stages, name.replace(" ", "-").replace(",", "")
    requests, options = serving.some(*MIXED, tokens=6), ["--ranks", n_ranks, "--stages", n_stages, *more]
    dumped = server.serve(f"{folder}-dumped", requests, *options, dtype=dtype, dump=True)
    dumps = [dumped.dump(part=i) for i in range(n)]
    defines = [[] if i < n_ranks else ["first_layer=1", "first_sum=1"] for i in range(n)]
    parts = server.serve_parts(f"{folder}-captured", requests, *options, defines=defines, dtype=dtype, spec=serving.spec_text(dtype),
                               DMI_JOB=str(uuid.uuid4()))
    check(parts[0].results == dumped.results, f"{name}: captured, the tokens are the same")
    out = parts[0].folder / "all"
    out.mkdir()
    for part in parts:
        shutil.copytree(part.run, out / part.run.name)
    want = joined(dumps, n_ranks)
    wrong = differing(serving.exported_rows(out, out.parent / "joined"), want)
    check(not wrong and len(want) > 60, f"{name}: {len(want)} tensors are joined, bit for bit", wrong[:5])
    harness.run([DMI_DUMP, "verify", out])
    if n_ranks > 1 and n_stages == 1:
        one_rank(check, name, out, dumps, n_ranks)


def one_rank(check, name, out, dumps, n_ranks):
    for rank in range(n_ranks):
        path = out.parent / f"rank-{rank}"
        wrong = differing(serving.exported_rows(out, path, "--rank", rank), dumps[rank].tensors())
        check(not wrong, f"{name}: rank {rank} alone is what it captured", wrong[:5])
    runs = sorted(path for path in out.iterdir() if path.is_dir() and not path.is_symlink())
    shutil.move(runs[-1], out.parent / "moved")
    result = harness.run([DMI_DUMP, "export", "--format", "safetensors", out, "-o", out.parent / "lacking"], check=False)
    said = result.stdout + result.stderr
    check("rank" in said and ("is missing" in said or "is here" in said), f"{name}: a rank that is not there is named", said[-500:])
