"""Which published version of the functions a run is held to.

`seqgc deploy` publishes a version of the function and lets the alias mean it; earlier ones stay.
A run asks once what the alias means, invokes that version alone, and records it: whatever is
deployed meanwhile, its functions have the code that it began with, and so have those of the master
that resumes it. Where that cannot be (the version has been deleted, the stack is another one, or
functions now have another memory or time-out, by which costs and waits are reckoned) the run is
refused, unless it is to go on with what is deployed now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from seqgc._aws import open_client
from seqgc.deploy._aws import calls, client_config
from seqgc.deploy._deployment import Deployment
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["current_version", "pin_version"]

_ASK: Final = "see `seqgc doctor`"


def current_version(client: Any, deployment: Deployment) -> str:
    """Return the ARN of the version that the alias means now; raises what botocore raises."""
    alias = client.get_alias(FunctionName=deployment.function_name, Name=deployment.alias)
    return f"{deployment.function_arn}:{alias['FunctionVersion']}"


def pin_version(
    deployment: Deployment, *, session: Session, before: Mapping[str, str]
) -> dict[str, str]:
    """Return what a run records: the ``version`` that it is held to, by its ARN, and its setup.

    It is the one of ``before``, which the run has recorded, or else the alias's.

    Raises
    ------
    ParameterError
        If the run cannot go on with what it has recorded.
    DeployError
        If AWS does not tell.
    """
    setup = {"memory_mb": str(deployment.memory_mb), "timeout_s": str(deployment.timeout_s)}
    try:
        client = open_client(session, "lambda", config=client_config())
    except ValueError as error:  # boto3's own, of what is configured
        raise ParameterError("endpoint_url", f"must be a URL ({error})", None) from None
    with calls("ask for the functions' published version", remedy=_ASK):
        if not before:
            return {"version": current_version(client, deployment), **setup}
        wrong = _wrong(client, deployment, before=before, setup=setup)
    if wrong:
        rule = f"must go on with the functions that it began with: {wrong}"
        remedy = "--accept-changes goes on with those that are deployed now"
        raise ParameterError("run", rule, before["version"], remedy)
    return dict(before)


def _wrong(
    client: Any, deployment: Deployment, *, before: Mapping[str, str], setup: Mapping[str, str]
) -> str:
    """Return why a run cannot go on with the version that it began with; empty if it can."""
    version = before["version"]
    if version.rpartition(":")[0] != deployment.function_arn:
        return f"deployed is another one, {deployment.function_arn}"
    if changed := [f"{k} was {before[k]}, is {setup[k]}" for k in setup if before[k] != setup[k]]:
        return f"deployed otherwise since, {', '.join(changed)}"
    try:  # who may invoke it may ask so; nothing is run
        client.invoke(FunctionName=version, InvocationType="DryRun")
    except client.exceptions.ResourceNotFoundException:
        return "that version has been deleted"
    return ""
