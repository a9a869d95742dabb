"""Runs the random workloads of tests/executor and prints how often each mechanism ran, and which faults are noticed.

Run: ``python tools/end_to_end.py [--workloads 52] [--mutations 20]``; exit code 1 if an output differs, or a fault is
never noticed. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.arguments import at_least


def run_all(num_workloads: int) -> int:
    """Differences over all model shapes; prints a column of counters per shape."""
    from tests.executor.reference_models import MAKERS
    from tests.executor.workloads import run_workload

    columns: dict[str, Counter[str]] = {}
    num_mismatches = 0
    for name in MAKERS:
        columns[name] = Counter()
        for seed in range(num_workloads):
            outcome = run_workload(name, seed)
            columns[name] += outcome.counts
            for text in outcome.mismatches:
                print(text)
            num_mismatches += len(outcome.mismatches)
    print(f"| {num_workloads} workloads each | {' | '.join(columns)} |")
    print(f"| --- | {' | '.join('---:' for _ in columns)} |")
    for key in sorted(set().union(*columns.values())):
        print(f"| {key.removeprefix('num_').replace('_', ' ')} | {' | '.join(str(c[key]) for c in columns.values())} |")
    print(f"outputs that differ: {num_mismatches}")
    return num_mismatches


def run_mutations(num_workloads: int) -> int:
    """Faults that no workload notices."""
    from tests.executor.test_end_to_end import FAULTS
    from tests.executor.workloads import run_workload

    num_unnoticed = 0
    print(f"| fault | model | noticed in, of {num_workloads} workloads |")
    print("| --- | --- | ---: |")
    for name, engine in FAULTS:
        noticed = sum(bool(run_workload(name, seed, engine()).mismatches) for seed in range(num_workloads))
        summary = (engine.__doc__ or "").removeprefix("Broken: ").rstrip(".")
        print(f"| {summary} | {name} | {noticed} |")
        num_unnoticed += not noticed
    return num_unnoticed


def main() -> int:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=at_least(0), default=52)
    parser.add_argument("--mutations", type=at_least(0), default=20)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    return int(run_all(arguments.workloads) + run_mutations(arguments.mutations) > 0)


if __name__ == "__main__":
    sys.exit(main())
