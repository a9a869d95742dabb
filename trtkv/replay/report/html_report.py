"""The report of a replay as one self-contained HTML page: no network, no script, no time of day."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from trtkv.replay.causes.causes import CAUSES, Cause
from trtkv.replay.report import html_tables as tables
from trtkv.replay.report import plots
from trtkv.replay.report.terminal import notes
from trtkv.replay.report.wording import rate_value

if TYPE_CHECKING:
    from trtkv.replay.result import ReplayResult

_CAUSE_COLORS: Final[dict[Cause, tuple[str, str]]] = {
    Cause.HIT: ("#2f855a", "#57c48a"),
    Cause.COLD: ("#a0aab4", "#7b8794"),
    Cause.OTHER_KEY: ("#8d6e63", "#bc9a8c"),
    Cause.NOT_STORED: ("#2b9eb3", "#5cc6d9"),
    Cause.EVICTED: ("#d1495b", "#f0707f"),
    Cause.DEFERRED: ("#a53f7d", "#dd7ab5"),
    Cause.OUTSIDE_WINDOW: ("#6a4c93", "#a68bd0"),
    Cause.PARTIAL_BLOCK: ("#2f6fb0", "#6ea8e0"),
    Cause.LAST_TOKEN: ("#d9a404", "#f2c84b"),
    Cause.REFUSED: ("#4a5058", "#c3c9d0"),
}
"""On light and on dark pages."""
_SERIES_COLORS: Final = (
    ("#2f6fb0", "#6ea8e0"),
    ("#d9730d", "#f5a45a"),
    ("#2f855a", "#57c48a"),
    ("#d1495b", "#f0707f"),
    ("#6a4c93", "#a68bd0"),
)
_PAGE_COLORS: Final = {
    "page": ("#ffffff", "#16191d"),
    "text": ("#1c2126", "#e3e7eb"),
    "soft": ("#5a646e", "#a3adb7"),
    "grid": ("#d4d9de", "#3b434b"),
    "stripe": ("#f5f7f9", "#1f2429"),
}
_STYLE: Final = """
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--grid); padding-bottom: .25rem; }
p { margin: .5rem 0; }
p.lead, p.note, caption { color: var(--soft); }
p.headline { font-size: 1.15rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 0 2rem; align-items: start; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; font-size: .9rem; }
th, td { text-align: left; font-weight: normal; padding: .25rem .6rem; border-bottom: 1px solid var(--grid);
  overflow-wrap: anywhere; }
thead th { color: var(--soft); font-size: .85rem; }
th.number, td.number { text-align: right; overflow-wrap: normal; }
tbody tr:nth-child(even) { background: var(--stripe); }
figure { margin: 1rem 0; break-inside: avoid; }
figure svg { width: 100%; height: auto; display: block; }
figure svg text { fill: currentColor; }
figcaption { color: var(--soft); font-size: .9rem; }
dl { margin: .5rem 0; } dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0 0 0 1rem; }
@media print { body { max-width: none; padding: 0; font-size: 11px; } h2 { break-after: avoid; }
  table, figure { break-inside: avoid; } .wide { overflow: visible; } @page { margin: 14mm; } }
"""


def html_report(result: ReplayResult) -> str:
    """The page. Parts that the result does not have are left out. Equal results give equal pages.

    Raises MissingExtraError without the library that draws the plots.
    """
    plots.require_plots()
    title = f"Replay of {result.trace.name}"
    sections = [_overview(result), *_causes(result), *_curve(result), _blocks(result), _definitions(result)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # An empty picture, so that no browser asks for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_variables()}{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def _variables() -> str:
    colors = _PAGE_COLORS | {f"series-{number}": pair for number, pair in enumerate(_SERIES_COLORS, 1)}
    colors |= {f"cause-{cause.value.replace('_', '-')}": _CAUSE_COLORS[cause] for cause in CAUSES}
    light, dark = ("".join(f"--{name}: {pair[side]}; " for name, pair in colors.items()) for side in (0, 1))
    return (
        f"\n:root {{ color-scheme: light; {light}}}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {dark}}} }}"
    )


def _overview(result: ReplayResult) -> str:
    rates = {rate.name: rate for rate in result.rates}
    token_rate = rates["token_hit_rate"]
    parts = [
        f'<p class="headline">{rate_value(token_rate)} of the prompt tokens were found in the cache: '
        f"{token_rate.numerator:,} of {token_rate.denominator:,}.</p>"
    ]
    parts += [f'<p class="note">{escape(line)}</p>' for line in notes(result)]
    parts.append("<h2>Hit rates</h2>")
    if result.bounds is not None:
        picture = plots.rates_plot(result.bounds, result.counts.prepopulated_tokens)
        parts.append(_figure(picture, "Token hit rate: measured, possible at this capacity, and without limit"))
    else:
        parts.append('<p class="note">No bounds: they need an attention window as wide as the longest sequence.</p>')
    parts.append(_wide(tables.rates_table(result)))
    parts.append(f'<div class="pair">{tables.settings_table(result)}\n{tables.counts_table(result)}</div>')
    return "\n".join(parts)


def _causes(result: ReplayResult) -> list[str]:
    explanation = result.explanation
    if explanation is None or not explanation.prompt_tokens:
        return []
    parts = [
        "<h2>Causes</h2>",
        _figure(plots.causes_plot(explanation), "Every prompt token of the trace, by cause"),
        _wide(tables.causes_table(explanation)),
        "<h2>Over the run</h2>",
        _figure(plots.causes_over_time_plot(explanation), "Causes of consecutive requests; each step is 100 %"),
    ]
    if explanation.uses:
        parts.append(_figure(plots.use_plot(explanation), "Use of each tier behind each admission"))
    if explanation.losses.num_tokens:
        parts += [
            "<h2>Evicted tokens</h2>",
            _figure(plots.lateness_plot(explanation), "How late the requests came that wanted evicted tokens"),
            _wide(tables.loss_tables(explanation)),
        ]
    return parts


def _curve(result: ReplayResult) -> list[str]:
    curve = result.curve
    if curve is None:
        return []
    parts = [
        "<h2>Capacity and reuse distance</h2>",
        _figure(
            plots.curve_plot(result, curve),
            "Prompt tokens found by capacity. The line of the model is the distribution of reuse distances: the share "
            "of prompt tokens asked for again before that many tokens of other blocks were used",
        ),
    ]
    if curve.measured:
        parts.append(_wide(tables.curve_table(curve)))
    return parts


def _blocks(result: ReplayResult) -> str:
    parts = ["<h2>Blocks</h2>", _wide(tables.windows_table(result))]
    if result.explanation is not None:
        parts += [_wide(tables.events_table(result.explanation)), _wide(tables.priorities_table(result.explanation))]
    return "\n".join(parts)


def _definitions(result: ReplayResult) -> str:
    items = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(definition)}</dd>" for name, definition in tables.definitions(result)
    )
    return f"<h2>Definitions</h2>\n<dl>\n{items}\n</dl>"


def _figure(picture: str, caption: str) -> str:
    label = escape(caption, quote=True)
    picture = picture.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f"<figure>\n{picture}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _wide(table: str) -> str:
    return f'<div class="wide">\n{table}\n</div>'
