"""Stateless randomness: every generator is a function of (seed, purpose, round, client).

No generator is kept, so a resumed run, another engine and another machine draw the same clients, batches
and initial weights.
"""

from __future__ import annotations

import functools
import hashlib
import secrets

import numpy as np


@functools.cache
def _purpose_number(purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")


def generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
    """Return the generator of a purpose, round and client."""
    return np.random.default_rng((seed, _purpose_number(purpose), round_, client))


def torch_seed(seed: int, purpose: str, round_: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for a ``torch.Generator``, derived in the same way."""
    return int(generator(seed, purpose, round_, client).integers(2**63 - 1))


def secret_generator() -> np.random.Generator:
    """Return a generator with a seed from the operating system, which cannot be reproduced.

    For noise that must protect against anyone who knows the run's seed. A resumed run draws other
    numbers.
    """
    return np.random.default_rng(secrets.randbits(256))
