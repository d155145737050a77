"""The exception tree: every error carries its fields, and says in one line what to do."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "AuditError",
    "BudgetError",
    "CallbackError",
    "DamageError",
    "IllConditionedError",
    "ModelError",
    "NotDecodableError",
    "ParameterError",
    "ProfileError",
    "ProfileWarning",
    "ScheduleError",
    "SeqgcError",
    "SkewError",
    "Stopped",
    "StoreError",
    "WireError",
    "WorkerError",
    "did_you_mean",
    "one_line",
    "refusing",
    "require_int",
    "require_name",
    "require_number",
    "reraise_stop",
]


_LONGEST = 120  # of a value that a message shows
_MODELS = 4  # that a message names
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class SeqgcError(Exception):
    """Any error that seqgc raises on purpose."""


class ParameterError(SeqgcError, ValueError):
    """An argument broke its rule; the message names the argument, the rule and the value.

    Examples
    --------
    >>> raise ParameterError("s", "must satisfy 0 <= s < n (GC), n=4", 4)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `s` must satisfy 0 <= s < n (GC), n=4; got 4
    """

    def __init__(self, argument: str, rule: str, value: object, remedy: str = "") -> None:
        self.argument, self.rule, self.value, self.remedy = argument, rule, value, remedy
        got = f"`{argument}` {rule}; got {_shown(value)}"
        super().__init__(got + (f" ({remedy})" if remedy else ""))

    def __reduce__(self) -> tuple[type[ParameterError], tuple[str, str, object, str]]:
        return type(self), (self.argument, self.rule, self.value, self.remedy)


class ProfileError(SeqgcError):
    """A delay profile that cannot be read or used; names the file, row and column."""


class ProfileWarning(UserWarning):
    """A warning about a delay profile that can be read, but whose times look wrong."""


class NotDecodableError(SeqgcError):
    """The answers do not determine the gradient."""

    def __init__(self, message: str, *, job: int | None = None, round: int | None = None) -> None:
        self.job, self.round = job, round
        super().__init__(message)


class IllConditionedError(SeqgcError):
    """Decoding would amplify rounding errors beyond what the caller tolerates."""

    def __init__(self, message: str, *, amplification: float) -> None:
        self.amplification = amplification
        super().__init__(message)


class ScheduleError(SeqgcError):
    """An illegal transition of a schedule, gate or policy; the object is unchanged."""


class WorkerError(SeqgcError):
    """Workers failed and the round cannot end without them; carries the first cause."""

    def __init__(
        self, message: str, *, round: int | None = None, worker: int | None = None
    ) -> None:
        self.round, self.worker = round, worker
        super().__init__(message)


class SkewError(WorkerError):
    """A worker that computes with other code, data or versions than its master has; names them."""


class BudgetError(SeqgcError):
    """A run that could cost more than it may; stopped before the tasks that could pass it left."""

    def __init__(self, message: str, *, round: int, spent_usd: float) -> None:
        self.round, self.spent_usd = round, spent_usd
        super().__init__(message)


class AuditError(SeqgcError):
    """Workers who were asked for the same differ, and no majority says who is right.

    Or the only ones who were heard are ``expelled``: they have lied about something else.
    """

    def __init__(self, job: int, workers: Sequence[int], *, expelled: bool = False) -> None:
        self.job, self.workers = job, tuple(workers)
        who = ", ".join(map(str, workers))
        if expelled:
            why = f"of a part of it none were heard but those who have lied (workers {who})"
        else:
            why = f"workers {who} were asked for the same and answer differently, and no majority "
            why += "says who lies (unlike processors differ in the last bits)"
        remedy = "replace them, or take a code with more replicas (a larger s)"
        super().__init__(f"job {job}: {why}: {remedy}")


class ModelError(SeqgcError):
    """Models that cannot be trained on, and why, and nothing else is to be trained.

    Examples
    --------
    >>> raise ModelError({"net": "diverged after 3 steps: its results are not finite"})
    Traceback (most recent call last):
        ...
    seqgc.errors.ModelError: net diverged after 3 steps: its results are not finite
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self.models = dict(models)
        first = [f"{name} {why}" for name, why in self.models.items()][:_MODELS]
        more = len(self.models) - len(first)
        super().__init__("; ".join([*first, *[f"and {more} more"] * (more > 0)]))

    def __reduce__(self) -> tuple[type[ModelError], tuple[dict[str, str]]]:
        return type(self), (self.models,)


class CallbackError(SeqgcError):
    """A callback that failed while a run went on; the run can be resumed from its last checkpoint.

    ``callback`` is the class and the method, ``fault`` what was wrong with the call.

    Examples
    --------
    >>> raise CallbackError("Logger.on_step", "raised OSError: no such logger")
    Traceback (most recent call last):
        ...
    seqgc.errors.CallbackError: callback Logger.on_step raised OSError: no such logger
    """

    def __init__(self, callback: str, fault: str) -> None:
        self.callback, self.fault = callback, fault
        super().__init__(f"callback {callback} {fault}")

    def __reduce__(self) -> tuple[type[CallbackError], tuple[str, str]]:
        return type(self), (self.callback, self.fault)


