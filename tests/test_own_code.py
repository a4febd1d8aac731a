"""Components from a folder, a module or a package of one's own: how they are found, kept and refused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.supercore.task_identity import TaskIdentity

from fedapp.client_app import app as client_app
from fedapp.config import app_folder, components
from fedapp.config.components import family_of
from fedapp.config.overrides import override_problems
from fedapp.config.own_code import OwnCode
from fedapp.config.read import defaults, read_config
from fedapp.config.registry import FAMILIES, Family
from fedapp.data.dataset import Task
from fedapp.data.load import load_dataset, load_partition
from fedapp.errors import CheckpointError, ConfigError, RunError
from fedapp.runs.directory import read_stored
from fedapp.runs.export import export
from fedapp.runs.model_sharpness import Measurement, sharpness_of
from fedapp.runs.saved_model import load_data, load_model
from fedapp.runs.status import status
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.workers import name_problem
from fedapp.training.algorithm import algorithm_of
from fedapp.training.build import make_model, make_module, make_trainer
from fedapp.training.evaluation import SCORE_PREFIXES
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trial import ROUND_METRICS, try_out
from tests.conftest import Run, largest_difference
from tests.in_process import metrics, model
from tests.in_process import run as run_on
from tests.own_app import FILES, PYPROJECT, SIGNS, app_in, invoke, reload, write
from tests.printed import ROOT


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with one component of each kind, in which this process works."""
    folder = tmp_path / "app"
    write(folder, FILES)
    monkeypatch.chdir(folder)
    with app_in(folder):
        yield folder


# ---------------------------------------------------------------------- how they are found


@pytest.mark.parametrize("value", ["./signs.py", "signs.py", "./signs.py:Signs", "signs:Signs"])
def test_an_algorithm_of_a_file_or_module_has_its_parameters(app: Path, value: str) -> None:
    config = read_config({"algorithm": value, "signs.scale": 2})
    assert algorithm_of(config).model_dump() == {"scale": 2.0}
    assert config.name_of("algorithm") == "signs"
    assert read_config({"algorithm": value}).to_run_config()["signs.scale"] == 0.01
    code = config.own_code()["algorithm"]
    assert code.files == {"signs.py": (app / "signs.py").read_bytes()}
    assert code.digest == hashlib.sha256((app / "signs.py").read_bytes()).hexdigest()


def test_a_file_elsewhere_is_named_by_its_path(app: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", {"signs.py": SIGNS})
    config = read_config({"algorithm": str(tmp_path / "other" / "signs.py")})
    assert list(config.own_code()["algorithm"].files) == ["signs.py"]


def test_the_other_families_have_own_components_too(app: Path) -> None:
    values = {
        "dataset": "./points.py",
        "partitioner": "split:Split",
        "transform": "./double.py",
        "num-clients": 4,
    }
    config = read_config(values)
    data = load_dataset(config)
    assert data.task == Task("vector", (1,), 2)
    partition = load_partition(config, data, 4)
    assert partition.client(1).tolist() == list(range(1, 40, 4))
    transform: Any = config.component("transform")
    assert transform.test(torch.tensor([1.5]), torch.float32).tolist() == [3.0]
    assert set(config.own_code()) == {"dataset", "partitioner", "transform"}


def test_a_sampler_of_ones_own_chooses_the_clients(app: Path, run: Run) -> None:
    records = metrics(run("run", sampler="./last.py", num_server_rounds=2))
    assert [record["clients"] for record in records[1:]] == [[3, 4, 5]] * 2
    with pytest.raises(ConfigError, match=r"sampler = '\./signs\.py': the file defines no sampler"):
        read_config({"sampler": "./signs.py"})


def test_a_plain_module_is_a_model(app: Path) -> None:
    config = read_config({"model": "nets:Wide"})
    task = load_dataset(config).task
    # 64 pixels to 16 units to 10 classes, with biases.
    assert sum(p.numel() for p in make_module(config, task).parameters()) == 65 * 16 + 17 * 10
    assert config.name_of("model") == "wide"
    assert make_model(config).title() == "A wide layer."
    one, two = (make_module(config, task).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert isinstance(make_trainer(config, task), SequentialTrainer)
    digits = make_module(read_config({"model": "./nets.py:ForDigits"}), task)
    assert sum(p.numel() for p in digits.parameters()) == 650


def test_the_modules_that_a_component_imports_are_its_code_as_well(app: Path) -> None:
    by_module = read_config({"model": "nets:Wide"}).own_code()["model"]
    by_file = read_config({"model": "./nets.py:Wide"}).own_code()["model"]
    assert set(by_module.files) == {"nets.py", "parts.py"}
    assert by_file.digest == by_module.digest
    lines = "".join(
        f"{hashlib.sha256((app / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("nets.py", "parts.py")
    )
    assert by_file.digest == hashlib.sha256(lines.encode()).hexdigest()
    write(app, {"parts.py": (app / "parts.py").read_text() + "\n"})
    reload(app)
    assert read_config({"model": "nets:Wide"}).own_code()["model"].digest != by_file.digest


def test_a_package_is_code_with_its_relative_and_late_imports(app: Path) -> None:
    algorithm = "from .names import NAME\n" + SIGNS.replace('= "signs"', "= NAME")
    late = (
        "\n    def start(self, theta):\n        from package.late import state\n        return {}\n"
    )
    files = {
        "package/__init__.py": "",
        "package/names.py": 'NAME = "named"\n',
        "package/late.py": "state = 1\n",
        "package/unused.py": "",
        "package/own.py": algorithm + late,
    }
    write(app, files)
    config = read_config({"algorithm": "package.own:Signs"})
    assert config.name_of("algorithm") == "named"
    names = set(config.own_code()["algorithm"].files)
    assert names == {name for name in files if "unused" not in name}


def test_an_installed_package_adds_names(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its entry points, which is how an app's ``pyproject.toml`` names its own."""
    entry = importlib.metadata.EntryPoint("signs", "signs:Signs", "fedapp.algorithms")
    installed = importlib.metadata.EntryPoints([entry])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: installed)
    config = read_config({"algorithm": "signs", "signs.scale": 0.5})
    assert algorithm_of(config).model_dump() == {"scale": 0.5}
    assert read_config({"signs.scale": 0.01}).algorithm == "fedavg"
    with pytest.raises(ConfigError, match=r"signs\.scale = 0\.5: has no effect.*algorithm='signs'"):
        read_config({"signs.scale": 0.5})
    with pytest.raises(ConfigError, match=r"algorithm = 'sign'.*Did you mean 'signs'\?"):
        read_config({"algorithm": "sign"})


def test_a_command_takes_the_settings_of_the_app(app: Path) -> None:
    write(app, {"pyproject.toml": PYPROJECT})
    told = invoke("run", "num-clients=4", "num-server-rounds=1", "run-dir=run", "pictures=false")
    assert (app / "run" / "config.json").exists(), told
    config, _ = read_stored(app / "run")
    assert config.algorithm == "signs"
    assert config.options["signs.scale"] == 0.02
    assert "signs.scale" not in defaults()


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("seed = 2020-01-01", "seed = '2020-01-01': must be a whole"),
        ("seed = false", "seed = false: must be a whole"),
        ("num-clients = 20.0", "num-clients = 20.0: must be a whole"),
        ("pictures = 1", "pictures = 1: must be true or"),
        ("learning-rate = nan", "learning-rate = nan: must be a finite"),
    ],
)
def test_settings_of_an_app_have_their_types(app: Path, setting: str, shown: str) -> None:
    write(app, {"pyproject.toml": PYPROJECT.replace("seed = 0", setting)})
    assert invoke("run").startswith(shown)


