import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.data.storage import idx

PLAIN = "{half}-{kind}-idx{n}-ubyte"
DOTTED = "{half}-{kind}.idx{n}-ubyte"


def content(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(folder: Path, name: str = PLAIN, count: int = 3, packed: bool = False) -> None:
    """All four files, each half with its own images; t10k has one more."""
    folder.mkdir(parents=True, exist_ok=True)
    for half, size in (("train", count), ("t10k", count + 1)):
        images = np.arange(size * 6).reshape(size, 2, 3) + (half == "t10k")
        for kind, array in (("images", images), ("labels", np.arange(size) % 10)):
            file = folder / name.format(half=half, kind=kind, n=array.ndim)
            if packed:
                file.with_name(file.name + ".gz").write_bytes(gzip.compress(content(array)))
            else:
                file.write_bytes(content(array))


@pytest.mark.parametrize("name", [PLAIN, DOTTED])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", [".", "MNIST/raw"])
def test_the_files_are_found_and_read_under_any_of_their_names(
    tmp_path: Path, name: str, packed: bool, below: str
) -> None:
    write(tmp_path / below, name, packed=packed)
    files = idx.find(tmp_path)
    assert set(files) == set(idx.PARTS)
    images, labels = idx.read(files, "train")
    assert images.shape == (3, 1, 2, 3)
    assert images.flatten().tolist() == list(range(18))
    assert labels.tolist() == [0, 1, 2]
    images, labels = idx.read(files, "t10k")
    assert images.flatten().tolist() == list(range(1, 25))
    assert labels.tolist() == [0, 1, 2, 3]


def test_of_a_file_and_its_packed_copy_the_unpacked_one_is_read(tmp_path: Path) -> None:
    write(tmp_path, packed=True)
    write(tmp_path)
    assert not [path for path in idx.find(tmp_path).values() if path.suffix == ".gz"]


def test_packing_is_known_by_content_and_not_by_name(tmp_path: Path) -> None:
    array, file = np.arange(5), tmp_path / "t10k-labels-idx1-ubyte"
    file.write_bytes(gzip.compress(content(array)))
    assert idx.read_array(file, 1).tolist() == array.tolist()
    named = tmp_path / "t10k-labels-idx1-ubyte.gz"
    named.write_bytes(content(array))
    assert idx.read_array(named, 1).tolist() == array.tolist()


def test_folders_without_the_four_files_are_refused_by_what_they_lack(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="away: no such folder"):
        idx.find(tmp_path / "away")
    (tmp_path / "my-train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(ValueError, match="no idx files in it or below; they are named like train-"):
        idx.find(tmp_path)
    write(tmp_path / "raw")
    (tmp_path / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="raw: t10k-labels not there; all four"):
        idx.find(tmp_path)


def test_two_sets_below_one_root_are_refused(tmp_path: Path) -> None:
    """torchvision puts MNIST and Fashion-MNIST side by side: a guess could be the wrong one."""
    write(tmp_path / "MNIST" / "raw")
    write(tmp_path / "FashionMNIST" / "raw")
    with pytest.raises(
        ValueError, match=r"several folders hold idx files: .*FashionMNIST/raw, .*MNIST"
    ):
        idx.find(tmp_path)
    assert idx.find(tmp_path / "MNIST")["train-images"].parent == tmp_path / "MNIST" / "raw"


def test_images_without_their_labels_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(content(np.zeros(2)))
    with pytest.raises(ValueError, match="3 images, but 2 labels in train-labels-idx1-ubyte"):
        idx.read(idx.find(tmp_path), "train")


@settings(deadline=None, max_examples=25)
@given(shape=st.lists(st.integers(0, 4), min_size=1, max_size=3), seed=st.integers(0, 9))
def test_what_is_written_is_read(shape: list[int], seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape)
    read = idx.parse(content(array), len(shape), Path("file"))
    assert read.tolist() == array.tolist()


@settings(deadline=None, max_examples=25)
@given(length=st.integers(0, 16 + 24 - 1))
def test_content_cut_anywhere_is_refused(length: int) -> None:
    whole = content(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"file: .*; fetch the file again"):
        idx.parse(whole[:length], 3, Path("file"))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            b"",
            "starts with nothing, but an idx file of bytes in 1 dimension.s. starts with 00000801",
        ),
        (b"<html>", "starts with 3c68746d, but"),
        (content(np.ones((2, 2, 2))), "starts with 00000803, but"),
        (content(np.ones(4))[:7], "ends inside its header"),
        (content(np.ones(4)) + b"x", "has 5 bytes after its header, but 4 need 4"),
        (content(np.ones(4))[:-1], "has 3 bytes after its header, but 4 need 4"),
        (
            gzip.compress(content(np.ones(4)), mtime=0)[:-9],
            "cannot be read .*; fetch the file again",
        ),
        (b"\x1f\x8b" + bytes(30), "cannot be read .*; fetch the file again"),
    ],
)
def test_files_that_are_not_what_they_should_be_are_refused(
    tmp_path: Path, broken: bytes, message: str
) -> None:
    file = tmp_path / "train-labels-idx1-ubyte"
    file.write_bytes(broken)
    with pytest.raises(ValueError, match=f"train-labels-idx1-ubyte: {message}"):
        idx.read_array(file, 1)
