# SPDX-License-Identifier: Apache-2.0
"""What the group `hugging face` runs, and what its two sides must agree on: hugging_face.py, which runs and compares, and
hugging_face_model.py, the program that is run. Needs nothing but Python.
"""
import collections
import json

# Of Qwen3-0.6B's configuration; the small one is for a CPU.
SIZES = {
    "0.6B": {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128},
    "small": {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 8},
}
LAYERS = SIZES["0.6B"]["num_hidden_layers"]

# ---- sites

# {site: (module in a block, side)}, by the names of docs/taps.md: nine of each layer.
SITES = {
    "resid_pre": ("", "in"), "q": ("self_attn.q_proj", "out"), "k": ("self_attn.k_proj", "out"), "v": ("self_attn.v_proj", "out"),
    "z": ("self_attn.o_proj", "in"), "attn_out": ("self_attn.o_proj", "out"), "resid_mid": ("post_attention_layernorm", "in"),
    "mlp_post": ("mlp.down_proj", "in"), "mlp_out": ("mlp", "out"),
}
MLP = {"mlp_in": ("mlp", "in"), "mlp_out": SITES["mlp_out"]}  # what is named by ranges and by a kernel
LOGITS = "final_logits"


def chosen(which, n_layers=LAYERS):
    """[(site, layer)]: few are the residual stream as it enters each layer, and after attention in every third (38 of 28 layers);
    many are all of SITES in each layer (252).
    """
    if which == "few":
        return [("resid_pre", i) for i in range(n_layers)] + [("resid_mid", i) for i in range(0, n_layers, 3)]
    return [(site, i) for i in range(n_layers) for site in SITES] if which == "many" else []


def wishes(pairs):
    """[(site, layer)] as dmi.torch.attach() takes them."""
    return [f"blocks.{layer}.{site}" for site, layer in pairs]


def also_named(site, layer):
    """Further names under which the spec of the values asks for a tensor: by range, and by kernel."""
    if site not in MLP:
        return []
    side = MLP[site][1]
    return [f"nvtx_{side}.{layer}", f"marked.{2 * layer + (side == 'out')}"]


# ---- configurations

# @take: nothing, taps, hooks (which copy to the host), hidden (output_hidden_states, copied to the host), or values, which are put
# aside and compared. @which: sites, few or many. @library: none, idle (loaded, without a spec), or capture.
# @logits_of: the name of the configuration whose logits these must be.
Configuration = collections.namedtuple("Configuration", "name mode take which library logits_of", defaults=("none", "none", None))

SECONDS = {"eager": 120, "graph": 120, "compiled": 400}  # for one process
NEEDS = {"eager": 20, "graph": 20, "compiled": 90}       # less than this left: it is not begun


def of_mode(mode):
    """The configurations of eager or graph. Taps change no launch of the model's, so all have the logits of plain."""
    plain = f"{mode} plain"
    return [
        Configuration(plain, mode, "nothing"),
        Configuration(f"{mode} values", mode, "values", "many", "capture"),
        Configuration(f"{mode} 38 sites", mode, "taps", "few", "capture", plain),
        Configuration(f"{mode} 252 sites", mode, "taps", "many", "capture", plain),
        Configuration(f"{mode} 0 sites", mode, "nothing", "none", "capture", plain),
        Configuration(f"{mode} 38 hooks", mode, "hooks", "few", "none", plain),
        Configuration(f"{mode} 252 hooks", mode, "hooks", "many", "none", plain),
        Configuration(f"{mode} hidden states", mode, "hidden", "none", "none", plain),
        Configuration(f"{mode} idle", mode, "nothing", "none", "idle", plain),
    ]


