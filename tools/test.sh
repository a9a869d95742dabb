#!/usr/bin/env bash
# bash tools/test.sh [PYTEST ARGUMENTS]: lint, types, layers and tests, from a fresh machine on. Makes .venv on first use.
# All steps run even if one fails; the exit code is 0 only if all passed.
#   TRTKV_TORCH='torch==2.13.0'   which torch to install (the tests need only its CPU part)
set -uo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
usage_if_asked "${BASH_SOURCE[0]}" "$@"
prepare_test_python

cd "$root" || exit 2
failed=()
step() {
    local name=$1
    shift
    echo "== $name"
    "$@" || failed+=("$name")
}

step "ruff check" "$python" -m ruff check .
step "ruff format" "$python" -m ruff format --check .
step "mypy" "$python" -m mypy --strict trtkv
step "layers" "$python" tools/check_layers.py
step "C++ names" "$python" -m tools.cpp_names --check
step "pytest" "$python" -m pytest -n 2 "$@"

if [ ${#failed[@]} -gt 0 ]; then
    printf 'error: failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
    exit 1
fi
