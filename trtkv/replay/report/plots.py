"""Plots of a replay as SVG text for inlining into a page: drawn by matplotlib, coloured by the page.

Colours are placeholders that become CSS variables (``--cause-hit``, ``--series-1``, ``--grid``) and the text colour of
the page, so that one drawing reads well on light and dark pages and in print. Equal data give equal text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trtkv.errors import MissingExtraError
from trtkv.replay.causes.causes import CAUSES, Cause, tier_name
from trtkv.tables.wording import count, share, short, window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.bounds.capacity_curve import CapacityCurve, CurvePoint
    from trtkv.replay.causes.explanation import Explanation
    from trtkv.replay.utilisation import UtilisationSamples

WIDTH: Final = 7.6
"""Inches; the page scales drawings to its width."""
NUM_BUCKETS: Final = 60
"""Steps of a curve over time."""
MAX_SAMPLES: Final = 400
_TEXT: Final = "#010101"
_GRID: Final = "#010102"
_PAGE: Final = "#010103"
_SERIES: Final = tuple(f"#0101{number:02x}" for number in range(0x11, 0x16))
_CAUSE: Final = {cause: f"#0102{number:02x}" for number, cause in enumerate(CAUSES)}
_VARIABLES: Final = {
    _TEXT: "currentColor",
    _GRID: "var(--grid)",
    _PAGE: "var(--page)",
    **{color: f"var(--series-{number})" for number, color in enumerate(_SERIES, 1)},
    **{color: f"var(--cause-{cause.value.replace('_', '-')})" for cause, color in _CAUSE.items()},
}
_FONT: Final = re.compile(r"font-family: [^;\"]*")
_NOISE: Final = re.compile(r"\s*<metadata>.*?</metadata>|\s*<style[^>]*>.*?</style>", re.DOTALL)


def require_plots() -> None:
    """Raise MissingExtraError if plots cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError('plots need matplotlib; install it with: pip install "trtkv[report]"')


def rates_plot(bounds: Bounds, found_tokens: float) -> str:
    """Measured, clairvoyant and infinite token hit rates as bars."""
    names = ["measured", "clairvoyant", "infinite cache"]
    values = [found_tokens, bounds.clairvoyant_hit_tokens, bounds.infinite_hit_tokens]
    shares = [100 * value / bounds.prompt_tokens if bounds.prompt_tokens else 0.0 for value in values]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _bars(axes, names, shares, list(_SERIES[:3]))
        axes.set_xlabel("prompt tokens found, % of those of the requests run")

    return _svg("rates", draw, height=1.7)


def causes_plot(explanation: Explanation) -> str:
    """Shares of all causes that occur, as bars."""
    total = explanation.prompt_tokens
    parts = [(cause, 100 * number / total) for cause, number in explanation.tokens.items() if number]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _bars(axes, [cause.label for cause, _ in parts], [part for _, part in parts], [_CAUSE[c] for c, _ in parts])
        axes.set_xlabel("prompt tokens of the trace, %")

    return _svg("causes", draw, height=0.8 + 0.3 * len(parts))


