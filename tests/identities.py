"""What theory says of each algorithm: where it is federated averaging, and whether it is exact.

``tests/test_algorithms.py`` holds every algorithm to its line, and ``tests/test_algorithms_page.py``
the column "FedAvg at" of ``docs/algorithms.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from fedapp.config.settings import Scalar


@dataclass(frozen=True)
class Identity:
    """What must hold of one algorithm.

    ``fedavg_at``: run-config keys at which it is federated averaging; None: there are none.
    ``given``: what else that needs, a setting, a property of the data or of the model.
    ``exact``: whether it converges to the optimum of a quadratic whose clients differ in b alone. It is
    not asked of algorithms that need labels.
    """

    fedavg_at: Mapping[str, Scalar] | None = None
    given: str = ""
    exact: bool = True


UNIFORM = "weighting=uniform"
IDENTITIES: Mapping[str, Identity] = {
    "bulyan": Identity({"bulyan.num-malicious": 0}, UNIFORM, exact=False),
    "dp-fedavg": Identity(
        {"dp-fedavg.clip": 0.0, "dp-fedavg.noise": 0.0, "fraction-train": 1.0}, UNIFORM, exact=False
    ),
    "fedadagrad": Identity(exact=False),
    "fedadam": Identity(exact=False),
    "fedavg": Identity(),
    "fedavgm": Identity({"fedavgm.momentum": 0.0}),
    "fedbn": Identity({}, "no normalisation layers"),
    "feddyn": Identity({"feddyn.alpha": 0.0}),
    "fedlc": Identity({"fedlc.tau": 0.0}),
    "fedmedian": Identity(exact=False),
    "fednova": Identity({}, "as many steps on every client"),
    "fedntd": Identity({"fedntd.beta": 0.0}),
    "fedpa": Identity({"fedpa.burn-in-rounds": 1_000_000_000}),
    "fedprox": Identity({"fedprox.mu": 0.0}),
    "fedsam": Identity({"fedsam.rho": 0.0}, exact=False),
    "fedsgd": Identity(),
    "fedsmoo": Identity({"fedsmoo.alpha": 0.0, "fedsmoo.rho": 0.0}, exact=False),
    "fedsol": Identity({"fedsol.rho": 0.0}),
    "fedtrimmedavg": Identity({"fedtrimmedavg.beta": 0.0}, UNIFORM, exact=False),
    "fedyogi": Identity(exact=False),
    "krum": Identity(exact=False),
    "local-dp": Identity({"local-dp.clip": 0.0, "local-dp.noise": 0.0}, UNIFORM, exact=False),
    "moon": Identity({"moon.mu": 0.0}),
    "multikrum": Identity(exact=False),
    "scaffold": Identity(),
}


def identity_of(name: str) -> Identity:
    """Return an algorithm's line of the table; the test fails where there is none."""
    if name not in IDENTITIES:
        pytest.fail(
            f"tests/identities.py: IDENTITIES has no line for the algorithm {name!r}. Add one, "
            f"{name!r}: Identity({{{name + '.KEY'!r}: VALUE}}) with the run-config keys at which it is "
            "federated averaging, or Identity() if there are none; with exact=False if it does not "
            "converge to the optimum of a quadratic whose clients differ in b alone."
        )
    return IDENTITIES[name]
