"""What some backends can do and others cannot, and what needs it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, Literal, TypeAlias

from seqgc.errors import ParameterError

Capability: TypeAlias = Literal["restart"]
"""What some backends can and others cannot; "restart": replace workers, a `RestartingBackend`."""

_MEANING: Final[dict[Capability, str]] = {"restart": "replace its workers"}


def require_capabilities(
    needs: AbstractSet[Capability], *, can: AbstractSet[Capability], of: str
) -> None:
    """Refuse a policy that needs what workers, of that name, cannot do.

    Raises
    ------
    ParameterError
        If they cannot, or one of the needs is unknown.

    Examples
    --------
    >>> require_capabilities({"restart"}, can={"restart"}, of="local")
    >>> require_capabilities({"restart"}, can=set(), of="lambda")
    Traceback (most recent call last):
    ...
    seqgc.errors.ParameterError: `backend` must be able to replace its workers, for the policy \
needs it; got 'lambda' (take local processes, or functions that stay (--resident); or another \
defence)
    """
    if not isinstance(needs, AbstractSet) or not needs <= _MEANING.keys():
        known = ", ".join(map(repr, _MEANING))
        raise ParameterError("needs", f"must be a set of what is known: {known}", needs)
    for lacking in sorted(needs - can):
        rule = f"must be able to {_MEANING[lacking]}, for the policy needs it"
        remedy = "take local processes, or functions that stay (--resident); or another defence"
        raise ParameterError("backend", rule, of, remedy)
