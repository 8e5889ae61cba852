# SPDX-License-Identifier: Apache-2.0
"""Launches that come past the library, and other preloaded libraries: what is seen is captured, what is not is named."""
import os

import pytest

from harness import BUILD, STANDIN_VERSION
from kit import START, filled, site, spec

FOLDER = BUILD / "tests" / "preload"
PLUGIN, PEER = FOLDER / "libplugin.so", FOLDER / "libwrapping_peer.so"
LAUNCH = ["launch block 0 1 64 p 64 5", "launch block 0 1 64 p 64 6", "sync", "digest p 256"]
PAST = "kernel block was loaded, but no launch of it came through the library: it was not launched, or by a way past it"
pytestmark = pytest.mark.built(PLUGIN, PEER)


def named(bench, result, sentence):
    """The run says that the site captured nothing, and why; so does the log."""
    if bench.check(len(result.folders) == 1, "a run was written", result.stderr[-600:]):
        run = result.run()
        told = [(p["reason"], p["sentence"]) for p in run.manifest.get("problems", [])]
        bench.check(told == [("no_match", sentence)] and not run.records and not run.balance(), "the run names it", told)
        bench.check(sentence in result.stderr, "so does the log", result.stderr)


@pytest.fixture
def deep():
    if os.environ.get("DMI_TEST_RUNTIME"):
        pytest.skip("AddressSanitizer refuses RTLD_DEEPBIND")


def test_a_plugin_is_seen(bench):
    script = START + [f"plugin {PLUGIN} cuLaunchKernel cuModuleGetFunction", "func block m block", *LAUNCH]
    r = bench.alike("a plugin", script, spec(site()))
    bench.captured("a plugin", r, [filled(5, 64), filled(6, 64)])


def test_launches_of_a_plugin_with_deepbind_are_named(bench, deep):
    r = bench.alike("a plugin that launches past the library", START + [f"deepplugin {PLUGIN} cuLaunchKernel", *LAUNCH], spec(site()))
    named(bench, r, PAST)


def test_a_plugin_with_deepbind_that_looks_up_and_launches_is_named_by_its_site(bench, deep):
    script = [line for line in START if not line.startswith("func block")]
    script += [f"deepplugin {PLUGIN} cuLaunchKernel cuModuleGetFunction", "func block m block", *LAUNCH]
    r = bench.alike("a plugin that does all past the library", script, spec(site()))
    listed = STANDIN_VERSION >= 12040  # the driver says what a module holds
    named(bench, r, PAST if listed else "no launch matched the kernel pattern ^block$")


@pytest.mark.parametrize("forwards", ("next", "handle"))
@pytest.mark.parametrize("way", ("link", "dlopen"))
def test_a_peer_in_front_that_passes_launches_on(bench, way, forwards):
    """It sees what it would see alone: a program that asks the driver's own handle comes past it."""
    r = bench.alike("a peer in front", START + LAUNCH, spec(site()), way=way, before=[PEER], timeout=20, PEER_FORWARDS=forwards)
    bench.check(f"the peer saw {2 if way == 'link' else 0} launches" in r.stdout, "the peer sees the launches", r.stdout[-300:])
    bench.captured("a peer in front", r, [filled(5, 64), filled(6, 64)])


def test_a_peer_in_front_that_goes_past_the_library_is_named(bench):
    r = bench.alike("a peer in front, with pointers of its own", START + LAUNCH, spec(site()), way="link", before=[PEER],
                    PEER_FORWARDS="unseen")
    bench.check("the peer saw 2 launches" in r.stdout, "the peer sees the launches", r.stdout[-300:])
    named(bench, r, PAST)


@pytest.mark.parametrize("forwards", ("next", "handle", "unseen"))
@pytest.mark.parametrize("way", ("link", "dlopen"))
def test_a_peer_after_us(bench, way, forwards):
    """Here, too, it sees what it would see alone, and none of our launches; `handle` leads it back to us."""
    script = START + ["launch other 0 1 64 p 64 4", *LAUNCH]
    r = bench.alike("a peer after us", script, spec(site()), way=way, after=[PEER], timeout=20, PEER_FORWARDS=forwards)
    bench.check(f"the peer saw {3 if way == 'link' else 0} launches" in r.stdout, "the peer sees the launches", r.stdout[-300:])
    bench.captured("a peer after us", r, [filled(5, 64), filled(6, 64)])
