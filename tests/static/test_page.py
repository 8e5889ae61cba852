# SPDX-License-Identifier: Apache-2.0
"""The page of dmi-view makes no markup of text, asks for nothing, and stays small."""
import re
import sys

from sources import ROOT, line_of, tracked

sys.path.insert(0, str(ROOT / "tools/view"))
import build_page  # noqa: E402

FOLDER = "tools/view/page/"
BANNED = re.compile(r"""\b(innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|setHTML\w*|srcdoc|eval|Function|import|fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon
                        |Worker|localStorage|sessionStorage|indexedDB|cookie|postMessage)\b | \bdocument\s*\.\s*(?:write|writeln|open)\b | \bset(?:Timeout|Interval)\s*\(\s*["'`] | javascript:
                        | \b(?:src|action|formaction|style|data)\s*: | \bon\w+\s*=\s*["'`]""", re.X)
MOST_BYTES = 100_000


def banned(text):
    """(line, words) of what no script of the page may hold; comments and text count, too."""
    return [(line_of(text, match.start()), match[0].strip()) for match in BANNED.finditer(text)]


def scripts():
    return [path for path in tracked(".js") if str(path).startswith(FOLDER)]


def test_text_stays_text_and_nothing_is_asked_for():
    complaints = [f"{path}:{line}: {words}" for path in scripts() for line, words in banned((ROOT / path).read_text(encoding="utf-8"))]
    assert len(scripts()) > 3 and not complaints, "\n".join(complaints)


def test_the_page_stays_small():
    assert len(build_page.script_of(ROOT / path for path in scripts()).encode()) < MOST_BYTES


def test_no_text_of_a_script_has_several_lines():
    """Indentation is taken away at build."""
    complaints = [str(path) for path in scripts() for line in (ROOT / path).read_text(encoding="utf-8").splitlines() if line.count("`") % 2]
    assert not complaints, complaints


def test_the_page_names_no_other_file():
    html = (ROOT / FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""\b(?:src|href|action|style|on\w+)\s*=|https?:""", html)
    style = (ROOT / FOLDER / "view.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|expression\(", style)


def test_the_check_sees_what_is_wrong():
    text = ("a.innerHTML = b;\nnode.insertAdjacentHTML('x', y);\ndocument.write(z);\neval(q);\nsetTimeout('x()', 1);\nnew Function('a');\nmake('img', {src: x});\nfetch(u);\n"
            "a.textContent = b;\nsetTimeout(() => x(), 1);\nfunction f() {}\n")
    assert [line for line, _ in banned(text)] == [1, 2, 3, 4, 5, 6, 7, 8]
