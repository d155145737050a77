"""``seqgc data put``, which copies the user's data sets to places where all workers find them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqgc.cli._help import Group, Verb
from seqgc.cli._options import AsJson, with_plugins
from seqgc.cli._show import show
from seqgc.config._names import require_unregistered
from seqgc.deploy import (
    DEPLOYMENT_FILE,
    copy_data,
    open_session,
    put_data,
    read_deployment,
    upload_data,
)
from seqgc.errors import ParameterError
from seqgc.stores import data_places

app = typer.Typer(cls=Group, help="Copy data sets to places where all workers find them by name.")


@app.callback()
def data() -> None:
    """Copy data sets to places where all workers find them by name."""


def put(
    name: Annotated[str, typer.Argument(help="Name of the data set. Models use data = NAME.")],
    path: Annotated[
        str, typer.Argument(help="Arrays x and y: .npz, .safetensors, or a folder of .npy files.")
    ],
    deployment: Annotated[
        Path | None,
        f"Copy to the bucket of this deployment. By default {DEPLOYMENT_FILE}, if it exists.",
    ] = None,
    mount: Annotated[
        str | None, "Copy to the file system of the functions, which is mounted in this folder."
    ] = None,
    replace: Annotated[bool, "--replace", "Replace existing data of this name."] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a data set to places that all workers can read."""
    require_unregistered(name)
    source = _named("path", path)
    mounted = None if mount is None else _named("mount", mount)
    place = Path(data_places()[0])
    if str(place).startswith("s3:"):
        rule = "must begin with a folder of this machine for `seqgc data put`"
        raise ParameterError("SEQGC_DATA", rule, str(place))
    if mounted is not None and not mounted.is_dir():
        raise ParameterError("mount", "must be a folder", mount)
    if deployment is None and Path(DEPLOYMENT_FILE).is_file():
        deployment = Path(DEPLOYMENT_FILE)
    deployed = None if deployment is None else read_deployment(deployment)
    if deployed is not None and mounted is not None and not deployed.has_vpc:
        rule = f"must be left out: the stack {deployed.stack} has no file system"
        raise ParameterError("mount", rule, mount, "its functions read data from the bucket")
    stored = put_data(name, source, place, replace=replace)
    places = [str(place / name)]
    if mounted is not None:
        places.append(copy_data(stored, mounted / "data", replace=replace))
    if deployed is not None:
        session = open_session(region=deployed.region)
        location = f"s3://{deployed.bucket}/data"
        places.append(upload_data(stored, location, session=session, replace=replace))
    arrays = {
        key: {"dtype": each.dtype, "shape": list(each.shape), "bytes": each.data_bytes}
        for key, each in stored.arrays.items()
    }
    facts = {"name": name, "digest": stored.digest, "arrays": arrays, "places": places}
    pairs = {key: f"{each.dtype} {each.shape}" for key, each in stored.arrays.items()}
    pairs |= {"places": "\n".join(places), "in a configuration": f'data = "{name}"'}
    show(facts, pairs, as_json=as_json, saved=True)


def _named(argument: str, path: str) -> Path:
    """Return a path; raise `ParameterError` if it is empty, because it would mean the folder ``.``.

    A path is empty if it comes from an unset variable of a shell.
    """
    if not path:
        raise ParameterError(argument, "must not be empty", path)
    return Path(path)


app.command(
    "put",
    cls=Verb,
    help="Copy a data set to places that all workers can read.",
)(with_plugins(put))
