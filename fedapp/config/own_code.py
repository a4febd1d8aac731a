"""Code from outside of this package: importing a file or a module, and the source that belongs to it."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fedapp.config.app_folder import add_to_path
from fedapp.errors import INSTALLED, ComponentError, one_line

OURS = frozenset({"fedapp", "strategies"})
"""The packages whose version says what their code is."""


PYDANTIC_LINK = "For further information visit https://errors.pydantic.dev/"
"""What the last line of pydantic's errors is."""


@dataclass(frozen=True)
class OwnCode:
    """The source of a component: its file and the modules beside it that it imports, by path."""

    files: Mapping[str, bytes]

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the file; of several, that of the lines that ``sha256sum`` prints of them."""
        digests = {name: hashlib.sha256(self.files[name]).hexdigest() for name in self.files}
        if len(digests) == 1:
            return next(iter(digests.values()))
        lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
        return hashlib.sha256(lines.encode()).hexdigest()


@functools.cache
def import_file(path: Path, folder: Path) -> tuple[ModuleType, OwnCode]:
    """Return the module of a file, and its source; a process imports a file once.

    Modules of ``folder`` can be imported by it.

    Raises
    ------
    ComponentError
        The file cannot be read or imported; the message names the line.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ComponentError(f"{path} cannot be read ({error.strerror}).") from error
    add_to_path(folder)
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.machinery.ModuleSpec(name, None, origin=str(path))
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ComponentError(_import_problem(str(path), error)) from error
    inside = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    files = {inside.as_posix(): source, **_imported(_names(source, ""), folder, frozenset())}
    return module, OwnCode(files)


@functools.cache
def import_module(name: str, folder: Path) -> tuple[ModuleType, OwnCode]:
    """Return a module of ``folder`` or of an installed package, and its source.

    Raises
    ------
    ComponentError
        There is no such module, or it cannot be imported; the message names the line.
    """
    add_to_path(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ComponentError(
                f"there is no module {error.name!r} in {folder} or among the installed packages. "
                "Correct the name, start in the folder that holds it, or install its package."
            ) from error
        raise ComponentError(_import_problem(name, error)) from error
    except (Exception, SystemExit) as error:
        raise ComponentError(_import_problem(name, error)) from error
    path = Path(module.__file__ or "")
    if path.suffix != ".py":
        raise ComponentError(f"the module {name!r} has no source file. Name a module in Python.")
    packages = frozenset({name.partition(".")[0]}) if "." in name else frozenset[str]()
    files = {_file_of(name, path): path.read_bytes()}
    files |= _imported(_and_parents(name), folder, packages)
    return module, OwnCode(dict(sorted(files.items())))


def _import_problem(name: str, error: BaseException) -> str:
    """Return which error ended the import of ``name``, in which line of which file."""
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}" if error.lineno else name
        line = f" ({error.text})" if error.text else ""
        return f"{where}: {lines[-1]}{line.replace(chr(10), '')}. Correct the file."
    message = one_line(" ".join(line for line in lines if PYDANTIC_LINK not in line))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not INSTALLED.intersection(Path(frame.filename).parts)
        and not frame.filename.startswith("<")
        and frame.filename != __file__
    ]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else name
    fix = "Correct the file."
    if isinstance(error, ModuleNotFoundError):
        fix = "Install that package, or put the module into the app's folder."
    if getattr(error, "code", "") == "model-field-missing-annotation":
        fix = "Give a parameter its type, as in mu: float = 0.3."
    return f"{where}: importing it raises {message.rstrip('.')}. {fix}"


def _imported(names: Iterable[str], folder: Path, packages: frozenset[str]) -> dict[str, bytes]:
    """Return the source of the modules ``names`` and of those that they import, by path.

    Only modules of ``packages`` and of ``folder`` count. Imports within functions count as well.
    """
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _source_path(name, folder, packages)
        if path is None:
            continue
        files[_file_of(name, path)] = content = path.read_bytes()
        waiting += _names(content, name if path.name == "__init__.py" else name.rpartition(".")[0])
    return files


def _names(source: bytes, package: str) -> Iterator[str]:
    """Yield the names of the modules that a source in ``package`` may import, parents included.

    None of a source that is no Python: a module beside the component that it need not run.
    """
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # a relative import without a package
                dots = "." * node.level
                base = importlib.util.resolve_name(dots + (node.module or ""), package)
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            yield from _and_parents(name)


def _and_parents(name: str) -> list[str]:
    """Return a dotted name and those of the packages in which it is, which its import imports."""
    return list(itertools.accumulate(name.split("."), "{}.{}".format))


def _source_path(name: str, folder: Path, packages: frozenset[str]) -> Path | None:
    """Return the file of a module whose source belongs to the component, or None."""
    top = name.partition(".")[0]
    if not name or top in OURS or top in sys.stdlib_module_names:
        return None
    if top not in packages and not _is_in(folder, _spec(top)):
        return None
    spec = _spec(name)
    path = Path(spec.origin or "") if spec is not None else Path()
    return path if path.suffix == ".py" else None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return how a module is imported, or None if it cannot be; parents of it are imported."""
    try:
        return importlib.util.find_spec(name)
    except (Exception, SystemExit):
        return None


def _is_in(folder: Path, spec: importlib.machinery.ModuleSpec | None) -> bool:
    """Return whether a top-level module is in ``folder``, and not in an environment there."""
    if spec is None:
        return False
    locations = [spec.origin] if spec.has_location else [*(spec.submodule_search_locations or [])]
    paths = [Path(location) for location in locations if location]
    return any(
        path.is_relative_to(folder) and not INSTALLED.intersection(path.relative_to(folder).parts)
        for path in paths
    )


def _file_of(name: str, path: Path) -> str:
    """Return the path of a module in the folder that holds its top-level package."""
    base = name.replace(".", "/")
    return f"{base}/__init__.py" if path.name == "__init__.py" else f"{base}.py"
