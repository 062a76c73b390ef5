# ruff: noqa: E501
"""Bad inputs for all commands: a line is an exit code, a command, and words that its one-line error must have.

To add a case, add a line to ``TABLE_OF_CASES``; a file that it needs goes to ``FILES``. ``spec.toml``,
``table.toml``, ``mini.toml`` (a recipe), ``good`` and ``lagged`` (finished runs) and ``own.py`` (a user's code) are there.
"""

import re
import shlex
from typing import NamedTuple


class Case(NamedTuple):
    """A bad input.

    Attributes:
        code: The exit code.
        command: The command line.
        words: Words that the message must have: the culprit, and what is wrong.
    """

    code: int
    command: str
    words: str

    @classmethod
    def parse(cls, line: str) -> "Case":
        """Read a line of the table."""
        code, command, words = line.split(" | ", 2)
        return cls(int(code), command, words)

    @property
    def arguments(self) -> list[str]:
        """The words of the command line."""
        return shlex.split(self.command)


HEADER = "client,day,a,b,label\n"
ROWS = "".join(
    f"c{i % 3},2020-0{1 + i % 4}-01,{i / 7:.3f},{i % 5},{'yes' if i % 2 else 'no'}\n"
    for i in range(60)
)
SPEC = """
name = "tiny"
rounds = 2
[model]
kind = "linear"
[scenario]
kind = "subsets"
clients = 3
subsets = 4
[train]
steps = 1
[evaluate]
seen = 20
"""
TABLE = """
rounds = 2
[data]
kind = "table"
path = "table.csv"
target = "label"
client = "client"
time = "day"
period = "month"
[scenario]
kind = "periods"
[model]
kind = "linear"
[train]
steps = 1
"""
RECIPE = """
title = "Mini"
label = "mini"
order = 1
[base]
rounds = 1
model = { kind = "linear" }
[scales.cpu]
hours = 0.1
seeds = [0]
[rows.FedAvg]
[view]
kind = "summary-table"
"""
OWN = """
import sys
import torch
from torch import nn

import chronofed

NUMBER = 7

def raises(shape, classes):
    raise RuntimeError("first line\\nsecond line")

def leaves(shape, classes):
    sys.exit(0)

def nothing(shape, classes):
    return None

def seven(shape, classes):
    return nn.Sequential(chronofed.Scale(), nn.Flatten(), nn.Linear(784, 7))

def frozen(shape, classes):
    return nn.Sequential(chronofed.Scale(), nn.Flatten(), nn.Linear(784, 10)).requires_grad_(False)

def unscaled(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))

def batch_norm(shape, classes):
    return nn.Sequential(
        chronofed.Scale(), nn.Flatten(), nn.Linear(784, 4), nn.BatchNorm1d(4), nn.Linear(4, classes)
    )

class Forward(nn.Linear):
    def forward(self, x):
        return self.mising(x)

def forward(shape, classes):
    return Forward(784, classes)

class Direction(chronofed.FedAvg):
    def direction(self, grad, params, server, client):
        return grad / server["nothing"]

class Recall(chronofed.CoreSet):
    def recall(self, items, weights, moment):
        raise ArithmeticError("cannot recall")

class Weights(chronofed.RoundWeights):
    def __call__(self, timeline):
        raise LookupError("no weights")

class Scenario(chronofed.ScenarioSettings):
    def on(self, dataset, seed):
        raise OSError("no stream")

class Engine(chronofed.LocalEngine):
    def __init__(self, **_):
        raise OSError("no engine")
    def map(self, *_): ...
    def prepare(self, *_): ...

def tracker():
    raise OSError("no tracker")

BROKEN = chronofed.Measure(key="broken", title="Broken", compute=lambda evaluation: 1 / 0)
"""
NESTED = "x = " + "[" * 5000 + "]" * 5000
FILES: dict[str, bytes] = {
    name: content if isinstance(content, bytes) else content.encode()
    for name, content in {
        "spec.toml": SPEC,
        "table.toml": TABLE,
        "table.csv": HEADER + ROWS,
        "mini.toml": RECIPE,
        "own.py": OWN,
        "own_syntax.py": "def f(:\n",
        "own_import.py": "import no_such_package_of_anyone\n",
        "own_raises.py": "raise ZeroDivisionError('at import')\n",
        "own_exit.py": "import sys\nsys.exit(0)\n",
        "empty.toml": "",
        "broken.toml": "rounds = = 2\n",
        "latin.toml": "name = '\xe9'\n".encode("latin-1"),
        "nul.toml": b"name = 'a\x00b'\n",
        "nested.toml": NESTED,
        "long.toml": f"rounds = {'9' * 5000}\n",
        "twice.toml": "rounds = 1\nrounds = 2\n",
        "hex.toml": f"rounds = 0x{'f' * 5000}\n",
        "date.toml": "rounds = 2020-01-01\n",
        "array.toml": "train = [1]\n",
        "empty.csv": "",
        "header.csv": HEADER,
        "headless.csv": ROWS,
        "columns.csv": "client,day,a,a,label\n" + ROWS,
        "semicolon.csv": (HEADER + ROWS).replace(",", ";"),
        "nul.csv": (HEADER + ROWS).encode().replace(b"c1", b"c\x00"),
        "latin.csv": (HEADER + ROWS).replace("yes", "\xe9").encode("latin-1"),
        "utf16.csv": (HEADER + ROWS).encode("utf-16"),
        "dates.csv": HEADER + ROWS.replace("2020-02-01", "yesterday"),
        "one_class.csv": HEADER + ROWS.replace("yes", "no"),
        "short.csv": HEADER + ROWS + "c1,2020-01-01\n",
        "one_row.csv": HEADER + ROWS.splitlines()[0] + "\n",
        "no_label.csv": HEADER + ROWS.replace("yes", "").replace("no", ""),
        "doubt.csv": HEADER + re.sub(r"2020-0\d-01", "01/03/2020", ROWS),
        "unlabelled.csv": "client,day,a,b\nc1,2020-05-01,1,2\n",
        "late.csv": HEADER + 3 * ROWS + "c1,2021-01-01,1,1,maybe\n",
        "binary.csv": bytes(range(256)) * 8,
        "quote.csv": HEADER + '"' + ROWS,
        "bad.parquet": b"PAR1 nothing PAR1",
        "bad.npz": b"PK nothing",
        "bad.json": b"{",
        "store.db": b"not a database, but long enough to be looked at" * 40,
        "source.toml": "[source]\nkind = 'nothing'\n",
        "row.toml": RECIPE.replace("[rows.FedAvg]", "[rows.FedAvg.train]\nlr = -1"),
        "view.toml": RECIPE.replace("summary-table", "sumary-table"),
        "claim.toml": RECIPE + "[[claims]]\nkind = 'beats'\n",
        "scale.toml": RECIPE.replace("hours = 0.1", "hours = nan"),
        "rows.toml": RECIPE.replace("[rows.FedAvg]", "rows = 5"),
        "extends.toml": RECIPE.replace("order = 1", "order = 1\nextends = 'nobody'"),
        "order.toml": RECIPE.replace("order = 1", "order = 0"),
        "untitled.toml": RECIPE.replace('title = "Mini"', ""),
        "scales.toml": RECIPE.replace("[scales.cpu]\nhours = 0.1\nseeds = [0]", "scales = 3"),
        "base.toml": RECIPE.replace("[base]", "[bse]"),
        "command.toml": RECIPE.replace(
            'kind = "summary-table"', 'kind = "commands"\ncommands = [["fly"]]'
        ),
    }.items()
}

