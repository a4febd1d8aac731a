"""The index of all experiments, with a summary of each and the totals of all tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedapp.files import write_atomically
from fedapp.runs.formatting import duration, percent
from fedapp.studies.papers.catalogue import Experiment, all_experiments
from fedapp.studies.papers.cells import is_among
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.noise import SEEDS
from fedapp.studies.papers.pages.figure_tables import gains_over_base
from fedapp.studies.papers.pages.markdown import NOT_RUN, table
from fedapp.studies.papers.pages.tables import (
    STANDINGS,
    WITHIN,
    Entry,
    describe_speedups,
    describe_standings,
    entries,
    gains,
    is_near,
    of_variant,
    standings,
    variants_of,
)
from fedapp.studies.papers.results import Results, nothing_run
from fedapp.studies.papers.schema import BASE, Comparison, Table
from fedapp.studies.papers.stored import results_of
from fedapp.studies.papers.verdicts import (
    OPEN,
    Checks,
    check_scales,
    claim_variants,
    largest_judged,
)
from fedapp.studies.sweep.record import RunRecord

INTRODUCTION = """# The papers, reproduced

Every table and figure of McMahan et al. 2017 and of Seo et al. 2024, and the algorithms compared: each
from [one command](../reproduce.md), with what is published beside what was measured. `full` is as in
the paper, as far as it says; `narrow`, of Seo et al., has a smaller network, and `normalised` images of
mean 0 and deviation 1 besides, which comes after `narrow` as it has run less far; `cpu` is what a
processor does in hours; `smoke` only shows that the experiment runs. The results are those of the
largest scale that was run, of a claim the largest that judged it or else measured it: cells within 25 %
of the published rounds both ways (0.8 to 1.25 times as many), claims that hold, the algorithms that
end above FedAvg, or lines of a figure. Cells run for at most 1.5 times the published rounds: one that
is not reached there is slower by more.
"""


PICTURE = "rounds"
"""The name of the picture of all tables, without its ending."""
CAPTION = """![Measured against published rounds of all tables]({name}.png)

