"""The papers' networks: counts, shapes, seeds, functional use, the peephole LSTM by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedapp.config.read import read_config
from fedapp.config.registry import FAMILIES
from fedapp.data.dataset import IGNORE, Task
from fedapp.errors import ConfigError
from fedapp.models.cifar_tf import CifarTF
from fedapp.models.cnn import CnnBN, MnistCNN, PflCNN, SeoCNN
from fedapp.models.initial_weights import draw_initial_weights
from fedapp.models.lstm import CharLSTM, WordLSTM
from fedapp.models.mlp import Linear, TwoNN
from fedapp.models.model import Model, initialise
from fedapp.models.peephole import PeepholeLSTM
from fedapp.models.quadratic import Quadratic
from fedapp.models.resnet import ResNet18GN
from fedapp.training.build import initial_parameters
from fedapp.training.networks import layer_with_statistics, running_statistics

MNIST = Task("image", (1, 28, 28), 10)
CIFAR = Task("image", (3, 32, 32), 10)
CROPS = Task("image", (3, 24, 24), 10)
CHARACTERS = Task("tokens", (80,), 258)
WORDS = Task("tokens", (10,), 10_000)
VECTORS = Task("vector", (5,), 3)

COUNTS = [
    (TwoNN(), MNIST, 199_210),
    (Linear(), MNIST, 7_850),
    (MnistCNN(), MNIST, 1_663_370),
    (CifarTF(), CROPS, 1_068_298),
    (CifarTF(), CIFAR, 1_756_426),
    (SeoCNN(), CIFAR, 2_156_490),
    (PflCNN(), CIFAR, 1_626_442),
    (CnnBN(), Task("image", (3, 28, 28), 10), 14_219_210),
    (ResNet18GN(), CIFAR, 11_173_962),
    (ResNet18GN(stem="imagenet"), CIFAR, 11_181_642),
    (CharLSTM(), CHARACTERS, 866_578),
    (WordLSTM(), WORDS, 4_950_544),
]

# Each component on inputs as small as it takes, odd sizes included.
SMALL = [
    (TwoNN(hidden=4), Task("image", (2, 5, 3), 3)),
    (TwoNN(hidden=4), VECTORS),
    (Linear(), Task("image", (1, 4, 4), 3)),
    (MnistCNN(hidden=8), Task("image", (2, 5, 7), 3)),
    (CifarTF(), Task("image", (3, 9, 6), 3)),
    (SeoCNN(hidden=8), Task("image", (1, 8, 4), 3)),
    (PflCNN(), Task("image", (3, 7, 6), 3)),
    (CnnBN(width=1), Task("image", (2, 5, 9), 3)),
    (ResNet18GN(), Task("image", (1, 8, 8), 3)),
    (CharLSTM(embedding=3, hidden=4), Task("tokens", (6,), 5)),
    (WordLSTM(embedding=3, hidden=4), Task("tokens", (6,), 5)),
]

STACKED = [pair for pair in SMALL if pair[0].name != "cnn-bn"]
"""Those of which several clients can train in one program."""


def identifier(value: object) -> str:
    return value.name if isinstance(value, Model) else ""


def inputs_of(task: Task, *batch: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (*batch, *task.input_shape)
    if task.kind == "tokens":
        return torch.randint(task.num_classes, shape, generator=generator)
    return torch.rand(shape, generator=generator, dtype=dtype)


def targets_of(task: Task, *batch: int) -> Tensor:
    shape = (*batch, *task.input_shape) if task.kind == "tokens" else batch
    return torch.arange(math.prod(shape)).view(shape) % task.num_classes


@pytest.mark.parametrize(("model", "task", "count"), COUNTS, ids=identifier)
def test_parameter_counts(model, task, count):
    network = model.build(task)
    assert sum(p.numel() for p in network.parameters()) == count
    # Nothing but parameters is averaged, and nothing but these stays with the clients.
    assert dict(network.named_buffers()).keys() == running_statistics(network).keys()
    assert bool(layer_with_statistics(network)) == (model.name == "cnn-bn")


def test_every_component_is_tested_for_its_count():
    components = next(f for f in FAMILIES if f.key == "model").components()
    tested_elsewhere = {"quadratic"}
    assert set(components) - tested_elsewhere == {model.name for model, _, _ in COUNTS}


@pytest.mark.parametrize(
    ("model", "task"), [(m, t) for m, t, _ in COUNTS if t != WORDS], ids=identifier
)
def test_output_shapes_on_the_papers_tasks(model, task):
    outputs = model.build(task)(inputs_of(task, 2, dtype=torch.float32))
    steps = task.input_shape if task.kind == "tokens" else ()
    assert outputs.shape == (2, task.num_classes, *steps)


def test_seo_layer_names():
    layers = {name.split(".")[0] for name, _ in SeoCNN().build(CIFAR).named_parameters()}
    assert layers == {"conv1", "conv2", "fc1", "fc2"}


@pytest.mark.parametrize(("model", "task"), SMALL, ids=identifier)
def test_initial_weights_come_from_the_seed_alone(model, task):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (initialise(model, task, seed) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    flat = [torch.cat([p.flatten() for p in n.parameters()]) for n in (first, again, other)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])


@pytest.mark.parametrize(
    ("kind", "largest", "deviation", "bias"),
    [  # of 25 * 32 = 800 inputs and 25 * 64 = 1,600 outputs a weight: conv2 of the CNN
        ("truncated-normal", 0.2, 0.1 * 0.8796, 0.1),  # of a normal cut at two sigma: 0.8796 sigma
        ("glorot", math.sqrt(6 / 2400), math.sqrt(6 / 2400 / 3), 0.0),
        ("he", math.inf, math.sqrt(2 / 800), 0.0),
    ],
)
def test_initial_weights_have_the_distribution_that_is_named(kind, largest, deviation, bias):
    network = initialise(MnistCNN(), MNIST, 0)
    before = torch.get_rng_state()
    draw_initial_weights(network, kind, 0, "mnist-cnn")
    assert torch.equal(torch.get_rng_state(), before)
    found = dict(network.named_parameters())
    weights = next(w for w in found.values() if w.shape == (64, 32, 5, 5))
    assert weights.abs().max() <= largest
    assert weights.std().item() == pytest.approx(deviation, rel=0.02)
    assert abs(weights.mean().item()) < 4 * deviation / math.sqrt(weights.numel())
    assert all((b == bias).all() for name, b in found.items() if name.endswith("bias"))


def test_initial_weights_are_drawn_from_the_seed_and_models_keep_their_own_by_default():
    def weights(kind: str, seed: int) -> Tensor:
        network = initialise(TwoNN(hidden=4), VECTORS, seed)
        draw_initial_weights(network, kind, seed, "2nn")
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    own = torch.cat([p.flatten() for p in initialise(TwoNN(hidden=4), VECTORS, 7).parameters()])
    assert torch.equal(weights("model", 7), own)
    assert torch.equal(weights("he", 7), weights("he", 7))
    assert not torch.equal(weights("he", 7), weights("he", 8))


def test_what_is_neither_linear_nor_convolutional_keeps_its_initial_weights():
    """Normalisation of a ResNet would be no normalisation with scales of 0.1; cells have their rules."""
    for model, task in ((ResNet18GN(), CIFAR), (CharLSTM(embedding=3, hidden=4), CHARACTERS)):
        network = initialise(model, task, 0)
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        draw_initial_weights(network, "truncated-normal", 0, model.name)
        layers = {
            f"{name}.{kind}"
            for name, layer in network.named_modules()
            if isinstance(layer, nn.Linear | nn.Conv2d)
            for kind in ("weight", "bias")
        }
        changed = {n for n, p in network.named_parameters() if not torch.equal(p, before[n])}
        assert changed == layers & set(before)
        assert changed < set(before)


def test_a_run_begins_with_the_weights_that_its_config_names():
    config = read_config({"initial-weights": "truncated-normal", "seed": 3})
    task = Task("image", (1, 8, 8), 10)
    theta, network = initial_parameters(config, task), initialise(TwoNN(), task, 3)
    draw_initial_weights(network, "truncated-normal", 3, "2nn")
    for name, parameter in network.named_parameters():
        assert torch.equal(theta[name], parameter), name


def test_initial_weights_without_a_layer_to_draw_are_refused():
    model = next(f for f in FAMILIES if f.key == "model").components()["quadratic"]
    network = initialise(model(), Task("quadratic", (2, 3), 1), 0)
    with pytest.raises(
        ConfigError, match="initial-weights = 'he': has no effect, because model 'quad"
    ):
        draw_initial_weights(network, "he", 0, "quadratic")


@pytest.mark.parametrize(("model", "task"), STACKED, ids=identifier)
def test_stacked_clients_under_vmap_equal_single_calls(model, task):
    """Outputs and gradients of two clients with their own parameters and data, in float64."""
    clients = [initialise(model, task, seed).double() for seed in (0, 1)]
    inputs, targets = inputs_of(task, 2, 3), targets_of(task, 2, 3)

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return model.loss(functional_call(clients[0], params, (x,)), y)

    params, _ = stack_module_state(clients)
    params = {name: tensor.detach() for name, tensor in params.items()}
    outputs = vmap(lambda p, x: functional_call(clients[0], p, (x,)))(params, inputs)
    stacked = vmap(grad(loss))(params, inputs, targets)
    for k, client in enumerate(clients):
        single = client(inputs[k])
        torch.testing.assert_close(outputs[k], single)
        model.loss(single, targets[k]).backward()
        for name, parameter in client.named_parameters():
            assert parameter.grad.isfinite().all()
            torch.testing.assert_close(stacked[name][k], parameter.grad, msg=name)


@pytest.mark.parametrize(
    ("model", "task"), [(m, t) for m, t in SMALL if t.kind == "image"], ids=identifier
)
def test_channels_last_inputs_give_the_same_logits(model, task):
    network, inputs = model.build(task).double(), inputs_of(task, 3)
    expected = network(inputs)
    torch.testing.assert_close(network(inputs.to(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize(("model", "task"), SMALL, ids=identifier)
def test_a_step_down_the_gradient_lowers_the_loss(model, task):
    network, inputs, targets = initialise(model, task, 0).double(), inputs_of(task, 4), None
    targets = targets_of(task, 4)
    before = model.loss(network(inputs), targets)
    before.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 1e-3 * parameter.grad
    assert model.loss(network(inputs), targets) < before


# ---------------------------------------------------------------- details of single networks


def test_tensorflow_pooling_and_normalisation():
    """SAME pooling starts at the first pixel of an even side; the window holds 9 channels."""
    network = CifarTF().build(CROPS)
    row = torch.arange(24.0).expand(1, 1, 24, 24)
    assert network.pool1(row)[0, 0, 0].tolist() == [*range(2, 24, 2), 23]
    odd = CifarTF().build(Task("image", (1, 5, 5), 2)).pool1
    assert odd(torch.arange(5.0).expand(1, 1, 5, 5))[0, 0, 0].tolist() == [1, 3, 4]
    ones = network.norm1(torch.ones(1, 64, 1, 1)).flatten()
    assert ones[32].item() == pytest.approx((1 + 0.001) ** -0.75)  # 9 neighbours of 0.001 / 9
    assert ones[0].item() == pytest.approx((1 + 0.001 * 5 / 9) ** -0.75)  # itself and 4
    maps = 30 * inputs_of(Task("image", (64, 3, 2), 2), 2)
    library = nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)  # divides alpha by 9
    torch.testing.assert_close(network.norm1(maps), library(maps))
    apart = maps.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network.norm1(apart), library(maps))


def test_tutorial_initialisation():
    network = initialise(CifarTF(), CROPS, 0)
    for layer, deviation, bias in (
        (network.conv1, 0.05, 0.0),
        (network.conv2, 0.05, 0.1),
        (network.fc1, 0.04, 0.1),
        (network.fc2, 0.04, 0.1),
        (network.output, 1 / 192, 0.0),
    ):
        assert layer.weight.abs().max() <= 2 * deviation + 1e-6
        # A normal distribution cut at two standard deviations keeps 0.8796 of one.
        assert layer.weight.std().item() == pytest.approx(0.8796 * deviation, rel=0.05)
        assert layer.bias.unique().tolist() == [pytest.approx(bias)]


def test_forget_bias_is_the_start_of_the_forget_gates():
    with_bias, without = (initialise(CharLSTM(forget_bias=b), CHARACTERS, 0) for b in (1.0, 0.0))
    for layer, plain in zip(with_bias.layers, without.layers, strict=True):
        expected = torch.zeros(4, 256)
        expected[1] = 1
        torch.testing.assert_close(layer.bias - plain.bias, expected.flatten())


def test_relu_behind_the_pooling_is_the_same_network():
    network, inputs = SeoCNN(hidden=8).build(CIFAR).double(), inputs_of(CIFAR, 2)
    hidden = inputs
    for convolution in (network.conv1, network.conv2):
        hidden = F.max_pool2d(convolution(hidden).relu(), 2)
    expected = network.fc2(network.fc1(hidden.flatten(1)).relu())
    torch.testing.assert_close(network(inputs), expected)


def test_predictions_do_not_see_later_tokens():
    network = CharLSTM(embedding=3, hidden=4).build(Task("tokens", (6,), 5)).double()
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0]])
    changed = tokens.clone()
    changed[0, 4] = 1
    first, second = network(tokens), network(changed)
    torch.testing.assert_close(first[..., :4], second[..., :4])
    assert not torch.allclose(first[..., 4:], second[..., 4:])


def test_tokens_of_any_integer_type():
    network = WordLSTM(embedding=3, hidden=4).build(Task("tokens", (6,), 5))
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0]])
    assert torch.equal(network(tokens.to(torch.uint8)), network(tokens))


# ---------------------------------------------------------------- loss and hits


def test_loss_and_hits_by_hand():
    """Logits (0, ln 3) give probabilities 1/4 and 3/4; class 1 is predicted."""
    outputs = torch.tensor([[0.0, math.log(3)]]).repeat(3, 1)
    targets = torch.tensor([1, 0, IGNORE])
    model = Linear()
    expected = (math.log(4 / 3) + math.log(4)) / 2
    assert model.loss(outputs, targets).item() == pytest.approx(expected)
    mask = torch.tensor([1.0, 0.0, 1.0])
    assert model.loss(outputs, targets, mask).item() == pytest.approx(math.log(4 / 3))
    assert [int(x) for x in model.num_correct(outputs, targets)] == [1, 2]


def test_token_loss_counts_every_target_once():
    """Two sequences of two steps, one step padded: the mean is over three targets."""
    outputs = torch.zeros(2, 4, 2)  # uniform over four symbols: every loss is ln 4
    outputs[1, 2, 0] = math.log(5)  # probability 5/8 of symbol 2
    targets = torch.tensor([[0, 3], [2, IGNORE]])
    model = CharLSTM()
    expected = (2 * math.log(4) + math.log(8 / 5)) / 3
    assert model.loss(outputs, targets).item() == pytest.approx(expected)
    mask = torch.tensor([0.0, 1.0])
    assert model.loss(outputs, targets, mask).item() == pytest.approx(math.log(8 / 5))
    assert [int(x) for x in model.num_correct(outputs, targets)] == [2, 3]  # argmax of a tie is 0


def test_nothing_to_predict_gives_zero_loss_and_gradient():
    outputs = torch.ones(2, 3, requires_grad=True)
    loss = Linear().loss(outputs, torch.tensor([IGNORE, IGNORE]))
    loss.backward()
    assert loss.item() == 0
    assert outputs.grad.eq(0).all()


# ---------------------------------------------------------------- the peephole LSTM


def reference(layer: PeepholeLSTM, inputs: Tensor) -> Tensor:
    """The equations of the cell, one step after the other, for autograd to differentiate."""
    hidden = cell = inputs.new_zeros(inputs.shape[1], layer.weight_hidden.shape[1])
    p_i, p_f, p_o = layer.peephole
    outputs = []
    for x in inputs:
        gates = x @ layer.weight_input.T + hidden @ layer.weight_hidden.T + layer.bias
        i, f, g, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f + p_f * cell) * cell + torch.sigmoid(i + p_i * cell) * torch.tanh(g)
        hidden = torch.sigmoid(o + p_o * cell) * torch.tanh(cell)
        outputs.append(hidden)
    return torch.stack(outputs)


def test_one_unit_by_hand():
    """Inputs reach g only, so that every gate is its peephole's sigmoid.

    Step 1: i = f = 1/2, g = tanh(1) = 0.761594, so c = 0.380797, o = sigmoid(3 c) = 0.758118 and
    h = o tanh(c) = 0.758118 * 0.363399 = 0.275500. Step 2, x = 0: g = tanh(2 h) = 0.501269,
    i = sigmoid(c) = 0.594065, f = sigmoid(2 c) = 0.681700, so the new c = 0.594065 * 0.501269
    + 0.681700 * 0.380797 = 0.557376, o = sigmoid(3 * 0.557376) = 0.841859 and
    h = 0.841859 * 0.506028 = 0.426004.
    """
    layer = PeepholeLSTM(1, 1).double()
    with torch.no_grad():
        layer.weight_input.copy_(torch.tensor([[0.0], [0.0], [1.0], [0.0]]))
        layer.weight_hidden.copy_(torch.tensor([[0.0], [0.0], [2.0], [0.0]]))
        layer.bias.zero_()
        layer.peephole.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    outputs = layer(torch.tensor([1.0, 0.0], dtype=torch.float64).view(2, 1, 1))
    assert outputs.flatten().tolist() == pytest.approx([0.275500, 0.426004], abs=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_cell_equals_its_equations(steps):
    torch.manual_seed(0)
    layer = PeepholeLSTM(3, 4).double()
    inputs = torch.randn(steps, 5, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(steps, 5, 4, dtype=torch.float64)
    leaves = [inputs, *layer.parameters()]
    expected, outputs = reference(layer, inputs), layer(inputs)
    torch.testing.assert_close(outputs, expected)
    gradients = torch.autograd.grad((outputs * weights).sum(), leaves)
    for ours, theirs in zip(
        gradients, torch.autograd.grad((expected * weights).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_gradient_against_finite_differences():
    torch.manual_seed(0)
    layer = PeepholeLSTM(2, 3).double()
    names = [name for name, _ in layer.named_parameters()]

    def outputs(inputs: Tensor, *values: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, values, strict=True)), (inputs,))

    inputs = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (inputs, *layer.parameters()))


def test_gradients_of_single_examples_of_stacked_clients():
    """A vmap over examples within a vmap over clients: their sum is the clients' gradient."""
    clients = [PeepholeLSTM(2, 3).double() for _ in range(2)]
    params, _ = stack_module_state(clients)
    params = {name: tensor.detach() for name, tensor in params.items()}
    inputs = torch.randn(2, 5, 4, 2, dtype=torch.float64)  # clients, steps, examples, numbers

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(clients[0], p, (x,)).square().sum()

    whole = vmap(grad(loss))(params, inputs)
    single = vmap(vmap(grad(lambda p, x: loss(p, x.unsqueeze(1))), in_dims=(None, 1)))
    for name, each in single(params, inputs).items():
        torch.testing.assert_close(each.sum(1), whole[name])


