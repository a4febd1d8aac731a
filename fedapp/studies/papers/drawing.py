"""Which picture an item has, drawn from its results or from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from fedapp.config.run_config import Scalar
from fedapp.runs.figures import losses_figure, similarity_figure
from fedapp.studies.papers.cells import Maker
from fedapp.studies.papers.figures.curves import draw_figure
from fedapp.studies.papers.figures.interpolation import draw_interpolation, measure
from fedapp.studies.papers.figures.landscapes import draw_descents, draw_two_clients
from fedapp.studies.papers.figures.minima import draw_sharpness
from fedapp.studies.papers.figures.partitions import draw_partitions
from fedapp.studies.papers.figures.ranking import draw_ranking
from fedapp.studies.papers.figures.style import note_scale, save
from fedapp.studies.papers.quadratic_rates import rates_figure
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.schema import Comparison, Figure, Item, Picture, Sharpness, Updates


def numbers_of(item: Item, maker: Maker) -> dict[str, Any]:
    """Return what an item's picture needs beside its cells; trains what that takes."""
    if isinstance(item, Picture) and item.draw == "interpolation":
        return measure(maker.settings())
    return {}


def draw(item: Item, results: Results, maker: Maker, stem: Path) -> list[Path]:
    """Draw the item's picture as ``stem``.png and .svg; tables and claims have none."""
    match item:
        case Figure():
            return _save_noted(draw_figure(item, results), results, stem)
        case Comparison():
            return _save_noted(draw_ranking(results), results, stem)
        case Updates():
            return _draw_updates(item, results, stem)
        case Sharpness():
            return _save_noted(draw_sharpness(item, results), results, stem)
        case Picture():
            return _draw_picture(item, results.numbers, maker, stem)
        case _:
            return []


def _draw_updates(item: Updates, results: Results, stem: Path) -> list[Path]:
    runs = {name: cell.runs[0].agreement for name, cell in results.cells.items() if cell.runs}
    if not runs:
        return []
    figure = losses_figure(runs) if item.shows == "losses" else similarity_figure(runs)
    return _save_noted(figure, results, stem)


def _save_noted(figure: Drawing, results: Results, stem: Path) -> list[Path]:
    note_scale(figure, results.scale)
    return save(figure, stem)


def _draw_picture(
    item: Picture, numbers: Mapping[str, Any], maker: Maker, stem: Path
) -> list[Path]:
    match item.draw:
        case "interpolation":
            return save(draw_interpolation(numbers), stem)
        case "landscape-one":
            return save(draw_descents(), stem)
        case "landscape-two":
            return save(draw_two_clients(), stem)
        case "quadratic":
            return save(rates_figure(), stem)
        case "partitions":
            return draw_partitions(_panels(item, maker), stem)


def _panels(item: Picture, maker: Maker) -> dict[str, dict[str, Scalar]]:
    return {title: maker.settings(settings) for title, settings in item.panels.items()}
