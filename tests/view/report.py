# SPDX-License-Identifier: Apache-2.0
"""A report of dmi-view, taken apart as a browser does, and runs to write reports of."""
import base64
import hashlib
import json
import re
import subprocess

import numpy as np
from safetensors.numpy import save_file

from harness import BUILD, only_run

VIEW = BUILD / "tools" / "dmi-view"
MAKE_SCHEDULE, MAKE_ODD, MAKE_RUN = (BUILD / "tests" / "unit" / name for name in ("make_schedule", "make_odd_run", "make_run"))
PAGE = re.compile(r'(?s)\A<!doctype html>.*http-equiv="Content-Security-Policy" content="([^"]*)".*?<style>(.*?)</style>.*<script type="application/json" id="data">(.*?)</script>\n<script>(.*?)</script>\n</body>\n</html>\n\Z')
PREFILL, DECODE = 1, 2
# Text that a page, a script, a style, a terminal or a reader could trip over.
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--<script>", "\u202egnp.exe", "a\u2028b\u2029c", "javascript:alert(1)", "]]>", "&lt;b&gt;",
           "\\u003cb>", "'\"`${alert(1)}", "__proto__", "constructor", "#map/0/../..", "%3Cscript%3E", "\x1b]0;title\x07"]


def view(*words, status=0, timeout=120):
    done = subprocess.run([VIEW, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False)
    done.stdout, done.stderr = (text.decode(errors="surrogateescape") for text in (done.stdout, done.stderr))
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def as_json(*words, status=0):
    return json.loads(view(*words, "--json", status=status).stdout)


class Report:
    """policy, style, data (its JSON's text), script of a page; said: what the data says."""

    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8")
        self.policy, self.style, self.data, self.script = PAGE.match(self.text).groups()
        self.said = json.loads(self.data)


def hash_of(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def floats(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


def schedule(folder, lines, kind="hidden"):
    """A run as make_schedule writes it."""
    done = subprocess.run([MAKE_SCHEDULE, folder, "job", "0", "1", "0", "1", kind], input="".join(f"{line}\n" for line in lines), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return only_run(folder)


def small(folder, n=6, layers=(0, 1, 3), width=8):
    """Two requests: `a` of @n tokens, the last two decoded, `b` of 3; ids, resid_pre in bf16, resid_mid with a scale; NaN and infinity in one row each."""
    drawn = np.random.default_rng(1)
    lines = []
    for step, spans in enumerate([[("a", 0, n - 2), ("b", 0, 3)], [("a", n - 2, 1)], [("a", n - 1, 1)]]):
        words, first = [], 0
        for request, position, rows in spans:
            words.append(f"{request}:{first}:{rows}:{position}:{PREFILL if rows > 1 else DECODE}:{n - 2 if request == 'a' else 3}:0")
            first += rows
        lines.append(f"step {step} {first} {' '.join(words)}")
        lines.append(f"put 4 -1 1 i32 {' '.join(str(100 + step * 10 + i) for i in range(first))}")
        for layer in layers:
            x = drawn.standard_normal((first, width)) * (1 + layer)
            if not step and layer == 1:
                x[1, 2], x[2, 0] = np.nan, np.inf
            lines.append(f"put 5 {layer} {width} bf16 {' '.join(map(repr, map(float, x.ravel())))}")
            lines.append(f"put 7 {layer} {width} f32 {' '.join(map(repr, map(float, 4 * x.ravel())))}")
    return schedule(folder, [*lines, "end a 1"])


def lens_answer(path, uuid, tokens=5, layers=4, top=3, request="a", texts=None, **change):
    """An answer as `python -m dmi lens` writes it, of numbers; @change: arrays, or texts of its metadata; None takes one away."""
    drawn = np.random.default_rng(4)
    logits = np.sort(drawn.standard_normal((tokens, layers, top)).astype("f4"), axis=2)[:, :, ::-1]
    followed = (np.arange(tokens) % 3 + 1).astype("i4")
    n = int(followed.sum())
    arrays = {"layers": np.arange(layers, dtype="i4"), "positions": np.arange(tokens, dtype="i8"), "token_ids": (np.arange(tokens) % 5).astype("i4"),
              "top_ids": drawn.integers(0, 6, (tokens, layers, top)).astype("i4"), "top_logits": np.ascontiguousarray(logits),
              "logsumexp": (logits.max(2) + 1).astype("f4"), "followed": followed, "followed_ids": (np.arange(n) % 5).astype("i4"),
              "followed_ranks": drawn.integers(0, 9, (n, layers)).astype("i4"), "followed_logits": drawn.standard_normal((n, layers)).astype("f4"), **arrays_of(texts)}
    metadata = {"what": "lens", "run": uuid, "request": request, "parameters": json.dumps({"n_layers": layers - 1}),
                "checks": json.dumps([{"name": "W_U final_ln = final_logits", "error": 1e-6, "bound": 1e-3, "rows": 3}])}
    return save_answer(path, arrays, metadata, change)


def dla_answer(path, uuid, tokens=5, layers=4, heads=3, request="a", words=(1, 3), texts=None, **change):
    """An answer as `python -m dmi dla` writes it, whose parts sum up; @change: as of lens_answer()."""
    drawn = np.random.default_rng(6)
    arrays = {"positions": np.arange(tokens, dtype="i8"), "token_ids": (np.arange(tokens) % 5).astype("i4"), "embedding": drawn.standard_normal(tokens),
              "heads": drawn.standard_normal((tokens, layers, heads)), "mlps": drawn.standard_normal((tokens, layers)), "biases": np.zeros((tokens, layers)),
              "constant": drawn.standard_normal(tokens), **arrays_of(texts)}
    arrays["edits"] = drawn.standard_normal((tokens, 2))
    arrays["sum"] = arrays["embedding"] + arrays["heads"].sum((1, 2)) + arrays["mlps"].sum(1) + arrays["constant"] + arrays["edits"].sum(1)
    arrays["difference"] = arrays["sum"] + 1e-6
    metadata = {"what": "dla", "formula": "2", "run": uuid, "request": request, "edits": json.dumps([{"name": name, "text": f"{name} (x)"} for name in ("calm", "loud")]), "parameters": json.dumps({"tokens": list(words), "n_layers": layers}),
                "checks": json.dumps([{"name": "sum of the parts = difference of the logits", "error": 1e-6, "bound": 1e-4, "rows": tokens}])}
    return save_answer(path, arrays, metadata, change)


def arrays_of(texts):
    """Texts of the tokens 0, 1, ..., as an answer has them."""
    texts = texts or [" the", "Mary", "\n", " John", "<b>"]
    return {"text_ids": np.arange(len(texts), dtype="i4"), "text_ends": np.cumsum([len(t.encode()) for t in texts]).astype("i8"), "texts": np.frombuffer("".join(texts).encode(), "u1")}


def save_answer(path, arrays, metadata, change):
    """A file of these and of what is changed; None takes one away."""
    metadata = {"formula": "1", "tool": "dmi 0", **metadata}
    for name, value in change.items():
        (metadata if isinstance(value, str) or name in metadata else arrays)[name] = value
    order = sorted((name for name, x in arrays.items() if x is not None), key=lambda name: -arrays[name].itemsize)
    save_file({name: arrays[name] for name in order}, path, {name: x for name, x in metadata.items() if x is not None})
    return path
