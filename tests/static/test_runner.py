# SPDX-License-Identifier: Apache-2.0
"""run_pytest.py says what happened in a file of tests, tools/setup/meter.py what it cost, and tools/setup/results.py counts both."""
import json
import os
import shutil
import subprocess
import sys

import pytest

from tree import ROOT

sys.path.insert(0, str(ROOT / "tools/setup"))
import results  # noqa: E402

FILES = {
    "passes": "def test_one():\n    pass\ndef test_checks(check):\n    check(True, 'a')\n    check(1, 'b # c')\n",
    "fails": "def test_checks(check):\n    check(False, 'a', ['why', 'so'])\n    check(True, 'b')\n    assert 1 == 2\n"
             "def test_other():\n    pass\n",
    "breaks": "import pytest\n@pytest.fixture\ndef broken():\n    raise OSError('no such thing')\ndef test_one(broken):\n    pass\n",
    "is_no_python": "def test_one(:\n",
    "skips_one": "import pytest\ndef test_one():\n    pass\ndef test_two():\n    pytest.skip('not here')\n",
    "skips_all": "import pytest\ndef test_one():\n    pytest.skip('not here')\ndef test_two():\n    pytest.skip('nor there')\n",
    "skips_itself": "import pytest\npytest.importorskip('no_such_module')\ndef test_one():\n    pass\n",
    "hangs": "import subprocess\ndef test_one():\n    subprocess.run(['sleep', '9'], timeout=0.1)\ndef test_two():\n    pass\n",
    "is_ended": "import os, signal, time\ndef test_one(check):\n    check(False, 'a', 'why')\n"
                "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\ndef test_two():\n    pass\n",
    "is_empty": "",
    "needs_a_file": "import pathlib, pytest\npytestmark = pytest.mark.built(pathlib.Path('/nowhere'))\ndef test_one():\n    assert False\n",
}


