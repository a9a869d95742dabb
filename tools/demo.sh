#!/usr/bin/env bash
# bash tools/demo.sh [TRACE [OPTION ...]]: replay a request trace through the block manager and show the report.
# TRACE has any format that trtkv replay detects; OPTIONs go to trtkv replay (text needs --tokenizer PATH).
# Without TRACE a chat trace is generated. Makes .venv on first use; needs neither torch nor a GPU.
# Results, with matplotlib a page too, go to .demo/ in the repository, or to TRTKV_DEMO_DIR.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
usage_if_asked "${BASH_SOURCE[0]}" "$@"
case ${1:-} in
    -?*) fail "unknown option $1; see tools/demo.sh --help" ;;
esac
if [ $# -gt 1 ] && [[ $2 != -?* ]]; then
    fail "give one trace, then options of trtkv replay, not $2"
fi
if [ $# -ge 1 ]; then
    [ -r "$1" ] || fail "cannot read the trace $1"
    trace=$1
fi

# shellcheck disable=SC2016  # $python is expanded when the step runs
prepare_python demo '"$python" -m pip install --quiet --editable .'

out=${TRTKV_DEMO_DIR:-$root/.demo}
mkdir -p "$out"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
report=(--json "$out/report.json")
if "$python" -c 'import matplotlib' 2>/dev/null; then
    report+=(--html "$out/report.html")
else
    echo "note: with matplotlib (pip install '.[report]') there will be a page with plots, $out/report.html" >&2
fi
if [ $# -ge 1 ]; then
    shift
    options=(--tokens-per-block 64 --capacity-tokens 3000000)
    asks='import sys; from trtkv.traces.trace_reader import detect_format; sys.exit(not getattr(detect_format(sys.argv[1]), sys.argv[2]))'
    # Rows of most formats say how many tokens a hash id stands for; Mooncake's do not, and the published ones have 512.
    if "$python" -c "$asks" "$trace" needs_block_size 2>/dev/null; then
        options+=(--block-size 512)
    fi
    # Lengths say nothing about hits, but all about queueing, memory and times.
    if "$python" -c "$asks" "$trace" is_csv 2>/dev/null; then
        options+=(--scheduler guaranteed-no-evict --arrivals trace --chunked-context)
    else
        options+=(--live 64 --explain --bounds)
    fi
    "$python" -m trtkv replay "$trace" "${options[@]}" "${report[@]}" "$@"
    exit
fi
trace=$out/chat.jsonl
"$python" -m trtkv trace generate --kind chat --requests 300 --seed 1 --output "$trace"
"$python" -m trtkv replay "$trace" --format mooncake --block-size 512 --tokens-per-block 64 \
    --capacity-tokens 200000 --live 16 --explain --bounds "${report[@]}"
