# SPDX-License-Identifier: Apache-2.0
"""What entries of the queue ask that are no programs of cases.py: questions of `facts`, what tests print, benchmarks."""
import collections
import functools
import glob
import json
import os
import pathlib
import re

import smoke
from asking import Skipped
from cases import HERE, library_log
from harness import BUILD, DMI_DUMP, DMI_RUN, ROOT
from processes import clean_environment, run

DMI_TRACE = BUILD / "tools" / "dmi-trace"
FACTS = BUILD / "tests" / "gpu" / "facts"
ANSWERS = BUILD / "tests" / "gpu" / "standin-answers.tsv"
STANDIN = BUILD / "tests" / "standin"
BENCH, SOURCE = BUILD / "tests" / "bench", ROOT / "tests" / "bench"
PTX, FATBIN = BUILD / "kernels" / "dmi_kernels.ptx", BUILD / "kernels" / "dmi_kernels.fatbin"
NODES = (FATBIN, BENCH / "nodes.fatbin", BENCH / "nodes_pdl.fatbin")
LAUNCHED = {"smoke_embed": smoke.FORWARDS, "smoke_layer": smoke.FORWARDS * smoke.LAYERS}
CRASHED = re.compile(r"died of signal|took more than|does not end")

# ---- facts


def ask_fact(asked):
    """`facts NAME`, or `facts NAME eager`: one question, with modules loaded lazily, as a program has it, or eagerly."""
    _, question, *loading = asked.name.split()
    loading = loading[0] if loading else "lazy"
    env = clean_environment(LD_LIBRARY_PATH=asked.machine.cupti_path())
    ended = asked.run([FACTS, "--tsv", "--loading", loading, question], env)
    expected = standins_answers(asked.shared)[loading]
    rows = [line.split("\t") for line in ended.stdout.splitlines() if line.count("\t") == 5]
    for _, kind, what, answer, value, unit, n in numbered(rows):
        fact(asked, kind, what, answer, f"{value} {unit}".strip(), expected.get((question, what, n)), question == "device")
    if not rows:
        asked.add("", ended.text, verdict="crashed" if ended.crashed else "differs", reason=ended.last_line())


def fact(asked, kind, what, answer, value, expected, is_own):
    """@expected: (kind, answer) of the stand-in driver, or None. @is_own: of this device, nothing is expected"""
    if kind in ("holds", "breaks"):
        asked.add(what, "yes" if kind == "holds" else "no", "yes")
    elif kind == "figure":
        asked.add(what, value, verdict="figure")
    elif kind in ("skip", "absent"):
        asked.add(what, "", verdict="skipped", reason=answer)
    elif expected and expected[0] in ("says", "error") and not is_own:
        same = expected[1] == answer
        crashed = kind == "error" and not same and CRASHED.search(answer)
        asked.add(what, answer, f"{expected[1]}, as on the stand-in", verdict="ok" if same else "crashed" if crashed else "differs", relied_on=False)
    elif kind == "error":
        asked.add(what, answer, verdict="crashed" if CRASHED.search(answer) else "differs")
    else:
        asked.add(what, answer, verdict="figure")


def numbered(rows):
    """Each with the number of those before it that say as much: some questions ask twice by the same words."""
    seen = collections.Counter()
    for row in rows:
        yield (*row, seen[row[0], row[2]])
        seen[row[0], row[2]] += 1


def listed_facts():
    """Their names, in the order of questions.def, which stands in the pack as well."""
    return re.findall(r"^(?:QUESTION|BARE|CROSSED)\((\w+),", (HERE / "facts" / "questions.def").read_text(), re.M)


def ask_standin(loading, cache):
    """Lines of loading, question, kind, what, answer: all that the stand-in says."""
    env = clean_environment(LD_LIBRARY_PATH=STANDIN, DMI_STANDIN_SM="90", CUDA_VISIBLE_DEVICES="0")
    env.setdefault("DMI_STANDIN_CACHE", str(cache))
    said = run([FACTS, "--tsv", "--loading", loading], env, 150).stdout
    rows = [line.split("\t") for line in said.splitlines() if line.count("\t") == 5]
    return "".join("\t".join([loading, *row[:4]]) + "\n" for row in rows)


