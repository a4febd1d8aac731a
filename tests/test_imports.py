"""The order of imports: a package imports only what stands before it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.house import circles, files, imports, module_of

ORDER = (
    ("fedapp.errors", "fedapp.seeds", "fedapp.files", "fedapp.machine", "fedapp.analysis"),
    ("fedapp.config",),
    ("fedapp.data",),
    ("fedapp.models",),
    ("fedapp.training",),
    ("fedapp.federation",),
    ("strategies",),
    ("fedapp.runs", "fedapp.engines", "strategies.strategy"),
    ("fedapp.server", "fedapp.node"),
    ("fedapp.server_app", "fedapp.client_app"),
    ("fedapp.studies",),
    ("fedapp.cli",),
)
"""From left to right; what stands together does not import each other, but for the first."""
TEXTS = {module_of(path): path.read_text() for path in files()}


def place_of(module: str) -> tuple[int, str]:
    """Return the place in the order, and which package of it."""
    found = [
        (len(package), rank, package)
        for rank, packages in enumerate(ORDER)
        for package in packages
        if module == package or module.startswith(f"{package}.")
    ]
    _, rank, package = max(found)
    return rank, package


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    if module in ("fedapp", "strategies"):
        return
    rank, package = place_of(module)
    for name in imports(TEXTS[module]):
        if name not in TEXTS or name in ("fedapp", "strategies"):
            continue
        other, its = place_of(name)
        together = other == rank and (its == package or rank == 0)
        assert other < rank or together, f"{module} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(TEXTS) == []


@pytest.mark.slow
def test_nothing_that_draws_is_imported_before_a_run_ends() -> None:
    code = "import sys, fedapp.server, fedapp.node; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_flower_gets_both_apps_without_pytorch() -> None:
    """Nodes and Ray start while it is imported."""
    code = "import sys, fedapp.server_app, fedapp.client_app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_data_set_of_ones_own_needs_neither_pytorch_nor_pydantic() -> None:
    code = "import sys, fedapp.data.dataset; sys.exit(not {'torch', 'pydantic'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
