"""The page of an experiment, as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.config.settings import Scalar
from fedapp.files import write_atomically
from fedapp.runs.formatting import duration
from fedapp.studies.papers.catalogue import Experiment, all_experiments
from fedapp.studies.papers.cells import EVALUATIONS
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.pages.claims import claims_section, scales_section
from fedapp.studies.papers.pages.figure_tables import (
    comparison_section,
    lines_section,
    sharpness_section,
    updates_section,
)
from fedapp.studies.papers.pages.markdown import table, wrapped
from fedapp.studies.papers.pages.notes import fill, finder
from fedapp.studies.papers.pages.tables import table_section
from fedapp.studies.papers.results import Results, nothing_run
from fedapp.studies.papers.schema import Comparison, ScaleName, Sharpness, Table, Updates
from fedapp.studies.papers.stored import results_of
from fedapp.studies.papers.verdicts import Checks, check_scales
from fedapp.studies.sweep.record import RunRecord

HEADINGS: Mapping[ScaleName, str] = {
    "full": "Full scale",
    "narrow": "Narrow scale",
    "normalised": "Narrow scale, images of mean 0 and deviation 1",
    "cpu": "Processor scale",
    "smoke": "Smoke scale",
}
HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
"""The hash of a commit, of which a page shows the first 12 digits."""


def write_page(folder: Path, name: str, records: Mapping[str, RunRecord]) -> Path:
    """Write the page of an experiment, ``folder/name/index.md``, and return it."""
    path = folder / name / "index.md"
    write_atomically(path, page_of(folder, name, records).encode())
    return path


def page_of(folder: Path, name: str, records: Mapping[str, RunRecord]) -> str:
    """Return the page of an experiment whose results are in ``folder``, its notes filled from them."""
    text = page(all_experiments()[name], list(results_of(folder, name, records)), records)
    return wrapped(fill(text, finder(folder, name, records)))


def page(
    experiment: Experiment,
    by_scale: Sequence[Results],
    records: Mapping[str, RunRecord] | None = None,
) -> str:
    """Return the page as Markdown: what the paper shows, what was measured, what differs.

    The smoke scale is shown only if it is the only one. Above it, ``records`` tell which code the runs
    are from.
    """
    parts = [f"# {experiment.title}", "", f"{experiment.source}.", "", experiment.about.strip()]
    shown = [each for each in by_scale if each.scale != "smoke"] or by_scale
    checks = check_scales(experiment, shown) if isinstance(experiment, Claims) else {}
    for results in shown:
        parts += ["", f"## {HEADINGS[results.scale]}", ""]
        parts += _scale_section(experiment, results, checks)
        if records is not None and results.scale != "smoke":
            parts[-1] = " ".join(filter(None, (parts[-1], provenance(results, records))))
    if isinstance(experiment, Table) and not shown:
        parts += ["", "The published numbers:", "", table_section(experiment, nothing_run())]
    if text := scales_section(checks):
        parts += ["", "## Between the scales", "", text]
    if experiment.differs:
        parts += ["", "## What differs, and why", "", experiment.differs.strip()]
    return "\n".join(parts) + "\n"


def _command(experiment: Experiment, results: Results) -> list[str]:
    """Return the description of the scale and the command."""
    note = experiment.at(results.scale).note or "As far as the paper says how it was done."
    return [note, "", "```bash", results.command, "```", ""]


def _scale_section(experiment: Experiment, results: Results, checks: Checks) -> list[str]:
    parts = _command(experiment, results)
    if isinstance(experiment, Table):
        parts += [
            table_section(experiment, results),
            "",
            *_evaluations(results),
            _tried_candidates(results),
        ]
    elif isinstance(experiment, Claims):
        parts.append(claims_section(experiment, results, checks))
    else:
        parts.append(f"![{experiment.title}]({results.scale}.png)")
        if isinstance(experiment, Comparison):
            parts += ["", comparison_section(experiment, results)]
        elif isinstance(experiment, Sharpness):
            parts += ["", sharpness_section(experiment, results)]
        elif results.cells:
            parts += ["", lines_section(results, RunLabels.of(experiment, results))]
        if isinstance(experiment, Updates):
            parts += ["", updates_section(experiment, results)]
    return [*parts, "", _execution_summary(results)]


def _evaluations(results: Results) -> list[str]:
    """Return the cells that are not evaluated after every round."""
    cells = {name: cell.every for name, cell in results.cells.items() if cell.every > 1}
    if not cells:
        return []
    rows = [[name, str(every)] for name, every in cells.items()]
    text = (
        "Cells whose evaluation takes long, and runs of 1,000 rounds and more, are evaluated less often, "
        f"such runs about {EVALUATIONS} times in all; rounds to the target are interpolated between two "
        "evaluations, and a run that is evaluated less often is seen to reach it later, if at all:"
    )
    return [text, "", table(("cell", "rounds between evaluations"), rows), ""]


def _tried_candidates(results: Results) -> str:
    """Return the candidates with the rounds that each needed."""
    rows = []
    for name, cell in results.cells.items():
        for tried in cell.tried:
            rate = _tried_settings(tried.settings)
            best = "**" if tried.settings == cell.chosen else ""
            outcome = (
                f"{tried.needed:.1f}"
                if tried.needed is not None
                else tried.problem
                or f"given up after {tried.rounds}, best {100 * tried.best:.2f} %"
            )
            rows.append([name, f"{best}{rate}{best}", outcome])
    if not rows:
        return ""
    return f"Rates that were tried:\n\n{table(('cell', 'η', 'rounds to target'), rows)}"


def _tried_settings(settings: Mapping[str, Scalar]) -> str:
    """Format the settings of a candidate, the learning rate first."""
    others = [f"{key} {value}" for key, value in settings.items() if key != "learning-rate"]
    return ", ".join([str(settings.get("learning-rate", "")), *others])


def _execution_summary(results: Results) -> str:
    how = "; ".join(_executed_with(results.execution))
    if not results.runs:
        return f"Written {results.written}."
    runs = "1 run" if results.runs == 1 else f"{results.runs} runs"
    return (
        f"{runs}, {duration(results.seconds)} of wall time in all, "
        f"written {results.written}. {how}."
    )


def _executed_with(execution: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield devices, trainers and versions, each with the values of the runs: "cpu or cuda"."""
    for name in dict.fromkeys(name for each in execution for name, value in each.items() if value):
        values = [HASH.sub(r"\1", str(each[name])) for each in execution if each.get(name)]
        some = "" if len(values) == len(execution) else " for some of them"
        yield f"{name} {' or '.join(dict.fromkeys(values))}{some}"


CLEAN = "from a commit as it is"
KINDS = (
    CLEAN,
    "from a commit with changes",
    "from code that their record does not name",
    "without a record",
)


def provenance(results: Results, records: Mapping[str, RunRecord]) -> str:
    """Return how many of the runs on the page are from a clean commit; "" if all are.

    Only runs of the chosen candidates count.
    """
    runs = {run.run for cell in results.cells.values() for run in cell.runs}
    counts = Counter(_kind(records.get(run)) for run in runs)
    if counts[CLEAN] == len(runs):
        return ""
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind] or kind == CLEAN)
    return f"Of the {len(runs)} runs whose numbers are shown: {kinds}."


def _kind(record: RunRecord | None) -> str:
    if record is None:
        return KINDS[3]
    if not record.commit:
        return KINDS[2]
    return KINDS[1] if "-dirty" in record.commit else CLEAN
