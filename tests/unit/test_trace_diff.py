# SPDX-License-Identifier: Apache-2.0
"""dmi-trace diff: kernels that are new, gone, or of which template arguments changed, as binutils' c++filt writes their names."""
import json
import subprocess

import pytest

from harness import BUILD

DMI_TRACE, MAKE = BUILD / "tools" / "dmi-trace", BUILD / "tests" / "unit" / "make_trace"
pytestmark = pytest.mark.built(DMI_TRACE, MAKE)


def flash(*tile, kind="f"):
    """void attn::flash<64, 128, 128, float>(float*)"""
    return f"_ZN4attn5flashI{''.join(f'Li{n}E' for n in tile)}{kind}EEvPT{len(tile) - 1}_"


def make(folder, *lines, rank=()):
    done = subprocess.run([MAKE, folder, *rank], input="\n".join(lines) + "\n", text=True, capture_output=True, timeout=60, check=True)
    return done.stdout.strip()


def kernels(names, step=0):
    """{name: (count, nanoseconds of one)}"""
    return [f"kernel {step} {ns} {name}" for name, (n, ns) in names.items() for _ in range(n)]


def diff(*words, status=1):
    done = subprocess.run([DMI_TRACE, "diff", *words], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-500:])
    return done


def told(*words, status=1):
    said = json.loads(diff("--json", *words, status=status).stdout)
    return said, {(k["state"], k["name"]): k for k in said["kernels"]}


def test_new_gone_changed_and_both(check, tmp_path):
    a = make(tmp_path / "a", "step 0", *kernels({flash(64, 128, 128): (3, 74000), "norm": (2, 500), "old": (1, 900)}), "fill 0 100")
    b = make(tmp_path / "b", "step 0", "step 1", *kernels({flash(128, 128, 128): (4, 217000), "norm": (3, 600), "triton_poi_0": (1, 50)}), "fill 0 300")
    said, by = told(a, b)
    check({key: said[key] for key in ("changed", "gone", "new", "both")} == {"changed": 1, "gone": 1, "new": 1, "both": 2}, "how many", said)
    check([k["state"] for k in said["kernels"]] == ["changed", "gone", "new", "both", "both"], "in this order", said["kernels"])
    one = by["changed", flash(64, 128, 128)]
    check(one["name_b"] == flash(128, 128, 128) and one["function"] == "attn::flash" and one["arguments"] == [{"place": "1", "a": "64", "b": "128"}], "what changed", one)
    check(one["demangled"] == "void attn::flash<64, 128, 128, float>(float*)", "as people write it", one)
    check([(one[s]["n"], one[s]["sum_ns"], one[s]["most_ns"]) for s in "ab"] == [(3, 222000, 74000), (4, 868000, 217000)], "of both", one)
    check(by["gone", "old"]["b"] is None and by["new", "triton_poi_0"]["a"] is None, "one is in one of them", by)
    check([by["both", "norm"][s]["sum_ns"] for s in "ab"] == [1000, 1800] and by["both", "fill"]["kind"] == "fill", "both", by)
    check([(said[s]["steps"], said[s]["records"], said[s]["sum_ns"]) for s in "ab"] == [(1, 7, 224000), (2, 9, 870150)], "of all", said)
    text = diff(a, b).stdout
    check("attn::flash: argument 1 was 64, is 128\n" in text and "1 with other template arguments, 1 gone, 1 new, 2 in both" in text, "as text", text)
    row = next(line for line in text.splitlines() if line.startswith("changed"))
    check(row.split()[:7] == ["changed", "3", "4", "0.222", "0.868", "74.00", "217.00"], "a row", row)
    same, _ = told(a, a, status=0)
    check(same["both"] == 4 and {k["state"] for k in same["kernels"]} == {"both"}, "a run and itself", same)


