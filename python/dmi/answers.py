# SPDX-License-Identifier: Apache-2.0
"""The commands `python -m dmi lens` and `python -m dmi dla`: what dmi.analysis answers, as a table, as JSON, as a file."""
from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any, Iterator

from . import analysis
from .run.edited import in_layers
from .run.reading import Run
from .results import Result
from .weights import Weights

WORDS_IN_A_LINE = 6  # whose ranks a table has


def add_commands(commands: Any) -> None:
    lens = commands.add_parser("lens", help="which words the model has in mind at each layer (needs its weights)")
    _common(lens)
    lens.add_argument("--words", metavar="WORD", nargs="+", help="words to follow, each one token with its blank, or id:N; default: those that are first at any layer")
    lens.add_argument("--layers", metavar="LIST", action="append", help="layers, intervals as 3-7 and last, with commas; default: all")
    lens.add_argument("--tokens", metavar="LIST", action="append", help="positions, as dmi-dump takes them: 5, 3:8, -2:, prompt; default: all")
    lens.add_argument("--top", metavar="N", type=int, default=10, help="words of each layer and token; default: %(default)s")
    lens.add_argument("--site", default=analysis.HIDDEN, help="the residual stream that is looked at; default: %(default)s")
    dla = commands.add_parser("dla", help="what heads and MLPs add to the difference of two words' logits (needs the model's weights)")
    _common(dla)
    dla.add_argument("--tokens", dest="words", metavar=("A", "B"), nargs=2, required=True, help="the words, each one token with its blank, or id:N: logit of A less that of B")
    dla.add_argument("--at", metavar="LIST", default="last", help="positions, as dmi-dump's --tokens takes them; default: %(default)s")
    dla.add_argument("--top", metavar="N", type=int, default=10, help="heads and MLPs that are printed; default: %(default)s")


def _common(command: Any) -> None:
    command.add_argument("run", metavar="RUN")
    command.add_argument("--weights", metavar="M", required=True, help="a GGUF, a safetensors file with config.json beside it, or a folder of Hugging Face's")
    command.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; default: the GGUF's, or that beside the weights")
    command.add_argument("--request", metavar="ID", help="of this request; default: the only one")
    command.add_argument("-o", "--output", metavar="FILE", help="write all of it, as docs/analysis.md lays it out")
    command.add_argument("--json", action="store_true", help="print all of it as JSON")
    command.add_argument("--unchecked", action="store_true", help="answer though a check does not hold, or nothing allows it")


class _Texts:
    """Tokens as people see them."""

    def __init__(self, weights: Weights, tokenizer: Any) -> None:
        self._vocabulary = weights.vocabulary(tokenizer)

    def __call__(self, token: int) -> str:
        return self._vocabulary.shown(token) if self._vocabulary is not None and token >= 0 else str(token)

    def of_result(self, result: Result, i: int) -> str:
        """' word', or nothing where ids were not captured."""
        token = int(result["token_ids"][i]) if "token_ids" in result else -1
        return f" {self(token)}" if token >= 0 else ""


# ------------------------------------------------------------------------- lens


def _followed(result: Result) -> list[tuple[int, int]]:
    """(first, end) of each token's words in followed_ids."""
    ends = result["followed"].cumsum().tolist()
    return list(zip([0, *ends], ends))


def _label(layer: int, n_layers: int) -> str:
    return "end" if layer == n_layers else str(layer)


def _lens_table(result: Result, texts: _Texts) -> Iterator[str]:
    """The last token: of each layer the first word, its share, and the ranks of the words that are followed."""
    n_layers, i = json.loads(result.metadata["parameters"])["n_layers"], len(result["positions"]) - 1
    first, end = _followed(result)[i]
    shown = range(first, min(end, first + WORDS_IN_A_LINE))
    names = [texts(int(result["followed_ids"][k])) for k in shown]
    yield f"request {result.metadata.get('request', '-')}, position {result['positions'][i]}{texts.of_result(result, i)}: first words, and ranks from 0"
    lines = [["layer", "first", "share", *names]]
    for k, layer in enumerate(result["layers"].tolist()):
        share = math.exp(float(result["top_logits"][i, k, 0]) - float(result["logsumexp"][i, k]))
        lines.append([_label(layer, n_layers), texts(int(result["top_ids"][i, k, 0])), f"{share:.3f}", *(str(result["followed_ranks"][w, k]) for w in shown)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths)).rstrip()
    if end - first > len(shown):
        yield f"{end - first - len(shown)} more words are first at a layer: --json has them"


def _lens_token(result: Result, texts: _Texts, i: int, words: tuple[int, int]) -> dict:
    def word(token: int, **more: Any) -> dict:
        return {"id": token, "text": texts(token), **more}
    token = {"position": int(result["positions"][i])} | ({"token": word(int(result["token_ids"][i]))} if "token_ids" in result else {})
    layers = []
    for k, layer in enumerate(result["layers"].tolist()):
        total = float(result["logsumexp"][i, k])
        layers.append({"layer": layer, "top": [word(t, logit=x, share=math.exp(x - total)) for t, x in
                                               zip(result["top_ids"][i, k].tolist(), result["top_logits"][i, k].tolist())]})
    followed = [word(int(result["followed_ids"][w]), ranks=result["followed_ranks"][w].tolist(), logits=result["followed_logits"][w].tolist())
                for w in range(*words)]
    return {**token, "layers": layers, "followed": followed}


