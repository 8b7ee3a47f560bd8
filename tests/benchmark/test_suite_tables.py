"""What suites tell of records, from records made by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.benchmark import ablations, dynamic, several_targets, single_source, ways
from generalizeformer.benchmark.figures import SAME, interval_lines
from generalizeformer.benchmark.pages import benchmark_page, benchmark_sections
from generalizeformer.benchmark.records import Record

from .toys import record

BOTH = ("a@fog:3", "a@look:1")


def looked(method: str, words: tuple[str, ...], accuracy: float, **changes: Any) -> Record:
    scores = dict.fromkeys(words, accuracy)
    return record(method=method, targets=words, accuracy=accuracy, by_target=scores, **changes)


def of_looks(method: str, numbers: tuple[float, ...], seed: int) -> list[Record]:
    fog, look, mixed, changing = numbers
    return [
        looked(method, BOTH[:1], fog, run_seed=seed),
        looked(method, BOTH[1:], look, run_seed=seed),
        looked(method, BOTH, mixed, run_seed=seed),
        looked(method, BOTH, changing, run_seed=seed, order="in_turn"),
    ]


DYNAMIC = [
    *of_looks("source", (50.0, 60.0, 55.0, 55.0), 0),
    *of_looks("source", (60.0, 70.0, 65.0, 65.0), 1),
    *of_looks("tent", (70.0, 80.0, 60.0, 74.0), 0),
    *of_looks("tent", (70.0, 80.0, 64.0, 70.0), 1),
]


def test_what_mixing_and_changing_cost_is_paired_by_seed() -> None:
    (table,) = ways.tables(DYNAMIC, "t")
    assert table.title == "t, batches of 20"
    assert table.columns == (
        "method",
        "alone",
        "mixed",
        "changing",
        "alone − mixed",
        "alone − changing",
    )
    assert table.rows[0][1:] == (
        "60.0 ± 7.1",
        "60.0 ± 7.1",
        "60.0 ± 7.1",
        "+0.0 ± 0.0",
        "+0.0 ± 0.0",
    )
    assert table.rows[1][1:] == (
        "75.0 ± 0.0",
        "62.0 ± 2.8",
        "72.0 ± 2.8",
        "+13.0 ± 2.8",
        "+3.0 ± 2.8",
    )
    assert table.best == ((1, 1), (1, 2), (1, 3))  # to lose nothing is no merit of its own


def test_the_dynamic_summary_has_ways_losses_looks_and_targets() -> None:
    entry = dynamic.summary(DYNAMIC)["methods"]["tent"]["20"]
    assert entry == {
        "alone": 75.0,
        "mixed": 62.0,
        "changing": 72.0,
        "lost": {"mixed": 13.0, "changing": 3.0},
        "looks": {"fog:3": 70.0, "look:1": 80.0},
        "targets": {"a": {"alone": 75.0, "mixed": 62.0, "changing": 72.0}},
        "seeds": 2,
    }


def test_the_dynamic_page_shows_every_look_and_a_picture() -> None:
    first, looks, picture = dynamic.sections(DYNAMIC)
    assert first.table is not None
    assert looks.table is not None
    assert looks.table.columns == ("method", "fog:3", "look:1")
    assert looks.table.rows[1] == ("tent", "70.0 ± 0.0", "80.0 ± 0.0")
    assert picture.picture is not None
    assert picture.picture.startswith("<svg")
    titles = [f">{way}, batches of 20<" for way in ("alone", "mixed", "changing")]
    assert all(title in picture.picture for title in titles)  # the words of the tables


def test_the_picture_beside_a_page_is_that_of_the_page(tmp_path: Path) -> None:
    sections = dynamic.sections(DYNAMIC)
    benchmark_page(tmp_path / "page.html", "t", DYNAMIC, sections)
    assert (tmp_path / "accuracy.svg").read_text("utf-8") == sections[-1].picture
    benchmark_page(tmp_path / "page.html", "t", ABLATIONS, ablations.sections(ABLATIONS))
    assert (tmp_path / "accuracy.svg").read_text("utf-8").startswith("<svg")


SEVERAL = [
    looked(method, words, accuracy, sources_before={"c": 90.0}, sources_after={"c": kept})
    for method, kept, values in (
        ("source", 90.0, (50.0, 70.0, 61.0)),
        ("mirror", 80.0, (60.0, 80.0, 40.0)),
    )
    for words, accuracy in zip((("a",), ("b",), ("a", "b")), values, strict=True)
]


def test_several_targets_are_told_alone_and_mixed() -> None:
    (table,) = ways.tables(SEVERAL, "t")
    assert table.rows == (
        ("source", "60.0", "61.0", "–", "-1.0", "–"),
        ("mirror", "70.0", "40.0", "–", "+30.0", "–"),
    )
    assert several_targets.summary(SEVERAL)["methods"]["mirror"]["20"] == {
        "alone": 70.0,
        "mixed": 40.0,
        "lost": {"mixed": 30.0},
        "seeds": 1,
        "targets": {"a": 60.0, "b": 80.0},
        "sources_after": 80.0,
    }


def test_the_page_of_several_targets_shows_each_and_what_is_forgotten() -> None:
    first, each, picture, after, _ = several_targets.sections(SEVERAL)
    assert first.table is not None
    assert first.table.rows == ways.tables(SEVERAL, "t")[0].rows
    assert each.table is not None
    assert each.table.columns[1:4] == ("a", "b", "mean")
    assert each.table.rows[1][1:4] == ("60.0", "80.0", "70.0")
    assert picture.picture is not None
    assert after.table is not None
    assert after.table.rows == (("source", "90.0"), ("mirror", "80.0"))


@pytest.mark.parametrize(
    ("sections", "has_gains"),
    [
        (lambda: benchmark_sections(ABLATIONS), True),
        (lambda: single_source.sections(SINGLE), True),
        (lambda: several_targets.sections(SEVERAL), False),
        (lambda: ablations.sections(ABLATIONS), False),
    ],
)
def test_a_page_sends_readers_to_gains_where_it_has_a_section_of_them(
    sections: Any, has_gains: bool
) -> None:
    made = sections()
    sent = [
        place for place, part in enumerate(made) if "gain over them, further below" in part.text
    ]
    there = [place for place, part in enumerate(made) if part.title == "Gain over the source model"]
    assert bool(sent) == bool(there) == has_gains
    assert all(place < there[0] for place in sent)
    assert any("never marked as the best" in part.text for part in made)


@pytest.mark.parametrize(
    "sections",
    [
        lambda: benchmark_sections(SINGLE),
        lambda: single_source.sections(SINGLE),
        lambda: several_targets.sections(SEVERAL),
        lambda: dynamic.sections(DYNAMIC),
    ],
)
def test_pale_and_hatched_bars_are_explained_where_they_are_drawn(sections: Any) -> None:
    (bars,) = [part for part in sections() if part.title == SAME]
    assert bars.picture is not None
    assert "hatched: oracles; pale: methods of fewer trainings" in bars.text


def test_lines_over_batch_sizes_are_drawn_where_there_are_two() -> None:
    title, other = "Accuracy by batch size", [replace(r, batch_size=1) for r in ABLATIONS]
    assert title not in [part.title for part in benchmark_sections(ABLATIONS)]
    assert title in [part.title for part in benchmark_sections([*ABLATIONS, *other])]


def taught(method: str, source: str, target: str, accuracy: float, **changes: Any) -> Record:
    return record(
        method=method,
        targets=(target,),
        accuracy=accuracy,
        by_target={target: accuracy},
        stream=target,
        sources_before={source: 90.0},
        sources_after={source: 80.0},
        **changes,
    )


SINGLE = [
    taught("source", "a", "c", 40.0),
    taught("source", "a", "b", 60.0),
    taught("source", "b", "c", 20.0),
    taught("generalizeformer", "a", "c", 50.0),
    taught("generalizeformer", "a", "b", 50.0),
    taught("generalizeformer", "b", "c", 40.0),
]


def test_sources_are_told_apart_though_they_meet_the_same_stream() -> None:
    together, a, b = single_source.tables(SINGLE, "t")
    assert together.columns == ("method", "from a", "from b", "mean")
    assert together.rows == (
        ("source", "50.0", "20.0", "40.0"),
        ("generalizeformer", "50.0", "40.0", "46.7"),
    )
    assert (a.title, a.columns[:-2]) == ("t, batches of 20, from a", ("method", "c", "b", "mean"))
    assert [row[:-2] for row in b.rows] == [
        ("source", "20.0", "20.0"),
        ("generalizeformer", "40.0", "40.0"),
    ]
    gains = next(s.table for s in single_source.sections(SINGLE) if "Gain" in s.title)
    assert gains is not None
    assert gains.rows == (("generalizeformer", "+6.7"),)  # +10, -10 and +20


def test_one_source_needs_no_table_of_sources() -> None:
    (table,) = single_source.tables(SINGLE[:2], "t")
    assert table.columns == ("method", "c", "b", "mean", "ms / image", "trainings")


def test_a_method_that_lacks_a_source_or_a_target_has_no_mean() -> None:
    for lacking in (SINGLE[:-1], [*SINGLE[:4], *SINGLE[5:]]):
        assert list(single_source.summary(lacking)["methods"]) == ["source"]
        assert single_source.tables(lacking, "t")[0].rows[1][-1] == "–"


def test_a_seed_that_lacks_a_source_counts_for_the_others_only_on_the_page_and_in_the_summary() -> (
    None
):
    more = [taught("source", "a", target, 70.0, run_seed=1) for target in "cb"]
    entry = single_source.summary([*SINGLE, *more])["methods"]["source"]["20"]
    assert (entry["mean"], entry["seeds"]) == (40.0, 1)
    assert (entry["sources"]["a"]["mean"], entry["sources"]["a"]["seeds"]) == (60.0, 2)
    table, *_ = single_source.tables([*SINGLE, *more], "t")
    assert table.rows[0] == ("source", "60.0 ± 14.1", "20.0", "40.0")
    smaller = taught("source", "a", "c", 30.0, batch_size=1)  # a size that one source has
    told = single_source.summary([*SINGLE, smaller])["methods"]["source"]["1"]
    assert (told["mean"], list(told["sources"])) == (30.0, ["a"])


def test_a_seed_that_lacks_a_look_does_not_count() -> None:
    lacking = [r for r in DYNAMIC if (r.method, r.run_seed, r.accuracy) != ("tent", 1, 80.0)]
    entry = dynamic.summary(lacking)["methods"]["tent"]["20"]
    assert (entry["alone"], entry["mixed"], entry["seeds"]) == (75.0, 60.0, 1)
    assert entry["lost"] == {"mixed": 15.0, "changing": 1.0}
    assert ways.tables(lacking, "t")[0].rows[1][1:] == tuple(
        f"{cell} (1 of 2)" for cell in ("75.0", "60.0", "74.0", "+15.0", "+1.0")
    )


def test_a_look_under_fewer_targets_than_others_met_has_no_number_and_is_never_the_best() -> None:
    easy, hard = ("a@fog:3",), ("b@fog:3",)
    met = [looked("source", easy, 80.0), looked("source", hard, 20.0), looked("tent", easy, 90.0)]
    table = dynamic.sections(met)[1].table
    assert table is not None
    assert table.rows == (("source", "50.0"), ("tent", "–"))
    assert table.best == ((0, 1),)


def test_methods_of_which_none_is_whole_are_not_told() -> None:
    lacking = [SINGLE[0], SINGLE[4]]
    assert single_source.summary(lacking) == {"methods": {}}


def test_the_single_source_summary_has_the_main_shape_for_every_source() -> None:
    entry = single_source.summary(SINGLE)["methods"]["generalizeformer"]["20"]
    assert (entry["mean"], entry["seeds"]) == (pytest.approx(140 / 3), 1)
    assert entry["sources"]["a"] == {
        "mean": 50.0,
        "gain": 0.0,  # +10 and -10
        "targets": {"c": 50.0, "b": 50.0},
        "sources_after": 80.0,
        "milliseconds": 10.0,
        "seeds": 1,
    }


def ablated(method: str, accuracies: tuple[float, ...]) -> list[Record]:
    """Targets a and b, seeds 0 and 1."""
    pairs = [(target, seed) for seed in (0, 1) for target in "ab"]
    return [
        record(
            method=method,
            targets=(target,),
            by_target={target: accuracy},
            accuracy=accuracy,
            run_seed=seed,
            stream=target,
        )
        for (target, seed), accuracy in zip(pairs, accuracies, strict=True)
    ]


NAME = "generalizeformer_without_gradients"
ABLATIONS = [
    *ablated("source", (50.0, 60.0, 52.0, 62.0)),
    *ablated("generalizeformer", (60.0, 66.0, 62.0, 72.0)),
    *ablated(NAME, (59.0, 66.0, 60.0, 69.0)),
]


def test_an_ablation_has_its_gain_and_its_paired_difference() -> None:
    (table,) = ablations.tables(ABLATIONS, "t")
    assert table.rows == (
        ("source", "56.0 ± 1.4", "–", "–"),
        # Gains of seed 0: 10 and 6, of seed 1: 10 and 10; their means are 8 and 10.
        ("generalizeformer", "65.0 ± 2.8", "+9.0 ± 1.0", "–"),
        # Differences -1, 0, -2, -3: mean -1.5, deviation 1.291, and 3.182 for three degrees of freedom.
        (NAME, "63.5 ± 1.4", "+7.5 ± 0.0", "-1.5 (-3.6 to +0.6)"),
    )


def test_the_summary_of_ablations_adds_to_the_main_one() -> None:
    told = ablations.summary(ABLATIONS)["methods"]
    full, other = told["generalizeformer"]["20"], told[NAME]["20"]
    assert (full["mean"], full["gain"], full["gain_error"]) == (65.0, 9.0, 1.0)
    assert (full["difference"], full["interval"], full["pairs"]) == (None, None, 0)
    assert (other["difference"], other["pairs"]) == (-1.5, 4)
    assert other["interval"] == pytest.approx([-3.554, 0.554], abs=1e-3)


def test_one_pair_has_a_difference_and_no_interval() -> None:
    few = [r for r in ABLATIONS if (r.run_seed, r.targets) == (0, ("a",))]
    (table,) = ablations.tables(few, "t")
    assert table.rows[2][2:] == ("+9.0", "-1.0")
    assert ablations.sections(few)[0].picture is None


def test_an_ablation_of_fewer_trainings_than_others_says_so() -> None:
    fewer = [r for r in ABLATIONS if (r.method, r.run_seed) != (NAME, 1)]
    (table,) = ablations.tables(fewer, "t")
    assert [row[1] for row in table.rows] == ["56.0 ± 1.4", "65.0 ± 2.8", "62.5 (1 of 2)"]


def test_what_reads_as_nothing_has_no_minus() -> None:
    slightly = (59.98, 65.96, 61.98, 71.96)  # differences -0.02 and -0.04, so about -0.03
    less = [*ABLATIONS[:8], *ablated(NAME, slightly)]
    (table,) = ablations.tables(less, "t")
    assert table.rows[2][3] == "+0.0 (+0.0 to +0.0)"
    (table,) = ablations.tables(
        [*ablated("source", (60.0,) * 4), *ablated(NAME, (59.98,) * 4)], "t"
    )
    assert table.rows[1][2] == "+0.0 ± 0.0"


def test_an_ablation_alone_has_nothing_to_be_compared_with() -> None:
    (table,) = ablations.tables(ablated(NAME, (1.0, 2.0, 3.0, 4.0)), "t")
    assert table.rows == ((NAME, "2.5 ± 1.4", "–", "–"),)


def test_differences_are_drawn_with_their_names() -> None:
    picture = interval_lines({"<one>": (0.5, -1.0, 2.0), "other": (1.0, 0.5, 1.5)})
    assert "&lt;one&gt;" in picture
    assert "other" in picture
    sections = ablations.sections(ABLATIONS)
    assert sections[0].picture is not None
    assert NAME in sections[0].picture
