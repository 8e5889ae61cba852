# SPDX-License-Identifier: Apache-2.0
"""dmi-ctl and the control socket: what is captured changes while the program runs, each change is noted in its run, and whoever sends nonsense, too much,
or has no right to ask is refused, while the program and its capture go on.
"""
import contextlib
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import threading
import time

import pytest

from harness import BUILD, PRELOAD, ROOT, dump_json, environment
from kit import Result, spec
from test_rows import CLIENT, site_text
from test_shedding import SITES, Outcome, plan_of, wanted_rows

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CTL = BUILD / "tools" / "dmi-ctl"
ROOMY = "ring: {bytes: 1M, slots: 4096}"
NOBODY = 65534


def text_of(overload="{mode: drop}", ring=ROOMY):
    return spec(*(site_text(*s) for s in SITES), head=f"forward: [{{kind: step, begin: step}}]\n{ring}\noverload: {overload}\n")


def served(bench, what, plan, overload="{mode: drop}", ring=ROOMY, **env):
    """Return: the outcome, and the answers to the plan's commands, [exit status, answer]."""
    path, answers = bench.folder / f"plan-{bench.n}.json", bench.folder / f"answers-{bench.n}"
    path.write_text(json.dumps(plan))
    result = bench.alike(what, [], text_of(overload, ring), command=[sys.executable, CLIENT, path], timeout=120, PYTHONPATH=ROOT / "python",
                         DMI_CONTROL="1", CTL=CTL, ANSWERS=answers, **env)
    if not bench.check(result.code == 0 and result.folders, f"{what}: the program runs, and a run is written", result.stderr[-800:]):
        return None, []
    bench.check(not (result.folders[0] / "control").exists(), f"{what}: its socket is gone with it")
    run = result.run()
    out = Outcome(bench, what, plan, run)
    out.result = result
    lines = answers.read_text().splitlines() if answers.exists() else []
    return out, [json.loads(line) for line in lines]


def noted(run):
    """What dmi-dump list says was changed."""
    return dump_json("list", run.folder)["changes"]


def changes(bench, what, out, expected):
    """The run's notes are @expected: [(the step that it came before, the words)]."""
    found = noted(out.run)
    bench.check([(c["step_sequence"], c["what"]) for c in found] == expected, f"{what}: each change is noted", found)
    wrong = [(r.launch, c) for c in found for r in out.run.records if (r.launch >= c["launch"]) != (out.step_of[r.words[0] >> 16] >= c["step_sequence"])]
    bench.check(not wrong, f"{what}: with the launch from which on it holds", wrong[:3])


def test_sites(bench):
    """Off from one step on, on again from another: what lies between is neither captured nor expected."""
    plan = plan_of(1)
    plan[20]["commands"] = [["sites", "off", "all", "we*"]]
    plan[40]["commands"] = [["sites", "on", "a??", "weights"]]
    many = ["weights" + "*" * 1500, *("weights" + "*" * (i % 7) for i in range(200))]  # a note has all words, however many
    plan[45]["commands"] = [["sites", "on", *many]]
    out, answers = served(bench, "sites", plan)
    if not out:
        return
    bench.check([code for code, _ in answers] == [0, 0, 0] and [json.loads(a)["sites"] for _, a in answers] == [2, 2, 1], "it was done", answers)
    changes(bench, "sites", out, [(20, "sites off all we*"), (40, "sites on a?? weights"), (45, " ".join(["sites on", *many]))])
    for number, (name, kernel, keys) in enumerate(SITES):
        wanted = wanted_rows(plan, name, kernel, keys)
        on = {launch for launch in wanted if wanted[launch] and (number not in (0, 3) or not 20 <= out.step_of[launch] < 40)}
        found = {r.words[0] >> 16 for r in out.run.of(number)}
        bench.check(found == on, f"{name}: captured where it was on", (sorted(on - found)[:5], sorted(found - on)[:5]))
        bench.check(out.run.counters.expected[number].records == len(on), f"{name}: expected there alone", out.run.counters.expected[number])
    bench.check(not out.run.balance(), "sums hold", out.run.balance())


