"""``docs/algorithms.md``, generated from the algorithms themselves."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import cast, get_args

from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import RunConfig, kebab
from fedapp.training.algorithm import Algorithm
from strategies.presets import PRESETS, Preset

HEAD = """# Algorithms

This page is generated from the files in `strategies/`, one for each algorithm.
`algorithm='scaffold'` chooses one; its hyper-parameters are keys with its name before them,
`scaffold.option='I'`.

Every algorithm runs with every trainer ({trainers}) and in every engine (Flower's simulation, in
this process, deployed): they all call the same rules. Every client gets θ, and sends and keeps
what the table says besides its counts of examples and steps. *Against drift*: which of the two
strategies that Seo et al. 2024 see (section 5) it is: it adjusts the *path* of the updates, or
modifies the clients' loss *landscape* by a term of its own, so that their optima overlap more. The
paper sorts SCAFFOLD, FedOpt, FedSAM, FedSOL, FedProx, MOON, FedNTD and FedDyn (both) so; the others
are sorted here by what they change. *FedAvg at*: the setting at which it
is federated averaging, which a test holds it to; "equal sizes" and the like are a property of the
data or the model. *Exact*: on the [quadratic](#the-quadratic-and-its-rates) whose clients differ
in b alone it converges to the optimum, which a test holds it to; the others end near it. *Lines*
are lines of code, without comments and docstrings.
"""
TAIL = """## The quadratic and its rates

`dataset='quadratic' model='quadratic' partitioner='natural'` is f(x) = x'Ax / 2 - b'x with A =
[[4, 1], [1, 3]] and b = (1, 2), split over clients whose A_k and b_k differ but have the mean A,
b exactly. f is m-strongly convex and M-smooth with m, M = (7 ∓ √5) / 2 ([definitions, and
why](concepts.md#strong-convexity-and-smoothness)); the optimum is (1/11, 7/11) with the value
-15/22. The test loss is f.

![Measured gaps of three methods beside their bounds](images/quadratic-rates.png)

Each with the step and momentum that are best for m and M, as federated rounds over ten clients
that differ (`python -m fedapp.studies.papers.quadratic_rates docs/images/quadratic-rates.png` draws it).
Gradient descent falls by ((κ - 1) / (κ + 1))² = 0.102 a round, as its bound does, κ = M / m =
1.94; heavy ball by 0.027 in the long run, the square of (√κ - 1) / (√κ + 1); Nesterov's bound, (1
- 1 / √κ) = 0.282 a round, holds for every such function and is not tight here. The same iterates
come from one client that takes all steps in one round with client momentum.
"""


COLUMNS = (
    "algorithm",
    "paper",
    "against drift",
    "hyper-parameters",
    "sends",
    "keeps",
    "FedAvg at",
    "exact",
    "trainers, engines",
    "lines",
)


ALONE = """## By its name alone

`fedapp run algorithm=NAME` with no other key: test accuracy on the digits after the default 50 rounds,
over three seeds, and what the algorithm's own values of `weighting`, `server-learning-rate` and the
like are where they are not FedAvg's. `python -m benchmarks.defaults` makes the table.
"""
BEGIN, END = "<!-- written by benchmarks.defaults -->", "<!-- end -->"


def with_accuracy(page: str, table: str) -> str:
    """Replace the table of accuracies in the page."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}"


def algorithms() -> dict[str, type[Algorithm]]:
    """Return all algorithms by name."""
    family = next(family for family in FAMILIES if family.key == "algorithm")
    return cast("dict[str, type[Algorithm]]", dict(family.components()))


def algorithms_page(before: str = "") -> str:
    """Return the page of all algorithms as Markdown, with the table of accuracies of ``before``."""
    by_name = algorithms()
    table = before.split(BEGIN)[1].split(END)[0].strip("\n") if BEGIN in before else ""
    trainers = [t for t in get_args(RunConfig.model_fields["trainer"].annotation) if t != "auto"]
    lines = [
        HEAD.format(trainers=", ".join(f"`{trainer}`" for trainer in trainers)),
        f"| {' | '.join(COLUMNS)} |",
        "| --- " * len(COLUMNS) + "|",
        *(_row(name, algorithm) for name, algorithm in by_name.items()),
        "",
        with_accuracy(f"{ALONE}\n{BEGIN}{END}", table),
        "",
        "## What each does, and where implementations differ",
        "",
    ]
    for name, algorithm in by_name.items():
        lines += [f"### `{name}`", "", "```text", _description(algorithm), "```", ""]
    lines += [
        "## The line of descent, as settings",
        "",
        "What came before FedAvg is FedAvg with some settings fixed; the learning rate and the "
        "number of rounds are left open.",
        "",
        "| method | where | `fedapp run ...` | |",
        "| --- | --- | --- | --- |",
        *map(_preset_row, PRESETS),
        "",
        TAIL,
    ]
    return "\n".join(lines)


def _description(algorithm: type[Algorithm]) -> str:
    """Return the docstring of an algorithm and of its abstract bases, as FedOpt's for FedAdam."""
    shared = [base for base in algorithm.__mro__[1:] if inspect.isabstract(base)]
    return "\n\n".join(inspect.getdoc(each) or "" for each in (algorithm, *shared))


def _row(name: str, algorithm: type[Algorithm]) -> str:
    parameters = "<br>".join(
        f"`{kebab(field)} = {json.dumps(info.get_default())}`"
        for field, info in algorithm.model_fields.items()
    )
    cells = (
        f"[`{name}`](#{name})",
        algorithm.source,
        algorithm.against_drift or "—",
        parameters or "—",
        algorithm.sends,
        algorithm.keeps or "—",
        _fedavg_equivalent(algorithm),
        "—" if algorithm.needs else "yes" if algorithm.exact else "near",
        "all, all",
        str(code_lines(Path(inspect.getfile(algorithm)))),
    )
    return f"| {' | '.join(cells)} |"


def _fedavg_equivalent(algorithm: type[Algorithm]) -> str:
    if algorithm.fedavg_equivalent is None:
        return "—"
    settings = [f"`{kebab(k)} = {json.dumps(v)}`" for k, v in algorithm.fedavg_equivalent.items()]
    return "<br>".join(
        [*settings, *([algorithm.fedavg_equivalent_by] if algorithm.fedavg_equivalent_by else [])]
    )


def _preset_row(preset: Preset) -> str:
    settings = " ".join(f"{key}={_shown(value)}" for key, value in preset.settings.items())
    return f"| {preset.name} | {preset.source} | `{settings}` | {preset.description} |"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def code_lines(path: Path) -> int:
    """Count the lines of a Python file without blank lines, comments and docstrings."""
    text = path.read_text()
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        1
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.strip().startswith("#") and number not in strings
    )
