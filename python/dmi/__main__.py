# SPDX-License-Identifier: Apache-2.0
"""python -m dmi: what takes Python's packages: runs in the files of others, answers that need a model's weights; and vectors from files of others. `dmi-dump export` has the other formats."""
from __future__ import annotations

import argparse
import re
import signal
import sys
from typing import Any

from . import analysis, answers, open as open_run, vectors
from .run import export, reading, tables

MOST_TOLD = 20  # requests in which edits wrote


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m dmi", description=__doc__.partition(": ")[2], epilog="Exit status: 0 all well; 1 something is left "
                                   "out or damaged; 2 wrong usage, a name that the run has not, or nothing that could be read or written; 4 a check of an answer does not hold.")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    samples = commands.add_parser("speculators", help="training data for speculators: hs_{i}.safetensors and a dataset (needs pyarrow)")
    samples.add_argument("run", metavar="RUN")
    samples.add_argument("-o", "--output", metavar="OUT", required=True, help="the folder to write")
    samples.add_argument("--layers", metavar="LIST", action="append", help="layers, intervals as 3-7 and last, with commas, in this order; the last one is "
                         "the verifier's")
    samples.add_argument("--site", default=export.HIDDEN, help="whose layers; default: %(default)s")
    samples.add_argument("--request", metavar="ID", action="append", help="only this request; several times: these")
    samples.add_argument("--fill-cached", action="store_true", help="rows of tokens that a prefix cache had, from a request that computed them with the same "
                         "tokens from position 0 on; each file names it")
    parquet = commands.add_parser("parquet", help="what is known of records, steps, requests and tensors, as tables (needs pyarrow)")
    parquet.add_argument("run", metavar="RUN")
    parquet.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write")
    parquet.add_argument("--request", metavar="ID", action="append", help="only tensors and rows of this request; the other tables are as they are")
    vector = commands.add_parser("vectors", help="vectors, or features of a sparse autoencoder, from files of others, for edits")
    vector.add_argument("source", metavar="SOURCE", help="a GGUF control vector, a .pt of torch.save(), .npy, .safetensors, a folder of "
                        "SAELens's, or params.npz of Gemma Scope")
    vector.add_argument("-o", "--output", metavar="OUT", required=True, help="the safetensors file to write; it must not be there yet")
    vector.add_argument("--layer-is", metavar="SITE", help="whose layers the file's are, as resid_post, where it does not say")
    vector.add_argument("--shift", metavar="N", type=int, help="what to add to the file's numbers of layers, where it does not say")
    vector.add_argument("--feature", metavar="N", type=int, action="append", default=[], help="this feature of the autoencoder; several times: these. "
                        "Standard output gets a file of edits that switches them off")
    answers.add_commands(commands)
    return main


def write(run: reading.Run, options: argparse.Namespace) -> list:
    """The command. Returns a sentence for each thing that is left out."""
    if options.command == "parquet":
        counts = tables.write(run, options.output)
        print(f"{', '.join(f'{n} {name}' for name, n in counts.items())}, to {options.output}")
        return []
    done = export.speculators(run, options.output, options.layers and ",".join(options.layers), options.site)
    print(f"{done}, to {options.output}")
    for name, edits in list(done.edited.items())[:MOST_TOLD]:
        print(f"edits wrote in {name!r}: {', '.join(edits)}")
    if len(done.edited) > MOST_TOLD:
        print(f"... and in {len(done.edited) - MOST_TOLD} more requests")
    return done.left_out


def _joined(words: list) -> list:
    """A list of positions that begins with a minus is the value of the option before it: argparse takes -2: for an option."""
    found: list = []
    for word in words:
        if found and found[-1] in ("--tokens", "--at") and re.match(r"-\d", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def main(words: list | None = None) -> int:
    options = parser().parse_args(_joined(sys.argv[1:] if words is None else words))
    if options.command == "vectors":
        print(vectors.convert(options.source, options.output, options.layer_is, options.shift, tuple(options.feature)))
        return 0
    with open_run(options.run) as run:
        if options.command in answers.COMMANDS:
            return answers.main(run, options)
        fill_cached = getattr(options, "fill_cached", False)
        if options.request is not None or fill_cached:
            run = run.select(options.request, fill_cached=fill_cached)
        wrong = write(run, options) + [finding.text for finding in run.findings if finding.damage]
        for line in wrong:
            print(line, file=sys.stderr)
        return 1 if wrong else 0


def _end(number: int, _: Any) -> None:
    """A signal ends the program as an exception, so that what is half written is removed."""
    sys.exit(128 + number)


def guarded() -> int:
    """main(), whose errors are a sentence on stderr."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        return main()
    except export.ExportError as error:
        print(f"dmi: {error}", file=sys.stderr)
        return 1
    except analysis.Refused as error:
        print(f"dmi: {error}", file=sys.stderr)
        return 4
    except (KeyError, ValueError) as error:  # what the run has not, or what cannot be
        print(f"dmi: {error.args[0]}", file=sys.stderr)
        return 2
    except (reading.ReadError, ImportError, OSError) as error:
        print(f"dmi: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded())
