"""What the committed records say, checked by a machine: the README's claims hold for them."""

from pathlib import Path
from statistics import mean

from generalizeformer.benchmark.records import read
from generalizeformer.benchmark.tables import accuracy_table, seed_means

ROOT = Path(__file__).parents[1]
RECORDS = read(ROOT / "results" / "demo" / "records.json")


def gain(batch: int) -> float:
    setting = f"single, batches of {batch}"
    ours, source = (seed_means(RECORDS, m, setting) for m in ("generalizeformer", "source"))
    assert len(ours) == len(source) == 3
    return mean(ours) - mean(source)


def test_the_demo_gains_in_batches_and_does_not_lose_on_single_images() -> None:
    assert gain(20) > 0
    assert gain(1) >= 0


def test_the_table_of_the_readme_is_that_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text()
    for method, *cells, _ in accuracy_table(RECORDS, "").rows:
        line = next(line for line in readme.splitlines() if line.startswith(f"| {method} "))
        assert [cell.strip(" *") for cell in line.split("|")[2:-1]] == cells


def test_ours_is_best_on_the_inner_angles_of_rotated_mnist() -> None:
    records = read(ROOT / "results" / "rotated_mnist" / "records.json")
    for setting in ("single, batches of 20", "mixed, batches of 20"):
        methods = ("source", "alpha_bn", "tent", "t3a", "generalizeformer")
        seeds = {method: seed_means(records, method, setting) for method in methods}
        assert {len(values) for values in seeds.values()} == {3}
        means = {method: mean(values) for method, values in seeds.items()}
        assert max(means, key=means.__getitem__) == "generalizeformer"
