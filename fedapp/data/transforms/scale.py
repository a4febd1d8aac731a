"""The plain transform."""

from __future__ import annotations

from typing import ClassVar

from fedapp.data.transforms.transform import Transform


class Scale(Transform):
    """Bytes become floats in [0, 1]; floats and tokens stay as they are."""

    name: ClassVar[str] = "scale"
