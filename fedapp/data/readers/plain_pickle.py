"""Reads CIFAR's pickled dictionaries without unpickling: no code in the file can be run.

The opcodes are taken one by one from ``pickletools``. Those that build numbers, strings, lists,
dictionaries and NumPy byte arrays are carried out here on plain values; any other ends the
reading, and a name such as ``numpy.ndarray`` is only ever compared, never imported.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.errors import DataError

ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy dtype"
NAMES = frozenset({ARRAY, DTYPE, "numpy ndarray"})


class RefusedError(Exception):
    """The file holds something that CIFAR's files do not."""


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary of numbers, strings, lists and byte arrays that a file holds.

    Raises
    ------
    DataError
        The file is damaged or holds anything else.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            machine.step(opcode.name, argument)
        result = _plain(machine.stack.pop())
    except (RefusedError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a batch of CIFAR's Python version ({error}); nothing in it was run. "
            "Use the binary version (cifar-10-binary), Parquet, or the hub name uoft-cs/cifar10."
        ) from error
    if not isinstance(result, dict):
        raise DataError(
            f"{path}: not a CIFAR batch: it holds no dictionary. Copy or download it again."
        )
    return result


@dataclass
class _Object:
    """An array or a dtype under construction; ``value`` is set when its state comes."""

    kind: str
    value: Any = None


@dataclass
class _Machine:
    """The stack machine of the pickle format, cut down to what CIFAR's files use."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Carry out one opcode."""
        if name in LITERALS:
            self.stack.append(argument)
        elif name in ACTIONS:
            ACTIONS[name](self, argument)
        elif name not in ("PROTO", "STOP"):
            raise RefusedError(f"opcode {name}")

    def since_mark(self) -> list[Any]:
        """Take the items above the last mark off the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def name(self, argument: str) -> None:
        """Push an allowed name, as a string."""
        if argument not in NAMES:
            raise RefusedError(f"the name {argument!r}")
        self.stack.append(_Object("name", argument))

    def reduce(self, _: Any) -> None:
        """Begin an array or a dtype."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Object) or function.value not in (ARRAY, DTYPE):
            raise RefusedError("a call")
        self.stack.append(
            _Object(function.value, arguments[0] if function.value == DTYPE else None)
        )

    def build(self, _: Any) -> None:
        """Fill an array: its state is (version, shape, dtype, column order, bytes)."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, _Object):
            raise RefusedError("an object's state")
        if target.kind == ARRAY:
            _, shape, dtype, columns_first, data = state
            if dtype.value != "u1":
                raise RefusedError(f"an array of {dtype.value!r}")
            raw = data.encode("latin-1") if isinstance(data, str) else data
            target.value = np.frombuffer(raw, np.uint8).reshape(
                shape, order="F" if columns_first else "C"
            )

    def append_items(self, _: Any) -> None:
        """Extend the list under the mark."""
        items = self.since_mark()
        self.stack[-1].extend(items)

    def set_items(self, _: Any) -> None:
        """Extend the dictionary under the mark."""
        items = self.since_mark()
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def set_item(self, _: Any) -> None:
        """Set one item of a dictionary."""
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][key] = value

    def group(self, length: int) -> None:
        """Make a tuple of the last items."""
        items = tuple(self.stack[-length:])
        del self.stack[-length:]
        self.stack.append(items)


LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "BINBYTES"}
    | {"SHORT_BINBYTES", "NONE"}
)
ACTIONS: dict[str, Callable[[_Machine, Any], Any]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "BINPUT": lambda machine, slot: machine.memo.update({slot: machine.stack[-1]}),
    "LONG_BINPUT": lambda machine, slot: machine.memo.update({slot: machine.stack[-1]}),
    "BINGET": lambda machine, slot: machine.stack.append(machine.memo[slot]),
    "LONG_BINGET": lambda machine, slot: machine.stack.append(machine.memo[slot]),
    "APPEND": lambda machine, _: machine.stack[-2].append(machine.stack.pop()),
    "APPENDS": _Machine.append_items,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.group(1),
    "TUPLE2": lambda machine, _: machine.group(2),
    "TUPLE3": lambda machine, _: machine.group(3),
    "GLOBAL": _Machine.name,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


def _plain(item: Any) -> Any:
    """Return a dictionary with its arrays in place of the objects that stood for them."""
    if not isinstance(item, dict):
        return item
    return {
        key: value.value if isinstance(value, _Object) else value for key, value in item.items()
    }
