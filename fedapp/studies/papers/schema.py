"""The schema of experiments, the TOML files in ``fedapp/studies/papers/items``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedapp.config.settings import Scalar, kebab
from fedapp.studies.sweep.search import RateGrid

ScaleName = Literal["smoke", "cpu", "normalised", "narrow", "full"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)
"""From the smallest to the paper's; an experiment may have some of them."""
Published = float | Literal["not reached", "not given"]
CurveKey = Literal["accuracy", "best accuracy", "loss", "train_loss", "training_set_loss"]


class Part(BaseModel):
    """Base of all parts: keys have hyphens, unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=kebab, validate_by_name=True
    )


class Cut(Part):
    """The numbers of the first training and test examples that are used."""

    train: int = Field(gt=0)
    test: int = Field(gt=0)


class Scale(Part):
    """What a scale changes; the rest is as in the paper.

    ``only`` names the rows, columns, lines, algorithms or cells ("row | column") that run; the others
    are "not run". ``note`` describes the differences from the paper on the page. ``batch-divisor``
    divides batch sizes, so that u stays the same with fewer examples a client. ``swap`` replaces values,
    for instance a partition that the data does not have; ``rate-factor`` multiplies learning rates that
    are not searched. ``noise`` replaces the noise of claims; ``pace`` is the number of the paper's rounds
    that one round stands for, and divides the claims' windows. ``as-in`` names an experiment whose scale
    of the same name has the values that this one leaves out.
    """

    as_in: str = ""
    note: str = ""
    settings: dict[str, Scalar] = {}
    swap: dict[str, Scalar] = {}
    rounds: int | None = None
    target: float | None = None
    allowed: float | None = None
    window: int | None = None
    seeds: tuple[int, ...] | None = None
    learning_rate_search: dict[str, Any] = Field({}, alias="tuning")
    cut: Cut | None = None
    batch_divisor: int = Field(1, ge=1)
    rate_factor: float = Field(1.0, gt=0)
    noise: float | None = Field(None, gt=0)
    pace: float = Field(1.0, gt=0)
    only: tuple[str, ...] | None = None


class Base(Part):
    """What all experiments have.

    ``about`` describes what the paper shows; ``differs`` what differs here at any scale, and why.
    """

    title: str
    source: str
    about: str
    differs: str = ""
    settings: dict[str, Scalar] = {}
    rounds: int = Field(1, ge=1)
    seeds: tuple[int, ...] = (0,)
    learning_rate_search: RateGrid | None = Field(None, alias="tuning")
    scales: dict[ScaleName, Scale]

    def at(self, scale: ScaleName) -> Scale:
        """Return a scale; nothing runs at one that the experiment does not have."""
        return self.scales.get(scale) or Scale(only=())


class Column(Part):
    """A column of a table; ``tuning`` overrides the experiment's search, and a row's overrides both.

    ``repeats`` names the column that this one, of a ``Variant``, repeats with the settings that
    ``variant`` describes; both have the same published numbers. The page counts variants separately.
    """

    label: str
    settings: dict[str, Scalar] = {}
    target: float | None = None
    learning_rate_search: dict[str, Any] = Field({}, alias="tuning")
    repeats: str = ""
    variant: str = ""

    @property
    def published_as(self) -> str:
        """The label of the published numbers in rows."""
        return self.repeats or self.label


class Variant(Part):
    """Settings with which the columns ``of`` a table, or all of them, are run again.

    The new columns have the label with that of the variant behind it, and else what theirs have;
    ``tuning`` overrides the search of some, by label.
    """

    label: str
    about: str
    settings: dict[str, Scalar]
    of: tuple[str, ...] = ()
    learning_rate_search: dict[str, dict[str, Any]] = Field({}, alias="tuning")

    def columns(self, columns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the new columns, before they are validated."""
        labels = [column["label"] for column in columns]
        if odd := {*self.of, *self.learning_rate_search}.difference(labels):
            raise ValueError(f"variant {self.label!r}: there is no column {min(odd)!r}")
        return [
            {
                **column,
                "label": f"{label}, {self.label}",
                "repeats": label,
                "variant": self.about,
                "settings": {**column.get("settings", {}), **self.settings},
                "tuning": self.learning_rate_search.get(label, column.get("tuning", {})),
            }
            for column in columns
            if (label := column["label"]) in self.of or not self.of
        ]


class TableRow(Part):
    """A row of a table with its published numbers by column; the paper has no other cells.

    "not given" is a cell that the paper mentions without a number. ``shown`` are the paper's further
    columns (E, B, u). ``options`` are values to try of further keys, each with the grid of rates,
    unless the scale sets the key. ``tuning`` overrides the search, for instance the middle of the grid.
    """

    label: str
    settings: dict[str, Scalar] = {}
    options: dict[str, tuple[Scalar, ...]] = {}
    learning_rate_search: dict[str, Any] = Field({}, alias="tuning")
    shown: dict[str, str] = {}
    rounds: int | None = None
    published: dict[str, Published]
    speedup: dict[str, float] = {}


