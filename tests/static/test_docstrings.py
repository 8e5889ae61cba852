# SPDX-License-Identifier: Apache-2.0
"""In the product's headers a comment stands directly before every function, or before the lines of a group of them."""
import re

from sources import LEXEMES, line_of, product, read

NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
NOT_A_FUNCTION = re.compile(r"\s*(?:typedef|struct\s+\w+\s*\{|enum\b[^(]*\{|union\b[^(]*\{|static_assert|_Static_assert)")
# Until their folders are done.


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def declarations(text):
    """(kind, name or text, offset, end) of a header's top level: its comments and its functions, in file order."""
    comments = [match for match in LEXEMES.finditer(text) if match.group(0)[0] == "/"]
    code = LEXEMES.sub(lambda m: blank(m.group(0)), text)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: blank(m.group(0)), code, flags=re.M)
    # extern "C" { has lost its string; its brace closes at the end of the header
    code = re.sub(r"\bextern\s*\{", lambda m: blank(m.group(0)), code)
    found = [("comment", match.group(0), match.start(), match.end()) for match in comments]
    depth = begin = 0
    for i, character in enumerate(code):
        depth += character in "({["
        if character in ")}]":
            depth = max(depth - 1, 0)
        if depth == 0 and character in ";}":
            head = code[begin:i + 1]
            bare = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", head)
            if NAME.search(bare) and not NOT_A_FUNCTION.match(bare) and "=" not in bare.split("(")[0]:
                start = begin + len(head) - len(head.lstrip())
                found.append(("function", NAME.search(bare).group(1), start, i + 1))
            begin = i + 1
    return sorted(found, key=lambda row: row[2])


def without_docstring(text):
    """(line, name) of the functions that no comment stands before, and of docstrings that name another function."""
    wrong, covered, named = [], None, None
    for kind, content, start, end in declarations(text):
        gap = text[covered:start] if covered is not None else "\n\n"
        if kind == "comment":
            if text[text.rfind("\n", 0, start) + 1:start].strip():
                continue  # after code on its line
            title = re.match(r"/\*\*?\s*\**\s*(\w+)\(\)", content)
            covered, named = end, title and title.group(1)
        elif gap.strip() and not gap.strip().startswith("/*") or re.search(r"\n[ \t]*\n", gap):
            wrong.append((line_of(text, start), content))
            covered = None
        else:
            if named and named != content:
                wrong.append((line_of(text, start), f"{content}, under a comment on {named}()"))
            covered, named = end, None
    return wrong


def test_functions_in_headers_have_docstrings():
    complaints = [f"{path}:{line}: {name}" for path in product(".h")
                  for line, name in without_docstring(read(path))]
    assert not complaints, "\n".join(complaints)


def test_the_check_sees_what_is_wrong():
    text = """
/* What this file is. */

int a(void);

/* b */
int b(int (*f)(void)) __attribute__((format(printf, 1, 2)));
int c(void); /* after it */
struct s *d(void);

static inline int e(void)
{
    return (1);
}
struct t {
    int (*f)(void);
};
/** g() - of another name */
int h(void);
extern "C" {
int i(void);
}
"""
    wrong = [name for _, name in without_docstring(text)]
    assert wrong == ["a", "e", "h, under a comment on g()", "i"], wrong
