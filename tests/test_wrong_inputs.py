"""Wrong inputs: what a user types, and what is answered before anything is trained or written.

Each answer has four parts, which a row separates by " | ": what is wrong (a key, a file, a column), the
value that was found, what is allowed, and what to do.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedapp.client_app import app as client_app
from fedapp.engines.in_process import run_inline
from fedapp.server_app import app as server_app
from tests.data_files import write_parquet
from tests.own_app import FILES, ROWS, SIGNS, app_in, write
from tests.test_exit_status import fedapp
from tests.test_tables import csv

TABLES = {
    "whole": "x,y,label 1,2,0 2,4,1",
    "texts": "text,label ab,0 cd,1",
    "no-label": "x,y 1,2 2,4",
    "prices": "x,price 1,1.5 2,2.5 3,3.5",
    "gap": "x,y,label 1,2,0 2,,1",
    "nan": "x,y,label 1,2,0 2,4,1 2,nan,1",
    "infinite": "x,label 1,0 inf,1",
    "huge": "x,label 1,0 -1e300,1",
    "towns": "town,label Rome,0 ,1 ,1",
    "letters": "x,y,label 1,1,0 2,1,1 3,?,0",
    "unlabelled": "x,label 1,0 2,",
    "cheap": "x,price 1,1.5 2,2.5 3,cheap",
    "names": "x,label 1,a 2,b",
    "halves": "x,label 1,1.0 2,1.5",
    "negative": "x,label 1,0 2,-1",
    "one-of-three": "x,label 1,2 2,2",
    "one-class": "x,label 1,0 2,0",
}
"""Folders of tables: head and rows, with spaces for line ends."""

NETWORK = "from torch import nn\nclass Net(nn.Module):\n    def {}\n        super().__init__()\n"
MODEL = """from typing import ClassVar
from torch import nn
from fedapp.models.model import Model
class Seven(Model):
    name: ClassVar[str] = "seven"
    def build(self, task):
        return nn.Sequential(nn.Flatten(), nn.Linear(7, task.num_classes))
