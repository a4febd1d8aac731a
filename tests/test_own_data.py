"""A data set of a user's own: what does not fit is said before anything starts."""

from __future__ import annotations

import numpy as np
import pytest

from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import checked
from fedapp.errors import DataError

VECTORS = np.ones((4, 2), np.float32)
TOKENS = np.array([[0, 1], [2, 0]])


REGRESSION = Task("vector", (2,), 1, regression=True)


def own(inputs: object, targets: object, task: Task | None = None, **groups: np.ndarray) -> Dataset:
    examples = Examples(np.asarray(inputs), np.asarray(targets), groups)
    return Dataset("own", task or Task("vector", (2,), 3), examples, examples, "own-1")


@pytest.mark.parametrize(
    "dataset",
    [
        own(VECTORS, [0, 1, 2, 0]),
        own(VECTORS, [True, False] * 2, owner=np.array(["b", "a"] * 2)),
        own(VECTORS.astype(np.uint8), [0.5, 7, -1, 0], REGRESSION),
        own(TOKENS, [[1, -1], [0, 1]], Task("tokens", (2,), 3, num_symbols=3)),
        own(TOKENS[:, :1], [[1], [0]], Task("tokens", (1,), 3, num_symbols=3)),
    ],
    ids=["classes", "booleans", "regression", "tokens", "tokens one by one"],
)
def test_what_fits_is_taken_as_it_is(dataset):
    assert checked(dataset) is dataset


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (own(VECTORS, [0, 1]), r"inputs of shape \(4, 2\) and 2 targets.*asks for \(2, 2\)"),
        (own(VECTORS[:0], []), r"inputs of shape \(0, 2\) and 0 targets"),
        (own(VECTORS[:, :1], [0] * 4), r"inputs of shape \(4, 1\).*\(4, 2\)"),
        (own(VECTORS.astype(int), [0] * 4), r"inputs of type int64; they must be floats, or uint8"),
        (own(VECTORS.astype(np.uint16), [0] * 4), r"inputs of type uint16"),
        (own(VECTORS, [0.5, 7, -1, 0]), r"targets that are floats; .* has regression=True"),
        (
            own(VECTORS, list("abca")),
            r"targets of type <U1; number the classes 0, 1, \.\.\., as np\.unique\(",
        ),
        (own(VECTORS, np.array([0, 1, 2, "a"], object)), r"targets of type object; number"),
        (
            own(VECTORS, np.ones((4, 1)), REGRESSION),
            r"targets of shape \(4, 1\), which must be \(4,\): give targets\.ravel\(\)",
        ),
        (own(VECTORS, [[0], [1], [2], [0]]), r"targets of shape \(4, 1\).*ravel\(\)"),
        (own(VECTORS, np.ones((4, 2)), REGRESSION), r"targets of shape \(4, 2\).* be \(4,\)"),
        (
            own(VECTORS, [0] * 4, owner=np.array([0, 1, np.nan, 0])),
            r"a column 'owner' of type float64; ids are whole numbers or texts",
        ),
        (own(VECTORS / [1, np.nan], [0] * 4), r"numbers that are not finite"),
        (own(VECTORS, [0, 1, 2, np.inf]), r"numbers that are not finite"),
        (own(VECTORS, [0, 1, 2, 3]), r"labels from 0 to 3; they must be from 0 to .* = 2 "),
        (own(VECTORS, [0, 1, 2, -1]), r"labels from -1 to 2"),
        (
            own(TOKENS.astype(np.uint8), [0, 1], Task("tokens", (2,), 3)),
            r"inputs of type uint8; they must be signed integers",
        ),
        (
            own(TOKENS, [0, 1], Task("tokens", (2,), 3, num_symbols=2)),
            r"symbols from 0 to 2; there are 2",
        ),
        (own(TOKENS, [[0, -2], [0, 1]], Task("tokens", (2,), 3)), r"labels from -2 to 1"),
    ],
)
def test_what_does_not_fit_is_named(dataset, said):
    with pytest.raises(DataError, match=r"dataset = 'own': its train examples have " + said):
        checked(dataset)


def test_owners_are_wanted_of_both_splits():
    train = Examples(VECTORS, np.zeros(4, int), {"owner": np.arange(4)})
    dataset = Dataset("own", Task("vector", (2,), 3), train, own(VECTORS, [0] * 4).test, "own-1")
    with pytest.raises(DataError, match=r"test examples lack the columns \['owner'\]"):
        checked(dataset)
