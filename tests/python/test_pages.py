# SPDX-License-Identifier: Apache-2.0
"""README.md, docs/first-capture.md (what needs no PyTorch), docs/first-edit.md (likewise), docs/python.md, and the first commands of docs/trace.md and docs/viewer.md: each command prints what the page shows."""
import re
import shutil

import pytest

import pages
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

pytestmark = [pytest.mark.built(PRELOAD, DMI_RUN, DMI_DUMP, BUILD / "tools" / "dmi-trace", BUILD / "tools" / "dmi-view", STANDIN / "libcuda.so.1"),
              pytest.mark.skipif(not pages.have_environment(), reason="build/venv or build/meson is not there: ./bootstrap build")]


@pytest.mark.long
def test_the_front_page(check, tmp_path):
    pages.check_page(check, tmp_path, pages.section("README.md"), timeout=1200)


def test_an_engine_of_your_own(check, tmp_path):
    text = pages.section("docs/first-capture.md", "An engine of your own")
    pages.check_page(check, tmp_path, text)


def test_a_kernel_whose_name_you_know(check, tmp_path):
    pages.check_page(check, tmp_path, pages.section("docs/first-capture.md", "A kernel whose name you know"))


@pytest.mark.long
def test_a_vector_and_what_it_does(check, tmp_path):
    pages.check_page(check, tmp_path, pages.section("docs/first-edit.md", "A vector, and what it does"), timeout=1200)


def test_runs_in_python(check, tmp_path):
    pages.check_page(check, tmp_path, pages.section("docs/python.md"))


ENGINE = pages.section("docs/python.md").split("```console")[0]  # small_engine.py, and the file that reads


def test_when_steps_ran(check, tmp_path):
    pages.check_page(check, tmp_path, ENGINE + pages.section("docs/trace.md").split("\n## ")[0])


def test_a_report(check, tmp_path):
    pages.check_page(check, tmp_path, ENGINE + pages.section("docs/viewer.md").split("\n## ")[0])
    check((tmp_path / "dmi" / "report.html").stat().st_mode & 0o777 == 0o600, "for the user's eyes")


def test_every_way_to_a_first_capture_is_listed():
    text = pages.section("docs/first-capture.md")
    titles = re.findall(r"^## (.*)$", text, re.M)
    listed = re.findall(r"\| \[([^]]+)\]\(#[\w-]+\) \|", text)
    assert sorted(titles) == sorted(listed), (titles, listed)


@pytest.mark.skipif(not shutil.which("man"), reason="man is not installed")
def test_manual_pages_are_found_where_the_pages_name_them(check, tmp_path):
    names = sorted(path.stem for path in (ROOT / "docs" / "man").glob("*.1"))
    said = pages.run(tmp_path, "```console\n" + "".join(f"$ ./bootstrap exec -- man -w {name}\n" for name in names) + "```\n")
    check(names and all(status == 0 and printed[-1].endswith(f"man1/{name}.1") for name, (_, _, printed, status) in zip(names, said)),
          "man finds each tool's page under ./bootstrap exec", said)


@pytest.mark.parametrize("wanted, printed, missing", [
    (["a 1.00", "b"], ["a 1.01", "b"], None),
    (["a 1.00"], ["a 1.10"], "a 1.00"),
    (["a 1"], ["a 2"], "a 1"),
    (["a"], ["a", "c"], "(nothing, but it printed) c"),
    (["...", "c"], ["a", "b", "c"], None),
    (["a", "..."], ["a", "b"], None),
    (["b", "...", "a"], ["a", "b"], "b"),
    (["5 tokens, after 1.2 s"], ["5 tokens, after 24.0 s"], None),
    (["RUN/h-1-20261125T110559.909632Z x"], ["RUN/vm-24-20261126T000000.000000Z x"], None),
])
def test_the_check_sees_what_is_wrong(wanted, printed, missing):
    assert pages.first_difference(wanted, printed) == missing


def test_blocks_are_read_as_a_reader_does():
    text = "Save `a.py`:\n\n```python\nprint(1)\n```\n\n```console\n$ python a.py\n1\n$ echo 1 \\\n> 2\n1 2\n```\n"
    assert pages.script(text) == ([("a.py", "print(1)\n")], [("python a.py", ["1"]), ("echo 1 \\\n2", ["1 2"])])
