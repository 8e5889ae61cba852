# SPDX-License-Identifier: Apache-2.0
"""Several processes for one model: sums over tensor-parallel ranks, hand-over between stages, tokens for all."""


def join(part, group):
    if part.ranks * part.stages == 1:
        return None
    raise SystemExit("ranks are not there yet")
