"""The index of all items: what was run, at which scale, and where its page is."""

from __future__ import annotations

from pathlib import Path

from fedapp.files import write_atomically
from fedapp.studies.papers.catalogue import all_items
from fedapp.studies.papers.pages.markdown import NOT_RUN, duration, table
from fedapp.studies.papers.pages.page import html, results_of
from fedapp.studies.papers.pages.short import in_short
from fedapp.studies.papers.pages.totals import totals
from fedapp.studies.papers.schema import Table

HOW = "[Reproduce and sweep](../reproduce.md)"
INTRODUCTION = f"""# The papers, reproduced

Every table and figure of McMahan et al. 2017 and of Seo et al. 2024, and the algorithms compared: each
from one command, with what is published beside what was measured. `full` is as in the paper; `narrow`, of
Seo et al., has a smaller network and all else as in `full`; `cpu` is what a processor does in hours;
`smoke` only shows that the item can be made. What was not run says so.
What was found is of the largest scale that was run: how many cells need the published rounds, within
25 % both ways (0.8 to 1.25 times as many), claims that hold, the best algorithms, or how many lines of a
figure are drawn.

How to run them, and sweeps of your own: {HOW}.
"""


def all_tables(folder: Path) -> str:
    """Return how the published rounds of all tables came out, as Markdown."""
    return totals(
        {
            name: (item, list(results_of(folder, name)))
            for name, item in all_items().items()
            if isinstance(item, Table)
        }
    )


def write_index(folder: Path) -> Path:
    """Write the index, linking to every item that has a page, and return it as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = index_files(folder)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return next(iter(texts))


def index_files(folder: Path) -> dict[Path, str]:
    """Return ``folder/index.md`` and ``.html``, and what is in them."""
    rows, pages = [], []
    for name, item in all_items().items():
        there = list(results_of(folder, name))
        link = f"[{item.title}]({name}/index.md)" if there else item.title
        pages += [f"{name}/index"] if there else []
        said = [
            f"{r.scale}: {r.runs} runs, {duration(r.seconds)}" if r.runs else r.scale for r in there
        ]
        ran, source = "; ".join(said) or NOT_RUN, item.source.rstrip(".")
        rows.append([link, in_short(item, there), ran, f"`{name}`", source])
    found = table(("item", "found", "run", "name", "source"), rows)
    body = f"{INTRODUCTION}\n{all_tables(folder)}\n\n{found}\n"
    tree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    linked = body.replace("/index.md)", "/index.html)").replace(HOW, "`docs/reproduce.md`")
    return {
        folder / "index.md": f"{body}\n{tree}\n",
        folder / "index.html": html(linked, "The papers, reproduced"),
    }
