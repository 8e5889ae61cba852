#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what cudaTypedefs.h says of names and versions, as rows for test_resolver.c.

Usage: gen_oracle.py TOOLKIT/include OUT

A version that a name has twice (cuStreamBeginCapture_ptsz is older than the second legacy form)
counts once a kind.
"""
import collections
import re
import sys


def main():
    text = open(f"{sys.argv[1]}/cudaTypedefs.h").read()
    versions = collections.defaultdict(set)
    for name, version, kind in re.findall(r"PFN_(cu[A-Z]\w*?)_v(\d+)(_ptsz|_ptds)?\)", text):
        versions[name, bool(kind)].add(int(version))
    with open(sys.argv[2], "w") as out:
        for (name, per_thread), found in sorted(versions.items()):
            for nth, version in enumerate(sorted(found), 1):
                out.write(f'{{ "{name}", {version}, {int(per_thread)}, {nth} }},\n')


if __name__ == "__main__":
    main()
