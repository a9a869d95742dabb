"""The report of a replay as one self-contained HTML page: no network, no script, no time of day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.replay import topics
from trtkv.replay.causes.causes import CAUSES, Cause
from trtkv.replay.report import plots
from trtkv.tables.html import html_tables
from trtkv.tables.table import definitions_of
from trtkv.tables.wording import count, share

if TYPE_CHECKING:
    from trtkv.records.rate import Rate
    from trtkv.replay.closed_loop.outcome import Outcome
    from trtkv.tables.table import Table

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
p.note, caption { color: var(--soft); }
p.headline { font-size: 1.15rem; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; font-size: .9rem; }
th, td { text-align: left; font-weight: normal; padding: .25rem .6rem; border-bottom: 1px solid var(--grid);
  overflow-wrap: break-word; }
thead th { color: var(--soft); font-size: .85rem; }
th[scope="row"] { min-width: 8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; }
td.number { white-space: nowrap; }
td.value { text-align: right; }
td.bad { color: var(--cause-evicted); }
tbody tr:nth-child(even) { background: var(--stripe); }
tbody + tbody { border-top: 2px solid var(--grid); }
figure { margin: 1rem 0; break-inside: avoid; overflow-x: auto; }
figure svg { width: 100%; height: auto; display: block; }
figure svg text { fill: currentColor; }
figcaption { color: var(--soft); font-size: .9rem; }
dl { margin: .5rem 0; } dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0 0 0 1rem; }
dl.about { display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem; }
dl.about dt, dl.about dd { margin: 0; }
@media screen { figure svg { min-width: 34rem; } }
@media print { body { max-width: none; padding: 0; font-size: 11px; } h2 { break-after: avoid; }
  table, figure { break-inside: avoid; } .wide, figure { overflow: visible; } @page { margin: 14mm; } }
"""


class Figure(NamedTuple):
    """A drawing and what it shows."""

    picture: str
    caption: str


def html_report(result: Outcome, about: Mapping[str, str] | None = None) -> str:
    """The page: tables of the result under their topics, each topic with its figures. Equal results give equal pages.

    ``about`` names what was run, such as version and command line. Raises MissingExtraError without the library that
    draws the plots.
    """
    plots.require_plots()
    tables = result.tables()
    title = tables[0].title
    drawn = dict(_figures(result))
    order = [*topics.TOPICS, *(table.topic for table in tables if table.topic not in topics.TOPICS)]
    sections = [_headline(result, about or {})]
    sections += [_section(topic, drawn.get(topic, ()), tables) for topic in dict.fromkeys(order)]
    sections.append(_definitions(tables))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # An empty picture, so that no browser asks for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_variables()}{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(filter(None, sections)) + "\n</main>\n</body>\n</html>\n"
    )


def _variables() -> str:
    colors = _PAGE_COLORS | {f"series-{number}": pair for number, pair in enumerate(_SERIES_COLORS, 1)}
    colors |= {f"cause-{cause.value.replace('_', '-')}": _CAUSE_COLORS[cause] for cause in CAUSES}
    light, dark = ("".join(f"--{name}: {pair[side]}; " for name, pair in colors.items()) for side in (0, 1))
    return (
        f"\n:root {{ color-scheme: light; {light}}}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {dark}}} }}"
    )


def _headline(result: Outcome, about: Mapping[str, str]) -> str:
    parts = [f'<p class="headline">{escape(_main_sentence(result))}</p>']
    parts += [f'<p class="note">{escape(line)}</p>' for line in result.notes()]
    if about:
        items = "".join(f"<dt>{escape(name)}</dt><dd><code>{escape(text)}</code></dd>" for name, text in about.items())
        parts.append(f'<dl class="about">{items}</dl>')
    return "\n".join(parts)


def _main_sentence(result: Outcome) -> str:
    rate = _hit_rate(result)
    if rate is None:
        return f"{count(result.num_run)} requests were run; how much of their prompts a cache would hold is unknown."
    return (
        f"{share(rate.numerator, rate.denominator)} of the prompt tokens were found in the cache: "
        f"{count(rate.numerator)} of {count(rate.denominator)}."
    )


def _hit_rate(result: Outcome) -> Rate | None:
    """Prompt tokens found, and all of them; None where only lengths are known."""
    return next((rate for rate in result.rates if rate.name == "token_hit_rate"), None)


def _figures(result: Outcome) -> Iterator[tuple[str, list[Figure]]]:
    """Drawings of what the result has, by topic."""
    bounds, explanation, curve = result.bounds, result.explanation, result.curve
    hit_rate = _hit_rate(result)
    if bounds is not None and hit_rate is not None:
        caption = "Token hit rate: measured, possible at this capacity, and without limit"
        yield topics.RATES, [Figure(plots.rates_plot(bounds, hit_rate.numerator), caption)]
    if explanation is not None and explanation.prompt_tokens:
        figures = [
            Figure(plots.causes_plot(explanation), "Every prompt token of the trace, by cause"),
            Figure(plots.causes_over_time_plot(explanation), "Causes of consecutive requests; each step is 100 %"),
        ]
        if explanation.uses:
            figures.append(Figure(plots.use_plot(explanation), "Tier occupancy after each admission"))
        yield topics.CAUSES, figures
        if explanation.losses.num_tokens:
            caption = "How late the requests came that wanted evicted tokens"
            yield topics.EVICTIONS, [Figure(plots.lateness_plot(explanation), caption)]
    if curve is not None:
        caption = (
            "Prompt tokens found by capacity. The line of the model is the distribution of reuse distances: "
            f"{curve.model_definition}"
        )
        yield topics.CURVE, [Figure(plots.curve_plot(curve), caption)]
    if result.over_time is not None and result.over_time.samples:
        caption = "Steps over virtual time: what is in use, what runs and what waits"
        yield topics.TIMES, [Figure(plots.utilisation_plot(result.over_time), caption)]


def _section(topic: str, figures: Iterable[Figure], tables: Iterable[Table]) -> str:
    """A heading, figures and tables of one topic; nothing if there are none."""
    parts = [*map(_figure, figures)]
    parts.append(html_tables(table for table in tables if table.topic == topic))
    body = "\n".join(filter(None, parts))
    return f"<h2>{escape(topic)}</h2>\n{body}" if body else ""


def _figure(figure: Figure) -> str:
    label = escape(figure.caption, quote=True)
    picture = figure.picture.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f"<figure>\n{picture}\n<figcaption>{escape(figure.caption)}</figcaption>\n</figure>"


def _definitions(tables: Iterable[Table]) -> str:
    items = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(definition)}</dd>" for name, definition in definitions_of(tables).items()
    )
    return f"<h2>Definitions</h2>\n<dl>\n{items}\n</dl>"
