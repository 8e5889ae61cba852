# SPDX-License-Identifier: Apache-2.0
"""dmi-run as the parent of a command with edits: for who started it, it is the command. And what it says where an edit was asked for and not made."""
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time

import pytest

from harness import DMI_RUN
from test_dmi_run import GOOD, any_library

pytestmark = pytest.mark.built(DMI_RUN)
PLACE = GOOD.replace("sites:\n", "sites:\n  - {name: p, kernel: j, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: a}, {count: 2}], layer: occ, write: {}}\n")
SIGNALS = sorted(set(range(1, signal.SIGRTMAX + 1)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33})
# Counts its signals until it gets SIGUSR2 twice, and says each. It takes the lowest number first of those that wait.
COUNTS = """
import collections, ctypes, json, os, signal, sys
libc = ctypes.CDLL(None)
every = set(range(1, signal.SIGRTMAX + 1)) - {signal.SIGCHLD, 32, 33}
signal.pthread_sigmask(signal.SIG_BLOCK, every)
print("ready", flush=True)
seen = collections.Counter()
while seen[signal.SIGUSR2] < 2:
    number = signal.sigwaitinfo(every).si_signo
    seen[number] += 1
    print(int(number), flush=True)
json.dump(seen, open("seen", "w"))
"""


def npy(*numbers):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(numbers)},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(numbers)}f", *numbers)


