#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Which channels of a model's residual stream hold massive activations, and what is left without the first token:
#
#     outliers.sh RUN python your_script.py
#
# The command runs a model of Hugging Face's; RUN gets the capture. SITES chooses other tensors.
set -eu
[ $# -ge 2 ] || { sed -n '4,8s/^#  *//p' "$0" >&2; exit 2; }
run=$1
shift
dmi-run --attach "${SITES:-resid_pre}" --out "$run" -- "$@"

echo "all tokens:"
dmi-analyze stats "$run"
echo
echo "without the first token of each request:"
dmi-analyze stats "$run" --skip-first