def test_keys_lists_those_of_a_component(app: Path) -> None:
    digest = hashlib.sha256((app / "signs.py").read_bytes()).hexdigest()
    said = invoke("keys", "./signs.py")
    assert f"(signs.py, SHA-256 {digest})" in said
    assert "signs.scale  0.01     number > 0  Length of a step." in said
    assert "2nn.hidden" in invoke("keys", "2nn")
    assert "local-epochs" not in invoke("keys", "2nn")
    assert invoke("keys", "nobody").startswith("'nobody': there is no component of this name.")
    assert invoke("keys", "./x.py").startswith("algorithm = './x.py': there is no such file")


# ---------------------------------------------------------------------- runs


def test_a_run_keeps_the_code_and_gives_the_numbers_of_any_other_form(app: Path, run: Run) -> None:
    folders = [
        run(str(i), algorithm=value) for i, value in enumerate(["./signs.py", "signs:Signs"])
    ]
    assert metrics(folders[0]) == metrics(folders[1])
    assert metrics(folders[0]) != metrics(run("fedavg"))
    copy = folders[0] / "components" / "algorithm" / "signs.py"
    assert copy.read_bytes() == (app / "signs.py").read_bytes()
    found = json.loads((folders[0] / "config.json").read_text())["found"]
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    entry = {"name": "signs", "sha256": digest, "files": ["signs.py"]}
    assert (found["components"], found["app"]) == ({"algorithm": entry}, str(app))
    assert found["sources"]["algorithm"] == digest[:16]


def test_trainers_agree_on_own_components(app: Path, run: Run) -> None:
    same = {"algorithm": "./signs.py", "model": "nets:Wide", "dataset": "./points.py"}
    one = run("one", trainer="sequential", **same)
    two = run("two", trainer="batched", program="record", nodes=2, **same)
    for name, tensor in model(one).items():
        torch.testing.assert_close(model(two)[name], tensor)


