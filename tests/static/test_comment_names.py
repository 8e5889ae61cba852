# SPDX-License-Identifier: Apache-2.0
"""A function that a comment or a document names, as in "name()", exists.

It exists if code of this project defines, declares or calls it (what it calls and does not define, the compiler and the
linker have found elsewhere), or if FOREIGN names it.
"""
import re

from sources import DATA, c_comments, code_of, hash_comments, python_texts, read, tracked

NAMED = re.compile(r"(?<![\w.>$])([A-Za-z_]\w*)\(\)")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
IN_TABLE = re.compile(r"\b(?:cu|nv|cupti)[A-Z]\w+")
KERNEL = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)")  # in PTX within strings
# Functions of others that no code here calls: whose they are.
FOREIGN = {
    "module_verb": "the form of our own names (CONTRIBUTING.md)",
    "ask_NAME": "the form of the questions' names (tests/gpu/facts/questions.def)",
    "__cudaRegisterFatBinary": "the CUDA runtime's",
    "this_grid": "CUDA's cooperative groups'",
    "llama_model_default_params": "llama.cpp's",
    "llama_context_default_params": "llama.cpp's",
}
# To be corrected by those who change these files now.
C = (".c", ".h", ".cu", ".cuh", ".S", ".def", ".inc")


def texts(path):
    """(line, text) of what the file says to people."""
    text = read(path)
    if path.suffix in C:
        return c_comments(text)
    if path.suffix == ".py" or text.startswith("#!") and "python" in text.splitlines()[0]:
        return python_texts(text)
    if path.suffix in (".md", ".1"):
        return list(enumerate(text.splitlines(), 1))
    return hash_comments(text) if path.name == "meson.build" or path.suffix in (".yaml", ".map", "") else []


def code_names():
    """The functions that exist: every name that code of the project has before a parenthesis, or has in a table."""
    names = set()
    for path in tracked(*C, ".py"):
        text = read(path)
        if path.suffix == ".py":
            names.update(re.findall(r"\bdef (\w+)\(", text))
            names.update(CALLED.findall(re.sub(r'"""(?:.|\n)*?"""|#[^\n]*', "", text)))
        else:
            code = code_of(text)
            names.update(CALLED.findall(code))
            names.update(IN_TABLE.findall(code))
            names.update(re.findall(r"\(\*(\w+)\)\s*\(", code))
            names.update(KERNEL.findall(text))
            names.update(re.findall(r"#\s*define\s+(\w+)", code))
    return names


def files():
    return [path for path in tracked() if not str(path).startswith(DATA) and path.name != "LICENSE"]


def test_functions_named_in_comments_exist():
    known = code_names() | set(FOREIGN)
    complaints = [f"{path}:{line + text.count(chr(10), 0, match.start())}: {match.group(0)}"
                  for path in files() for line, text in texts(path) for match in NAMED.finditer(text)
                  if match.group(1) not in known]
    assert not complaints, "\n".join(complaints)


def test_foreign_names_are_needed():
    named = {name for path in files() for _, text in texts(path) for name in NAMED.findall(text)}
    spare = sorted(set(FOREIGN) - named | set(FOREIGN) & code_names())
    assert not spare, "\n".join(spare)


def test_the_check_sees_what_is_wrong():
    assert NAMED.findall("see a_b" + "(), x.c" + "(), d(1) and\ne" + "()") == ["a_b", "e"]
    assert c_comments("/* a\n * b */ f(); // c\n// d\n") == [(1, " a\nb "), (2, " c\n d")]
    known = code_names()
    assert "ring_reserve" in known and "cuGraphLaunch" in known and "no_such_function_anywhere" not in known
