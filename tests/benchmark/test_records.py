import json
from dataclasses import fields
from pathlib import Path

import pytest

from generalizeformer.benchmark.records import Record, read, refusal, write
from generalizeformer.data.streams import Stream
from generalizeformer.errors import DataError

from .toys import record

LATER = ("order", "order_settings", "stream", "sources_before", "sources_after")
NEWEST = (
    "by_class",
    "calibration_error",
    "forwards",
    "backwards",
    "memory",
    "device",
    "commit",
    "source",
    "training",
)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    records = [
        record(settings={"learning_rate": 0.1, "guard": None}),
        record(method="tent", targets=("ä", "b"), by_target={"ä": 1.0, "b": 2.0}, run_seed=3),
        record(by_class={"ö": 3.0}, calibration_error=1.5, forwards=2.0, backwards=0.5, memory=7),
    ]
    path = tmp_path / "new" / "records.json"
    write(path, records)
    assert read(path) == records


@pytest.mark.parametrize("later", [NEWEST, LATER + NEWEST], ids=["passes", "orders"])
def test_records_written_before_a_field_was_there_still_read(
    tmp_path: Path, later: tuple[str, ...]
) -> None:
    path = tmp_path / "records.json"
    write(path, [record()])
    old = json.loads(path.read_text())
    for name in later:
        del old[0][name]
    path.write_text(json.dumps(old))
    (again,) = read(path)
    assert again == record()
    assert again.class_accuracy is None


def test_every_field_that_came_later_is_one_of_those() -> None:
    first = {"method", "targets", "batch_size", "seed", "run_seed", "images", "accuracy"}
    first |= {"by_target", "seconds", "settings"}
    assert {field.name for field in fields(Record)} == first | set(LATER) | set(NEWEST)


def test_the_accuracy_over_classes_is_their_mean() -> None:
    assert record(by_class={"cat": 100.0, "dog": 50.0}).class_accuracy == 75.0


def test_a_refusal_says_what_it_is_missing_from_in_the_words_of_the_records(
    tmp_path: Path,
) -> None:
    stream = Stream(("a", "b"), 3, 0, order="in_turn")
    refused = refusal("mine", stream, ValueError("two\nlines"))
    assert (refused.why, refused.stream) == ("two lines", stream.key())
    ran = record(order="in_turn", targets=("a", "b"), batch_size=3)
    assert refused.setting == ran.setting == "in_turn, 2 targets, batches of 3"
    write(tmp_path / "refused.json", [refused])
    assert json.loads((tmp_path / "refused.json").read_text())[0]["why"] == "two lines"


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.json"
    write(path, [record()])

    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", broken)
    with pytest.raises(OSError, match="disk full"):
        write(path, [record(), record()])
    monkeypatch.undo()
    assert read(path) == [record()]
    write(path, [])
    assert [p.name for p in tmp_path.iterdir()] == ["records.json"]


@pytest.mark.parametrize(
    "content", [b"", b"[{", b"3", b'{"a": 1}', b'[{"method": 3}]', b"\xff\xfe\x00", b"[3]"]
)
def test_what_is_no_record_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"no readable records .*; run `evaluate` again") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no readable records"):
        read(tmp_path / "nothing.json")


def test_a_record_says_which_column_it_belongs_to() -> None:
    assert record().setting == "single, batches of 20"
    assert record(targets=("a", "b"), batch_size=1).setting == "mixed, batches of 1"


def test_an_order_and_its_unusual_settings_are_part_of_the_column() -> None:
    usual = {"beta": 0.1, "minimum": 10, "shuffle_inside": False}
    assert record(order="dirichlet", order_settings=usual).setting == "dirichlet, batches of 20"
    other = record(order="dirichlet", order_settings=usual | {"beta": 1.0}, targets=("a", "b"))
    assert other.setting == "dirichlet (beta=1.0), 2 targets, batches of 20"
    assert record(order="in_turn").setting == "in_turn, batches of 20"
