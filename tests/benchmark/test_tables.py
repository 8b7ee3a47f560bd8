import pytest

from generalizeformer.benchmark.records import Refusal
from generalizeformer.benchmark.summary import summary
from generalizeformer.benchmark.tables import (
    accuracy_table,
    by_target,
    gain_table,
    measures_table,
    refusal_table,
    seed_means,
    sources_table,
    target_table,
)
from generalizeformer.benchmark.ways import tables as ways_tables

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
    others += [record(method="tent", targets=(t,), accuracy=80.0, run_seed=1) for t in "ab"]
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
    record(
        method="tent",
        accuracy=60.0,
        by_class={"x": 60.0},
        calibration_error=20.0,
        sources_before={"b": 90.0, "c": 100.0},
    ),
    record(
        method="tent_oracle",
        accuracy=99.0,
        calibration_error=0.0,
        sources_before={"b": 90.0, "c": 100.0},
    ),
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
    assert table.rows[1] == ("tent", "60.0", "60.0", "20.0", "10.00", *["–"] * 3, "95.0", "–")


def test_the_best_is_high_accuracy_and_low_error_no_oracle_and_no_cost() -> None:
    assert set(measures_table(MEASURED, "").best) == {(1, 1), (0, 2), (1, 2), (0, 3), (0, 9)}


def test_what_nobody_measured_is_no_column() -> None:
    assert measures_table([record()], "").columns == ("method", "accuracy, %", "ms / image")


def test_measures_are_means_over_streams_then_over_seeds() -> None:
    costs = [(0, 1.0), (0, 3.0), (1, 4.0)]
    records = [record(run_seed=seed, forwards=cost) for seed, cost in costs]
    assert measures_table(records, "").rows[0][3] == "3.00 ± 1.41"


def test_measures_over_fewer_targets_are_not_told_beside_others_and_never_the_best() -> None:
    easy, hard = (record(targets=(t,), accuracy=a) for t, a in (("easy", 90.0), ("hard", 30.0)))
    refused_the_hard_one = record(method="tent", targets=("easy",), accuracy=100.0)
    table = measures_table([easy, hard, refused_the_hard_one], "")
    assert table.rows == (("source", "60.0", "10.00"), ("tent", "–", "–"))
    assert table.best == ((0, 1),)


THREE = [
    record(
        method=method,
        run_seed=seed,
        accuracy=accuracy + seed,
        stream="s",
        sources_before={"b": 80.0},
        sources_after={"b": accuracy},
    )
    for method, seeds, accuracy in (("source", 3, 50.0), ("ours", 3, 84.0), ("tent", 1, 89.0))
    for seed in range(seeds)
]


def test_a_mean_over_fewer_trainings_says_so_and_is_never_the_best() -> None:
    accuracies, gains = accuracy_table(THREE, ""), gain_table(THREE, "")
    assert [row[1] for row in accuracies.rows] == ["51.0 ± 1.0", "85.0 ± 1.0", "89.0 (1 of 3)"]
    assert [row[1] for row in gains.rows] == ["+34.0 ± 0.0", "+39.0 (1 of 3)"]
    afterwards = sources_table(THREE, "")
    assert afterwards.rows[2] == ("tent", "89.0 (1 of 3)")
    assert measures_table(THREE, "").rows[2][1] == "89.0 (1 of 3)"
    (ways,) = ways_tables(THREE, "")
    assert ways.rows[2][1] == "89.0 (1 of 3)"
    for table in (accuracies, afterwards, ways, measures_table(THREE, "")):
        assert (1, 1) in table.best
        assert (2, 1) not in table.best
    assert gains.best == ((0, 1),)


def test_where_the_trainings_are_counted_cells_do_not_repeat_it() -> None:
    table = target_table(THREE, 20, "")
    assert table.rows[2] == ("tent", "89.0", "89.0", "10.00", "1")
    assert table.best == ((1, 1), (1, 2))


def test_the_cells_of_a_row_are_of_the_same_trainings() -> None:
    """A mean that is not that of the targets beside it would be read as one."""
    met = {"source": ("ab", "ab"), "tent": ("ab", "a"), "sar": ("a", "")}
    met_by = [
        record(method=method, targets=(target,), run_seed=seed, accuracy=50.0 + 30 * seed)
        for method, seeds in met.items()
        for seed, targets in enumerate(seeds)
        for target in targets
    ]
    table = target_table(met_by, 20, "")
    assert table.rows[0][1:4] == ("65.0 ± 21.2", "65.0 ± 21.2", "65.0 ± 21.2")
    assert table.rows[1][1:4] == ("50.0", "50.0", "50.0")  # seed 1 lacks b
    assert table.rows[2][1:4] == ("50.0", "–", "–")  # nowhere did it meet all


@pytest.mark.parametrize("method", ["source", "tent"])
def test_a_seed_that_lacks_a_target_is_no_whole_training_though_no_method_met_more_in_it(
    method: str,
) -> None:
    hard = [record(method=method, targets=(t,), accuracy=40.0, stream=t) for t in "abcd"]
    easy = [
        record(method=method, targets=("a",), accuracy=90.0, run_seed=seed, stream="a")
        for seed in (1, 2)
    ]
    rows = [
        accuracy_table([*hard, *easy], "").rows[0][1],
        target_table([*hard, *easy], 20, "").rows[0][5],
        measures_table([*hard, *easy], "").rows[0][1],
    ]
    assert rows == ["40.0"] * 3
    told = summary([*hard, *easy])["methods"][method]["20"]
    assert (told["mean"], told["seeds"]) == (40.0, 1)


def test_who_could_not_take_part_is_a_row_with_the_reason() -> None:
    refused = [
        Refusal(method="mine", targets=(t,), setting=s, why=why)
        for t, s, why in [("a", "s", "x"), ("b", "s", "x"), ("b", "r", "x"), ("b", "r", "y")]
    ]
    table = refusal_table(refused, "")
    assert table.columns == ("method", "setting", "why")
    assert table.rows == (("mine", "s; r", "x"), ("mine", "r", "y"))
