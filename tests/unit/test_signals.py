# SPDX-License-Identifier: Apache-2.0
"""What a signal leaves of a tool that was writing: nothing under a temporary name, and nothing under the name that was asked for."""
import os
import signal
import subprocess
import sys

import pytest

from harness import BUILD, DMI_DUMP, ROOT
from replay_kit import BUILT, schedule, steps, wait_for
from test_servers_that_lie import answers, fixture_server  # noqa: F401  pylint: disable=unused-import

SLOW_READ = BUILD / "tests" / "unit" / "libslow_read.so"
pytestmark = pytest.mark.built(*BUILT, SLOW_READ)


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory):
    """One that takes seconds to read where each read takes 30 ms."""
    return schedule(tmp_path_factory.mktemp("signals") / "run", steps(12), segment_bytes=1 << 20)


def start(*words, **env):
    runtime = os.environ.get("DMI_TEST_RUNTIME")
    preload = " ".join(filter(None, (runtime, str(SLOW_READ))))
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LD_PRELOAD": preload, **env})


@pytest.mark.parametrize("words, number", [(("export",), signal.SIGINT), (("export",), signal.SIGHUP), (("export", "-f", "npy"), signal.SIGTERM), (("recover",), signal.SIGTERM)])
def test_an_export_that_a_signal_ends_leaves_nothing(run, tmp_path, words, number, check):
    process = start(DMI_DUMP, *words, next(run.iterdir()), "-o", tmp_path / "out")
    wait_for(lambda: list(tmp_path.glob("out.partial-*")) or process.poll() is not None)
    process.send_signal(number)
    said = process.communicate(timeout=30)
    check(process.returncode == -number, "the signal ends it", (process.returncode, said))
    check(not list(tmp_path.iterdir()), "and nothing is left", list(tmp_path.iterdir()))


def test_a_time_line_that_a_signal_ends_leaves_nothing(tmp_path, check):
    process = start(BUILD / "tools" / "dmi-trace", "export", "--perfetto", tmp_path / "out", *[ROOT / "tests" / "golden" / "v2" / "trace"] * 40)
    wait_for(lambda: list(tmp_path.iterdir()) or process.poll() is not None)
    names = [path.name for path in tmp_path.iterdir()]
    process.terminate()
    said = process.communicate(timeout=30)
    check(all(name.startswith("out.partial-") for name in names) and names, "a file that is written has another name", names)
    check(process.returncode == -signal.SIGTERM and not list(tmp_path.iterdir()), "and nothing is left", (process.returncode, said, list(tmp_path.iterdir())))


def test_a_run_that_was_fetched_is_removed(server, tmp_path, check):
    server.answers = [answer for answer in answers() if answer[0] != "SELECT record"]
    server.answers.insert(0, ("SELECT record", 200, None))
    process = start(DMI_DUMP, "list", "--from", f"clickhouse://127.0.0.1:{server.server_port}/", TMPDIR=str(tmp_path), LD_PRELOAD="")
    wait_for(lambda: list(tmp_path.glob("*/*/manifest.json")) or process.poll() is not None)
    process.terminate()
    said = process.communicate(timeout=30)
    check(process.returncode == -signal.SIGTERM and not list(tmp_path.iterdir()), "by a signal, too", (process.returncode, said, list(tmp_path.iterdir())))


def test_a_run_that_was_fetched_is_removed_where_no_reader_is_left(server, tmp_path, check):
    """As head does: no word. A full disk is said."""
    def listed(into):
        server.answers = answers()
        return subprocess.run([DMI_DUMP, "list", "--from", f"clickhouse://127.0.0.1:{server.server_port}/"], stdout=into, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
                              env={**os.environ, "TMPDIR": str(tmp_path)})
    read, write = os.pipe()
    os.close(read)
    done = listed(write)
    os.close(write)
    check(done.returncode == 0 and not done.stderr and not list(tmp_path.iterdir()), "a reader that left", (done.returncode, done.stderr, list(tmp_path.iterdir())))
    with open("/dev/full", "wb") as full:
        done = listed(full)
    check(done.returncode == 2 and "cannot write the output" in done.stderr and not list(tmp_path.iterdir()), "a full disk", (done.returncode, done.stderr))


def test_what_python_writes_is_removed(tmp_path, check):
    """`python -m dmi` takes the signals that would end it as exceptions, unless they are ignored."""
    text = ("import os, pathlib, signal, sys\nnumber = int(sys.argv[2])\n"
            "signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)\n"  # nohup ignores one
            "from dmi import __main__ as main\nfrom dmi.run import export\n"
            "class Run: path = 'none'\n"
            "def write():\n with export.Folder(sys.argv[1], Run()) as folder:\n"
            "  (folder / 'hs_0.safetensors').write_bytes(b'half')\n  os.kill(os.getpid(), number)\n  signal.pause()\n"
            "main.main = write\nsys.exit(main.guarded())\n")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        done = subprocess.run([sys.executable, "-c", text, tmp_path / "out", str(int(number))], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, stderr=subprocess.PIPE,
                              timeout=60, check=False)
        check(done.returncode not in (0, 1) and not list(tmp_path.iterdir()), f"by {number.name}", (done.returncode, done.stderr[-300:], list(tmp_path.iterdir())))
