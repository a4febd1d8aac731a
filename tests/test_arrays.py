"""Tensors to records and back: NumPy's plain format, byte for byte, and nothing else."""

import io
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from fedapp.federation.arrays import ReplyError, to_arrays, to_tensors
from fedapp.training.tensors import all_finite

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)


@given(st.lists(st.integers(0, 4), max_size=4), st.sampled_from(DTYPES))
def test_what_is_sent_is_what_comes(shape, dtype):
    sent = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    came = to_tensors(to_arrays({"w": sent}))["w"]
    assert came.dtype == dtype
    assert came.shape == sent.shape
    assert torch.equal(came, sent)
    came.flatten()[:1].add_(1)  # its memory is its own


def test_the_bytes_are_those_of_numpy():
    """Flower's own rules and NumPy read them; a transposed tensor goes out in C order."""
    sent = torch.arange(6.0).reshape(2, 3).T
    array = to_arrays({"w": sent})["w"]
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(sent.numpy()))
    assert array.data == file.getvalue()
    assert (array.dtype, tuple(array.shape), array.stype) == ("float32", (3, 2), "numpy.ndarray")
    assert np.array_equal(array.numpy(), sent.numpy())


def test_fortran_order_is_understood():
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    came = to_tensors(ArrayRecord({"w": Array(values)}))["w"]
    assert torch.equal(came, torch.from_numpy(np.ascontiguousarray(values)))


def pickled():
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


WHOLE = to_arrays({"w": torch.arange(4.0)})["w"].data
BAD = {
    "pickled": pickled(),
    "empty": b"",
    "not an array": b"hello, this is not an array at all",
    "cut off": WHOLE[:-4],
    "cut in the header": WHOLE[:20],
    "with a surplus": WHOLE + b"1234",
    "of strings": (lambda f: (np.save(f, np.array(["a"])), f.getvalue())[1])(io.BytesIO()),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bytes_that_are_no_plain_array_are_refused(data):
    record = ArrayRecord({"w": Array("float32", (4,), "numpy.ndarray", data)})
    with pytest.raises(ReplyError, match="array 'w' cannot be read"):
        to_tensors(record)


def test_another_encoding_is_refused():
    record = ArrayRecord({"w": Array("float32", (4,), "torch.save", WHOLE)})
    with pytest.raises(ReplyError, match="'w' is encoded as 'torch"):
        to_tensors(record)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_bad_value_among_many_is_found(bad, dtype):
    good = [torch.full((3, 4), 3e38, dtype=dtype), torch.empty(0), torch.ones(2, dtype=torch.int64)]
    assert all_finite(good)
    assert all_finite([])
    spoilt = torch.zeros(50, dtype=dtype)
    spoilt[17] = bad
    assert not all_finite([*good, spoilt])
