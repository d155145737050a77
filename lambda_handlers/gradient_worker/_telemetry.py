"""Logs and metrics of invocations, in the formats of CloudWatch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from seqgc.errors import ParameterError
from seqgc.worker import Report, StayReport

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Telemetry"]

_SERVICE = os.environ.get("POWERTOOLS_SERVICE_NAME", "gradient-worker")  # the name of the stack
_NAMESPACE = "seqgc"


class Telemetry:
    """A printer of one log line and one line of metrics (EMF) for each invocation.

    If ``trace``, it also records X-Ray segments. Log lines contain ``run``, ``round``, ``worker``
    and ``attempt``. Run and worker are not dimensions of the metrics, because AWS charges for each
    of their values as for a separate metric.

    Raises
    ------
    ParameterError
        If ``trace`` is true and the image lacks X-Ray's SDK.
    """

    def __init__(self, *, trace: bool) -> None:
        self._logger: Final = Logger(service=_SERVICE)
        self._metrics: Final = Metrics(namespace=_NAMESPACE, service=_SERVICE)
        self._segment: Callable[[], AbstractContextManager[object]] = nullcontext
        self._cold = True
        if trace:
            self._segment = _segments()

    @contextmanager
    def invocation(self, context: object) -> Iterator[Callable[[Report], None]]:
        """Yield a function that logs a report. If the block raises, log the exception instead."""
        cold, self._cold = self._cold, False
        request = getattr(context, "aws_request_id", "")
        try:
            with self._segment():
                yield lambda report: self._log(report, request=request, cold=cold)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._logger.error("refused", request=request, reason=reason, cold_start=cold)
            self._count(cold=cold, refused=True)
            raise

    def _log(self, report: Report, *, request: str, cold: bool) -> None:
        if isinstance(report, StayReport):
            self._logger.info(
                "stayed",
                run=report.run_id,
                worker=report.worker,
                request=request,
                reason=report.reason,
                cold_start=cold,
                tasks=report.tasks,
                failures=report.failures,
                stayed_s=round(report.stayed_s, 6),
            )
            self._metrics.add_metric("StayTime", MetricUnit.Seconds, report.stayed_s)
            self._count(cold=cold, failed=bool(report.failures))
            return
        write = self._logger.warning if report.failure else self._logger.info
        write(
            "failed" if report.failure else "answered",
            run=report.run_id,
            round=report.round,
            worker=report.worker,
            attempt=report.attempt,
            request=request,
            reason=report.failure,
            cold_start=cold,
            warm=report.warm,
            compute_s=round(report.compute_s, 6),
            received_bytes=report.received_bytes,
            sent_bytes=report.sent_bytes,
            stored_bytes=report.stored_bytes,
        )
        self._metrics.add_metric("ComputeTime", MetricUnit.Seconds, report.compute_s)
        for name, size in (
            ("Received", report.received_bytes),
            ("Sent", report.sent_bytes),
            ("Stored", report.stored_bytes),
        ):
            self._metrics.add_metric(name, MetricUnit.Bytes, size)
        self._count(cold=cold, failed=bool(report.failure))

    def _count(self, *, cold: bool, failed: bool = False, refused: bool = False) -> None:
        """Count an invocation, and print its metrics. CloudWatch reads the printed line."""
        for name, happened in (("ColdStart", cold), ("Failed", failed), ("Refused", refused)):
            self._metrics.add_metric(name, MetricUnit.Count, int(happened))
        self._metrics.flush_metrics()


def _segments() -> Callable[[], AbstractContextManager[object]]:
    """Return a function that opens an X-Ray subsegment for an invocation."""
    from aws_lambda_powertools import Tracer

    try:
        # `auto_patch` would import every library that it patches.
        tracer = Tracer(service=_SERVICE, auto_patch=False)
    except ImportError as error:
        remedy = "add aws-lambda-powertools[tracer] to the image's requirements"
        rule = f"must be off in an image without X-Ray's SDK ({error})"
        raise ParameterError("SEQGC_TRACE", rule, "1", remedy) from error
    return lambda: tracer.provider.in_subsegment(name="## answer")
