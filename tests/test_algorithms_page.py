"""docs/algorithms.md, which is written by hand, names what there is and nothing else."""

from __future__ import annotations

import re

from fedapp.cli.generate import ROOT
from fedapp.config.read import option_fields
from tests.identities import IDENTITIES
from tests.test_algorithms import ALGORITHMS

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
COLUMNS = "| algorithm | source | beside the update | FedAvg at |"


def rows() -> dict[str, list[str]]:
    """Return the cells of each algorithm's row in the tables of the families, by its name."""
    tables = [part.split("\n\n")[0] for part in PAGE.split(COLUMNS)[1:]]
    lines = [line for table in tables for line in table.splitlines() if line.startswith("| `")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert all(len(row) == COLUMNS.count("|") - 1 for row in cells)
    return {row[0].strip("`"): row for row in cells}


def test_every_algorithm_has_a_row_a_section_and_a_family() -> None:
    assert set(rows()) == set(ALGORITHMS)
    assert sorted(re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)) == sorted(ALGORITHMS)
    families = PAGE.split("| family | algorithms |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"\[`(.*?)`\]", families)) == sorted(ALGORITHMS)


def test_every_hyper_parameter_that_the_page_names_exists() -> None:
    names = "|".join(map(re.escape, ALGORITHMS))
    named = re.findall(rf"(?<![\w-])((?:{names})\.[a-z][a-z0-9-]*)", PAGE)
    assert set(named) <= set(option_fields())


def test_the_page_says_where_an_algorithm_is_federated_averaging() -> None:
    for name, row in rows().items():
        identity = IDENTITIES[name]
        settings = [f"`{key}={value}`" for key, value in (identity.fedavg_at or {}).items()]
        given = f"`{identity.given}`" if "=" in identity.given else identity.given
        assert row[3] == ("<br>".join([*settings, *([given] if given else [])]) or "—")


def test_the_page_names_the_exact_algorithms() -> None:
    exact = {n for n, identity in IDENTITIES.items() if identity.exact and not ALGORITHMS[n].needs}
    sentence = PAGE.split("these converge to the optimum:")[1].split(". ")[0]
    assert set(re.findall(r"`(.*?)`", sentence)) == exact
