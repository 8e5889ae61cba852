#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A steering vector for each layer: the mean of a site's last prompt rows over some requests, less that over others.

    dmi-run --tap resid_post --out PAIRS -- python your_script.py       # requests are called pos-0, pos-1, ..., neg-0, neg-1, ...
    python difference_of_means.py PAIRS 'pos-*' 'neg-*' means.safetensors
    dmi-run --steer means.safetensors --times 2 --layers 11-26 -- python your_script.py
"""
import argparse
import fnmatch
import pathlib

import numpy

import dmi
from dmi import vectors


def means(run, pattern, site):
    """{layer: [width]}, of requests whose ids fit."""
    chosen = [request for request in run.requests if fnmatch.fnmatchcase(request.id, pattern)]
    if not chosen:
        raise SystemExit(f"no request fits {pattern}")
    rows = {}
    for request in chosen:
        for tensor in request.tensors.values():
            if tensor.site.name == site and tensor.layer is not None:
                last = list(tensor.positions).index(request.n_prompt - 1)
                rows.setdefault(tensor.layer, []).append(tensor.float32()[last].ravel())
    return {layer: numpy.mean(rows[layer], 0) for layer in sorted(rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "positive", "negative", "output"):
        parser.add_argument(name)
    parser.add_argument("--site", default="resid_post")
    parser.add_argument("--force", action="store_true", help="replace an output that is there")
    options = parser.parse_args()
    if pathlib.Path(options.output).exists() and not options.force:
        raise SystemExit(f"{options.output} is there already: --force replaces it")
    with dmi.open(options.run) as run:
        less = means(run, options.negative, options.site)
        found = {layer: mean - less[layer] for layer, mean in means(run, options.positive, options.site).items()}
    pathlib.Path(options.output).unlink(missing_ok=True)
    vectors.save(options.output, found, layer_is=options.site)  # it says whose layers these are
    print(f"{options.output}: {len(found)} layers of {options.site}, {len(next(iter(found.values())))} numbers each")


if __name__ == "__main__":
    main()
