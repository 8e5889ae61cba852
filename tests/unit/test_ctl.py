# SPDX-License-Identifier: Apache-2.0
"""dmi-ctl and a control socket that a test answers: what is asked, and what is said of the answer. tests/preload/test_control.py has a real one."""
import json
import socket
import subprocess
import threading

import pytest

from harness import BUILD

CTL = BUILD / "tools" / "dmi-ctl"
pytestmark = pytest.mark.built(CTL)
STATUS = {"ok": True, "pid": 7, "steps": 1, "overload": {"mode": "drop", "strategy": "none", "patterns": 1, "budgets": 2}, "sites": [
    {"name": "q", "forward": "prefill", "state": "on"}, {"name": "q", "forward": "decode", "state": "on"}, {"name": "k", "forward": None, "state": "off"},
    {"name": "v", "forward": "prefill", "state": "on"}, {"name": "v", "forward": "decode", "state": "given up"}, {"name": "q", "forward": "decode", "state": "on"}]}


@pytest.fixture(name="ask")
def fixture_ask(tmp_path):
    """ask(words, answer): (status, lines said, the line that was asked or None)"""
    server, asked = socket.socket(socket.AF_UNIX), []
    server.bind(str(tmp_path / "control"))
    server.listen(4)

    def ask(words, answer):
        def serve():
            try:
                client, _ = server.accept()
            except OSError: # nothing was asked
                return
            with client, client.makefile("rb") as lines:
                asked.append(lines.readline().decode())
                client.sendall(json.dumps(answer).encode() + b"\n")
        asked.clear()
        threading.Thread(target=serve, daemon=True).start()
        done = subprocess.run([CTL, *[tmp_path if word == "RUN" else word for word in words]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return done.returncode, done.stdout.splitlines(), asked[0] if asked else None
    yield ask
    server.close()


@pytest.mark.parametrize("words", (["--json", "RUN", "sites", "off", "q*"], ["RUN", "--json", "sites", "off", "q*"], ["RUN", "sites", "off", "q*", "--json"],
                                   ["RUN", "sites", "--json", "off", "q*"]), ids=" ".join)
def test_options_stand_anywhere(ask, words):
    status, said, asked = ask(words, {"ok": True, "sites": 2})
    assert status == 0 and json.loads(said[0])["sites"] == 2 and asked == "sites off q*\n"


def test_an_option_that_is_none_is_no_pattern(ask):
    status, said, asked = ask(["RUN", "sites", "off", "--jsno"], {"ok": True, "sites": 2})
    assert status == 2 and "unrecognized option" in said[0] and asked is None
    assert ask(["RUN", "sites", "off", "--", "-q"], {"ok": True, "sites": 2})[2] == "sites off -q\n"


def test_status_names_a_site_once(ask):
    status, said, _ = ask(["RUN", "status"], STATUS)
    assert status == 0 and said[1:] == ["process 7, 1 step", "overload: drop, none, 1 pattern, 2 budgets", "site q: on (prefill, decode)", "site k: off",
                                        "site v: on (prefill), given up (decode)"], said


@pytest.mark.parametrize("answer, wanted", [({"sites": 1}, "done: 1 entry of the HookSpec"), ({"sites": 1200}, "done: 1,200 entries of the HookSpec"), ({"mode": "drop"}, "done: mode drop")])
def test_done_says_what(ask, answer, wanted):
    assert ask(["RUN", "sites", "on", "*"], {"ok": True, **answer})[1][1:] == [wanted]
