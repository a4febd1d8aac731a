"""Faults of one line, each of which the quick selection of tests must catch.

``python -m tests.faults [--jobs N] [NAME ...]`` copies the tree, puts one fault at a time into the copy,
runs the test that is named for it, and prints a table. It exits with 1 if a test passes with its fault,
or fails without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FAILED = 1
"""pytest's exit status where tests ran and some failed."""


class Fault(NamedTuple):
    """A replacement of text in one file, and the test that fails with it."""

    name: str
    path: str
    old: str
    new: str
    test: str


CLIENT, PLAN = "fedapp/training/client.py", "fedapp/training/round_plan.py"
TENSORS, BATCHES = "fedapp/training/tensors.py", "fedapp/training/batches.py"
LOADER, TRAINER = "fedapp/training/batched/batch_loader.py", "fedapp/training/batched/trainer.py"
SEQUENTIAL, STEP = "fedapp/training/sequential.py", "fedapp/training/local_step.py"
AGGREGATION, RULES = "fedapp/federation/aggregation.py", "fedapp/training/algorithm.py"
LOOPS = "tests/test_whole_loops.py::test_a_run_is_the_loop_that_its_paper_prints"
GOLDEN = "tests/test_golden.py::test_a_pinned_run_gives_its_numbers"
IDENTITIES, UPDATE = "tests/test_identities.py::", "tests/test_client_update.py::"

FAULTS = (
    Fault(
        "a node's mean without weights",
        CLIENT,
        "mean.add(update, weight)",
        "mean.add(update, 1.0)",
        f"{IDENTITIES}test_weighting_by_examples_and_uniform",
    ),
    Fault(
        "n_k of another client",
        CLIENT,
        "trainer.algorithm, result.examples)",
        "trainer.algorithm, len(data_of(request.clients[0])))",
        f"{IDENTITIES}test_weighting_by_examples_and_uniform",
    ),
    Fault(
        "the data of another client of the same program",
        CLIENT,
        "client, data_of(client), states)",
        "client, data_of(chunk[0]), states)",
        f"{GOLDEN}[fedavg-together]",
    ),
    Fault(
        "the last, partial batch left out",
        PLAN,
        "self.epochs * -(-n // self.batch(n))",
        "self.epochs * (n // self.batch(n))",
        f"{UPDATE}test_partial_batch_is_kept",
    ),
    Fault(
        "another label of a seed",
        PLAN,
        'generator(seed, "client", round_, client)',
        'generator(seed, "clients", round_, client)',
        f"{LOOPS}[fedavg-examples]",
    ),
    Fault(
        "eta decays one round early",
        PLAN,
        "config.learning_rate_decay ** (round_ - 1)",
        "config.learning_rate_decay**round_",
        f"{IDENTITIES}test_the_learning_rate_decays_by_round",
    ),
    Fault(
        "momentum left out, sequential",
        SEQUENTIAL,
        "direction = self._with_momentum(direction)",
        "self._with_momentum(direction)",
        f"{UPDATE}test_momentum_and_nesterov",
    ),
    Fault(
        "momentum left out, batched",
        STEP,
        "velocity = add(direction, local_state.velocity, plan.momentum)",
        "velocity = add(direction, local_state.velocity, 0.0)",
        f"{UPDATE}test_momentum_and_nesterov",
    ),
    Fault(
        "gradients lengthened by clipping",
        SEQUENTIAL,
        "(norm + 1e-12)).clamp(max=1.0)",
        "(norm + 1e-12))",
        f"{GOLDEN}[momentum-and-clipping-sequential]",
    ),
    Fault(
        "padding counted as examples",
        BATCHES,
        "return counted & (batch.mask > 0)",
        "return counted & (batch.mask >= 0)",
        f"{GOLDEN}[scaffold-one-together]",
    ),
    Fault(
        "an example of a full batch masked",
        LOADER,
        "mask[step, client, : len(batch)] = True",
        "mask[step, client, : min(len(batch), width - 1)] = True",
        f"{UPDATE}test_partial_batch_is_kept",
    ),
    Fault(
        "clients that have ended go on",
        STEP,
        "torch.where(active, t, old[n])",
        "torch.where(active | True, t, old[n])",
        "tests/test_trainers.py::test_what_a_client_remembers_is_of_its_own_steps[scaffold]",
    ),
    Fault(
        "results of a batch to other clients",
        TRAINER,
        "results |= zip(clients, trained",
        "results |= zip(sorted(clients), trained",
        f"{GOLDEN}[scaffold-together]",
    ),
    Fault(
        "the mean not cast back",
        TENSORS,
        "(total / self.total_weight).to(self._dtypes[name])",
        "(total / self.total_weight)",
        f"{IDENTITIES}test_a_mean_is_folded_in_double_precision",
    ),
    Fault(
        "the server's rate left out",
        RULES,
        "return add(theta, mean, step.server_learning_rate), state",
        "return add(theta, mean), state",
        f"{IDENTITIES}test_server_rate_scales_the_first_step",
    ),
    Fault(
        "Option II taken for I",
        RULES,
        'if step.plan.update == "model":',
        'if step.plan.update == "models":',
        f"{IDENTITIES}test_option_one_with_server_rate_one_is_option_two",
    ),
    Fault(
        "c of SCAFFOLD without the share of the clients",
        "strategies/scaffold.py",
        "add(state, upload, step.share)",
        "add(state, upload)",
        f"{LOOPS}[scaffold1-examples]",
    ),
    Fault(
        "noise of half the deviation",
        "strategies/_noise.py",
        "rng.normal(0.0, deviation, tuple",
        "rng.normal(0.0, deviation / 2, tuple",
        "tests/test_privacy.py::test_noise_has_the_deviation_that_it_should",
    ),
    Fault(
        "any norm of an update accepted",
        "fedapp/federation/validation.py",
        "* max(_norm(expected.theta), 1.0)",
        "* math.inf",
        "tests/test_replies.py::test_the_bound_of_a_norm_is_in_units_of_the_models",
    ),
    Fault(
        "a late reply counted",
        "fedapp/federation/delivery.py",
        "(spent := self._clock() - began) < limit:",
        "(spent := self._clock() - began) < 2 * limit:",
        "tests/test_delivery.py::"
        "test_the_deadline_ends_the_wait_and_the_silent_node_stays_busy_for_as_long_again",
    ),
    Fault(
        "a reply more than m counted",
        AGGREGATION,
        "if accepted >= wanted:\n            return",
        "if accepted > wanted:\n            return",
        "tests/test_delivery.py::test_a_round_closes_when_m_clients_replied_well",
    ),
    Fault(
        "the same clients every round",
        "fedapp/training/algorithm.py",
        'generator(seed, "sample", round_)',
        'generator(seed, "sample", 1)',
        f"{GOLDEN}[three-nodes]",
    ),
    Fault(
        "a checkpoint under the next round's name",
        "fedapp/runs/checkpoint.py",
        'path = folder / f"round-{state.round:06d}.safetensors"',
        'path = folder / f"round-{state.round + 1:06d}.safetensors"',
        f"{GOLDEN}[resumed-fedadam-2]",
    ),
    Fault(
        "client states of the round before",
        AGGREGATION,
        "{metrics.client: step.plan.round for metrics in used}",
        "{metrics.client: step.plan.round - 1 for metrics in used}",
        f"{LOOPS}[scaffold1-examples]",
    ),
    Fault(
        "a test loss to which all batches count alike",
        "fedapp/training/evaluation.py",
        "outputs, targets).double() * count",
        "outputs, targets).double() * self.batch_size",
        f"{IDENTITIES}test_an_evaluation_in_batches_is_that_of_the_network",
    ),
)


