"""Faults to inject into requests. A seed and a script determine all faults."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from seqgc.errors import ParameterError, did_you_mean

FaultKind: TypeAlias = Literal[
    "delay", "crash", "hang", "throttle", "corrupt", "duplicate", "error", "none"
]
_KINDS: tuple[str, ...] = get_args(FaultKind)
_Reader: TypeAlias = Callable[[bytes | bytearray], tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFault:
    """A fault of one request. ``seed`` determines its details, such as which bits are flipped."""

    kind: FaultKind
    delay_s: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A reproducible choice of the requests that fail, and of their faults.

    Parameters
    ----------
    by
        The kind of key for which faults are drawn. ``"request"``: the number of the request, from 0
        in order of arrival. ``"environment"``: the number of the environment, from 0; a faulty
        environment stays faulty. ``"module.function"``: a function that the service imports. It
        returns a tuple of integers for the body of a request, or None for no fault. With such a
        key, faults do not depend on the order of arrival. `seqgc.worker.task_address` is such a
        function.
    seed
        Seed of the draws.
    rates
        Probability of each kind of fault; at most 1 in total.
    script
        Faults by key, which replace the drawn faults. For example, ``(3,)`` is request 3, or the
        tuple that the function of ``by`` returns. ``"none"`` means that the request has no fault.
    delay_s
        Time, in seconds, for which ``"delay"`` holds a request back from its environment.

    Notes
    -----
    ========= ====================================================================================
    delay     the environment gets the request ``delay_s`` later; its time-out has already begun
    crash     the environment is killed (SIGKILL) while it computes
    hang      nothing happens until the function's time-out, which kills the environment
    throttle  status 429; no environment is used
    corrupt   a few bits of the response are flipped
    duplicate the response to an earlier request is repeated, if there is one, without computing
    error     the response is a function error, and nothing is computed
    ========= ====================================================================================

    Raises
    ------
    ParameterError
        If a kind is unknown, a rate is not a probability, or the rates sum to more than 1.

    Examples
    --------
    >>> plan = FaultPlan(script={(1,): "crash"}, rates={"delay": 1.0}, delay_s=0.2)
    >>> [plan.fault(request=i, environment=0).kind for i in range(3)]
    ['delay', 'crash', 'delay']
    >>> FaultPlan(rates={"crush": 0.1})
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `rates` must name kinds of fault; got 'crush' (did you mean \
'crash'?)
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
                    raise ParameterError(argument, "must name kinds of fault", kind, remedy)
        if any(not 0 <= rate <= 1 for rate in self.rates.values()):
            raise ParameterError("rates", "must be probabilities, from 0 to 1", dict(self.rates))
        if (total := sum(self.rates.values())) > 1 + 1e-9:
            raise ParameterError("rates", "must sum to at most 1", total)
        if not 0 <= self.delay_s < float("inf"):
            raise ParameterError("delay_s", "must be a finite number of seconds >= 0", self.delay_s)

    def fault(
        self, *, request: int, environment: int, body: tuple[int, ...] | None = None
    ) -> RequestFault:
        """Return the fault of a request.

        ``request`` and ``environment`` are its numbers, and ``body`` is the key that `reader`
        returns for its body. A request without a key has no fault.
        """
        keys = {"request": (request,), "environment": (environment,)}
        if (key := keys.get(self.by, body)) is None:
            return RequestFault(kind="none")
        text = ",".join(map(str, (self.seed, *key)))
        digest = hashlib.sha256(text.encode()).digest()
        kind = self.script.get(key) or self._drawn(int.from_bytes(digest[:8]) / 2**64)
        return RequestFault(kind=kind, delay_s=self.delay_s, seed=int.from_bytes(digest[8:16]))

    def reader(self) -> _Reader:
        """Return the function that returns the key of a request's body, or None.

        Raises
        ------
        ParameterError
            If ``by`` names a function that cannot be imported.
        """
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
        """Return the kind whose interval of [0, 1) contains ``u``."""
        for kind, rate in self.rates.items():
            if u < rate:
                return kind
            u -= rate
        return "none"
