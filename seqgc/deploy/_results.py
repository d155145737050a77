"""The copy of a run's folder to a bucket, from a master in a VPC that nobody can enter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seqgc._aws import open_client
from seqgc.deploy._aws import calls
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session


def upload_run(run: str | Path, location: str, *, session: Session) -> int:
    """Copy all files of a run to ``location``, for example ``s3://bucket/runs/results/run``.

    Objects that are already there are replaced. Return the number of files.

    Raises
    ------
    ParameterError
        If ``run`` is not the folder of a run, or ``location`` is not a folder in a bucket.
    DeployError
        If AWS returns an error.
    """
    run = Path(run)
    if not (run / "config.toml").is_file():
        raise ParameterError("run", "must be the folder of a run, with a config.toml", str(run))
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    if not location.startswith("s3://") or not bucket or not prefix.strip("/"):
        raise ParameterError("location", "must be like s3://BUCKET/runs/results/NAME", location)
    client = open_client(session, "s3")
    files = sorted(path for path in run.rglob("*") if path.is_file())
    with calls(f"copy {run} to {location}"):
        for path in files:
            key = f"{prefix.strip('/')}/{path.relative_to(run).as_posix()}"
            client.upload_file(str(path), bucket, key)
    return len(files)
