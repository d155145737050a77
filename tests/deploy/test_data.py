"""`seqgc data put`: from files to data sets that workers map or fetch. The bucket is moto's."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from seqgc.cli import main
from seqgc.deploy import DeployError, put_data, upload_data
from seqgc.errors import ParameterError, SkewError, StoreError
from seqgc.models.compute import TorchComputeFactory
from seqgc.models.datasets import StoredPoints
from seqgc.models.factories import (
    make_models_compute,
    named_data,
    register_data,
    registered_model,
    workload_of,
)
from seqgc.models.problems import digits
from seqgc.models.provenance import describe_data
from seqgc.stores import find_data
from seqgc.workers import FunctionSettings, functions, lambda_local
from tests.deploy.kit import REGION
from tests.kit import system_calls

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQGC_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def sources(folder: Path) -> dict[str, Path]:
    """The same points in every form that is taken."""
    np.savez(folder / "plain.npz", x=X, y=Y, x_test=X[:2], y_test=Y[:2])
    np.savez_compressed(folder / "small.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    tensors = {"x": X, "y": Y, "x_test": X[:2].copy(), "y_test": Y[:2].copy()}
    save_file(tensors, folder / "points.safetensors")
    (folder / "arrays").mkdir()
    np.save(folder / "arrays/x.npy", np.asfortranarray(X.astype(">f4")))
    for name in ("y", "x_test", "y_test"):
        np.save(folder / f"arrays/{name}.npy", tensors[name])
    return {
        name: folder / name for name in ("plain.npz", "small.npz", "points.safetensors", "arrays")
    }


def test_every_form_becomes_the_same_data_set(place: Path, tmp_path: Path) -> None:
    found = {put_data("mine", path, place).digest for path in sources(tmp_path).values()}
    assert len(found) == 1
    train, test = named_data("mine")
    assert isinstance(train, StoredPoints)
    assert torch.equal(train.tensors[0], torch.from_numpy(X))
    assert train.tensors[1].tolist() == Y.tolist()
    assert train.tensors[1].dtype == torch.int64  # what losses take
    assert (len(train), len(test)) == (6, 2)


def test_points_are_mapped_and_sent_by_name(place: Path, tmp_path: Path) -> None:
    put_data("mine", sources(tmp_path)["plain.npz"], place)
    train, _ = named_data("mine")
    assert describe_data(train) == f"6 points {train.digest}"  # type: ignore[attr-defined]
    assert "tensors" not in vars(train)  # nothing has been read
    stored = find_data("mine")
    assert stored is not None
    assert isinstance(stored.read("x"), np.memmap)
    sent = pickle.dumps(train)
    assert X.tobytes() not in sent
    again = pickle.loads(sent)
    assert torch.equal(again.tensors[0], torch.from_numpy(X))
    put_data("mine", other(tmp_path), place, replace=True)
    assert torch.equal(pickle.loads(sent).tensors[0], torch.from_numpy(X))  # for a run under way
    put_data("mine", other(tmp_path, 2), place, replace=True)
    with pytest.raises(ParameterError, match=r"`data` must be .*; got 'mine'"):
        pickle.loads(sent)


def other(folder: Path, add: int = 1) -> Path:
    np.savez(folder / "other.npz", x=X + add, y=Y)
    return folder / "other.npz"


def test_other_data_of_a_name_are_refused_unless_they_are_to_replace_it(
    place: Path, tmp_path: Path
) -> None:
    before = put_data("mine", sources(tmp_path)["plain.npz"], place)
    (place / "mine" / before.file).unlink()  # a version of seqgc that knew no such file
    assert find_data("mine", digest=before.digest) is not None
    files = set((place / "mine").iterdir())
    with pytest.raises(ParameterError, match=r"`name` must be new: .* has other data"):
        put_data("mine", other(tmp_path), place)
    assert set((place / "mine").iterdir()) == files
    assert put_data("mine", other(tmp_path), place, replace=True).digest != before.digest
    assert files < set((place / "mine").iterdir())  # of the one before all: it may be in use
    assert find_data("mine", digest="0" * 64) is None
    assert float(named_data("mine")[0].tensors[0][0, 0]) == 1.0  # type: ignore[attr-defined]
    kept = find_data("mine", digest=before.digest)
    assert kept is not None
    assert kept.read("x").tolist() == X.tolist()
    for _ in range(2):  # the second time nothing is replaced
        put_data("mine", other(tmp_path, 2), place, replace=True)
        assert find_data("mine", digest=before.digest) is None
        # What the last two say, `data.json`, and an x each: they have y in common.
        assert len(list((place / "mine").iterdir())) == 6
    with pytest.raises(ParameterError, match="has other data"):
        put_data("mine", other(tmp_path), place)  # it has an x that the one before needs
    put_data("mine", other(tmp_path), place, replace=True)
    now = find_data("mine")
    assert now is not None
    was = find_data("mine", digest=now.before)
    assert was is not None
    assert [float(each.read("x")[0, 0]) for each in (now, was)] == [1.0, 2.0]


def test_what_fails_once_the_new_data_are_meant_leaves_them_there(
    place: Path, tmp_path: Path
) -> None:
    """The folder cannot be synced after ``data.json`` has its name: nothing may be taken back."""
    put_data("mine", sources(tmp_path)["plain.npz"], place)
    renamed: list[str] = []

    class Disk:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def replace(self, source: Path, target: Path) -> None:
            source.replace(target)
            renamed.append(target.name)

        def fsync(self, _: int) -> None:
            if renamed[-1:] == ["data.json"]:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    with system_calls(Disk()), pytest.raises(OSError, match="Input/output"):
        put_data("mine", other(tmp_path), place, replace=True)
    now = find_data("mine")
    assert now is not None
    assert float(now.read("x")[0, 0]) == 1.0


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X}, "must have x and y"),
        ({"x": X, "y": Y, "z": Y}, "z"),
        ({"x": X, "y": Y, "x_train": X}, "x_train"),
        ({"x": X, "y": Y[:5]}, "as many rows in x as in y"),
        ({"x": X[:0], "y": Y[:0]}, "at least one"),
        ({"x": X, "y": Y, "x_test": X}, "must have x and y"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "in x_test as in x"),
        ({"x": X, "y": np.array(["a"] * 6)}, "an array of numbers; got <U1"),
        ({"x": X, "y": np.array([{}] * 6)}, "an array of numbers; got object"),
        ({"x": X, "y": np.float32(1)}, "one data point in each row"),
    ],
)
def test_what_is_no_data_set_leaves_nothing(
    place: Path, tmp_path: Path, arrays: dict[str, Any], says: str, capsys: Any
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    assert main(["data", "put", "mine", str(tmp_path / "bad.npz")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `path` must have")
    assert says in line
    assert not place.exists()


def promising(shape: tuple[int, ...]) -> bytes:
    """An .npy file of a few numbers whose header says another shape."""
    file = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + X.tobytes()


@pytest.mark.parametrize("shape", [(-20, 4), (100_000_000_000,), (-2, -6)])
@pytest.mark.parametrize("source", ["folder", "archive.npz"])
def test_no_more_numbers_are_read_than_there_are(
    place: Path, tmp_path: Path, source: str, shape: tuple[int, ...], capsys: Any
) -> None:
    if source == "folder":
        (tmp_path / source).mkdir()
        (tmp_path / source / "x.npy").write_bytes(promising(shape))
    else:
        with ZipFile(tmp_path / source, "w") as archive:
            archive.writestr("x.npy", promising(shape))
    assert main(["data", "put", "mine", source]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `path` must have x and y")
    assert "too few for float32" in line
    assert not place.exists()


@pytest.mark.parametrize("name", ["folder/x.npy", "x.npz", "x.safetensors"])
def test_a_pipe_is_not_waited_for(place: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / name)
    assert main(["data", "put", "mine", name.split("/", maxsplit=1)[0]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "it is not a regular file" in line
    assert not place.exists()


@pytest.mark.parametrize("name", ["plain.npz", "points.safetensors"])
def test_what_takes_a_files_name_while_it_is_read_is_not_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, opened = sources(tmp_path)[name], os.open

    def swapping(given: Any, *rest: Any, **folder: Any) -> int:
        descriptor = opened(given, *rest, **folder)
        if given == path:
            path.unlink()
            path.write_bytes(b"another")
        return descriptor

    monkeypatch.setattr(os, "open", swapping)
    put_data("mine", path, place)
    assert path.read_bytes() == b"another", "it was swapped"
    assert len(named_data("mine")[0]) == len(X)


@pytest.mark.parametrize("data", [b"PK\3\4", b"", b"\x93NUMPY"])
def test_a_damaged_archive_is_one_line(
    place: Path, tmp_path: Path, data: bytes, capsys: Any
) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    assert main(["data", "put", "mine", "x.npz"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `path` must have x and y")
    assert not place.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["../x", "plain.npz"], "`name` must be 1 to 64 letters"),
        (["mine", "none.npz"], "`path` must have x and y"),
        (["mine", "data.pkl"], "`path` must have x and y"),
        (["mine", "plain.npz", "--mount", "none"], "`mount` must be a folder"),
        (["mine", "plain.npz", "--mount", ""], "`mount` must not be empty; got ''"),
        (["mine", ""], "`path` must not be empty; got ''"),
        (["digits", "plain.npz"], "`name` must be a new name: models would use the registered"),
        (["mine", "plain.npz", "--deployment", "none"], "`deployment` must be a file"),
    ],
)
def test_what_cannot_be_put_is_one_line(
    place: Path, tmp_path: Path, words: list[str], says: str, capsys: Any
) -> None:
    sources(tmp_path)
    (tmp_path / "data.pkl").write_bytes(pickle.dumps(X))
    assert main(["data", "put", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"seqgc: {says}")
    assert not place.exists()


def test_data_that_a_module_has_registered_are_not_put_under_its_name(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    register_data("put-nowhere")(digits)
    sources(tmp_path)
    assert main(["data", "put", "put-nowhere", "plain.npz"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `name` must be a new name: models would use the registered data")
    assert not place.exists()


def test_the_verb_copies_to_the_file_system_too(place: Path, tmp_path: Path, capsys: Any) -> None:
    sources(tmp_path)
    (tmp_path / "efs").mkdir()
    words = ["data", "put", "mine", "plain.npz", "--mount", "efs", "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["places"] == [str(place / "mine"), "efs/data/mine"]
    assert said["arrays"]["y"] == {"dtype": "<i8", "shape": [6], "bytes": 48}
    there, here = find_data("mine", ["efs/data"]), find_data("mine")
    assert there is not None
    assert here is not None
    assert there.digest == here.digest == said["digest"]
    assert there.read("x").tolist() == X.tolist()
    assert {path.stat().st_mode & 0o444 for path in Path("efs/data/mine").iterdir()} == {0o444}


def test_from_the_bucket_what_is_needed_is_fetched_and_compared(
    account: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = account.client("s3")
    client.create_bucket(Bucket="b-1", CreateBucketConfiguration={"LocationConstraint": REGION})
    stored = put_data("mine", sources(tmp_path)["plain.npz"], place)
    assert upload_data(stored, "s3://b-1/data", session=account) == "s3://b-1/data/mine"
    there = find_data("mine", [str(tmp_path), "s3://b-1/data"], client=lambda: client)
    assert there is not None
    assert (there.digest, there.mapped) == (stored.digest, False)
    assert there.read("x").tolist() == X.tolist()
    with monkeypatch.context() as blind:  # the bucket goes after it was looked at
        blind.setattr("seqgc.deploy._data.find_data", lambda *_, **__: None)
        with pytest.raises(DeployError, match=r"cannot copy .* to s3://none-1/data"):
            upload_data(stored, "s3://none-1/data", session=account)
    changed = put_data("mine", other(tmp_path), place, replace=True)
    with pytest.raises(ParameterError, match=r"s3://b-1/data has other data"):
        upload_data(changed, "s3://b-1/data", session=account)
    upload_data(changed, "s3://b-1/data", session=account, replace=True)
    keys = {each["Key"] for each in client.list_objects_v2(Bucket="b-1")["Contents"]}
    assert keys == {f"data/mine/{path.name}" for path in (place / "mine").iterdir()}
    assert there.read("x").tolist() == X.tolist()  # for a run under way
    begun = find_data("mine", ["s3://b-1/data"], digest=there.digest, client=lambda: client)
    assert begun is not None
    changed = put_data("mine", other(tmp_path, 2), place, replace=True)
    upload_data(changed, "s3://b-1/data", session=account, replace=True)
    keys = {each["Key"] for each in client.list_objects_v2(Bucket="b-1")["Contents"]}
    assert keys == {f"data/mine/{path.name}" for path in (place / "mine").iterdir()}
    with pytest.raises(StoreError, match="cannot be read"):
        begun.read("x")  # it has gone
    key = f"data/mine/{changed.arrays['x'].file}"
    client.put_object(Bucket="b-1", Key=key, Body=b"x" * 176)
    now = find_data("mine", ["s3://b-1/data"], client=lambda: client)
    assert now is not None
    with pytest.raises(StoreError, match="digest"):
        now.read("x")


def model(data: str = "mine") -> Any:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    return registered_model("a", module="mlp", data=data, optimizer=sgd)


def test_functions_and_processes_read_the_same_points(place: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=np.ones((4, 1, 8, 8)), y=Y[:4])
    put_data("mine", tmp_path / "images.npz", place)
    trained = model()
    told = workload_of([trained], precision="float32").settings
    threads = torch.get_num_threads()
    try:
        for add in (0, 1):  # of the second a run that is under way sees nothing
            np.savez(tmp_path / "images.npz", x=np.full((4, 1, 8, 8), 1.0 + add), y=Y[:4])
            put_data("mine", tmp_path / "images.npz", place, replace=True)
            computed = make_models_compute(told, lambda _: np.ones(1))
            points = computed._local["a"].objective.dataset
            assert isinstance(points, StoredPoints)
            assert float(points.tensors[0].max()) == 1.0
        put_data("mine", other(tmp_path), place, replace=True)
        with pytest.raises(SkewError, match=r"differs from its master: data mine \(master 4"):
            make_models_compute(told, lambda _: np.ones(1))
    finally:
        torch.set_num_threads(threads)
    from seqgc.stores import MemoryStore

    factory = TorchComputeFactory(models=[trained], store=MemoryStore())
    assert np.ones((4, 1, 8, 8)).tobytes() not in pickle.dumps(factory)


def test_what_a_function_cannot_hold_is_refused_before_anything_starts(
    place: Path, tmp_path: Path
) -> None:
    from seqgc import TrainingPlan

    rows = np.zeros((1 << 12, 1, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "images.npz", x=rows, y=np.zeros(1 << 12, dtype=np.int64))
    put_data("mine", tmp_path / "images.npz", place)
    plan = TrainingPlan(models=[model()], scheme="uncoded", steps=1)
    local = lambda_local(2, FunctionSettings(memory_mb=202))  # mapped from the folder
    local.forecast(plan)
    with pytest.raises(
        ParameterError, match=r"`function.memory_mb` must be at least 201 MB \(PyTo"
    ):
        lambda_local(2, FunctionSettings(memory_mb=128)).forecast(plan)
    not_deployed = functions(2, FunctionSettings(deployment=str(tmp_path / "d.toml")))
    write(tmp_path / "d.toml", memory_mb=256)
    not_deployed.forecast(plan)
    large = np.zeros((1 << 16, 1, 16, 16), dtype=np.float32)  # 64 MiB
    np.savez(tmp_path / "large.npz", x=large, y=np.zeros(1 << 16, dtype=np.int64))
    put_data("large", tmp_path / "large.npz", place)
    more = TrainingPlan(models=[model("large")], scheme="uncoded", steps=1)
    with pytest.raises(ParameterError, match=r"data 65,.*--mount` the data on the functions' f"):
        not_deployed.forecast(more)


def write(path: Path, *, memory_mb: int) -> None:
    from seqgc.deploy import Deployment, write_deployment

    arn = "arn:aws:lambda:eu-central-1:123456789012:function:seqgc-ImageWorker-x:live"
    values = dict.fromkeys(
        ["file_system_id", "access_point_id", "security_group_id", "caller_policy_arn",
         "store_policy_arn"], "x",
    )  # fmt: skip
    deployment = Deployment(
        stack="s", region="eu-central-1", alias_arn=arn, bucket="b", prefix="runs",
        reaches_s3=True, mount_path="/mnt/seqgc", architecture="arm64", memory_mb=memory_mb,
        timeout_s=60, **values,
    )  # fmt: skip
    write_deployment(path, deployment)


def test_data_are_put_on_no_file_system_that_functions_do_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mounted").mkdir()
    write(tmp_path / "seqgc-lambda.toml", memory_mb=256)
    text = Path("seqgc-lambda.toml").read_text()
    for name in ("mount_path", "file_system_id", "access_point_id", "security_group_id"):
        text = re.sub(f'{name} = ".*"', f'{name} = ""', text)
    Path("seqgc-lambda.toml").write_text(text)
    assert main(["data", "put", "a", "a.npz", "--mount", "mounted"]) == 2
    assert "`mount` must be left out: the stack s has no file system" in capsys.readouterr().err


def test_functions_without_ones_modules_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqgc import TrainingPlan

    (tmp_path / "seqgc_nets.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path / "d.toml", memory_mb=2560)
    trained = registered_model(
        "a", module="seqgc_nets:net", optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
    )
    plan = TrainingPlan(models=[trained], scheme="uncoded", steps=1)
    deployed = functions(2, FunctionSettings(deployment=str(tmp_path / "d.toml")))
    with pytest.raises(
        ParameterError, match=r"deployed with the functions; got 'seqgc_nets' \(seqg"
    ):
        deployed.forecast(plan)
    lambda_local(2).forecast(plan)  # they list what the models name
