"""The GPU check itself: comparisons pass with the kernels on the CPU and find a broken one; parts end in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import gpu_check
from trtkv.kernels.kernel_launch import KernelLaunch, Launcher

ROOT = Path(__file__).resolve().parents[2]


def skip_without_needs(name: str) -> None:
    if missing := gpu_check.find_missing(gpu_check.NEEDS.get(name, ())):
        pytest.skip(gpu_check.advise(missing))


@pytest.mark.parametrize("name", gpu_check.CHECKS)
def test_comparison_passes_with_the_kernels_on_the_cpu(name: str, host_launcher: Launcher) -> None:
    skip_without_needs(name)
    gpu_check.CHECKS[name]("cpu", host_launcher, 5, 4)


@pytest.mark.parametrize("name", gpu_check.CHECKS)
def test_comparison_notices_a_kernel_that_leaves_a_cta_out(name: str, host_launcher: Launcher) -> None:
    skip_without_needs(name)

    def launch(plan: KernelLaunch) -> None:
        columns, rows, layers = plan.grid
        if columns > 1:
            host_launcher(plan._replace(grid=(columns - 1, rows, layers)))

    with pytest.raises(RuntimeError, match="differ"):
        gpu_check.CHECKS[name]("cpu", launch, 5, 4)


class FakeClock:
    """Seconds that pass when a check runs."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("seconds_per_batch", "num_rounds"), [(0.0, 40), (1.0, 20), (100.0, 4)])
def test_a_slow_check_does_fewer_rounds_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds_per_batch: float, num_rounds: int
) -> None:
    clock, seeds = FakeClock(), []

    def check(_device: str, _backend: object, seed: int, _num_rounds: int) -> None:
        seeds.append(seed)
        clock.seconds += seconds_per_batch

    monkeypatch.setattr(gpu_check, "CHECKS", {"slow": check, "other": check})
    assert gpu_check.run_checks("cpu", None, 40, 10.0, ["slow", "other"], clock) == []
    assert len(set(seeds)) == num_rounds // gpu_check.ROUNDS_AT_ONCE
    assert capsys.readouterr().out.count(f"{num_rounds} of 40 rounds") == 2


def test_all_parts_together_take_less_than_four_minutes() -> None:
    assert gpu_check.CHECKS_S + 2 * gpu_check.SANITIZER_S + gpu_check.TIMES_S <= 4 * 60 - 30


def test_a_failing_check_is_named_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("3 places differ")

    monkeypatch.setattr(gpu_check, "CHECKS", {"bad": fail, "good": lambda *_arguments: None})
    assert gpu_check.run_checks("cpu", None, 4, names=["bad", "good"]) == ["bad"]
    out = capsys.readouterr().out
    assert "DIFFERENT bad              3 places differ" in out
    assert "equal     good" in out


def run_without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """A fresh process in which these packages cannot be imported."""
    blocked = f"import sys\nfor name in {packages!r}:\n    sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False, cwd=ROOT)


ON_THE_CPU = """
from tools import gpu_check
print(gpu_check.run_checks("cpu", "reference", 1))
"""


@pytest.mark.slow
def test_it_runs_without_pydantic_and_says_what_to_install() -> None:
    result = run_without(("pydantic", "typer", "rich"), ON_THE_CPU)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "[]"
    assert "left out  executor         needs pydantic: pip install pydantic" in lines
    assert sum(line.startswith("equal") for line in lines) == len(gpu_check.CHECKS) - 1


@pytest.mark.parametrize("package", ["torch", "numpy"])
def test_a_missing_package_is_named_with_what_to_install(package: str) -> None:
    result = run_without((package,), "from tools.gpu_check import main\nsys.argv = ['gpu_check']\nsys.exit(main())")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"nothing to check here: needs {package}: pip install {package}\n"


def test_without_a_gpu_it_says_so_and_succeeds() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert "nothing to check here" in result.stdout