SIZED = """
from typing import ClassVar
from fedapp.models.model import Model
from torch import nn

class Sized(Model):
    \"\"\"One hidden layer.\"\"\"

    name: ClassVar[str] = "sized"
    units: int = 8

    def build(self, task):
        return Net(self.units, task.num_classes)

class Net(nn.Module):
    def __init__(self, units, classes):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, units), nn.Linear(units, classes)

    def forward(self, x):
        return self.out(self.hidden(x.flatten(1)).relu())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "files"),
    [("nets:Wide", {"nets.py", "parts.py"}), ("./sized.py", {"sized.py"})],
    ids=["module", "file"],
)
def test_an_exported_model_has_its_code(
    app: Path, run: Run, tmp_path: Path, value: str, files: set[str]
) -> None:
    write(app, {"sized.py": SIZED})
    given = {"sized.units": 5} if value == "./sized.py" else {}
    folder = run("run", model=value, transform="./double.py", algorithm="./signs.py", **given)
    export(load_model(folder), tmp_path / "exported", onnx=False)
    shutil.rmtree(app)
    assert {p.name for p in (tmp_path / "exported" / "code").iterdir()} == files
    script = shutil.copytree(tmp_path / "exported", tmp_path / "elsewhere") / "load_model.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "torch.Size([2, 10])\n"


def test_a_default_folder_is_called_by_the_names(
    app: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = invoke(
        *("run", "algorithm=./signs.py", "model=nets:Wide", "dataset=./points.py"),
        *("num-clients=4", "num-server-rounds=1"),
    )
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-points-wide-signs"), told
    report = (folder / "report.html").read_text().replace("\u00a0", " ")
    assert "signs, points (iid), wide: K = 4" in report


def test_a_run_without_own_components_has_no_entry(run: Run) -> None:
    folder = run("plain")
    assert "components" not in json.loads((folder / "config.json").read_text())["found"]
    assert not (folder / "components").exists()


def test_a_run_resumes_with_the_same_code_alone(app: Path, run: Run) -> None:
    run("whole", algorithm="./signs.py", num_server_rounds=3)
    run("part", algorithm="./signs.py", num_server_rounds=2)
    reload(app)
    folder = run("part", algorithm="./signs.py", num_server_rounds=3, resume=True)
    assert metrics(folder) == metrics(folder.parent / "whole")
    before = hashlib.sha256((app / "signs.py").read_bytes()).hexdigest()
    write(app, {"signs.py": SIGNS.replace(".sign()", ".sign() * 2")})
    now = hashlib.sha256((app / "signs.py").read_bytes()).hexdigest()
    reload(app)
    assert status(folder)[1] == ("state", "finished")
    with pytest.raises(CheckpointError) as error:
        run("part", algorithm="./signs.py", num_server_rounds=4, resume=True)
    said = str(error.value)
    assert said.startswith(
        "algorithm = './signs.py': the code of 'signs' is not that of the run in "
    )
    assert f"It has SHA-256 {now}, and the run's {before}." in said
    assert f"Put back the files of {folder / 'components' / 'algorithm'}, or start another" in said
    write(app, {"signs.py": SIGNS.replace("scale", "length")})
    reload(app)
    with pytest.raises(CheckpointError, match=r"the code of 'signs' is not that of the run"):
        read_stored(folder)


def test_the_status_of_a_run_executes_none_of_its_code(app: Path, run: Run, tmp_path: Path) -> None:
    """A folder may come from somebody else."""
    folder = run("run", algorithm="./signs.py")
    mark = tmp_path / "executed"
    write(app, {"signs.py": f"open({str(mark)!r}, 'w')\n{SIGNS}"})
    reload(app)
    assert status(folder)[1] == ("state", "finished")
    assert "finished" in invoke("status", str(folder.parent))
    assert not mark.exists()


def test_a_run_whose_component_is_gone_says_so(
    app: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("run", algorithm="./signs.py")
    (app / "signs.py").unlink()
    reload(app)
    for words in (["report"], ["run", "--resume"]):
        said = invoke(*words, str(folder))
        assert "a component of this run is not there. algorithm = './signs.py': there is no" in said
        assert f"The run was started in {app}: start there." in said
        assert f"A copy of the code that the run used is in {folder / 'components'}." in said
        assert "damaged" not in said
    stored = json.loads((folder / "config.json").read_text())
    stored["config"]["algorithm"] = "uninstalled"
    (folder / "config.json").write_text(json.dumps(stored))
    assert "is not there. algorithm = 'uninstalled': there is no such algorithm" in invoke(
        "report", str(folder)
    )
    assert "finished" in invoke("status", str(folder))


def test_a_model_is_used_with_the_code_that_trained_it(app: Path, run: Run) -> None:
    folder = run("run", algorithm="./signs.py", model="nets:Wide", dataset="./points.py")
    write(app, {"signs.py": f"{SIGNS}\n# another\n"})
    reload(app)
    assert load_model(folder).task.num_classes == len(load_data(folder).train.targets) / 20
    write(app, {"points.py": FILES["points.py"] + "\n"})
    reload(app)
    load_model(folder)
    other = rf"dataset = './points\.py': the code of 'points' is not that of the run in {folder}"
    for use in (load_data, lambda path: sharpness_of(path, Measurement())):
        with pytest.raises(CheckpointError, match=other):
            use(folder)
    write(
        app, {"parts.py": FILES["parts.py"].replace("Linear(inputs, 16)", "Linear(inputs, 16, 1)")}
    )
    reload(app)
    for words in (
        ["predict", str(folder), "x.csv"],
        ["export", str(folder)],
        ["sharpness", str(folder)],
    ):
        said = invoke(*words)
        assert "model = 'nets:Wide': the code of 'wide' is not that of the run" in said
        assert f"Put back the files of {folder / 'components' / 'model'}" in said


def test_flowers_settings_of_a_resume_have_the_parameters_that_were_given(
    app: Path, run: Run
) -> None:
    """A pyproject.toml need not have them, and Flower refuses keys that it does not have."""
    folder = run("run", algorithm="./signs.py")
    assert "signs" not in read_settings_of(folder)
    invoke("run", str(folder / "resume.toml"), "num-server-rounds=4")
    assert metrics(folder)[-1]["round"] == 4
    folder = run("other", algorithm="./signs.py", **{"signs.scale": 0.02})
    assert read_settings_of(folder)["signs"] == {"scale": 0.02}


def read_settings_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "resume.toml").read_text())


def test_the_name_of_a_run_in_a_sweep_is_that_of_its_code(app: Path) -> None:
    def name(**settings: Any) -> str:
        return Request.of({k.replace("_", "-"): v for k, v in settings.items()}, 3).run

    plain = name()
    first = name(algorithm="./signs.py")
    assert len({plain, first, name(algorithm="./signs.py", **{"signs.scale": 0.5})}) == 3
    assert name(algorithm="signs:Signs") == first
    data = name(dataset="./points.py")
    write(app, {"signs.py": f"{SIGNS}\n# another\n", "points.py": FILES["points.py"] + "\n"})
    reload(app)
    assert name(algorithm="./signs.py") != first
    request = Request.of({"algorithm": "./signs.py"}, 3)
    assert "changed while the sweep ran. Start the command again" in name_problem(request, first)
    assert name_problem(request, request.run) == ""
    (app / "signs.py").unlink()
    reload(app)
    assert "there is no such file" in name_problem(request, first)
    assert name(dataset="./points.py") != data
    assert name() == plain


# ---------------------------------------------------------------------- nodes


def answered(change: Callable[[dict[str, Any]], None]) -> Callable[[Message, Context], Message]:
    """Return a ClientApp whose answer to a query is changed."""

    def call(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if message.metadata.message_type == "query":
            change(reply.content["node-data"])
        return reply

    return call


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda a: a.update(components=["algorithm signs 00ff"]),
            "has SHA-256 00ff, but the server's",
        ),
        (lambda a: a.pop("components"), "has SHA-256 unknown, but the server's"),
    ],
    ids=["other code", "none"],
)
def test_a_node_with_other_code_is_rejected(
    app: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    with pytest.raises(RunError) as error:
        run_on(
            tmp_path / "run",
            call=answered(change),
            algorithm="./signs.py",
            min_nodes=2,
            node_timeout=0.1,
        )
    digest = hashlib.sha256((app / "signs.py").read_bytes()).hexdigest()
    assert f"its code of algorithm = 'signs' {said} has {digest}; give it the" in str(error.value)
    assert "(signs.py)" in str(error.value)


def test_an_answer_has_the_digests_only_of_own_code(app: Path, tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []
    run_on(tmp_path / "one", call=answered(seen.append), algorithm="./signs.py")
    run_on(tmp_path / "two", call=answered(seen.append))
    digest = hashlib.sha256((app / "signs.py").read_bytes()).hexdigest()
    assert [dict(each).get("components") for each in seen] == [
        *[[f"algorithm signs {digest}"]] * 2,
        *[None] * 2,
    ]


def test_modules_that_cannot_be_imported_are_no_obstacle_where_none_imports_them(app: Path) -> None:
    late = "\n    def start(self, theta):\n        import broken, package.sub\n        return {}\n"
    files = {
        "late.py": SIGNS + late,
        "broken.py": "print 'Python 2'\n",
        "package/__init__.py": "raise RuntimeError\n",
        "package/sub.py": "",
    }
    write(app, files)
    code = read_config({"algorithm": "./late.py"}).own_code()["algorithm"]
    assert set(code.files) == set(files) - {"package/sub.py"}


# ---------------------------------------------------------------------- what is refused


def test_a_file_with_a_null_byte_is_named(app: Path) -> None:
    write(app, {"own.py": SIGNS + "\0"})
    with pytest.raises(ConfigError, match=r"/own\.py: \w+Error: .*null bytes\. Correct the file"):
        read_config({"algorithm": "./own.py"})


UNREAD = {
    "aggregate": (
        "def aggregate(self, updates, weights): return updates[0]",
        r"has aggregate, which is not called with reply = 'mean'.* Add reply: ClassVar\[str\] = \"each\"",
    ),
    "a private attribute": (
        "_v: dict = {}",
        r"has _v, which is not saved: .* state, from start and apply .* constant is _v: ClassVar\.$",
    ),
    "a constructor": (
        "def __init__(self, mu=0.1): self.mu = mu",
        r"has __init__\(self, mu\), and parameters are fields\. .* as mu: float = Field\(0\.1, ge=0\)",
    ),
    "flag": (
        "keep_state: ClassVar[bool] = True",
        "has keep_state, which nothing reads. Did you mean 'keeps_state'",
    ),
    "hook": (
        "def finalise(self, params, context, steps): ...",
        "has finalise, which nothing reads. Did you mean 'finalize'",
    ),
    "arguments": (
        "def apply(self, theta, mean, state): return theta, state",
        r"has apply\(self, theta, mean, state\), and is called with "
        r"\(self, theta, mean, upload, state, step\)\. Give it these",
    ),
    "arguments without self": (
        "@staticmethod\n    def start(): return {}",
        r"has start\(\), and is called with \(theta\)\. Give it these",
    ),
    "a property": (
        "@property\n    def gradient(self): ...",
        r"has the property gradient, which is called with \(self, differentiate, .*leave @property out",
    ),
    "no property": (
        "def min_updates(self): return 3",
        "has the method min_updates, which is read as a property. Put @property above it",
    ),
    "weighting": (
        "default_weighting: ClassVar[str] = 'unifrom'",
        "has default_weighting = 'unifrom', which must be 'examples' or 'uniform'. Correct it",
    ),
    "reply": ("reply = 'all'", "has reply = 'all', which must be 'mean' or 'each'"),
    "needs": (
        "needs = frozenset({'class'})",
        "has 'class' in needs, which must be 'classes' or 'features'",
    ),
    "rate": ("default_server_learning_rate = -1.0", "has .* = -1.0, which must be greater than or"),
    "truth": ("keeps_state = 'no'", "has keeps_state = 'no', which must be a valid boolean"),
}
"""What a class of one's own defines in vain, and what is said of it."""


