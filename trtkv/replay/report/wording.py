"""Numbers as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkv.records.rate import Rate
    from trtkv.replay.result import ReplayResult


def count(number: float) -> str:
    """Thousands apart; three decimals unless it is a whole number."""
    return f"{number:,.3f}" if isinstance(number, float) else f"{number:,}"


def share(part: float, whole: float) -> str:
    """A part in percent; ``-`` of nothing. What is not 0 is not shown as 0."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    return "< 0.001 %" if 0 < percent < 0.0005 else f"{percent:.3f} %"


def rate_value(rate: Rate) -> str:
    """A rate in percent."""
    return share(rate.numerator, rate.denominator)


def tokens(number: int | None) -> str:
    """A capacity in tokens; None is unlimited."""
    return "unlimited" if number is None else count(number)


def reuse_of_parts(result: ReplayResult) -> str:
    """What happens to blocks that match in part."""
    if not result.config.partial_reuse:
        return "off"
    return "copied" if result.config.copy_on_partial_reuse else "in place where possible"