@pytest.mark.parametrize("first, second, third", [
    ("{mode: drop}", "{mode: drop, strategy: sample, share: 0.4}", "{mode: drop}"),
    ("{mode: best-effort}", "{mode: best-effort, strategy: keep-by-pattern, keep: ['vip-*']}", "{mode: complete, wait_ms: 2000}"),
    ("{mode: complete, wait_ms: 2000}", "{mode: drop, budget: {sites: {last: 400}}}", "{mode: best-effort}")], ids=["sample", "pattern", "budget"])
def test_policies(bench, first, second, third):
    """Whatever was in force: a request has all its rows until it is shed, and none from then on, also under later rules."""
    plan = plan_of(3, n_steps=90)
    plan[30]["commands"], plan[60]["commands"] = [["overload", second]], [["overload", third], ["status"]]
    slow = {"DMI_STANDIN_DTOH_BPS": 30000} if "best-effort" in first else {}
    out, answers = served(bench, second, plan, first, "ring: {bytes: 16K, slots: 1024}" if slow else ROOMY, **slow)
    if not out:
        return
    bench.check([code for code, _ in answers] == [0, 0, 0], "they were changed", answers)
    changes(bench, second, out, [(30, f"overload {second}"), (60, f"overload {third}")])
    bench.check(json.loads(answers[2][1])["overload"]["mode"] == third[7:].split(",")[0].rstrip("}"), "status says what is in force", answers[2])
    for number, (name, kernel, keys) in enumerate(SITES):
        out.take(number, name, kernel, keys)
    bench.check(not out.run.balance(), "sums hold", out.run.balance())
    bench.check(out.shed and out.requests - set(out.shed), "some requests were shed, some kept", out.shed)


def test_what_is_wrong(bench):
    near = SITES[0][0] + "x"
    wrong = [(["sites", "off", "none-such*"], "no site's name matches 'none-such*'"), (["sites", "off"], "no site's name matches"),
             (["sites", "off", SITES[0][0], near], f"matches '{near}'; did you mean"), (["sites", "maybe", "all"], "expected: sites on"), (["stop"], "no such command"),
             (["overload", "{mode: sometimes}"], "overload:1:8: found "), (["overload", "{mode: drop"], "overload:2:1: not YAML"),
             (["overload", "{mode: drop, budget: {sites: {none: 5}}}"], "expected a pattern that the name of a site matches"),
             (["overload"], "found nothing"), (["overload", "x" * 16000], "overload:1:1: found")]
    plan = plan_of(4, n_steps=12)
    plan[3]["commands"] = [words for words, _ in wrong] + [["status"]]
    out, answers = served(bench, "wrong", plan)
    if not out:
        return
    for (words, said), (code, answer) in zip(wrong, answers):
        bench.check(code == 1 and not json.loads(answer)["ok"] and said in json.loads(answer)["error"], f"{words[0]} {words[1:2]}: refused in a sentence", answer[:300])
    status = json.loads(answers[-1][1])
    bench.check([s["name"] for s in status["sites"]] == [s[0] for s in SITES] and {s["state"] for s in status["sites"]} == {"on"}, "and nothing changed", status)
    bench.check(noted(out.run) == [], "nor is anything noted", noted(out.run))
    bench.check(not any(c.tuple() != e.tuple() for c, e in zip(out.run.counters.captured, out.run.counters.expected)), "all was captured")


def test_a_program_that_takes_descriptors(bench):
    """It closes our socket and opens a file under its number: the file is not ours."""
    plan = plan_of(5, n_steps=20)
    plan[5]["take"], plan[12]["commands"] = True, [["status"]]
    out, answers = served(bench, "taken", plan)
    if out:
        bench.check(answers[0][0] == 2, "nobody listens any more", answers)
        bench.check(not out.run.balance() and not any(out.run.counters.dropped), "the capture goes on", out.run.balance())


# ---------------------------------------------------------------------------------------------------- others at the socket


