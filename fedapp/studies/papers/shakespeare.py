"""Shakespeare's plays as McMahan et al. 2017 use them, from the text of shakespeare.mit.edu.

``python -m fedapp.studies.papers.shakespeare DIR`` downloads the text, which is in the public domain, and
writes the Parquet files of ``DIR/shakespeare``. A client is a speaking role of a play (section 3).
"""

from __future__ import annotations

import hashlib
import html
import io
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pyarrow as pa

from fedapp.errors import DataError, FedappError
from fedapp.files import as_folder
from fedapp.studies.papers.data import write_parquet

COMMIT = "6b82db852c7322dd33e95db347f0ddfc812c6409"
SOURCE = f"https://github.com/TheMITTech/shakespeare/archive/{COMMIT}.tar.gz"
DIGESTS = {
    "train": "5d2e0a7dcc17013e73a5978be3cae1f2c5afd4f9a15091e3ecf70872cb9fe6e5",
    "test": "4d6794bfe3094debf0ccf1cb3da576b2a9eba54873469da618bd56e48230dd5d",
}
"""What ``digest`` returns for the data of the published results."""
FEWEST = 3
"""Roles with fewer lines are left out."""
SECONDS = 60.0
"""How long the server may be silent."""

TITLE = re.compile(r'<td class="play"[^>]*>\s*(.*?)\s*<', re.DOTALL)
ROLE_OR_LINE = re.compile(
    r"<a name=speech\d+><b>(?P<role>.*?)</b></a>|<a name=\d[\d.]*>(?P<line>.*?)</a>",
    re.DOTALL | re.IGNORECASE,
)
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]")


class Line(NamedTuple):
    """A line of a role; ``line_no`` counts the role's own from 0."""

    play: str
    role: str
    client_id: str
    line_no: int
    text: str


def plays_of(archive: bytes) -> Iterator[str]:
    """Yield the page of each play, by the name of its folder.

    Raises
    ------
    DataError
        The archive cannot be read.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in sorted(files.getmembers(), key=lambda member: member.name):
                path = PurePosixPath(member.name)
                if path.name == "full.html" and len(path.parts) == 3:
                    content = files.extractfile(member)
                    yield content.read().decode("latin-1") if content else ""
    except tarfile.TarError as error:
        raise DataError(f"{SOURCE}: is no archive ({error}). Download it again.") from error


def lines_of(page: str) -> list[Line]:
    """Return the lines of a play, role by role; what nobody speaks (prologues) is left out."""
    title = TITLE.search(page)
    play = html.unescape(title[1]) if title else ""
    roles: dict[str, list[str]] = {}
    role = ""
    for match in ROLE_OR_LINE.finditer(page):
        if match["line"] is None:
            role = html.unescape(match["role"]).strip()
        elif role:
            roles.setdefault(role, []).append(" ".join(html.unescape(match["line"]).split()))
    return [
        Line(play, role, NOT_IN_NAMES.sub("_", f"{play}_{role}"), number, text)
        for role, texts in roles.items()
        for number, text in enumerate(texts)
    ]


def split(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Return the first 80 % of each role's lines for training, and the rest for testing."""
    by_client: dict[str, list[Line]] = {}
    for line in lines:
        by_client.setdefault(line.client_id, []).append(line)
    splits: dict[str, list[Line]] = {"train": [], "test": []}
    for own in by_client.values():
        if len(own) >= FEWEST:
            first = len(own) - max(int(0.2 * len(own)), 1)
            splits["train"] += own[:first]
            splits["test"] += own[first:]
    return splits


def digest(lines: Iterable[Line]) -> str:
    """Return a hash of the clients and texts, in order."""
    content = "".join(f"{line.client_id}\t{line.text}\n" for line in lines)
    return hashlib.sha256(content.encode()).hexdigest()


def write(splits: dict[str, list[Line]], folder: Path) -> None:
    """Write ``train-00000-of-00001.parquet`` and the file of the test split."""
    text = dict.fromkeys(("play", "role", "client_id"), pa.string())
    schema = pa.schema({**text, "line_no": pa.int32(), "text": pa.string()})
    for name, lines in splits.items():
        table = pa.Table.from_pylist([line._asdict() for line in lines], schema)
        write_parquet(table, folder / f"{name}-00000-of-00001.parquet")


def main(arguments: Sequence[str]) -> None:
    """Download the text and write ``DIR/shakespeare``."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit("usage: python -m fedapp.studies.papers.shakespeare DIR")
    folder = as_folder(Path(arguments[0]) / "shakespeare", "DIR")
    try:
        with urlopen(SOURCE, timeout=SECONDS) as answer:
            archive = answer.read()
    except (URLError, TimeoutError) as error:
        raise DataError(f"{SOURCE}: cannot be downloaded ({error}). Try again later.") from error
    splits = split(line for page in plays_of(archive) for line in lines_of(page))
    for name, lines in splits.items():
        if digest(lines) != DIGESTS[name]:
            raise DataError(f"{SOURCE}: its {name} split is not that of the published results.")
    write(splits, folder)
    clients = len({line.client_id for line in splits["train"]})
    counts = ", ".join(f"{len(lines):,} {name}" for name, lines in splits.items())
    print(f"{folder}: {clients:,} clients, {counts} lines")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedappError as error:
        sys.exit(str(error))
