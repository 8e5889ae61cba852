# SPDX-License-Identifier: Apache-2.0
"""Where tinygrad keeps SmolLM2's tensors, said a second time: as seen in the stand-in's call log.

specs/tinygrad-smollm2.yaml, which dmi-sites wrote, says the same to the library.  People wrote this table.  The tests
compute from it, the call log and the driver's own dumps what must have been captured, so that a mistake in what the tool
found, or in the library's matching, counting, expressions or gather, cannot hide.
"""
import contextlib
import re
import struct
from dataclasses import dataclass, field

import numpy as np

CONTEXT = 256
CHUNK = 32
LAYERS = 30


@dataclass
class Site:
    name: str
    forward: str           # kind
    kernel: str            # regex, whole name
    rows: object           # launch -> number of rows
    pick: object           # (buffer as float32/int32, launch) -> [rows, width]
    width: int
    layers: dict = field(default_factory=dict)  # occurrence -> layer (None: the site has none)
    expect: int = 1        # matching launches a forward
    pointer: int = 0       # byte offset in the parameters
    when: str = "after"
    n_bytes: int = 0       # of the buffer, as the dump takes it
    dtype: object = np.float32
    scale: float = 1.0
    per_request: bool = False


def integer(launch, n_pointers, i):
    """The i-th integer argument of a tinygrad kernel: pointers first, then ints."""
    return struct.unpack_from("<i", launch["params"], 8 * n_pointers + 4 * i)[0]


def plain(width, rows):
    return lambda data, launch: data[:rows(launch) * width].reshape(rows(launch), width)


def head_major(heads, rows):
    return lambda data, launch: (data[:heads * CHUNK * 64].reshape(heads, CHUNK, 64)[:, :rows(launch)]
                                 .transpose(1, 0, 2).reshape(rows(launch), heads * 64))


def cache(which, n_pointers, rows):
    def pick(data, launch):
        start, n = integer(launch, n_pointers, 0), rows(launch)
        return data.reshape(2, 3, CONTEXT, 64)[which, :, start:start + n].transpose(1, 0, 2).reshape(n, 192)
    return pick


def toks(n_pointers, i=0):
    return lambda launch: integer(launch, n_pointers, i)


def one(_):
    return 1


EACH = {i: i for i in range(LAYERS)}
CACHE_BYTES = 2 * 3 * CONTEXT * 64 * 4


def prefill(name, kernel, rows, width, pick=None, n_bytes=None, **more):
    return Site(name, "prefill", kernel, rows, pick or plain(width, rows), width,
                n_bytes=n_bytes or CHUNK * width * 4, **more)


def decode(name, kernel, width, pick=None, n_bytes=None, **more):
    return Site(name, "decode", kernel, one, pick or plain(width, one), width, n_bytes=n_bytes or width * 4, **more)


LOGITS = {"width": 49152, "layers": {0: None}, "scale": 1e12, "per_request": True}
NEXT = {i: i + 1 for i in range(LAYERS - 1)}

BEGIN = {"prefill": re.compile("E_toks"), "decode": re.compile("E_18_4_4_8_16_4")}
SITES = [
    prefill("token_ids", "E_toks", toks(2, 1), 1, layers={0: None}, dtype=np.int32),
    prefill("embed", "E_toks_6_3_8_4", toks(3), 576, layers={0: None}),
    prefill("resid_pre", "E_toks_6_3_8_4", toks(3), 576, layers={0: 0}),
    prefill("ln1", "E_toks_9_16_4", toks(4), 576, layers=EACH, expect=30),
    prefill("q", "r_9_toks_2_32_16_18_2", toks(3), 576, head_major(9, toks(3)), layers=EACH, expect=30),
    prefill("k", "r_3_toks_2_32_16_18_2", toks(3), 192, head_major(3, toks(3)), layers=EACH, expect=30),
    prefill("q_rot", "E_3_toks_3_16_4", toks(3, 1), 576, head_major(9, toks(3, 1)), layers=EACH, expect=30),
    prefill("k_rot", "r_2_3_toks_64_16_18_2", toks(5, 1), 192, cache(0, 5, toks(5, 1)), CACHE_BYTES, layers=EACH, expect=30),
    prefill("v", "r_2_3_toks_64_16_18_2", toks(5, 1), 192, cache(1, 5, toks(5, 1)), CACHE_BYTES, layers=EACH, expect=30),
    prefill("z", "r_3_toks_3_16_4_28start_pos2Btoks29", toks(3, 1), 576, head_major(9, toks(3, 1)), layers=EACH, expect=30),
    prefill("resid_mid", "r_toks_36_16_9_2_2_16", toks(4), 576, layers=EACH, expect=30),
    prefill("ln2", "E_toks_9_16_4n1", toks(4), 576, layers=EACH, expect=31),
    prefill("mlp_post", "r_toks_1536_16_18_2n1", toks(4), 1536, layers=EACH, expect=30),
    prefill("resid_pre", "r_toks_576_16_3_2_16", toks(4), 576, layers=NEXT, expect=30),
    prefill("resid_final", "r_toks_576_16_3_2_16", toks(4), 576, layers={29: None}, expect=30),
    prefill("final_ln", "E_toks_9_16_4n1", toks(4), 576, layers={30: None}, expect=31),
    prefill("final_logits", "r_512_32_3_18_32", one, n_bytes=49152 * 4, **LOGITS),
    decode("token_ids", "E_18_4_4_8_16_4", 1, layers={0: None}, dtype=np.int32, pointer=8, when="before"),
    decode("embed", "r_576_16_16", 576, layers={0: None}),
    decode("resid_pre", "r_576_16_16", 576, layers={0: 0}),
    decode("q", "r_9_2_32_16_18_2", 576, layers=EACH, expect=30),
    decode("k", "r_3_2_32_16_18_2", 192, layers=EACH, expect=30),
    decode("k_rot", "r_2_3_64_16_18_2", 192, cache(0, 7, one), CACHE_BYTES, layers=EACH, expect=30),
    decode("v", "r_2_3_64_16_18_2", 192, cache(1, 7, one), CACHE_BYTES, layers=EACH, expect=30),
    decode("z", "r_3_3_16_4_28start_pos2B129", 576, layers=EACH, expect=30),
    decode("resid_mid", "r_576_16_18_2", 576, layers=EACH, expect=30),
    decode("mlp_post", "r_1536_16_18_2n1", 1536, layers=EACH, expect=30),
    decode("resid_pre", "r_576_16_3_2_16", 576, layers=NEXT, expect=30),
    decode("resid_final", "r_576_16_3_2_16", 576, layers={29: None}, expect=30),
    decode("final_ln", "E_9_16_4", 576, layers={0: None}),
    decode("final_logits", "r_512_32_3_18_32n1", n_bytes=49152 * 4, **LOGITS),
]
for site in SITES:
    site.regex = re.compile(site.kernel)


