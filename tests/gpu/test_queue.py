# SPDX-License-Identifier: Apache-2.0
"""The queue of a run on a GPU: its order against README.md's table, and that its answers survive whatever ends the run.

A queue of short entries stands in for the real one, on the stand-in driver, to which LD_LIBRARY_PATH leads.
"""
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import asking
import contact
import entries
import processes
import table
from harness import DMI_RUN, PRELOAD, STANDIN

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.built(DMI_RUN, PRELOAD, STANDIN / "libcuda.so.1")
N = 60

# Some are alone, some not; each has two rows, and a process between them.
SHORT = f"""
import sys, time
sys.path.insert(0, {str(HERE)!r})
import contact, asking
from entries import Entry
def ask(asked):
    asked.add("first", "a", "a")
    asked.ended(asked.run(["/bin/true"]))
    time.sleep(0.01)
contact.main([Entry(f"short {{n}}", 0, 100 - n, ask, n % 3 == 0) for n in range({N})])
"""


class Short:
    """A run of the short queue. killed_after: lines that it has added to its file, and seconds; then SIGKILL, or @number"""

    def __init__(self, folder, *words, killed_after=None, number=signal.SIGKILL):
        self.file = folder / "state.jsonl"
        words = [sys.executable, "-c", SHORT, *(words or ["--state", self.file])]
        self.process = subprocess.Popen([str(word) for word in words], cwd=folder, env={**os.environ, "TMPDIR": str(folder)}, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if killed_after is not None:
            n_lines = self.lines() + killed_after[0]
            while self.process.poll() is None and self.lines() < n_lines:
                time.sleep(0.002)
            time.sleep(killed_after[1])
            self.process.send_signal(number)
        self.said, self.status = self.process.communicate(timeout=60)[0], self.process.returncode

    def lines(self):
        return self.file.read_bytes().count(b"\n") if self.file.exists() else 0

    def found(self):
        return table.read(self.file) if self.file.exists() else []


# ---- the order


def minutes():
    """[(minute, what, seconds)] of README.md's table"""
    text = (HERE / "README.md").read_text()
    rows = re.findall(r"^\| ([\d.]*) \| (.+) \| (\d*) \|$", text.partition("| minute |")[2].partition("\n\n")[0], re.M)
    return [(float(minute) if minute else None, what, int(seconds) if seconds else None) for minute, what, seconds in rows]


def test_the_queue_is_by_worth(check):
    queue = entries.queue()
    worths = [entry.worth for entry in queue]
    check(worths == sorted(worths, reverse=True), "most worth first", worths)
    check(len({entry.name for entry in queue}) == len(queue), "each name once")
    check([(b.minute, b.what, b.seconds) for b in entries.BLOCKS] == minutes(), "README.md says so minute by minute", minutes())
    check([b.worth for b in entries.BLOCKS] == list(dict.fromkeys(worths)), "a block for each worth")
    for block in entries.BLOCKS:
        mine = [entry for entry in queue if entry.worth == block.worth]
        seconds = sum(entry.seconds / (1 if entry.alone else 4) for entry in mine)
        longest = max(entry.seconds for entry in mine)
        check(block.seconds is None or max(seconds, longest) <= block.seconds, f"minute {block.minute}: {seconds:.0f} s", block)
    for a, b in zip(entries.BLOCKS, entries.BLOCKS[1:]):
        check(a.seconds is None or b.minute is None or abs(b.minute - a.minute - a.seconds / 60) <= 0.34, f"minute {b.minute} follows {a.minute}", b)


def test_what_is_asked_is_all_that_there_is(check):
    names = {entry.name for entry in entries.queue()}
    facts = subprocess.run([entries.questions.FACTS, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    listed = [line.split("\t")[0] for line in facts.splitlines()]
    check({f"facts {name}{more}" for name in listed for more in ("", " eager")} == {name for name in names if name.startswith("facts ")}, "every question")
    check(set(entries.RELIED_ON) <= set(listed), "those that are relied on are questions", set(entries.RELIED_ON) - set(listed))
    last = [entry.name for entry in entries.queue() if entry.worth == 1]
    check(all("crossed_" in name or name.endswith(" eager") for name in last) and len(last) > len(listed), "what crosses handles, and eager loading, is last")
    check(set(entries.cases.CASES) <= names, "every program", set(entries.cases.CASES) - names)


# ---- what survives


def test_killed_at_any_moment_it_leaves_a_file_and_goes_on(check, tmp_path):
    random.seed(45)
    answered = []
    for n in range(20):
        run = Short(tmp_path, killed_after=(random.randint(0, 9), random.uniform(0, 0.02)))
        found = run.found()
        text = run.file.read_text() if run.file.exists() else ""
        torn = [line for line in text.splitlines() if line and not is_json(line)]
        check(len(torn) <= n + 1, f"{n}: a kill tears one line at most", torn)
        ends = [value.entry for kind, value in found if kind == "end"]
        check(ends[:len(answered)] == answered and len(set(ends)) == len(ends), f"{n}: what was answered is not asked again", ends)
        rows = collections.Counter(row.entry for row in table.rows_of(found))
        check(all(rows[name] == 2 for name in ends), f"{n}: its rows are there", rows)
        answered = ends
    check(0 < len(answered) < N, "the kills came while entries were asked", answered)
    last = Short(tmp_path)
    check(last.status == 0 and sorted(value.entry for kind, value in last.found() if kind == "end") == sorted(f"short {n}" for n in range(N)),
          "the last run ends the queue", last.said[-1500:])
    check(f"{2 * N} ok" in last.said, "and its table has the rows of all runs", last.said[-500:])
    check(Short(tmp_path).said.count(" s  short ") == 0, "then nothing is left to ask")
    shown = Short(tmp_path, "--show", last.file, "--only", "short 1").said
    check(shown.count("ok       short 1: ") == 2 and "$ /bin/true" in shown, "and --show tells one from the other", shown)


def is_json(line):
    try:
        return bool(json.loads(line))
    except ValueError:
        return False


def test_a_signal_ends_it_with_its_file_and_table(check, tmp_path):
    run = Short(tmp_path, killed_after=(20, 0.01), number=signal.SIGTERM)
    check(run.status == 128 + signal.SIGTERM and "ended by signal 15 (SIGTERM)" in run.said, "SIGTERM", (run.status, run.said[-800:]))
    ends = [value for kind, value in run.found() if kind == "end"]
    n_ok = sum(kind == "row" for kind, _ in run.found())
    check("The file to send back" in run.said and f"{n_ok} ok" in run.said, "its table is printed", run.said[-500:])
    check(all(end.answered for end in ends) and not [value for kind, value in run.found() if kind == "row" and value.verdict == "crashed"],
          "what it cut off has no answer", ends)
    check(Short(tmp_path).status == 0, "and --state goes on")


def test_another_file_has_the_answers_of_the_first(check, tmp_path):
    first = Short(tmp_path, killed_after=(60, 0))
    before, answered = first.file.read_bytes(), [value.entry for kind, value in first.found() if kind == "end"]
    first.file.chmod(0o400)
    done = Short(tmp_path, "--state", first.file, "--out", tmp_path / "new")
    ends = [value.entry for kind, value in table.read(tmp_path / "new") if kind == "end"]
    check(done.status == 0 and first.file.read_bytes() == before, "the first file stays as it was", done.said[-300:])
    check(set(ends[:len(answered)]) == set(answered) and len(answered) > 5 and sorted(ends) == sorted(f"short {n}" for n in range(N)),
          "its answers come first, and none is asked again", ends)


@pytest.mark.parametrize("out, why", [("/dev/full", "No space left on device"), ("/nonexistent/file", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written(check, out, why, tmp_path):
    run = Short(tmp_path, "--out", out)
    check(run.said.count("cannot be written: ") == 1 and f"{out} cannot be written: {why}." in run.said, "one sentence", run.said[:300])
    check(f"{2 * N} ok" in run.said and run.status == 1, "the rest goes on, and the status says it", (run.status, run.said[-400:]))


@pytest.mark.parametrize("words, why", [
    (["--only", "short 1,nothing"], "no entry of the queue is named nothing"), (["--state", "strange"], "strange holds no answers of an earlier run"),
    (["--state", "other"], "other has answers of a GPU, and this is DMI stand-in")])
def test_a_wrong_command_is_refused(words, why, tmp_path):
    (tmp_path / "strange").write_text("a text of the user's\n")
    (tmp_path / "other").write_text('{"machine": {"device": "a GPU"}}\n')
    run = Short(tmp_path, *words)
    assert run.status == 2 and why in run.said and (tmp_path / "strange").read_text() == "a text of the user's\n", run.said


def test_without_a_device_it_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("DMI_STANDIN_DEVICES", "0")
    run = Short(tmp_path)
    assert run.status == 77 and run.said.endswith("skipped: no CUDA device: cuInit gave 100 (CUDA_ERROR_NO_DEVICE)\n") and not run.file.exists(), run.said


def test_a_torch_that_does_not_import(tmp_path, monkeypatch):
    monkeypatch.setitem(asking.NEEDS, "torch", "import nothing_of_this_name")
    needs = asking.Needs(sys.executable)
    assert needs.lacks(("torch", "transformers")) == "torch does not work here: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert asking.Needs("/nonexistent/python").lack("torch") == "torch does not work here: /nonexistent/python could not be started: No such file or directory"


def test_a_file_takes_no_more_than_may_be_sent(check, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table, "FILE_BYTES", 3000)
    found = table.Table(tmp_path / "file")
    for n in range(40):
        found.add("an entry", f"question {n}", "an answer", "an answer")
    check((tmp_path / "file").stat().st_size <= 3000 and not found.lines.is_whole(), "it ends below the limit", (tmp_path / "file").stat().st_size)
    check(capsys.readouterr().out.count("cannot be written") == 1 and len(found.rows) == 40, "which is said once")
    whole = [value for kind, value in table.read(tmp_path / "file") if kind == "row"]
    check(whole == found.rows[:len(whole)] and len(whole) > 5, "no row of it is torn", whole)


def test_a_full_disk_is_a_reason(check, tmp_path, monkeypatch):
    def full(asked):
        raise OSError(28, "No space left on device", "a file")

    found = ask_all(tmp_path, [entries.Entry("writes", 1, 1, full)])
    check([(row.verdict, row.reason) for row in found.rows] == [("skipped", "a file: No space left on device")], "while an entry is asked", found.rows)
    monkeypatch.setattr(asking, "ROOM", 1 << 60)
    found = ask_all(tmp_path, [entries.Entry("begins", 1, 1, full)])
    check(found.rows[0].reason == f"{tmp_path} has less than {1 << 40} MiB free" and not found.ends["begins"].answered, "before it is asked", found.rows)


def test_what_was_skipped_is_asked_again_and_has_its_rows_once(tmp_path):
    script = SHORT.replace("contact.main([", "contact.main([Entry('absent', 0, 101, ask, True, ('torch',))] + [").replace("import contact, asking", "import contact, asking\n"
                           "asking.NEEDS['torch'] = 'import nothing_of_this_name'")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script, "--state", "file", "--only", "absent,short 1"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    rows = collections.Counter(row.entry for row in table.rows_of(table.read(tmp_path / "file")))
    assert rows == {"absent": 1, "short 1": 2}


def ask_all(folder, queue, seconds=60):
    found = table.Table()
    contact.Queue(found, contact.Machine("DMI stand-in", sys.executable, folder), seconds).run(queue)
    return found


def test_what_is_timed_is_alone(check, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    running, seen, lock = set(), {}, threading.Lock()

    def ask(asked):
        with lock:
            running.add(asked.name)
        time.sleep(0.03)
        with lock:
            seen[asked.name] = set(running)
        time.sleep(0.03)
        with lock:
            running.discard(asked.name)

    queue = [entries.Entry(str(n), 0, 1, ask, n in (6, 7, 12)) for n in range(14)]
    found = ask_all(tmp_path, queue)
    check(all(seen[name] == {name} for name in ("6", "7", "12")), "nothing beside it", seen)
    check(max(map(len, seen.values())) == 4, "the others four at a time", seen)
    check(list(found.ends) and set(found.ends) == {entry.name for entry in queue}, "each is asked")
    found = ask_all(tmp_path, [entries.Entry("long", 100, 1, ask), entries.Entry("short", 1, 1, ask)], 20)
    check([row.reason for row in found.rows] == [asking.OVER] and found.ends["short"].answered, "what does not fit is skipped, and what fits is asked", found.rows)


# ---- programs that do not end


def run_for(seconds, *words):
    start = time.monotonic()
    return processes.run(words, dict(os.environ), seconds), time.monotonic() - start


def test_its_children_end_with_it():
    ended, seconds = run_for(10, "sh", "-c", "sleep 60 & echo $!")
    assert ended.status == 0 and seconds < 5
    end = time.monotonic() + 5
    while is_running(int(ended.stdout)):
        assert time.monotonic() < end, "a child of its group goes on"
        time.sleep(0.01)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_that_left_its_group_keeps_nobody_waiting():
    """It holds the output of the process, which ends in time, or not at all."""
    ended, seconds = run_for(10, "sh", "-c", "setsid sleep 6 & echo said")
    assert (ended.status, ended.stdout) == (0, "said\n") and seconds < 3
    ended, seconds = run_for(0.3, "sh", "-c", "setsid sleep 6 & echo said; sleep 60")
    assert ended.timed_out and ended.crashed and ended.stdout == "said\n" and ended.left is None and seconds < 2


def test_what_cannot_be_killed_is_left_to_itself_after_two_seconds(monkeypatch):
    """SIGKILL does nothing to a process that waits in a driver: here it is not sent."""
    monkeypatch.setattr(processes, "end_group", lambda pid: None)
    ended, seconds = run_for(0.3, "sleep", "20")
    monkeypatch.undo()
    assert 2.3 <= seconds < 4 and ended.crashed and ended.text.startswith("did not end within 0 s, nor after SIGKILL: process "), ended.text
    os.kill(ended.left, signal.SIGKILL)
    os.waitpid(ended.left, 0)


def test_a_process_that_is_stopped_ends():
    ended, seconds = run_for(0.3, "sh", "-c", "trap '' TERM; kill -STOP $$")
    assert ended.timed_out and ended.left is None and seconds < 2