# Exit code | command | words that the message must have.
TABLE_OF_CASES = r"""
2 | fly | COMMAND: invalid choice: 'fly'
2 | run | the following arguments are required: SPEC.toml
2 | run no.toml | no.toml: no such file or directory
2 | run . | .: is a directory
2 | run empty.toml -s rounds=0 | empty.toml: rounds: expected int >= 1
2 | run broken.toml | broken.toml: not valid TOML: Invalid value
2 | run latin.toml | latin.toml: not valid TOML: 'utf-8' codec can't decode byte
2 | run nul.toml | nul.toml: not valid TOML: Found invalid character '\x00'
2 | run nested.toml | nested.toml: not valid TOML: nested too deeply
2 | run long.toml | long.toml: not valid TOML: Exceeds the limit
2 | run hex.toml | hex.toml: rounds: expected int <= 1000000000000
2 | run twice.toml | twice.toml: not valid TOML: Cannot overwrite a value
2 | run date.toml | date.toml: rounds: expected int | str | null
2 | run array.toml | array.toml: train: expected a table
2 | run spec.toml extra | unrecognized arguments: extra
2 | run spec.toml --fly | unrecognized arguments: --fly
2 | run spec.toml -s rounds | -s rounds: expected KEY=VALUE, such as -s train.lr=0.05
2 | run spec.toml -s =3 | -s =3: expected KEY=VALUE, such as -s train.lr=0.05
2 | run spec.toml -s rounds.a=3 | -s rounds.a=3: rounds is not a table
2 | run spec.toml -s train.lrr=1 | train.lrr: unknown key
2 | run spec.toml -s trian.lr=1 | trian: unknown key
2 | run spec.toml -s train=5 | train: expected a table
2 | run spec.toml -s train.lr=1e300 | train.lr: expected float <= 1e+32
2 | run spec.toml -s train.epochs=inf | train.epochs: expected float <= 1e+32
2 | run spec.toml -s state_cache_mb=inf | state_cache_mb: expected float <= 1e+32
2 | run spec.toml -s 'deletions=[{rows=[9223372036854775808]}]' | deletions[0].rows[0]: expected int <= 1000000000000000000
2 | run spec.toml -s 'deletions=[{clients=[-1]}]' | deletions[0].clients[0]: expected int >= 0
2 | run spec.toml -s 'deletions=[5]' | deletions[0]: expected a table
2 | run spec.toml -s deletions=5 | deletions: expected an array of tables
2 | run spec.toml -s rounds=99999999999999999999999999999 | rounds: expected int <= 1000000000000
2 | run spec.toml -s rounds=-1 | rounds: expected int >= 1
2 | run spec.toml -s 'rounds="for ever"' | rounds: unknown value 'for ever'
2 | run spec.toml -s seed=-1 | seed: expected int >= 0
2 | run spec.toml -s seed=1.5 | seed: expected int
2 | run spec.toml -s device=cuda:77 | device: 'cuda:77' does not work here
2 | run spec.toml -s device=mps | device: 'mps' does not work here
2 | run spec.toml -s device=banana | device: 'banana' does not work here
2 | run spec.toml -s device=meta | device: 'meta' does not work here
2 | run spec.toml -s engine=seriel | engine: unknown value 'seriel'
2 | run spec.toml -s engine=no_such:Engine | engine: cannot import 'no_such:Engine': No module named
2 | run spec.toml -s engine=own:NUMBER | engine: 'own:NUMBER' is not a subclass of
8 | run spec.toml -s engine=own:Engine | the rehearsal of the first round failed: OSError: no engine
2 | run spec.toml --engine own:Missing | engine: cannot import 'own:Missing': module 'own' has no
2 | run spec.toml --engine '' | engine: unknown value ''
2 | run spec.toml --engine processes --workers 0 | --workers: expected a number >= 1
2 | run spec.toml --workers 0 | --workers: expected a number >= 1
2 | run spec.toml --workers -3 | --workers: expected a number >= 1
2 | run spec.toml --workers two | --workers: invalid int value: 'two'
2 | run spec.toml --workers 99999999999999999999 | --workers: expected at most 1024
2 | run spec.toml -s workers=0 | workers: expected int >= 1
2 | run spec.toml --track nothing | track: unknown value 'nothing'
8 | run spec.toml --track own:tracker | track: cannot make 'own:tracker': OSError: no tracker
8 | run spec.toml --track own:NUMBER | track: cannot make 'own:NUMBER': TypeError: 'int' object is not
8 | run spec.toml --track own_exit:x | track: cannot make 'own_exit:x': it called sys.exit(0)
2 | run spec.toml --samples kept.txt | --samples: with Forget clients keep no samples to draw
2 | run spec.toml --samples kept.png | --samples: with Forget clients keep no samples to draw
2 | run spec.toml --data nowhere -s data={kind="images",name="cifar10"} | data: expected a table
2 | run spec.toml -s 'data={kind="images",name="cifar11"}' | data.name: unknown value 'cifar11'
2 | run spec.toml -s 'data={kind="table"}' | data.path: missing
2 | run spec.toml -s 'data={kind="imges"}' | data.kind: unknown value 'imges'
2 | run spec.toml -s 'model={kind="custom"}' | model.factory: missing
8 | run spec.toml -s 'model={kind="custom",factory="own:raises"}' | model custom: own:raises failed: RuntimeError: first line
8 | run spec.toml -s 'model={kind="custom",factory="own:leaves"}' | model custom: own:leaves failed: it called sys.exit(0)
2 | run spec.toml -s 'model={kind="custom",factory="own:nothing"}' | model custom: own:nothing returned NoneType
2 | run spec.toml -s 'model={kind="custom",factory="own:seven"}' | model: it returns
2 | run spec.toml -s 'model={kind="custom",factory="own:frozen"}' | model: it has no trainable parameters
8 | run spec.toml -s 'model={kind="custom",factory="own:unscaled"}' | model: it fails on samples
2 | run spec.toml -s 'model={kind="custom",factory="own:batch_norm"}' -s train.batch_size=1 | round 0, client 0: the model fails on one sample
8 | run spec.toml -s 'model={kind="custom",factory="own:forward"}' | model: it fails on samples
2 | run spec.toml -s 'model={kind="custom",factory="own:NUMBER"}' | model custom: own:NUMBER is no function
2 | run spec.toml -s 'model={kind="custom",factory="own:missing"}' | model custom: cannot import 'own:missing': module 'own' has no
2 | run spec.toml -s 'model={kind="custom",factory="own"}' | model custom: cannot import 'own': expected package.module:name
2 | run spec.toml -s 'model={kind="custom",factory=""}' | model custom: cannot import '': expected package.module:name
2 | run spec.toml -s 'model={kind="custom",factory=":x"}' | model custom: cannot import ':x': expected package.module:name
2 | run spec.toml -s 'model={kind="custom",factory="..:x"}' | model custom: cannot import '..:x': expected package.module:name
2 | run spec.toml -s 'model={kind="custom",factory="no_such_module:x"}' | model custom: cannot import 'no_such_module:x': No module named
8 | run spec.toml -s 'model={kind="custom",factory="own_syntax:f"}' | model custom: cannot import 'own_syntax:f': SyntaxError
8 | run spec.toml -s 'model={kind="custom",factory="own_import:f"}' | model custom: cannot import 'own_import:f': No module named
8 | run spec.toml -s 'model={kind="custom",factory="own_raises:f"}' | model custom: cannot import 'own_raises:f': ZeroDivisionError
8 | run spec.toml -s 'model={kind="custom",factory="own_exit:f"}' | model custom: cannot import 'own_exit:f': it called sys.exit(0)
2 | run spec.toml -s 'model={kind="custom",factory="own:seven",options={depth=3}}' | model custom: own:seven cannot be called: got an unexpected
2 | run spec.toml -s 'model={kind="custom",factory="own:seven",options={depth=[]}}' | model.options[...]: expected bool | int | float | str
2 | run spec.toml -s 'model={kind="cnn",channels=[1,1,1,1,1,1]}' | 6 poolings reduce a length of 28 to 0: use fewer channels
2 | run spec.toml -s 'model={kind="cnn1d"}' | model cnn1d needs windows
2 | run spec.toml -s 'model={kind="mlp",hidden=[0]}' | model.hidden[0]: expected int >= 1
2 | run spec.toml -s 'model={kind="mlp",hidden=[1000000000000]}' | model: its parameters take
2 | run spec.toml -s 'model={kind="mlp",hidden=[1000000,1000000]}' | model: its parameters take
2 | run spec.toml -s 'model={kind="resnet18",width=1000000}' | model: its parameters take
2 | run spec.toml -s 'model={kind="resnet18",norm="bach"}' | model.norm: unknown value 'bach'
8 | run spec.toml -s 'method.backbone={kind="own:Direction"}' | the rehearsal of the first round failed: KeyError: 'nothing'
8 | run spec.toml -s 'method.memory={kind="own:Recall"}' | the rehearsal of the first round failed: ArithmeticError
8 | run spec.toml -s 'method.memory={kind="core-set"}' -s 'method.weights={kind="own:Weights"}' | the rehearsal of the first round failed: LookupError: no weights
8 | run spec.toml -s 'method.backbone={kind="own_raises:X"}' | method.backbone.kind: cannot import 'own_raises:X'
8 | run spec.toml -s 'method.backbone={kind="own_exit:X"}' | method.backbone.kind: cannot import 'own_exit:X': it called
2 | run spec.toml -s 'method.backbone={kind="own:NUMBER"}' | method.backbone.kind: 'own:NUMBER' is not a subclass of
8 | run spec.toml -s 'scenario={kind="own:Scenario"}' | your own code failed: OSError: no stream
8 | run spec.toml -s 'evaluate.measures=["own:BROKEN"]' | evaluate.measures: 'broken' failed: ZeroDivisionError: division
2 | run spec.toml -s 'evaluate.measures=["own:NUMBER"]' | evaluate.measures: 'own:NUMBER' is a int
2 | run spec.toml -s 'evaluate.measures=["own"]' | evaluate.measures: 'own' is not a measure; use 'package.module:NAME' or one of macro_f1
8 | run spec.toml -s 'evaluate.measures=["own_exit:X"]' | evaluate.measures: cannot import 'own_exit:X': it called
2 | run spec.toml -s 'evaluate.measures=[5]' | evaluate.measures[0]: expected str
2 | run spec.toml -s scenario.clients=0 | scenario.clients: expected int >= 1
2 | run spec.toml -s scenario.clients=1000000000 | 10500 samples are too few for 1000000000 clients x 4 subsets
2 | run spec.toml -s scenario.subsets=1000000000 | 10500 samples are too few for 3 clients x 1000000000 subsets
2 | run spec.toml -s scenario.cohort=8 | cohort = 8, but at most 3 clients are available: lower the
2 | run spec.toml -s scenario.client_alpha=0 | scenario.client_alpha: expected float > 0.0
2 | run spec.toml -s 'scenario.membership={kind="schedule"}' | scenario.membership.spans: missing
2 | run spec.toml -s 'scenario.membership={kind="schedule",spans=[[0]]}' | scenario.membership.spans[0]: expected array of length 3
2 | run spec.toml -s 'scenario.membership={kind="fixed-clients",clients=[]}' | scenario.membership.clients: expected array of length >= 1
2 | run spec.toml -s 'scenario.membership={kind="fixed-clients",clients=[77]}' | membership 'fixed-clients' names client 77, but there are 3
2 | run spec.toml -s 'scenario={kind="remote",clients=3}' | scenario: its clients are on other machines, with data of their
2 | run spec.toml -s 'scenario={kind="periods"}' | data set 'fashion-mnist-mini' has no clients and periods of its
2 | run spec.toml -s 'scenario={kind="window",overlap=1.0}' | scenario.overlap: expected float < 1.0
2 | run spec.toml -s 'scenario={kind="stateless",registered=1}' | clients = 7 a round, but only 1 are registered: lower clients
2 | run spec.toml -s 'scenario={kind="stateless"}' -s method.memory.kind=core-set | method.memory: CoreSet keeps its state on the client, but in
2 | run spec.toml -s 'method.weights={kind="optimal"}' | method.weights.time_drift_sq: missing
2 | run spec.toml -s 'method.weights={kind="covariance",information_loss_sq=1,matrix=[[1,2],[3]]}' | method.weights: Covariance.matrix: expected a square matrix
2 | run spec.toml -s 'method.weights={kind="covariance",information_loss_sq=1,matrix=[]}' | method.weights: Covariance.matrix: expected a square matrix
2 | run spec.toml -s 'method.weights={kind="covariance",information_loss_sq=1,matrix=[[nan]]}' | method.weights.matrix[0][0]: expected float >= -1e+32
2 | run spec.toml -s 'method.memory={kind="taylor",layers={nothing=1.0}}' | method.memory.layers: no parameter of the model matches nothing
2 | run spec.toml -s 'method.memory={kind="taylor",layers={}}' | method.memory.layers: no parameter of the model matches
2 | run spec.toml -s 'method.memory={kind="core-set",size=0}' | method.memory.size: expected int >= 1
2 | run spec.toml -s 'method.memory={kind="core-set",layer="nothing",select="herding"}' | method.memory.layer: the model has no layer 'nothing'
2 | run spec.toml -s 'method.backbone={kind="clipped",backbone={kind="clipped",backbone={kind="fedvag"}}}' | method.backbone.backbone.backbone.kind: unknown value 'fedvag'
2 | run spec.toml -s 'method.backbone={kind="private",noise=nan}' | method.backbone.noise: expected float >= 0.0
2 | run spec.toml -s train.batch_size=0 | train.batch_size: expected int >= 1
2 | run spec.toml -s 'train.batch_size="half"' | train.batch_size: unknown value 'half'
2 | run spec.toml -s train.momentum=1 | train.momentum: expected float < 1.0
2 | run spec.toml -s train.slow=2 | train.slow: expected float <= 1.0
2 | run spec.toml -s evaluate.every=0 | evaluate.every: expected int >= 1
2 | run spec.toml -s evaluate.periods=true | evaluate.periods: expected str
2 | run spec.toml -s 'evaluate.periods="maybe"' | evaluate.periods: unknown value 'maybe'
2 | run spec.toml -s checkpoint.every=0 | checkpoint.every: expected int >= 1
2 | run spec.toml -s checkpoint.keep=0 | checkpoint.keep: expected int >= 1
2 | run spec.toml -s name=5 | name: expected str
5 | run spec.toml -o spec.toml | cannot write spec.toml: not a directory
4 | run spec.toml -o good | good holds a run already: continue it with 'chronofed resume
5 | run spec.toml -o spec.toml/inside | cannot write spec.toml/inside: not a directory
5 | run spec.toml -o /proc/nothing/run | cannot write /proc/nothing/run: no such file or directory
2 | run table.toml -s data.path=no.csv | no.csv
3 | run table.toml -s data.path=. | bad.parquet: not a Parquet file
3 | run table.toml -s data.path=~nosuchuser/x.csv | ~nosuchuser/x.csv: no home folder is known for ~nosuchuser
3 | run table.toml -s 'data.path=""' | bad.parquet: not a Parquet file
2 | run table.toml -s 'data.path="a\u0000b.csv"' | data.path: no file a?b.csv
3 | run table.toml -s data.path=own.py | own.py
3 | run table.toml -s data.path=empty.csv | empty.csv
2 | run table.toml -s data.path=header.csv | period
3 | run table.toml -s data.path=headless.csv | headless.csv
3 | run table.toml -s data.path=columns.csv | columns.csv
3 | run table.toml -s data.path=latin.csv | latin.csv
3 | run table.toml -s data.path=utf16.csv | utf16.csv
3 | run table.toml -s data.path=dates.csv | dates.csv
3 | run table.toml -s data.path=one_class.csv | one_class.csv
3 | run table.toml -s data.path=short.csv | short.csv
3 | run table.toml -s data.path=one_row.csv | one_row.csv
3 | run table.toml -s data.path=no_label.csv | no_label.csv
3 | run table.toml -s data.path=binary.csv | binary.csv
3 | run table.toml -s data.path=quote.csv | quote.csv
3 | run table.toml -s data.path=bad.parquet | bad.parquet
3 | run table.toml -s data.path=bad.npz | bad.npz
3 | run table.toml -s data.path=bad.json | bad.json
3 | run table.toml -s data.target=lable | table.csv: no column 'lable'
3 | run table.toml -s data.client=nobody | table.csv: no column 'nobody'
3 | run table.toml -s data.time=never | table.csv: no column 'never'
2 | run table.toml -s data.time=a | Table.period does not fit column 'a', which holds numbers: use
2 | run table.toml -s data.period=fortnight | data: Table.period: 'fortnight' is not a period
2 | run table.toml -s 'data.period="0 days"' | data: Table.period: '0 days' is not a period
2 | run table.toml -s data.test=0 -s evaluate.protocol=holdout | data: no test samples
2 | run table.toml -s evaluate.protocol=later | evaluate.protocol: unknown value 'later'
2 | run table.toml -s evaluate.skip=99 | evaluate: nothing is ever evaluated in 2 rounds, 1 a period; lower
2 | run table.toml -s evaluate.protocol=holdout -s evaluate.baselines=all | evaluate.baselines: 'all' needs evaluate.protocol
2 | run table.toml -s data.period=year | data: all rows are in one period, 2020, so there is no next one
2 | run spec.toml -s evaluate.protocol=next | evaluate.protocol: 'next' needs a table with periods
2 | run spec.toml -s 'evaluate.measures=["auk"]' | evaluate.measures: 'auk' is not a measure; did you mean 'auc'?
2 | run table.toml -s data.period=5 | Table.period does not fit column 'day', which holds dates: use '5 days'
2 | run table.toml -s data.period=-5 | data.period: expected float > 0.0
2 | run table.toml -s data.period=true | data.period: expected float | str
2 | run table.toml -s data.period=nan | data.period: expected float
2 | run table.toml -s data.missing=NA | data.missing: expected array
2 | run table.toml -s data.missing=[5] | data.missing[0]: expected str
2 | run table.toml -s data.date_format=5 | data.date_format: expected str
2 | run table.toml -s data.date_format=%d/%m | data: Table.date_format: '%d/%m' has no year
2 | run table.toml -s data.date_format=%Y%Q | data: Table.date_format: '%Y%Q' is not a format of dates
3 | run table.toml -s data.date_format=%d/%m/%Y | row 2, column 'day': '2020-01-01' is not a date of the format '%d/%m/%Y'
2 | run table.toml -s data.time_zone=Mars | data: Table.time_zone: 'Mars' is not a time zone that this machine knows
2 | run table.toml -s data.time_zone=../../etc/passwd | data: Table.time_zone: '../../etc/passwd' is not a time zone
2 | run table.toml -s data.time_zone=8 | data.time_zone: expected str
3 | run table.toml -s data.path=doubt.csv | doubt.csv, row 2, column 'day': '01/03/2020': day or month first?
3 | run table.toml -s data.path=late.csv | late.csv: class 'maybe' of 'label' first appears in 2021-01, after the periods that are fitted on
3 | run table.toml -s 'data.classes=["no","maybe"]' | 'yes' is not a known class: no, maybe; list it in data.classes, or set data.other_class = true
2 | run table.toml -s 'data.classes=["no","other"]' -s data.other_class=true | data: Table.other_class: adds a class 'other'
2 | run table.toml -s data.other_class=5 | data.other_class: expected bool
2 | run table.toml -s data.lags=1 | data.lags: expected array
2 | run table.toml -s data.lags=[0] | data.lags[0]: expected int >= 1
2 | run table.toml -s data.lags=[1,1] | data: Table.lags: expected different ones
2 | run table.toml -s data.lags=[1] -s data.horizon=2 | data: Table.lags: 1 is not known 2 rows ahead (horizon)
2 | run table.toml -s data.horizon=-1 | data.horizon: expected int >= 0
3 | run table.toml -s data.horizon=1000000 | table.csv: no rows left: 60 rows left out: their client has no row 1000000 rows before (horizon)
2 | run table.toml -s 'data.lag_columns=["a"]' | data: Table.lag_columns: needs lags
3 | run table.toml -s 'data.lag_columns=["c"]' -s data.lags=[1] | table.csv: no column 'c'
3 | run table.toml -s 'data.query="SELECT 1"' | table.csv: a query is for databases
3 | run table.toml -s data.path=store.db | store.db: a database needs a query
3 | run table.toml -s data.path=store.db -s 'data.query="SELECT * FROM visits"' | store.db: the query failed: file is not a database
3 | run table.toml -s data.min_rows=1000 | table.csv: no rows left: 60 rows left out: 12 client-periods
2 | run table.toml -s rounds=forever | rounds: forever, but this scenario ends after 4 rounds
2 | run table.toml -s scenario.window=0 | scenario.window: expected int >= 1
2 | run spec.toml -s 'scenario={kind="subsets",clients=3,subsets=4,prior="share"}' | scenario.prior: unknown value 'share'
2 | run spec.toml -s scenario.membership=5 | scenario.membership: expected a table
2 | run spec.toml -s 'scenario.membership={kind="avialable"}' | scenario.membership.kind: unknown value 'avialable'
2 | run spec.toml -s 'scenario={kind="window",overlap="half"}' | scenario.overlap: expected float
2 | run spec.toml -s method=fedavg | method: expected a table
2 | run spec.toml -s method.backbone=fedavg | method.backbone: expected a table
2 | run spec.toml -s method.backbone.mu=1 | method.backbone.kind: missing
2 | run spec.toml -s 'method.backbone={kind="fedprox",mu="much"}' | method.backbone.mu: expected float
2 | run spec.toml -s 'method.average="median"' | method.average: unknown value 'median'
2 | run spec.toml -s 'method.memory={kind="taylor",curvature={kind="fischer"}}' | method.memory.curvature.kind: unknown value 'fischer'
2 | run spec.toml -s 'method.memory={kind="taylor",curvature={kind="hutchinson",probes=0}}' | method.memory.curvature.probes: expected int >= 1
2 | run spec.toml -s 'method.weights={kind="fixed",present=1.5}' | method.weights.present: expected float <= 1.0
2 | run spec.toml -s 'method.weights={kind="adaptive",discount=0}' | method.weights.discount: expected float > 0.0
2 | run spec.toml -s data=mnist | data: expected a table
2 | run spec.toml -s 'data={kind="images",augment="flip"}' | data.augment: unknown value 'flip'
2 | run spec.toml -s 'data={kind="source-rows"}' | data.source: missing
2 | run spec.toml -s track=5 | track: expected str | null
2 | run spec.toml -s track=nothing | track: unknown value 'nothing'
2 | run spec.toml -s engine=5 | engine: expected str
2 | run spec.toml -s device=5 | device: expected str
2 | run spec.toml -s state_cache_mb=0 | state_cache_mb: expected float > 0.0
2 | run spec.toml -s 'deletions=[{round=-1}]' | deletions[0].round: expected int >= 0
2 | run spec.toml -s 'deletions=[{row=[1]}]' | deletions[0].row: unknown key
2 | run spec.toml -s 'deletions=[{rows="all"}]' | deletions[0].rows: expected array
2 | run spec.toml -s 'evaluate.seen=-1' | evaluate.seen: expected int >= 0
2 | run spec.toml -s 'evaluate.past=0.5' | evaluate.past: expected int
2 | run spec.toml -s 'checkpoint.evry=1' | checkpoint.evry: unknown key
2 | run spec.toml -s 'model={hidden=[5]}' | model.kind: missing
2 | run spec.toml -s 'model={kind="mlp",hidden=5}' | model.hidden: expected array
2 | run spec.toml -s 'model={kind="mlp",hidden=["a"]}' | model.hidden[0]: expected int
2 | run spec.toml -s 'model={kind="mlp",hiden=[5]}' | model.hiden: unknown key
3 | run table.toml -s 'data.features=["nothing"]' | table.csv: no column 'nothing'
2 | run table.toml -s 'data.features="a"' | data.features: expected array
2 | run table.toml -s data.test=-0.1 | data.test: expected float >= 0.0
2 | run table.toml -s data.test=nan | data.test: expected float >= 0.0
2 | run table.toml -s data.standardise=yes | data.standardise: expected bool
2 | run table.toml -s data.min_rows=0 | data.min_rows: expected int >= 1
2 | run table.toml -s 'model={kind="cnn"}' | model cnn needs images
2 | run table.toml -s 'model={kind="resnet18"}' | model resnet18 needs images
2 | resume | the following arguments are required: RUN
4 | resume nowhere | nowhere is not a run directory
2 | extend | the following arguments are required: RUN
4 | extend nowhere | nowhere is not a run directory
4 | extend spec.toml | spec.toml is not a run directory
2 | extend good | its data have no periods, so there are no later ones; go on with --rounds N
2 | extend good --rounds 0 | --rounds: expected a number >= 1
2 | extend good --rounds x | --rounds: invalid int value: 'x'
2 | extend good --rounds 2 --data table.csv | --rounds: new data bring their own rounds
2 | extend good --data table.csv | its data have no periods
2 | extend good --rounds 1 --engine seriel | engine: unknown value 'seriel'
4 | status nowhere | nowhere is not a run directory
4 | status spec.toml | spec.toml is not a run directory
2 | status | the following arguments are required: RUN
4 | table nowhere | nowhere is not a run directory
2 | table good -o x.xls | unknown extension '.xls'; use .md, .csv, .tex
2 | table good --measures nope | --measures: no 'nope' in these runs
5 | table good -o /proc/x/y.md | cannot write
2 | run spec.toml --vary train.lr | expected KEY=VALUES
2 | run spec.toml --vary train.lr=0.1,x -o g | train.lr: expected float
2 | run spec.toml --vary train.lr=0.1,0.1 -o g | expected different values
2 | run spec.toml --vary method.memory=nope -o g | method.memory.kind: unknown value 'nope'
2 | run spec.toml --vary seed=1,2 -o g | use --seeds
2 | run spec.toml --seeds 4-0 -o g | --seeds: expected a range
2 | run spec.toml --seeds a -o g | --seeds: expected numbers such as 0,1,2 or 0-4
2 | run spec.toml --seeds 0,0 -o g | --seeds: expected different numbers
2 | run spec.toml --seeds 0-1 --jobs 0 -o g | --jobs: expected a number >= 1
2 | run spec.toml --jobs 2 -o g | --jobs: a single run is one job
2 | run spec.toml --seeds 0-1 --samples x.png -o g | --samples: draws the samples of one run
2 | run spec.toml -s start=nowhere -o g | start: no file nowhere
2 | run spec.toml -s start=table.csv -o g | is not a safetensors file
2 | run spec.toml -s start=good -s model.kind=mlp -o g | good has no layer 'features.
2 | run table.toml -s start=good -o g | start:
2 | run table.toml -s 'data.more=["no.csv"]' -o g | data.more: no file no.csv
2 | run table.toml -s data.growing=true -s 'data.period="9 rows"' -o g | Table.growing: windows of rows
4 | resume spec.toml | spec.toml is not a run directory
4 | resume . | . is not a run directory (it has no digests.json)
4 | run spec.toml -o . | . holds a spec.toml that is no run's
2 | resume good --workers 0 | --workers: expected a number >= 1
2 | resume good --engine seriel | engine: unknown value 'seriel'
2 | resume good --data nowhere --samples x.txt | --samples: with Forget clients keep no samples to draw
2 | resume spec.toml --workers x | --workers: invalid int value: 'x'
2 | compare | the following arguments are required: RUN
4 | compare nowhere | nowhere is not a run directory
5 | compare good --html nowhere/x.html | cannot write nowhere/x.html: no such file or directory
5 | compare good --html spec.toml/x.html | cannot write spec.toml/x.html: not a directory
4 | compare spec.toml | spec.toml is not a run directory
4 | compare good nowhere | nowhere is not a run directory
2 | report | the following arguments are required: RUN
4 | report nowhere | nowhere is not a run directory
5 | report good -o spec.toml/x.html | cannot write spec.toml/x.html: not a directory
4 | report spec.toml | spec.toml is not a run directory
4 | report good nowhere | nowhere is not a run directory
2 | forget | the following arguments are required: RUN
4 | forget nowhere --client 0 | nowhere is not a run directory
2 | forget good | name what to forget: --client N, or --row N
2 | forget good --client x | --client: invalid int value: 'x'
2 | forget good --client 99 | --client: 99; the run has clients 0 to
2 | forget good --client 0 | cannot forget exactly: FedAvg trains the whole model
4 | forget spec.toml --client 1 | spec.toml is not a run directory
2 | verify | the following arguments are required: PROOF
4 | verify nothing.json | nothing.json: no such file
4 | verify spec.toml | spec.toml is damaged
2 | hub | the following arguments are required: ACTION
2 | hub fly | ACTION: invalid choice: 'fly'
2 | hub start h | h is no hub yet; to make one, give SPEC.toml and --host
2 | hub start h nothing.toml --host a | nothing.toml: no such file
4 | hub add-node nowhere a | nowhere is not a hub
4 | hub remove-node nowhere a | nowhere is not a hub
4 | hub renew nowhere | nowhere is not a hub
4 | hub status nowhere | nowhere is not a hub
2 | node start | the following arguments are required: DIR
4 | node start nowhere | nowhere has no node.json
4 | node start good | good has no node.json
2 | predict | the following arguments are required: RUN, TABLE
2 | predict good | the following arguments are required: TABLE
2 | predict good table.csv --format xml | --format: invalid choice: 'xml'
2 | predict good table.csv -o out.txt | -o out.txt: unknown extension; use .csv, .jsonl, .parquet, or --format
2 | predict good table.csv -o out | -o out: unknown extension
2 | predict good table.csv --format parquet | --format parquet: needs a file for the predictions
2 | predict good table.csv --json | --json: needs a file for the predictions
4 | predict nowhere table.csv | nowhere is neither a run directory nor the model of one
4 | predict spec.toml table.csv | spec.toml is neither a run directory nor the model of one
4 | predict good/checkpoints table.csv | good/checkpoints is neither a run directory
3 | predict good nothing.csv | nothing.csv: no such file
3 | predict good spec.toml | spec.toml: unknown extension '.toml'
3 | predict good table.csv | table.csv: no column 'x'
3 | predict good table.csv --keep nothing -o out.csv | table.csv: no column
3 | predict lagged unlabelled.csv -o out.csv | unlabelled.csv: no column 'label'; the model predicts from earlier rows, found by label, client, day
3 | predict lagged doubt.csv -o out.csv | doubt.csv, row 2, column 'day': '01/03/2020': day or month first?
3 | predict lagged store.db -o out.csv | store.db: a database needs a query
3 | predict lagged table.csv --query 'SELECT 1' -o out.csv | table.csv: a query is for databases
3 | predict good table.csv --personal -o out.csv | no personal models; the backbone 'ditto' makes them
2 | export | the following arguments are required: RUN
2 | export good --to tensorflow | --to: invalid choice: 'tensorflow'
2 | export good -o out.txt | -o out.txt: unknown ending; use .safetensors, .pt2, .pt, .onnx, or --to
2 | export good -o out.json --to pt2 | out.json: the name is that of a file beside it
2 | export good -o own.safetensors | own.py is in the way, and not of chronofed
4 | export nowhere | nowhere is neither a run directory nor the model of one
3 | export good --personal nobody | no personal model of 'nobody'; nobody has one
5 | export good -o nowhere/m.safetensors | cannot write nowhere/m.safetensors
5 | export good -o nowhere/m.pt | cannot write nowhere/m.pt
2 | run spec.toml -s card=5 | card: expected a table
2 | run spec.toml -s card.licence=5 | card.licence: expected str
2 | plot | the following arguments are required: kind, RUN, -o/--output
2 | plot curves | the following arguments are required: RUN, -o/--output
2 | plot curves good | the following arguments are required: -o/--output
2 | plot curves good -o x.txt | cannot draw 'x.txt': use a file ending of .png, .svg, .pdf
2 | plot curves good -o x | cannot draw 'x': use a file ending of .png, .svg, .pdf
2 | plot fly good -o x.png | kind: invalid choice: 'fly'
4 | plot curves nowhere -o x.png | nowhere is not a run directory
2 | plot curves good -o x.png --measure nothing | --measure nothing: not measured in these runs
2 | plot curves good -o x.png --window 0 | --window: expected a number >= 1
2 | plot curves good -o x.png --window -1 | --window: expected a number >= 1
2 | plot heatmap good -o x.png --round -1 | --round -1: good was first evaluated after round 1
2 | plot heatmap good -o x.png --round 99 | --round 99: good was last evaluated after round 2
2 | plot heatmap good -o x.png --show nothing | --show: invalid choice: 'nothing'
2 | plot scenario good -o x.png --rounds 0 | --rounds: expected a number >= 1
2 | plot scenario good -o x.png --rounds -1 | --rounds: expected a number >= 1
5 | plot curves good -o nowhere/x.png | cannot write nowhere/x.png: there is no folder nowhere
4 | plot heatmap nowhere -o x.png | nowhere is not a run directory
2 | plot weights good -o x.txt | cannot draw 'x.txt': use a file ending of .png, .svg, .pdf
2 | plot information-loss good -o x.png | no information loss was measured in these runs
4 | watch nowhere | nowhere is not a folder
5 | watch good --port -1 | cannot listen on 127.0.0.1:-1
5 | watch good --port 70000 | cannot listen on 127.0.0.1:70000
2 | watch good --port x | --port: invalid int value: 'x'
4 | watch spec.toml | spec.toml is not a folder
5 | watch good --port 99999999999999999999 | cannot listen on 127.0.0.1:99999999999999999999
2 | demo --rounds 0 | --rounds: expected a number >= 1
2 | demo --rounds -1 | --rounds: expected a number >= 1
2 | demo --rounds x | --rounds: invalid int value: 'x'
2 | demo --rounds 1e3 | --rounds: invalid int value: '1e3'
2 | demo --rounds 99999999999999999999 | --rounds: expected at most 1000000000000
2 | demo --seeds 0 | --seeds: expected a number >= 1
2 | demo --seeds 99999999999999999999 | --seeds: expected at most 1000
5 | demo -o spec.toml | cannot write spec.toml/fedavg-s0: not a directory
2 | demo extra | unrecognized arguments: extra
2 | demo --fly | unrecognized arguments: --fly
2 | bench --workers 0 | --workers: expected a number >= 1
2 | bench --workers -1 | --workers: expected a number >= 1
2 | bench --workers 99999999999999999999 | --workers: expected at most 1024
2 | bench --workers 100000 | --workers: expected at most 1024
2 | bench --rounds 0 | --rounds: expected a number >= 1
2 | bench --rounds 99999999999999999999 | --rounds: expected at most 1000000000000
2 | bench X | unknown workload 'X'
2 | bench A --engines fly | engine: unknown value 'fly'
8 | bench A --engines own_raises:X | engine: cannot import 'own_raises:X': ZeroDivisionError: at
2 | bench A --engines own:NUMBER | engine: 'own:NUMBER' is not a subclass of
2 | bench --rounds x | --rounds: invalid int value: 'x'
2 | data | the following arguments are required: action
2 | data fly | action: invalid choice: 'fly'
2 | data get | data get: name a data set
2 | data get fly | unknown data set 'fly': known are fashion-mnist-mini
2 | data where fly | unknown data set 'fly': known are fashion-mnist-mini
3 | data where cifar10 | cifar10 is not on this machine
3 | data where cifar10 --data spec.toml | cifar10 is not on this machine
2 | data list extra more | unrecognized arguments: more
2 | data show | data show: name a table
3 | data show no.csv | no.csv: no such file
3 | data show header.csv | header.csv: no rows
2 | init | the following arguments are required: TABLE
3 | init no.csv | no.csv: no such file
3 | init corrupt | corrupt: no .parquet files in this folder
3 | init own.py | own.py: unknown extension '.py'
3 | init empty.csv -o new.toml | empty.csv: no columns
3 | init header.csv | header.csv: no rows
3 | init columns.csv | columns.csv: more than one column is named 'a'
3 | init utf16.csv | utf16.csv: not UTF-8 text
3 | init quote.csv | quote.csv: not a CSV file
3 | init short.csv | short.csv, row 62: 2 cells where the header has 5
3 | init bad.parquet | bad.parquet: not a Parquet file
3 | init bad.npz | bad.npz: not an npz file
3 | init store.db -o new.toml | store.db: a database needs a query
3 | init store.db -o new.toml --query 'SELECT * FROM visits' | store.db: the query failed
3 | init one_row.csv | one_row.csv: no column can be the target; choose --target
2 | init table.csv | table.toml: exists already; choose another name with -o, or --force
2 | init table.csv -o corrupt | corrupt: is a folder; name a file
5 | init table.csv -o nowhere/new.toml | cannot write nowhere/new.toml
3 | init table.csv -o new.toml --target lable | table.csv: no column 'lable'; did you mean 'label'?
3 | init table.csv -o new.toml --target day | table.csv: 'day' cannot be the target (dates)
3 | init table.csv -o new.toml --client nobody | table.csv: no column 'nobody'
3 | init table.csv -o new.toml --time label | column 'label': 'no' is neither a date such as 2009-03-01 nor a number
2 | init table.csv -o new.toml --period fortnight | Table.period: 'fortnight' is not a period
2 | init table.csv -o new.toml --period 50 | Table.period does not fit column 'day', which holds dates: use '50 days'
2 | doctor extra | unrecognized arguments: extra
2 | doctor --data | --data: expected one argument
2 | methods extra | methods extra: no such part of a method
2 | methods --fly | unrecognized arguments: --fly
2 | nqm --preset p9 | --preset: invalid choice: 'p9'
2 | nqm --settings nothing | --settings: unknown setting 'NOTHING'
2 | nqm --seeds 0 | --seeds: expected a number from 1 to 2000
2 | nqm --seeds -1 | --seeds: expected a number from 1 to 2000
2 | nqm --seeds 99999999999999999999 | --seeds: expected a number from 1 to 2000
2 | nqm --seeds x | --seeds: invalid int value: 'x'
2 | nqm --lr-grid nothing | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid 0.1:0.2 | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid 0.1:0.2:0 | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid 0.1:0.2:-5 | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid 0.1:0.2:99999999999999 | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid 0.1:nan:3 | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid inf,1 | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid , | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid 1e308,1e300 --seeds 1 --settings BRD-SL-SC | --lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1
2 | nqm --lr-grid -1,1 | --lr-grid: expected one argument
2 | nqm --plot x.txt | cannot draw 'x.txt': use a file ending of .png, .svg, .pdf
5 | nqm --plot nowhere/x.png --seeds 1 --settings BRD-SL-SC --lr-grid 0.1 | cannot write nowhere/x.png: there is no folder nowhere
2 | nqm --fly | unrecognized arguments: --fly
2 | nqm --settings BRD-SL-SC nothing | --settings: unknown setting 'NOTHING'
2 | paper | the following arguments are required: action, NAME
2 | paper fly | action: invalid choice: 'fly'
2 | paper run | paper run: name one or more of figure-drift, table-rates
2 | paper run fly | recipe fly: no recipe 'fly'
2 | paper list fly | recipe fly: no recipe 'fly'
2 | paper run mini.toml --jobs 0 | --jobs: expected a number >= 1
2 | paper run mini.toml --jobs -1 | --jobs: expected a number >= 1
2 | paper run mini.toml --jobs x | --jobs: invalid int value: 'x'
2 | paper run mini.toml --seeds x | --seeds: expected numbers such as 0,1,2
2 | paper run mini.toml --seeds -1 | --seeds: expected different numbers from 0 to 10^18
2 | paper run mini.toml --seeds 0,0 | --seeds: expected different numbers from 0 to 10^18
2 | paper run mini.toml --seeds , | --seeds: expected numbers such as 0,1,2
2 | paper run mini.toml --seeds 99999999999999999999 | --seeds: expected different numbers from 0 to 10^18
2 | paper run mini.toml --scale huge | no scale 'huge'
2 | paper run mini.toml --device banana | device: 'banana' does not work here
2 | paper run mini.toml --device cuda:77 | device: 'cuda:77' does not work here
2 | paper run no.toml | recipe no.toml: no recipe 'no.toml'
2 | paper run broken.toml | recipe broken.toml: broken.toml: not valid TOML: Invalid value
2 | paper run nested.toml | recipe nested.toml: nested.toml: not valid TOML: nested too
2 | paper run long.toml | recipe long.toml: long.toml: not valid TOML: Exceeds the limit
2 | paper run row.toml | recipe row.toml: FedAvg: train.lr: expected float > 0.0
2 | paper run view.toml | recipe view.toml: view.kind: unknown value 'sumary-table'
2 | paper run claim.toml | recipe claim.toml: claims[0].better: missing
2 | paper run scale.toml | recipe scale.toml: scales.cpu.hours: expected float >= 0.0
2 | paper run rows.toml | recipe rows.toml: scales.cpu.rows: expected object
2 | paper run extends.toml | recipe extends.toml: no recipe 'nobody'
2 | paper run order.toml | recipe order.toml: order: expected int >= 1
2 | paper run untitled.toml | recipe untitled.toml: title: missing
2 | paper run scales.toml | no scale 'cpu'
2 | paper run base.toml | recipe base.toml: bse: unknown key
2 | paper run latin.toml | recipe latin.toml: latin.toml: not valid TOML: 'utf-8' codec
2 | paper run empty.toml | recipe empty.toml: title: missing
2 | paper report mini.toml --scale huge -o rep | huge
2 | sweep spec.toml --vary train.lr=0.1,0.2 --trials 1 --measure nothing | --measure nothing: not in a summary
5 | paper report mini.toml -o spec.toml | cannot write spec.toml: not a directory
2 | paper list --seeds x | --seeds: expected numbers such as 0,1,2
2 | paper list fly.toml | recipe fly.toml: no recipe 'fly.toml'
2 | paper run mini.toml --jobs 99999999999999999999 | --jobs: expected at most 1000000000000
2 | privacy | the following arguments are required: --noise, --rounds
2 | privacy --noise 1 | the following arguments are required: --rounds
2 | privacy --noise 1e300 --rounds 5 | --noise: expected a finite number up to 1e+32
2 | privacy --noise -1 --rounds 5 | --noise: expected a number >= 0
2 | privacy --noise nan --rounds 5 | --noise: expected a finite number up to 1e+32
2 | privacy --noise inf --rounds 5 | --noise: expected a finite number up to 1e+32
2 | privacy --noise x --rounds 5 | --noise: invalid float value: 'x'
2 | privacy --noise 1 --rounds -5 | --rounds: expected a number >= 0
2 | privacy --noise 1 --rounds 99999999999999999999999 | --rounds: expected at most 1000000000000
2 | privacy --noise 1 --rounds 5 --delta 0 | --delta: expected a number between 0 and 1
2 | privacy --noise 1 --rounds 5 --delta 1 | --delta: expected a number between 0 and 1
2 | privacy --noise 1 --rounds 5 --delta nan | --delta: expected a finite number up to 1e+32
2 | privacy --noise 1 --rounds 5 --delta -1 | --delta: expected a number between 0 and 1
2 | privacy --noise 1 --rounds 5 --sampling 2 | --sampling: expected a number from 0 to 1
2 | privacy --noise 1 --rounds 5 --sampling nan | --sampling: expected a finite number up to 1e+32
2 | privacy --noise 1 --rounds 5 --releases 0 | --releases: expected a number >= 1
2 | privacy --noise 1 --rounds 5 --releases -2 | --releases: expected a number >= 1
2 | privacy --noise 1 --rounds 5 --releases 99999999999999999999999999 | --releases: expected at most 1000000000000
2 | privacy --noise 1 --rounds x | --rounds: invalid int value: 'x'
2 | profile | the following arguments are required: SPEC.toml
2 | profile no.toml | no.toml: no such file or directory
2 | profile spec.toml --rounds 0 | --rounds: expected a number >= 1
2 | profile spec.toml --rounds -1 | --rounds: expected a number >= 1
2 | profile spec.toml --rounds x | --rounds: invalid int value: 'x'
2 | profile spec.toml -s device=banana | device: 'banana' does not work here
8 | profile spec.toml -s 'model={kind="custom",factory="own:raises"}' | model custom: own:raises failed: RuntimeError: first line
8 | profile spec.toml -s 'model={kind="custom",factory="own:forward"}' | model: it fails on samples
3 | profile table.toml -s data.path=empty.csv | empty.csv: no columns
2 | profile spec.toml --rounds 99999999999999999999 | --rounds: expected at most 1000000000000
2 | rates --epsilon 0 | --epsilon: expected a finite number > 0
2 | rates --epsilon -1 | --epsilon: expected a finite number > 0
2 | rates --epsilon nan | --epsilon: expected a finite number > 0
2 | rates --epsilon inf | --epsilon: expected a finite number > 0
2 | rates --epsilon x | --epsilon: invalid float value: 'x'
2 | rates --smoothness 0 | --smoothness: expected a finite number > 0
2 | rates --smoothness 1e308 | --smoothness: expected a finite number up to 1e+32
2 | rates --convexity 0 | --convexity: expected a number > 0 and at most smoothness, 1
2 | rates --convexity 5 | --convexity: expected a number > 0 and at most smoothness, 1
2 | rates --clients 0 | --clients: expected a finite number >= 1
2 | rates --steps 0 | --steps: expected a finite number >= 1
2 | rates --server-lr 0 | --server-lr: expected a finite number > 0
2 | rates --noise-sq -1 | --noise-sq: expected a finite number >= 0
2 | rates --noise-sq nan | --noise-sq: expected a finite number >= 0
2 | rates --covariance -1 | --covariance: expected a finite number >= 0
2 | rates --client-drift-sq 1e308 | --client-drift-sq: expected a finite number up to 1e+32
2 | rates --time-drift-sq 1e308 | --time-drift-sq: expected a finite number up to 1e+32
2 | rates --distance-sq -1 | --distance-sq: expected a finite number >= 0
2 | rates --gap nan | --gap: expected a finite number >= 0
2 | rates --c-m 0 | --c-m: expected a finite number > 0
2 | rates --algorithm fly | --algorithm: invalid choice: 'fly'
2 | rates --case flat | --case: invalid choice: 'flat'
2 | rates --over nothing | --over: invalid choice: 'nothing'
2 | rates --over epsilon | --over: needs --plot FILE
2 | rates --range 1 2 | --range: needs --plot FILE
2 | rates --plot x.txt | cannot draw 'x.txt': use a file ending of .png, .svg, .pdf
2 | rates --plot x.png --range 2 1 | --range: expected two finite numbers, the smaller first
2 | rates --plot x.png --range nan 1 | --range: expected two finite numbers, the smaller first
2 | rates --plot x.png --range -1 1 | --epsilon: expected a finite number > 0
2 | rates --plot x.png --range 0 1e308 | --epsilon: expected a finite number > 0
2 | rates --plot x.png --over epsilon --range 0 1 | --epsilon: expected a finite number > 0
5 | rates --plot nowhere/x.png | cannot write nowhere/x.png: there is no folder nowhere
2 | rates --range 1 | --range: expected 2 arguments
2 | scenario | the following arguments are required: SPEC.toml
2 | scenario no.toml | no.toml: no such file or directory
2 | scenario spec.toml --rounds 0 | --rounds: expected a number >= 1
2 | scenario spec.toml --rounds -1 | --rounds: expected a number >= 1
2 | scenario spec.toml --rounds x | --rounds: invalid int value: 'x'
2 | scenario spec.toml --plot x.txt | cannot draw 'x.txt': use a file ending of .png, .svg, .pdf
5 | scenario spec.toml --plot nowhere/x.png | cannot write nowhere/x.png: there is no folder nowhere
3 | scenario table.toml -s data.path=empty.csv | empty.csv: no columns
2 | scenario spec.toml -s scenario.clients=100000 | 10500 samples are too few for 100000 clients x 4 subsets: use
2 | scenario spec.toml -s train.lr=nan | train.lr: expected float > 0.0
2 | scenario spec.toml --rounds 99999999999999999999 | --rounds: expected at most 1000000000000
3 | scenario table.toml -s data.target=lable | table.csv: no column 'lable'
2 | spec nothing | spec nothing: no such section
2 | spec method.memry | spec method.memry: no such section
2 | spec train extra | unrecognized arguments: extra
2 | spec --recipe train | spec train: no such section
2 | spec '' | spec : no such section
2 | spec --fly | unrecognized arguments: --fly
2 | sweep | the following arguments are required: SPEC.toml, --vary
2 | sweep spec.toml | the following arguments are required: --vary
2 | sweep no.toml --vary train.lr=0.1:1 | no.toml: no such file or directory
2 | sweep spec.toml --vary train.lr | --vary train.lr: expected KEY=LOW:HIGH or KEY=A,B,C
2 | sweep spec.toml --vary train.lr= | --vary train.lr=: expected KEY=LOW:HIGH or KEY=A,B,C
2 | sweep spec.toml --vary =1:2 | --vary =1:2: expected KEY=LOW:HIGH or KEY=A,B,C
2 | sweep spec.toml --vary train.lr=1:0.1 | --vary train.lr=1:0.1: expected the lower number first
2 | sweep spec.toml --vary train.lr=0:inf | --vary train.lr=0:inf: expected the lower number first
2 | sweep spec.toml --vary train.lr=nan:1 | --vary train.lr=nan:1: expected the lower number first
2 | sweep spec.toml --vary train.lr=a:b | --vary train.lr=a:b: expected numbers, LOW:HIGH
2 | sweep spec.toml --vary train.lr=-1:1 | spec.toml: train.lr: expected float > 0.0
2 | sweep spec.toml --vary train.lrr=1:2 | spec.toml: train.lrr: unknown key
2 | sweep spec.toml --vary model.kind=linear,mpl | spec.toml: model.kind: unknown value 'mpl'
2 | sweep spec.toml --vary train.lr=0.1:1 --vary train.lr=0.1:1 | --vary train.lr: given twice
2 | sweep spec.toml --vary train.lr=0.1:1 --trials 0 | --trials: expected a number >= 1
2 | sweep spec.toml --vary train.lr=0.1:1 --trials -1 | --trials: expected a number >= 1
2 | sweep spec.toml --vary train.lr=0.1:1 --trials 99999999999999999999 | --trials: expected at most 1000000
2 | sweep spec.toml --vary train.lr=0.1:1 --seeds x | --seeds: expected numbers such as 0,1,2
2 | sweep spec.toml --vary train.lr=0.1:1 --seeds 0,0 | --seeds: expected different numbers from 0 to 10^18
5 | sweep spec.toml --vary train.lr=0.1:1 -o spec.toml | cannot write spec.toml: not a directory
4 | sweep spec.toml --vary train.lr=0.1:1 -o corrupt | corrupt/sweep.db: cannot be read
2 | sweep broken.toml --vary train.lr=0.1:1 | broken.toml: not valid TOML: Invalid value
2 | sweep spec.toml --vary train.lr=0.1:1 --seeds -1 | --seeds: expected different numbers from 0 to 10^18
2 | weights --rounds 0 | --rounds: expected a number from 1 to 5000
2 | weights --rounds -1 | --rounds: expected a number from 1 to 5000
2 | weights --rounds x | --rounds: invalid int value: 'x'
2 | weights --rounds 99999999 | --rounds: expected a number from 1 to 5000
2 | weights --time-drift-sq -1 | --time-drift-sq: expected a finite number >= 0
2 | weights --time-drift-sq nan | --time-drift-sq: expected a finite number >= 0
2 | weights --time-drift-sq inf | --time-drift-sq: expected a finite number >= 0
2 | weights --time-drift-sq 1e308 | --time-drift-sq: expected a finite number up to 1e+32
2 | weights --time-drift-sq 1e308 --correlation 0.5 --client-drift-sq 1e308 | --time-drift-sq: expected a finite number up to 1e+32
2 | weights --information-loss-sq nan | --information-loss-sq: expected a finite number >= 0
2 | weights --information-loss-sq -1 | --information-loss-sq: expected a finite number >= 0
2 | weights --information-loss-sq 1e308 --correlation 0.5 | --information-loss-sq: expected a finite number up to 1e+32
2 | weights --correlation 1 | --correlation: expected a number >= 0 and < 1
2 | weights --correlation -1 | --correlation: expected a number >= 0 and < 1
2 | weights --correlation nan | --correlation: expected a finite number up to 1e+32
2 | weights --correlation 2 | --correlation: expected a number >= 0 and < 1
2 | weights --client-drift-sq -1 | --client-drift-sq: expected a finite number >= 0
2 | weights --client-drift-sq inf | --client-drift-sq: expected a finite number >= 0
2 | weights --cohort 0 | --cohort: expected a number >= 1
2 | weights --cohort -1 | --cohort: expected a number >= 1
2 | weights --cohort 999999999999999999999999999999999999 | --cohort: expected at most 1000000000000
2 | weights --cohort x | --cohort: invalid int value: 'x'
2 | weights --plot x.txt | cannot draw 'x.txt': use a file ending of .png, .svg, .pdf
5 | weights --plot nowhere/x.png | cannot write nowhere/x.png: there is no folder nowhere
2 | weights --fly | unrecognized arguments: --fly
2 | client | the following arguments are required: action, FILE
2 | client fly x | action: invalid choice: 'fly'
2 | client inspect | the following arguments are required: FILE
4 | client inspect nowhere.db | nowhere.db: no such file
4 | client inspect store.db | store.db: client store is damaged: file is not a database
4 | client inspect spec.toml | spec.toml: client store is damaged: file is not a database
4 | client inspect . | .: no such file
4 | client forget nowhere.db --keys 1 | nowhere.db: no such file
2 | client forget store.db --keys x | --keys: invalid int value: 'x'
2 | client forget store.db | client forget: give --before DATE, --rows ID ... or --keys KEY
2 | client forget store.db --before yesterday | client forget --before: 'yesterday' is not a date such as
2 | client forget store.db --keys 99999999999999999999 | client forget: it cannot be undone
2 | client inspect store.db --fly | unrecognized arguments: --fly
2 | flower | the following arguments are required: ACTION
2 | flower fly | ACTION: invalid choice: 'fly'
2 | flower new | the following arguments are required: DIR
5 | flower new spec.toml | cannot write spec.toml: not a directory
2 | flower new app no.toml | no.toml: no such file or directory
2 | flower new app spec.toml -s train.lr=nan | train.lr: expected float > 0.0
2 | flower local | the following arguments are required: SPEC.toml
2 | flower local no.toml | no.toml: no such file or directory
2 | flower local spec.toml --clients 0 | --clients: expected a number >= 1
2 | flower local spec.toml --clients -1 | --clients: expected a number >= 1
2 | flower local spec.toml --clients 99999999999999999999 | --clients: expected at most 1000000000000
2 | flower local spec.toml --quorum -1 | --quorum: Expected `int` >= 0
2 | flower local spec.toml --poll nan | --poll: Expected `float` > 0.0
2 | flower local spec.toml --poll -1 | --poll: Expected `float` > 0.0
2 | flower local spec.toml --round-timeout inf | --round-timeout: Expected `float` <= 1000000000.0
2 | flower local spec.toml --round-timeout 0 | --round-timeout: Expected `float` > 0.0
2 | flower local spec.toml --source source.toml | source.kind: unknown value 'nothing'
2 | flower local spec.toml --source no.toml | no.toml: cannot be read: [Errno 2] No such file or directory
2 | flower keys | the following arguments are required: DIR, --clients
2 | flower keys folder | the following arguments are required: --clients
2 | flower prefork | flower prefork: program missing, e.g. flower prefork --
2 | flower new app nested.toml | nested.toml: not valid TOML: nested too deeply
2 | flower local spec.toml --clients x | --clients: invalid int value: 'x'
"""
CASES = [Case.parse(line) for line in TABLE_OF_CASES.strip().splitlines()]