class Edited:
    """Commands with an edit, in a folder of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("DMI_", "LD_"))}
        self.env.update(DMI_PRELOAD_PATH=str(any_library(folder)), ASAN_OPTIONS="verify_asan_link_order=0")
        (folder / "place.yaml").write_text(PLACE)
        (folder / "v.npy").write_bytes(npy(1, 2))

    def words(self, *command, options=("--steer", "v.npy")):
        return list(map(str, [DMI_RUN, "--spec", "place.yaml", *options, "--", *command]))

    def start(self, *command, **more):
        return subprocess.Popen(self.words(*command), cwd=self.folder, env=self.env, text=True, **more)

    def run(self, *command, options=("--steer", "v.npy"), **env):
        return subprocess.run(self.words(*command, options=options), cwd=self.folder, env=dict(self.env, **env), text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)


@pytest.fixture
def edited(tmp_path):
    return Edited(tmp_path)


def until(holds, what="it"):
    for _ in range(1000):
        if found := holds():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come")


def child_of(process):
    """The command: the child of dmi-run that has become another program."""
    def found():
        for child in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if pathlib.Path(f"/proc/{child}/comm").read_text().strip() not in ("dmi-edits", "dmi-run"):
                return int(child)
        return None
    return until(found, "the command")


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


# ------------------------------------------------------------------------- as the command itself


def test_each_signal_reaches_the_command_once(edited, check):
    """One to dmi-run is passed on; one to the whole group, as terminals and supervisors send it, came already."""
    with edited.start(sys.executable, "-c", COUNTS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0) as process:
        assert process.stdout.readline() == "ready\n"
        for number in SIGNALS:
            process.send_signal(number)
            assert int(process.stdout.readline()) == number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGRTMIN + 3, signal.SIGTSTP, signal.SIGUSR2):
            time.sleep(0.1)  # a second one of the number before would come
            os.killpg(process.pid, number)
            assert int(process.stdout.readline()) == number
        assert process.wait(timeout=20) == 1
    seen = {int(number): n for number, n in json.loads((edited.folder / "seen").read_text()).items()}
    both = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGRTMIN + 3, signal.SIGTSTP, signal.SIGUSR2}
    check(seen == {number: 2 if number in both else 1 for number in SIGNALS}, "counts", seen)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN])
def test_a_command_that_a_signal_ends(edited, number):
    assert edited.run("sh", "-c", f"kill -{int(number)} $$").returncode == -number


def test_stops_are_seen_and_ended(edited, check):
    with edited.start("sleep", "600", stderr=subprocess.DEVNULL, process_group=0) as process:  # it makes no process: one that waits in vfork() for a stopped child does not stop
        command = child_of(process)
        for to, number in ((process.pid, signal.SIGTSTP), (command, signal.SIGSTOP), (-process.pid, signal.SIGTSTP), (-process.pid, signal.SIGSTOP)):
            os.kill(to, number)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            check(os.WIFSTOPPED(status) and os.WSTOPSIG(status) == number and until(lambda: state_of(command) == "T"), "both stop", (to, number, status))
            os.kill(process.pid if to > 0 else to, signal.SIGCONT)
            check(until(lambda: state_of(command) in "SR" and state_of(process.pid) == "S"), "both go on", (to, number))
        process.terminate()
        check(process.wait(timeout=10) == -signal.SIGTERM, "the end", process.returncode)


def test_in_a_terminal(edited, check):
    """The command reads it; Ctrl-C and Ctrl-Z do what they do without dmi-run."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(edited.folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], dict(edited.env, PS1="> "))
    shown = b""

    def wait_for(text):
        nonlocal shown
        end = time.monotonic() + 20
        while text not in shown and time.monotonic() < end and select.select([terminal], [], [], 20)[0]:
            shown += os.read(terminal, 65536)
        assert text in shown, shown
        shown = shown[shown.index(text) + len(text):]

    def enter(text):
        os.write(terminal, text)
    wait_for(b"> ")
    enter(" ".join(edited.words("sh", "-c", "'echo is up; exec cat'")).encode() + b"\n")
    wait_for(b"is up\r\n")
    enter(b"one\n")
    wait_for(b"one\r\none\r\n")
    enter(b"\x1a")
    wait_for(b"Stopped")
    wait_for(b"> ")
    enter(b"fg\n")
    wait_for(b"exec cat'")
    enter(b"two\n")
    wait_for(b"two\r\ntwo\r\n")
    enter(b"\x03")
    wait_for(b"> ")
    enter(b"echo status=$?; exit\n")
    wait_for(b"status=130\r\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    check(True, "it came to its end")


def test_a_signal_ends_it_where_nobody_reads_its_last_line(edited, check):
    """The command has ended, and a full pipe holds what dmi-run says of the edit: SIGTERM ends it, as it ends a program that writes there."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writes, bytes(4096))
    os.set_blocking(writes, True)
    dmi_run = edited.start("true", stderr=writes)
    call = pathlib.Path(f"/proc/{dmi_run.pid}/syscall")
    try:
        until(lambda: call.read_text().split()[:2] == ["1", "0x2"], "the line waits")  # write(2), to stderr
        dmi_run.terminate()
        check(dmi_run.wait(10) == -signal.SIGTERM, "it ends", dmi_run.returncode)
    finally:
        dmi_run.kill()
        dmi_run.wait()
        os.close(reads)
        os.close(writes)


def test_it_holds_nothing_that_was_given_to_the_command(edited, check):
    """Who reads its output, or another descriptor of its, sees the end when the command closes it."""
    one, other = os.pipe()
    closes = f"import os, sys; os.close(1); os.close({other}); sys.stdin.read(); os._exit(0)"
    with edited.start(sys.executable, "-c", closes, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[other]) as process:
        os.close(other)
        check(process.stdout.read() == "" and os.read(one, 1) == b"" and process.poll() is None, "both end while it runs")
        process.stdin.close()
        check(process.wait(timeout=10) == 1, "its status", process.returncode)
    os.close(one)


def test_the_command_is_killed_with_dmi_run(edited):
    with edited.start("sleep", "60", stderr=subprocess.DEVNULL) as process:
        command = child_of(process)
        process.kill()
        until(lambda: state_of(command) in ("gone", "Z"), "the end")


def test_ignored_ends_of_children_and_closed_descriptors(edited, check):
    """However dmi-run was started, it learns how the command ended, and the command is as it would be."""
    say = "import os, signal, sys; sys.exit(3 + (signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN) + 2 * (not os.path.exists('/proc/self/fd/0')))"
    words = edited.words(sys.executable, "-c", say)
    before = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.close(0); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", before, *words], cwd=edited.folder, env=edited.env, stderr=subprocess.PIPE, check=False)
    check(done.returncode == 6, "its status", (done.returncode, done.stderr))


@pytest.mark.parametrize("command, status", [(["no-such-program-here"], 127), (["./v.npy"], 126)])
def test_a_command_that_cannot_be_run(edited, command, status):
    done = edited.run(*command)
    assert done.returncode == status and done.stderr.count("\n") == 1 and f"dmi-run: {command[0]}: " in done.stderr, done


# ------------------------------------------------------------------------- what it holds

READS = """
import multiprocessing, os, subprocess, sys, time
def read():
    assert open(os.environ["DMI_EDITS"], "rb").read(8) == b"DMIEDIT1"
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    worker = multiprocessing.Process(target=read)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    subprocess.run([sys.executable, "-c", "import os; open(os.environ['DMI_EDITS'], 'rb').read(1)"], close_fds=True, check=True)
    open("holder", "w").write(os.environ["DMI_EDITS"].split("/")[2])
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 256)  # multiprocessing's tracker lives as long as its pipe
        while os.path.exists("stays"):
            time.sleep(0.02)
        read()
        open("late", "w").close()
