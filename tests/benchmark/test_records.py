import json
from pathlib import Path

import pytest

from generalizeformer.benchmark.records import read, write
from generalizeformer.errors import DataError

from .toys import record


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    records = [
        record(settings={"learning_rate": 0.1, "guard": None}),
        record(method="tent", targets=("ä", "b"), by_target={"ä": 1.0, "b": 2.0}, run_seed=3),
    ]
    path = tmp_path / "new" / "records.json"
    write(path, records)
    assert read(path) == records


def test_records_written_before_orders_and_sources_still_read(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    write(path, [record()])
    old = json.loads(path.read_text())
    for name in ("order", "order_settings", "stream", "sources_before", "sources_after"):
        del old[0][name]
    path.write_text(json.dumps(old))
    assert read(path) == [record()]


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
