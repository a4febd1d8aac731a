"""The picture of a run: test accuracy and losses over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedapp.federation.callback import RoundMetrics
from fedapp.runs.style import COLORS, GREY, make_plain, new_figure, save

BLUE, ORANGE = COLORS[:2]


def draw_curves(
    records: Sequence[RoundMetrics], target: float, title: str, stem: Path
) -> list[Path]:
    """Draw the curves of ``records`` as ``stem``.png and .svg; return the files."""
    figure = new_figure(9.2, 3.7)
    left, right = figure.subplots(1, 2)
    _draw_accuracy(left, records, target)
    _draw_losses(right, records)
    for axes in (left, right):
        axes.set_xlabel("communication round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
        make_plain(axes)
        axes.margins(x=0.02)
    figure.suptitle(title, fontsize=10, color="#333333")
    return save(figure, stem, dpi=150)


def percent_tick(value: float, _: object = None) -> str:
    """Return a tick of an axis of shares, with no more decimals than it has."""
    return f"{100 * value:.6g}%"


def _series(records: Sequence[RoundMetrics], key: str) -> tuple[list[int], list[float]]:
    points = [(r["round"], r[key]) for r in records if r.get(key) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _draw_accuracy(axes: Axes, records: Sequence[RoundMetrics], target: float) -> None:
    rounds, accuracy = _series(records, "test_accuracy")
    axes.plot(rounds, accuracy, color=BLUE, linewidth=1.6)
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(percent_tick)
    if target:
        axes.axhline(target, color=GREY, linewidth=1, zorder=0)
        axes.annotate(
            f"target {target:.1%}",
            (0.01, target),
            xycoords=("axes fraction", "data"),
            color=GREY,
            fontsize=8,
            va="bottom",
        )
    if accuracy:
        best = max(range(len(accuracy)), key=accuracy.__getitem__)
        axes.plot(rounds[best], accuracy[best], "o", color=BLUE, markersize=4)
        axes.annotate(
            f"best {accuracy[best]:.2%}, round {rounds[best]}",
            (0.98, 0.06),
            xycoords="axes fraction",
            ha="right",
            fontsize=9,
            color=BLUE,
        )


def _draw_losses(axes: Axes, records: Sequence[RoundMetrics]) -> None:
    for key, label, color in (
        ("test_loss", "test", BLUE),
        ("train_loss", "training (clients' objective)", ORANGE),
        ("training_set_loss", "training set", GREY),
    ):
        rounds, losses = _series(records, key)
        if losses:
            axes.plot(rounds, losses, color=color, linewidth=1.6, label=label)
    rounds, losses = _series(records, "test_loss")
    if losses:
        least = min(range(len(losses)), key=losses.__getitem__)
        axes.plot(rounds[least], losses[least], "o", color=BLUE, markersize=6, fillstyle="none")
        axes.annotate(
            f"least test loss {losses[least]:.3f}, round {rounds[least]}",
            (0.98, 0.7),
            xycoords="axes fraction",
            ha="right",
            fontsize=9,
            color=BLUE,
        )
    axes.set_ylabel("loss")
    axes.legend(frameon=False, loc="upper right")