class Engine:
    """A program that serves for a while and then waits, and its socket."""

    def __init__(self, bench, plan, **env):
        self.bench, self.plan = bench, plan
        self.folder = bench.folder / "engine"
        self.folder.mkdir()
        (self.folder / "plan.json").write_text(json.dumps(plan))
        (self.folder / "spec.yaml").write_text(text_of())
        self.out = pathlib.Path(env.pop("DMI_OUT", self.folder / "out"))
        env = {"DMI_CONTROL": "1", "LD_PRELOAD": PRELOAD, "DMI_OUT": self.out, "DMI_SPEC": self.folder / "spec.yaml", "PYTHONPATH": ROOT / "python", **env}
        env.setdefault("DMI_STANDIN_CACHE", os.environ.get("DMI_STANDIN_CACHE", str(BUILD / "standin-cache")))
        self.command = [sys.executable, CLIENT, self.folder / "plan.json", self.folder / "gate"]
        self.process = subprocess.Popen(self.command, env=environment(**env), text=True, cwd=self.folder,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until = time.monotonic() + 60
        while not (list(self.out.glob("[!.]*/control")) or (env["DMI_CONTROL"] != "1" and list(self.out.glob("[!.]*/counters")))):
            assert self.process.poll() is None and time.monotonic() < until, self.process.communicate()
            time.sleep(0.01)
        self.run = next(path.parent for path in self.out.glob("[!.]*/counters") if not path.parent.is_symlink())

    def connect(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        until = time.monotonic() + 30
        folder = os.open(self.run, os.O_PATH)
        try:
            s.setblocking(False)
            while True:
                try:
                    s.connect(f"/proc/self/fd/{folder}/control")
                    break
                except BlockingIOError:  # as many as may wait do so
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.002)
        finally:
            os.close(folder)
        s.settimeout(30)
        return s

    def ask(self, line):
        """Return: the answer; None: there was none."""
        with contextlib.closing(self.connect()) as s:
            s.sendall(line)
            return self.answer(s)

    @staticmethod
    def answer(s):
        try:
            with s.makefile("rb") as lines:
                line = lines.readline()
                return json.loads(line) if line else None
        except ConnectionError:
            return None

    def threads(self):
        return [path.read_text().strip() for path in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/comm")]

    def ends(self):
        """All was captured, and nothing else happened."""
        (self.folder / "gate").touch()
        stdout, stderr = self.process.communicate(timeout=120)
        plain = self.bench.run([], preload=False, command=self.command, PYTHONPATH=ROOT / "python")
        self.bench.check((self.process.returncode, stdout) == plain.said(), "the program says the same", stderr[-800:])
        self.process.stdout, self.process.stderr = stdout, stderr
        run = Result(self.process, self.out, self.folder).run()
        same = all(c.tuple() == e.tuple() and c.records for c, e in zip(run.counters.captured, run.counters.expected))
        self.bench.check(same and not run.balance(), "all was captured", run.balance())
        return run


@pytest.fixture(name="engine")
def fixture_engine(bench):
    engine = Engine(bench, plan_of(7, n_steps=60, pause=0.02))
    yield engine
    if engine.process.returncode is None:
        engine.process.kill()
        engine.process.communicate()


def test_hostile_lines(bench, engine):
    refused = [(b"x" * (16 << 10), "more than 16 KiB"), (b"status\0\n", "NUL"), (b"\n", "no such command"), (bytes(range(128, 256)) + b"\n", "no such command"),
               (b"overload {mode: drop, mode: drop}\n", "overload:1:"), (b"overload " + b"[" * 9000 + b"\n", "overload:1:"),
               (b"overload &a [*a, *a]\n", "overload:1:"), (b"sites off " + b"*" * 12000 + b"q\n", "no site")]
    for line, said in refused:
        answer = engine.ask(line)
        bench.check(answer and not answer["ok"] and said in answer["error"], f"{line[:24]}: refused", answer)
    with contextlib.closing(engine.connect()) as s:
        s.sendall(b"status\nsta")
        bench.check(engine.answer(s)["ok"], "a line is answered while the next is half there")
        s.sendall(b"tus\nstatus\nstatus\n")
        with s.makefile("rb") as lines:
            bench.check(all(json.loads(lines.readline())["ok"] for _ in range(3)), "then that and the following ones, one after the other")
    bench.check(engine.ask(b"status\n")["ok"], "the next one is served")
    bench.check(noted(engine.ends()) == [], "nothing was changed")


def test_a_gigabyte(bench, engine):
    """Without an end of line: what is not read is not kept."""
    before = int(pathlib.Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1])
    sent, block = 0, b"x" * (1 << 20)
    with contextlib.closing(engine.connect()) as s:
        with contextlib.suppress(ConnectionError):
            while sent < 1 << 30:
                sent += s.send(block)
    bench.check(sent < 64 << 20, "it is closed soon", sent)
    after = int(pathlib.Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1])
    bench.check((after - before) * os.sysconf("SC_PAGE_SIZE") < 64 << 20, "and costs no memory", (before, after))
    bench.check(engine.ask(b"status\n")["ok"], "the next one is served")
    engine.ends()