def test_which_is_which_where_several_changed(check, tmp_path):
    """Of a function with several variants each goes to the one with the most arguments alike; a variant that both runs have is not touched."""
    a = make(tmp_path / "a", *kernels({flash(1, 2, 3): (1, 10), flash(5, 6, 7): (1, 90), flash(9, 9, 9): (1, 1)}))
    b = make(tmp_path / "b", *kernels({flash(1, 2, 4): (1, 10), flash(5, 8, 7): (1, 90), flash(9, 9, 9): (1, 1), flash(0, 0, 0): (1, 5)}))
    said, by = told(a, b)
    check(by["changed", flash(1, 2, 3)]["name_b"] == flash(1, 2, 4) and by["changed", flash(5, 6, 7)]["arguments"] == [{"place": "2", "a": "6", "b": "8"}], "the nearest", said)
    check({k[0]: k[1] for k in by if k[0] != "changed"} == {"new": flash(0, 0, 0), "both": flash(9, 9, 9)}, "the others", by)


# (name in A, name in B, what changed)
ARGUMENTS = [
    (flash(1), flash(1, 2), [("", "1, float", "1, 2, float")]),
    (flash(1, kind="f"), flash(1, kind="d"), [("2", "float", "double")]),
    # k<A<B<1, 2>, int>, 7>
    ("_Z1kI1AI1BILi1ELi2EEiELi7EEvT_", "_Z1kI1AI1BILi1ELi3EEiELi8EEvT_", [("1.1.2", "2", "3"), ("2", "7", "8")]),
    ("_Z1kI1AIiEEvT_", "_Z1kI1AIiiEEvT_", [("1", "A<int>", "A<int, int>")]),
    ("_Z1kI1AIiEEvT_", "_Z1kI1CIiEEvT_", [("1", "A<int>", "C<int>")]),
    # a type with brackets of its own, and an expression in which '>' is no bracket
    ("_Z1kIFviEEvT_", "_Z1kIFviiEEvT_", [("1", "void (int)", "void (int, int)")]),
    ("_ZN6google8protobuf8internal7memswapILi12EEENSt9enable_ifIXaageT_stmltT_Li16EEvE4typeEPcS6_",
     "_ZN6google8protobuf8internal7memswapILi14EEENSt9enable_ifIXaageT_stmltT_Li16EEvE4typeEPcS6_", [("1", "12", "14")]),
    ("_ZN12_GLOBAL__N_11kILi1EEEvv", "_ZN12_GLOBAL__N_11kILi2EEEvv", [("1", "1", "2")]),
    # another function, or none with arguments of its own: new and gone
    ("_Z1kILi1EEvv", "_Z1mILi2EEvv", None),
    ("_Z3fooi", "_Z3foof", None),
    ("_Z99999k", "_Z99999m", None),
    ("triton_red_fused_0", "triton_red_fused_1", None),
]


def test_arguments(check, tmp_path):
    for i, (a, b, want) in enumerate(ARGUMENTS):
        said, _ = told(make(tmp_path / f"a{i}", f"kernel - 5 {a}"), make(tmp_path / f"b{i}", f"kernel - 5 {b}"))
        if want is None:
            check([k["state"] for k in said["kernels"]] == ["gone", "new"], f"{a}: gone and new", said["kernels"])
        else:
            check([(c["place"], c["a"], c["b"]) for k in said["kernels"] for c in k.get("arguments", ())] == want, f"{a}: what changed", said["kernels"])


def test_some_steps(check, tmp_path):
    a = make(tmp_path / "a", "step 0", "step 1", *kernels({"one": (1, 10)}, 0), *kernels({"two": (1, 10)}, 1), "kernel - 5 none")
    b = make(tmp_path / "b", "step 1", *kernels({"two": (1, 20)}, 1))
    said, by = told("--steps", "1:2", a, b, status=0)
    check(list(by) == [("both", "two")] and said["a"]["steps"] == said["b"]["steps"] == 1, "of step 1 alone", said)


def test_several_ranks_are_one_side(check, tmp_path):
    for rank in "01":
        make(tmp_path / "a", *kernels({"one": (2, 10)}), rank=("job", rank, "2"))
    said, by = told(tmp_path / "a", make(tmp_path / "b", *kernels({"one": (1, 10)})), status=0)
    check(by["both", "one"]["a"]["n"] == 4 and said["a"]["runs"] == 2, "summed", said)


