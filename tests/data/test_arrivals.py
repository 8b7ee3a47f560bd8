from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.data.arrivals import load, save, stored
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.errors import DataError

STREAMS = [
    Stream(("a",), 4, 0),
    Stream(("a", "b"), 7, 3, limit=11),
    Stream(
        ("c@rotation:30", "a@gaussian_noise:3"), 4, 1, order="dirichlet", settings={"minimum": 2}
    ),
    Stream(("b",), 1, 5, order="recurring", settings={"visits": 2, "per_visit": 15}),
]


@pytest.fixture(scope="module")
def dataset() -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=3, classes=2, per_class=10, size=8))


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.order)
def test_a_stored_stream_is_replayed_without_a_draw(
    stream: Stream, dataset: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "stream.safetensors"
    save(path, stream, dataset)
    expected = list(stream.chunks(dataset, 1))

    def drawn(*_: Any) -> None:
        raise AssertionError("an order was drawn")

    monkeypatch.setattr(Stream, "arrivals", drawn)
    again = load(path)
    assert again.key() == stream.key()
    assert again.fields() == stream.fields()
    for one, other in zip(again.chunks(dataset, 1), expected, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.truth.labels, other.truth.labels)
        assert torch.equal(one.truth.domains, other.truth.domains)
    chunks = torch.cat([chunk.images for chunk in again.chunks(dataset, 9)])
    assert torch.equal(chunks, torch.cat([batch.images for batch in expected]))


def test_the_same_stream_is_the_same_file(dataset: DomainDataset, tmp_path: Path) -> None:
    for name in ("one", "other"):
        save(tmp_path / name, STREAMS[2], dataset)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def changed(domain: Domain, **changes: Any) -> Domain:
    fields = {"name": domain.name, "stored": domain.stored, "labels": domain.labels}
    return Domain(**(fields | changes))


def test_other_domains_than_its_own_do_not_matter(dataset: DomainDataset, tmp_path: Path) -> None:
    save(tmp_path / "stream", STREAMS[0], dataset)
    fewer = dataset.only(("c", "a"))
    assert torch.equal(load(tmp_path / "stream").arrivals(fewer), STREAMS[0].arrivals(dataset))


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ({"name": "z"}, "drawn from domain 'a' of 20 images, but synthetic has no such domain; re"),
        ({"labels": torch.zeros(20).long()}, "but synthetic has 20 other images, or the same in "),
        ("take", "drawn from domain 'a' of 20 images, but synthetic has 19 images; replay it on"),
    ],
)
def test_another_dataset_is_refused(
    domain: Any, message: str, dataset: DomainDataset, tmp_path: Path
) -> None:
    save(tmp_path / "stream", STREAMS[0], dataset)
    own = dataset["a"]
    other = own.take(torch.arange(19)) if domain == "take" else changed(own, **domain)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "stream").chunks(dataset.replaced([other]), 1)


@pytest.mark.parametrize("content", [None, b"", b"words", b"\x08\0\0\0\0\0\0\0{}      "])
def test_what_is_no_stored_stream_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "stream"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"no readable stored stream .*; save the st") as e:
        load(path)
    assert "\n" not in str(e.value)


def test_a_file_cut_short_is_one_clear_line(dataset: DomainDataset, tmp_path: Path) -> None:
    path = tmp_path / "stream"
    save(path, STREAMS[0], dataset)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match="no readable stored stream"):
        load(path)


def test_other_pixels_under_the_same_labels_are_refused(
    dataset: DomainDataset, tmp_path: Path
) -> None:
    save(tmp_path / "stream", STREAMS[0], dataset)
    own = dataset["a"]
    other = changed(own, stored=own.images ^ 1)
    with pytest.raises(DataError, match="has 20 other images, or the same in another order; repl"):
        load(tmp_path / "stream").chunks(dataset.replaced([other]), 1)


def test_images_with_files_are_known_by_their_names_at_any_size(
    dataset: DomainDataset, tmp_path: Path
) -> None:
    def named(names: list[str], size: int) -> DomainDataset:
        own = dataset["a"]
        stored = own.images[:, :, :size, :size]
        return dataset.replaced([changed(own, stored=stored, files=tuple(names))])

    names = [f"x/{number}" for number in range(19)] + ["x/\udce9"]
    save(tmp_path / "stream", STREAMS[0], named(names, 8))
    again = load(tmp_path / "stream")
    assert torch.equal(again.arrivals(named(names, 4)), again.rows)
    with pytest.raises(DataError, match="has 20 other images"):
        again.arrivals(named(names[::-1], 8))


def test_a_folder_stands_for_the_streams_in_it(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in "cab"]
    for file in (*files, tmp_path / "notes.txt"):
        file.touch()
    assert stored(tmp_path) == sorted(files)
    assert stored(files[0]) == [files[0]]


def test_a_folder_without_streams_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        DataError, match=r"no stored stream \(\*.safetensors\) in this folder; name"
    ):
        stored(tmp_path)