Each mark is a published number of rounds and what was measured: filled with the variant's images and
weights, hollow as read here; a triangle did not reach its target within 1.5 times the published rounds,
where runs end. The strip has the cells that were not run.
"""


def write_index(folder: Path, records: Mapping[str, RunRecord]) -> Path:
    """Write the index, ``folder/index.md``, and return it."""
    path = folder / "index.md"
    write_atomically(path, index(folder, records).encode())
    return path


def index(folder: Path, records: Mapping[str, RunRecord]) -> str:
    """Return the index of the results in ``folder`` as Markdown."""
    rows, pages = [], []
    for name, experiment in all_experiments().items():
        by_scale = list(results_of(folder, name, records))
        has_page = by_scale or (folder / name / "index.md").exists()
        link = f"[{experiment.title}]({name}/index.md)" if has_page else experiment.title
        pages += [f"{name}/index"] if has_page else []
        runs = [
            f"{r.scale}: {r.runs} runs, {duration(r.seconds)}" if r.runs else r.scale
            for r in by_scale
        ]
        rows.append([link, summary(experiment, by_scale), "; ".join(runs) or NOT_RUN, f"`{name}`"])
    overview = table(("experiment", "results", "run", "name"), rows)
    tables = tables_of(folder, records)
    caption = CAPTION.format(name=PICTURE) if has_picture(tables) else ""
    body = f"{INTRODUCTION}\n{totals(tables)}\n\n{caption}\n{overview}\n"
    tree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    return f"{body}\n{tree}\n"


ONLY_SMOKE = "smoke alone"


def evidence(by_scale: Sequence[Results]) -> Results | None:
    """Return the results of the largest scale, the first in ``by_scale``; smoke is no evidence."""
    return next((results for results in by_scale if results.scale != "smoke"), None)


def summary(experiment: Experiment, by_scale: Sequence[Results]) -> str:
    """Summarize the results of the largest scale; of claims and lines, what the smaller ones add."""
    results = evidence(by_scale)
    if results is None:
        return ONLY_SMOKE if by_scale else NOT_RUN
    by_scale = [each for each in by_scale if each.scale != "smoke"]
    if isinstance(experiment, Table) and (text := _table(experiment, results)):
        return text
    if isinstance(experiment, Claims):
        return _claims(experiment, by_scale)
    if isinstance(experiment, Comparison):
        return _comparison(results)
    each = "cells, none of them published" if isinstance(experiment, Table) else "lines"
    return _lines(by_scale, each) if results.cells else "drawn"


def _lines(by_scale: Sequence[Results], each: str) -> str:
    """Summarize how many lines ran at the largest scale and at smaller ones that have more."""
    texts, most = {}, -1
    for own in by_scale:
        ran = sum(bool(cell.runs) for cell in own.cells.values())
        if ran > most:
            texts[own.scale], most = f"{ran} of {len(own.cells)} {each}", ran
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{scale}: {text}" for scale, text in texts.items())


def _table(experiment: Table, results: Results) -> str:
    """Summarize the table, then each variant of its columns that was run."""
    cells = entries(experiment, results)
    return "; ".join(
        text
        for variant in variants_of(experiment)
        if (text := _variant(of_variant(cells, variant), variant))
    )


def _variant(cells: Sequence[Entry], variant: str) -> str:
    if variant and not any(entry.result.runs for entry in cells):
        return ""
    text = "; ".join(
        filter(None, (describe_standings(standings(cells)), describe_speedups(gains(cells))))
    )
    return f"with {variant}: {text}" if variant else text


def _claims(experiment: Claims, by_scale: Sequence[Results]) -> str:
    checks = check_scales(experiment, by_scale)
    failing = {
        results.scale: sum(each.verdict == "fails" for each in checks[results.scale])
        for results in by_scale[1:]
    }
    texts = [_verdicts(checks)]
    texts += [f"{fails} fail at {scale} scale" for scale, fails in failing.items() if fails]
    for variant in claim_variants(experiment):
        own = check_scales(experiment, by_scale, variant)
        if any(each.verdict != "not run" for each in largest_judged(own)):
            texts.append(f"with {variant}: {_verdicts(own)}")
    return "; ".join(texts)


def _verdicts(checks: Checks) -> str:
    """Count the verdicts at the largest scale that judged each claim."""
    judged = largest_judged(checks)
    counts = Counter(each.verdict for each in judged)
    hold, fail, open_ = counts["holds"], counts["fails"], sum(counts[each] for each in OPEN)
    undecidable = counts["undecidable"]
    not_run = counts["not run"]
    others = counts.total() - hold - fail - open_ - undecidable - not_run
    fewer = Counter(each.verdict for each in judged if each.seeds < SEEDS)
    few = "with fewer than three seeds"
    holding = _in_brackets({few: fewer["holds"], "fail at another scale": _differing(checks)})
    as_published = sum(each.fails_as_published for each in judged)
    failed = _in_brackets({few: fewer["fails"], "by the published number, too": as_published})
    outside = _in_brackets(
        {"with numbers outside the bounds": sum(c.is_open_against for c in judged)}
    )
    text = f"{hold} hold{holding}, {fail} fail{failed}, {open_} open{outside}, {undecidable} undecidable"
    return text + f", {others} not judged" + (f", {not_run} not run" if not_run else "")


def _in_brackets(counts: Mapping[str, int]) -> str:
    """Format the counts that are not 0, in brackets; "" if there are none."""
    texts = [f"{count} {what}" for what, count in counts.items() if count]
    return f" ({', '.join(texts)})" if texts else ""


def _differing(checks: Checks) -> int:
    """Return how many of the claims that hold fail at another scale."""
    holding = (each.verdict == "holds" for each in largest_judged(checks))
    columns = zip(holding, *checks.values(), strict=True)
    return sum(holds and any(each.verdict == "fails" for each in own) for holds, *own in columns)


def _comparison(results: Results) -> str:
    """Name the algorithms whose interval is above federated averaging's."""
    final = {name: cell.mean("final") for name, cell in results.cells.items() if cell.runs}
    over_base = gains_over_base(results.cells)
    above = sorted(
        (name for name in over_base if over_base[name].low > 0), key=lambda name: -final[name]
    )
    named = ", ".join(f"{name} {percent(final[name])}" for name in above) or "none"
    base = f" ({percent(final[BASE])})" if BASE in final else ""
    return f"{named} above {BASE}{base}, seed by seed"


AS_READ = "the paper's settings, as read here"
NETWORKS = {"2nn": "2NN", "mnist-cnn": "CNN", "char-lstm": "LSTM", "cifar-tf": "CIFAR network"}
BY_SEED = """The rate of a cell was chosen on seed 0. Cells of one seed share the partition and initial
weights, so that they tend to be fast or slow alike. Cells within 25 % with one seed at a time, and of
those with three seeds by the mean, as above, and by the [interval](method.md#how-a-claim-is-judged):"""


Tables = Mapping[str, tuple[Table, Sequence[Results]]]
"""Tables by name, each with its results at all scales."""


def tables_of(folder: Path, records: Mapping[str, RunRecord]) -> Tables:
    """Return all tables with their results in ``folder``."""
    return {
        name: (experiment, list(results_of(folder, name, records)))
        for name, experiment in all_experiments().items()
        if isinstance(experiment, Table)
    }


