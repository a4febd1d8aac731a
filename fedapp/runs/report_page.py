"""The HTML report of a run: its numbers with their meaning, pictures, settings and commands."""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedapp.config.read import algorithm_defaults, defaults, without_unused_parameters
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import kebab
from fedapp.federation.callback import RoundMetrics
from fedapp.runs.callbacks import has_reached
from fedapp.runs.directory import RunDirectory, resume_command
from fedapp.runs.figures import curve_panels
from fedapp.runs.formatting import duration, number, percent, rounds, setting, size
from fedapp.runs.metrics import (
    faults_by_kind,
    rounds_without_effect,
    trained_clients,
    wall_seconds,
)
from fedapp.runs.page import inline_svg, page, picture, render
from fedapp.runs.stored_run import StoredRun
from fedapp.training.algorithm import algorithm_of

PARTS = {
    "train": ("training", "of the slowest node in each round"),
    "transfer": ("transfer", "of messages to and from the nodes"),
    "wait": ("waiting", "for replies, beyond training and transfer"),
    "evaluate": ("evaluation", "of the global model"),
}
"""The parts of a round's seconds: their names and meanings."""
PICTURES = {
    "participation": ("Who was available, and who trained", "clients by round"),
    "partition": ("Partition", "labels and examples of each client"),
    "client-losses": ("Clients' training loss", "training losses of clients by round"),
    "similarity": ("Similarity of updates", "cosine of clients' updates by layer and round"),
}
"""Pictures of a run directory, their headings and what they show."""
NOT_CHANGED = ("run-dir", "resume")
"""Settings that are not shown as changed."""
EXECUTION_ROWS = ("engine", "nodes", "workers", "device", "trainer", "threads")
"""What was determined for a run, and its times depend on."""


class Fact(NamedTuple):
    """A number of a run as text, and what it means."""

    name: str
    value: str
    meaning: str = ""


def report_page(
    directory: RunDirectory,
    config: RunConfig,
    run_info: Mapping[str, Any],
    title: str,
    summary: Mapping[str, Any],
    records: Sequence[RoundMetrics],
    model_round: str,
) -> str:
    """Return the report of a run with this ``summary`` and these ``records`` as one page."""
    files = {name: directory.path / f"{name}.svg" for name in PICTURES}
    values = without_unused_parameters(config.to_run_config())
    trained = [record for record in records if record["round"] > 0]
    stored = StoredRun(directory, values, run_info, records)
    body = render(
        BODY,
        title=title,
        path=directory.path,
        numbers=list(numbers(summary, config, records)),
        curves=[
            picture(figure, f"curve-{i}", f"{label} by communication round")
            for i, (label, figure) in enumerate(curve_panels(records, config.target_accuracy))
        ],
        participants=list(participants(trained, config)),
        parts=list(time_by_part(records)),
        execution={k: v for k in EXECUTION_ROWS if (v := run_info.get(k)) and v != "auto"},
        pictures=[
            (PICTURES[name][0], inline_svg(file.read_text(), name, PICTURES[name][1]))
            for name, file in files.items()
            if file.exists()
        ],
        changed=changed_settings(config),
        settings={key: setting(value) for key, value in values.items()},
        commands=list(
            commands(
                directory.path,
                config,
                run_info,
                goes_on=stored.resume_round is not None and _goes_on(config, records, model_round),
                stopped=summary["rounds"] < config.num_server_rounds,
            )
        ),
    )
    return page(directory.path.name, body)


