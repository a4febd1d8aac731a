"""What a TOML of a table or figure may say; every item of ``fedapp/studies/papers/items`` is one."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedapp.config.run_config import Scalar, kebab

ScaleName = Literal["smoke", "cpu", "narrow", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "cpu", "narrow", "full")
"""From the smallest to the paper's; an item need not have all of them."""
Published = float | Literal["not reached", "not given"]
Metric = Literal["accuracy", "best accuracy", "loss", "train_loss", "training_set_loss"]


class Part(BaseModel):
    """Base of all parts: keys are written with hyphens, unknown ones are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=kebab, validate_by_name=True
    )


class Tuning(Part):
    """How the learning rate is found: see :class:`fedapp.studies.sweep.learning_rate_search.Rates`."""

    start: float = Field(gt=0)
    step: float = Field(1 / 3, gt=0)
    width: int = Field(1, ge=0)
    most: int = Field(6, ge=0)
    patience: float = Field(1.5, ge=1)
    middle: int = 0
    seeds: tuple[int, ...] = (0,)


class Cut(Part):
    """How many of the first training and test examples are used."""

    train: int = Field(gt=0)
    test: int = Field(gt=0)


class Scale(Part):
    """What a scale changes; what it leaves out is as in the paper.

    ``only`` names the rows, columns, lines, algorithms or cells ("row | column") that run; the others
    are "not run". ``note`` says in words what differs from the paper, for the page. With fewer
    examples a client, ``batch-divisor`` makes batches smaller by the same factor, so that u stays.
    ``swap`` puts values in the place of others, for instance of a partition that the data does not
    have; ``rate-factor`` multiplies learning rates that are not tuned. ``noise`` replaces that of
    claims; ``pace`` is how many of the paper's rounds one is worth, by which their windows are divided.
    ``as-in`` names an item whose scale of the same name says all that this one does not.
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
    tuning: dict[str, Any] = {}
    cut: Cut | None = None
    batch_divisor: int = Field(1, ge=1)
    rate_factor: float = Field(1.0, gt=0)
    noise: float | None = Field(None, gt=0)
    pace: float = Field(1.0, gt=0)
    only: tuple[str, ...] | None = None


class Base(Part):
    """What all items have.

    ``about`` says what the paper shows; ``differs`` what differs here and why, at any scale.
    """

    title: str
    source: str
    about: str
    differs: str = ""
    settings: dict[str, Scalar] = {}
    rounds: int = Field(1, ge=1)
    seeds: tuple[int, ...] = (0,)
    tuning: Tuning | None = None
    scales: dict[ScaleName, Scale]

    def at(self, scale: ScaleName) -> Scale:
        """Return what ``scale`` changes; nothing runs at one that the item does not have."""
        return self.scales.get(scale) or Scale(only=())


class Column(Part):
    """A column of a table; ``tuning`` is what its search has of its own, under what a row has.

    ``again`` names the column whose published numbers this one has too: the same cells in a
    ``variant``, which says in words what is set otherwise. The page counts variants by themselves.
    """

    label: str
    settings: dict[str, Scalar] = {}
    target: float | None = None
    tuning: dict[str, Any] = {}
    again: str = ""
    variant: str = ""

    @property
    def published_as(self) -> str:
        """The label under which rows give the published numbers."""
        return self.again or self.label

    @model_validator(mode="after")
    def _says_what_it_varies(self) -> Self:
        if bool(self.again) != bool(self.variant):
            raise ValueError(
                f"column {self.label!r}: again = {self.again!r} and variant = {self.variant!r} go "
                "together: the column that is run again, and what is set otherwise"
            )
        return self


class TableRow(Part):
    """A row of a table with its published numbers by column; without one the paper has no cell.

    "not given" is a cell of which the paper speaks without a number.
    ``shown`` is what the paper's further columns say of the row (E, B, u). ``options`` are values to
    try of further keys, unless the scale sets these, each with the grid of rates. ``tuning`` is what
    the row has of its own there, as the place of the grid that comes first.
    """

    label: str
    settings: dict[str, Scalar] = {}
    options: dict[str, tuple[Scalar, ...]] = {}
    tuning: dict[str, Any] = {}
    shown: dict[str, str] = {}
    rounds: int | None = None
    published: dict[str, Published]
    speedup: dict[str, float] = {}