@pytest.mark.parametrize(("body", "said"), UNREAD.values(), ids=UNREAD)
def test_what_nothing_would_call_is_refused(app: Path, body: str, said: str) -> None:
    write(app, {"own.py": f"{SIGNS}\n    {body}\n"})
    with pytest.raises(ConfigError, match=rf"^algorithm = '\./own\.py': the class Signs {said}"):
        read_config({"algorithm": "./own.py"})


def test_a_model_takes_kinds_of_tasks_that_there_are(app: Path) -> None:
    head, net, rest = SIZED.partition("class Net")
    write(app, {"sized.py": f"{head}    takes = {{'images'}}\n\n{net}{rest}"})
    with pytest.raises(
        ConfigError, match=r"has 'images' in takes, which must be 'image' or 'tokens'"
    ):
        read_config({"model": "./sized.py"})


def test_a_method_that_needs_no_self_may_be_static(app: Path) -> None:
    start = "@staticmethod\n    def start(theta): return {}"
    write(app, {"own.py": f"{SIGNS}\n    {start}\n    needs = {{'classes'}}\n"})
    assert read_config({"algorithm": "./own.py"}).name_of("algorithm") == "signs"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_no_component_of_fedapp_has_such_a_problem(family: Family) -> None:
    base = family.base_class()
    for component in family.components().values():
        assert [*override_problems(component, base), *component.class_problems()] == []


LOSS = "def loss(self, network, params, batch, context): return "
GRADIENT = "def gradient(self, differentiate, params, batch, context): "
FINALIZE = "def finalize(self, params, context, steps): return ClientExtras"
APPLY = "def apply(self, theta, mean, upload, state, step): return "
STATE = "keeps_state: ClassVar[bool] = True"
RETURNS = {
    "a float": (LOSS + "float(params['1.weight'].sum())", "loss returns a float"),
    "a vector": (LOSS + "params['1.bias']", r"loss returns a tensor of shape \(64,\)"),
    "no gradient": (LOSS + "batch.inputs.mean()", "loss returns a tensor that has no gradient"),
    "a direction": (GRADIENT + "return dict(params)", "gradient returns a dict"),
    "too few": (GRADIENT + "return {}, differentiate(params, batch)[1]", r"returns no '1\.weight'"),
    "a shape": (
        GRADIENT + "return {n: p[:1] for n, p in params.items()}, differentiate(params, batch)[1]",
        r"gradient returns '1\.weight': a tensor of shape \(1, 64\) in place of \(64, 64\)",
    ),
    "an upload": (
        FINALIZE + "(upload={'norm': 3.0})",
        r"as upload 'norm': a float\. .* torch\.tensor\(float",
    ),
    "a state": (FINALIZE + "(state=params)", "a state, which no client keeps. Set keeps_state"),
    "no state": (STATE, r"finalize returns no state, and keeps_state is True.*state=\.\.\.\)"),
    "another state": (
        STATE + "\n    " + FINALIZE + "(state=params)",
        r"as state a further '1\.weight'\. Let it be as initial_client_state returns",
    ),
    "an update": (FINALIZE + "(update=params)", "an update, which is not sent. Set custom_update"),
    "no update": ("custom_update: ClassVar[bool] = True", "no update, and custom_update is True"),
    "parts": (
        "custom_update: ClassVar[bool] = True\n    "
        + FINALIZE
        + "(update={'x': params['1.bias']})",
        r"finalize returns as update no '1\.weight'\. Let it have the parameters' names",
    ),
    "theta alone": (APPLY + "theta", "apply returns a dict. Let it return the next theta, and the"),
    "no theta": (APPLY + "({}, state)", r"apply returns no '1\.weight'"),
    "another type": (
        APPLY + "({n: t.double() for n, t in theta.items()}, state)",
        r"apply returns '1\.weight': torch\.float64 in place of torch\.float32\. Let it .*"
        r" `\.to\(theta\[name\]\.dtype\)`",
    ),
    "whole numbers": (
        FINALIZE + "(upload={'n': params['1.bias'].argmax()})",
        r"as upload 'n': torch\.int64, whose mean is no such number\. .* `\.float\(\)`",
    ),
    "a truth": (
        FINALIZE + "(upload={'n': params['1.bias'].sum() > 0})",
        r"as upload 'n': torch\.bool, whose mean is no",
    ),
    "a number": (
        "def report(self, state): return 3",
        r"report returns 3\. .* a dictionary of numbers",
    ),
    "a name of the round": (
        "def report(self, state): return {'steps': 7}",
        r"report returns 'steps', which is a name of a round's own numbers or .* another name",
    ),
    "a name of a score": (
        "def report(self, state): return {'drift': 1, 'client_drift': 7}",
        r"report returns 'client_drift', which .* begins as a score's \(test_, .*\)\. Choose another",
    ),
    "the round in a loss": (
        LOSS + "params['1.bias'].sum() * (1 + context.round)",
        "loss depends on context.round or context.steps, .*`round_randomness`",
    ),
    "the steps near theta": (
        GRADIENT
        + "return {n: context.steps * (p - context.global_params[n]) for n, p in params.items()}"
        + ", differentiate(params, batch)[1]",
        "gradient depends on context.round or context.steps",
    ),
    "a second step": (
        "def step_state(self, params, direction, context):\n"
        "        return {'a': context.step_state['b'] if context.step_state else params['1.bias'] * 1}",
        r"step_state raises KeyError: 'b' \(app/own\.py, line \d+, in step_state\)",
    ),
    "a start that evaluation lacks": (
        STATE
        + """
    def initial_client_state(self, context): return {"x": context.global_params["1.bias"]}
    def start(self, theta): return {"b": theta["1.bias"]}
    def broadcast(self, state): return state
    def initial_params(self, context):
        return {**context.global_params, "1.bias": context.broadcast["b"]}
    """
        + FINALIZE
        + "(state={'x': params['1.bias']})",
        r"initial_params raises KeyError: 'b'.* A client is evaluated with them, too",
    ),
    "a private attribute": (
        "_seen: int = 0\n    def start(self, theta): self._seen += 1; return {}",
        r"start sets self\._seen, which is not saved: .* Return what lasts as state",
    ),
    "an attribute": (
        "def start(self, theta): self._seen = 1; return {}",
        r"start sets self\._seen, which is not saved: .* Return what lasts as state",
    ),
    "a parameter": (
        "def start(self, theta): self.count = 1; return {}",
        r"start sets self\.count, and a component does not change\. .* state, which apply returns",
    ),
    "an error": (
        "def start(self, theta): return theta['nobody']",
        r"start raises KeyError: 'nobody' \(app/own\.py, line \d+, in start\)\. Correct its code\.$",
    ),
}
"""What a method of one's own returns that a round cannot use, and what is said of it."""