def numbers(
    summary: Mapping[str, Any], config: RunConfig, records: Sequence[RoundMetrics]
) -> Iterator[Fact]:
    """Yield the numbers of ``summary.json`` that the run has."""
    planned = config.num_server_rounds
    done = summary["rounds"]
    if summary["test_accuracy"] is not None:
        yield Fact(
            "test accuracy", percent(summary["test_accuracy"]), "of the last evaluated model"
        )
        best, when = summary["best_test_accuracy"], summary["best_round"]
        yield Fact("best test accuracy", f"{percent(best)} in round {when}")
    for key, name in (
        ("test_rmse", "test RMSE"),
        ("test_r2", "test R²"),
        ("test_loss", "test loss"),
    ):
        if summary.get(key) is not None:
            yield Fact(name, number(summary[key], 4), "of the last evaluated model")
    of_planned = "" if done == planned else f" of {planned}"
    yield Fact("rounds", f"{done}{of_planned}{rounds_without_effect(records)}")
    if target := summary["target_accuracy"]:
        needed = summary["rounds_to_target"]
        evaluated = summary["best_round"] is not None
        missing = "not reached" if evaluated else "not evaluated"
        yield Fact(
            f"rounds to {100 * target:.6g}\u00a0%",
            missing if needed is None else rounds(needed),
            "where the best accuracy so far crosses the target, interpolated between rounds",
        )
    updates = summary["updates"]
    shown = number(updates) if updates < 100 else f"{updates:,.0f}"
    yield Fact("local updates", shown, "of a client in a round, u, summed over the rounds")
    if summary.get("delta") is not None:
        epsilon = "∞" if summary["epsilon"] is None else number(summary["epsilon"], 4)
        meaning = f"the privacy spent; neighbours: {summary['adjacency']}"
        yield Fact("epsilon, delta", f"{epsilon}, {summary['delta']:.3g}", meaning)
    down = "the arrays of train requests, and of requests for losses (power-of-choice)"
    yield Fact("sent to nodes", size(summary["bytes_down"]), down)
    yield Fact("sent by nodes", size(summary["bytes_up"]), "the arrays of the accepted replies")
    if (median := summary["seconds_a_round_median"]) is not None:
        total, median = seconds(summary["seconds"]), seconds(median)
        yield Fact("time", total, f"wall clock, all rounds; the median round took {median}")


def seconds(value: float) -> str:
    """Format seconds, with three digits below ten, or milliseconds."""
    if 0 < value < 0.1:
        return f"{1000 * value:.0f} ms" if value >= 0.001 else "< 1 ms"
    return f"{number(value)} s" if value < 10 else duration(value)


def participants(trained: Sequence[RoundMetrics], config: RunConfig) -> Iterator[Fact]:
    """Yield how many clients took part, how often, and how many failed."""
    if not trained:
        return
    sampled = [len(record["clients"]) for record in trained]
    of_all = f" of {config.num_clients}" if config.num_clients else ""
    yield Fact(
        "clients a round", f"{number(statistics.mean(sampled))}{of_all}", "sampled, on average"
    )
    often = Counter(client for record in trained for client in trained_clients(record))
    yield Fact(
        "clients that trained",
        f"{len(often):,}{of_all}",
        "whose update was used in at least one round",
    )
    if often:
        times = sorted(often.values())
        yield Fact(
            "rounds of a client",
            f"{times[0]} to {times[-1]}",
            f"of those that trained; the median client took part in {statistics.median(times):g}",
        )
    yield Fact("failures", faults_by_kind(trained), "client updates that were not used, by kind")


def time_by_part(records: Sequence[RoundMetrics]) -> Iterator[tuple[Fact, str, float]]:
    """Yield each part of the run's seconds, its total, its median in a round, and its share."""
    spent: list[Mapping[str, float]] = [record["seconds"] for record in records]
    totals = {part: math.fsum(each.get(part, 0.0) for each in spent) for part in PARTS}
    whole = math.fsum(map(wall_seconds, records))
    trained = [record["seconds"] for record in records if record["round"] > 0]
    if not trained or not whole:
        return
    for part, (name, meaning) in PARTS.items():
        median = statistics.median(each.get(part, 0.0) for each in trained)
        yield Fact(name, seconds(totals[part]), meaning), seconds(median), totals[part] / whole
    rest = max(whole - math.fsum(totals.values()), 0.0)
    yield Fact("the rest", seconds(rest), "sampling, aggregation, records"), "", rest / whole


def changed_settings(config: RunConfig) -> list[tuple[str, str, str]]:
    """Return key, value and default of the settings that are not at their defaults."""
    own = {kebab(field): value for field, value in algorithm_defaults(config).items()}
    standard = {**defaults(), **own}
    values = without_unused_parameters(config.to_run_config())
    return [
        (key, setting(value), setting(standard.get(key)))
        for key, value in values.items()
        if key not in NOT_CHANGED and value != standard.get(key)
    ]


