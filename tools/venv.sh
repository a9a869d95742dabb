# Sourced by tools/demo.sh, tools/test.sh and tools/test_compiled.sh: `prepare_python NAME [COMMAND...]` leaves the interpreter in $python.
#
# The interpreter lives in .venv at the repository root. COMMANDs install what NAME needs ("$python" is set for them);
# they run again only after pyproject.toml, the commands or the version of the base interpreter have changed.
#   PYTHON=python3.12      base interpreter for .venv
#   TRTKV_PYTHON=/path     use this interpreter as it is: no .venv, nothing installed

source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

make_venv() {
    local base=$1
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
        || fail "$("$base" --version 2>&1) is too old; trtkv needs Python 3.10 or later: set PYTHON to one, e.g. PYTHON=python3.12"
    "$base" -c 'import ensurepip, venv' 2>/dev/null \
        || fail "$base cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
    echo "making .venv with $("$base" --version 2>&1)"
    "$base" -m venv --clear "$root/.venv" || fail "$base -m venv failed; remove $root/.venv and try again"
}

prepare_python() {
    local name=$1 stamp key base step
    shift
    if [ -n "${TRTKV_PYTHON:-}" ]; then
        python=$TRTKV_PYTHON
        return
    fi
    base=${PYTHON:-python3}
    command -v "$base" >/dev/null || fail "no $base found; install Python 3.10 or later, or set PYTHON"
    python=$root/.venv/bin/python
    stamp=$root/.venv/.ready-$name
    key=$({ cat "$root/pyproject.toml"; printf '%s\n' "$@"; "$base" --version 2>&1; } | cksum)
    if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
        return
    fi
    if [ "$("$python" --version 2>/dev/null)" != "$("$base" --version)" ]; then
        make_venv "$base"
    fi
    for step in "$@"; do
        (cd "$root" && eval "$step") || fail "could not prepare .venv; this step failed: $step"
    done
    printf '%s\n' "$key" >"$stamp"
}

prepare_test_python() {
    local torch=${TRTKV_TORCH:-torch==2.13.0}
    # torch first and by itself: asked for together with other packages, a resolver may choose a build of several gigabytes.
    # shellcheck disable=SC2016  # $python is expanded when the step runs
    prepare_python test \
        "\"\$python\" -m pip install --quiet $torch" \
        '"$python" -m pip install --quiet --editable ".[test]"'
}
