# SPDX-License-Identifier: Apache-2.0
"""The judge's fit (cupti/judge/fit.c) against a robust regression that others wrote: scikit-learn's HuberRegressor.

Each plane is compared on the turns of which it is the greater one. ./bootstrap test --long installs scikit-learn (tools/setup/scikit-learn.txt).
"""
import subprocess

import numpy as np
import pytest

import columns
from harness import BUILD, ROOT

JUDGE_FIT = BUILD / "tests" / "unit" / "judge_fit"
pytestmark = pytest.mark.built(JUDGE_FIT)
PLANES = 2


def fitted(seed, noise):
    """Coefficients, terms, times and predictions, as judge_fit says."""
    lines = subprocess.run([JUDGE_FIT, str(seed), str(noise)], capture_output=True, text=True, check=True).stdout.splitlines()
    by, said = (np.array([line.split() for line in part], dtype=float) for part in (lines[:PLANES], lines[PLANES:]))
    rows, context, prefill, decode, drafts, times, predicted = said.T
    return by, np.stack([np.ones_like(rows), prefill > 0, rows, context, prefill, decode, drafts], axis=1), times, predicted


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_scikit_learn_agrees(tmp_path, seed, noise):
    python = columns.environment("scikit-learn", ROOT / "tools" / "setup" / "scikit-learn.txt")
    by, terms, times, predicted = fitted(seed, noise)
    planes = terms @ by.T
    assert np.allclose(planes.max(axis=1), predicted, rtol=1e-5)
    off = []
    for plane in range(PLANES):
        here = planes[:, plane] >= planes.max(axis=1)
        assert here.sum() > 200, "both planes are in use"
        np.savez(tmp_path / "given.npz", terms=terms[here] / predicted[here, None], times=times[here] / predicted[here])
        said = subprocess.run([python, ROOT / "tests" / "unit" / "huber.py", tmp_path / "given.npz"], capture_output=True, text=True, check=True)
        off.append(np.abs(np.array(said.stdout.split(), dtype=float) - 1))
    off = np.concatenate(off)
    assert np.median(off) < 0.003
    assert np.quantile(off, 0.95) < 0.01
