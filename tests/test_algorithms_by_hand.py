"""Each algorithm on one parameter, two clients and two local steps, worked by hand.

The clients and the numbers of federated averaging are in ``one_parameter``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from torch import Tensor

from fedapp.data.dataset import IGNORE, Examples
from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    ClientExtras,
    Objective,
    ServerStep,
    Tensors,
)
from fedapp.training.client_state import ClientStates
from fedapp.training.round_plan import RoundPlan
from strategies._server_optimizer import FedOpt
from strategies.fedadagrad import FedAdagrad
from strategies.fedadam import FedAdam
from strategies.fedavg import FedAvg
from strategies.fedavgm import FedAvgM
from strategies.fedbn import FedBN
from strategies.feddyn import FedDyn
from strategies.fedlc import FedLC
from strategies.fednova import FedNova
from strategies.fedntd import FedNTD
from strategies.fedpa import FedPA
from strategies.fedprox import FedProx
from strategies.fedsam import FedSAM
from strategies.fedsgd import FedSGD
from strategies.fedsmoo import FedSMOO
from strategies.fedsol import FedSOL
from strategies.fedyogi import FedYogi
from strategies.moon import Moon
from strategies.scaffold import Scaffold
from tests.one_parameter import RATE, CrossEntropy, Federation, examples, labelled

FEDAVG = 1.34375


def close(value: float) -> object:
    return pytest.approx(value, abs=1e-10)


def test_fedavg(tmp_path: Path) -> None:
    """(0.4375 + 2.25) / 2."""
    assert Federation(FedAvg(), tmp_path).play() == FEDAVG


def test_fedsgd(tmp_path: Path) -> None:
    """Gradients at 0: -1 and -6; 0 - 0.25 * (-3.5) = 0.875, however many epochs.

    With a server rate of 2 the step is twice as long.
    """
    assert Federation(FedSGD(), tmp_path).play() == 0.875
    assert Federation(FedSGD(), tmp_path, server_learning_rate=2.0).play() == 1.75


def test_fedprox(tmp_path: Path) -> None:
    """mu = 1 adds w to the gradients. Client 0: 0.25, then 0.25 - 0.25 (-0.75 + 0.25) = 0.375.

    Client 1: 1.5, then 1.5 - 0.25 (-3 + 1.5) = 1.875. Mean 1.125.
    """
    assert Federation(FedProx(mu=1.0), tmp_path).play() == 1.125


@pytest.mark.parametrize("update", ["delta", "model"])
def test_scaffold_option_2(tmp_path: Path, update: str) -> None:
    """Round 1 has no variates: 1.34375. c_k = (x - y_k) / (2 * 0.25): -0.875, -4.5; c = -2.6875.

    Round 2, client 0: w - 1 + 0.875 - 2.6875 = w - 2.8125; 1.34375, 1.7109375, 1.986328125.
    Client 1: 2 w - 6 + 4.5 - 2.6875 = 2 w - 4.1875; 1.34375, 1.71875, 1.90625.
    """
    federation = Federation(Scaffold(), tmp_path, update=update)
    assert federation.play() == FEDAVG
    assert float(federation.state["w"]) == -2.6875
    assert federation.play() == close((1.986328125 + 1.90625) / 2)


def test_scaffold_option_1(tmp_path: Path) -> None:
    """c_k is the gradient at x = 0: -1, -6; c = -3.5.

    Round 2, client 0: w - 1 + 1 - 3.5 = w - 3.5; 1.34375, 1.8828125, 2.287109375. Client 1:
    2 w - 6 + 6 - 3.5 = 2 w - 3.5; 1.34375, 1.546875, 1.6484375.
    """
    federation = Federation(Scaffold(option="I"), tmp_path)
    assert federation.play() == FEDAVG
    assert float(federation.state["w"]) == -3.5
    assert federation.play() == (2.287109375 + 1.6484375) / 2


def test_scaffold_option_1_counts_every_example_once(tmp_path: Path) -> None:
    """Gradients at 0 are -1, -1, -4, of batches of two and one in any order: c_0 = -2."""
    client = Examples(np.ones((3, 1)), np.array([1.0, 1.0, 4.0]))
    federation = Federation(Scaffold(option="I"), tmp_path, (client,), batch_size=2)
    federation.play()
    assert float(federation.state["w"]) == close(-2)


def test_scaffold_denominators(tmp_path: Path) -> None:
    """Client 0 alone: c = |S| / N * (c_0+ - 0) = -0.875 / 2, by examples (1 of 4) -0.875 / 4.

    The server's rate scales the model's step and not the variates'.
    """
    alone = Federation(Scaffold(), tmp_path / "a", server_learning_rate=2.0)
    assert alone.play(0) == 2 * 0.4375
    assert float(alone.state["w"]) == -0.4375
    sizes = (examples(1, 1, 1), examples(2, 3, 3))
    weighted = Federation(Scaffold(), tmp_path / "b", sizes, weighting="examples")
    weighted.play(0)
    assert float(weighted.state["w"]) == -0.21875


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_without_examples(tmp_path: Path, option: Literal["I", "II"]) -> None:
    """Client 2 has none and keeps c_2 = 0, so c stays (c_0 + c_1 + c_2) / 3 in every round.

    Option II, round 1: (-0.875 - 4.5) / 3. Alone in round 2, client 2 changes neither c nor theta.
    """
    clients = (examples(1, 1), examples(2, 3), examples(1, 1, count=0))
    federation = Federation(Scaffold(option=option), tmp_path, clients)
    federation.play()
    before = (dict(federation.theta), dict(federation.state))
    assert float(before[1]["w"]) == close({"I": -7 / 3, "II": -5.375 / 3}[option])
    federation.play(2)
    assert (federation.theta, federation.state) == before
    for _ in range(3):
        federation.play()
        kept = ClientStates(tmp_path, federation.location, federation.round + 1)
        variates = [kept.read(client, federation.state) for client in range(3)]
        assert variates[2] is None
        total = sum(float(variate["w"]) for variate in variates if variate)
        assert float(federation.state["w"]) == close(total / 3)


def test_feddyn(tmp_path: Path) -> None:
    """alpha = 1. Round 1: the clients end as FedProx's, 0.375 and 1.875; g_k = -0.375, -1.875.

    h = -1.125 and theta = 1.125 + 1.125 = 2.25. Round 2, client 0: w - 1 + 0.375 + w - 2.25 =
    2 w - 2.875; 2.25, 1.84375, 1.640625. Client 1: 2 w - 6 + 1.875 + w - 2.25 = 3 w - 6.375; 2.25,
    2.15625, 2.1328125. Mean 1.88671875, h = -1.125 + 0.36328125, theta = 2.6484375.
    """
    federation = Federation(FedDyn(alpha=1.0), tmp_path)
    assert federation.play() == 2.25
    assert float(federation.state["w"]) == -1.125
    assert federation.play() == 2.6484375


def test_feddyn_of_some_clients(tmp_path: Path) -> None:
    """Client 0 alone goes to 0.375; half of the clients took part: h = -0.375 / 2.

    With a server rate of 2 theta goes twice as far, and h stays: 0.75 - h.
    """
    for rate, expected in ((1.0, 0.5625), (2.0, 0.9375)):
        folder = tmp_path / str(rate)
        federation = Federation(FedDyn(alpha=1.0), folder, server_learning_rate=rate)
        assert federation.play(0) == expected
        assert float(federation.state["w"]) == -0.1875


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(), FedAvgM(), FedBN(), FedDyn(alpha=0.0), FedNova(), FedPA(), FedProx(), FedSAM()],
    ids=lambda algorithm: algorithm.name,
)
def test_a_server_rate_of_two_goes_twice_as_far(algorithm: Algorithm, tmp_path: Path) -> None:
    once = Federation(algorithm, tmp_path / "one").play()
    twice = Federation(algorithm, tmp_path / "two", server_learning_rate=2.0).play()
    assert twice == close(2 * once)
    assert once != 0


def test_fedsam(tmp_path: Path) -> None:
    """rho = 0.5: gradients are taken half to the left, where w is left of its optimum.

    Client 0: g(-0.5) = -1.5, w = 0.375; g(-0.125) = -1.125, w = 0.65625. Client 1: g(-0.5) = -7,
    w = 1.75; g(1.25) = -3.5, w = 2.625.
    """
    assert Federation(FedSAM(rho=0.5), tmp_path).play() == close((0.65625 + 2.625) / 2)


def test_fedsmoo(tmp_path: Path) -> None:
    """alpha = 1, rho = 0.5, all duals 0 at first; u = g - mu - s, mu <- mu + s_k - s.

    Client 0: u = -1, s_k = -0.5, mu = -0.5, g(-0.5) = -1.5, w = 0.375; u = -0.625 + 0.5, s_k = -0.5,
    mu = -1, g(-0.125) + 0.375 = -0.75, w = 0.5625. Client 1: s_k = -0.5, mu = -0.5, w = 1.75;
    u = -2.5 + 0.5, s_k = -0.5, mu = -1, g(1.25) + 1.75 = -1.75, w = 2.1875. Mean 1.375, h = -1.375,
    theta = 2.75; each sends mu - s_k = -0.5, so s = 0.5 * sign(-0.5).

    Round 2 from 2.75 with lambda_0 = -0.5625, mu_0 = -1, s = -0.5. Client 0: u = 1.75 + 1 + 0.5,
    s_k = 0.5, mu = 0; g(3.25) + 0.5625 = 2.8125, w = 2.046875; u = 1.046875 - 0 + 0.5, s_k = 0.5,
    g(2.546875) + 0.5625 - 0.703125 = 1.40625, w = 1.6953125. Client 1, lambda = -2.1875: u = -0.5 +
    1.5, s_k = 0.5, mu = 0, g(3.25) + 2.1875 = 2.6875, w = 2.078125; u = -1.84375 + 0.5, s_k = -0.5,
    g(1.578125) + 2.1875 - 0.671875 = -1.328125, w = 2.41015625. Mean 2.052734375, h = -1.375 -
    (2.052734375 - 2.75).
    """
    federation = Federation(FedSMOO(alpha=1.0, rho=0.5), tmp_path)
    assert federation.play() == close(2.75)
    assert float(federation.state["s/w"]) == close(-0.5)
    mean = (1.6953125 + 2.41015625) / 2
    assert federation.play() == close(mean + 1.375 + (mean - 2.75))


def test_fedsmoo_without_examples() -> None:
    """A client that takes no step has no perturbation: it sends mu_k - 0, and keeps mu_k."""
    w = {"w": torch.zeros((), dtype=torch.float64)}
    context = ClientContext(w, state={"w": torch.tensor(3.0), "mu/w": torch.tensor(5.0)})
    extras = FedSMOO(alpha=1.0).finalize(w, context, 0)
    assert float(extras.upload["w"]) == 5.0
    assert {name: float(kept) for name, kept in extras.state.items()} == {"w": 3.0, "mu/w": 5.0}


def test_fednova(tmp_path: Path) -> None:
    """n = 1 and 2 with B = 1, E = 2: 2 and 4 steps; client 1 ends at 2.8125. p = 1/3, 2/3.

    d = 0.4375 / 2 and 2.8125 / 4; tau_eff = (2 + 2 * 4) / 3. FedAvg would give (0.4375 + 5.625) / 3.
    """
    clients = (examples(1, 1, 1), examples(2, 3, 2))
    federation = Federation(FedNova(), tmp_path, clients, weighting="examples", batch_size=1)
    mean = (0.4375 / 2 + 2 * 2.8125 / 4) / 3
    assert federation.play() == close(10 / 3 * mean)


@pytest.mark.parametrize(("nesterov", "weight"), [(False, 2.5), (True, 3.25)])
def test_fednova_counts_momentum(nesterov: bool, weight: float) -> None:
    """rho = 0.5, two steps. Heavy ball: g1, then g2 + g1 / 2: 1.5 + 1.

    Nesterov: 1.5 g1, then g2 + (g2 + g1 / 2) / 2: 1.75 + 1.5.
    """
    w = {"w": torch.zeros((), dtype=torch.float64)}
    context = ClientContext(w, momentum=0.5, nesterov=nesterov)
    assert float(FedNova().finalize(w, context, 2).upload["weight"]) == weight


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rho", [0.5, 0.999, 1 - 1e-9])
def test_fednova_counts_momentum_near_one_in_single_precision(nesterov: bool, rho: float) -> None:
    """A hundred steps along gradients of 1."""
    v = theta = 0.0
    for _ in range(100):
        v = rho * v + 1
        theta += 1 + rho * v if nesterov else v
    w = {"w": torch.zeros(())}
    context = ClientContext(w, momentum=rho, nesterov=nesterov)
    weight = FedNova().finalize(w, context, 100).upload["weight"]
    assert weight.dtype == torch.float32
    assert float(weight) == pytest.approx(theta, rel=1e-6)


def test_fedpa(tmp_path: Path) -> None:
    """Two samples of one step, rho = 1: r = 1 / 2, Sigma = 1/2 + S / 2.

    Client 0: 0.25, 0.4375: mu = 0.34375, S = 2 * 0.09375^2. Client 1: 1.5, 2.25: mu = 1.875,
    S = 2 * 0.375^2.
    """
    federation = Federation(FedPA(samples=2, steps_per_sample=1, rho=1.0), tmp_path)
    first = 0.34375 / (0.5 + 0.09375**2)
    second = 1.875 / (0.5 + 0.375**2)
    assert federation.play() == close((first + second) / 2)


def test_fedpa_leaves_out_what_is_no_whole_sample(tmp_path: Path) -> None:
    """Burn-in of one step, samples of one step: one sample, Sigma = 1: the last iterates.

    With samples of three steps there is none, and the update is the plain one. Both are FedAvg.
    """
    one = FedPA(samples=3, steps_per_sample=1, burn_in=1, rho=1.0)
    assert Federation(one, tmp_path).play() == close(FEDAVG)
    none = FedPA(samples=2, steps_per_sample=3, rho=1.0)
    assert Federation(none, tmp_path).play() == FEDAVG


def test_fedpa_divides_a_turn_among_its_samples(tmp_path: Path) -> None:
    """Two steps and no burn-in: two samples of one step, or one of both, the mean iterate.

    Client 0: (0.25 + 0.4375) / 2 = 0.34375, client 1: 1.875; one sample has Sigma = 1.
    """
    two = FedPA(samples=2, rho=1.0)
    by_hand = FedPA(samples=2, steps_per_sample=1, rho=1.0)
    assert Federation(two, tmp_path).play() == Federation(by_hand, tmp_path).play()
    one = FedPA(samples=1, rho=1.0)
    assert Federation(one, tmp_path).play() == close((0.34375 + 1.875) / 2)


@pytest.mark.parametrize(
    ("steps", "burn_in", "length"), [(60, 0, 12), (60, 30, 6), (64, 30, 6), (3, 0, 1), (3, 5, 1)]
)
def test_fedpa_knows_how_long_a_sample_is(steps: int, burn_in: int, length: int) -> None:
    """(steps - burn-in) / samples, rounded down, and 1 where there are not as many."""
    context = ClientContext({"w": torch.zeros(2)}, steps=steps)
    drawn = FedPA(burn_in=burn_in).round_randomness(context, 0, 0)
    assert float(drawn["length"]) == length


def test_fedpa_is_fedavg_in_the_rounds_of_its_burn_in(tmp_path: Path) -> None:
    """Of whole clients' turns: the third round is the first whose samples count."""
    settings = {"samples": 2, "steps_per_sample": 1, "rho": 1.0}
    late = Federation(FedPA(burn_in_rounds=2, **settings), tmp_path / "late")
    plain = Federation(FedAvg(), tmp_path / "plain")
    assert [late.play(), late.play()] == [plain.play(), plain.play()]
    assert late.play() != close(plain.play())