class Table(Base):
    """Rounds of communication to a target accuracy, in rows and columns.

    A cell runs for at most ``allowed`` times its published rounds and at most ``rounds`` (0: ``rounds``).
    Speed-ups are relative to the row ``baseline``. ``elsewhere`` names rows and columns whose published
    numbers are from the text or another table; the index, which counts the cells of all tables, leaves
    them out.
    """

    kind: Literal["table"]
    target: float
    allowed: float = 0.0
    baseline: str
    elsewhere: tuple[str, ...] = ()
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_columns_of_variants(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Append the columns of ``variants``."""
        variants = map(Variant.model_validate, table.get("variants", []))
        own = table.get("columns", [])
        columns = [*own, *(column for variant in variants for column in variant.columns(own))]
        return {**{k: v for k, v in table.items() if k != "variants"}, "columns": columns}

    @model_validator(mode="after")
    def _names_its_rows_and_columns(self) -> Self:
        labels = [column.label for column in self.columns]
        if self.baseline not in (row.label for row in self.rows):
            raise ValueError(f"baseline = {self.baseline!r}: there is no such row")
        if odd := set(self.elsewhere).difference(labels, (row.label for row in self.rows)):
            raise ValueError(f"elsewhere: there is no row and no column {min(odd)!r}")
        for row in self.rows:
            if odd := {*row.published, *row.speedup}.difference(labels):
                raise ValueError(
                    f"row {row.label!r}: there is no column {min(odd)!r}. One of: {'; '.join(labels)}"
                )
        return self


class ComparedAlgorithm(Part):
    """Settings of an algorithm in a comparison, and values to try."""

    settings: dict[str, Scalar] = {}
    options: dict[str, tuple[Scalar, ...]] = {}


BASE = "fedavg"
"""The algorithm that the others of a comparison are compared to."""


class Comparison(Base):
    """All algorithms by accuracy after the same number of rounds, each with the same grid of rates.

    ``leave-out`` names algorithms that are not compared, with the reason.
    """

    kind: Literal["comparison"]
    learning_rate_search: RateGrid = Field(alias="tuning")
    window: int = Field(1, ge=1)
    leave_out: dict[str, str] = {}
    algorithms: dict[str, ComparedAlgorithm] = {}


class Line(Part):
    """A line of a figure; ``color`` and ``dash`` are indices into the palette and the dashes."""

    label: str
    settings: dict[str, Scalar] = {}
    rounds: int | None = None
    target: float | None = None
    learning_rate_search: dict[str, Any] = Field({}, alias="tuning")
    color: int | None = None
    dash: int | None = None


class Panel(Part):
    """A panel of a figure: its lines, settings over theirs, and what is drawn.

    ``x`` counts rounds or mini-batch gradients; "best accuracy" is the curve made monotone; ``least``
    marks the minimum. ``envelope`` draws the best of all rates that were tried, "the best performing rate
    selected individually for each x-axis value", made monotone, and the chosen rate as a thin line; only
    of the best accuracy and the training-set loss, by rounds.
    """

    title: str = ""
    lines: str
    settings: dict[str, Scalar] = {}
    y: CurveKey = "accuracy"
    x: Literal["rounds", "gradients"] = "rounds"
    ylim: tuple[float, float] | None = None
    yscale: Literal["linear", "log"] = "linear"
    target: float | None = None
    least: bool = False
    envelope: bool = False

    @model_validator(mode="after")
    def _has_an_envelope(self) -> Self:
        known = ("best accuracy", "training_set_loss")
        if self.envelope and (self.y not in known or self.x != "rounds"):
            raise ValueError(
                f"envelope = true: is drawn of y = {' or '.join(map(repr, known))} by x = 'rounds', "
                f"not of {self.y!r} by {self.x!r}"
            )
        return self


class Figure(Base):
    """Curves in panels, ``across`` in a row.

    With ``tuning`` every line has the rate that first reaches ``target``, or without a target the one
    with the best accuracy, and is drawn to ``rounds``.
    """

    kind: Literal["figure"]
    across: int = Field(ge=1)
    target: float = 0.0
    tune_rounds: int | None = None
    lines: dict[str, tuple[Line, ...]]
    panels: tuple[Panel, ...]

    @model_validator(mode="after")
    def _names_its_lines(self) -> Self:
        if odd := {panel.lines for panel in self.panels}.difference(self.lines):
            raise ValueError(
                f"lines = {min(odd)!r}: a panel draws them, and there are no such lines. One of: "
                f"{'; '.join(self.lines)}"
            )
        return self


class Picture(Base):
    """A figure that is not made of learning curves; ``draw`` names its function in ``figures.draw``."""

    kind: Literal["picture"]
    draw: Literal["interpolation", "partitions", "landscape-one", "landscape-two", "quadratic"]
    panels: dict[str, dict[str, Scalar]] = {}


class Updates(Base):
    """The spread of clients' losses, or the similarity of their updates, in the runs ``lines``."""

    kind: Literal["updates"]
    shows: Literal["losses", "similarity"]
    lines: tuple[Line, ...]


class SharpnessLine(Part):
    """A line of cells of other experiments, named ``experiment: cell``."""

    label: str
    cells: tuple[str, ...] = Field(min_length=2)


class SharpnessPanel(Part):
    """A panel: the sharpness of the lines' cells over the setting ``key``."""

    title: str
    key: Literal["learning-rate", "batch-size"]
    lines: tuple[SharpnessLine, ...]


class Sharpness(Base):
    """The sharpness of the final models of the cells, on ``examples`` training examples."""

    kind: Literal["sharpness"]
    examples: int = Field(1000, ge=1)
    across: int = Field(2, ge=1)
    panels: tuple[SharpnessPanel, ...]

    @property
    def cells(self) -> list[str]:
        """The cells of all panels, each once."""
        names = (name for panel in self.panels for line in panel.lines for name in line.cells)
        return list(dict.fromkeys(names))
