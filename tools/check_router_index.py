"""Compares a router's look-ups with the managers' own answers, for every listener form.

Run: ``python tools/check_router_index.py [--programs 2000] [--lookups 1000] [--first-seed 0]``; exit status 1 if any
differ. A share runs as ``tests/events/test_router_index.py``.

A program is two workers with random adapters, salts, extra ids and images, windows and tiers, whose events are lost,
repeated and cut by restarts on the way to three indexes: through the records, TensorRT-LLM's JSON and vLLM's msgpack.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.events.router_lookups import FORMS, compare_lookups
from tools.arguments import at_least, run_tool


def main() -> int:
    """Run all programs and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=at_least(1), default=2000)
    parser.add_argument("--lookups", type=at_least(10), default=1000, help="in each form, a program")
    parser.add_argument("--first-seed", type=at_least(0), default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    num_wrong, start = 0, time.monotonic()
    for seed in range(options.first_seed, options.first_seed + options.programs):
        try:
            counts += compare_lookups(seed, options.lookups)
        except AssertionError as error:
            num_wrong += 1
            print(f"differs: {error}")
    print(f"{options.programs:,} programs in {time.monotonic() - start:,.0f} s, {num_wrong} of them differ")
    for form in FORMS:
        print(f"{form}: {counts[f'{form} lookups']:,} look-ups, resynchronised {counts[f'{form} repaired']:,} times")
    print(f"not empty: {counts['non-empty'] / max(1, counts['lookups']):.1%}")
    return int(num_wrong > 0)


if __name__ == "__main__":
    run_tool(main)