@pytest.mark.parametrize(("body", "said"), RETURNS.values(), ids=RETURNS)
def test_what_a_round_cannot_use_is_refused_before_it(app: Path, body: str, said: str) -> None:
    code = SIGNS.replace("import Algorithm", "import Algorithm, ClientExtras")
    write(app, {"own.py": f"{code}\n    {body}\n"})
    config = read_config({"algorithm": "./own.py", "2nn.hidden": 64})
    with pytest.raises(ConfigError, match=rf"^algorithm = 'signs': .*{said}"):
        try_out(config, load_dataset(config))


RAISES = {
    "a data set": (
        "dataset",
        "points",
        "points.py",
        "def load(self): raise OSError('no')",
        "load raises",
    ),
    "no data set": ("dataset", "points", "points.py", "def load(self): ...", "load returns None"),
    "a split": (
        "partitioner",
        "every-kth",
        "split.py",
        "def split(self, examples, num_clients, seed): return examples.owners",
        "split raises AttributeError",
    ),
    "a network": (
        "model",
        "wide",
        "nets.py:Wide",
        "__init__ = lambda self: 1 / 0",
        "build raises ZeroDivisionError",
    ),
    "no network": (
        "model",
        "sized",
        "sized.py",
        "def build(self, task): return [1]",
        r"build returns \[1\], which is no torch",
    ),
    "an error's text": (
        "algorithm",
        "signs",
        "signs.py",
        "def config_errors(self, config): return config.nobody",
        "config_errors raises AttributeError",
    ),
    "no texts": (
        "algorithm",
        "signs",
        "signs.py",
        "def config_errors(self, config): ...",
        "config_errors returns None. Let it return a list of texts",
    ),
    "a validator": (
        "algorithm",
        "signs",
        "signs.py",
        "def model_post_init(self, context): {}['scale']",
        "a validator raises KeyError: 'scale'",
    ),
    "a validator that sets": (
        "algorithm",
        "signs",
        "signs.py",
        "def model_post_init(self, context): self.count = 0",
        r"a validator sets self\.count, and a component does not change",
    ),
    "no inputs": (
        "transform",
        "double",
        "double.py",
        "def test(self, inputs, dtype): ...",
        r"test returns None for two examples\. Let it return .* of shape \(2, 1, 8, 8\)",
    ),
    "training inputs": (
        "transform",
        "double",
        "double.py",
        "def train(self, inputs, dtype, draws): return self.test(inputs, dtype)[0]",
        r"train returns a tensor of shape \(1, 8, 8\)",
    ),
}
"""The key, name and file of a component, a method that raises or returns nothing, and what is said."""


@pytest.mark.parametrize(("key", "name", "value", "method", "said"), RAISES.values(), ids=RAISES)
def test_what_code_of_ones_own_raises_names_it(
    key: str, name: str, value: str, method: str, said: str, app: Path, run: Run
) -> None:
    file = value.partition(":")[0]
    code = {**FILES, "sized.py": SIZED}[file]
    head, end, rest = code.partition("\n\nclass ForDigits" if "Wide" in value else "\n\nclass Net")
    write(app, {file: f"{head}\n    {method}\n{end}{rest}"})
    with pytest.raises(ConfigError, match=rf"^{key} = '{name}': {said}") as error:
        run(**{key: f"./{value}"})
    assert "\n" not in str(error.value)
    assert not (app.parent / "run").exists()


def test_a_text_of_config_errors_is_one_error(app: Path) -> None:
    write(app, {"own.py": SIGNS + "\n    def config_errors(self, config): return 'Too slow.'\n"})
    with pytest.raises(ConfigError, match=r"^Too slow\.$"):
        read_config({"algorithm": "./own.py"})


REMEMBERED = {
    "after a step": """
    def step_state(self, params, direction, context):
        return {f"at/{n}": p for n, p in params.items()}
""",
    "after the step before": """
    def step_state(self, params, direction, context):
        last = {f"last/{n}": p for n, p in params.items()}
        old = context.step_state or {f"last/{n}": p for n, p in context.global_params.items()}
        return last | {f"at/{n}": old[f"last/{n}"] for n in params}
""",
    "before a step": """
    def gradient(self, differentiate, params, batch, context):
        gradient, loss = differentiate(params, batch)
        return gradient | {f"at/{n}": p for n, p in params.items()}, loss

    def step_state(self, params, direction, context):
        return {name: tensor for name, tensor in direction.items() if name.startswith("at/")}
""",
}
"""Rules that hand on the parameters of some moment, and how they copy them."""

