"""The told numbers, from records made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.benchmark.pages import benchmark_page
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.summary import choices_table, summary, write
from generalizeformer.benchmark.tables import (
    accuracy_table,
    gain_table,
    sources_table,
    target_table,
)

from .toys import record


def one(method: str, target: str, accuracy: float, **changes: Any) -> Record:
    size = changes.get("batch_size", 20)
    given: dict[str, Any] = {
        "method": method,
        "targets": (target,),
        "accuracy": accuracy,
        "by_target": {target: accuracy},
        "stream": f"{target}{size}",
    }
    return record(**(given | changes))


RECORDS = [
    one("source", "a", 60.0, sources_after={"b": 90.0, "c": 80.0}),
    one("source", "a", 70.0, run_seed=1, sources_after={"b": 88.0, "c": 82.0}),
    one("source", "b", 40.0, sources_after={"a": 95.0, "c": 85.0}),
    one("source", "b", 40.0, run_seed=1, sources_after={"a": 95.0, "c": 85.0}),
    one("alpha_bn_oracle", "a", 99.0, settings={"batch_weight": 0.5}),
    one("alpha_bn", "a", 62.0, settings={"batch_weight": 0.1}),
    one("alpha_bn", "a", 74.0, run_seed=1, settings={"batch_weight": 0.3}),
    one("alpha_bn", "b", 41.0, settings={"batch_weight": 0.3}),
    one("source", "a", 60.0, batch_size=1),
    one("alpha_bn", "a", 59.0, batch_size=1, settings={"batch_weight": 0.0}),
]


def test_the_summary_has_the_means_over_seeds_then_targets() -> None:
    source = summary(RECORDS)["methods"]["source"]
    assert source["20"] == {
        "mean": 52.5,
        "gain": 0.0,
        "targets": {"a": 65.0, "b": 40.0},
        "sources_after": 87.5,
        "milliseconds": 10.0,
        "seeds": 2,
    }
    assert source["1"] == {
        "mean": 60.0,
        "gain": 0.0,
        "targets": {"a": 60.0},
        "sources_after": None,
        "milliseconds": 10.0,
        "seeds": 1,
    }


def test_only_seeds_with_all_targets_count() -> None:
    told = summary(RECORDS)["methods"]
    entry = told["alpha_bn"]["20"]
    assert entry["targets"] == {"a": 62.0, "b": 41.0}  # not seed 1, which lacks b
    assert (entry["mean"], entry["gain"], entry["seeds"]) == (51.5, 1.5, 1)  # of seed 0's source
    assert "alpha_bn_oracle" not in told  # no seed has both


def test_oracles_keep_their_mark_and_come_last() -> None:
    whole = [one("alpha_bn_oracle", "b", 99.0), *RECORDS]
    assert list(summary(whole)["methods"]) == ["source", "alpha_bn", "alpha_bn_oracle"]
    for table in (accuracy_table(RECORDS, ""), target_table(RECORDS, 20, "")):
        assert [row[0] for row in table.rows] == ["source", "alpha_bn", "alpha_bn_oracle"]
        assert all(row != 2 for row, _ in table.best)  # though its number is the highest


def test_mixed_streams_are_no_part_of_it() -> None:
    mixed = one("source", "a", 0.0, targets=("a", "b"), by_target={"a": 0.0, "b": 0.0})
    assert summary([*RECORDS, mixed]) == summary(RECORDS)
    assert target_table([*RECORDS, mixed], 20, "") == target_table(RECORDS, 20, "")


def test_the_file_is_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.json"
    write(path, RECORDS)
    assert json.loads(path.read_text("utf-8")) == summary(RECORDS)


def test_a_row_has_every_target_and_the_spread_over_seeds() -> None:
    table = target_table(RECORDS, 20, "a title")
    assert table.title == "a title"
    assert table.columns == ("method", "a", "b", "mean", "ms / image", "trainings")
    assert table.rows[0] == ("source", "65.0 ± 7.1", "40.0 ± 0.0", "52.5 ± 3.5", "10.00", "2")
    assert table.rows[2] == ("alpha_bn_oracle", "99.0", "–", "–", "10.00", "0")
    assert table.rows[1] == ("alpha_bn", "62.0", "41.0", "51.5", "10.00", "1")
    assert table.best == ((0, 1), (0, 2), (0, 3))  # not those of one training


def test_a_gain_is_over_the_source_on_the_same_stream_and_training() -> None:
    table = gain_table(RECORDS, "")
    assert table.columns == ("method", "batches of 1", "batches of 20")
    # Seed 0: +2 and +1; seed 1 lacks a target.
    assert table.rows[0] == ("alpha_bn", "-1.0", "+1.5")
    assert table.rows[1] == ("alpha_bn_oracle", "–", "–")


def test_without_a_source_there_is_no_gain() -> None:
    (row,) = gain_table([one("generalizeformer_paper", "a", 50.0)], "").rows
    assert row == ("generalizeformer_paper", "–")


def test_sources_afterwards_are_a_mean_over_domains_and_targets() -> None:
    rows = {row[0]: row[1:] for row in sources_table(RECORDS, "").rows}
    assert rows["source"] == ("–", "87.5 ± 0.0")
    assert rows["alpha_bn"] == ("–", "–")


def test_the_chosen_settings_are_counted_for_searched_methods_only() -> None:
    table = choices_table(RECORDS, "")
    assert table.columns == ("method", "batches of 1", "batches of 20")
    assert table.rows == (
        (
            "alpha_bn",
            "batch_weight=0.0 (1 of 1)",
            "batch_weight=0.3 (2 of 3); batch_weight=0.1 (1 of 3)",
        ),
        ("alpha_bn_oracle", "–", "batch_weight=0.5 (1 of 1)"),
    )


def test_a_setting_that_an_older_record_does_not_know_is_a_dash() -> None:
    table = choices_table([one("alpha_bn", "a", 50.0)], "")
    assert table.rows == (("alpha_bn", "batch_weight=– (1 of 1)"),)


def test_the_page_has_all_tables_two_pictures_and_names_the_oracles(tmp_path: Path) -> None:
    benchmark_page(tmp_path / "page.html", "PACS & more", RECORDS)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert text.count("<svg") == 2
    assert text.count("<table>") == 5  # two batch sizes, gains, sources, settings
    assert "<title>PACS &amp; more</title>" in text
    assert (
        "Oracles: alpha_bn_oracle. Their settings were picked with the target&#39;s labels" in text
    )
    benchmark_page(tmp_path / "again.html", "PACS & more", list(RECORDS))
    assert (tmp_path / "again.html").read_text("utf-8") == text


def test_a_page_without_oracles_says_so(tmp_path: Path) -> None:
    benchmark_page(tmp_path / "page.html", "t", [one("source", "a", 50.0)])
    assert "No number here is an oracle&#39;s." in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("order", [RECORDS, RECORDS[::-1]])
def test_the_numbers_do_not_depend_on_the_order_of_the_records(order: list[Record]) -> None:
    assert summary(order) == summary(RECORDS)
    assert sorted(gain_table(order, "").rows) == sorted(gain_table(RECORDS, "").rows)
