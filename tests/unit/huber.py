# SPDX-License-Identifier: Apache-2.0
"""What scikit-learn's HuberRegressor predicts: for test_judge_fit.py, in the interpreter that has it.

huber.py FILE: an npz with `terms` and `times`, both over the prediction that is compared. Prints a prediction a line, likewise.
"""
import sys

import numpy as np
from sklearn.linear_model import HuberRegressor

given = np.load(sys.argv[1])
size = np.sqrt((given["terms"] ** 2).mean(axis=0))
terms = given["terms"] / np.where(size > 0, size, 1)
fit = HuberRegressor(fit_intercept=False, alpha=0.0, max_iter=100000, tol=1e-8).fit(terms, given["times"])
print("\n".join(map(repr, (terms @ fit.coef_).tolist())))
