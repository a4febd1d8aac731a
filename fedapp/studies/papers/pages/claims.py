"""The tables of claims and their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from fedapp.runs.formatting import number, percent, rounds, stated_percent
from fedapp.studies.papers.cells import cells_of
from fedapp.studies.papers.claims import RATIOS, Claim, Claims
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.pages.markdown import table
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.verdicts import (
    JUDGED,
    OPEN,
    Checked,
    Checks,
    Verdict,
    check_all,
    check_scales,
    claim_variants,
    judged_cells,
    largest_judged,
)

NOT_JUDGED: Mapping[Verdict, str] = {
    "one seed": "the claim is open, because its cells have one seed in common, or two equal ones, and "
    "no comparable one (of the same network, data and partition, or else of the same table or figure) "
    "has three that differ, so that its noise is unknown",
    "one search": "the claim is open, because it compares rates, of which each was selected once",
    "one rate": "the claim compares the best rates, and only one rate was tried",
    "cut short": "the claim is about the ends of curves, and these have fewer rounds than at full scale",
    "full scale only": "a single accuracy depends on the data and network, which are the paper's at "
    "full scale only",
    "smoke: no evidence": "other data, another network and a few rounds are no evidence",
}
"""Why a number is shown but not judged."""
DECIDED = (
    "Accuracies are in percent, their differences in points; an interval of accuracies extends at least "
    "{} to either side. [How a claim is judged](../method.md#how-a-claim-is-judged)."
)
UNDECIDABLE = (
    "*undecidable*: the margin that the rule allows is not above the noise of three seeds, so that no "
    "three with this noise could show that it holds."
)
NO_NUMBER = (
    "*no number*: the cells were run, but one of them has no such number: its target was not reached "
    "in its rounds, its training diverged, the number was not recorded, or they have no seed in common."
)
HEAD = (
    *("claim", "section", "published", "measured", "seeds", "95 % interval", "holds if"),
    "verdict",
)


def claims_section(experiment: Claims, results: Results, checks: Checks | None = None) -> str:
    """Return the table of claims, the counts of verdicts, and why some are not judged.

    Claims that were not run at this scale are left out if another of ``checks`` measured them. Claims
    that were run on the cells of a variant have a table of their own.
    """
    checks = checks or check_scales(experiment, [results])
    checked = checks[results.scale]
    shown = [
        own
        for own, largest in zip(checked, largest_judged(checks), strict=True)
        if own.verdict != "not run" or largest.measured is None
    ]
    run_labels = RunLabels.of(experiment, results)
    parts = [table(HEAD, [_row(each, run_labels) for each in shown]), _counts(checked)]
    parts += _fewer(experiment, results, "", run_labels)
    by_variant = {each: check_all(experiment, results, each) for each in claim_variants(experiment)}
    for variant, own in by_variant.items():
        if section := _variant_section(variant, own, checked, run_labels):
            parts += [*section, *_fewer(experiment, results, variant, run_labels)]
    verdicts = {each.verdict for own in (checked, *by_variant.values()) for each in own}
    why = [f"*{verdict}*: {text}" for verdict, text in NOT_JUDGED.items() if verdict in verdicts]
    parts += [f"Shown, not decided: {'; '.join(why)}."] if why else []
    if not verdicts.isdisjoint((*JUDGED, *OPEN)):
        parts.append(DECIDED.format(_resolution(experiment, results)))
    parts += [UNDECIDABLE] if "undecidable" in verdicts else []
    parts += [NO_NUMBER] if "no number" in verdicts else []
    return "\n\n".join([*parts, *_windows(experiment, experiment.at(results.scale).pace)])


def _counts(checked: Sequence[Checked]) -> str:
    """Return how many claims have each verdict."""
    counts = Counter(each.verdict for each in checked)
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    lacking = [f"{counts[verdict]} {verdict}" for verdict in OPEN[1:] if counts[verdict]]
    counts["open"] = sum(counts[verdict] for verdict in OPEN)
    summary = [
        f"{counts[verdict]} {verdict}"
        + (f" ({', '.join(lacking)})" if verdict == "open" and lacking else "")
        for verdict in verdicts
        if counts[verdict] and verdict not in OPEN[1:]
    ]
    against = sum(each.is_open_against for each in checked)
    outside = f" Of the open ones {against} have numbers outside the bounds." if against else ""
    return f"{', '.join(summary)}.{outside}"


def _fewer(experiment: Claims, results: Results, variant: str, run_labels: RunLabels) -> list[str]:
    """List the cells of which seeds are left to run, with the seeds that they have."""
    cells = judged_cells(experiment, results, variant)
    each = ((name, run_labels.seeds(name, cell)) for name, cell in cells.items())
    fewer = ", ".join(f"{name} ({seeds})" for name, seeds in each if " of " in seeds)
    return [f"So far with fewer seeds than planned: {fewer}."] if fewer else []


def _variant_section(
    variant: str, checked: Sequence[Checked], as_read: Sequence[Checked], run_labels: RunLabels
) -> list[str]:
    """Return the claims that were run on the cells of a variant, beside those ``as_read``."""
    pairs = [
        (first, own)
        for first, own in zip(as_read, checked, strict=True)
        if own.verdict != "not run"
    ]
    if not pairs:
        return []
    judged = [pair for pair in pairs if all(each.verdict in JUDGED for each in pair)]
    differing = [(first, own) for first, own in judged if first.verdict != own.verdict]
    head = (*HEAD[:3], "above", *HEAD[3:])
    rows = []
    for pair in pairs:
        *left, verdict = _row(pair[1], run_labels)
        above = _outcome(pair[0], pair in differing)
        rows.append(
            [*left[:3], above, *left[3:], verdict if pair in differing else verdict.strip("*")]
        )
    text = (
        f"The same with {variant}. {len(pairs)} claims were run; {len(judged)} are judged here and "
        f"above, {len(differing)} of them differently (in bold):"
    )
    return [text, table(head, rows), _counts([own for _, own in pairs])]


def scales_section(checks: Checks) -> str:
    """Return the claims that several scales measured, side by side; "" if there are none."""
    rows, differing, judged = [], 0, 0
    for own in zip(*checks.values(), strict=True):
        measured = [each for each in own if each.measured is not None]
        if len(measured) < 2:
            continue
        verdicts = {each.verdict for each in measured}
        differ = len(verdicts) > 1 and verdicts.issubset(JUDGED)
        judged += verdicts.issubset(JUDGED)
        differing += differ
        claim = own[0].claim
        rows.append([claim.text, _published(claim), *(_outcome(each, differ) for each in own)])
    if not rows:
        return ""
    head = ("claim", "published", *checks)
    text = (
        f"{len(rows)} claims were measured at more than one scale; {judged} are judged at each, "
        f"{differing} of them differently (in bold)."
    )
    return f"{text}\n\n{table(head, rows)}"


def _outcome(checked: Checked, differs: bool) -> str:
    """Format number and verdict, which is bold where the scales' verdicts differ."""
    if checked.measured is None:
        return checked.verdict
    verdict = f"**{checked.verdict}**" if differs else checked.verdict
    return f"{_value(checked.claim, checked.measured)}, {verdict}"


