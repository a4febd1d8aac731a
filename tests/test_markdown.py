"""All Markdown: lines that fit a screen, and links that lead somewhere, without a network."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from flwr.cli.utils import SUPERLINK_UNAVAILABLE_MESSAGE

from tests.printed import ROOT

PAGES = sorted(
    path
    for folder, pattern in (
        (ROOT, "*.md"),
        (ROOT / "docs", "**/*.md"),
        (ROOT / ".github", "**/*.md"),
    )
    for path in folder.glob(pattern)
    if "_build" not in path.parts
)
WIDTH = 120
FENCED = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|<img src=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
INCLUDED = {ROOT / "docs" / "adding.md": ROOT / "CONTRIBUTING.md"}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_line_is_too_long(page: Path) -> None:
    """Rows of tables cannot be broken, nor a link that is longer."""
    long = [line for line in page.read_text().splitlines() if len(line) > WIDTH]
    assert [line for line in long if not line.startswith("|") and " " in line.strip("- ")] == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return what a link to a part of a page can name: its headings as GitHub and MyST write them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(FENCED.sub("", INCLUDED.get(page, page).read_text())):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead to no file of the tree, or to no part of it."""
    found = []
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text()))
    for link in (a or b for a, b in LINK.findall(text)):
        path, _, part = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (part and part not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# One `b`, two\n\n[a](#one-b-two) [b](page.md#one) [c](gone.md) `[d](no.md)`\n"
    page.write_text(text + "\n```bash\n# Three\n[e](no.md)\n```\n")
    assert broken(page) == ["page.md#one", "gone.md"]


def test_every_page_of_the_docs_is_reached_from_the_index() -> None:
    """By the table of contents, which is what the site shows at its side."""
    listed = (ROOT / "docs" / "index.md").read_text()
    pages = {
        name(page)[len("docs/") : -len(".md")] for page in PAGES if page.parent.name != ".github"
    }
    top = {page for page in pages if (ROOT / "docs" / f"{page}.md").exists()}
    top = {page for page in top if not re.match(r"results/.+/", page)} - {"index"}
    toc = {line.strip() for line in re.findall(r"^[\w/-]+$", listed, re.MULTILINE)}
    assert top <= toc


@pytest.mark.parametrize(
    "page",
    [
        page
        for folder in ("docs", "docs/lessons", "docs/results")
        for page in sorted((ROOT / folder).glob("*.md"))
        if page not in INCLUDED and page.name != "index.md"
    ],
    ids=name,
)
def test_a_page_says_first_which_question_it_answers(page: Path) -> None:
    _, first, *_ = page.read_text().split("\n\n")
    assert re.match(r"\*[A-Z][^*]*\?\*", first)


def test_the_messages_of_troubleshooting_are_said() -> None:
    """By this project's code, or by Flower, whose messages docs/deploy-reference.md quotes."""
    code = "".join(p.read_text() for f in ("fedapp", "deploy") for p in (ROOT / f).rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", code)
    said += (ROOT / "tests" / "golden" / "errors.json").read_text()
    said += (ROOT / "docs" / "deploy-reference.md").read_text() + "Invalid run configuration."
    said += SUPERLINK_UNAVAILABLE_MESSAGE
    said += "Run: pip install 'fedapp[onnx]'"  # tests/test_dependencies.py
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    symptoms = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    quoted = [text for row in symptoms for text in re.findall(r"`([^`]{20,})`", row)]
    assert len(quoted) > 15
    assert [text for text in quoted if text not in said] == []
