# SPDX-License-Identifier: Apache-2.0
"""What entries with a model of Hugging Face's run, and what its two sides must agree on: hugging_face.py, which runs and compares, and
hugging_face_model.py, the program that is run. Needs nothing but Python.
"""
import collections
import json

# Of Qwen3's configurations; the small one is for a CPU.
SIZES = {
    "4B": {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128},
    "14B": {"vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128},
    "0.6B": {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128},
    "small": {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 8},
}
LAYERS = SIZES["0.6B"]["num_hidden_layers"]


def layers_of(size):
    return SIZES[size]["num_hidden_layers"]


# ---- sites

# {site: (module in a block, side)}, by the names of docs/taps.md: nine of each layer.
SITES = {
    "resid_pre": ("", "in"), "q": ("self_attn.q_proj", "out"), "k": ("self_attn.k_proj", "out"), "v": ("self_attn.v_proj", "out"),
    "z": ("self_attn.o_proj", "in"), "attn_out": ("self_attn.o_proj", "out"), "resid_mid": ("post_attention_layernorm", "in"),
    "mlp_post": ("mlp.down_proj", "in"), "mlp_out": ("mlp", "out"),
}
MORE = ("ln1", "ln2", "mlp_in", "q_rot")  # that attach() taps as well
MLP = {"mlp_in": ("mlp", "in"), "mlp_out": SITES["mlp_out"]}  # what is named by ranges and by a kernel
LOGITS = "final_logits"


FEW, MANY, MOST = 38, 252, 438


def chosen(which, n_layers=LAYERS):
    """[(site, layer)]: few are the residual stream as it enters each layer, and after attention in some, 38 in all; many are those of SITES,
    site by site, 252 in all; most are those and of MORE, 438.
    """
    if which == "few":
        mid = range(0, n_layers, max(3, -(-n_layers // max(1, FEW - n_layers))))
        return ([("resid_pre", i) for i in range(n_layers)] + [("resid_mid", i) for i in mid])[:FEW]
    sites = {"many": SITES, "most": (*SITES, *MORE)}.get(which, ())
    return [(site, i) for site in sites for i in range(n_layers)][:MOST if which == "most" else MANY]


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
# aside and compared; turns are taps, switched off, few on and all on, in turns of 20 steps. @which: sites, few, many or most.
# @library: none, idle (loaded, without a spec), or capture. @logits_of: the name of the configuration whose logits these must be.
# @batch, @prompt: rows, and tokens in each.
Configuration = collections.namedtuple("Configuration", "name mode take which library logits_of size batch prompt",
                                       defaults=("none", "none", None, "0.6B", 1, 256))


def alone(configuration):
    """The name of the configuration that is the model alone, beside which the others stand."""
    return f"{configuration.name.rpartition(' ')[0] if configuration.size != '0.6B' else configuration.mode} plain"


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


def of_size(name, mode, size, batch, prompt, which="many"):
    """The model alone, then one process whose sites are switched between replays."""
    plain = f"{name} plain"
    return [Configuration(plain, mode, "nothing", size=size, batch=batch, prompt=prompt),
            Configuration(f"{name} turns", mode, "turns", which, "capture", plain, size, batch, prompt)]


PLAN = of_mode("graph") + of_mode("eager") + of_compiled()
# {name: mode, size, batch, prompt, sites}
SIZED = {"4B batch 1": ("graph", "4B", 1, 256), "4B batch 32": ("graph", "4B", 32, 256), "4B pieces": ("pieces", "4B", 1, 256),
         "14B": ("graph", "14B", 1, 256), "4B prefill": ("eager", "4B", 16, 512, "most")}

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


def _switched(which, n_layers):
    """Sites few_NAME and more_NAME: the layers of the few, and the others."""
    few, lines = chosen("few", n_layers), []
    for site in dict.fromkeys(site for site, _ in chosen(which, n_layers)):
        for kind, layers in (("few", [i for s, i in few if s == site]), ("more", [i for i in range(n_layers) if (site, i) not in few])):
            if layers:
                last = ", tokens: last" if which == "most" else ""  # of a prompt
                lines.append(f"  - {{name: {kind}_{site}, tap: {site}, layers: '{intervals(layers)}'{last}}}\n")
    return "".join(lines)


def intervals(layers):
    """'0-3,7' of [0, 1, 2, 3, 7]"""
    found = []
    for layer in layers:
        if found and found[-1][1] == layer - 1:
            found[-1][1] = layer
        else:
            found.append([layer, layer])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in found)


def spec(configuration, n_layers=LAYERS):
    """The HookSpec of a configuration that is captured. One without sites names a tap that never comes."""
    mode, take, which = configuration.mode, configuration.take, configuration.which
    if take == "turns":
        return _HEAD.format(name="hugging-face-turns").replace("256M", "4G") + "sites:\n" + _switched(which, n_layers)
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