class Stopped(SystemExit):
    """A signal asked for the end of this program: ``status`` is the one to end with."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.code = self.status = status


class WireError(SeqgcError):
    """A message that is damaged, foreign, too large, or not finite."""


class StoreError(SeqgcError):
    """Stored weights that are missing or do not match their digest."""


class DamageError(StoreError):
    """A run that cannot be resumed, since its journal or all of its checkpoints are of no use.

    Nothing has been started when it is raised.
    """


def _shown(value: object) -> str:
    """Return the value's repr, without its middle if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # nested too deeply, an integer of too many digits, a stranger's object
        text = object.__repr__(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a remedy, ``did you mean 'x'?``, for the nearest known word, or nothing.

    Examples
    --------
    >>> did_you_mean("m-sgd", ["gc", "m-sgc"])
    "did you mean 'm-sgc'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def one_line(text: object, *, limit: int = 1000) -> str:
    """Return a text, or what an error says, as one printable line of at most ``limit`` characters.

    All that comes from outside passes it before it is shown or logged. What a terminal or a log
    would obey, or could not encode, is replaced: control and formatting characters, lone
    surrogates.

    Examples
    --------
    >>> one_line(f"red:{chr(27)}[31m{chr(10)}FORGED")
    'red:�[31m FORGED'
    """
    words = " ".join(str(text)[: 10 * limit].split())
    if len(words) > limit:
        words = words[: limit - 1].rstrip() + "…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)


def reraise_stop(error: BaseException) -> None:
    """Raise an error again if it is to end this program: a stranger's other errors are not.

    Whoever calls ``sys.exit`` in an optimizer would end all models, with any status. What a signal
    raises is a `KeyboardInterrupt`, or `Stopped`.

    Examples
    --------
    >>> try:
    ...     raise SystemExit("no licence")
    ... except BaseException as error:
    ...     reraise_stop(error)
    ...     print("goes on without it")
    goes on without it
    """
    if isinstance(error, Stopped | KeyboardInterrupt):
        raise error


@contextmanager
def refusing(argument: str, rule: str, value: str, remedy: str = "") -> Iterator[None]:
    """Make whatever a stranger's code raises a `ParameterError`, see `reraise_stop`.

    ``{}`` in the ``rule`` stands for what it says.

    Examples
    --------
    >>> with refusing("module", "must be importable ({})", "mine"):
    ...     raise SystemExit("no licence")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `module` must be importable (SystemExit: no licence); got 'mine'
    """
    try:
        yield
    except BaseException as error:
        reraise_stop(error)
        try:
            said = one_line(error, limit=120)
        except Exception:  # a stranger's error may not know what it says
            said = "no more is known"
        why = f"{one_line(type(error).__name__, limit=60)}: {said}"
        raise ParameterError(argument, rule.format(why), value, remedy) from error


def no_run(run: str | Path, why: str) -> ParameterError:
    """Return the refusal of a folder that is no run's.

    Examples
    --------
    >>> str(no_run("here", "it has no journal"))
    "`run` must be the folder of a run (it has no journal); got 'here'"
    """
    return ParameterError("run", f"must be the folder of a run ({why})", str(run))


def require_name(argument: str, name: object, *, most: int) -> None:
    """Refuse a name that could lead out of the folder in which a file is to have it.

    Examples
    --------
    >>> require_name("key", "run-1.txt", most=9)
    >>> require_name("key", "../etc", most=9)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `key` must be 1 to 9 letters, digits, '_', '-' or '.', ...
    """
    if not isinstance(name, str) or len(name) > most or not _NAME.fullmatch(name):
        letters = f"1 to {most} letters, digits, '_', '-' or '.'"
        raise ParameterError(argument, f"must be {letters}, and not begin with '-' or '.'", name)


def require_int(
    argument: str, value: object, *, least: int | None = None, most: int | None = None
) -> int:
    """Return an integer of any type (numpy's too, but no bool) as an int, if it is in range.

    Keep what this returns, not the value: an ``np.int16`` overflows, and stays visible in `repr`.

    Raises
    ------
    ParameterError
        If the value is no integer, is below ``least`` or above ``most``.

    Examples
    --------
    >>> require_int("rounds", 3, least=1)
    3
    >>> require_int("rounds", 0, least=1)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `rounds` must be an integer >= 1; got 0
    """
    try:
        integer = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        integer = None
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if integer is None or not low <= integer <= high:
        limits = [f" >= {least}"] * (least is not None) + [f" <= {most}"] * (most is not None)
        shown = value if integer is None else integer
        raise ParameterError(argument, "must be an integer" + " and".join(limits), shown)
    return integer


def require_number(
    argument: str,
    value: float,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return a finite number, if it is at least ``least``, ``most`` at most, and above ``above``.

    Raises
    ------
    ParameterError
        If it is not.

    Examples
    --------
    >>> require_number("mu", -1.0, least=0)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `mu` must be a finite number >= 0; got -1.0
    """
    try:
        finite = math.isfinite(value)
    except (OverflowError, TypeError):  # an integer that no float holds; no number
        finite = False
    if not (finite and least <= value <= most and value > above):
        bounds = [f" >= {least:g}"] * (least > -math.inf) + [f" > {above:g}"] * (above > -math.inf)
        bounds += [f" <= {most:g}"] * (most < math.inf)
        raise ParameterError(argument, "must be a finite number" + " and".join(bounds), value)
    return value