def causes_over_time_plot(explanation: Explanation) -> str:
    """Causes of consecutive requests, stacked to 100 %."""
    table = explanation.table
    edges = np.unique(np.linspace(0, len(table), min(NUM_BUCKETS, len(table)) + 1).astype(int))
    sums = np.add.reduceat(table, edges[:-1], axis=0)
    shares = 100 * sums / sums.sum(axis=1, keepdims=True)
    shown = [column for column, cause in enumerate(CAUSES) if table[:, column].any()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        steps = [np.append(shares[:, column], shares[-1, column]) for column in shown]
        axes.stackplot(
            edges,
            steps,
            step="post",
            colors=[_CAUSE[CAUSES[column]] for column in shown],
            labels=[CAUSES[column].label for column in shown],
            linewidth=0,
        )
        axes.set_xlim(0, len(table))
        axes.set_ylim(0, 100)
        axes.set_xlabel("requests in the order of the trace")
        axes.set_ylabel("prompt tokens, %")
        _legend_above(axes)

    return _svg("over-time", draw, height=3.2)


def use_plot(explanation: Explanation) -> str:
    """Blocks that live requests hold, and blocks in the tree, over the run; a panel for each window and tier."""
    panels = [
        (index, activity, level)
        for index, activity in enumerate(explanation.windows)
        for level, size in enumerate((activity.primary_blocks, activity.secondary_blocks))
        if size
    ]
    step = max(1, len(explanation.uses) // MAX_SAMPLES)
    samples = [*explanation.uses[::step], *explanation.uses[-1:]]
    requests = [num_requests for num_requests, _ in samples]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, (index, activity, level) in zip(grid[:, 0], panels, strict=True):
            uses = [use[index] for _, use in samples]
            if level == 0:
                held = [100 * use.held / activity.primary_blocks for use in uses]
                cached = [100 * use.cached_primary / activity.primary_blocks for use in uses]
                axes.step(requests, held, where="post", color=_SERIES[1], label="held by live requests")
            else:
                cached = [100 * use.cached_host / activity.secondary_blocks for use in uses]
            axes.step(requests, cached, where="post", color=_SERIES[0], label="can be found (in the tree)")
            axes.set_ylim(0, 105)
            axes.set_xlim(0, requests[-1])
            size = (activity.primary_blocks, activity.secondary_blocks)[level]
            axes.set_ylabel(f"% of {count(size)} {tier_name(level)} blocks", fontsize=8)
            if len(explanation.windows) > 1:
                name = window(activity.window_size, is_full=activity.is_full)
                axes.set_title(f"attention window: {name}", fontsize=9, loc="left")
        _legend_above(grid[0, 0], raised=len(explanation.windows) > 1)
        grid[-1, 0].set_xlabel("requests admitted")

    return _svg("use", draw, height=0.7 + 1.9 * len(panels))


def curve_plot(curve: CapacityCurve) -> str:
    """Token hit rate over capacity: the model, runs, and the capacity of this run."""
    total = max(curve.prompt_tokens, 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(
            [point.capacity_tokens for point in curve.model],
            [100 * point.found_tokens / total for point in curve.model],
            color=_SERIES[0],
            label="LRU model, one request at a time",
        )
        capacities = [point.capacity_tokens for point in curve.measured]
        measured = [100 * point.found_tokens / max(point.prompt_tokens, 1) for point in curve.measured]
        best = [(point.capacity_tokens, point.clairvoyant_tokens, point.prompt_tokens) for point in curve.measured]
        if measured:
            axes.plot(capacities, measured, color=_SERIES[1], marker="o", markersize=4, label="measured")
        bounded = [(capacity, 100 * found / max(of, 1)) for capacity, found, of in best if found is not None]
        if bounded:
            axes.plot(*zip(*bounded, strict=True), color=_SERIES[2], marker="s", markersize=3, label="clairvoyant")
        sizes = [point.capacity_tokens for point in curve.model] + capacities
        if curve.run is not None and curve.run.prompt_tokens:
            sizes.append(curve.run.capacity_tokens)
            _mark_run(axes, curve.run)
        _token_axis(axes, min(sizes), max(sizes))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("capacity, tokens")
        axes.set_ylabel("prompt tokens found, %")
        _legend_above(axes)

    return _svg("curve", draw, height=3.0)


def _mark_run(axes: Axes, run: CurvePoint) -> None:
    found = 100 * run.found_tokens / run.prompt_tokens
    axes.axvline(run.capacity_tokens, color=_GRID, linewidth=1)
    axes.plot(
        [run.capacity_tokens], [found], color=_SERIES[3], marker="D", markersize=6, linestyle="none", label="this run"
    )


def utilisation_plot(utilisation: UtilisationSamples) -> str:
    """Blocks in use, tokens of a step, and requests that run and wait, over virtual time; a panel for each."""
    samples = utilisation.samples
    seconds = [sample.start_ns / 1e9 for sample in samples]
    panels: tuple[tuple[str, Mapping[str, Sequence[int]]], ...] = (
        ("primary blocks", {"in use": [sample.used_blocks for sample in samples]}),
        ("tokens of a step", {"computed": [sample.tokens for sample in samples]}),
        (
            "requests",
            {
                "generating": [sample.generation_requests for sample in samples],
                "in a prompt": [sample.context_requests for sample in samples],
                "arrived, not active": [sample.waiting_requests for sample in samples],
            },
        ),
    )

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, (name, lines) in zip(grid[:, 0], panels, strict=True):
            for color, (label, values) in zip(_SERIES, lines.items(), strict=False):
                axes.step(seconds, values, where="post", color=color, label=label)
            axes.set_ylabel(name, fontsize=8)
            axes.set_ylim(bottom=0)
            _legend_above(axes)
        grid[-1, 0].set_xlabel("virtual seconds")

    return _svg("steps", draw, height=0.7 + 1.9 * len(panels))


def lateness_plot(explanation: Explanation) -> str:
    """Share of evicted tokens that were lost at most this many allocated tokens before they were wanted."""
    late, reached = explanation.losses.cumulative("late_tokens")
    step = max(1, len(late) // MAX_SAMPLES)
    picked = [*range(0, len(late), step), len(late) - 1]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.step(
            [max(1, int(late[index])) for index in picked],
            [100 * float(reached[index]) / float(reached[-1]) for index in picked],
            where="post",
            color=_CAUSE[Cause.EVICTED],
        )
        _token_axis(axes, int(late[0]), int(late[-1]))
        axes.set_ylim(0, 102)
        axes.set_xlabel("tokens allocated between the loss and the request that wanted them")
        axes.set_ylabel("evicted tokens, %")

    return _svg("lateness", draw, height=2.4)


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], colors: Sequence[str]) -> None:
    places = range(len(names))
    bars = axes.barh(places, values, color=colors, height=0.62)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(max(values, default=1) * 1.14, 1))
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.bar_label(bars, [share(value, 100) for value in values], padding=4, color=_TEXT)


def _token_axis(axes: Axes, least: float, most: float) -> None:
    """An axis of tokens from least to most with labels such as 20k, logarithmic unless they are close."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    formatter = FuncFormatter(lambda number, _: short(number))
    least = max(1.0, least)
    if most < 4 * least:
        axes.xaxis.set_major_formatter(formatter)
        axes.set_xlim(0, 1.1 * max(most, least))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return
    marks = (1,) if most / least > 1000 else (1, 2, 5)
    ticks = [mark * 10**power for power in range(16) for mark in marks if least <= mark * 10**power <= most]
    axes.set_xscale("log")
    axes.set_xlim(least / 1.1, most * 1.1)
    axes.xaxis.set_major_locator(FixedLocator(ticks or [least, most]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(formatter)


def _legend_above(axes: Axes, *, raised: bool = False) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.12 if raised else 1.0), ncols=3, frameon=False, fontsize=8.5)


def _svg(name: str, draw: Callable[[Figure], None], height: float) -> str:
    """A figure as an ``svg`` element; ids inside it begin with the name, so that several fit on a page."""
    from matplotlib.figure import Figure

    stream = io.StringIO()
    with _drawing_settings():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure)
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = _NOISE.sub("", text[text.index("<svg") :])
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    text = _FONT.sub("font-family: inherit", text)
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    return text.strip()


@contextmanager
def _drawing_settings() -> Iterator[None]:
    """Settings of the library, whatever the user's are."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "trtkv",
        "font.size": 9.5,
        "text.color": _TEXT,
        "axes.labelcolor": _TEXT,
        "axes.edgecolor": _TEXT,
        "xtick.color": _TEXT,
        "ytick.color": _TEXT,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _GRID,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.6,
        "text.parse_math": False,
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        for name, value in settings.items():
            mpl.rcParams[name] = value
        yield