def test_fedavgm(tmp_path: Path) -> None:
    """beta = 0.5. Round 1: v = Delta = 1.34375. Round 2, client 0 from 1.34375: 1.2578125,
    1.193359375; client 1: 2.171875, 2.5859375; Delta = 0.5458984375, v = 1.2177734375.

    Nesterov's first step: Delta + 0.5 v = 2.015625.
    """
    federation = Federation(FedAvgM(momentum=0.5), tmp_path)
    assert federation.play() == FEDAVG
    assert federation.play() == FEDAVG + 1.2177734375
    assert Federation(FedAvgM(momentum=0.5, nesterov=True), tmp_path).play() == 2.015625


def cosine_slope(w: float, v: float) -> float:
    """d/dw of (w v + 1) / sqrt((w^2 + 1)(v^2 + 1)), the similarity of (w, 1) and (v, 1)."""
    return (v - w) / ((w * w + 1) ** 1.5 * math.sqrt(v * v + 1))


@pytest.mark.parametrize("temperature", [0.5, 0.2])
def test_moon(tmp_path: Path, temperature: float) -> None:
    """z = (w, 1). Round 1: the previous model is theta, the term is log 2 and its slope 0: FedAvg.

    Round 2: client k adds mu log(1 + exp((s_prev - s_glob) / T)), whose slope is mu / T *
    sigmoid((s_prev - s_glob) / T) * (s_prev' - s_glob').
    """
    federation = Federation(Moon(mu=2.0, temperature=temperature), tmp_path)
    assert federation.play() == FEDAVG
    ends = []
    for h, a, previous in ((1, 1, 0.4375), (2, 3, 2.25)):
        w = FEDAVG
        for _ in range(2):
            nearer = (cosine(w, previous) - cosine(w, FEDAVG)) / temperature
            slope = cosine_slope(w, previous) - cosine_slope(w, FEDAVG)
            w -= RATE * (h * (w - a) + 2 / temperature * slope / (1 + math.exp(-nearer)))
        ends.append(w)
    assert federation.play() == close(sum(ends) / 2)


