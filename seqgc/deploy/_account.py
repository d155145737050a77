"""Checks of the account: who asks, where, at what time, and how much may run at once."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

from seqgc.deploy._check import Finding, Patient

__all__ = ["clock", "concurrency", "credentials", "quota", "region"]

CLOCK_LIMIT_S: Final = 300.0  # SigV4 refuses a signature that is older, or younger
CONCURRENCY_QUOTA: Final = "L-B99A9384"  # Lambda's "Concurrent executions"


def credentials(patient: Patient) -> str:
    """Whose credentials these are; that AWS takes them."""
    return str(patient.client("sts").get_caller_identity()["Arn"])


def region(patient: Patient) -> str:
    """Whether Lambda is there, and that it is where the functions are."""
    known = patient.session.get_available_regions("lambda")
    own = str(patient.session.region_name)
    if known and patient.region not in known:
        detail = f"botocore knows no Lambda in {patient.region!r}"
        raise Finding(detail, remedy="pip install --upgrade boto3, or see --region")
    if patient.region != own:
        detail = f"the functions are in {patient.region}, this session is in {own}"
        raise Finding(detail, remedy=f"export AWS_REGION={patient.region}")
    return patient.region


def clock(patient: Patient) -> str:
    """Whether this machine's clock is within what signatures allow for of AWS's."""
    from botocore.exceptions import ClientError

    try:
        answer: dict[str, Any] = patient.client("sts").get_caller_identity()
    except ClientError as error:  # a refusal has a date too; a wrong clock may be its cause
        answer = dict(error.response)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if "date" not in headers:
        raise Finding("the answer has no date", status="skipped")
    theirs = parsedate_to_datetime(headers["date"])
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    ahead_s = patient.now() - theirs.timestamp()
    detail = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} AWS"
    if abs(ahead_s) >= CLOCK_LIMIT_S:
        detail += f"; signatures allow {CLOCK_LIMIT_S:.0f} s"
        raise Finding(detail, remedy="sudo timedatectl set-ntp true")
    return detail


def concurrency(patient: Patient) -> str:
    """Whether as many invocations may run at a time as there are workers."""
    client, wanted = patient.client("lambda"), patient.workers
    limits = client.get_account_settings()["AccountLimit"]
    if deployment := patient.deployment:
        own = client.get_function_concurrency(FunctionName=deployment.function_name)
        if (reserved := own.get("ReservedConcurrentExecutions")) is not None:
            detail = f"{reserved} reserved for the function, {wanted} workers"
            if reserved < wanted:
                raise Finding(detail, remedy=f"seqgc deploy --reserved-concurrency {wanted}")
            return detail
    free = int(limits["UnreservedConcurrentExecutions"])
    detail = f"{free} unreserved of {limits['ConcurrentExecutions']}, {wanted} workers"
    return _enough(free, patient, detail)


def quota(patient: Patient) -> str:
    """Whether the quota on concurrent executions is what the workers need."""
    answer = patient.client("service-quotas").get_service_quota(
        ServiceCode="lambda", QuotaCode=CONCURRENCY_QUOTA
    )
    value = float(answer["Quota"]["Value"])
    return _enough(value, patient, f"{value:.0f} concurrent executions, {patient.workers} workers")


def _enough(concurrent: float, patient: Patient, detail: str) -> str:
    """Refuse less than the workers need; AWS is to keep 100 for what is not reserved."""
    if concurrent < patient.workers:
        request = (
            "aws service-quotas request-service-quota-increase --service-code lambda "
            f"--quota-code {CONCURRENCY_QUOTA} --desired-value {max(1000, patient.workers + 100)} "
            f"--region {patient.region}"
        )
        raise Finding(detail, remedy=request)
    return detail
