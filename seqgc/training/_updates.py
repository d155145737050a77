"""How updates reach the weights where batches come in parts, and which weights tasks read.

- ``apply="update"``: a part moves the weights as it comes, by one step of the optimizer along the
  part's share of the gradient. All parts together make the step of the batch, to first order, if
  the optimizer is additive (`seqgc.training._additive`).
- ``apply="clock"``: the parts are added up, by a tree over them, and the sum is applied as one step
  when the last of them and every earlier step of the model's are in. Any optimizer will do. A sum
  has each part once: it is not for defences that have parts applied again.
- ``refresh="always"``: a task reads the present weights, which are published unless they are.
- ``refresh="needed"``: it reads the version that was published last, as long as that is within the
  bound: about one publication in ``staleness + 1`` jobs. Functions then lack their own updates.
- ``refresh="late"``, with ``"clock"``: it reads exactly the steps of its model's jobs up to
  ``t - staleness - 1``. So a run is the same to the last bit whoever was slow in it: sequential
  gradient descent with delayed gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

from seqgc.errors import ParameterError
from seqgc.training._additive import require_additive
from seqgc.training._jobs import ChunkedScheme
from seqgc.training.model import Model

__all__ = ["Apply", "Refresh", "StaleScheme", "Updates"]

Apply: TypeAlias = Literal["update", "clock"]
Refresh: TypeAlias = Literal["always", "needed", "late"]


class StaleScheme(ChunkedScheme, Protocol):
    """What training must know of a defence whose jobs come in parts."""

    @property
    def staleness(self) -> int | None: ...
    @property
    def most_again(self) -> int: ...  # parts that a failure may have applied again


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """How updates reach the weights, and which weights tasks read: see this module's head.

    Examples
    --------
    >>> Updates(apply="clock", refresh="late")
    Updates(apply='clock', refresh='late', aware=False)
    """

    apply: Apply = "update"
    refresh: Refresh = "always"
    aware: bool = False
    """Weigh an update down by how old its weights are (`seqgc.rounds.StalenessAware`)."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("apply", self.apply, get_args(Apply)),
            ("refresh", self.refresh, get_args(Refresh)),
        ):
            if value not in known:
                raise ParameterError(name, f"must be one of {', '.join(known)}", value)
        if self.refresh == "late" and self.apply != "clock":
            rule = "must be clock where weights are read exactly as late as may be"
            raise ParameterError("apply", rule, self.apply)
        if self.refresh == "late" and self.aware:
            rule = "must be left out where weights are read exactly as late as may be"
            raise ParameterError("aware", rule, self.aware)

    @property
    def publishes_each(self) -> bool:
        """Whether each part of a batch may be sent with a version of weights of its own."""
        return self.apply == "update" and self.refresh == "always"

    def require_fit(self, models: Sequence[Model], scheme: StaleScheme) -> None:
        """Refuse models, or a scheme, that this is not for, with `ParameterError`."""
        if self.refresh != "always" and scheme.staleness is None:
            rule = "must be always where nothing bounds how stale weights are"
            raise ParameterError("refresh", rule, self.refresh)
        if self.apply == "clock" and scheme.most_again:
            rule = "must be update where parts that are in may be applied again, each by itself"
            raise ParameterError("apply", rule, self.apply, "take resume=part")
        if self.apply == "update":
            also = "resume=part, and " if scheme.most_again else ""
            require_additive(models, remedy=f'{also}apply="clock", or --apply clock')