def test_no_second_derivative():
    layer = PeepholeLSTM(2, 3)
    inputs = torch.ones(2, 1, 2, requires_grad=True)
    (first,) = torch.autograd.grad(layer(inputs).sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


# ---------------------------------------------------------------- errors


def test_text_for_an_image_model():
    with pytest.raises(ConfigError) as error:
        MnistCNN().build(CHARACTERS)
    assert str(error.value) == (
        "model = 'mnist-cnn': takes images of at least 4 x 4 pixels, and this data set holds "
        "sequences of tokens (text) of shape (80,). "
        "Set model to one that fits: char-lstm, word-lstm."
    )


def test_too_small_images():
    with pytest.raises(ConfigError) as error:
        PflCNN().build(Task("image", (3, 5, 9), 10))
    assert str(error.value) == (
        "model = 'pfl-cnn': takes images of at least 6 x 6 pixels, and this data set holds images "
        "of shape (3, 5, 9). "
        "Set model to one that fits: 2nn, cifar-tf, cnn-bn, linear, mnist-cnn, resnet18-gn, "
        "seo-cnn."
    )


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (TwoNN(), WORDS),
        (Linear(), CHARACTERS),
        (CharLSTM(), MNIST),
        (WordLSTM(), VECTORS),
        (ResNet18GN(), VECTORS),
        (CifarTF(), CHARACTERS),
        (SeoCNN(), Task("image", (1, 3, 8), 2)),
    ],
    ids=identifier,
)
def test_every_family_refuses_what_it_does_not_fit(model, task):
    with pytest.raises(ConfigError, match=f"model = '{model.name}'.*Set model to one that fits"):
        model.build(task)


@pytest.mark.parametrize("model", [Linear(), Quadratic()], ids=["regression", "quadratic"])
def test_what_has_no_accuracy_is_counted_where_its_loss_is(model: Model) -> None:
    """On a GPU the sums of a batch are stacked with the loss."""
    targets = torch.zeros(3, device="meta")
    correct, count = model.num_correct(targets, targets)
    assert correct.device == count.device == targets.device
