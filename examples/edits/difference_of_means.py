#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A steering vector for each layer: the mean of a site's last prompt rows over some requests, less that over others.

    dmi-run --tap resid_post --out PAIRS -- python your_script.py       # requests are called pos-0, pos-1, ..., neg-0, neg-1, ...
    python difference_of_means.py PAIRS 'pos-*' 'neg-*' means.npy
    dmi-run --steer means.npy --times 2 --layers 11-26 -- python your_script.py
"""
import argparse
import fnmatch

import numpy

import dmi


def means(run, pattern, site):
    """[layer, width], of requests whose ids fit."""
    chosen = [request for request in run.requests if fnmatch.fnmatchcase(request.id, pattern)]
    if not chosen:
        raise SystemExit(f"no request fits {pattern}")
    rows = {}
    for request in chosen:
        for tensor in request.tensors.values():
            if tensor.site.name == site and tensor.layer is not None:
                last = list(tensor.positions).index(request.n_prompt - 1)
                rows.setdefault(tensor.layer, []).append(tensor.float32()[last].ravel())
    if sorted(rows) != list(range(len(rows))):
        raise SystemExit(f"{site} has the layers {sorted(rows)}: expected all from 0 on")
    return numpy.stack([numpy.mean(rows[layer], 0) for layer in sorted(rows)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "positive", "negative", "output"):
        parser.add_argument(name)
    parser.add_argument("--site", default="resid_post")
    options = parser.parse_args()
    with dmi.open(options.run) as run:
        vector = means(run, options.positive, options.site) - means(run, options.negative, options.site)
    numpy.save(options.output, vector.astype(numpy.float32))
    print(f"{options.output}: {len(vector)} layers of {options.site}, {vector.shape[1]} numbers each")


if __name__ == "__main__":
    main()
