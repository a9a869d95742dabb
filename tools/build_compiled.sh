#!/usr/bin/env bash
# bash tools/build_compiled.sh FOLDER: builds a wheel whose core is compiled by mypyc into FOLDER; needs a C compiler and minutes.
# The sources are those of the pure package and stay as they are; pyproject.toml lists the modules that are compiled.
#   PYTHON=python3   interpreter to build with and for
#   OPT_LEVEL=0      optimisation of the C compiler, instead of that in pyproject.toml: 0 builds fastest and runs slower
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
usage_if_asked "${BASH_SOURCE[0]}" "$@"
if [ $# -ne 1 ] || [[ $1 == -* ]]; then
    echo "error: give the folder for the wheel, and nothing else; see tools/build_compiled.sh --help" >&2
    exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheels=$(mkdir -p "$1" && cd "$1" && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root"/{pyproject.toml,README.md,LICENSE,NOTICE,trtkv} "$copy"  # the compiler writes beside the sources
[ -z "${OPT_LEVEL:-}" ] || sed -i "s/^options = { opt_level = \"[0-9]\" }/options = { opt_level = \"$OPT_LEVEL\" }/" "$copy/pyproject.toml"
HATCH_BUILD_HOOK_ENABLE_MYPYC=1 "${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$copy"