COPIED = ": p.clone() for n, p in params"

REPORTED = """
    def finalize(self, params, context, steps):
        at = context.step_state or {f"at/{n}": p for n, p in context.global_params.items()}
        return ClientExtras(upload={n: at[f"at/{n}"] for n in params})

    def start(self, theta):
        return {"norm": theta["1.bias"].new_zeros(())}

    def apply(self, theta, mean, upload, state, step):
        return super().apply(theta, mean, upload, state, step)[0], {"norm": upload["1.bias"].norm()}

    def report(self, state):
        return {"norm": float(state["norm"])}
"""


@pytest.mark.parametrize("body", REMEMBERED.values(), ids=REMEMBERED)
def test_a_rule_that_hands_on_parameters_copies_them(app: Path, run: Run, body: str) -> None:
    """In the sequential trainer the next step would change them in place."""
    code = SIGNS.replace("import Algorithm", "import Algorithm, ClientExtras") + body + REPORTED
    write(app, {"own.py": code, "copied.py": code.replace(": p for n, p in params", COPIED)})
    config = read_config({"algorithm": "./own.py"})
    method = "gradient" if "gradient" in body else "step_state"
    said = rf"{method} returns '\w+/1\.weight': the parameter itself.* Return a `\.clone\(\)`\.$"
    with pytest.raises(ConfigError, match=rf"^algorithm = 'signs': {said}"):
        try_out(config, load_dataset(config))
    same = {"algorithm": "./copied.py", "batch_size": 64}
    one = metrics(run("one", trainer="sequential", **same))
    two = metrics(run("two", trainer="batched", program="record", **same))
    assert [r["norm"] for r in one[1:]] == pytest.approx([r["norm"] for r in two[1:]])


EVALUATED = {
    "num_correct raises": (
        "def num_correct(self, outputs, targets): return outputs[99], len(targets)",
        "num_correct raises IndexError",
    ),
    "whole numbers": (
        "def num_correct(self, outputs, targets): return 1, len(targets)",
        r"num_correct returns \(1, 2\)\. Let it return two tensors without dimensions",
    ),
    "metrics raises": (
        "def metrics(self, outputs, targets): return {'f1': outputs['f1']}",
        "metrics raises",
    ),
    "a name of a round": (
        "def metrics(self, outputs, targets): return {'train_loss': 1.0}",
        "metrics returns 'train_loss', which is a name of a round's own numbers",
    ),
    "as a record has it": (
        "def metrics(self, outputs, targets): return {'train-loss': 1.0}",
        "metrics returns 'train-loss', which is a name of a round's own numbers",
    ),
}


@pytest.mark.parametrize(("method", "said"), EVALUATED.values(), ids=EVALUATED)
@pytest.mark.parametrize("evaluation", ["server", "clients"])
def test_an_evaluation_that_raises_is_refused_before_a_run(
    evaluation: str, method: str, said: str, app: Path, run: Run, tmp_path: Path
) -> None:
    head, net, rest = SIZED.partition("class Net")
    write(app, {"sized.py": f"{head}    {method}\n\n{net}{rest}"})
    with pytest.raises(ConfigError, match=rf"^model = 'sized': {said}"):
        run(model="./sized.py", evaluation=evaluation)
    assert not (tmp_path / "run").exists()


def test_the_names_of_a_rounds_metrics_are_those_of_the_page() -> None:
    """But for the numbers that algorithms and models of ours report."""
    page = (ROOT / "docs" / "run-directory.md").read_text()
    table = page.partition("## A line of `metrics.jsonl`")[2].partition("###")[0]
    names = [
        name
        for row in table.splitlines()
        for name in re.findall(r"`([a-z_<>0-9]+)`", row.partition("|")[2].partition("|")[0])
    ]
    own = {name for name in names if "<" not in name and not name.startswith(SCORE_PREFIXES)}
    assert own - {"clip"} == ROUND_METRICS


CONSTANT = """
    def loss(self, network, params, batch, context):
        loss = super().loss(network, params, batch, context)
        for name, before in context.step_state.items():
            loss = loss + 0.5 * (params[name.removeprefix("at/")] - before).square().sum()
        return loss
"""


def test_what_a_step_returns_is_a_constant_in_the_next(app: Path, run: Run) -> None:
    """A clone of the live parameters does not move with them: the term has a gradient."""
    code = SIGNS.partition("    def gradient")[0]
    rule = REMEMBERED["before a step"].replace(": p for n, p in params", COPIED)
    write(app, {"own.py": code + rule + CONSTANT, "plain.py": code})
    models = [
        model(run(f"{file} {trainer}", algorithm=f"./{file}.py", **given, batch_size=64))
        for file in ("own", "plain")
        for trainer, given in (
            ("one", {"trainer": "sequential"}),
            ("many", {"trainer": "batched", "program": "record"}),
        )
    ]
    for name in models[0]:
        torch.testing.assert_close(models[0][name], models[1][name], atol=1e-6, rtol=1e-4)
    assert largest_difference(models[0], models[2]) > 1e-3


COUNTED = """
    needs: ClassVar[frozenset[str]] = frozenset({"classes"})

    def finalize(self, params, context, steps):
        layers = {n: p for n, p in params.items() if n in context.normalisation}
        return ClientExtras(upload={"labels": context.label_counts, **layers})

    def start(self, theta):
        return {"labels": torch.zeros(()), "layers": torch.zeros(())}

    def apply(self, theta, mean, upload, state, step):
        labels, layers = upload["labels"].sum().float(), torch.tensor(len(upload) - 1.0)
        return super().apply(theta, mean, upload, state, step)[0], {"labels": labels, "layers": layers}

    def report(self, state):
        return {"sum_of_labels": state["labels"], "layers": state["layers"]}
"""


def test_an_upload_may_have_label_counts_and_the_layers_of_normalisation(
    app: Path, run: Run
) -> None:
    code = SIGNS.replace("import Algorithm", "import Algorithm, ClientExtras") + COUNTED
    normed = FILES["nets.py"].replace("nn.ReLU()", "nn.LayerNorm(16), nn.ReLU()")
    write(app, {"own.py": f"import torch\n{code}", "normed.py": normed})
    records = metrics(run(algorithm="./own.py", model="./normed.py:Wide"))
    # Six clients of 240 examples, and a weight and a bias of the LayerNorm.
    assert [record["sum_of_labels"] for record in records[1:]] == [240] * 3
    assert [record["layers"] for record in records[1:]] == [2] * 3


