"""The HTML page and the tables of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedapp.runs.formatting import duration, rounds, setting, size
from fedapp.runs.page import adaptive, page, picture, render
from fedapp.studies.compare.comparison import ACCURACY, METRICS, ComparedRun, ComparedRuns
from fedapp.studies.compare.figure import Style, draw_panels, styles_of

NOT_REACHED = "not reached"


class TableCell(NamedTuple):
    """A cell of a table; ``best`` is the best of its column."""

    text: str
    best: bool = False


def setting_rows(comparison: ComparedRuns) -> list[list[str]]:
    """Return each run's differing settings as text."""
    return [[setting(run.settings[key]) for key in comparison.differing] for run in comparison.runs]


def number_columns(comparison: ComparedRuns) -> list[str]:
    """Return the heads of the columns of numbers."""
    own = {run.metric for run in comparison.runs if run.metric}
    unit = f" {METRICS[own.pop()].title}" if len(own) == 1 else ""
    needed = [f"rounds to {100 * comparison.target:.6g} %"] if comparison.target else []
    return [*needed, f"best{unit} (round)", f"final{unit}", "rounds", "bytes", "time"]


def number_rows(comparison: ComparedRuns) -> list[list[TableCell]]:
    """Return each run's numbers as text, in the order of :func:`number_columns`."""
    return [_cells(run, comparison) for run in comparison.runs]


def _cells(run: ComparedRun, comparison: ComparedRuns) -> list[TableCell]:
    runs = comparison.runs
    needed = [
        TableCell(_needed(run), _is_least(run.rounds_to_target, [r.rounds_to_target for r in runs]))
    ]
    sign = METRICS[run.metric].sign if run.metric else 1
    alike = [other for other in runs if other.metric == run.metric]
    several = len({other.metric for other in runs if other.metric}) > 1
    best, final = (
        TableCell(
            _value(run, getattr(run, key), titled=several)
            + (f" ({run.best_round})" if key == "best" and run.best is not None else ""),
            _is_least(_signed(run, key, sign), [_signed(other, key, sign) for other in alike]),
        )
        for key in ("best", "final")
    )
    done = f"{run.rounds}" if run.rounds == run.planned else f"{run.rounds} of {run.planned}"
    rest = [best, final, *map(TableCell, (done, size(run.bytes), duration(run.seconds)))]
    return [*needed, *rest] if comparison.target else rest


def _needed(run: ComparedRun) -> str:
    if run.rounds_to_target is not None:
        return rounds(run.rounds_to_target)
    if not run.metric:
        return "not evaluated"
    return NOT_REACHED if run.metric == ACCURACY else "no accuracy"


def _value(run: ComparedRun, value: float | None, *, titled: bool) -> str:
    if not run.metric:
        return ""
    metric = METRICS[run.metric]
    shown = "not finite" if value is None else metric.show(value)
    return f"{metric.title} {shown}" if titled else shown


def _signed(run: ComparedRun, key: str, sign: int) -> float | None:
    value = getattr(run, key)
    return None if value is None else -sign * value


def _is_least(value: float | None, others: Sequence[float | None]) -> bool:
    """Return whether a value is the least of several that are not all equal."""
    known = [other for other in others if other is not None]
    return value is not None and value == min(known) and value < max(known)


class RunRow(NamedTuple):
    """A run in the tables and in the legend; the swatch is empty for a run without a line of its own."""

    run: ComparedRun
    swatch: str
    settings: list[str]
    cells: list[TableCell]


def comparison_page(comparison: ComparedRuns, command: str) -> str:
    """Return the page of a comparison; ``command`` makes it again."""
    swatches = [_swatch(style) for style in styles_of(comparison.runs)]
    rows = zip(
        comparison.runs, swatches, setting_rows(comparison), number_rows(comparison), strict=True
    )
    title = f"Comparison of {len(comparison.runs)} runs"
    body = render(
        BODY,
        title=title,
        comparison=comparison,
        rows=[RunRow(*row) for row in rows],
        columns=[head.replace(" %", "\u00a0%") for head in number_columns(comparison)],
        figures=[
            picture(
                figure,
                metric.key.replace("_", "-"),
                f"{metric.title} by communication round",
                _caption(comparison, metric.key),
            )
            for metric, figure in draw_panels(comparison).items()
        ],
        shared={key: setting(value) for key, value in comparison.shared.items()},
        command=command,
    )
    return page(title, body)


