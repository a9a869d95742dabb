#!/usr/bin/env bash
# bash tools/test_compiled.sh [PYTEST ARGUMENTS]: builds the compiled wheel and runs the tests of the core on it.
# Exit code 3: it cannot be built here, for want of a C compiler or of the build plugin.
set -uo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
usage_if_asked "${BASH_SOURCE[0]}" "$@"
prepare_test_python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

has_headers() {
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}
if ! command -v cc >/dev/null || ! has_headers \
    || ! "$python" -m pip install --quiet --target "$work/plugin" "hatchling>=1.27" "hatch-mypyc>=0.16"; then
    echo "left out: no C compiler (cc), no Python.h, or no hatch-mypyc to be had"
    exit 3
fi
echo "== compiled wheel"
PYTHON=$python OPT_LEVEL=0 bash "$root/tools/build_compiled.sh" "$work/wheels" || exit 1
"$python" -m pip install --quiet --no-deps --target "$work/site" "$work"/wheels/*.whl || exit 1

mkdir "$work/tree"
cp -r "$root"/{tests,tools,docs,pyproject.toml,README.md} "$work/tree"  # without the sources, which would be found first
cd "$work/tree" || exit 2
export PYTHONPATH=$work/site TRTKV_SHARED=${TRTKV_SHARED:-$root/../shared}
"$python" -c 'import sys, trtkv.eviction.eviction_policy as m; sys.exit(m.__file__.endswith(".py"))' || fail "the wheel is not compiled"
echo "== pytest on the compiled build"
[ $# -gt 0 ] || set -- -m "not slow" \
    tests/test_wrong_values.py tests/{keys,blocks,pools,records,transfers,events,eviction,window_block_manager,manager} \
    tests/{inspection,scheduler,resource_manager,verify,stress,users,shapes}
"$python" -m pytest -n 2 -p no:cacheprovider "$@"
