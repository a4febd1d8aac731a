"""Small runs whose numbers are pinned: what they are (`runs`), how they are run (`driver`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def pinned(kind: str) -> dict[str, Any]:
    """Return what is pinned of a kind: datasets, messages or names."""
    return dict(json.loads((FOLDER / f"{kind}.json").read_text()))


def pin(kind: str, found: Mapping[str, Any]) -> None:
    """Write what is as it is now, an entry a line."""
    lines = (f'"{name}": {json.dumps(values)}' for name, values in found.items())
    (FOLDER / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
