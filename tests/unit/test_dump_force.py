# SPDX-License-Identifier: Apache-2.0
"""dmi-dump writes over nothing that is there, unless --force says so, and then only over what it may have written itself."""
import os
import subprocess

import pytest

from harness import BUILD, DMI_DUMP

MAKE_RUN = BUILD / "tests" / "unit" / "make_run"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN)
FILES, FOLDERS = ("safetensors", "npz", "jsonl", "csv"), ("npy", "tensorrt-llm")


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    subprocess.run([MAKE_RUN, tmp_path / "out"], check=True, stdout=subprocess.PIPE, timeout=60)
    return next((tmp_path / "out").iterdir())


def export(run, form, where, *words, cwd=None):
    return subprocess.run([DMI_DUMP, "export", run, "-f", form, "-o", where, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace", timeout=120, cwd=cwd)


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_is_there(run, tmp_path, check, form):
    path = tmp_path / "mine"
    path.write_text("mine")
    done = export(run, form, path)
    check(done.returncode == 2 and "is there already: --force replaces it" in done.stderr and path.read_text() == "mine",
          f"{form}: a file that is there stays", done)
    done = export(run, form, path, "--force")
    check(done.returncode == 0 and path.read_bytes() != b"mine", f"{form}: --force replaces it", done)
    other = tmp_path / "other"
    other.write_text("other")
    link, nowhere = tmp_path / "link", tmp_path / "nowhere"
    link.symlink_to(other)
    nowhere.symlink_to(tmp_path / "missing")
    for place in (link, nowhere):
        done = export(run, form, place)
        check(done.returncode == 2 and "is there already" in done.stderr and other.read_text() == "other",
              f"{form}: so does a link: {place.name}", done)
    done = export(run, form, link, "--force")
    check(done.returncode == 0 and other.read_text() == "other" and not link.is_symlink(), f"{form}: of a link --force replaces the link alone",
          done)
    check(not list(tmp_path.glob("*partial*")), f"{form}: nothing temporary is left")


def test_the_name_that_is_chosen_for_you(run, tmp_path, check):
    folder = tmp_path / "here"
    folder.mkdir()
    words = [DMI_DUMP, "export", run]
    first = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    before = content(folder)
    again = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    check(first.returncode == 0 and len(before) == 1 and again.returncode == 2 and "--force" in again.stderr and content(folder) == before,
          "the default name is no exception", again)


@pytest.mark.parametrize("form", FOLDERS)
def test_a_folder_that_is_there(run, tmp_path, check, form):
    folder = tmp_path / "folder"
    check(export(run, form, folder).returncode == 0, "a new one")
    first = content(folder)
    (folder / "stale.npy").write_text("stale")
    done = export(run, form, folder)
    check(done.returncode == 2 and "is not empty" in done.stderr and "--force" in done.stderr, f"{form}: it is refused", done)
    done = export(run, form, folder, "--force")
    check(done.returncode == 0 and content(folder) == first, f"{form}: --force leaves nothing stale in it", sorted(content(folder)))
    check(not list(tmp_path.glob("*partial*")), f"{form}: nothing temporary is left")
    for name, put in (("thesis.tex", lambda p: p.write_text("x")), ("deep.npy", lambda p: p.mkdir()),
                      ("link.npy", lambda p: p.symlink_to(run / "manifest.json"))):
        put(folder / name)
        before = sorted(p.name for p in folder.iterdir())
        done = export(run, form, folder, "--force")
        check(done.returncode == 2 and f"holds {name}, which no export wrote" in done.stderr and
              sorted(p.name for p in folder.iterdir()) == before, f"{form}: what no export wrote is not replaced: {name}", done)
        (folder / name).rmdir() if (folder / name).is_dir() and name == "deep.npy" else (folder / name).unlink()
    aside = tmp_path / "aside"
    aside.symlink_to(folder)
    done = export(run, form, aside, "--force")
    check(done.returncode == 2 and content(folder) == first, f"{form}: a link to a folder is no folder", done)


def test_runs_are_never_written_to(run, tmp_path, check):
    subprocess.run([MAKE_RUN, tmp_path / "second"], check=True, stdout=subprocess.PIPE, timeout=60)
    second = next((tmp_path / "second").iterdir())
    before, other = content(run), content(second)
    for form in FILES + FOLDERS:
        for place in (run / "new", run / "manifest.json", run, second, second / "new", second / "seg-000000.dmi"):
            done = export(run, form, place, "--force")
            check(done.returncode == 2 and ("lies in the run itself" in done.stderr or "in the folder of a run" in done.stderr),
                  f"{form}: not into {'the' if place in (run, *run.iterdir(), run / 'new') else 'another'} run, force or not", done)
    check(content(run) == before and content(second) == other, "and both are as they were")


def test_a_failed_export_replaces_nothing(run, tmp_path, check):
    path = tmp_path / "kept"
    path.write_text("kept")
    done = export(run, "safetensors", path, "--force", "--request", "nobody")
    check(done.returncode == 2 and path.read_text() == "kept", "an export of nothing leaves what was there, force or not", done)
    done = subprocess.run([DMI_DUMP, "export", run, "-o", "/dev/stdout", "-f", "csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60)
    check(os.path.exists("/dev/stdout") and b"is there already" not in done.stderr, "a device is no file that is replaced", done)