# ------------------------------------------------------------------------- dla


def _left(result: Result, site: str, layer: int) -> str:
    """What stands after the name of a part whose values are those that edits left there."""
    numbers = json.loads(result.metadata["parameters"]).get("edited", [])
    names = [edit["name"] for edit in map(result.edits.__getitem__, numbers) if edit["site"] == site and in_layers(edit["layers"], layer)]
    return f" (edited by {', '.join(names)})" if names else ""


def _named(result: Result, i: int) -> list[tuple[str, float]]:
    """(name, what it adds) of each part at a token, heads as layer.head."""
    heads, found = result["heads"][i], [("embedding", float(result["embedding"][i]))]
    of_z, of_mlp = ([_left(result, site, layer) for layer in range(len(heads))] for site in ("z", "mlp_out"))
    found += [(f"head {layer}.{head}{of_z[layer]}", x) for layer, row in enumerate(heads.tolist()) for head, x in enumerate(row)]
    found += [(f"mlp {layer}{of_mlp[layer]}", x) for layer, x in enumerate(result["mlps"][i].tolist())]
    found += [(f"bias {layer}", x) for layer, x in enumerate(result["biases"][i].tolist()) if x]
    if "edits" in result:
        found += [(f"edit {edit['name']}", x) for edit, x in zip(result.edits, result["edits"][i].tolist()) if x]
    constant = float(result["constant"][i])
    return found + ([("constant", constant)] if constant else [])


def _dla_table(result: Result, texts: _Texts, top: int) -> Iterator[str]:
    """The last token: its largest parts, and what the others add together."""
    a, b = map(texts, json.loads(result.metadata["parameters"])["tokens"])
    i = len(result["positions"]) - 1
    yield (f"request {result.metadata.get('request', '-')}, position {result['positions'][i]}{texts.of_result(result, i)}: the logit of {a} less that of {b} is "
           f"{result['difference'][i]:.5f}, the sum of the parts {result['sum'][i]:.5f}")
    parts = sorted(_named(result, i), key=lambda part: -abs(part[1]))
    for name, x in parts[:top]:
        yield f"{x:+9.4f}  {name}"
    rest = parts[top:]
    if rest:
        yield f"{sum(x for _, x in rest):+9.4f}  {len(rest)} others"


def _dla_token(result: Result, i: int) -> dict:
    whole = {name: result[name][i].tolist() for name in ("embedding", "heads", "mlps", "biases", "edits", "constant", "sum", "difference") if name in result}
    ids = {"token_id": int(result["token_ids"][i])} if "token_ids" in result else {}
    difference = None if math.isnan(whole["difference"]) else whole["difference"]
    return {"position": int(result["positions"][i]), **ids, **whole, "difference": difference}


# ------------------------------------------------------------------------- both


def _print_json(result: Result, tokens: Iterator[dict]) -> None:
    """A token at a time, as there may be many."""
    about = {key: json.loads(value) if key in ("parameters", "checks", "edits") else value for key, value in result.metadata.items()}
    print(json.dumps(about, allow_nan=False)[:-1] + ', "tokens": [')
    for i, token in enumerate(tokens):
        print(("," if i else "") + json.dumps(token))
    print("]}")


def _print_checks(result: Result) -> None:
    if result.edits:
        print(f"edits wrote in the request: {', '.join(edit['text'] for edit in result.edits)}")
    for check in result.checks:
        print(f"checked: {check['name']}, error {check['error']:.1e} of {check['bound']:.1g}, {check['rows']} rows")
    parameters = json.loads(result.metadata["parameters"])
    if parameters["held"]:
        print(f"the logits are those of weights that are held as {parameters['held']}: so they are taken")
    if parameters.get("not_used"):
        print(f"not used of the model's config: {', '.join(parameters['not_used'])}")
    if not result.checks:
        print("not checked: nothing shows that these are the run's weights")


def _lens(run: Run, options: argparse.Namespace, weights: Weights, texts: _Texts) -> None:
    if options.tokens or options.request is not None:
        run = run.select(options.request, ",".join(options.tokens or ["all"]))
    found = analysis.lens(run, weights, options.words, options.layers and ",".join(options.layers), options.top, options.site, options.request, options.tokenizer,
                          options.unchecked, options.output)
    if options.json:
        return _print_json(found, (_lens_token(found, texts, i, words) for i, words in enumerate(_followed(found))))
    for line in _lens_table(found, texts):
        print(line)
    return _print_checks(found)


def _dla(run: Run, options: argparse.Namespace, weights: Weights, texts: _Texts) -> None:
    found = analysis.dla(run.select(options.request, options.at), weights, *options.words, options.request, options.tokenizer, options.unchecked, options.output)
    if options.json:
        return _print_json(found, (_dla_token(found, i) for i in range(len(found["positions"]))))
    for line in _dla_table(found, texts, options.top):
        print(line)
    return _print_checks(found)


COMMANDS = {"lens": _lens, "dla": _dla}


def main(run: Run, options: argparse.Namespace) -> int:
    """One of COMMANDS. Returns the exit status."""
    weights = Weights(options.weights)
    COMMANDS[options.command](run, options, weights, _Texts(weights, options.tokenizer))
    damaged = [finding.text for finding in run.findings if finding.damage]
    for line in damaged:
        print(line, file=sys.stderr)
    return 1 if damaged else 0
