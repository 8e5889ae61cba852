# SPDX-License-Identifier: Apache-2.0
"""The shape of the product's C: arrows inside preload point down, no include circle, no long file, short functions."""
import re
import statistics

from sources import ROOT, functions, product, read
from tree import code_of

# Inside preload, from the top down; a file may include headers of its own layer and of those below.
PRELOAD = (("hook", "api.c", "leave.c"), ("lifecycle.c", "lifecycle.h", "unmatched.c", "unmatched.h"), ("recording", "control", "trace"), ("eager",), ("graph",), ("nvtx",), ("action",), ("capture",),
           ("edit",), ("context",), ("function",), ("session",), ("base",), ("image",))
# Inside storage: a folder, and those whose headers it may include beside its own; "" is what lies in storage/ itself.
STORAGE = {"codec": (), "": ("codec",), "writer": ("codec", ""), "reader": ("codec", "")}
# Inside storage/reader: a file calls functions of those before it, and of its own.
READER = ("notes", "files", "json", "find", "entries", "chunk", "index", "walk", "segments", "changes", "trace", "trace_marks", "account", "reused_ids", "check", "edits", "extents", "trace_account", "steps", "outcomes",
          "select", "windows", "decode", "one", "verify", "ranks_agree", "ranks_join", "ranks_decode", "ranks", "reader", "release")
# Which of them change a part of struct reader, beside those that open a reader.
PARTS = {"notes": ("notes", "walk"), "place": ("files",), "said": ("json",), "index": ("segments", "index", "walk", "chunk"),
         "selection": ("select", "steps", "outcomes", "windows", "ranks_join"), "names": ("reused_ids",), "decoder": ("decode",), "counters": ("check",), "found": ("account",), "edits": ("edits",),
         "change_words": ("changes",)}
OPENERS = ("one", "ranks")
CHANGED = re.compile(r"\b(?:r|second)->(%s)\b(?:\.\w+|\[[^]]*\]|->\w+)*\s*(?:=(?!=)|\+\+|--|[-+|]=)" % "|".join(PARTS))
LINES, MEDIAN, P90 = 600, 11, 31
# Names of structs that several files may define: one word means one thing, but for those whose other meaning is local to a file.
SAME_NAME = 25
STRUCT = re.compile(r"^[ \t]*(?:(?:static|const|typedef)[ \t]+)*struct (\w+)\s*\{", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)

CALL = re.compile(r"\b(\w+)\s*\(")

# The one list of hooks, from which base/ and hook/ make their tables.
WITHOUT_LAYER = re.compile(r"preload/hooks\.def")


def layer(path):
    """The layer of a file of preload, 0 the uppermost, or None."""
    name = str(path).removeprefix("preload/").split("/")[0]
    return next((i for i, names in enumerate(PRELOAD) if name in names), None)


def includes():
    """{file: {files of the product that it includes}}"""
    paths = {str(path): path for path in product(".c", ".h", ".S", ".cu", ".cuh", ".def", ".inc")}
    found = {}
    for name, path in paths.items():
        found[name] = set()
        for included in INCLUDE.findall(read(path)):
            for candidate in (included, str(path.parent / included), f"include/{included}"):
                if candidate in paths:
                    found[name].add(candidate)
                    break
    return found


def circle(graph):
    """The names along one circle of the graph, or an empty list."""
    done = set()

    def walk(name, way):
        if name in way:
            return way[way.index(name):] + [name]
        if name not in done:
            for below in sorted(graph.get(name, ())):
                found = walk(below, way + [name])
                if found:
                    return found
            done.add(name)
        return []
    for name in sorted(graph):
        found = walk(name, [])
        if found:
            return found
    return []


def test_a_struct_has_a_name_of_its_own():
    files = {}
    for path in product(".c", ".h", ".cu", ".cuh"):
        for name in set(STRUCT.findall(code_of(read(path)))):
            files.setdefault(name, []).append(str(path))
    several = {name: found for name, found in files.items() if len(found) > 1}
    in_headers = [f"struct {name}: {', '.join(found)}" for name, found in several.items() if sum(path.endswith(".h") for path in found) > 1]
    assert len(files) > 1000 and "spec" in files
    assert not in_headers, "in two headers: " + "\n".join(in_headers)
    assert len(several) <= SAME_NAME, f"{len(several)} of at most {SAME_NAME}: " + "\n".join(f"struct {name}: {', '.join(found)}" for name, found in several.items())
    assert all(path.startswith("preload/edit/") for path in files["place"]), f"a place is where edits may write: {files['place']}"


