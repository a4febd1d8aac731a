"""Named tensors as Flower's array records, in NumPy's format; nothing is unpickled."""

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
"""First bytes of a file in NumPy's format 1.0; two bytes with the header's length follow."""


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record, in C order."""
    return ArrayRecord({name: _encode(tensor) for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> Tensors:
    """Return a record's arrays as tensors.

    Raises
    ------
    ReplyError
        An array is not in NumPy's format, or its bytes do not fit its header.
    """
    tensors = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise ReplyError(
                "malformed", f"array {name!r} is encoded as {array.stype!r}, not as numpy.ndarray"
            )
        try:
            tensors[name] = _decode(array.data)
        # Untrusted bytes may raise any exception.
        except Exception as error:
            problem = f"array {name!r} cannot be read: {one_line(error)}"
            raise ReplyError("malformed", problem) from error
    return tensors


def size_of(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def _encode(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().contiguous().numpy()
    data = _write_header(values.dtype, values.shape) + values.tobytes()
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


def _decode(data: bytes) -> Tensor:
    """Return a tensor that owns its memory; unlike ``np.load``, trailing bytes are an error."""
    end = len(MAGIC) + 2
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("it is not in NumPy's format 1.0")
    start = end + int.from_bytes(data[len(MAGIC) : end], "little")
    shape, fortran, dtype = _read_header(data[len(MAGIC) : start])
    values = np.frombuffer(data, dtype, offset=start)
    return torch.from_numpy(values.reshape(shape, order="F" if fortran else "C").copy("C"))


# Cached: NumPy's header parser takes longer than reading a small model, and a run has few headers.


@functools.lru_cache(maxsize=1024)
def _write_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@functools.lru_cache(maxsize=1024)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type of a header that begins with its two bytes of length."""
    return np.lib.format.read_array_header_1_0(io.BytesIO(header))
