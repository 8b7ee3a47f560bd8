"""Cells: names, keys, what a benchmark is made of, and cells as files."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.benchmark import store
from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.plans import recipes
from generalizeformer.benchmark.records import Refusal
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import PAPER as PAPER_MODEL
from generalizeformer.errors import DataError, UserError
from generalizeformer.imaging.augmentation import recipe as augmentation
from generalizeformer.training._paper import PAPER_PHI, PAPER_RECIPE

from .lab import MAIN, PAPER, cells, domains
from .toys import record

CELL = cells()[0]
CHANGES: dict[str, Any] = {
    "dataset": "other",
    "target": "b",
    "seed": 1,
    "training": "generalizeformer_paper",
    "recipe": CELL.recipe | {"stay": 0.5},
    "backbone": "digits",
    "pretrained": True,
    "preprocessing": Preprocessing(size=8),
    "batch_sizes": (4, 8),
    "limit": 5,
    "selection_limit": 5,
    "protocol": "outer",
    "dataset_settings": {"drop_error": "true"},
    "precision": "bf16-mixed",
    "suite": "dynamic",
    "methods": ("lame",),
    "looks": ("fog:3", "rotation:30"),
    "targets": ("a", "b"),
    "sources": ("c",),
    "classes_apart": "labels",
    "pooled": True,
}


def test_every_setting_of_a_cell_is_in_its_key() -> None:
    assert CHANGES.keys() == asdict(CELL).keys()
    keys = {replace(CELL, **{name: value}).key() for name, value in CHANGES.items()}
    assert len(keys | {CELL.key()}) == len(CHANGES) + 1
    assert cells()[0].key() == CELL.key()


def test_a_setting_that_older_records_do_not_know_renames_only_what_it_changes() -> None:
    generator = dict(CELL.recipe["model"]["generator"])
    assert generator.pop("variation") > 0

    def with_generator(**settings: Any) -> Cell:
        model = CELL.recipe["model"] | {"generator": generator | settings}
        return replace(CELL, recipe=CELL.recipe | {"model": model})

    assert with_generator().key() == with_generator(variation=0).key()
    assert len({with_generator(variation=n).key() for n in (0, 8, 32)}) == 3


def test_a_setting_that_is_gone_renames_nothing_and_is_read_where_it_did_nothing() -> None:
    def with_sureness(value: float) -> Cell:
        meta = CELL.recipe["meta"] | {"sureness": value}
        return replace(CELL, recipe=CELL.recipe | {"meta": meta})

    older = with_sureness(0.0)
    assert older.key() == CELL.key() != with_sureness(10.0).key()
    assert older.full_recipe() == CELL.full_recipe()
    with pytest.raises(UserError, match=r"no setting 'meta\.sureness'"):
        with_sureness(10.0).full_recipe()


def test_a_model_is_kept_when_only_its_evaluation_changes() -> None:
    same = {n for n, v in CHANGES.items() if replace(CELL, **{n: v}).model_name == CELL.model_name}
    assert same == {"batch_sizes", "methods", "limit", "selection_limit", "suite", "looks"}


def of_source(**changes: Any) -> Cell:
    """A cell of the source model alone, with another recipe."""
    recipe = CELL.recipe | changes
    return replace(CELL, recipe=recipe).source_model


def test_a_source_model_is_another_when_what_it_learns_from_changes() -> None:
    changes: dict[str, Any] = {
        "erm": CELL.recipe["erm"] | {"steps": 7},
        "validation": 0.3,
        "division": "domainbed",
        "seed": 5,
    }
    made = [of_source(), *(of_source(**{name: value}) for name, value in changes.items())]
    assert len({cell.basis() for cell in made}) == len(made)
    assert len({cell.model_name for cell in made}) == len(made)


def test_records_of_a_source_model_stay_when_phi_changes() -> None:
    model, meta = CELL.recipe["model"], CELL.recipe["meta"]
    kept = [
        of_source(model=model | {"kin": None, "mean": "probabilities"}),
        of_source(meta=meta | {"steps": 3}),
        of_source(stay=0.5, episodes="looks", calibration=3, also={"itta": {}}),
    ]
    assert {cell.key() for cell in kept} == {of_source().key()}
    named = of_source(model=model | {"selection": model["selection"] | {"classifier": "head"}})
    assert named.basis() != of_source().basis()  # methods start from another layer's features


def test_what_lies_beside_a_cell_is_of_the_same_source_model(tmp_path: Path) -> None:
    paper = replace(CELL, training="generalizeformer_paper", recipe=CELL.recipe | {"stay": 0.5})
    longer = replace(CELL, recipe=CELL.recipe | {"erm": CELL.recipe["erm"] | {"steps": 7}})
    for cell in (CELL, paper, CELL.source_model, longer, replace(CELL, seed=10)):
        store.write(tmp_path, store.Stored(cell=cell))
    here = {"generalizeformer", "generalizeformer_paper", "source"}
    for cell in (CELL, paper, CELL.source_model):
        found = store.beside(tmp_path, cell)
        assert {s.cell.training for s in found} == here
        assert len(found) == 3


def test_what_differs_in_places_and_seed_only_is_of_one_kind(tmp_path: Path) -> None:
    of_a_kind = {n for n, v in CHANGES.items() if replace(CELL, **{n: v}).kind() == CELL.kind()}
    assert of_a_kind == {"batch_sizes", "methods", "target", "sources", "seed"}
    (_, other), (third, *_) = cells(seeds=(0, 1)), cells(targets=("c",), seeds=(2,))
    for cell in (CELL, other, third, replace(other, limit=7)):
        store.write(tmp_path, store.Stored(cell=cell))
    assert store.alike(tmp_path, [CELL], "abc") == [other, third]
    assert store.alike(tmp_path, [CELL, other], "abc") == [third]
    assert store.alike(tmp_path, [CELL], "ab") == [other]  # the same settings, other images


def test_cells_of_several_targets_are_told_together_with_other_seeds_only(tmp_path: Path) -> None:
    met = replace(CELL, target="a+b", targets=("a", "b"), sources=("c",))
    others: dict[str, dict[str, Any]] = {
        "targets": {"target": "a+c", "targets": ("a", "c"), "sources": ("b",)},
        "sources": {"sources": ("c", "d")},
        "seed": {"seed": 1, "recipe": CELL.recipe | {"seed": 1}},
    }
    made = {name: replace(met, **changes) for name, changes in others.items()}
    for cell in made.values():
        store.write(tmp_path, store.Stored(cell=cell))
    assert store.alike(tmp_path, [met], "abcd") == [made["seed"]]


def test_a_model_of_named_sources_is_the_same_for_every_target() -> None:
    one = replace(CELL, sources=("c",))
    assert one.name == "a-from-c-seed-0-generalizeformer"
    assert one.model_name.startswith("from-c-seed-0-generalizeformer-")
    assert replace(one, target="b").model_name == one.model_name
    assert replace(one, target="b").name != one.name
    assert replace(one, sources=("b",)).model_name != one.model_name


def test_names_are_readable_file_names() -> None:
    assert CELL.name == "a-seed-0-generalizeformer"
    odd = replace(CELL, target="../a b/ü")
    assert odd.name == "..%2Fa%20b%2F%C3%BC-seed-0-generalizeformer"
    assert odd.model_name.startswith(f"{odd.name}-")


@pytest.mark.parametrize("length", [9, 21, 22, 25, 28, 40, 200])
def test_long_names_are_still_file_names_and_found_beside_each_other(
    tmp_path: Path, length: int
) -> None:
    long = replace(CELL, target="写" * length, sources=("ü" * length, "c"))
    paper = replace(long, training="generalizeformer_without_telling_apart")
    other = replace(long, target="写" * length + "写")
    for cell in (long, paper, other, long.source_model):
        store.write(tmp_path, store.Stored(cell=cell))
        assert store.read(tmp_path, cell) == store.Stored(cell=cell)
        (tmp_path / cell.model_name).mkdir(exist_ok=True)
    assert len({cell.name for cell in (long, paper, other)}) == 3
    assert len(store.beside(tmp_path, paper)) == 3
    assert long.name.endswith("-generalizeformer")


def test_a_benchmark_is_every_seed_target_and_training_once() -> None:
    both = ("generalizeformer", "generalizeformer_paper")
    made = cells(seeds=(3, 1, 3), targets=("c", "a"), trainings=both)
    assert [(c.seed, c.target, c.training) for c in made] == [
        (seed, target, training) for seed in (3, 1) for target in ("c", "a") for training in both
    ]
    assert all(cell.full_recipe().seed == cell.seed for cell in made)
    assert len({cell.name for cell in made}) == len(made)
    assert [cell.target for cell in cells(targets=())] == ["a", "b", "c"]
    assert cells(batch_sizes=(5, 3, 5))[0].batch_sizes == (5, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, "seeds: none was given; give at least one, such as 0"),
        ({"batch_sizes": ()}, "batch sizes: none was given; give at least one, such as 20"),
        ({"trainings": ()}, "trainings: none was given; .* such as generalizeformer"),
        (
            {"trainings": ("erm",)},
            "trainings: there is no 'erm'; choose from: source, generalizeformer, generali",
        ),
        ({"targets": ("z",)}, "synthetic: there is no domain 'z'; it has: a, b, c"),
        (
            {"domains": domains(1), "targets": ()},
            r"synthetic: it has one domain \('a'\), and leaving it out leaves nothing to learn from; give",
        ),
        ({"domains": domains(2)}, r"one source domain \('b'\) cannot play source and target"),
    ],
)
def test_what_cannot_run_is_one_clear_line(changes: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        cells(**changes)
    assert "\n" not in str(caught.value)


def test_both_trainings_are_on_the_same_backbones() -> None:
    both = recipes(
        replace(
            MAIN,
            division="domainbed",
            validation=0.3,
            meta=replace(MAIN.meta, augmentation=augmentation("domainbed")),
        ),
        PAPER,
    )
    ours, paper = both["generalizeformer"], both["generalizeformer_paper"]
    for name in ("erm", "validation", "division", "seed"):
        assert getattr(ours, name) == getattr(paper, name)
    assert paper.meta.augmentation == ours.meta.augmentation
    assert paper.model == PAPER.model


def test_a_backbone_that_is_trained_with_the_generator_is_refused() -> None:
    with pytest.raises(UserError, match=r"episodes are 'joint', .*; use held-out or looks"):
        recipes(replace(MAIN, episodes="joint"))
    with pytest.raises(UserError, match=r"^paper_settings: episodes are 'joint', .*; use held-out"):
        recipes(MAIN, replace(PAPER, episodes="joint"))


def test_the_papers_generator_learns_as_the_paper_says_on_its_own_domains_as_they_are() -> None:
    assert (PAPER_PHI.model, PAPER_PHI.episodes) == (PAPER_MODEL, "looks")
    assert PAPER_PHI.meta.look_share == 0
    assert PAPER_PHI.meta.looks is not None
    assert PAPER_PHI.meta.looks.strength == 0  # nor are looks validated on
    ours = replace(PAPER_PHI.meta, looks=None, look_share=PAPER_RECIPE.meta.look_share)
    assert ours == PAPER_RECIPE.meta


def stored(cell: Cell) -> store.Stored:
    records = (record(settings={"betas": [0.9, 0.99]}), record(sources_after={"b": 1.5}))
    return store.Stored(cell=cell, records=records, seconds=1.0)


def test_a_finished_cell_comes_back_as_it_was(tmp_path: Path) -> None:
    store.write(tmp_path, stored(CELL))
    assert store.read(tmp_path, CELL) == stored(CELL)
    content = json.loads(store.place(tmp_path, CELL).read_text("utf-8"))
    assert content.keys() == {"cell", "records", "refusals", "commit", "seconds", "images"}


@pytest.mark.parametrize("name", ["recipe", "selection_limit", "limit", "preprocessing"])
def test_a_cell_with_other_settings_has_nothing_stored(tmp_path: Path, name: str) -> None:
    other = replace(CELL, **{name: CHANGES[name]})
    store.write(tmp_path, stored(other))
    assert store.read(tmp_path, CELL) == store.Stored(cell=CELL)
    store.write(tmp_path, stored(CELL))
    assert store.read(tmp_path, CELL) == stored(CELL)


def newer(content: str) -> bytes:
    """A finished cell whose file has this in the place of its first record's accuracy."""
    words = json.dumps(asdict(stored(CELL)))
    return words.replace('"accuracy": 50.0', content, 1).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"3", "setting Stored: .*got 3"),
        (b'{"cell": {}}', "setting cell.*: "),
        (b"\xff\xfe", ".*can't decode byte 0xff"),
        (newer('"accuracy": 50.0, "shade": 1'), "there is no setting 'records.0.shade'"),
        (newer('"shade": 1'), r"setting records.0.accuracy: .*\[\.\.\.\]"),
    ],
)
def test_records_that_cannot_be_read_are_told_and_never_lost(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    assert store.read(tmp_path, CELL) == store.Stored(cell=CELL)  # there is no file yet
    path = store.place(tmp_path, CELL)
    path.parent.mkdir()
    path.write_bytes(content)
    message = (
        rf"\.json: its records cannot be read \({reason}.*\); use the code that wrote them, or move"
    )
    for ask in (
        lambda: store.read(tmp_path, CELL),
        lambda: store.add(tmp_path, CELL, record(), 1.0),
        lambda: store.beside(tmp_path, CELL),
        lambda: store.alike(tmp_path, [replace(CELL, seed=1)], "abc"),
        lambda: store.check_images(tmp_path, [CELL], domains()),
    ):
        with pytest.raises(DataError, match=message) as caught:
            ask()
        assert len(str(caught.value)) < len(str(path)) + 350
    assert path.read_bytes() == content


def test_a_disk_that_does_not_answer_is_no_empty_one(tmp_path: Path) -> None:
    path = store.place(tmp_path, CELL)
    path.mkdir(parents=True)  # reading it fails, as on a disk that is gone
    with pytest.raises(DataError, match="its records cannot be read"):
        store.read(tmp_path, CELL)


def test_a_record_of_a_method_trained_in_another_way_is_not_taken_over(tmp_path: Path) -> None:
    def trained(steps: int) -> Cell:
        return replace(CELL, recipe=CELL.recipe | {"also": {"itta": {"steps": steps}}})

    mine = record(method="itta", training={"steps": 5})
    store.write(tmp_path, store.Stored(cell=trained(5), records=(record(), mine)))
    assert store.place(tmp_path, trained(6)) == store.place(tmp_path, CELL)
    assert store.read(tmp_path, trained(5)).records == (record(), mine)
    assert store.read(tmp_path, CELL).records == (record(), mine)
    assert store.read(tmp_path, trained(6)).records == (record(),)


def test_a_record_made_again_replaces_its_forerunner_and_others_stay() -> None:
    old, other = record(commit="old"), record(method="tent", commit="old")
    key, others = (old.method, old.stream), (other.method, other.stream)
    before = store.Stored(cell=CELL, records=(old, other))
    assert before.done("new") == {key, others}
    assert before.done("new", again=(old.method,)) == {others}
    assert before.done(None, again=(old.method,)) == {others}  # nobody knows by what it was made
    new = replace(old, commit="new")
    after = before.plus(new)
    assert after.records == (other, new)
    assert after.done("new", again=(old.method,)) == {key, others}
    refused = Refusal(method=old.method, targets=("a",), setting="", why="no", stream=old.stream)
    assert before.plus(refused).records == (other,)  # what the code refuses now has no record
