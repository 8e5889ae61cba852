# SPDX-License-Identifier: Apache-2.0
"""python -m dmi: runs in the files of others, where that takes Python's packages. `dmi-dump export` has the other formats."""
import argparse
import sys

from . import export, open as open_run
from .reading import ReadError


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m dmi", description=__doc__.partition(": ")[2], epilog="Exit status: 0 all well; 1 something is left "
                                   "out, damaged or not there; 2 wrong usage, or nothing that could be read or written.")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    samples = commands.add_parser("speculators", help="training data for speculators: hs_{i}.safetensors and a dataset (needs pyarrow)")
    samples.add_argument("run", metavar="RUN")
    samples.add_argument("-o", "--output", metavar="OUT", required=True, help="the folder to write")
    samples.add_argument("--layers", metavar="LIST", help="layers, ranges A:B and last, with commas; the last one is the verifier's")
    samples.add_argument("--site", default=export.HIDDEN, help="whose layers; default: %(default)s")
    samples.add_argument("--request", metavar="ID", help="only this request")
    return main


def main(words: list | None = None) -> int:
    options = parser().parse_args(words)
    with open_run(options.run) as run:
        if options.request is not None:
            run.select(request=options.request)
        done = export.speculators(run, options.output, options.layers, options.site)
        for line in done.left_out:
            print(line, file=sys.stderr)
        print(f"{len(done.requests)} samples, to {options.output}")
        damage = [finding.text for finding in run.findings if finding.damage]
        for line in damage:
            print(line, file=sys.stderr)
        return 1 if done.left_out or damage else 0


def guarded() -> int:
    """main(), whose errors are a sentence on stderr."""
    try:
        return main()
    except export.ExportError as error:
        print(f"dmi: {error}", file=sys.stderr)
        return 1
    except (ReadError, ImportError, OSError) as error:
        print(f"dmi: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded())
