"""Which store a run should use, by what travels and by what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seqgc.errors import ParameterError
from seqgc.stores.inline import INLINE_LIMIT_BYTES, InlineStore
from seqgc.wire import StoreKind, envelope_bytes

__all__ = ["StorePrices", "choose_store"]

_FRAME_BYTES = 4096  # of a reply, beside its results
_GB = 2**30  # bytes, as in `seqgc.cost`


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrices:
    """What a store's use costs, US dollars; keeping the bytes costs next to nothing for a run.

    S3: per request, whatever its size, without transfer within a region. EFS with elastic
    throughput: per gigabyte (2**30 bytes), whatever the number of requests.
    """

    s3_put_usd: float
    s3_get_usd: float
    efs_write_usd_per_gb: float
    efs_read_usd_per_gb: float

    def __post_init__(self) -> None:
        for name in ("s3_put_usd", "s3_get_usd", "efs_write_usd_per_gb", "efs_read_usd_per_gb"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ParameterError(name, "must be finite US dollars >= 0", getattr(self, name))

    def s3_usd(self, *, writes: int, reads: int) -> float:
        """Return the price of so many requests."""
        return writes * self.s3_put_usd + reads * self.s3_get_usd

    def efs_usd(self, *, written_bytes: float, read_bytes: float) -> float:
        """Return the price of so many bytes."""
        written, read = written_bytes / _GB, read_bytes / _GB
        return written * self.efs_write_usd_per_gb + read * self.efs_read_usd_per_gb


def choose_store(
    *,
    weights_bytes: int,
    result_bytes: int,
    workers: int,
    mount: bool,
    bucket: bool,
    prices: StorePrices,
    limit_bytes: int = INLINE_LIMIT_BYTES,
) -> StoreKind:
    """Return which kind of store a run should use.

    The rule: ``inline`` if a task's weights fit into a request and its results into a reply, since
    that costs nothing and needs nothing. Else, of what there is, whichever is cheaper in a round of
    one version written, read by every worker, and, where they do not fit a reply, every worker's
    results written once and read once. At the same price ``directory``, which has the shorter
    latency.

    Parameters
    ----------
    weights_bytes
        Of all the weights that a task needs and a worker has not seen.
    result_bytes
        Of a task's results, as they travel.
    workers
        How many read a version, and write results.
    mount, bucket
        Whether there is a shared file system, a bucket.
    prices
        See `StorePrices`.
    limit_bytes
        Of a request and of a reply, as JSON.

    Raises
    ------
    ParameterError
        If it must be a store, and there is none.

    Examples
    --------
    >>> prices = StorePrices(
    ...     s3_put_usd=5e-6, s3_get_usd=4e-7, efs_write_usd_per_gb=0.06, efs_read_usd_per_gb=0.03
    ... )
    >>> cnn, resnet = 270_000 * 4, 11_227_812 * 2
    >>> for size in (cnn, resnet):
    ...     choose_store(
    ...         weights_bytes=size, result_bytes=size, workers=256,
    ...         mount=True, bucket=True, prices=prices,
    ...     )
    'inline'
    's3'
    """
    inline = InlineStore(limit_bytes=limit_bytes)
    in_reply = envelope_bytes(result_bytes + _FRAME_BYTES) <= limit_bytes
    if weights_bytes <= inline.most_bytes and in_reply:
        return "inline"
    if not (mount or bucket):
        rule = "must be true, one of them, for what does not fit a request or reply of"
        size = f"{max(weights_bytes, result_bytes)} bytes"
        remedy = "deploy with EFS or a bucket, or choose a narrower `payload`"
        raise ParameterError("mount or bucket", f"{rule} {limit_bytes} bytes", size, remedy)
    if not (mount and bucket):
        return "directory" if mount else "s3"
    stored = 0 if in_reply else workers
    s3_usd = prices.s3_usd(writes=1 + stored, reads=workers + stored)
    efs_usd = prices.efs_usd(
        written_bytes=weights_bytes + stored * result_bytes,
        read_bytes=workers * weights_bytes + stored * result_bytes,
    )
    return "directory" if efs_usd <= s3_usd else "s3"
