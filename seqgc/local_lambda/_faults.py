"""Scripted faults: what goes wrong with which request, as a pure function of a seed."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from seqgc.errors import ParameterError, did_you_mean

__all__ = ["Fault", "FaultKind", "FaultPlan"]

FaultKind: TypeAlias = Literal[
    "delay", "crash", "hang", "throttle", "corrupt", "duplicate", "error", "none"
]
_KINDS: tuple[str, ...] = get_args(FaultKind)
_Reader: TypeAlias = Callable[[bytes | bytearray], tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What befalls one request; ``seed`` is its own, for what is drawn further (flipped bits)."""

    kind: FaultKind
    delay_s: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Which requests go wrong, and how: the same ones every time.

    Parameters
    ----------
    by
        What a fault is drawn for. ``"request"``: every request by itself, counted from 0 as they
        arrive. ``"environment"``: environment number, from 0; a bad one is bad for good.
        ``"module.function"``: what this function, which the service imports, returns for a
        request's body, a tuple of integers, so that faults do not depend on the order of arrival;
        None spares the request. `seqgc.worker.task_address` is one.
    seed
        Of the draws.
    rates
        Probability of each kind of fault; together at most 1.
    script
        Faults by key, before any draw: a key is what ``by`` names, e.g. ``(3,)`` for request 3 or
        what that function returns. ``"none"`` spares a request.
    delay_s
        How long ``"delay"`` holds a request before its environment sees it, in seconds.

    Notes
    -----
    ========= ====================================================================================
    delay     the environment is given the request ``delay_s`` later; its time-out runs meanwhile
    crash     the environment is killed (SIGKILL) while it computes
    hang      nothing happens until the function's time-out, which kills the environment
    throttle  429, and no environment is taken
    corrupt   a few bits of the response are flipped
    duplicate answered with the response to an earlier request, if there is one; nothing is computed
    error     a function error, and nothing is computed
    ========= ====================================================================================

    Raises
    ------
    ParameterError
        If a kind is unknown, a rate is no probability, or the rates exceed 1 together.

    Examples
    --------
    >>> plan = FaultPlan(script={(1,): "crash"}, rates={"delay": 1.0}, delay_s=0.2)
    >>> [plan.fault(request=i, environment=0).kind for i in range(3)]
    ['delay', 'crash', 'delay']
    >>> FaultPlan(rates={"crush": 0.1})
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `rates` must name faults; got 'crush' (did you mean 'crash'?)
    """

    by: str = "request"
    seed: int = 0
    rates: Mapping[FaultKind, float] = field(default_factory=dict)
    script: Mapping[tuple[int, ...], FaultKind] = field(default_factory=dict)
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        module, _, function = self.by.rpartition(".")
        if self.by not in ("request", "environment") and not (module and function.isidentifier()):
            rule = "must be 'request', 'environment', or a 'module.function'"
            raise ParameterError("by", rule, self.by)
        for argument, kinds in (("rates", self.rates), ("script", self.script.values())):
            for kind in kinds:
                if kind not in _KINDS:
                    remedy = did_you_mean(kind, _KINDS)
                    raise ParameterError(argument, "must name faults", kind, remedy)
        if any(not 0 <= rate <= 1 for rate in self.rates.values()):
            raise ParameterError("rates", "must be probabilities", dict(self.rates))
        if (total := sum(self.rates.values())) > 1 + 1e-9:
            raise ParameterError("rates", "must not exceed 1 together", total)
        if not 0 <= self.delay_s < float("inf"):
            raise ParameterError("delay_s", "must be a finite number of seconds >= 0", self.delay_s)

    def fault(
        self, *, request: int, environment: int, body: tuple[int, ...] | None = None
    ) -> Fault:
        """Return what befalls a request, by its index, its environment's, and what its body says.

        One without a key is spared.
        """
        keys = {"request": (request,), "environment": (environment,)}
        if (key := keys.get(self.by, body)) is None:
            return Fault(kind="none")
        text = ",".join(map(str, (self.seed, *key)))
        digest = hashlib.sha256(text.encode()).digest()
        kind = self.script.get(key) or self._drawn(int.from_bytes(digest[:8]) / 2**64)
        return Fault(kind=kind, delay_s=self.delay_s, seed=int.from_bytes(digest[8:16]))

    def reader(self) -> _Reader:
        """Return what reads a request's key in its body; `ParameterError`: there is no such."""
        module, _, function = self.by.rpartition(".")
        if not module:
            return lambda _: None
        try:
            read: _Reader = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            rule = f"must name a function that can be imported ({error})"
            raise ParameterError("by", rule, self.by) from None
        return read

    def _drawn(self, u: float) -> FaultKind:
        """Return the kind whose interval of [0, 1) holds ``u``."""
        for kind, rate in self.rates.items():
            if u < rate:
                return kind
            u -= rate
        return "none"
