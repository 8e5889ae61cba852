#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two engines on the same prompts, beside each other: captures both, says how far they are apart, and writes a report with the page Diff:
#
#     two_engines.sh OUT ONE.yaml 'python one.py' OTHER.yaml 'python other.py' [OPTION of dmi-view]...
#
# ONE.yaml and OTHER.yaml are the engines' HookSpecs; sites as of `dmi-run --attach` may stand in their place. OUT gets the runs and report.html.
# TOLERANCE says how far a row may be from the other's, as a share of its norm.
set -eu
[ $# -ge 5 ] || { sed -n '4,9s/^#  *//p' "$0" >&2; exit 2; }
out=$1 one=$2 one_command=$3 other=$4 other_command=$5
shift 5

capture()  # FOLDER SPEC|SITES COMMAND
{
    case $2 in
    *.yaml) dmi-run --spec "$2" --out "$1" -- sh -c "$3" ;;
    *) dmi-run --attach "$2" --out "$1" -- sh -c "$3" ;;
    esac
}

mkdir -p "$out"
capture "$out/one" "$one" "$one_command"
capture "$out/other" "$other" "$other_command"
dmi-dump diff --row-tolerance "${TOLERANCE:-0}" "$out/one" "$out/other" || [ $? -eq 1 ]
dmi-view "$out/one" "$out/other" -o "$out/report.html" "$@"