def _resolution(experiment: Claims, results: Results) -> str:
    """Format the resolution of accuracies."""
    points = f"{100 * (experiment.at(results.scale).noise or experiment.noise):g}"
    return f"{points} {'point' if points == '1' else 'points'}"


def _windows(experiment: Claims, pace: float) -> list[str]:
    """Return the claims' windows at this scale, if they differ from the paper's."""
    windows = dict.fromkeys(claim.window for claim in experiment.claims if claim.window)
    if pace == 1 or not windows:
        return []
    texts = [
        f"rounds {low} to {high} of the paper are here {low / pace:g} to {high / pace:g}"
        for low, high in windows
    ]
    return [f"One round counts as {pace:g} of the paper's: {'; '.join(texts)}."]


def _claim_text(claim: Claim, run_labels: RunLabels) -> str:
    """Return the text of a claim with the values that ran."""
    text = run_labels.text(claim.text, *cells_of(claim))
    compared = claim.cells[:2] if claim.measure in ("difference", "gain") else ()
    values = [value for name in compared if (value := run_labels.values(name))]
    return f"{text}: {' against '.join(values)}" if len(values) > 1 and text == claim.text else text


def _row(checked: Checked, run_labels: RunLabels) -> list[str]:
    claim = checked.claim
    bounds = [
        f"{sign} {_value(claim, bound)}"
        for sign, bound in (("≥", claim.low), ("≤", claim.high))
        if bound is not None
    ]
    return [
        _claim_text(claim, run_labels),
        claim.where,
        _published(claim),
        checked.verdict if checked.measured is None else _value(claim, checked.measured),
        str(checked.seeds or ""),
        _interval(checked),
        " and ".join(bounds),
        f"**{checked.verdict}**",
    ]


def _published(claim: Claim) -> str:
    if claim.published is None:
        return ""
    accuracy = claim.measure == "value" and claim.is_of_accuracy
    return stated_percent(claim.published) if accuracy else _value(claim, claim.published)


def _interval(checked: Checked) -> str:
    """Format the interval; "" if it is unknown or a point."""
    ends = checked.interval
    if ends is None or np.isclose(ends.low, ends.high, rtol=1e-9, atol=1e-9):
        return ""
    return f"{_value(checked.claim, ends.low)} to {_value(checked.claim, ends.high)}"


def _value(claim: Claim, value: float) -> str:
    """Format a number: accuracies in percent, their differences in points, ratios as factors."""
    if claim.measure in RATIOS:
        return f"{number(value)}×"
    if not claim.is_of_accuracy and claim.of != "fluctuation":
        return rounds(value) if claim.of == "needed" else number(value)
    if claim.measure == "value":
        return percent(value)
    return f"{100 * value:.2f}" if claim.takes_any else f"{100 * value:+.2f}"
