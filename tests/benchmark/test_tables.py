from generalizeformer.benchmark.records import Refusal
from generalizeformer.benchmark.tables import (
    accuracy_table,
    by_target,
    measures_table,
    refusal_table,
    seed_means,
)

from .toys import record

RECORDS = [
    record(accuracy=60.0, targets=("a",)),
    record(accuracy=80.0, targets=("b",)),
    record(accuracy=50.0, targets=("a",), run_seed=1),
    record(accuracy=50.0, targets=("b",), run_seed=1),
    record(method="tent", accuracy=90.0, targets=("a",)),
]


def test_a_seeds_number_is_the_mean_over_its_targets() -> None:
    assert seed_means(RECORDS, "source", "single, batches of 20") == [70.0, 50.0]


def test_a_cell_is_the_mean_and_spread_over_seeds() -> None:
    table = accuracy_table(RECORDS, "a title")
    assert table.title == "a title"
    assert table.columns == ("method", "single, batches of 20", "ms / image")
    assert table.rows == (("source", "60.0 ± 14.1", "10.00"), ("tent", "–", "10.00"))


def test_a_mean_over_fewer_targets_than_others_had_is_not_told() -> None:
    both = [*RECORDS, record(method="tent", accuracy=30.0, targets=("b",))]
    assert seed_means(RECORDS, "tent", "single, batches of 20") == []
    assert seed_means(both, "tent", "single, batches of 20") == [60.0]
    assert accuracy_table(RECORDS, "").best == ((0, 1),)


def test_the_best_of_each_column_is_marked() -> None:
    other = [
        record(batch_size=1, accuracy=70.0),
        record(method="tent", batch_size=1, accuracy=20.0),
    ]
    others = [*other, record(method="tent", accuracy=90.0, targets=("b",))]
    assert accuracy_table(RECORDS + others, "").best == ((1, 1), (0, 2))


def test_what_reads_the_same_is_equally_good() -> None:
    tied = [record(accuracy=90.04), record(method="tent", accuracy=89.96), record(method="t3a")]
    table = accuracy_table(tied, "")
    assert [row[1] for row in table.rows] == ["90.0", "90.0", "50.0"]
    assert table.best == ((0, 1), (1, 1))


def test_what_was_not_run_is_a_dash() -> None:
    table = accuracy_table([*RECORDS, record(batch_size=1)], "")
    assert table.rows[1][1:] == ("–", "–", "–")
    assert table.best == ((0, 1), (0, 2))


def test_time_is_per_image_over_all_streams() -> None:
    slow = record(seconds=0.9, images=40, batch_size=1)
    assert accuracy_table([record(), slow], "").rows[0][-1] == "20.00"


def test_targets_are_averaged_over_streams_and_seeds() -> None:
    records = [
        record(by_target={"a": 10.0}),
        record(by_target={"a": 30.0, "b": 5.0}, run_seed=1),
    ]
    assert by_target(records, "source", "single, batches of 20") == {"a": 20.0, "b": 5.0}


def test_the_same_records_give_the_same_table() -> None:
    assert accuracy_table(RECORDS, "") == accuracy_table(list(RECORDS), "")


MEASURED = [
    record(
        by_class={"x": 40.0, "y": 80.0},
        calibration_error=12.34,
        forwards=1.0,
        backwards=0.0,
        memory=3 * 2**20,
        sources_before={"b": 90.0, "c": 100.0},
        sources_after={"b": 80.0, "c": 90.0},
    ),
    record(method="tent", accuracy=60.0, by_class={"x": 60.0}, calibration_error=20.0),
    record(method="tent_oracle", accuracy=99.0, calibration_error=0.0),
]


def test_all_measures_of_a_method_are_one_row() -> None:
    table = measures_table(MEASURED, "a title")
    assert table.title == "a title"
    assert table.columns == (
        "method",
        "accuracy, %",
        "mean over classes, %",
        "calibration error, %",
        "ms / image",
        "forwards / image",
        "backwards / image",
        "peak MiB",
        "sources before, %",
        "sources after, %",
    )
    cells = ("50.0", "60.0", "12.3", "10.00", "1.00", "0.00", "3.0", "95.0", "85.0")
    assert table.rows[0] == ("source", *cells)
    assert table.rows[1] == ("tent", "60.0", "60.0", "20.0", "10.00", *["–"] * 5)


def test_the_best_is_high_accuracy_and_low_error_no_oracle_and_no_cost() -> None:
    assert set(measures_table(MEASURED, "").best) == {(1, 1), (0, 2), (1, 2), (0, 3), (0, 9)}


def test_what_nobody_measured_is_no_column() -> None:
    assert measures_table([record()], "").columns == ("method", "accuracy, %", "ms / image")


def test_measures_are_means_over_streams_then_over_seeds() -> None:
    costs = [(0, 1.0), (0, 3.0), (1, 4.0)]
    records = [record(run_seed=seed, forwards=cost) for seed, cost in costs]
    assert measures_table(records, "").rows[0][3] == "3.00 ± 1.41"


def test_who_could_not_take_part_is_a_row_with_the_reason() -> None:
    refused = [
        Refusal(method="mine", targets=(t,), setting=s, why=why)
        for t, s, why in [("a", "s", "x"), ("b", "s", "x"), ("b", "r", "x"), ("b", "r", "y")]
    ]
    table = refusal_table(refused, "")
    assert table.columns == ("method", "setting", "why")
    assert table.rows == (("mine", "s; r", "x"), ("mine", "r", "y"))
