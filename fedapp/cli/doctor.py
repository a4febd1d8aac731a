"""``fedapp doctor``: installed packages, devices, and commands for this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil

import torch
from rich.console import Console
from rich.table import Table

from fedapp.config.run_config import RunConfig
from fedapp.machine import cores
from fedapp.training.device import choose_device

PACKAGES = ("fedapp", "flwr", "flwr-datasets", "ray", "torch", "torchvision", "numpy", "datasets")


def examine(config: RunConfig, console: Console) -> None:
    """Print facts about this machine and commands for it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in facts(config):
        table.add_row(name, value)
    console.print(table)
    console.print("\n[bold]Commands[/]")
    for why, command in commands(config):
        console.print(f"  {why}:")
        console.out(f"    {command}")


def facts(config: RunConfig) -> list[tuple[str, str]]:
    """Return (name, value) pairs: packages, cores, GPUs, the device of training."""
    rows = [("Python", platform.python_version())]
    rows += [(name, _version(name)) for name in PACKAGES]
    rows.append(("cores", str(cores())))
    rows.append(("GPUs", _gpus()))
    rows.append(("device", f"{choose_device(config)} (device = {config.device!r})"))
    rows.append(("flwr command", shutil.which("flwr") or "not on PATH: activate the environment"))
    rows.append(("Flower's state", os.environ.get("FLWR_HOME", "~/.flwr")))
    cluster = os.environ.get("RAY_ADDRESS", "")
    rows.append(
        ("workers", f"in the Ray cluster at {cluster} (RAY_ADDRESS)" if cluster else "here")
    )
    return rows


def _gpus() -> str:
    """Return the names of the GPUs; where they are seen and CUDA cannot start, say so."""
    number = torch.cuda.device_count()
    if number and not torch.cuda.is_available():
        return f"{number}, unusable: the driver is too old for CUDA {torch.version.cuda}"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(number)) or "none"


def commands(config: RunConfig) -> list[tuple[str, str]]:
    """Return (purpose, command) pairs for this machine."""
    pairs = [("In this process, with a progress bar and breakpoints", "fedapp run")]
    on_gpus = choose_device(config).type == "cuda"
    pairs += _on_gpus(torch.cuda.device_count()) if on_gpus else _on_cores()
    if "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION" not in os.environ:
        pairs.append(
            (
                "Before Flower's SuperLink starts, so that runs use this environment, not a new one",
                "export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
            )
        )
    return pairs


def _on_cores() -> list[tuple[str, str]]:
    federation = f"num-supernodes={cores()} client-resources-num-cpus=1"
    return [
        ("On all cores, with no SuperLink", f"fedapp run --workers {cores()}"),
        (
            "In Flower's simulation, one actor a core",
            f'flwr run . --stream --federation-config "{federation}"',
        ),
    ]


def _on_gpus(gpus: int) -> list[tuple[str, str]]:
    """Return commands with one process a GPU; several take turns, unless a service shares it."""
    shares = "client-resources-num-cpus=1 client-resources-num-gpus=1"
    several = [("On all GPUs, with no SuperLink", f"fedapp run --workers {gpus}")]
    return [
        *(several if gpus > 1 else []),
        (
            "In Flower's simulation, one actor a GPU (without a share of one, an actor sees none)",
            f'flwr run . --stream --federation-config "num-supernodes={gpus} {shares}"',
        ),
        (
            "Many runs, eight at a time on a GPU, which NVIDIA's multi-process service shares",
            f'nvidia-cuda-mps-control -d; fedapp sweep --jobs {8 * gpus} "seed=[0,1,2,3,4,5,6,7]"',
        ),
    ]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
