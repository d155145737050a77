"""What the experiments read: IDX files, CIFAR's binary files, and what they refuse."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.mnist_cnn.factories import FILES, mnist
from experiments.mnist_cnn.idx import read_idx, write_idx
from experiments.mnist_cnn.run import make_up as make_up_digits
from experiments.resnet18_cifar.factories import cifar100, resnet18
from experiments.resnet18_cifar.run import make_up as make_up_images
from seqgc.errors import ParameterError
from seqgc.schemes import Uncoded
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchWorkload, make_module

# The header as the format's description has it: two images of 2 x 3 unsigned bytes.
LITERAL = bytes.fromhex("00000803 00000002 00000002 00000003") + bytes(range(12))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQGC_DATA", str(tmp_path))
    return tmp_path


def test_an_idx_file_is_read_as_its_description_says(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(LITERAL)
    images = read_idx(path, dimensions=3)
    assert images.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    packed = tmp_path / "images.gz"
    packed.write_bytes(gzip.compress(LITERAL))
    np.testing.assert_array_equal(read_idx(packed, dimensions=3), images)
    write_idx(tmp_path / "again", images)
    assert (tmp_path / "again").read_bytes() == LITERAL


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "must be IDX"),
        (LITERAL[:10], "must be IDX"),
        (LITERAL.replace(b"\x08\x03", b"\x0d\x03"), "must be IDX"),  # floats
        (LITERAL.replace(b"\x08\x03", b"\x08\x01"), "must be IDX"),
        (LITERAL[:-1], "must hold the 12 bytes that its header says"),
        (LITERAL + b"x", "must hold the 12 bytes that its header says"),
        (LITERAL[:4] + b"\xff" * 12, "must hold 1 to 1073741824 bytes"),
        (LITERAL[:4] + bytes(12), "must hold 1 to 1073741824 bytes"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path: Path, content: bytes, rule: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(ParameterError, match=rule):
        read_idx(path, dimensions=3)


def test_what_is_missing_is_told_with_what_to_do(data: Path) -> None:
    with pytest.raises(
        ParameterError, match=r"`data` must be in .*experiments\.mnist_cnn\.fetch FOLDER"
    ):
        mnist()
    with pytest.raises(ParameterError, match=r"`data` must be a file .*set SEQGC_DATA"):
        cifar100()
    assert list(data.iterdir()) == []


def test_made_up_digits_are_read_as_mnist_is(data: Path) -> None:
    make_up_digits(data, sizes={"train": 30, "test": 7})
    train, test = mnist()
    assert (len(train), len(test)) == (30, 7)
    x, y = train[0]
    assert (x.shape, x.dtype, y.dtype) == ((1, 28, 28), torch.float32, torch.int64)
    pixels = read_idx(data / FILES["train"][0], dimensions=3)
    torch.testing.assert_close(x[0] * 255, torch.from_numpy(pixels[0].astype(np.float32)))
    assert make_module("paper-cnn", seed=0)(x[None]).shape == (1, 10)


def test_images_without_their_labels_are_refused(data: Path) -> None:
    make_up_digits(data, sizes={"train": 30, "test": 7})
    write_idx(data / FILES["test"][1], np.zeros(6, np.uint8))
    with pytest.raises(ParameterError, match="as many 28 x 28 images as labels 0 to 9"):
        mnist()


def test_made_up_images_are_read_as_cifar_is(data: Path) -> None:
    make_up_images(data)
    train, test = cifar100()
    assert (len(train), len(test)) == (48, 8)
    x, y = train[5]
    row = np.fromfile(data / "train.bin", np.uint8).reshape(48, 3074)[5]
    assert int(y) == row[1]
    assert x.shape == (3, 32, 32)
    assert x[2, 0, 1] == pytest.approx(row[2 + 2 * 1024 + 1] / 127.5 - 1)


def test_a_cut_file_of_images_is_refused(data: Path) -> None:
    make_up_images(data)
    path = data / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ParameterError, match="must be images of 3074 bytes"):
        cifar100()


def test_the_network_is_the_paper_s_in_size_and_sound_for_coding(data: Path) -> None:
    make_up_images(data)
    train, _ = cifar100()
    module = resnet18(0)
    assert sum(p.numel() for p in module.parameters()) == 11_227_812
    model = Model(
        name="resnet",
        module=module,
        loss=torch.nn.CrossEntropyLoss(),
        dataset=train,
        optimizer=torch.optim.SGD,
        batch_size=4,
    )
    TorchWorkload([model], scheme=Uncoded(n=1), store=MemoryStore())  # no batch statistics
    assert module(train[0][0][None]).shape == (1, 100)
