from generalizeformer.benchmark.tables import accuracy_table, by_target, seed_means

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
    assert table.rows == (("source", "60.0 ± 14.1", "10.00"), ("tent", "90.0", "10.00"))


def test_the_best_of_each_column_is_marked() -> None:
    other = [
        record(batch_size=1, accuracy=70.0),
        record(method="tent", batch_size=1, accuracy=20.0),
    ]
    assert accuracy_table(RECORDS + other, "").best == ((1, 1), (0, 2))


def test_what_reads_the_same_is_equally_good() -> None:
    tied = [record(accuracy=90.04), record(method="tent", accuracy=89.96), record(method="t3a")]
    table = accuracy_table(tied, "")
    assert [row[1] for row in table.rows] == ["90.0", "90.0", "50.0"]
    assert table.best == ((0, 1), (1, 1))


def test_what_was_not_run_is_a_dash() -> None:
    table = accuracy_table([*RECORDS, record(batch_size=1)], "")
    assert table.rows[1][2] == "–"
    assert table.best == ((1, 1), (0, 2))


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