"""


def test_every_process_of_the_command_gets_the_edits_and_nothing_is_left(edited, check):
    """Workers that are spawned, with descriptors closed, and a daemon after the command and dmi-run have ended."""
    (edited.folder / "reads.py").write_text(READS)
    (edited.folder / "stays").touch()
    done = edited.run(sys.executable, "reads.py")
    check(done.returncode == 0 and "processes of the command go on" in done.stderr, "what goes on is not judged", done)
    (edited.folder / "stays").unlink()
    until((edited.folder / "late").exists, "the daemon's edits")
    holder = (edited.folder / "holder").read_text()
    until(lambda: state_of(holder) in ("Z", "gone"), "the holder's end")
    check(list((edited.folder / "dmi-out").iterdir()) == [], "no file is left", list((edited.folder / "dmi-out").iterdir()))


# ------------------------------------------------------------------------- asked for, and not made

NAN = npy(1, float("nan"))
HINDERED = [
    pytest.param(["--steer", "none.npy"], "none.npy: No such file", id="no file"),
    pytest.param(["--steer", "empty.npy"], "empty.npy", id="an empty one"),
    pytest.param(["--steer", "nan.npy"], "not all finite", id="numbers that are none"),
    pytest.param(["--steer", "wide.npy"], "found 3 numbers", id="another width"),
    pytest.param(["--steer", "."], "", id="a folder"),
    pytest.param(["--steer", "v.npy", "--times", "abc"], "decimal number", id="a coefficient that is none"),
    pytest.param(["--steer", "v.npy", "--times", "nan"], "decimal number", id="nan"),
    pytest.param(["--steer", "v.npy", "--times", "1e39"], "decimal number", id="beyond float32"),
    pytest.param(["--steer", "v.npy", "--times", ""], "decimal number", id="nothing"),
    pytest.param(["--steer", "v.npy", "--times", "1}, zero, {scale: 1"], "decimal number", id="more than a coefficient"),
    pytest.param(["--steer", "v.npy", "--layers", "x"], "layer", id="layers that are none"),
    pytest.param(["--steer", "v.npy", "--site", "q"], "the places are p", id="a site that is no place"),
    pytest.param(["--times", "2"], "--times without --steer", id="a coefficient of nothing"),
    pytest.param(["--site", "p"], "--site without --steer", id="a site of nothing"),
    pytest.param(["--edits", "none.yaml"], "none.yaml", id="no file of edits"),
    pytest.param(["--edits", "bad.yaml"], "bad.yaml:2:", id="one with an error"),
    pytest.param(["--edits", "."], "", id="a folder of edits"),
    pytest.param(["--edits", "pipe"], "pipe", id="a pipe"),
    pytest.param(["--steer", "v.npy", "-D", "x=1"], '"x=1"', id="a HookSpec with an error"),
    pytest.param(["--steer", "v.npy", "--out", "v.npy"], "Not a directory", id="a file as the folder"),
]


@pytest.fixture
def hindered(edited):
    os.mkfifo(edited.folder / "pipe")
    for name, data in (("empty.npy", b""), ("nan.npy", NAN), ("wide.npy", npy(1, 2, 3)), ("bad.yaml", b"editspec: 1\nedits: [{name: e}]\n")):
        (edited.folder / name).write_bytes(data)
    return edited


@pytest.mark.parametrize("options, part", HINDERED)
def test_where_the_edit_cannot_be_the_command_is_not_run(hindered, options, part):
    done = hindered.run("echo", "ran", options=options)
    assert done.returncode == 2 and done.stdout == "" and part in done.stderr, done


def test_a_server_may_run_without(hindered, check):
    """--lenient: a line says so, and the status is the command's."""
    for options, said in ((["--steer", "none.npy"], 'running "sh" without edits'), (["--edits", "bad.yaml", "--spec", "bad.yaml"], 'running "sh" without capture and without edits'),
                          (["--steer", "v.npy"], "no row was edited")):
        for status in (0, 5):
            done = hindered.run("sh", "-c", f"echo ran; exit {status}", options=["--lenient", *options])
            check(done.returncode == status and done.stdout == "ran\n" and said in done.stderr, "it runs", (options, done))
    for options, said in ((["--lenient"], "--lenient without"), (["--lenient", "--strict", "--steer", "v.npy"], "expected one"),
                          (["--lenient", "--steer", "v.npy", "-D", "x=1"], "an option cannot be honoured")):
        done = hindered.run("echo", "ran", options=options)
        check(done.returncode == 2 and said in done.stderr and not done.stdout, "options that contradict, or cannot be honoured", done)


