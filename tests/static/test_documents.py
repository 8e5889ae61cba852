# SPDX-License-Identifier: Apache-2.0
"""Pages of README.md and docs/: links lead somewhere, and a page can be read at one go."""
import re

import pytest

from sources import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 6000
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]*)(?:#([^)]*))?\)|<img src=\"([^\"]+)\"")


def without_code(text):
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", text)


def anchors(text):
    """As GitHub names headings."""
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-") for title in re.findall(r"(?m)^#+ (.*?)\s*$", text)}


def broken(page, text):
    for target, anchor, image in LINK.findall(without_code(text)):
        if target.startswith(("http:", "https:")):
            continue
        path = (page.parent / (target or image)).resolve() if target or image else page
        if not path.exists():
            yield target or image
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
            yield f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not (wrong := list(broken(page, page.read_text(encoding="utf-8")))), wrong


def test_no_page_is_longer_than_a_reader_takes_in():
    long = {page.name: n for page in PAGES if (n := len(page.read_text(encoding="utf-8").split())) > MOST_WORDS and page.name != "format.md"}
    assert not long, long


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and f"]({page.name}" not in index]
    assert not missing, missing


def test_operations_of_edits_are_those_of_the_list():
    """The compiler asks for a case in the kernel and in the grammar; the rest of what an operation needs is asked for here."""
    header, page = ((ROOT / path).read_text(encoding="utf-8") for path in ("include/dmi/edit.h", "docs/edits.md"))
    words = re.findall(r"\bOP\([A-Z_]+, (\w+),", header)
    table = page[page.index("### Operations"):page.index("### Coefficients")]
    documented = {word for row in re.findall(r"(?m)^\| (`.*?) \|", table) for word in re.findall(r"`\{?(\w+)", row)}
    assert words and documented == set(words), documented ^ set(words)
    tests = "".join((ROOT / "tests" / "preload" / name).read_text(encoding="utf-8") for name in ("test_edits.py", "test_bank.py"))
    untried = [word for word in words if not re.search(rf'["{{ \[]{word}[":\]]', tests)]
    assert not untried, untried


def test_options_of_commands_are_those_of_their_manual():
    wrong = [f"{page.name}: {command}: {option}" for page in PAGES for command in re.findall(r"`(dmi-\w+[^`\n]*)`", page.read_text(encoding="utf-8"))
             if (manual := ROOT / "docs" / "man" / f"{command.split()[0]}.1").exists()
             for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", command.split(" -- ")[0])
             if option not in manual.read_text(encoding="utf-8").replace("\\-", "-")]
    assert not wrong, wrong


def options_of(source):
    """What a tool's table of options (tools/common/options.h) shows in --help."""
    return re.findall(r'\{ "(--?[a-z][^"]*)",\s*"', source)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "man").glob("dmi-*.1")), ids=lambda page: page.stem)
def test_each_option_is_in_its_manual(page):
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tools" / page.stem[4:]).glob("*.c")))
    manual = re.sub(r'\\f[BIR]|"', "", page.read_text(encoding="utf-8")).replace("\\-", "-")
    shown = [word for row in options_of(source) for word in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", row)]
    assert shown and not [word for word in shown if not re.search(rf"(?<![\w-]){word}(?![\w-])", manual)], shown


def test_the_check_of_links_sees_what_is_wrong():
    text = "# A title: `x`\n\n[a](#a-title-x) [b](#b) [c](nowhere.md) `[d](e.md)` [f](https://g)\n"
    assert anchors(text) == {"a-title-x"}
    assert list(broken(ROOT / "docs" / "index.md", text))[-1] == "nowhere.md"