def of_compiled():
    """A graph of the compiler's with taps is another one than without: logits are those of the same graph without the library."""
    few, many = "compiled 38 taps, no library", "compiled 252 taps, no library"
    return [
        Configuration("compiled plain", "compiled", "nothing"),
        Configuration("compiled values", "compiled", "values", "few", "capture"),
        Configuration("compiled 38 sites", "compiled", "taps", "few", "capture"),
        Configuration("compiled 252 sites", "compiled", "taps", "many", "capture"),
        Configuration("compiled 0 sites", "compiled", "nothing", "none", "capture", "compiled plain"),
        Configuration("compiled hidden states", "compiled", "hidden"),
        Configuration(few, "compiled", "taps", "few", "none", "compiled 38 sites"),
        Configuration("compiled 38 taps, idle", "compiled", "taps", "few", "idle", "compiled 38 sites"),
        Configuration(many, "compiled", "taps", "many", "none", "compiled 252 sites"),
        Configuration("compiled 38 hooks", "compiled", "hooks", "few"),
        Configuration("compiled 252 hooks", "compiled", "hooks", "many"),
    ]


PLAN = of_mode("graph") + of_mode("eager") + of_compiled()

# ---- specs

_HEAD = """hookspec: 1
name: {name}
ring: {{bytes: 256M, slots: 16384}}
overload: {{mode: complete, wait_ms: 5000}}
"""
# Each forward begins with a launch of the test's own; pointers of sites by range are the model's own tensors, the marked one is a copy.
_NAMED = """  - name: nvtx_in
    nvtx: 'model.layers.*.mlp'
    kernel: '^smoke_embed$'
    range_kernel: first
    pointer: arg[1]
    dtype: f32
    dims: [{row: true, count: 'arg[2].u32'}, {count: 'arg[3].u32'}]
    layer: range
  - name: nvtx_out
    nvtx: '/^model\\.layers\\.[0-9]+\\.mlp$/'
    kernel: '^smoke_embed$'
    range_kernel: 1
    pointer: arg[1]
    dtype: f32
    dims: [{row: true, count: 'arg[2].u32'}, {count: 'arg[3].u32'}]
    layer: range
  - name: marked
    kernel: '^smoke_embed$'
    pointer: arg[0]
    dtype: f32
    dims: [{row: true, count: 'arg[2].u32'}, {count: 'arg[3].u32'}]
    occurrences: {expect: EXPECT}
    layer: occ
"""
_FORWARD = "forward:\n  - {kind: step, begin: {kernel: '^smoke_layer$'}}\n"


def _taps(*sites):
    return "".join(f"  - {{tap: {site}}}\n" for site in sites)


def spec(configuration, n_layers=LAYERS):
    """The HookSpec of a configuration that is captured. One without sites names a tap that never comes."""
    mode, take, which = configuration.mode, configuration.take, configuration.which
    if take != "values":
        return _HEAD.format(name="hugging-face") + "sites:\n" + _taps(*dict.fromkeys(site for site, _ in chosen(which, 1) or [("embed", 0)]))
    head = _HEAD.format(name="hugging-face-values") + _FORWARD + "sites:\n"
    if mode == "compiled":  # what is launched beside PyTorch is not in the compiler's graphs
        return head + _taps("resid_pre", "resid_mid")
    return head + _taps(*SITES, LOGITS) + _NAMED.replace("EXPECT", str(2 * n_layers))


# ---- what the program says, and puts aside

RESULT = "result: "


def result_of(text):
    """The last line of results in what the program printed, as a dict; None if there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith(RESULT):
            try:
                found = json.loads(line[len(RESULT):])
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


class Aside:
    """Bytes by key, in the order in which they were put there."""

    def __init__(self):
        self.keys, self.data = {}, []

    def put(self, key, data):
        self.keys.setdefault(key, []).append(len(self.data))
        self.data.append(data)

    def write(self, path):
        with open(path, "wb") as file:
            file.write(json.dumps({"parts": [len(data) for data in self.data], "keys": self.keys}).encode() + b"\n")
            file.writelines(self.data)


def read_aside(path):
    """{key: all bytes that were put under it}"""
    with open(path, "rb") as file:
        index = json.loads(file.readline())
        data = [file.read(n) for n in index["parts"]]
    return {key: b"".join(data[i] for i in parts) for key, parts in index["keys"].items()}