@pytest.mark.parametrize("status", [0, 7])
def test_a_command_without_cuda(edited, status):
    """The last line says that nothing was edited. The command's own failure is not masked."""
    done = edited.run("sh", "-c", f"echo ran; exit {status}")
    assert done.returncode == (status or 1) and done.stdout == "ran\n", done
    assert re.fullmatch(r"dmi-run: no row was edited: no process of the command has initialised CUDA, or tapped a tensor, with libdmi_preload.so loaded, unless a line above says otherwise\n", done.stderr), done


# ------------------------------------------------------------------------- a sanitizer


def test_a_command_with_address_sanitizer(edited, check):
    """It ends before main() where another library comes first: dmi-run says why and what to set, also of a script that it runs."""
    (edited.folder / "app.c").write_text("int main(void) { return 0; }\n")
    built = subprocess.run(["gcc", "-fsanitize=address", "app.c", "-o", "app"], cwd=edited.folder, stderr=subprocess.PIPE, check=False)
    if built.returncode:
        pytest.skip("no gcc with AddressSanitizer")
    (edited.folder / "script").write_text(f"#!{edited.folder}/app\n")
    (edited.folder / "script").chmod(0o755)
    for command, option, told in (("./app", "", True), ("./script", "", True), ("./app", "verify_asan_link_order=0:detect_leaks=0", False), ("true", "", False)):
        done = subprocess.run([DMI_RUN, "--spec", "place.yaml", "--log", "none", "--", command], cwd=edited.folder, env=dict(edited.env, ASAN_OPTIONS=option),
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        said = "app is built with AddressSanitizer: it needs libasan.so" in done.stderr and "ASAN_OPTIONS=verify_asan_link_order=0" in done.stderr
        check((done.returncode, said) == (int(told), told), f"{command} {option}", done)