def test_bad_input_is_one_sentence(check, tmp_path):
    a = make(tmp_path / "a", *kernels({"one": (1, 1)}))
    empty, alone = make(tmp_path / "empty", "step 0"), make(tmp_path / "alone", "step 0", "alone there is no libcupti.so.13")
    for words, sentence in (((a,), "diff: expected two runs"), ((a, a, a), "diff: expected two runs"), ((a, a, "--each"), "diff does not take --each"),
                            ((a, a, "--steps", "x"), "--steps: expected A:B"), ((a, tmp_path / "none"), "none"),
                            ((a, empty), f"{empty} holds no kernel, copy or fill: dmi-run --trace stores them"),
                            ((alone, a), f"{alone}: steps alone were traced: there is no libcupti.so.13"),
                            ((a, empty, "--steps", "7:8"), f"{a} has none of the steps of --steps")):
        done = diff(*words, status=2)
        check(sentence in done.stderr and not done.stdout, "said by name", (words, done.stderr))


def test_hostile_names(check, tmp_path):
    """Brackets without end, a name that asks for gigabytes, controls: a table all the same."""
    deep = "_Z1kI" + "1AI" * 500 + "i" + "E" * 501 + "vT_"
    grows = "_Z1fP1A" + "".join(f"1BIS{c}_S{c}_E" for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    a = make(tmp_path / "a", *kernels({deep: (1, 3), grows: (1, 2), "a\x1b[31mb": (1, 1), "k<(((<>": (1, 1)}))
    b = make(tmp_path / "b", *kernels({deep.replace("AIi", "AIf"): (1, 3)}))
    done = diff(a, b)
    check("\x1b" not in done.stdout and len(done.stdout.splitlines()) == 8, "a line each", done.stdout[-500:])
    said, _ = told(a, b)
    change, = next(k["arguments"] for k in said["kernels"] if k["state"] == "changed")
    check(change["place"] == ".".join(["1"] * 17) and change["a"].startswith("A<A<"), "the first levels are gone through", change["place"])


SHORT = {  # names as they are: as a line has them
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_": "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul> >",
    "_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi64ELi128ELi128ELi4ELb0ELb0EN7cutlass10bfloat16_tEELb0ELb1EEEv16Flash_fwd_params":
        "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, bfloat16_t>, false, true>",
    "_ZN12_GLOBAL__N_14fillEPfi": "fill", "norm": "norm", "_Zbroken": "_Zbroken",
    f"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_{'view_' * 8}12": f"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_{'view_' * 8}12",
}


def test_names_that_fit_a_line(check, tmp_path):
    """In tables of kernels and of a diff; whole by an option, and in JSON."""
    run, empty = make(tmp_path / "a", "step 0", *kernels({name: (1, 10) for name in SHORT})), make(tmp_path / "b", "step 0", *kernels({"other": (1, 10)}))
    shown = {name if len(name) <= 72 else f"{name[:46]}...{name[-23:]}" for name in SHORT.values()}
    for words in (["kernels", run], ["diff", run, empty], ["show", run, "--step", "0"]):
        def lines(*more, words=words):
            return subprocess.run([DMI_TRACE, *words, *more], text=True, stdout=subprocess.PIPE, check=False, timeout=60).stdout.splitlines()
        check(all(any(line.endswith(f" {name}") for line in lines()) for name in shown) and max(len(line) for line in lines() if "/" not in line) < 170, words[0], lines())
        whole = "\n".join(lines("--full-names"))
        check(all((name if words[0] != "diff" or not name.startswith("_ZN") else short.partition("<")[0]) in whole for name, short in SHORT.items()), f"{words[0]} --full-names", whole)
    said = json.loads(subprocess.run([DMI_TRACE, "kernels", run, "--json"], text=True, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    check({kernel["name"] for kernel in said["kernels"]} == set(SHORT), "JSON has them whole", said)