def copy_of(folder: Path) -> Path:
    """Return a copy of what tests and package need."""
    skipped = shutil.ignore_patterns("__pycache__", "results", ".venv", "*.fab", ".*_cache")
    for name in ("fedapp", "strategies", "tests", "deploy", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def tests_fail(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Return pytest's exit status in ``tree``, and its last line."""
    options = ("-x", "--no-header", "--tb=no", "-p", "no:cacheprovider")
    own = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=tree, env=own, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]


def is_caught(fault: Fault) -> tuple[bool, str]:
    """Return whether the fault's test fails with it in a copy of the tree, and what pytest says."""
    with tempfile.TemporaryDirectory(prefix="fedapp-fault-") as folder:
        tree = copy_of(Path(folder))
        source = (tree / fault.path).read_text()
        if source.count(fault.old) != 1:
            return False, f"{fault.path} has its text {source.count(fault.old)} times"
        (tree / fault.path).write_text(source.replace(fault.old, fault.new))
        status, last = tests_fail(tree, [fault.test])
        return status == FAILED, last


def main() -> int:
    """Print the table of faults; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at the same time")
    parser.add_argument("names", nargs="*", help="faults; all, if none is named")
    given = parser.parse_args()
    if not {*given.names} <= (known := {fault.name for fault in FAULTS}):
        parser.error(f"the faults are {sorted(known)}")
    chosen = [fault for fault in FAULTS if not given.names or fault.name in given.names]
    status, last = tests_fail(ROOT, sorted({fault.test for fault in chosen}))
    print(f"without a fault: {last}\n\n| fault | test | |\n| --- | --- | --- |")
    with ThreadPoolExecutor(given.jobs) as pool:
        found = list(pool.map(is_caught, chosen))
    for fault, (caught, said) in zip(chosen, found, strict=True):
        test = fault.test.removeprefix("tests/")
        print(f"| {fault.name} | `{test}` | {'caught' if caught else f'MISSED: {said}'} |")
    missed = sum(not caught for caught, _ in found)
    print(f"\n{len(chosen) - missed} of {len(chosen)} faults caught")
    return int(bool(status or missed))


if __name__ == "__main__":
    sys.exit(main())