def counted_cells(tables: Tables) -> dict[str, list[Entry]]:
    """Return the cells with a published number of each table, each number once, and its variants."""
    return {
        name: [
            entry
            for entry in entries(experiment, evidence(results) or nothing_run(name))
            if entry.is_numbered and not is_among(entry.published_name, experiment.elsewhere)
        ]
        for name, (experiment, results) in tables.items()
    }


def has_picture(tables: Tables) -> bool:
    """Return whether a published cell of the tables was run."""
    return any(entry.result.runs for own in counted_cells(tables).values() for entry in own)


def totals(tables: Tables) -> str:
    """Return how the published rounds of all tables were reproduced, each cell counted once."""
    readings: dict[str, dict[str, list[Entry]]] = {}
    by_partition: dict[tuple[str, str, str], list[Entry]] = {}
    for name, own in counted_cells(tables).items():
        for entry in own:
            settings = {**tables[name][0].settings, **entry.row.settings, **entry.column.settings}
            network = NETWORKS[str(settings["model"])]
            how = f"with {entry.column.variant}" if entry.column.variant else AS_READ
            readings.setdefault(how, {}).setdefault(network, []).append(entry)
            partition = "IID" if settings.get("partitioner", "iid") == "iid" else "non-IID"
            by_partition.setdefault((how, network, partition), []).append(entry)
    rows = list[list[str]]()
    for how, by_network in sorted(readings.items(), key=lambda pair: pair[0] != AS_READ):
        each = [entry for own in by_network.values() for entry in own]
        rows.append([how, "all", *_row(each)])
        rows += [["", network, *_row(own)] for network, own in by_network.items()]
    published = sum(map(len, readings[AS_READ].values()))
    text = f"The tables publish {published} numbers of rounds, which were measured as follows:"
    head = ("how", "network", "run", *STANDINGS, "with three seeds", "speed-ups")
    parts = (text, table(head, rows), _common(readings.values()), _by_seed(by_partition))
    return "\n\n".join(filter(None, parts))


def _by_seed(cells: Mapping[tuple[str, str, str], Sequence[Entry]]) -> str:
    """Return the table of cells within 25 % by seed, of groups with three seeds; "" if there is none."""
    rows = list[list[str]]()
    for (how, network, partition), own in sorted(
        cells.items(), key=lambda pair: pair[0][0] != AS_READ
    ):
        three = _with_three_seeds(own)
        if not three:
            continue
        ratios = [[entry.ratios[s] for entry in own if s in entry.ratios] for s in range(SEEDS)]
        within = [f"{sum(map(is_near, each))} of {len(each)}" for each in ratios]
        sure = Counter(entry.is_surely_within for entry in three)
        by_mean = f"{standings(three)[WITHIN]} of {len(three)}"
        label = "" if any(row[0] == how for row in rows) else how
        counts = [by_mean, *(str(sure[each]) for each in (True, None, False))]
        rows.append([label, f"{network}, {partition}", *within, *counts])
    seeds = [f"seed {seed}" for seed in range(SEEDS)]
    intervals = [f"interval {where}" for where in ("within", "across or unknown", "outside")]
    head = ("how", "cells", *seeds, "three seeds: mean", *intervals)
    return f"{BY_SEED}\n\n{table(head, rows)}" if rows else ""


def _with_three_seeds(cells: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in cells if len(entry.result.runs) >= SEEDS]


def _common(readings: Iterable[Mapping[str, Sequence[Entry]]]) -> str:
    """Return of each reading how many runs are cells of two tables; "" if none is."""
    counts = [_shared([entry for own in each.values() for entry in own]) for each in readings]
    texts = [f"{ran} are {own} different ones" for ran, own in counts if ran > own]
    return f"Some cells of two tables are the same runs: {', '.join(texts)}." if texts else ""


def _shared(cells: Sequence[Entry]) -> tuple[int, int]:
    """Return how many cells were run, and how many of them have different runs."""
    runs = [frozenset(run.run for run in entry.result.runs) for entry in cells if entry.result.runs]
    return len(runs), len(set(runs))


def _row(cells: Sequence[Entry]) -> list[str]:
    counts = standings(cells)
    ran = sum(counts.values()) - counts["not run"]
    three = _with_three_seeds(cells)
    within = f" ({standings(three)[WITHIN]} within 25 %)" if three else ""
    numbers = [ran, *(counts[each] for each in STANDINGS)]
    return [*map(str, numbers), f"{len(three)}{within}", describe_speedups(gains(cells))]