@functools.lru_cache
def standins_answers(folder):
    """{loading: {(question, what, n): (kind, answer)}}: what the pack has; in the tree the stand-in is asked."""
    if ANSWERS.exists():
        text = ANSWERS.read_text()
    elif (STANDIN / "libcuda.so.1").exists():
        text = "".join(ask_standin(loading, pathlib.Path(folder) / "standin-cache") for loading in ("lazy", "eager"))
    else:
        text = ""
    found = {"lazy": {}, "eager": {}}
    rows = [line.split("\t") for line in text.splitlines() if line.count("\t") == 4]
    for loading in found:
        mine = [row[1:] for row in rows if row[0] == loading]
        found[loading] = {(question, what, n): (kind, answer) for question, kind, what, answer, n in numbered(mine)}
    return found


# ---- what tests print


def ask_smoke(asked):
    """smoke.py, a line a check."""
    words = [asked.python, HERE / "smoke.py"] + (["--plain"] if asked.name.endswith("plain") else [])
    ended = asked.run(words, clean_environment(DMI_TEST_BUILD=BUILD))
    if ended.status == 77:
        raise Skipped(ended.last_line().removeprefix("skipped: "))
    for line in ended.stdout.splitlines():
        said = re.match(r"(ok    |FAILED) (.*)", line)
        if said:
            what, _, detail = said.group(2).partition(": ")
            asked.add(what, detail, verdict="ok" if said.group(1).startswith("ok") else "differs")
        elif line.startswith("skipped: "):
            asked.add("part", "", verdict="skipped", reason=line[9:])
    asked.ended(ended)


def ask_graph_calls(asked):
    """A random program of 300 graph calls: the answers that it has without the library."""
    seed, spec, out = asked.name.split()[-1], asked.folder / "spec.yaml", asked.folder / "out"
    words = [BUILD / "tests" / "preload" / "graph_calls", seed, 300, "-"]
    spec.write_text("hookspec: 1\nring: {bytes: 4M, slots: 16384}\nsites:\n" + "".join(
        f"  - {{name: {name}, kernel: '^p{name}$', pointer: 'arg[{p}]', dtype: u32, dims: [{{row: true, count: 'arg[{n}].u32'}}]}}\n"
        for name, p, n in (("a", 0, 1), ("b", 3, 1), ("e", 1, 2))))
    plain = asked.run(words)
    if plain.status:
        raise Skipped(f"without the library: {plain.text}, {plain.last_line()}")
    under = asked.run([DMI_RUN, "--strict", "--spec", spec, "--out", out, "--log", "none", "--", *words])
    same = under.stdout == plain.stdout and not under.status
    asked.add("300 calls have the answers that they have without the library",
              "yes" if same else under.text if under.crashed else first_difference(plain.stdout, under.stdout), "yes",
              verdict="crashed" if under.crashed else None)
    asked.ended(asked.run([DMI_DUMP, "stats", out]), question="captured + dropped = expected")


def first_difference(a, b):
    for i, (x, y) in enumerate(zip(a.splitlines(), b.splitlines())):
        if x != y:
            return f"line {i + 1}: {x!r} became {y!r}"[:300]
    return f"{len(a.splitlines())} lines became {len(b.splitlines())}"


def ask_copy_kernel(asked):
    """The device code by itself, at its own test."""
    ended = asked.run([BUILD / "tests" / "preload" / "test_copy_kernel", PTX], clean_environment(CK_DEFAULT_TIMEOUT=30))
    summary = next((line for line in ended.stdout.splitlines() if "Checks:" in line), ended.last_line())
    asked.ended(ended, question=summary)


# ---- traces


