# SPDX-License-Identifier: Apache-2.0
"""docs/first-capture.md, "An engine of your own": its program and its commands, as they stand there, print what stands there."""
import os
import pathlib
import re
import subprocess

import pytest

from harness import DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN, environment

pytestmark = pytest.mark.built(PRELOAD, DMI_RUN, DMI_DUMP, STANDIN / "libcuda.so.1")
PAGE = ROOT / "docs" / "first-capture.md"


def blocks(title):
    """{language: text} of the code blocks of a section."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    return {language: text for language, text in re.findall(r"```(\w+)\n(.*?)```", section, re.S)}


def test_an_engine_of_your_own(check, tmp_path):
    page = blocks("An engine of your own")
    (tmp_path / "my_engine.c").write_text(page["c"])
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", ROOT / "build" / "toolchain" / "nvidia" / "cu13"))
    env = environment(PATH=f"{DMI_RUN.parent}:{os.environ['PATH']}", C_INCLUDE_PATH=f"{ROOT / 'include'}:{toolkit / 'include'}",
                      LIBRARY_PATH=STANDIN, LD_LIBRARY_PATH=STANDIN)
    done = subprocess.run(["sh", "-e", "-c", page["sh"]], cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(done.returncode == 0, "the commands succeed", done.stderr)
    missing = [line for line in page["text"].splitlines() if line not in done.stdout.splitlines()]
    check(not missing, "they print what the page says", missing + [done.stdout])
    alone = subprocess.run([tmp_path / "my_engine"], env=env, check=False)
    check(alone.returncode == 0, "without DMI the program runs as it did")


def test_every_page_is_listed():
    text = PAGE.read_text()
    titles = re.findall(r"^## (.*)$", text, re.M)
    listed = re.findall(r"\| \[([^]]+)\]\(#[\w-]+\) \|", text)
    assert sorted(titles) == sorted(listed), (titles, listed)
