"""The lessons of docs/lessons do what they say: each block runs, and prints what stands after it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from fedapp.cli.generate import RESULTS
from tests.lessons import LESSONS, NOTEBOOK, disagreements, main, notebook, outputs
from tests.printed import Shell

PAGES = sorted(LESSONS.glob("*.md"))


@pytest.mark.pages
@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_lesson_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path) if "```bash" in page.read_text() else None
    try:
        found = [(code, disagreements(*pair)) for code, *pair in outputs(page, shell)]
    finally:
        left = shell.stop() if shell else {}
    assert not left
    assert found
    assert [(code, missing) for code, missing in found if missing] == []


def test_the_notebook_is_its_lesson() -> None:
    written = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(written)
    assert written == notebook(NOTEBOOK.with_suffix(".md"))


@pytest.mark.pages
@pytest.mark.process
def test_the_notebook_executes(tmp_path: Path) -> None:
    """In a kernel of its own, as in JupyterLab."""
    read = nbformat.read(NOTEBOOK, as_version=4)
    done = NotebookClient(read, timeout=240).execute(cwd=str(tmp_path))
    for cell, printed in zip(done.cells, notebook(NOTEBOOK.with_suffix(".md")).cells, strict=True):
        if printed.cell_type == "code" and printed.outputs:
            said = "".join(out.text for out in cell.outputs if out.get("name") == "stdout")
            assert disagreements(printed.outputs[0].text, said) == []


def test_the_table_of_algorithms_is_that_of_the_comparisons() -> None:
    """Each accuracy stands in the row of its algorithm on the page of results."""
    text = (LESSONS / "non-iid.md").read_text()
    rows = re.findall(r"^\|.*\| `(\S+)` \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) > 10
    rows += [(name, mnist, "") for name, mnist in re.findall(r"`(\S+)` (\d+\.\d+) %", text)]
    for column, name in enumerate(("mnist-shards", "cifar-dirichlet")):
        page = (RESULTS / f"algorithms-{name}" / "index.md").read_text()
        at_the_end = dict(re.findall(r"^\| (\S+) \| (\S+) % \|", page, re.MULTILINE))
        for algorithm, *accuracies in rows:
            assert accuracies[column] in ("", at_the_end[algorithm])


def test_lines_agree_up_to_their_numbers() -> None:
    printed = "fedavg  accuracy 0.90, 20 rounds\n"
    assert disagreements(printed, "noise\nfedavg accuracy 0.93, 21 rounds") == []
    assert disagreements(printed, "fedavg accuracy 0.80, 20 rounds") == [printed.strip()]
    assert disagreements(printed, "fedprox accuracy 0.90, 20 rounds") == [printed.strip()]
    table = " a    seconds \n 0.3  2 \n"
    assert disagreements(table, " a    seconds \n 0.3  17 ") == []
    # A line of the output stands for one printed line.
    assert disagreements(" 0.3  2 \n 0.3  2 ", " 0.3  2 ") == [" 0.3  2 "]


def test_a_lesson_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert PAGES[0].stem in capsys.readouterr().err
