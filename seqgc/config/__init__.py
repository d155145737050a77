"""Configurations of runs: TOML files, their checks, and the plan and workers that they describe.

The command line uses this module for its configuration files. Your own programs can use it too.

Examples
--------
>>> from seqgc.config import checked, make_workers
>>> config = checked({"scheme": "gc:s=1", "workers": 4, "models": [{"name": "net"}]})
>>> make_workers(config).n
4
"""

from seqgc.config._making import make_callbacks as make_callbacks
from seqgc.config._making import make_delays as make_delays
from seqgc.config._making import make_models as make_models
from seqgc.config._making import make_plan as make_plan
from seqgc.config._making import make_updates as make_updates
from seqgc.config._making import make_workers as make_workers
from seqgc.config._making import models_plan as models_plan
from seqgc.config._tables import ModelConfig as ModelConfig
from seqgc.config._tables import RunConfig as RunConfig
from seqgc.config._tables import ValidationConfig as ValidationConfig
from seqgc.config._tables import checked as checked
from seqgc.config._tables import read_config as read_config
from seqgc.config._tables import read_run_config as read_run_config
from seqgc.config._tables import validated as validated
from seqgc.config._tables import with_models as with_models
