"""What the messages of a piece of work say beside its tasks, whoever its workers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqgc.backends import Messaging
from seqgc.workers._delays import LoadDelays, injected_into

if TYPE_CHECKING:
    from seqgc.training import Work

__all__ = ["messaging_of"]


def messaging_of(work: Work, delays: LoadDelays | None, *, run_id: str | None = None) -> Messaging:
    """Return it; ``run_id`` is the work's name unless given."""
    return Messaging(
        run_id=run_id or work.name,
        rounding_name=work.name,
        code=work.code,
        delays=injected_into(work, delays),
        payload=work.payload,
        stochastic_rounding=work.stochastic_rounding,
    )
