# SPDX-License-Identifier: Apache-2.0
"""Every way in: each hook is found by each way of asking, everything else is answered as without the library,
and launches made through each way, in each form, are captured."""
import functools
import re

import pytest

from harness import BUILD, ROOT, STANDIN_VERSION, STANDIN_VERSIONS
from kit import START, filled, site, spec

PEER = BUILD / "tests" / "preload" / "libpeer.so"
RESOLVE, RESOLVE_LINK = BUILD / "tests" / "preload" / "resolve", BUILD / "tests" / "preload" / "resolve_link"

ENTRIES = [(symbol, name, int(version)) for symbol, name, version in
           re.findall(r"^DRIVER_ENTRY\((\w+), (\w+), (\d+), \w+\)", (ROOT / "tests/standin/driver.def").read_text(), re.M)]
HAS = {symbol for symbol, _, version in ENTRIES if version <= STANDIN_VERSION}
ALL_HOOKS = re.findall(r"^HOOK\((\w+)\)", (ROOT / "preload/hooks.def").read_text(), re.M)
HOOKS = [symbol for symbol in ALL_HOOKS if symbol in HAS]
USES = re.findall(r"^USE\((\w+)\)", (ROOT / "preload/hooks.def").read_text(), re.M)
STRANGE = ["cuNothing", "cuLaunchKernel_v99", "cuInit_v2", "cudaLaunchKernel", "printf", "cu", "c"]
# cuGetProcAddress_v2 came with CUDA 12.0
RESOLVERS = ["proc1", "proc2"] if STANDIN_VERSION >= 12000 else ["proc1"]
CHAINS = ["proc2chain", "proc1chain", "proc2quiet"] if STANDIN_VERSION >= 12000 else ["proc1chain"]


def queries(ways):
    return [f"{way} {name}" for way in ways for name in STRANGE + [symbol for symbol, *_ in ENTRIES]]


def resolver_queries():
    """Every name at each of its versions, the one before, and those of drivers; with all flags, by every way to ask."""
    versions, lines = {}, []
    for _, name, version in ENTRIES:
        versions.setdefault(name, {1000, *STANDIN_VERSIONS, 99000}).update((version, version - 1))
    hooked = {name for symbol, name, _ in ENTRIES if symbol in ALL_HOOKS}
    for name in sorted(versions):
        lines += [f"{way} {name} {version} {flags}" for way in RESOLVERS + (CHAINS if name in hooked else [])
                  for version in sorted(versions[name]) for flags in (0, 1, 2, 3)]
    return lines + [f"{way} {name} {version} {flags}" for way in RESOLVERS for version in (13000, 99000) for flags in (0, 2, 4, 64)
                    for name in ("cuLaunchKernel_v2", "cuLaunchKernel_ptsz", "cuBrandNew", "cuInit", "cuMemFree_v2")]


@pytest.fixture
def table(bench):
    """The function compare(), for this test's bench."""
    return functools.partial(compare, bench)