SMOOTH = "F.cross_entropy({outputs}, {targets}, label_smoothing=0.1)"
SMOOTHED = {
    "algorithm": SIGNS
    + "\n    "
    + LOSS
    + SMOOTH.format(outputs="network.outputs(params, batch.inputs)", targets="batch.targets"),
    "model": SIZED
    + "\nclass Smooth(Sized):"
    + '\n    """A smoothed loss."""'
    + '\n    name: ClassVar[str] = "signs"'
    + "\n    def loss(self, outputs, targets, mask=None):"
    + f"\n        return {SMOOTH.format(outputs='outputs', targets='targets')}",
}
"""A loss that does not read the mask, of an algorithm and of a model."""


@pytest.mark.parametrize(("family", "code"), SMOOTHED.items(), ids=SMOOTHED)
def test_a_loss_that_counts_padding_trains_one_client_after_another_alone(
    app: Path, family: str, code: str
) -> None:
    """Padding repeats an example, so that with the batched trainer it would count several times."""
    write(app, {"own.py": "import torch.nn.functional as F\n" + code})
    chosen = {family: "./own.py" + (":Smooth" if family == "model" else "")}
    said = rf"^{family} = 'signs': its loss counts the padding .* `batch\.mask` .*'sequential'\.$"
    for trainer in ("batched", "auto"):
        config = read_config({**chosen, "trainer": trainer})
        with pytest.raises(ConfigError, match=said):
            try_out(config, load_dataset(config))
    config = read_config({**chosen, "trainer": "sequential"})
    try_out(config, load_dataset(config))


def test_a_rule_that_branches_on_values_trains_one_client_after_another_alone(app: Path) -> None:
    """The batched trainer traces a step; every client of every round raised."""
    halved = "return {n: t / 2 for n, t in gradient.items()}, loss"
    branch = f"gradient, loss = differentiate(params, batch)\n        if loss > 0: {halved}"
    write(app, {"own.py": f"{SIGNS}\n    {GRADIENT}\n        {branch}\n"})
    said = (
        r"^algorithm = 'signs': the batched trainer cannot trace its local step: .* control flow\. "
        r"\(app/own\.py, line 19, in gradient\)\. Use torch\.where .*'sequential'\.$"
    )
    config = read_config({"algorithm": "./own.py", "trainer": "batched", "2nn.hidden": 8})
    with pytest.raises(ConfigError, match=said):
        try_out(config, load_dataset(config))
    for trainer in ("auto", "sequential"):
        try_out(config.model_copy(update={"trainer": trainer}), load_dataset(config))


NOISY = {
    "gradient": GRADIENT
    + "return {n: torch.randn_like(p) for n, p in params.items()}, differentiate(params, batch)[1]",
    "finalize": FINALIZE + "(upload={'noise': torch.rand(3)})",
}


@pytest.mark.parametrize(("method", "body"), NOISY.items(), ids=NOISY)
def test_draws_that_a_batch_of_clients_has_no_seed_for_are_refused(
    app: Path, method: str, body: str
) -> None:
    """Under vmap a draw is an error, and a single client's comes from a generator without a seed."""
    code = SIGNS.replace("import Algorithm", "import Algorithm, ClientExtras")
    dropout = FILES["nets.py"].replace("nn.ReLU()", "nn.Dropout()")
    write(app, {"own.py": f"import torch\n{code}\n    {body}\n", "drops.py": dropout})
    said = (
        rf"^algorithm = 'signs': {method} draws at random.* `round_randomness`, .*'sequential'\.$"
    )
    for trainer in ("batched", "auto"):
        config = read_config({"algorithm": "./own.py", "trainer": trainer})
        with pytest.raises(ConfigError, match=said):
            try_out(config, load_dataset(config))
    for one_by_one in ({"trainer": "sequential"}, {"model": "./drops.py:Wide"}):
        config = read_config({"algorithm": "./own.py", **one_by_one})
        try_out(config, load_dataset(config))


@pytest.mark.parametrize("name", family_of("algorithm").components())
def test_what_our_algorithms_return_can_be_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for field in ("_run_id", "_node_id", "_task_id"):  # as every engine sets them
        monkeypatch.setattr(TaskIdentity, field, 1)
    monkeypatch.setattr(family_of("algorithm").components()[name], "own_code", OwnCode({}))
    config = read_config({"algorithm": name, "2nn.hidden": 8})
    try_out(config, load_dataset(config))


def test_what_a_server_rule_raises_in_a_round_names_the_line(app: Path, run: Run) -> None:
    body = "def apply(self, theta, mean, upload, state, step): return theta, [state][step.plan.round - 1]"
    write(app, {"own.py": f"{SIGNS}\n    {body}\n"})
    said = r"^algorithm = 'signs': its server rule raises IndexError: .* \(app/own\.py, line 17, in apply"
    with pytest.raises(ConfigError, match=said):
        run(algorithm="./own.py")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("torch.ones(round_ + 1)", r"a tensor of shape \(3,\) of torch\.float32"),
        ("torch.ones(2).to([torch.float32, torch.float64][round_ - 1])", r"a tensor .*float64"),
    ],
)
def test_a_server_state_keeps_its_shapes_and_types(
    app: Path, run: Run, returned: str, said: str
) -> None:
    """Of the second round on, which the trial does not see: a resume would refuse the checkpoint."""
    start = "def start(self, theta): return {'r': torch.ones(2)}"
    apply = f"round_ = step.plan.round\n        return theta, {{'r': {returned}}}"
    body = f"{start}\n    {APPLY.removesuffix('return ')}\n        {apply}"
    write(app, {"own.py": f"import torch\n{SIGNS}\n    {body}\n"})
    said = rf"^algorithm = 'signs': apply returns as state 'r' {said}, and it was of shape \(2,\)"
    with pytest.raises(ConfigError, match=said):
        run(algorithm="./own.py")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "def __init__(self, **given): super().__init__(**given)",
        "def __init__(self, *args, **given): super().__init__(*args, **given)",
        "def __init__(self, *, scale=0.5, **given): super().__init__(scale=scale, **given)",
        "def model_post_init(self, _): object.__setattr__(self, 'twice', 2 * self.scale)",
        "_decay: float = 0.9",
    ],
)
def test_constructors_of_all_parameters_and_constants_may_stay(app: Path, body: str) -> None:
    write(app, {"own.py": f"{SIGNS}\n    {body}\n    _half: ClassVar[float] = 0.5\n"})
    config = read_config({"algorithm": "./own.py", "signs.scale": 0.5})
    assert config.name_of("algorithm") == "signs"
    try_out(config, load_dataset(config))