"""
CODE = {
    "seven.py": MODEL,
    "empty.py": "x = 1\n",
    "syntax.py": "x = 1\nclass :\n",
    "division.py": "x = 1\n\ny = x / 0\n",
    "imports.py": "import no_such_package\n",
    "plain.py": "class Plain:\n    pass\n",
    "nameless.py": SIGNS.replace('    name: ClassVar[str] = "signs"\n', ""),
    "shadow.py": SIGNS.replace('"signs"', '"fedprox"'),
    "misspelled.py": SIGNS.replace("def gradient(", "def gradients("),
    "number.py": SIGNS
    + "\n    def loss(self, network, params, batch, context):\n        return 0.0\n",
    "lists.py": FILES["points.py"].replace("astype(np.int64)", "tolist()"),
    "required.py": SIGNS.replace("0.01, gt", "gt"),
    "bare.py": SIGNS.replace("scale: float = Field(0.01, gt=0, ", "scale = dict("),
    "two.py": SIGNS + SIGNS.replace("Signs", "Other").replace('"signs"', '"other"'),
    "chain.py": "import division\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "shadow-2nn.py": SIGNS.replace('"signs"', '"2nn"'),
    "folder.py/x": "",
    "inputs.py": NETWORK.format("__init__(self):")
    + "    def forward(self, x):\n        return x[9]\n",
    "twice.py": FILES["double.py"].replace('"double"', '"signs"'),
    "unloadable.py": FILES["points.py"].replace("def load", "def read"),
    "again.py": ROWS,
    "arguments.py": NETWORK.format("__init__(self, width):"),
    "outputs.py": NETWORK.format("__init__(self):")
    + "    def forward(self, x):\n        return x\n",
    "pairs.py": NETWORK.format("__init__(self):")
    + "    def forward(self, x):\n        return x.flatten(1)[:, :10], x\n",
    "letters.csv": "1,0\n1,yes\n",
    "ragged.csv": "1,0\n1\n",
    "two-clients.csv": "1,0\n0,1\n",
    "y.csv": "y\n1\n",
    "ten.csv": "x,y\n1,2\nten,2\n",
    "hole.csv": "x,y\n1,2\n,2\n",
    "head.csv": "x,y\n",
    "hello.txt": "hello\n",
    "broken.toml": "seed = \n",
}
"""Files in the folder, beside the components of ``own_app``."""

REGRESSION = "run dataset=prices label-key=price num-clients=2 model=linear"
CHOICE = "run sampler=power-of-choice weighting=uniform"
TRACE = "run sampler=availability num-clients=6 availability.trace"

WRONG = {
    # settings
    "run learningrate=0.1": "learningrate | 0.1 | there is no such key | Did you mean 'learning-rate'?",
    "run fraction_train=0.1": "fraction_train | 0.1 | no such key | Did you mean 'fraction-train'?",
    "run --num-clients 3": "--num-clients | is a setting | num-clients=3 | write num-clients=3, without",
    "run --num_clients=3": "--num_clients | is a setting | num-clients=3 | write num-clients=3, without",
    "sweep --num-clients [1,2]": "--num-clients | is a setting | [1,2] | write 'num-clients=[1,2]'",
    "run --local-epochs": "--local-epochs | is a setting | VALUE | write local-epochs=VALUE",
    "run num-clients=2.5": "num-clients | 2.5 | must be a whole number. Clients, K | The default is 20",
    "run num-server-rounds=true": "num-server-rounds | true | must be a whole number | The default is 50",
    "run nesterov=yes": "nesterov | 'yes' | must be true or false | The default is false",
    "run nesterov=True": "nesterov | true | momentum above 0 | Set momentum=0.9, or nesterov=false",
    "run learning-rate=-1": "learning-rate | -1 | must be greater than 0 | The default is 0.2",
    "run learning-rate=0,1": "learning-rate | '0,1' | must be a number | The default is 0.2",
    "sweep learning-rate=[0.1,-1]": "learning-rate | -1 | must be greater than 0 | The default is 0.2",
    "run target-accuracy=95": "target-accuracy | 95 | less than or equal to 1 | 95 % is 0.95",
    "run algorithm=fedavgg": "algorithm | 'fedavgg' | One of: bulyan, | Did you mean 'fedavg'?",
    "partition partitioner=shard": "partitioner | 'shard' | One of: dirichlet, | Did you mean 'shards'?",
    "run seed 3": "'seed' | must be KEY=VALUE | as in learning-rate=0.1 | or a .toml file",
    "run no.toml": "no.toml | No such file | a file of settings, such as seed = 3 | Name a file",
    "run broken.toml": "broken.toml | Invalid value (at line 1 | such as seed = 3 | or correct it",
    "run min-nodes=2": "min-nodes | 2: 1 is the number of nodes | no more will come | Add --nodes 2",
    "run num-clients=5000": "num-clients | 5000 | only 1440 training examples | to 1440 or less",
    "run device=cuda": "device | 'cuda' | sees 0 GPUs | Set device='auto', a GPU",
    "partition num-clients=5000": "num-clients | 5000 | only 1440 training examples | to 1440 or less",
    "doctor device=cuda": "device | 'cuda' | sees 0 GPUs | Set device='auto', a GPU",
    "sweep dataset=/nowhere": "dataset | '/nowhere' | an existing folder, a hub name | Set dataset to",
    "run run-dir=runs/digits": "run-dir | holds a run already | another run-dir | Set resume=true",
    # paths that cannot be
    "run dataset=~nobody-here/x": "dataset | '~nobody-here/x' | no home folder of | Choose another",
    f"run dataset={'a' * 300}/x": "dataset | aaa/x' | (File name too long) | Choose another",
    "run algorithm=~nobody-here/x.py": "algorithm | '~nobody-here/x.py' | no home | Choose another",
    f"run algorithm={'a' * 300}.py": "algorithm | aaa.py' | (File name too long) | Choose another",
    "keys ~nobody-here/x": "'~nobody-here/x' | no component of | what keys allow | `fedapp keys`",
    "run run-dir=~nobody-here/x": "run-dir | '~nobody-here/x' | no home folder of | Choose another",
    f"run run-dir={'a' * 300}": "run-dir | aaa' | (File name too long) | Choose another",
    "run initial-model=~nobody-here/x": "initial-model | '~nobody-here/x' | no home | Choose another",
    "run dataset=whole data-cache=~nobody-here": "data-cache | '~nobody-here' | no home | Choose another",
    "compare runs --to ~nobody-here/x": "--to | ~nobody-here/x: is no | no home folder | Choose another",
    # options and arguments
    "run --nosuch": "--nosuch | No such option | run [OPTIONS] | fedapp run --help'",
    "run --workers -1": "--workers | -1 | x>=0 | fedapp run --help'",
    "sweep --hours nan seed=[0,1]": "--hours | nan | not a finite number | fedapp sweep --help'",
    "sharpness runs/digits --distance inf": "--distance | inf | not a finite | sharpness --help'",
    "run model=resnet18-gn resnet18-gn.groups=true": "groups | 'true' | must be 1, 2, | default is 32",
    "run --workers 2 --nodes 3": "--nodes | 3 | each of the 2 workers is one node | or set --workers 3",
    "nosuch": "'nosuch' | No such command | COMMAND [ARGS] | fedapp --help'",
    "partition --picture p.pdf": "--picture | 'p.pdf' | .png and .svg | Call it p.png",
    "partition --picture .": "--picture | / | must be a file, and is a folder | Name a file in it",
    "partition --picture whole": "--picture | /whole | and is a folder | Name a file in it",
    "partition --picture y.csv/p": "--picture | /y.csv | must be a folder, and / | Choose another",
    "reproduce nosuch": "'nosuch' | no such table or figure | mcmahan-fig1, | One of: all, ",
    "keys x": "'x' | no component of this name | what keys allow | `fedapp keys`",
    "init whole": "whole | is there already | must be new or empty | Choose another name",
    "init My_App": "'My_App' | must be small letters | begin with a letter | as in my-app",
    "init y.csv/my-app": "NAME | /y.csv/my-app | must be a folder, and / | Choose another",
    "init /proc/my-app": "NAME | /proc/my-app | cannot be written | Choose another folder",
    f"init {'a' * 300}": "NAME | aaa | is no possible path (File name too long) | Choose another",
    "init class": "'class' | is a keyword of Python | as in my-app | Choose another name",
    "init json": "'json' | has a module 'json' already | as in my-app | Choose another name",
    "init fedapp": "'fedapp' | has a module 'fedapp' already | as in my-app | Choose another name",
    # data, and tables
    "run dataset=/nowhere": "dataset | '/nowhere' | an existing folder, a hub name | Set dataset to",
    "run dataset=whole/train.csv": "dataset | 'whole/train.csv' | is a file | to its folder, whole",
    "run dataset=whole input-keys=x,size": "input-keys | no column 'size' | x, y, label | Set input-keys",
    "run dataset=whole input-keys=x categorical-keys=z": "categorical-keys | 'z' | columns: x, y | Set",
    "run dataset=whole input-keys=x,label": "input-keys | 'x,label' | 'label', which is | Leave it out",
    "run dataset=whole input-keys=x,x": "input-keys | 'x,x' | names 'x' twice | Name each input once",
    "run dataset=whole input-keys=x input-key=x": "input-key | 'x' | input-keys names | Set one of",
    "run dataset=whole label-key=kind": "label-key | 'kind' | columns: x (int64), y | Set label-key",
    "run dataset=no-label": "label-key | '' | Its columns: x (int64), y (int64) | Set label-key",
    "run dataset=gap": "split 'train', column 'y' | row 1 has no value | Fill it | set missing='mean'",
    "run dataset=nan": "split 'train', column 'y' | row 2 has no value | Fill it | set missing='mean'",
    "run dataset=towns input-keys=town": "column 'town' | row 1 has no value | Fill it | missing='mean'",
    "run dataset=infinite": "column 'x' | row 1 is inf | a number must be finite | Correct it",
    "run dataset=huge": "split 'train', column 'x' | row 1 is -1e+300 | -1e+90 and 1e+90 | larger unit",
    "run dataset=letters": "column 'y' | row 2 is '?' | a column of numbers | set categorical-keys='y'",
    "run dataset=unlabelled": "column 'label' | row 1 has no label | (1 such rows) | Remove these rows",
    "run dataset=cheap label-key=price": "'price' | row 2 is 'cheap' | numbers | task='classification'",
    "run dataset=negative": "label-key | label -1 in row 1 | from 0 to 0 | renumber the labels",
    "run dataset=names task=regression": "'label' | row 0 is 'a' | numbers | task='classification'",
    "run dataset=halves task=classification": "task | row 1 is 1.5 | integers or names | Set task=",
    "run dataset=whole missing=median": "missing | 'median' | 'refuse' or 'mean' | default is 'refuse'",
    "run dataset=texts missing=mean": "missing | 'mean' | holds images or text | leave the key out",
    "run dataset=whole text-unit=words": "text-unit | 'words' | a table of numbers | leave the key out",
    "run dataset=whole table-statistics=no.json": 'table-statistics | no.json | {"columns": | Name',
    f"{REGRESSION} algorithm=fedlc": "algorithm | 'fedlc' | labels of classes | Set algorithm='fedavg'",
    f"{REGRESSION} algorithm=fedntd": "algorithm | 'fedntd' | labels of classes | Set algorithm='fedavg'",
    f"{REGRESSION} algorithm=fedsol": "algorithm | 'fedsol' | labels of classes | Set algorithm='fedavg'",
    f"{REGRESSION} partitioner=dirichlet": "partitioner | 'dirichlet' | divides each label | 'iid'",
    f"{REGRESSION} partitioner=label-quantity": "partitioner | 'label-quantity' | each label | 'iid'",
    "run dataset=quadratic model=quadratic target-accuracy=0.9": "target-accuracy | 0.9 | accuracy | 0",
    f"{REGRESSION} target-accuracy=0.9": "target-accuracy | 0.9 | no accuracy | Set target-accuracy=0",
    f"{REGRESSION} algorithm=dp-fedavg": "table-statistics | '' | 'dp-fedavg' protects | by hand",
    f"{REGRESSION} algorithm=local-dp": "table-statistics | '' | 'local-dp' protects | by hand",
    "run dataset=whole num-clients=2 model=mnist-cnn": "model | 'mnist-cnn' | takes images | 2nn, linear",
    # components of one's own
    "run algorithm=./sings.py": "algorithm | './sings.py' | no such file (/ | Name a .py file",
    "run algorithm=signs": "algorithm | 'signs' | One of: bulyan, | Did you mean './signs.py'?",
    "run algorithm=./folder.py": "algorithm | './folder.py' | no such file (/ | Name a .py file",
    "run algorithm=./empty.py": "algorithm | './empty.py' | no algorithm | Derive a class from",
    "run partitioner=./signs.py": "partitioner | './signs.py' | no partitioner | Derive a class",
    "run sampler=./signs.py": "sampler | './signs.py' | no sampler | Derive a class from",
    "run model=./nets.py": "model | './nets.py' | several | Set model='./nets.py:Wide' or",
    "run algorithm=./two.py": "algorithm | './two.py' | several | './two.py:Signs' or algorithm='./two",
    "run algorithm=./signs.py:Sings": "algorithm | no class 'Sings' | its classes: Signs | Name one of",
    "run model=netts:Wide": "model | 'netts:Wide' | no module 'netts' in / | start in the folder",
    "run algorithm=./syntax.py": "algorithm | './syntax.py' | line 2: SyntaxError | Correct the file",
    "run model=division:Net": "model | 'division:Net' | line 3: importing it raises | Correct the",
    "run algorithm=./chain.py": "algorithm | './chain.py' | division.py, line 3: | Correct the file",
    "run algorithm=./exits.py": "algorithm | './exits.py' | line 2: importing it raises | Correct",
    "run algorithm=./imports.py": "algorithm | './imports.py' | 'no_such_package' | Install that package",
    "run algorithm=plain:Plain": "algorithm | 'plain:Plain' | is no algorithm | Derive it from",
    "run algorithm=./nameless.py": "algorithm | has name = '' | hyphens and underscores | Give it a",
    "run algorithm=./misspelled.py": "algorithm | gradients | nothing reads | Did you mean 'gradient'?",
    "run algorithm=./number.py": "algorithm | loss returns a float | without dimensions | Let it return",
    "run dataset=./lists.py": "dataset | targets that are a list | a NumPy array | np.asarray(",
    "run algorithm=./shadow.py": "algorithm | './shadow.py' | algorithm 'fedprox' of | another name",
    "run algorithm=./shadow-2nn.py": "algorithm | './shadow-2nn.py' | model '2nn' of | another name",
    "run algorithm=strategies.fedprox:FedProx": "algorithm | FedProx' | 'fedprox' of | another name",
    "run algorithm=./signs.py transform=./twice.py": "transform | './twice.py' | 'signs' | another name",
    "run dataset=./unloadable.py": "dataset | './unloadable.py' | lacks the method load | Define it",
    "run algorithm=./required.py": "algorithm | signs.scale, whose | no number, text | as in Field(",
    "run algorithm=./bare.py": "algorithm | './bare.py' | `scale = {'descrip | require a type annotation",
    "run algorithm=./signs.py signs.scle=2": "signs.scle | 2 | no such key | mean 'signs.scale'?",
    "run algorithm=./signs.py signs.scale=-1.0": "signs.scale | -1.0 | greater than 0 | default is 0.01",
    "run algorithm=./signs.py signs.scale=big": "signs.scale | 'big' | be a number | default is 0.01",
    "run signs.scale=2": "signs.scale | 2 | there is no such key | Choose a component called 'signs'",
    "run model=./arguments.py": "model | Net(width) | input_shape and num_classes | Give the others",
    "run model=./inputs.py": "model | Net raises | of shape (2, 1, 8, 8) | Let forward take",
    "run model=./seven.py": "model | Seven raises | of shape (2, 1, 8, 8) | Let forward take",
    "run model=./outputs.py": "model | shape (2, 1, 8, 8) | logits of shape [n, 10] | Let forward",
    "run model=./pairs.py": "model | Net returns a tuple, | logits of shape [n, 10] | Let forward",
    "sweep algorithm=[./signs.py,./sings.py]": "algorithm | './sings.py' | a .py file | Name a",
    "keys ./x.py": "algorithm | './x.py' | there is no such file (/ | Name a .py file",
    "run callbacks=./rows.py,./row.py": "callbacks | './row.py' | no such file (/ | Name a .py file",
    "run callbacks=rows": "callbacks | 'rows' | a file, as in './file.py' | Did you mean './rows.py'",
    "run callbacks=./signs.py": "callbacks | './signs.py' | no callback | Derive a class from",
    "run callbacks=plain:Plain": "callbacks | 'plain:Plain' | is no callback | Derive it from fedapp.",
    "run callbacks=./rows.py,./again.py": "callbacks | './again.py' | its name 'rows' | another name",
    "run callbacks=./rows.py rows.lable=x": "rows.lable | 'x' | no such key | mean 'rows.label'?",
    "run callbacks=./rows.py rows.label=true": "rows.label | true | must be a text | The default is ''",
    "run callbacks=true": "callbacks | true | must be a text | files, classes or entry points",
    # samplers
    "run sampler=unifrom": "sampler | 'unifrom' | One of: auto, availability, | Did you mean 'uniform'?",
    "run sampler=by-size": "weighting | 'examples' | sampler = 'by-size' | Set weighting='uniform'",
    "run sampler=poisson over-selection=0.5": "over-selection | 0.5 | 'poisson' | Leave it out",
    f"{CHOICE} power-of-choice.candidates=2": "candidates | 2 | 10 clients are chosen | Raise it",
    "run power-of-choice.candidates=9": "candidates | 9 | sampler is 'auto' | Set sampler='power-of",
    "run algorithm=dp-fedavg sampler=uniform": "sampler | 'uniform' | epsilon is | Leave the key out",
    "run algorithm=local-dp sampler=power-of-choice": "sampler | 'power-of-choice' | not private | Leave",
    "run sampler=availability num-clients=0": "sampler | 'availability' | virtual clients | Set sampler=",
    "run sampler=availability availability.share=0": "share | 0 | greater than 0 | default is 0.5",
    f"{TRACE}=no.csv": "availability.trace | 'no.csv' | a CSV file of 0 and 1 | Name a CSV",
    f"{TRACE}=ragged.csv": "availability.trace | 'ragged.csv' | differ in length | Each needs a 0 or 1",
    f"{TRACE}=letters.csv": "availability.trace | row 2, column 2, is 'yes' | 0 or 1 | without a header",
    f"{TRACE}=two-clients.csv": "availability.trace | 2 rows | num-clients = 6 | Set num-clients=2",
    f"{TRACE}=ragged.csv availability.period=7": "availability.period | 7 | says who | Leave one",
    # runs that are there, and that are not
    "run --resume runs/digits learning-rate=0.9": "learning-rate | 0.9 | the run has 0.2 | fedapp run --",
    "run --resume runs/signs": "'./own.py' | It has SHA-256 | the files of / | Put back",
    "run --resume runs/signs callbacks=./no.py": "callbacks | './no.py' | a .py file | Name a",
    "run --resume runs/digits resume=false": "resume | false | continues the run | /resume.toml resume=",
    "run --resume nowhere": "'nowhere' | there is no such folder | the folder that a run logs | Give the",
    "status nowhere": "'nowhere' | no such folder | or one that holds such folders | Give the",
    "status whole": "'whole' | config.json is missing | or one that holds such folders | Give the folder",
    "report nowhere": "'nowhere' | no such folder | folder that a run logs first | Give the",
    "report whole": "'whole' | config.json is missing | the folder that a run logs first | Give the",
    "updates nowhere": "'nowhere' | no such folder | folder that a run logs first | Give the",
    "sharpness nowhere": "'nowhere' | no such folder | folder that a run logs first | Give the",
    "sharpness runs/digits --to .": "--to | / | must be a file, and is a folder | Name a file in it",
    "sharpness runs/digits --to y.csv/s.json": "--to | /y.csv | must be a folder | is a file. Choose",
    "updates runs/digits --to y.csv": "--to | /y.csv | must be a folder, and / | Choose another",
    "compare nowhere": "'nowhere' | no such folder | or one that holds such folders | Give the",
    "compare whole": "'whole' | no folder in it is one | that holds such folders | Give the",
    "compare runs/digits": "runs/digits | one run that can be read | needs two | Give another run",
    "compare runs --target 95": "--target | 95 | above 0 and at most 1 | 95 % is 0.95",
    "compare runs --colour red": "--colour | No such option | [OPTIONS] RUN_DIRS | compare --help",
    # the model of a run
    "predict nowhere y.csv": "'nowhere' | no such folder | folder that a run logs first | Give the",
    "predict runs/digits tall.png": "tall.png | is 8x9 | the model takes 8x8 | Resize it",
    "predict runs/digits hello.txt": "hello.txt | cannot identify image file | PNG or JPEG | Replace it",
    "predict runs/digits none.png": "none.png | no such file | images (PNG or JPEG) | Name another",
    "predict runs/table y.csv": "y.csv | no column 'x', but y | the model: x, y; others are | Give it",
    "predict runs/table ten.csv": "ten.csv, column 'x' | row 1 is 'ten' | column of numbers | Correct",
    "predict runs/table hole.csv": "hole.csv, column 'x' | row 1 has no value | (1 such rows) | Fill it.",
    "predict runs/table head.csv": "head.csv | cannot be read as a table | (x, y) and at least | Give",
    "predict runs/table none.csv": "none.csv | no such file | takes tables (.csv or | Name another file",
    "predict runs/table hello.txt": "hello.txt | is no table | tables (.csv or .parquet) | Name another",
    "predict runs/text tall.png": "tall.png | can't decode byte | takes texts (.txt) | Name another file",
    "predict runs/table whole/train.csv --length 0": "--length | 0 | x>=1 | fedapp predict --help'",
    "export nowhere": "'nowhere' | no such folder | folder that a run logs first | Give the",
    "export runs/digits --to y.csv": "--to | /y.csv | must be a folder, and / | Choose another",
    "export runs/digits --onnx": "onnx | is not installed | pip install | 'fedapp[onnx]'",
    "export runs/digits --onxx": "--onxx | No such option | '--onnx' | Did you mean",
}

NOTED = {
    "run fraction-train=0": "fraction-train | 0 | max(floor(C*K), 1) | one client a round",
    "run dataset=one-class model=linear": "dataset = 'one-class' | one class only, 0 | label-key | add",
    "run dataset=one-of-three model=linear": "2 of 3 classes | no training example | no model | 0, 1",
}
"""What is allowed, but seldom meant: a line of the log says what it means."""

RUNS: dict[str, dict[str, Any]] = {
    "digits": {"2nn.hidden": 8},
    "table": {"dataset": "whole", "model": "linear"},
    "text": {"dataset": "spoken", "model": "char-lstm", "char-lstm.hidden": 4, "text-unroll": 6},
    "signs": {"algorithm": "./own.py", "2nn.hidden": 8},
}
FEW = {"num-clients": 2, "num-server-rounds": 1, "device": "cpu", "pictures": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files, and with RUNS, one of which has code that was changed since."""
    folder = tmp_path_factory.mktemp("wrong")
    write(folder, {**FILES, **CODE, "own.py": SIGNS})
    for name, rows in TABLES.items():
        csv(folder / name, rows)
    Image.fromarray(np.zeros((9, 8), np.uint8)).save(folder / "tall.png")
    write_parquet(
        folder / "spoken", {name: {"text": ["one two", "six"]} for name in ("train", "test")}
    )
    with pytest.MonkeyPatch.context() as patch, app_in(folder):
        patch.chdir(folder)
        patch.setenv("FEDAPP_CACHE", str(folder / "cache"))
        for name, settings in RUNS.items():
            run_inline(server_app, client_app, {**FEW, **settings, "run-dir": f"runs/{name}"}, 1)
    write(folder, {"own.py": SIGNS.replace(".sign()", ".sign() * 2")})
    return folder


def contents(folder: Path) -> dict[Path, int]:
    """Return when each file was written last, but for what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_input_is_answered_before_anything_is_trained(
    words: str,
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    what, value, allowed, fix = WRONG[words].split(" | ")
    before = contents(folder)
    with app_in(folder):
        code, said = fedapp(capfd, *shlex.split(words))
    assert code == 2
    assert said.splitlines()[-1].startswith("Error: ")
    for part in (what, value, allowed, fix):
        assert part in said
    assert contents(folder) == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", NOTED)
def test_what_is_seldom_meant_gets_a_line(
    words: str,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(folder)
    few = [f"{key}={json.dumps(value)}" for key, value in FEW.items()]
    code, _ = fedapp(capfd, *words.split(), *few)
    assert code == 0
    assert any(
        all(part in line for part in NOTED[words].split(" | ")) for line in caplog.messages
    ), caplog.text