def traced(asked):
    """The environment of a program under --trace: with the machine's CUPTI, or the stand-in's."""
    doubles = [path for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") for path in glob.glob(f"{folder}/cupti/libcupti.so.1[0-9]")]
    return clean_environment(LD_LIBRARY_PATH=asked.machine.cupti_path(), **({"DMI_CUPTI": doubles[-1]} if asked.machine.is_standin and doubles else {}))


def ask_trace_records(asked):
    """CUPTI's records of a program whose launches are known (smoke_client.py): as many, and none lost."""
    out, kind = asked.folder / "out", asked.name.split()[-1]
    words = [asked.python, HERE / "smoke_client.py", kind, asked.folder / "outputs.npz"]
    plain = asked.run(words)
    if plain.status:
        raise Skipped(f"without the library it {plain.text}: {plain.last_line()}")
    ended = asked.run([DMI_RUN, "--strict", "--trace=kernels", "--log", asked.folder / "library.log", "--out", out, "--", *words], traced(asked))
    asked.said.append("".join(f"library: {line}\n" for line in library_log(asked.folder)))
    asked.ended(ended, plain.text, "under the trace it ends")
    asked.add("its outputs, bit for bit", "the same" if ended.stdout == plain.stdout else "others", "the same")
    check = asked.run([DMI_TRACE, "check", out])
    asked.ended(check, question="dmi-trace check", reason=" ".join(check.stdout.split()[-24:]))
    try:
        kernels = json.loads(asked.run([DMI_TRACE, "kernels", "--json", out]).stdout)["kernels"]
    except (ValueError, KeyError):
        kernels = []
    n = {name: sum(kernel["n"] for kernel in kernels if kernel["name"] == name) for name in LAUNCHED}
    asked.add("records of kernels", n, LAUNCHED, reason="" if kernels else "there are none: CUPTI is not here, or another has it")


# ---- benchmarks


def bench(name, *words, spec=None, trace=None, standin=()):
    """Return: what asks for the lines of tests/bench/bench_NAME, under the library if there is a @spec or a @trace. @standin: its words there"""
    def ask(asked):
        if not (BENCH / f"bench_{name}").exists():
            raise Skipped(f"bench_{name} was not built")
        under = [DMI_RUN, "--strict", "--log", asked.folder / "library.log", "--out", asked.folder / "out"]
        under += ["--spec", SOURCE / spec] if spec else []
        under += [f"--trace={trace}"] if trace else []
        env = traced(asked) if trace else None
        ended = asked.run([*(under + ["--"] if spec or trace else []), BENCH / f"bench_{name}", *(standin if asked.machine.is_standin and standin else words)], env)
        asked.said.append("".join(f"library: {line}\n" for line in library_log(asked.folder)))
        title = ""
        for line in ended.stdout.splitlines():
            what, answer, estimate = bench_line(name, line)
            if answer:
                figure(asked, f"{title}: {what}" if title else what, answer, estimate)
            else:
                title = what
        if ended.status:
            asked.ended(ended)
        elif spec:
            asked.ended(asked.run([DMI_DUMP, "stats", asked.folder / "out"]), question="captured + dropped = expected")
    return ask


def figure(asked, what, answer, estimate=None):
    """@estimate: what @answer should begin with; it is marked where it is off by more than half of that"""
    if asked.machine.is_standin:
        asked.add(what, answer, verdict="figure", reason="stand-in: no measure")
    elif not estimate:
        asked.add(what, answer, verdict="figure")
    else:
        value = float(answer.split()[0])
        asked.add(what, answer, f"about {estimate:g}", verdict="off" if abs(value - estimate) > estimate / 2 else "figure")


def bench_line(name, line):
    """(question, answer, estimate or None) of a line that a benchmark printed; without an answer it is a title"""
    words = line.split()
    if name == "link":
        n_bytes, spent, cpu = (float(word) for word in words)
        return "records of 4 MiB", f"{n_bytes / spent / 1e9:.2f} GB/s, {cpu / spent:.2f} CPUs busy", None
    if name == "overload":
        if words[0] == "elapsed":
            return "", "", None
        call, greatest, cpu, step = (float(word) / 1e3 for word in words[1:])
        return words[0], f"{call:.1f} us in calls, at most {greatest:.1f}, {cpu:.1f} us of CPU; the step {step:.1f} us", None
    if name == "nodes" and line.count("\t") == 2:
        what, answer, estimate = line.split("\t")
        return what, answer, float(estimate) if estimate else None
    what, _, rest = line.strip().partition("  ")
    return what, " ".join(rest.split()), None


def not_there_yet(what):
    def ask(asked):
        raise Skipped(f"not there yet: {what}")
    return ask