def test_every_file_of_preload_has_a_layer():
    lost = [str(path) for path in product(".c", ".h", ".S", ".def") if path.parts[0] == "preload"
            and layer(path) is None and not WITHOUT_LAYER.fullmatch(str(path))]
    assert not lost, "\n".join(lost)


def test_arrows_inside_preload_point_down():
    complaints = []
    for name, below in includes().items():
        for included in sorted(below):
            if name.startswith("preload/") and included.startswith("preload/") and layer(name) is not None:
                if layer(included) is None:
                    if not WITHOUT_LAYER.fullmatch(included):
                        complaints.append(f"{name} includes {included}, which has no layer")
                elif layer(included) < layer(name):
                    complaints.append(f"{name} includes {included}, from above")
    assert not complaints, "\n".join(complaints)


def test_no_files_include_each_other():
    found = circle(includes())
    assert not found, " -> ".join(found)


def module_of(name):
    """A header, the private header and the source of one name are a module."""
    return re.sub(r"(_private)?\.\w+$", "", name)


def is_private_header_of(name, module):
    """policy/expr_code.h shares what policy/expr.h declares among the files of that module."""
    return name.endswith(".h") and name.startswith(module + "_")


def test_tools_share_what_lies_in_common_alone():
    wrong = [f"{name} includes {included}" for name, below in includes().items() for included in sorted(below)
             if name.startswith("tools/") and included.startswith("tools/")
             and included.split("/")[1] not in (name.split("/")[1], "common")]
    assert not wrong, "\n".join(wrong)


def test_writer_and_reader_share_what_lies_in_storage_alone():
    def part(name):
        return name.split("/")[1] if name.count("/") > 1 else ""

    wrong = [f"{name} includes {included}" for name, below in includes().items() for included in below
             if name.startswith("storage/") and included.startswith("storage/")
             and part(included) not in (part(name), *STORAGE[part(name)])]
    assert not wrong, "\n".join(wrong)


def test_the_files_of_the_reader_call_one_way():
    texts = {path.stem: read(path) for path in product(".c") if str(path).startswith("storage/reader/")}
    assert sorted(texts) == sorted(READER)
    owner = {name: stem for stem, text in texts.items() for name, _, _ in functions(text) if name.split("_")[0] in ("reader", "release")}
    wrong = [f"{stem}.c calls {name}() of {owner[name]}.c" for stem, text in texts.items() for name in sorted(set(CALL.findall(code_of(text))))
             if READER.index(owner.get(name, stem)) > READER.index(stem)]
    assert not wrong, "\n".join(wrong)


def test_each_part_of_the_reader_has_an_owner():
    wrong = [f"{path.name} changes {match.group(0)}" for path in product(".c") if str(path).startswith("storage/reader/")
             for match in CHANGED.finditer(code_of(read(path))) if path.stem not in PARTS[match.group(1)] + OPENERS]
    assert not wrong, "\n".join(wrong)


def test_no_modules_depend_on_each_other():
    modules = {}
    for name, below in includes().items():
        if not WITHOUT_LAYER.fullmatch(name):
            modules.setdefault(module_of(name), set()).update(
                {module_of(included) for included in below if not WITHOUT_LAYER.fullmatch(included)
                 and not is_private_header_of(name, module_of(included))} - {module_of(name)})
    found = circle(modules)
    assert not found, " -> ".join(found)


def test_no_file_is_too_long():
    lengths = {str(path): read(path).count("\n") for path in product() if (ROOT / path).suffix not in (".md", ".1")}
    long = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > LINES]
    assert not long, "\n".join(long)


def test_functions_are_short():
    lengths = sorted(last - first + 1 for path in product(".c", ".h", ".cu", ".cuh")
                     for _, first, last in functions(read(path)))
    median = statistics.median(lengths)
    p90 = lengths[len(lengths) * 9 // 10]
    assert median <= MEDIAN and p90 <= P90, \
        f"{len(lengths)} functions: median {median} lines (at most {MEDIAN}), p90 {p90} (at most {P90})"


def test_the_checks_see_what_is_wrong():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert layer("preload/hook/entry.c") < layer("preload/lifecycle.c") < layer("preload/session/session.h")
    code = 'extern "C" {\nstatic int\nf(void)\n{\n}\nstruct a {\n    int b;\n};\nM(x)\nint g(int (*h)(void))\n{\n}\n}\n'
    assert list(functions(code)) == [("f", 2, 5), ("g", 10, 12)], list(functions(code))