def compare(bench, what, mode, lines, client=RESOLVE, before=(), after=(), hidden=(), ours=True, outside=False):
    """Compares the answers with those that the same program gets without the library. @hidden: ways where the driver's
    own is the right answer even with the library. @outside: a driver is there, but not in the scope that is asked."""
    path = bench.folder / f"queries-{bench.n}"
    path.write_text("\n".join(lines) + "\n")
    command = [client, mode, path]
    without = bench.run([], preload=False, command=command, before=before, after=after)
    with_it = bench.run([], spec(site()), command=command, before=before, after=after)
    a, b = without.stdout.splitlines(), with_it.stdout.splitlines()
    bench.check(without.code == with_it.code == 0 and len(a) == len(b) == len(lines), f"{what}: {len(lines)} questions are answered",
                f"{without.code} {with_it.code} {len(a)} {len(b)} {with_it.stderr[-500:]}")
    wrong, hooks = [], set()
    for x, y in zip(a, b):
        query, object_, symbol, *rest = x.split("\t")
        if object_ == "libcuda.so.1" and symbol in HOOKS and query.split()[0] not in hidden:
            hooks.add(symbol)
            object_ = "libdmi_preload.so"
        if outside and query.split()[1] in HOOKS:
            # Only glibc knows the caller's scopes, so it is jumped to wherever there is a driver, and finds us.
            object_, symbol, rest[-1] = "libdmi_preload.so", query.split()[1], ""
        if y.split("\t")[3:] != rest and object_ == "nothing" and rest[-1].endswith(query.split()[1]):
            # the object that a message begins with may be ours, where glibc was asked from there
            rest[-1] = re.sub(r"^[^:]*", str(BUILD / "preload" / "libdmi_preload.so"), rest[-1])
        if y.split("\t") != [query, object_, symbol, *rest]:
            wrong.append((x, y))
    bench.check(not wrong, f"{what}: the answers are right", f"{len(wrong)} are not: {wrong[:4]}")
    if ours:
        bench.check(hooks == set(HOOKS), f"{what}: all {len(HOOKS)} hooks were asked for", set(HOOKS) ^ hooks)
    bench.check(not with_it.folders and not with_it.stderr, f"{what}: asking leaves no run and no message", with_it.stderr)


def test_dlsym(table):
    table("dlsym, local driver", "local", queries(["dlsym"]))
    table("dlsym, global driver", "global", queries(["dlsym", "default", "next", "self"]))
    table("RTLD_DEFAULT and RTLD_NEXT, local driver", "local", queries(["default", "next", "self"]), ours=False, outside=True)
    table("no driver", "none", queries(["default", "next", "self"]), ours=False)
    table("linked", "linked", queries(["default", "next", "self"]) + [f"link {name}" for name in HOOKS + USES if name in HAS], client=RESOLVE_LINK)


def test_dlsym_beside_a_peer(table):
    table("peer in front", "linked", queries(["peer_next", "peer_default"]), client=RESOLVE_LINK, before=[PEER])
    table("peer after us", "linked", queries(["peer_next", "peer_default"]), client=RESOLVE_LINK, after=[PEER], hidden=["peer_next"])
    table("peer in front, no driver", "none", queries(["peer_next", "peer_default"]), before=[PEER], ours=False)


def test_cuGetProcAddress(table):
    table("cuGetProcAddress", "local", resolver_queries())
    table("cuGetProcAddress, linked", "linked", resolver_queries(), client=RESOLVE_LINK)


@pytest.mark.parametrize("way", ("dlopen", "default", "proc1", "proc2", "ptsz", "chain", "link"))
def test_launches(bench, way):
    if way not in ("dlopen", "default", "proc1", "link") and STANDIN_VERSION < 12000:
        pytest.skip("cuGetProcAddress_v2 came with CUDA 12.0")
    forms, functions, script = ["launch", "launchpacked", "launchex", "launchexpacked", "launchcoop"], ["block"], [*START, "stream s"]
    if STANDIN_VERSION >= 12000:
        functions, script = ["block", "k", "kf"], script + ["library l fill", "kernel k l block", "kfunc kf k"]
    launches = [(form, f, s) for f in functions for s in ("0", "s") for form in forms]
    script += [f"{form} {f} {s} 1 64 p 64 {seed}" for seed, (form, f, s) in enumerate(launches)]
    # launches of two streams into one buffer: each must be seen before the next comes
    script = [line for launch in script for line in ([launch, "sync"] if launch.startswith("launch") else [launch])]
    r = bench.alike(f"launches by way of {way}", script + ["digest p 256"], spec(site()), way=way)
    bench.captured(f"launches by way of {way}", r, [filled(seed, 64) for seed in range(len(launches))])


@pytest.mark.parametrize("peers", [pytest.param({"before": [PEER]}, id="in front"), pytest.param({"after": [PEER]}, id="after us")])
def test_launches_beside_a_peer(bench, peers):
    r = bench.alike("a peer", START + ["launch block 0 1 64 p 64 5", "sync"], spec(site()), way="link", **peers)
    bench.captured("a peer", r, [filled(5, 64)])
