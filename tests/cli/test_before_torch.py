"""What is wrong with a configuration is said before PyTorch, a second and 245 MB, is imported."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import torch
from torch.optim import lr_scheduler

from seqgc.models.factories import data_names
from seqgc.models.losses import LOSSES as TORCH_LOSSES
from seqgc.training import MODULES as NETWORKS
from tests.cli.inside import DATA, LOSSES, MODULES, NOT_TAKEN, OPTIMIZERS, SCHEDULERS

BAD = {
    "--module mpl": "(did you mean 'mlp'?)",
    "--data digit": "(did you mean 'digits'?)",
    "--optimizer adm": "(did you mean 'adam'?)",
    "--loss cross_entropy": "(did you mean 'cross-entropy'?)",
    "--loss nowhere:f": "No module named 'nowhere'",
    "args.toml": "`module_args` must be arguments of own:f, which are width; got 'widht' (did you",
    "--module nowhere:f": "No module named 'nowhere'",
    "--module nowhere.at.all:f": "No module named 'nowhere'",
    "--module :f": "this is not a module name",
    "--module ../own:f": "this is not a module name",
    "--module own:missing": "has no attribute 'missing'",
    "--module own:number": "must name a function",
    "--data own:": "has no attribute ''",
    "--data broken:f": "(RuntimeError: two lines)",
    "--data ends:f": "(SystemExit: 0)",
    "--plugin ends": "(SystemExit: 0)",
    "--module strange:f": "(Strange: it has no message)",
    "--scheme gc:s=99": "must satisfy 0 <= s < n",
    "--probe 3": "`alpha` must be a finite number",
    "same.toml": "`models` must have distinct names",
    "--models 1 --scheme m-sgc:B=1,W=2,lam=2": "must number at least",
    "--models 4 --jobs-per-round 5": "at most the number of models, M=4",
    "--backend lambda-local --module mpl": "(did you mean 'mlp'?)",
    "--backend lambda-local --data own:number": "must name a function",
    "momentum.toml": "`momentum` must be left out with optimizer adam; got 0.9 (opt",
    "decay.toml": "`weight_decay` must be left out with optimizer rprop; got 0.1 (opt",
    "scheduler.toml": "`scheduler` must be one of constantlr, ",
    "twice.toml": "`optimizer_args` must not have lr, which is a field of the model; got 0.1",
    "alone.toml": "`scheduler_args` must be left out if there is no scheduler",
    "--workers 0": "greater than or equal to 1",
}
OWN = {
    "own": "number = 1\ndef f(width): pass",
    "broken": "raise RuntimeError('two\\nlines')",
    "ends": "import sys; sys.exit(0)",
    "strange": "class Strange(Exception):\n    def __str__(self):\n        1 / 0\nraise Strange",
}
FILES = {
    "same": 2 * "[[models]]\nname = 'a'\n",
    "momentum": "[[models]]\nname = 'a'\nmomentum = 0.9\n",
    "decay": "[[models]]\nname = 'a'\noptimizer = 'Rprop'\nweight_decay = 0.1\n",
    "scheduler": "[[models]]\nname = 'a'\nscheduler = 'OneCycle'\n",
    "twice": "[[models]]\nname = 'a'\noptimizer_args.lr = 0.1\n",
    "args": "[[models]]\nname = 'a'\nmodule = 'own:f'\nmodule_args.widht = 3\n",
    "alone": "[[models]]\nname = 'a'\nscheduler_args = {gamma = 0.5}\n",
}
CODE = """
import contextlib, io, json, re, sys
from pathlib import Path
from seqgc.cli import main

def most_mb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

before, said = most_mb(), {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as text:
        assert main(["train", *line.split()]) == 2, line
    assert "torch" not in sys.modules, line
    said[line] = text.getvalue()
sys.modules["torch"] = None  # as where it is not installed
for verb in "train", "demo":
    with contextlib.redirect_stderr(io.StringIO()) as text:
        assert main([verb]) == 2, verb
    said[verb] = text.getvalue()
print(json.dumps([most_mb() - before, said]))
"""


def test_a_wrong_name_is_refused_before_pytorch_is_imported(tmp_path: Path) -> None:
    for name, text in OWN.items():
        tmp_path.joinpath(f"{name}.py").write_text(text)
    for name, text in FILES.items():
        tmp_path.joinpath(f"{name}.toml").write_text(text)
    asked = [sys.executable, "-c", CODE, json.dumps(list(BAD))]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    more_mb, said = json.loads(done.stdout)
    for line, words in BAD.items():
        assert words in said[line], said[line]
        assert said[line].count("\n") == 1
    for verb in "train", "demo":
        assert said[verb].count("\n") == 1
        assert "needs torch" in said[verb]
        assert "pip install 'seqgc[train]'" in said[verb]
    assert more_mb < 64


def test_the_names_that_are_known_before_are_those_that_there_are() -> None:
    assert set(MODULES) == set(NETWORKS)
    assert set(LOSSES) == set(TORCH_LOSSES)
    assert set(DATA) <= set(data_names())  # other tests may have registered more
    for name, kind in OPTIMIZERS.items():
        optimizer = getattr(torch.optim, kind)
        assert issubclass(optimizer, torch.optim.Optimizer)
        options = inspect.signature(optimizer).parameters
        for option, others in NOT_TAKEN.items():
            assert (option in options) == (name not in others), (kind, option)
    for kind in SCHEDULERS.values():
        assert issubclass(getattr(lr_scheduler, kind), lr_scheduler.LRScheduler)