def _caption(comparison: ComparedRuns, key: str) -> str:
    """Return how many runs a panel has, where it is not all."""
    number, every = sum(key in run.curves for run in comparison.runs), len(comparison.runs)
    return "" if number == every else f"{METRICS[key].title} of {number} of the {every} runs"


def _swatch(style: Style | None) -> str:
    """Return a piece of a run's line; nothing for a run without one."""
    if style is None:
        return ""
    dashes = " ".join(str(2 * length) for length in style.dashes)
    return (
        '<svg class="swatch" viewBox="0 0 28 8" aria-hidden="true"><path d="M0 4H28" style="stroke: '
        f'{adaptive(style.color)}; stroke-width: 2.5; stroke-dasharray: {dashes or "none"}"/></svg>'
    )


BODY = """<h1>{{ title }}</h1>
{% for note in comparison.notes %}
<p>{{ note }}</p>
{% endfor %}
{% for problem in comparison.left_out.values() %}
<p>Left out: {{ problem }}</p>
{% endfor %}
<h2>Settings that differ</h2>
{% if comparison.differing %}
<div class="wide"><table class="lines">
<thead><tr><th></th>
{% for key in comparison.differing %}
<th><code>{{ key }}</code></th>
{% endfor %}
<th>run</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><td>{{ row.swatch | safe }}</td>
{% for value in row.settings %}
<td>{{ value }}</td>
{% endfor %}
<td>{{ row.run.name }}</td></tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>None: all runs have the same settings.</p>
{% endif %}
<h2>Curves</h2>
<ul class="legend">
{% for row in rows if row.swatch %}
<li class="run">{{ row.swatch | safe }}<span>{{ row.run.label }}</span></li>
{% endfor %}
</ul>
<div class="figures">
{% for figure in figures %}
{{ figure | safe }}
{% endfor %}
</div>
<p class="muted">A dot marks a run's last evaluation.
{% if not rows | map(attribute="swatch") | min %}
The best {{ rows | selectattr("swatch") | list | length }} runs have lines of their own; the other
{{ rows | rejectattr("swatch") | list | length }} are pale.
{% endif %}
</p>
<h2>Numbers</h2>
<div class="wide"><table class="named">
<thead><tr><th>run</th>
{% for column in columns %}
<th class="number">{{ column }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr><th><span class="run">{{ row.swatch | safe }}<span>{{ row.run.label }}</span></span></th>
{% for cell in row.cells %}
<td class="number">
{%- if cell.best %}<strong>{{ cell.text }}</strong>{% else %}{{ cell.text }}{% endif -%}
</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
<ul class="muted">
{% if comparison.target %}
<li>Rounds to a target: where the best test accuracy of all rounds so far crosses it, by linear
interpolation between evaluated rounds.</li>
{% else %}
<li>Rounds to a target accuracy: add <code>--target 0.9</code>, say, to the command below.</li>
{% endif %}
<li>Final: of the last evaluated round. Bytes: of the arrays of train requests, of requests for losses
(<code>power-of-choice</code>) and of the accepted replies to train, without evaluation. Time:
wall-clock time of all rounds.</li>
</ul>
<h2>Settings that all share</h2>
<details><summary>{{ shared | length }} settings</summary>
<div class="wide"><table>
{% for key, value in shared.items() %}
<tr><th><code>{{ key }}</code></th><td>{{ value }}</td></tr>
{% endfor %}
</table></div></details>
<h2>This comparison again</h2>
<pre><code>{{ command }}</code></pre>
<details><summary>The runs' folders</summary>
<ul>
{% for row in rows %}
<li>{{ row.run.label }}: <code>{{ row.run.path }}</code></li>
{% endfor %}
</ul></details>
"""