def cosine(w: float, v: float) -> float:
    return (w * v + 1) / math.sqrt((w * w + 1) * (v * v + 1))


def test_fedlc(tmp_path: Path) -> None:
    """Logits (w, 0). Labels 0, 0, 0, 1 give margins tau 3^(-1/4) and tau: the slope is
    sigmoid(w - tau 3^(-1/4) + tau) - 3/4. Labels 1, 1: class 0 is missing, its margin is 100 tau,
    its probability 0: w stays where it is.
    """
    clients = (labelled(0, 0, 0, 1), labelled(1, 1))
    federation = Federation(FedLC(tau=2.0), tmp_path, clients, classes=2)
    w = 0.0
    for _ in range(2):
        w -= RATE * (1 / (1 + math.exp(-(w - 2 * 3**-0.25 + 2))) - 0.75)
    assert federation.play() == close(w / 2)


def test_fedntd(tmp_path: Path) -> None:
    """Logits (w, 0, 0), label 2: cross-entropy's slope is e^w / (e^w + 2).

    Not-true classes 0 and 1: theta says 1/2, the model sigmoid(w / tau); tau^2 KL has the slope
    tau (sigmoid(w / tau) - 1/2). Label 0: its logit is out, so only cross-entropy pulls.
    """
    clients = (labelled(2), labelled(0))
    federation = Federation(FedNTD(beta=3.0, temperature=2.0), tmp_path, clients, classes=3)
    first = second = 0.0
    for _ in range(2):
        share = math.exp(first) / (math.exp(first) + 2)
        first -= RATE * (share + 3 * 2 * (1 / (1 + math.exp(-first / 2)) - 0.5))
        second -= RATE * (math.exp(second) / (math.exp(second) + 2) - 1)
    assert federation.play() == close((first + second) / 2)