def test_a_parameter_without_a_type_is_told_one(app: Path) -> None:
    write(app, {"own.py": f"{SIGNS}\n    mu = 0.3\n"})
    with pytest.raises(ConfigError, match=r"A non-annotated .*its type, as in mu: float = 0\.3\.$"):
        read_config({"algorithm": "./own.py"})


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "returns None, and must return a list of clients, in round 1"),
        ("[0, 99]", r"returns 99, which is none of the 6 candidates \(0 to 5\), in round 1"),
        ("[0.5]", "returns 0.5, which is none of"),
        ("[0, 0, 1]", "returns client 0 twice, in round 1"),
        ("clients", r"raises NameError: .* \(app/last\.py, line 11, in sample\)"),
    ],
)
def test_what_a_sampler_returns_are_clients(app: Path, run: Run, returned: str, said: str) -> None:
    head = FILES["last.py"].partition("return")[0]
    write(app, {"last.py": f"{head}return {returned}\n"})
    with pytest.raises(ConfigError, match=rf"^sampler = 'last': sample {said}"):
        run(sampler="./last.py")


def test_all_clients_that_a_sampler_returns_count(app: Path, run: Run) -> None:
    """However many nodes train them, and though they are more than C K = 3."""
    everybody = FILES["last.py"].replace("[-candidates.number :]", "")
    write(app, {"last.py": everybody})
    models = []
    for nodes in (1, 3, 6):
        folder = run(f"{nodes}", nodes=nodes, sampler="./last.py")
        assert [record["replied"] for record in metrics(folder)[1:]] == [6] * 3
        models.append(model(folder))
    assert max(largest_difference(models[0], each) for each in models[1:]) < 1e-6


def test_a_sampler_may_return_an_array_in_any_order(app: Path, run: Run) -> None:
    code = FILES["last.py"].replace(
        "list(candidates.clients)[-candidates.number :]", "np.arange(3)[::-1]"
    )
    write(app, {"last.py": "import numpy as np\n" + code})
    assert metrics(run(sampler="./last.py"))[1]["clients"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("meaning", "said"),
    [("Share of the mean.", "1; 2 % is 0.02"), ("Weight of the mean.", "1. Weight")],
)
def test_only_a_share_may_be_thought_of_in_percent(app: Path, meaning: str, said: str) -> None:
    field = f'scale: float = Field(0.01, le=1, description="{meaning}")'
    write(
        app,
        {
            "own.py": SIGNS.replace(
                'scale: float = Field(0.01, gt=0, description="Length of a step.")', field
            )
        },
    )
    with pytest.raises(ConfigError, match=f"scale = 2: must be less than or equal to {said}"):
        read_config({"algorithm": "./own.py", "signs.scale": 2})


def test_what_has_no_meaning_is_described_by_its_default(app: Path) -> None:
    field = "scale: float = 0.5\n    start_scale: float = Field(0.5)"
    write(app, {"own.py": re.sub(r"scale: float = .*", field, SIGNS)})
    for given in ("x", [1]):
        with pytest.raises(
            ConfigError, match=r"scale = .*: must be [^.]*\. The default is 0\.5\.$"
        ):
            read_config({"algorithm": "./own.py", "signs.scale": given})


MANIFESTS = {
    "the name of another entry point": (
        PYPROJECT.replace('signs = "signs', 'steps = "signs'),
        "steps",
        r"algorithm = 'steps': the class Signs has name = 'signs', and its entry point is 'steps'\.",
    ),
    "an entry point that shadows one of ours": (
        PYPROJECT.replace('signs = "signs', 'fedprox = "signs'),
        "fedprox",
        r"algorithm = 'fedprox': the entry point 'fedprox' = 'signs:Signs' \(fedapp\.algorithms\) has "
        r"the name of the algorithm 'fedprox' of fedapp",
    ),
    "an entry point without a class": (
        PYPROJECT.replace("signs:Signs", "signs"),
        "signs",
        r"algorithm = 'signs': its entry point is 'signs' = 'signs', .* as signs = \"module:Class",
    ),
    "a pyproject that is no TOML": (
        PYPROJECT + "[project",
        "./signs.py",
        r"/app/pyproject\.toml: cannot be read as TOML: .*\. Correct it\.",
    ),
}


@pytest.mark.parametrize(("pyproject", "algorithm", "said"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_mistake_in_an_apps_pyproject_is_one_line(
    app: Path, pyproject: str, algorithm: str, said: str
) -> None:
    write(app, {"pyproject.toml": pyproject})
    with pytest.raises(ConfigError, match=said) as error:
        read_config({"algorithm": algorithm})
    assert "\n" not in str(error.value)


def test_a_process_of_flower_uses_no_file_outside_of_the_app(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = tmp_path / "flwr" / "apps" / "me.app.0.1.0.12345678"
    write(unpacked, {"inside.py": SIGNS})
    (unpacked / "link.py").symlink_to(app / "signs.py")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setattr(sys, "path", [str(unpacked), *sys.path])
    assert app_folder.app_folder() == unpacked
    code = read_config({"algorithm": "./inside.py"}).own_code()["algorithm"]
    assert list(code.files) == ["inside.py"]
    for value in (str(app / "signs.py"), "../me.app.0.1.0.12345678/../../x.py", "./link.py"):
        with pytest.raises(ConfigError) as error:
            read_config({"algorithm": value})
        assert f"algorithm = {value!r}: " in str(error.value)
        assert f"is not in the app's folder {unpacked}, and an app that runs on a SuperLink" in str(
            error.value
        )


def test_a_folder_of_data_is_no_component(app: Path) -> None:
    (app / "photos.py").mkdir()
    for value in ("./photos.py", "ylecun/mnist", "digits"):
        assert components.is_own(family_of("dataset"), value) is False
    assert components.is_own(family_of("dataset"), "./points.py")


def test_the_digest_does_not_depend_on_the_order_of_files() -> None:
    one = OwnCode({"a.py": b"1", "b.py": b"2"})
    assert one.digest == OwnCode({"b.py": b"2", "a.py": b"1"}).digest
    assert one.digest != OwnCode({"a.py": b"2", "b.py": b"1"}).digest
    assert np.unique([one.digest, OwnCode({"a.py": b"1"}).digest]).size == 2