@contextlib.contextmanager
def use(table):
    """Within, SITES and BEGIN are another model's: those of @table."""
    global SITES, BEGIN
    kept = SITES, BEGIN
    SITES, BEGIN = table.rows, table.begin
    try:
        yield
    finally:
        SITES, BEGIN = kept


@contextlib.contextmanager
def cut_down(n):
    """Within, SITES are those of the same model cut down to its first @n layers."""
    uncut = [(site.layers, site.expect) for site in SITES]
    cut_sites(n)
    try:
        yield
    finally:
        for site, (layers, expect) in zip(SITES, uncut):
            site.layers, site.expect = layers, expect


def cut_sites(n):
    for site in SITES:
        last = max(site.layers)
        site.layers = {occ: layer for occ, layer in site.layers.items() if occ < n} if len(site.layers) > 1 else site.layers
        if site.name == "resid_pre" and site.expect == LAYERS:
            site.layers = {i: i + 1 for i in range(n - 1)}
        elif last in (LAYERS - 1, LAYERS) and len(site.layers) == 1 and None in site.layers.values():
            site.layers = {n if last == LAYERS else n - 1: None}
        site.expect = {LAYERS: n, LAYERS + 1: n + 1}.get(site.expect, site.expect)


def cut_down_spec(text, n):
    """The HookSpec's text for that model."""
    for old, new in ((LAYERS + 1, n + 1), (LAYERS, n)):
        text = text.replace(f"expect: {old}", f"expect: {new}")
    for word in ("from", "to"):
        for old in (LAYERS, LAYERS - 1, LAYERS - 2):
            text = text.replace(f"{word}: {old}", f"{word}: {n + old - LAYERS}")
    return text


@dataclass
class Want:
    """A record that a launch must have left."""
    site: int
    layer: object
    occurrence: int
    rows: int
    forward: int
    seq: int


def wanted(launches):
    """What the spec asks for, from the call log: a list of Want, and how often each site's kernel ran, by forward.

    A forward begins at its kind's first kernel; occurrences count within it; launches before the first
    forward belong to none.
    """
    wants, forwards, counts, kind = [], [], {}, None
    for launch in launches:
        for name, begins in BEGIN.items():
            if begins.fullmatch(launch["kernel"]):
                kind, counts = name, {}
                forwards.append((kind, counts))
        if kind is None:
            continue
        seen = {}
        for i, site in enumerate(SITES):
            if site.forward != kind or not site.regex.fullmatch(launch["kernel"]):
                continue
            if site.kernel not in seen:
                seen[site.kernel] = counts.get(site.kernel, 0)
                counts[site.kernel] = seen[site.kernel] + 1
            occurrence = seen[site.kernel]
            if occurrence in site.layers:
                wants.append(Want(i, site.layers[occurrence], occurrence, site.rows(launch), len(forwards) - 1, launch["seq"]))
    return wants, forwards


def dump_rules():
    """DMI_STANDIN_DUMP rules, one for each kernel, pointer and moment that sites share; and site -> rule."""
    rules, of_site = [], []
    for site in SITES:
        rule = (site.when, site.pointer, site.n_bytes, site.kernel)
        if rule not in rules:
            rules.append(rule)
        of_site.append(rules.index(rule))
    return ";".join("{} {} {} {}".format(*rule) for rule in rules), of_site


def key_of(site, layer, request=None):
    return (f"{request}/" if request else "") + SITES[site].name + ("" if layer is None else f".{layer}")
