# SPDX-License-Identifier: Apache-2.0
"""What the checks of texts share: where the product's C is, its comments, functions and text."""
import io
import re
import tokenize

from tree import ROOT, code_of, tracked

PRODUCT = ("include", "core", "kernels", "policy", "storage", "preload", "read", "analyze", "tools", "cupti")
# Files that nobody writes by hand, or that are kept byte for byte.
DATA = ("tests/golden/", "tests/fuzz/corpus/", "tests/reference/", "tests/standin/ptx/corpus/",
        "tests/standin/ptx/nvcc/")
LEXEMES = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def product(*suffixes):
    """The product's files with one of these suffixes."""
    return [path for path in tracked(*suffixes) if path.parts[0] in PRODUCT]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def c_comments(text):
    """(first line, text) of the comments of C; // comments on consecutive lines are one."""
    found = []
    for match in LEXEMES.finditer(text):
        lexeme, number = match.group(0), line_of(text, match.start())
        if lexeme.startswith("/*"):
            found.append([number, re.sub(r"^[ \t]*\*(?!/)[ \t]?", "", lexeme[2:-2], flags=re.M)])
        elif lexeme.startswith("//"):
            if found and found[-1][0] + found[-1][1].count("\n") + 1 == number and found[-1][2:]:
                found[-1][1] += "\n" + lexeme[2:]
            else:
                found.append([number, lexeme[2:], True])
    return [(comment[0], comment[1]) for comment in found]


def c_strings(text):
    """(line, text) of the string literals of C, but for names of headers; adjacent ones are one."""
    found, end = [], None
    for match in LEXEMES.finditer(text):
        if match.group(0)[0] != '"' or re.search(r"#[ \t]*include[ \t]*$", text[:match.start()].rpartition("\n")[2]):
            continue
        content = match.group(0)[1:-1].replace("\\n", " ")
        if end is not None and not text[end:match.start()].strip():
            found[-1][1] += content
        else:
            found.append([line_of(text, match.start()), content])
        end = match.end()
    return [tuple(string) for string in found]


def hash_comments(text):
    """(first line, text) of # comments (shell, YAML, meson); those on consecutive lines are one."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"(.*?)(?:^|\s)#(?!!)(.*)", line)
        if not match:
            continue
        if found and not match.group(1).strip() and found[-1][0] + found[-1][1].count("\n") + 1 == number:
            found[-1][1] += "\n" + match.group(2)
        else:
            found.append([number, match.group(2)])
    return [tuple(comment) for comment in found]


def python_texts(text):
    """(first line, text) of the comments and strings of Python; comments on consecutive lines are one."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if found and found[-1][2] and not token.line[:token.start[1]].strip() \
                    and found[-1][0] + found[-1][1].count("\n") + 1 == token.start[0]:
                found[-1][1] += "\n" + token.string.lstrip("#")
            else:
                found.append([token.start[0], token.string.lstrip("#"), True])
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            found.append([token.start[0], token.string.replace("\\n", " "), False])
    return [(line, content) for line, content, _ in found]


def depths(code):
    """For each character of C code without comments: how many brackets are open before it."""
    depth, found = 0, []
    for character in code:
        depth -= character in ")}]" and depth > 0
        found.append(depth)
        depth += character in "({["
    return found


def functions(text):
    """(name, first line, last line) of each function defined in C, from its signature to its closing brace."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code_of(text),
                  flags=re.M)
    code = re.sub(r'extern\s*"\s*"(\s*\{)?', lambda m: re.sub(r"[^\n]", " ", m.group(0)), code)
    depth, begin, body = depths(code), 0, None
    for i, character in enumerate(code):
        if body is None:
            if character == "{" and depth[i] == 0:
                body = i
            elif character == ";" and depth[i] == 0:
                begin = i + 1
        elif character == "}" and depth[i] == 0:
            head = code[begin:body]
            signature = re.search(r"(?:^|\n)[^\S\n]*(?:[\w*]+\s+\**)+(\w+)\s*\((?:[^()]|\([^()]*\))*\)\s*$", head)
            if signature:
                start = begin + signature.start() + len(signature.group(0)) - len(signature.group(0).lstrip())
                yield signature.group(1), line_of(code, start), line_of(code, i)
            # a struct or an initialiser ends with the semicolon that follows
            begin, body = (i + 1 if signature else begin), None