@pytest.mark.parametrize("adaptive", [True, False])
def test_fedsol(tmp_path: Path, adaptive: bool) -> None:
    """Logits (w, 0), rho = 0.5. Step 1: no proximal gradient at theta, the plain slope
    sigmoid(0) - [label = 0]. Step 2: w has moved away from 0, the proximal loss grows that way, and
    the slope is taken 0.5 further out. With one number |w - theta| normalises to 1.
    """
    algorithm = FedSOL(rho=0.5, adaptive=adaptive)
    federation = Federation(algorithm, tmp_path, (labelled(0), labelled(1, 1)), classes=2)
    ends = []
    for label in (0, 1):
        w = -RATE * (0.5 - (label == 0))
        out = w + math.copysign(0.5, w)
        ends.append(w - RATE * (1 / (1 + math.exp(-out)) - (label == 0)))
    assert federation.play() == close(sum(ends) / 2)


@pytest.mark.parametrize(
    ("adaptive", "expected"),
    [(True, [[0.3, 0.5], [0.4, 0.0]]), (False, [[0.5, 0.5], [0.5, 0.5]])],
)
def test_fedsol_perturbs_rows_of_a_tensor_by_how_far_each_has_moved(
    adaptive: bool, expected: list[list[float]]
) -> None:
    """Proximal gradient 1, 1, 1, 1 of norm 2, rho = 1: eps is 1 / 2 everywhere.

    Columns of |w - theta| are (3, 4) and (1, 0), of norms 5 and 1.
    """
    seen: list[Mapping[str, Tensor]] = []

    def differentiate(
        params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[Tensors, Tensor]:
        seen.append(params)
        return {"w": torch.ones(2, 2)}, torch.tensor(0.0)

    theta, w = torch.full((2, 2), 10.0), torch.tensor([[13.0, 9.0], [6.0, 10.0]])
    batch = Batch(torch.zeros(1), torch.zeros(1))
    algorithm = FedSOL(rho=1.0, adaptive=adaptive)
    algorithm.gradient(differentiate, {"w": w}, batch, ClientContext({"w": theta}))
    torch.testing.assert_close(seen[1]["w"] - w, torch.tensor(expected))


@pytest.mark.parametrize("adaptive", [True, False])
def test_fedsol_does_not_perturb_where_its_gradient_is_rounding_errors(adaptive: bool) -> None:
    """At theta, where each client begins."""
    points = []

    def differentiate(
        params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[Tensors, Tensor]:
        points.append(params["w"].tolist())
        return {"w": torch.full((2,), 1e-9)}, torch.tensor(0.5)

    theta, batch = {"w": torch.ones(2)}, Batch(torch.zeros(1), torch.zeros(1))
    FedSOL(adaptive=adaptive).gradient(differentiate, theta, batch, ClientContext(theta))
    assert points == [[1.0, 1.0], [1.0, 1.0]]


class Given:
    """A network whose logits are its inputs times w."""

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return params["w"] * inputs

    def features(self, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.outputs(params, inputs), inputs

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        return CrossEntropy().loss(outputs, targets, mask)


@pytest.mark.parametrize(
    "objective",
    [FedLC(tau=2.0).loss, FedNTD(temperature=2.0).loss, FedSOL().proximal_loss],
    ids=["fedlc", "fedntd", "fedsol"],
)
def test_the_loss_of_texts_is_the_mean_over_their_tokens(objective: Objective) -> None:
    """Two texts of three tokens over four classes, one token of which does not count."""
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([[0, 3, 1], [2, IGNORE, 1]])
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    context = ClientContext({"w": one}, label_counts=torch.tensor([1.0, 2.0, 1.0, 0.0]))
    text = objective(Given(), {"w": two}, Batch(logits, targets), context)
    tokens = [
        objective(
            Given(), {"w": two}, Batch(logits[i : i + 1, :, t], targets[i : i + 1, t]), context
        )
        for i, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2))
    ]
    assert float(text) == pytest.approx(float(sum(tokens)) / 5)


def test_fedbn() -> None:
    """The client starts from theta, but with its own normalisation, and keeps what that becomes."""
    theta = {"w": torch.tensor(1.0), "norm.weight": torch.tensor(2.0)}
    context = ClientContext(theta, normalisation=frozenset({"norm.weight"}))
    assert FedBN().initial_client_state(context) == {"norm.weight": torch.tensor(2.0)}
    context = ClientContext(
        theta, state={"norm.weight": torch.tensor(5.0)}, normalisation=context.normalisation
    )
    assert FedBN().initial_params(context) == {
        "w": torch.tensor(1.0),
        "norm.weight": torch.tensor(5.0),
    }
    ended = {"w": torch.tensor(3.0), "norm.weight": torch.tensor(7.0)}
    assert FedBN().finalize(ended, context, 2) == ClientExtras(
        state={"norm.weight": torch.tensor(7.0)}
    )


DELTAS = (1.0, -0.5, 2.0)
MOMENTS = (0.5, 0.0, 1.0)
"""m with beta1 = 0.5: 0.5 * 1; 0.25 - 0.25; 0 + 0.5 * 2."""
SQUARES = {
    FedAdagrad: (1.01, 1.26, 5.26),
    FedAdam: (0.505, 0.3775, 2.18875),
    FedYogi: (0.51, 0.385, 2.385),
}
"""v from 0.1^2. Adagrad: + 1, + 0.25, + 4. Adam, beta2 = 0.5: 0.005 + 0.5; 0.2525 + 0.125;
0.18875 + 2. Yogi: 0.01 < 1, + 0.5; 0.51 > 0.25, - 0.125; 0.385 < 4, + 2."""


def fedopt(kind: type[FedOpt]) -> FedOpt:
    betas = {"beta1": 0.5} if kind is FedAdagrad else {"beta1": 0.5, "beta2": 0.5}
    return kind(tau=0.1, **betas)


def three_rounds(algorithm: FedOpt) -> list[float]:
    theta = {"w": torch.zeros((), dtype=torch.float64)}
    state, path = algorithm.start(theta), []
    for round_, delta in enumerate(DELTAS, start=1):
        step = ServerStep(RoundPlan(round=round_, learning_rate=1.0), 0.1, 1, 1, 1.0)
        mean = {"w": torch.tensor(delta, dtype=torch.float64)}
        theta, state = algorithm.apply(theta, mean, {}, state, step)
        path.append(float(theta["w"]))
    return path


@pytest.mark.parametrize("kind", list(SQUARES))
def test_fedopt_over_three_rounds(kind: type[FedOpt]) -> None:
    """x <- x + 0.1 m / (sqrt(v) + 0.1) with Delta = 1, -0.5, 2 (Reddi et al., Algorithm 2)."""
    x, expected = 0.0, []
    for m, v in zip(MOMENTS, SQUARES[kind], strict=True):
        x += 0.1 * m / (math.sqrt(v) + 0.1)
        expected.append(x)
    assert three_rounds(fedopt(kind)) == pytest.approx(expected, abs=1e-12)


FLOWERS = {
    FedAdagrad: (flower.FedAdagrad, (1.0, -0.5, 2.0), (1.0, 1.25, 5.25), (1.0, 1.0, 1.0)),
    FedAdam: (
        flower.FedAdam,
        MOMENTS,
        (0.5, 0.375, 2.1875),
        tuple(math.sqrt(1 - 0.5 ** (t + 1)) / (1 - 0.5 ** (t + 1)) for t in (1, 2, 3)),
    ),
    FedYogi: (flower.FedYogi, MOMENTS, (0.5, 0.375, 2.375), (1.0, 1.0, 1.0)),
}
"""Flower 1.42's class, m, v and factor of eta: v starts at 0, FedAdam corrects bias with t + 1,
FedAdagrad has no beta1."""


@pytest.mark.usefixtures("server_identity")
@pytest.mark.parametrize("kind", list(FLOWERS))
def test_flower_gives_other_numbers(kind: type[FedOpt]) -> None:
    """After three rounds FedAdam: 0.0715, 0.0715, 0.1369 there and 0.0617, 0.0617, 0.1250 here.

    First step there: 0.1 * sqrt(0.75) / 0.75 * 0.5 / (sqrt(0.5) + 0.1); here 0.1 * 0.5 /
    (sqrt(0.505) + 0.1).
    """
    theirs, moments, squares, factors = FLOWERS[kind]
    expected = np.cumsum(
        [
            0.1 * f * m / (math.sqrt(v) + 0.1)
            for f, m, v in zip(factors, moments, squares, strict=True)
        ]
    )
    betas = {} if kind is FedAdagrad else {"beta_1": 0.5, "beta_2": 0.5}
    other = theirs(eta=0.1, eta_l=1.0, tau=0.1, **betas)
    x, found = np.zeros(1), []
    for round_, delta in enumerate(DELTAS, start=1):
        other.current_arrays = {"w": x}
        arrays, _ = other.aggregate_train(round_, [reply_with(x + delta)])
        x = arrays["w"].numpy()
        found.append(float(x[0]))
    assert found == pytest.approx(expected, abs=1e-12)
    assert max(np.abs(np.array(found) - three_rounds(fedopt(kind)))) > 1e-4
    if kind is FedAdam:
        assert np.round(found, 4).tolist() == [0.0715, 0.0715, 0.1369]
        assert np.round(three_rounds(fedopt(kind)), 4).tolist() == [0.0617, 0.0617, 0.1250]


def reply_with(model: np.ndarray) -> Message:
    """Return the reply of one client of one example."""
    records = {
        "arrays": ArrayRecord({"w": Array(model)}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(records), 1, "train")
