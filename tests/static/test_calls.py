# SPDX-License-Identifier: Apache-2.0
"""What calls what, by the symbols of objects and the imports of modules: no circle, and nothing that has no caller."""
import ast
import collections
import pathlib
import re

from harness import BUILD
from tree import ROOT, run

# Circles that a table makes, whose rows are the functions that it calls: what calls the table is called by them.
TABLES = ({"preload/action_action", "preload/action_copy", "preload/action_edit", "preload/action_table"},
          {"preload/hook_exec", "preload/hook_hook", "preload/hook_init", "preload/hook_launch", "preload/hook_nvtx"},
          {"tools/dump_export", "tools/dump_export_group", "tools/dump_format_vllm", "tools/dump_format_vllm_hook", "tools/dump_formats"})
# Called by programs that are not of the product: applications and Python, by the C ABI, and the loader.
EXPORTED = re.compile(r"dmi_|cu[A-Z]|cupti[A-Z]|nvtx|Init|exec|fexec|_?_?[Ee]xit$|quick_exit$|dl|main$|_init|log_note_start$")


def objects():
    """{object: (path of it without its suffix, names that it defines, names that it uses)} of the product."""
    paths = [path for path in sorted(BUILD.rglob("*.p/*.o")) if path.relative_to(BUILD).parts[0] != "tests"]
    found = {path: (f"{path.relative_to(BUILD).parts[0]}/{path.name.removesuffix('.c.o')}", set(), set()) for path in paths}
    for line in run("nm", "-P", "-A", "-g", *map(str, paths)).splitlines():
        path, name, kind = line.split()[:3]
        if kind not in "wW":
            found[pathlib.Path(path.removesuffix(":"))][1 + (kind == "U")].add(name)
    return found


def circles(graph):
    """The largest sets of nodes each of which leads to each other one. @graph: {node: nodes}"""
    number, low, waiting, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        waiting.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
            if other in waiting:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = waiting.index(node)
            found.append(waiting[at:])
            del waiting[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return [set(nodes) for nodes in found if len(nodes) > 1]


def calls():
    """{object: objects that it uses}, and the names of each object."""
    all_of = objects()
    definers = collections.defaultdict(set)
    for path, (_, defined, _) in all_of.items():
        for name in defined:
            definers[name].add(path)
    graph = {}
    for path, (_, _, used) in all_of.items():
        graph[path] = set()
        for name in used & definers.keys():
            # two programs may have functions of one name; each calls its own
            near = {other for other in definers[name] if other.parent == path.parent} or definers[name]
            graph[path] |= near if len(near) == 1 else set()
    return graph, {path: name for path, (name, _, _) in all_of.items()}


def test_no_files_call_each_other():
    graph, names = calls()
    assert len(graph) > 400 and sum(map(len, graph.values())) > 2000, "the build has the product's objects"
    found = [{names[path] for path in nodes} for nodes in circles(graph)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, TABLES))


def test_what_others_may_call_has_a_caller():
    all_of = objects().values()
    used = set().union(*(names for _, _, names in all_of))
    tests = set(re.findall(r"\w+", " ".join(path.read_text() for path in (ROOT / "tests").rglob("*.[ch]"))))  # not all are built in each folder
    idle = sorted({f"{where}: {name}" for where, defined, _ in all_of for name in defined - used - tests if not EXPORTED.match(name)})
    assert not idle, "static, or without a reader:\n" + "\n".join(idle)


def imports(name, path, modules):
    """The modules of @modules that a module imports anywhere, but for those whose names stand in annotations alone."""
    package, found = name if path.name == "__init__.py" else name.rpartition(".")[0], set()
    tree = ast.parse(path.read_text())
    hints = {node for test in ast.walk(tree) if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING" for node in ast.walk(test)}
    for node in ast.walk(tree):
        if node in hints:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[:len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            found |= {inner if (inner := f"{base}.{alias.name}") in modules else base for alias in node.names}
    return found & modules - {name}


def test_python_imports_one_way():
    files = {".".join(path.relative_to(ROOT / "python").with_suffix("").parts).removesuffix(".__init__"): path
             for path in (ROOT / "python" / "dmi").rglob("*.py")}
    assert len(files) > 40 and not circles({name: imports(name, path, files.keys()) for name, path in files.items()})