class Table(Base):
    """Rounds of communication to a target accuracy, in rows and columns.

    A cell may take ``allowed`` times its published rounds, where it has some, and never more than
    ``rounds`` (0: always ``rounds``). Speed-ups are over the row ``baseline``. ``elsewhere`` names the
    rows and columns whose published numbers are the text's or another table's: the index, which counts
    the cells of all tables, leaves them out.
    """

    kind: Literal["table"]
    target: float
    allowed: float = 0.0
    baseline: str
    elsewhere: tuple[str, ...] = ()
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    @model_validator(mode="after")
    def _names_its_rows_and_columns(self) -> Self:
        labels = [column.label for column in self.columns]
        if self.baseline not in (row.label for row in self.rows):
            raise ValueError(f"baseline = {self.baseline!r}: there is no row that is called so")
        if odd := set(self.elsewhere).difference(labels, (row.label for row in self.rows)):
            raise ValueError(f"elsewhere: there is no row and no column {min(odd)!r}")
        for column in self.columns:
            if column.again and column.again not in labels:
                raise ValueError(
                    f"column {column.label!r}: there is no column again = {column.again!r}. One of: "
                    f"{'; '.join(labels)}"
                )
        for row in self.rows:
            if odd := {*row.published, *row.speedup}.difference(labels):
                raise ValueError(
                    f"row {row.label!r}: there is no column {min(odd)!r}. One of: {'; '.join(labels)}"
                )
        return self


class Contender(Part):
    """What an algorithm of a comparison has of its own: settings, and values to try."""

    settings: dict[str, Scalar] = {}
    options: dict[str, tuple[Scalar, ...]] = {}
    tuning: dict[str, Any] = {}


class Comparison(Base):
    """All algorithms by accuracy after equally many rounds, each tuned over the same grid.

    ``leave-out`` names those that are not compared, with the reason.
    """

    kind: Literal["comparison"]
    tuning: Tuning
    window: int = Field(1, ge=1)
    leave_out: dict[str, str] = {}
    algorithms: dict[str, Contender] = {}


class Line(Part):
    """A line of a figure; ``color`` and ``dash`` count through the palette and the dashes.

    ``options`` as in a table's row.
    """

    label: str
    settings: dict[str, Scalar] = {}
    options: dict[str, tuple[Scalar, ...]] = {}
    rounds: int | None = None
    target: float | None = None
    tuning: dict[str, Any] = {}
    color: int | None = None
    dash: int | None = None


class Panel(Part):
    """A panel of a figure: which lines, with which settings over theirs, and what is drawn.

    ``x`` counts rounds of communication or mini-batch gradients; "best accuracy" is the curve made
    monotone; ``least`` marks the minimum. ``envelope`` draws the best of all rates that were tried, "the
    best performing rate selected individually for each x-axis value", made monotone, and the chosen
    rate's line thin beside it; of test accuracies and the loss on the training set, by rounds.
    """

    title: str = ""
    lines: str
    settings: dict[str, Scalar] = {}
    y: Metric = "accuracy"
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

    With ``tuning`` every line has the rate that first reaches ``target``, or that has the best
    accuracy where no target is given, and is drawn to ``rounds``.
    """

    kind: Literal["figure"]
    across: int = Field(ge=1)
    target: float = 0.0
    tune_rounds: int | None = None
    window: int = Field(1, ge=1)
    lines: dict[str, tuple[Line, ...]]
    panels: tuple[Panel, ...]

    @model_validator(mode="after")
    def _names_its_lines(self) -> Self:
        if odd := {panel.lines for panel in self.panels}.difference(self.lines):
            raise ValueError(
                f"lines = {min(odd)!r}: a panel draws them, and there are none that are called so. One "
                f"of: {'; '.join(self.lines)}"
            )
        return self


class Picture(Base):
    """A figure drawn by a function of its own, ``draw``, in ``fedapp/studies/papers/figures``."""

    kind: Literal["picture"]
    draw: Literal["interpolation", "partitions", "landscape-one", "landscape-two", "quadratic"]
    panels: dict[str, dict[str, Scalar]] = {}


class Updates(Base):
    """How clients' losses and updates agree, in the runs ``lines``."""

    kind: Literal["updates"]
    shows: Literal["losses", "similarity"]
    lines: tuple[Line, ...]


class SharpnessLine(Part):
    """A line of cells of other items, named ``item: cell``."""

    label: str
    cells: tuple[str, ...] = Field(min_length=2)


class SharpnessPanel(Part):
    """A panel: the sharpness of the lines' cells over the setting ``key``."""

    title: str
    key: Literal["learning-rate", "batch-size"]
    lines: tuple[SharpnessLine, ...]


class Sharpness(Base):
    """How sharp the minima are that the cells' runs ended in, on ``examples`` of the training set."""

    kind: Literal["sharpness"]
    examples: int = Field(1000, ge=1)
    across: int = Field(2, ge=1)
    panels: tuple[SharpnessPanel, ...]

    @property
    def cells(self) -> list[str]:
        """The cells of all panels, each once."""
        names = (name for panel in self.panels for line in panel.lines for name in line.cells)
        return list(dict.fromkeys(names))
