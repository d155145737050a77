"""The exceptions of seqgc, and helpers that check arguments and write messages."""

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


_MAX_VALUE = 120  # characters of a value in a message
_MAX_MODELS = 4  # in a message
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class SeqgcError(Exception):
    """Any error that seqgc raises on purpose."""


class ParameterError(SeqgcError, ValueError):
    """An invalid argument. The message names the argument, the rule for it and the value.

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
    """A delay profile cannot be read or used. The message names the file, row and column."""


class ProfileWarning(UserWarning):
    """A delay profile can be read, but its times look wrong."""


class NotDecodableError(SeqgcError):
    """The answers of the workers do not determine the gradient."""

    def __init__(self, message: str, *, job: int | None = None, round: int | None = None) -> None:
        self.job, self.round = job, round
        super().__init__(message)


class IllConditionedError(SeqgcError):
    """Decoding would amplify rounding errors beyond what the caller tolerates."""

    def __init__(self, message: str, *, amplification: float) -> None:
        self.amplification = amplification
        super().__init__(message)


class ScheduleError(SeqgcError):
    """A call that a schedule, gate or policy does not allow in its state, which is unchanged."""


class WorkerError(SeqgcError):
    """Workers failed, and the round cannot end without them. The message gives the first cause."""

    def __init__(
        self, message: str, *, round: int | None = None, worker: int | None = None
    ) -> None:
        self.round, self.worker = round, worker
        super().__init__(message)


class SkewError(WorkerError):
    """A worker's code, data or package versions differ from its master's."""


class BudgetError(SeqgcError):
    """A run was stopped because its next tasks could exceed its budget."""

    def __init__(self, message: str, *, round: int, spent_usd: float) -> None:
        self.round, self.spent_usd = round, spent_usd
        super().__init__(message)


class AuditError(SeqgcError):
    """Workers computed the same task with different results, and no majority shows which is right.

    If ``expelled``, the reason is another: all workers that computed some result of the job have
    been excluded for wrong results.
    """

    def __init__(self, job: int, workers: Sequence[int], *, expelled: bool = False) -> None:
        self.job, self.workers = job, tuple(workers)
        numbers = ", ".join(map(str, workers))
        if expelled:
            why = f"only excluded workers ({numbers}) have computed a part of its gradient"
        else:
            why = f"workers {numbers} have different results of the same task, and no majority "
            why += "shows the right one (different processors may differ in the last bits)"
        remedy = "replace these workers, or use a code with more replicas (a larger s)"
        super().__init__(f"job {job}: {why}: {remedy}")


class ModelError(SeqgcError):
    """No model of the run can be trained further. ``models`` maps each failed model to the reason.

    Examples
    --------
    >>> raise ModelError({"net": "diverged after 3 steps: its results are not finite"})
    Traceback (most recent call last):
        ...
    seqgc.errors.ModelError: net diverged after 3 steps: its results are not finite
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self.models = dict(models)
        first = [f"{name} {why}" for name, why in self.models.items()][:_MAX_MODELS]
        more = len(self.models) - len(first)
        super().__init__("; ".join([*first, *[f"and {more} more"] * (more > 0)]))

    def __reduce__(self) -> tuple[type[ModelError], tuple[dict[str, str]]]:
        return type(self), (self.models,)


class CallbackError(SeqgcError):
    """A user's callback failed. The run can be resumed from its last checkpoint.

    ``callback`` names the class and the method, and ``fault`` describes the failure.

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
    """The exception that ends the program after a signal, with the exit status ``status``."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.code = self.status = status


class WireError(SeqgcError):
    """A message between master and worker is not valid.

    It is damaged, too large, from another program, or has values that are not finite.
    """


class StoreError(SeqgcError):
    """Stored weights are missing, or do not match their digest."""


class DamageError(StoreError):
    """A run cannot be resumed, because its journal or all its checkpoints are damaged.

    The error is raised before any worker is started.
    """


def _shown(value: object) -> str:
    """Return the repr of a value; if it is long, leave out the middle."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # deep nesting, an integer with too many digits, a user's own __repr__
        text = object.__repr__(value)
    return (
        text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE // 2]}…{text[-_MAX_VALUE // 2 :]}"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` with the word of ``known`` that is most similar.

    If no word is similar, return an empty string.

    Examples
    --------
    >>> did_you_mean("m-sgd", ["gc", "m-sgc"])
    "did you mean 'm-sgc'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def one_line(text: object, *, limit: int = 1000) -> str:
    """Return a text, or the message of an error, as one line of at most ``limit`` characters.

    Use this function for all text from outside before it is shown or logged. It replaces characters
    that control a terminal or cannot be encoded (control characters, lone surrogates).

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
    """Raise the error again if it is `KeyboardInterrupt` or `Stopped`, which a signal causes.

    Call this function first in a handler for all exceptions of user code. Such a handler also
    catches `SystemExit`, because ``sys.exit`` in an optimizer must not end the program.

    Examples
    --------
    >>> try:
    ...     raise SystemExit("no licence")
    ... except BaseException as error:
    ...     reraise_stop(error)
    ...     print("the program continues")
    the program continues
    """
    if isinstance(error, Stopped | KeyboardInterrupt):
        raise error


@contextmanager
def refusing(argument: str, rule: str, value: str, remedy: str = "") -> Iterator[None]:
    """Convert an exception raised by user code in this block into a `ParameterError`.

    ``{}`` in ``rule`` is replaced by a description of the exception. Signals still end the program
    (`reraise_stop`).

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
            message = one_line(error, limit=120)
        except Exception:  # the error's __str__ may raise
            message = "it has no message"
        why = f"{one_line(type(error).__name__, limit=60)}: {message}"
        raise ParameterError(argument, rule.format(why), value, remedy) from error


def no_run(run: str | Path, why: str) -> ParameterError:
    """Return the error for a folder that is not the folder of a run; ``why`` says the reason.

    Examples
    --------
    >>> str(no_run("here", "it has no journal"))
    "`run` must be the folder of a run (it has no journal); got 'here'"
    """
    return ParameterError("run", f"must be the folder of a run ({why})", str(run))


def require_name(argument: str, name: object, *, most: int) -> None:
    """Raise `ParameterError` unless a name is a safe file name of at most ``most`` characters.

    A safe name cannot lead out of its folder.

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
    """Convert an integer of any type but bool to an int, and check its range.

    Use the returned value instead of the argument: an ``np.int16`` could overflow, and its type
    would appear in a `repr`.

    Raises
    ------
    ParameterError
        If the value is not an integer, is below ``least`` or above ``most``.

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
    """Return ``value`` after checking that it is a finite number in a range.

    Raises
    ------
    ParameterError
        Unless ``least <= value <= most`` and ``value > above``.

    Examples
    --------
    >>> require_number("mu", -1.0, least=0)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `mu` must be a finite number >= 0; got -1.0
    """
    try:
        finite = math.isfinite(value)
    except (OverflowError, TypeError):  # too large for a float, or not a number
        finite = False
    if not (finite and least <= value <= most and value > above):
        bounds = [f" >= {least:g}"] * (least > -math.inf) + [f" > {above:g}"] * (above > -math.inf)
        bounds += [f" <= {most:g}"] * (most < math.inf)
        raise ParameterError(argument, "must be a finite number" + " and".join(bounds), value)
    return value
