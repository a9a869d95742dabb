#!/usr/bin/env bash
# bash tools/demo.sh [TRACE]: replay a request trace (any format that trtkv replay tells apart) through the block manager and
# show the report.
# Without TRACE a chat trace is generated. Makes .venv on first use; needs neither torch nor a GPU.
# Results, with matplotlib a page too, go to .demo/ in the repository, or to TRTKV_DEMO_DIR.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
usage_if_asked "${BASH_SOURCE[0]}" "$@"
case ${1:-} in
    -?*) fail "unknown option $1; see tools/demo.sh --help" ;;
esac
if [ $# -gt 1 ]; then
    fail "give one trace file or none, not $# arguments"
fi
if [ $# -eq 1 ]; then
    [ -r "$1" ] || fail "cannot read the trace $1"
    trace=$1
fi

# shellcheck disable=SC2016  # $python is expanded when the step runs
prepare_python demo '"$python" -m pip install --quiet --editable .'

out=${TRTKV_DEMO_DIR:-$root/.demo}
mkdir -p "$out"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
report=(--explain --bounds --json "$out/report.json")
if "$python" -c 'import matplotlib' 2>/dev/null; then
    report+=(--html "$out/report.html")
else
    echo "note: with matplotlib (pip install '.[report]') there will be a page with plots, $out/report.html" >&2
fi
if [ $# -eq 1 ]; then
    "$python" -m trtkv replay "$trace" --block-size 512 --tokens-per-block 64 \
        --capacity-tokens 3000000 --live 64 "${report[@]}"
    exit
fi
trace=$out/chat.jsonl
"$python" -m trtkv trace generate --kind chat --requests 300 --seed 1 --output "$trace"
"$python" -m trtkv replay "$trace" --format mooncake --block-size 512 --tokens-per-block 64 \
    --capacity-tokens 200000 --live 16 "${report[@]}"
