"""Named tensors as Flower's records of arrays, in NumPy's plain format; nothing is unpickled."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedapp.errors import one_line
from fedapp.federation.faults import ReplyError
from fedapp.training.tensors import Tensors

MAGIC = b"\x93NUMPY\x01\x00"
"""How a file in NumPy's format 1.0 begins; two bytes with the header's length follow."""


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record; always in C order, on the CPU."""
    return ArrayRecord({name: _encode(tensor) for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> Tensors:
    """Return a record's arrays as tensors.

    Raises
    ------
    ReplyError
        An array is not in NumPy's plain format, or its bytes do not fit its header.
    """
    tensors = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise ReplyError(
                "malformed", f"array {name!r} is encoded as {array.stype!r}, not as numpy.ndarray"
            )
        try:
            tensors[name] = _decode(array.data)
        # A stranger's bytes may raise anything; each exception says that they are no array.
        except Exception as error:
            problem = f"array {name!r} cannot be read: {one_line(error)}"
            raise ReplyError("malformed", problem) from error
    return tensors


def size_of(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message: what the network carries, but for headers."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def _encode(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().contiguous().numpy()
    data = _write_header(values.dtype, values.shape) + values.tobytes()
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


def _decode(data: bytes) -> Tensor:
    """Return a tensor of its own memory; stricter than ``np.load``, which ignores a surplus."""
    end = len(MAGIC) + 2
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("it is not in NumPy's format 1.0")
    start = end + int.from_bytes(data[len(MAGIC) : end], "little")
    shape, fortran, dtype = _read_header(data[len(MAGIC) : start])
    values = np.frombuffer(data, dtype, offset=start)
    return torch.from_numpy(values.reshape(shape, order="F" if fortran else "C").copy("C"))


# A run sends the same few headers over and over, and NumPy's parser takes longer than a small model.


@functools.lru_cache(maxsize=1024)
def _write_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@functools.lru_cache(maxsize=1024)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type from a header, its two bytes of length included."""
    return np.lib.format.read_array_header_1_0(io.BytesIO(header))