def test_a_thousand_clients(bench, engine):
    """Three hundred hold on and say nothing, or half a line: who sends no line makes room, and others come."""
    silent = []
    while len(silent) < 300:
        silent.append(engine.connect())
    for s in silent[::2]:
        with contextlib.suppress(ConnectionError):  # it has made room already
            s.sendall(b"stat")
    began, answered = time.monotonic(), 0
    for _ in range(1000):
        answered += bool(engine.ask(b"status\n"))
    waited = time.monotonic() - began
    bench.check(answered == 1000 and waited < 20, "a thousand are answered", (answered, waited))
    for s in silent:
        with contextlib.suppress(ConnectionError):  # closed with half a line unread
            bench.check(not s.recv(1), "one that is silent is closed")
        s.close()
    bench.check(engine.threads().count("dmi-control") == 1, "by one thread")
    engine.ends()


def test_a_line_that_never_ends_is_closed(bench, engine):
    """A character now and then is no line: after five seconds it is closed."""
    began = time.monotonic()
    with contextlib.closing(engine.connect()) as s, contextlib.suppress(ConnectionError):
        s.settimeout(0.5)
        while time.monotonic() - began < 20:
            s.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if not s.recv(1):
                    break
    bench.check(time.monotonic() - began < 12, "it is closed", time.monotonic() - began)
    engine.ends()


def flood(s, reads, stop):
    """Line after line; with @reads it takes the answers, too."""
    s.setblocking(False)
    while not stop.is_set():
        ready, writable, _ = select.select([s] if reads else [], [s], [], 0.05)
        with contextlib.suppress(BlockingIOError):
            if writable:
                s.send(b"status\n" * 2000)
            if ready and not s.recv(1 << 20):
                return
        with contextlib.suppress(BlockingIOError):
            if not reads and not s.recv(1, socket.MSG_PEEK):
                return