@pytest.fixture
def results_of(tmp_path):
    """results_of(name) - exit status of that file's run, its output's lines, and what tools/setup/results.py prints of it."""
    def results_of(name):
        # not below ROOT/tests: it needs what all tests share
        for shared in ("conftest.py", "pytest.ini", "built.py"):
            shutil.copy(ROOT / "tests" / shared, tmp_path)
        (tmp_path / f"test_{name}.py").write_text(FILES[name])
        env = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
        env["TMPDIR"] = str(tmp_path)
        done = subprocess.run([sys.executable, ROOT / "tests/run_pytest.py", tmp_path / f"test_{name}.py"], cwd=tmp_path, env=env,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        result = {0: "OK", 77: "SKIP"}.get(done.returncode, "FAIL")
        log = tmp_path / "log.json"
        log.write_text(json.dumps({"name": f"queue / unit/{name}", "result": result, "returncode": done.returncode, "stdout": done.stdout}))
        counted = subprocess.run([sys.executable, ROOT / "tools/setup/results.py", log], text=True, stdout=subprocess.PIPE)
        return done.returncode, done.stdout.splitlines(), counted.stdout.splitlines()
    return results_of


def test_what_passes(results_of):
    status, lines, counted = results_of("passes")
    assert (status, lines) == (0, ["ok 1 - test_one", "ok 2 - test_checks: a", "ok 3 - test_checks: b c", "1..3"])
    assert counted[-1] == "3 passed, 0 failed, 0 skipped"


def test_what_fails_is_named_and_explained_at_the_end(results_of):
    status, lines, counted = results_of("fails")
    assert status == 1
    assert lines[:5] == ["not ok 1 - test_checks: a", "ok 2 - test_checks: b", "not ok 3 - test_checks", "ok 4 - test_other", "1..4"]
    assert lines[5:8] == ["# FAILED test_checks: a", "# a: why", "# so"]
    assert any("assert 1 == 2" in line for line in lines[8:])
    assert "FAILED: unit/fails: test_checks: a" in counted
    assert counted[-1] == "2 passed, 2 failed, 0 skipped"


def test_a_fixture_that_breaks_is_a_failure(results_of):
    status, lines, counted = results_of("breaks")
    assert status == 1 and lines[:2] == ["not ok 1 - test_one (setup)", "1..1"]
    assert any("no such thing" in line for line in lines) and counted[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_file_that_cannot_be_read_is_a_failure(results_of):
    status, lines, counted = results_of("is_no_python")
    assert status not in (0, 77) and lines[:2] == ["not ok 1 - test_is_no_python.py", "1..1"]
    assert counted[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_skip_is_named_with_its_reason(results_of):
    status, lines, counted = results_of("skips_one")
    assert status == 0 and lines == ["ok 1 - test_one", "ok 2 - test_two # SKIP not here", "1..2"]
    assert "skipped: unit/skips_one: test_two: not here" in counted and counted[-1] == "1 passed, 0 failed, 1 skipped"


@pytest.mark.parametrize("name, reason", [("skips_all", "nor there"), ("needs_a_file", "/nowhere was not built"),
                                          ("skips_itself", "could not import 'no_such_module': No module named 'no_such_module'")])
def test_where_all_skip_the_file_does(results_of, name, reason):
    status, lines, counted = results_of(name)
    assert status == 77 and lines[-1] == f"skipped: {reason}"
    assert f"skipped: unit/{name}: {reason}" in counted


def test_a_program_that_hangs_is_the_last_one(results_of):
    status, lines, counted = results_of("hangs")
    assert status not in (0, 77) and lines[:2] == ["not ok 1 - test_one", "1..1"]
    assert any("TimeoutExpired" in line for line in lines) and counted[-1] == "0 passed, 1 failed, 0 skipped"


def test_what_failed_is_explained_when_the_time_is_over(results_of):
    status, lines, _ = results_of("is_ended")
    assert status not in (0, 77) and lines[:4] == ["not ok 1 - test_one: a", "1..1", "# FAILED test_one: a", "# a: why"]
    assert lines[-1] == "# ended in test_one; no later test was run"


def test_a_file_without_tests_is_a_failure(results_of):
    status, _, counted = results_of("is_empty")
    assert status not in (0, 77) and counted[-1] == "0 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("keep, n_kept", [(None, 0), ("1", 1)])
def test_working_folders_are_kept_and_named_if_asked_for(results_of, tmp_path, monkeypatch, keep, n_kept):
    monkeypatch.delenv("DMI_TEST_KEEP", raising=False)
    if keep:
        monkeypatch.setenv("DMI_TEST_KEEP", keep)
    _, lines, _ = results_of("fails")
    kept = list(tmp_path.glob("dmi-test_*"))
    assert len(kept) == n_kept and all(f"# kept: {path}" in lines for path in kept)


def logged(folder, *results):
    """A log of meson's and tools/setup/meter.py's file beside it, of tests that took 10 CPU seconds each."""
    (folder / "log.json").write_text("\n".join(json.dumps(
        {"name": f"queue / {name}", "result": result, "returncode": 0, "stdout": "", "stderr": ""}) for name, result in results))
    (folder / "cpu").write_text("\n".join(json.dumps({"name": name, "cpu": 10.0}) for name, _ in results))
    return folder / "log.json", folder / "cpu"


@pytest.mark.parametrize("limits, failed", [
    (None, []), ({"all": 20, "one": 10}, []), ({"all": 19, "one": 10}, ["the tests took 20 CPU seconds, 19 are theirs"]),
    ({"all": 20, "one": 9}, ["asan/unit/b took 10 CPU seconds, a test has 9", "unit/a took 10 CPU seconds, a test has 9"])])
@pytest.mark.parametrize("ci, word", [("true", "FAILED"), ("", "WARNING")])
def test_a_run_beyond_its_budget_fails_in_ci(tmp_path, capsys, monkeypatch, limits, failed, ci, word):
    monkeypatch.setenv("CI", ci)
    log, cpu = logged(tmp_path, ("unit/a", "OK"), ("asan/unit/b", "OK"))
    good = results.report(log, cpu, limits)
    lines = capsys.readouterr().out.splitlines()
    assert good == (not failed or not ci) and sorted(line.split(": ", 2)[2].partition(" (")[0] for line in lines if line.startswith(word)) == failed
    assert lines[0].startswith("CPU seconds: 20; the dearest: ") and lines[-1] == f"2 passed, {len(failed) if ci else 0} failed, 0 skipped"


@pytest.mark.parametrize("speeds, good", [([0.4], False), ([0.8, 0.9, 0.1, 0.8], True), ([0.2], False)])
def test_a_slow_machine_has_more_seconds(tmp_path, capsys, monkeypatch, speeds, good):
    """Tests of 20 s have a budget of 12 s where tools/setup/speed.py takes 0.4: that are 24 where it takes 0.8."""
    monkeypatch.setenv("CI", "true")
    log, cpu = logged(tmp_path, ("unit/a", "OK"), ("asan/unit/b", "OK"))
    cpu.write_text(cpu.read_text() + "".join(f'\n{{"name": "{results.SPEED}", "cpu": {speed}}}' for speed in speeds))
    assert results.report(log, cpu, {"all": 12, "one": 12, "speed": 0.4}) == good
    assert "CPU seconds: 20; " in capsys.readouterr().out


def test_what_fails_sometimes_is_counted(tmp_path, capsys):
    log, cpu = logged(tmp_path, ("unit/a", "OK"), ("unit/a", "FAIL"), ("unit/b", "OK"), ("unit/b", "OK"), ("unit/a", "TIMEOUT"))
    assert not results.report(log, cpu, repeat=3)
    assert "FAILED 2 of 3 times: unit/a" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command, status", [(["true"], 0), (["sh", "-c", "exit 77"], 77), (["sh", "-c", "kill -SEGV $$"], -11)])
def test_the_meter_ends_as_the_command_does(tmp_path, command, status):
    done = subprocess.run([ROOT / "tools/setup/meter.py", tmp_path / "cpu", "a test", *command], stdout=subprocess.PIPE, text=True)
    assert done.returncode == status and done.stdout == ""
    assert json.loads((tmp_path / "cpu").read_text())["name"] == "a test"


def test_the_meter_counts_children(tmp_path):
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([ROOT / "tools/setup/meter.py", tmp_path / "cpu", "a test", "sh", "-c", f"'{sys.executable}' -c '{busy}'; true"], check=True)
    assert 0.3 <= json.loads((tmp_path / "cpu").read_text())["cpu"] < 3