def _goes_on(config: RunConfig, records: Sequence[RoundMetrics], model_round: str) -> bool:
    """Return whether more rounds would train: the run has not ended by its target or ``max-epsilon``."""
    last, planned = records[-1]["round"] if records else 0, config.num_server_rounds
    target, every = config.target_accuracy, config.eval_every
    if has_reached(records, last, target=target, eval_every=every, planned=2 * planned):
        return False
    privacy = algorithm_of(config).privacy(config)
    ended_early = model_round == f"{last} of {planned}"
    return not (ended_early and privacy and privacy.max_epsilon)


def commands(
    folder: Path,
    config: RunConfig,
    run_info: Mapping[str, Any],
    *,
    goes_on: bool,
    stopped: bool,
) -> Iterator[tuple[str, str]]:
    """Yield what a command does, and the command: to go on, if it does, and to do the same again.

    A run that was stopped goes on to the end that it was given, another one to more rounds.
    """
    start = f"cd {shlex.quote(run_info['app'])} && " if "app" in run_info else ""
    engine, settings = run_info.get("engine", ""), shlex.quote(str(folder / "resume.toml"))
    resume = start + resume_command(folder, engine)
    if goes_on and stopped:
        yield "Resume:", resume
    elif goes_on and engine == "flower":
        yield "Resume, for more rounds after raising num-server-rounds in resume.toml:", resume
    elif goes_on:
        more = f"num-server-rounds={2 * config.num_server_rounds}"
        yield "Resume, for more rounds:", f"{resume} {more}"
    if config.num_clients:
        workers, nodes = run_info.get("workers", 0), run_info.get("nodes", 1)
        option = f" --workers {workers}" if workers else f" --nodes {nodes}" if nodes != 1 else ""
        run_dir = shlex.quote(f"run-dir={folder}-again")
        privacy = algorithm_of(config).privacy(config)
        fresh = (
            ", with other random numbers of its privacy"
            if privacy and not privacy.repeatable
            else ""
        )
        yield (
            f"The same run again{fresh}:",
            f"{start}fedapp run {settings} resume=false {run_dir}{option}",
        )


BODY = """{% macro facts(rows) %}
<div class="wide"><table class="facts">
{% for row in rows %}
<tr><th>{{ row.name }}</th><td>{{ row.value }}
{%- if row.meaning %}<div class="muted">{{ row.meaning }}</div>{% endif -%}</td></tr>
{% endfor %}
</table></div>
{% endmacro %}
<h1>{{ title | replace(" = ", "\u00a0=\u00a0") }}</h1>
<p><code>{{ path }}</code></p>
<div class="figures">
{% for figure in curves %}
{{ figure | safe }}
{% endfor %}
</div>
<div class="figures">
<section><h2>Summary</h2>
{{ facts(numbers) }}
</section>
{% if participants %}
<section><h2>Who took part</h2>
{{ facts(participants) }}
{% if parts %}
<h2>Time by part</h2>
<div class="wide"><table class="facts">
<thead><tr><th>part</th><th class="number">total</th><th class="number">share</th>
<th class="number">median round</th></tr></thead>
<tbody>
{% for row, median, share in parts %}
<tr><th>{{ row.name }}<div class="muted">{{ row.meaning }}</div></th>
<td class="number">{{ row.value }}</td>
<td class="number">{{ "%.0f" | format(100 * share) }} %</td>
<td class="number">{{ median }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="muted">
{% for key, value in execution.items() %}
{{ key }} {{ value }}{{ "," if not loop.last }}
{% endfor %}
</p>
{% endif %}
</section>
{% endif %}
</div>
<h2>Settings that were changed</h2>
{% if changed %}
<div class="wide"><table>
<thead><tr><th>key</th><th>value</th><th>default</th></tr></thead>
<tbody>
{% for key, value, default in changed %}
<tr><th><code>{{ key }}</code></th><td>{{ value }}</td><td class="muted">{{ default }}</td></tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>None: all are at their defaults.</p>
{% endif %}
<details><summary>All {{ settings | length }} settings</summary>
<div class="wide"><table>
{% for key, value in settings.items() %}
<tr><th><code>{{ key }}</code></th><td>{{ value }}</td></tr>
{% endfor %}
</table></div></details>
{% for heading, figure in pictures %}
<h2>{{ heading }}</h2>
{{ figure | safe }}
{% endfor %}
<h2>Commands</h2>
{% for what, command in commands %}
<p>{{ what }}</p>
<pre><code>{{ command }}</code></pre>
{% endfor %}
"""
