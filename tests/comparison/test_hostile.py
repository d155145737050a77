"""A defence that is wrong is found out in one line: it is not compared, and holds nobody up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import DelayProfile, ProfileMeta, write_profile

pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")

FILE = '''
from dataclasses import dataclass
import dataclasses
import numpy as np
from seqgc.clocks import ClockPolicy
from seqgc.ports import Close, Dispatch, Dispatched, Part, Tick, Update
from seqgc.rounds import ClosingRule, PolicyDefence, part_task, part_update
from seqgc.schemes import register


class Wrong(ClockPolicy):
    fault = ""
    again = 0

    def start(self):
        return self.bent(super().start())

    def on(self, event):
        if self.fault == "says nothing":
            return []
        if self.fault == "raises":
            raise KeyError("no\\nsuch thing")
        if self.fault == "sends as it sends" and isinstance(event, Dispatched):
            super().on(event)
            return [dataclasses.replace(self.sent, attempt=self.sent.attempt + 1)]
        return self.bent(super().on(event))

    def bent(self, actions):
        bent = []
        for action in actions:
            if isinstance(action, Dispatch):
                self.sent = action
            if self.fault == "a part twice" and isinstance(action, Update):
                bent.append(action)
            if self.fault == "a part never" and isinstance(action, Update):
                continue
            if self.fault == "a job never closed" and isinstance(action, Close):
                action = dataclasses.replace(action, jobs=())
            if self.fault == "a worker too many" and isinstance(action, Dispatch):
                action = dataclasses.replace(action, assignment={2: (part_task(0, 0),)})
            if self.fault == "a job too many" and isinstance(action, Dispatch):
                action = dataclasses.replace(action, assignment={0: (part_task(99, 0),)})
            bent.append(action)
        return bent

    @property
    def wake_at(self):
        return 0.0 if self.fault == "wakes without end" else super().wake_at

    @property
    def done(self):
        return self.fault == "done at once" or super().done


class Again(Wrong):
    """Sends the same task again whenever it is answered."""

    def on(self, event):
        if isinstance(event, (Dispatched, Tick)):
            return []
        self.again += 1
        return [dataclasses.replace(self.sent, attempt=self.again)]


@register("wrong")
@dataclass(frozen=True, kw_only=True)
class WrongDefence(PolicyDefence):
    n: int
    fault: str
    kind = "stale"
    exact = False

    def policy(self, rule, *, num_jobs, batches=(), payload=None):
        fault = self.fault.replace("_", " ")
        made = (Again if fault == "asks again" else Wrong)(self.n, rule, num_jobs=num_jobs)
        made.fault = fault
        return made
'''

QUICK = ["--seeds", "1", "--lr", "4", "--target", "2"]

FAULTS = {
    "asks_again": "does not end",
    "wakes_without_end": "does not end",
    "says_nothing": "waits for ever",
    "sends_as_it_sends": "has no task with the address",
    "a_part_twice": "applies part 0 of job 0 twice",
    "a_part_never": "has not applied all of job 0",
    "a_job_never_closed": "has not closed job 0",
    "a_worker_too_many": "asks worker 2 for a task, and there are 2",
    "a_job_too_many": "asks for job 99, and there are",
    "done_at_once": "is done, and has not closed job 0",
    "raises": "raises KeyError",
}


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "wrong_defence.py").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    times = np.array([[1.0, 2.0], [1.5, 1.0], [1.0, 3.0]])
    delays = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))
    write_profile(delays, path=tmp_path / "workers.npz")
    return str(tmp_path / "workers.npz")


@pytest.mark.parametrize("verb", [["compare", *QUICK], ["replay"]], ids=lambda words: words[0])
@pytest.mark.parametrize(("fault", "what"), FAULTS.items())
def test_a_wrong_defence_is_one_line(
    verb: list[str], fault: str, what: str, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    defence = f"wrong:fault={fault}"
    status = main([*verb, profile, "--plugin", "wrong_defence", "--defence", defence])
    printed, said = capsys.readouterr()
    assert (status, printed) == (1, "")
    assert said.startswith(f"seqgc: {defence}")
    assert what in said
    assert said.count("\n") == 1
    assert len(said) < 300


def test_the_same_policy_without_a_fault_is_compared(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = "wrong:fault=none"
    verb = ["compare", *QUICK, profile, "--plugin", "wrong_defence", "--defence", spec, "--json"]
    assert main(verb) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["defence"] == spec
    assert "wrong_defence" in sys.modules