@pytest.mark.parametrize("reads", (False, True), ids=("takes no answers", "takes all"))
def test_one_that_asks_and_asks(bench, engine, reads):
    """It asks without end: others have a line for each of its lines."""
    stop, times = threading.Event(), []
    clients = [engine.connect() for _ in range(3)]

    def body(s):
        with contextlib.suppress(ConnectionError):
            flood(s, reads, stop)
    threads = [threading.Thread(target=body, args=(s,)) for s in clients]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for _ in range(20):
        began = time.monotonic()
        bench.check(engine.ask(b"status\n")["ok"], "another is served meanwhile")
        times.append(time.monotonic() - began)
    stop.set()
    for thread in threads:
        thread.join()
    print(f"another waited {sorted(times)[10] * 1e3:.1f} ms, at most {max(times) * 1e3:.1f}")
    bench.check(sorted(times)[10] < 0.5, "and soon", times)
    for s in clients:
        s.close()
    engine.ends()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user(bench, engine):
    """Even where somebody has opened folder and socket for all."""
    if subprocess.run(["test", "-x", CTL], user=NOBODY, group=NOBODY, check=False).returncode:
        pytest.skip(f"{CTL} is out of another user's reach")
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([CTL, engine.run, "status"], user=NOBODY, group=NOBODY, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    bench.check((engine.run / "control").stat().st_mode & 0o777 == 0o600, "the socket is the owner's alone")
    for path in (engine.run / "control", *(p for p in (engine.run, *engine.run.parents) if p != pathlib.Path("/"))):
        path.chmod(path.stat().st_mode | 0o77)
    script = ("import json, socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]); "
              "s.send(b'sites off all\\n'); print(repr(s.recv(100)))")
    short = engine.folder / "s"
    short.symlink_to(engine.run)
    done = subprocess.run([sys.executable, "-c", script, os.path.relpath(short / "control", engine.folder)], user=NOBODY, group=NOBODY, cwd=engine.folder,
                          check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    bench.check('{"ok' not in done.stdout and ("b''" in done.stdout or "ConnectionReset" in done.stdout or "BrokenPipe" in done.stdout),
                "another user gets no answer", done.stdout[-300:])
    bench.check(noted(engine.ends()) == [], "and changes nothing")


def test_a_long_path(bench):
    out = bench.folder / ("a" * 120) / ("b" * 120)
    out.parent.mkdir()
    engine = Engine(bench, plan_of(8, n_steps=40, pause=0.02), DMI_OUT=out)
    said = subprocess.run([CTL, out, "sites", "on", "*"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    bench.check(said.returncode == 0 and said.stdout.splitlines()[-1].startswith("done: "), "dmi-ctl finds it by its folder", said.stdout)
    status = subprocess.run([CTL, engine.run, "status"], stdout=subprocess.PIPE, text=True, check=False).stdout
    bench.check("site logits: on" in status and "overload: drop, drop-recent" in status, "and says it in words", status)
    bench.check([c["what"] for c in noted(engine.ends())] == ["sites on *"], "it is noted")
    late = subprocess.run([CTL, out, "status"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    bench.check(late.returncode == 2 and "do they run still?" in late.stdout, "one that has ended is not there", late.stdout)


def test_only_if_it_is_asked_for(bench):
    engine = Engine(bench, plan_of(9, n_steps=30, pause=0.02), DMI_CONTROL="")
    bench.check("dmi-control" not in engine.threads() and not (engine.run / "control").exists(), "no thread, no socket", engine.threads())
    said = subprocess.run([CTL, engine.run, "status"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    bench.check(said.returncode == 2 and "dmi-run --control" in said.stdout, "dmi-ctl says what is missing", said.stdout)
    engine.ends()


def test_a_thousand_changes(bench, engine):
    """Notes have no end; of mappings a run takes so many, as each stays in memory."""
    said = [b"sites on all\n"] * 1002 + [b"overload {mode: drop}\n"] * 1001 + [b"sites on all\n"]
    with contextlib.closing(engine.connect()) as s, s.makefile("rb") as lines:
        answers = []
        for line in said:
            s.sendall(line)
            answers.append(json.loads(lines.readline()))
    bench.check([i for i, a in enumerate(answers) if not a["ok"]] == [2002], "a thousand mappings, and no more", answers[-2:])
    bench.check([c["what"].split()[0] for c in noted(engine.ends())] == ["sites"] * 1002 + ["overload"] * 1000 + ["sites"], "each is noted")


def test_killed(bench, engine):
    engine.process.kill()
    engine.process.communicate()
    said = subprocess.run([CTL, engine.run, "status"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    bench.check(said.returncode == 2 and "was killed" in said.stdout, "a killed one is said to be", said.stdout)


@pytest.mark.parametrize("words, said", [(["status"], "RUN status"), ([], "RUN status"), (["/nowhere", "status"], "cannot be opened"),
                                         (["--what", "x", "status"], "unrecognized option"), (["/", "sta\ntus"], "one line"), (["/", "x" * 20000], "16 KiB")], ids=str)
def test_wrong_usage(bench, words, said):
    done = subprocess.run([CTL, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    bench.check(done.returncode == 2 and said in done.stdout, "a sentence", done.stdout[-300:])
