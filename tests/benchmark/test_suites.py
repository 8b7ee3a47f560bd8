"""Suites as data: which cells each is made of, which models they share, and what is refused."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from generalizeformer.benchmark import store
from generalizeformer.benchmark.bench import tasks
from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.comparisons import COMPARISONS
from generalizeformer.benchmark.dynamic import LOOKS
from generalizeformer.benchmark.plans import Task, from_each, left_out, several
from generalizeformer.benchmark.suites import SUITES, cells, check_options
from generalizeformer.benchmark.variants import VARIANTS, varied
from generalizeformer.cli._parts import SuiteName
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.datasets import digits, living17
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.targets import parse
from generalizeformer.errors import UserError
from generalizeformer.training._recipe import Recipe

from .lab import MAIN, PAPER, domains

LOOKED = replace(MAIN, episodes="looks")
FULL, WITH_PAPER = "generalizeformer", ("source", "generalizeformer", "generalizeformer_paper")


def planned(name: str, main: Recipe | None = None, **given: Any) -> list[Cell]:
    suite = SUITES[name]
    single = suite.episodes == "looks" or name == "several-targets"  # one domain to learn from
    main = main or (LOOKED if single else MAIN)
    shared: dict[str, Any] = {
        "seeds": (0,),
        "backbone": "digits-small",
        "pretrained": False,
        "preprocessing": Preprocessing(size=16),
    }
    if name == "several-targets":  # it has no usual ones
        shared["targets"] = ("a", "b")
    return cells(name, domains(), suite.recipes(main, PAPER), **(shared | given))


def test_the_command_knows_every_suite() -> None:
    assert get_args(SuiteName) == tuple(SUITES) == tuple(COMPARISONS)


@pytest.mark.parametrize("name", SUITES)
def test_cells_of_a_suite_have_names_and_methods_of_their_own(name: str) -> None:
    made = planned(name, seeds=(0, 1))
    assert len({cell.name for cell in made}) == len(made)
    for cell in made:
        assert (cell.suite, cell.batch_sizes) == (name, SUITES[name].batch_sizes)
        assert COMPARISONS[name][cell.training].methods


def test_the_main_suite_is_as_ever() -> None:
    made = planned("main")
    assert [(c.target, c.training) for c in made] == [(t, n) for t in "abc" for n in WITH_PAPER]
    assert sorted(made[0].batch_sizes) == [1, 20, 64, 128]


@pytest.mark.parametrize("name", ["dynamic", "ablations"])
def test_suites_about_the_main_model_have_that_model(name: str) -> None:
    main = {cell.target: cell.model_name for cell in planned("main") if cell.training == FULL}
    ours = {c.target: c.model_name for c in planned(name, limit=7) if c.training == FULL}
    assert ours == main


def test_results_of_suites_lie_apart_and_models_together(tmp_path: Any) -> None:
    main, dynamic = planned("main")[0], planned("dynamic")[0]
    assert (
        store.place(tmp_path, main) == tmp_path / "cells" / f"{main.name}-{main.basis()[:12]}.json"
    )
    assert store.place(tmp_path, dynamic) == (
        tmp_path / "dynamic" / "cells" / f"{main.name}-{dynamic.basis()[:12]}.json"
    )


def test_usual_looks_are_words_that_streams_understand() -> None:
    assert len({parse(f"a@{look}", ["a"]) for look in LOOKS}) == len(LOOKS) == 8
    assert planned("dynamic")[0].looks == LOOKS
    assert planned("dynamic", looks=("fog:1", "fog:2"))[0].looks == ("fog:1", "fog:2")


def test_every_look_comes_alone_then_all_in_both_ways() -> None:
    given = {"looks": ("fog:1", "look:2"), "limit": 3, "batch_sizes": (2,)}
    streams = planned("dynamic", **given)[0].streams()
    both = ("a@fog:1", "a@look:2")
    assert [(s.targets, s.order, s.limit) for s in streams] == [
        (("a@fog:1",), "shuffled", 3),
        (("a@look:2",), "shuffled", 3),
        (both, "shuffled", 6),
        (both, "in_turn", 6),
    ]


def test_from_one_source_every_other_domain_is_a_target() -> None:
    assert {cell.training for cell in planned("single-source")} == set(WITH_PAPER)
    made = planned("single-source", trainings=("generalizeformer",))
    pairs = [(c.sources, c.target) for c in made]
    assert sorted(pairs) == [((s,), t) for s in "abc" for t in "abc" if s != t]
    assert [sources for sources, _ in pairs] == [("a",), ("b",), ("c",)] * 2
    assert len({cell.model_name for cell in made}) == 3
    some = planned(
        "single-source", sources=("b",), targets=("b", "c"), trainings=("generalizeformer",)
    )
    assert [(c.sources, c.target) for c in some] == [(("b",), "c")]
    assert made[0].full_recipe().episodes == "looks"


def test_classes_apart_are_learned_from_as_one_domain_with_as_many_images_a_step() -> None:
    made = planned("output-shift")
    assert {cell.training for cell in made} == set(WITH_PAPER)
    assert all(cell.pooled and cell.classes_apart == "labels" for cell in made)
    assert LOOKED.erm is not None
    for cell in made:
        assert cell.recipe["erm"]["per_domain"] == 2 * LOOKED.erm.per_domain
    assert planned("output-shift", classes_apart="3")[0].classes_apart == "3"


def test_held_out_episodes_keep_domains_whose_classes_are_apart_apart() -> None:
    made = planned("output-shift", MAIN)
    assert not any(cell.pooled for cell in made)
    assert made[0].recipe["erm"] == planned("main")[0].recipe["erm"]


def test_several_targets_are_left_out_together_and_met_alone_mixed_and_in_turn() -> None:
    first, *others = planned("several-targets", limit=3, batch_sizes=(2,))
    assert (first.sources, first.targets) == (("c",), ("a", "b"))
    assert [cell.training for cell in (first, *others)] == list(WITH_PAPER)
    assert [(s.targets, s.order, s.limit) for s in first.streams()] == [
        (("a",), "shuffled", 3),
        (("b",), "shuffled", 3),
        (("a", "b"), "shuffled", 6),
        (("a", "b"), "in_turn", 6),
    ]
    other, *_ = planned("several-targets", targets=("a", "c"), sources=("b",))
    assert (other.sources, other.targets) == (("b",), ("a", "c"))
    assert first.name == "a+b-from-c-seed-0-source"
    # What is met is no matter of the model.
    assert first.model_name == planned("several-targets", looks=(), limit=9)[0].model_name


def test_what_a_dataset_keeps_for_targets_is_learned_from_only_where_it_is_named() -> None:
    data = digits.build(digits.Config(protocol="inner"))
    assert data.kept == ("30", "45", "60")
    assert several(data, ("30", "60"))[0].sources == ("0", "15", "75", "90")
    assert several(data, ("30", "90"))[0].sources == ("0", "15", "75")
    assert several(data, ("30", "60"), ("0", "45"))[0].sources == ("0", "45")
    for part in (
        data.only(("0", "30")),
        data.without(("0",)),
        data.renumbered((*data.classes, "x")),
    ):
        assert part.kept == data.kept


def kept() -> DomainDataset:
    """Digits by their angles."""
    return digits.build(digits.Config(protocol="outer"))


SEEN, UNSEEN = ("15", "30", "45", "60", "75"), ("0", "90")


def test_domains_that_a_dataset_keeps_are_the_targets_of_all_others() -> None:
    assert left_out(kept(), ()) == [Task(target, SEEN) for target in UNSEEN]
    assert left_out(kept(), ("90", "90")) == [Task("90", SEEN)]
    pairs = [(task.sources, task.target) for task in from_each(kept(), (), ())]
    assert sorted(pairs) == sorted(((s,), t) for s in SEEN for t in UNSEEN)
    assert [(t.sources, t.target) for t in from_each(kept(), ("0",), ("45",))] == [(("45",), "0")]


def test_no_target_s_digits_are_learned_from() -> None:
    data = kept()
    for task in (*left_out(data, ()), *from_each(data, (), ())):
        angle = int(task.target)
        learned = {
            i.numpy().tobytes() for i in digits.rotate(digits.upright("source").images, angle)
        }
        assert task.sources
        assert not learned & {i.numpy().tobytes() for i in data[task.target].images}
        assert {*task.sources} <= {*SEEN}  # whose digits are those of this part


@pytest.mark.parametrize("suite", ["main", "dynamic", "output-shift", "ablations"])
def test_targets_that_a_dataset_keeps_share_one_model(suite: str) -> None:
    recipe = LOOKED if suite == "output-shift" else MAIN
    shared = {"seeds": (0,), "backbone": "digits-small", "pretrained": False}
    known = SUITES[suite].recipes(recipe, PAPER)
    made = cells(suite, kept(), known, preprocessing=Preprocessing(size=28), **shared)
    assert {cell.target for cell in made} == {*UNSEEN}
    assert len({cell.name for cell in made}) == len(made)
    assert len({cell.model_name for cell in made}) == len(made) / 2


def test_a_dataset_of_one_target_is_met_by_what_its_sources_teach() -> None:
    both, target = living17.SOURCES, living17.TARGET
    data = replace(domains(), domains=named(*both, target), every=(), kept=(target,))
    assert left_out(data, ()) == [Task(target, both)]
    assert from_each(data, (), ()) == [Task(target, (name,)) for name in both]


def named(*names: str) -> tuple[Domain, ...]:
    pairs = zip(names, domains(len(names)).domains, strict=True)
    return tuple(replace(domain, name=name) for name, domain in pairs)


def test_what_a_dataset_does_not_keep_is_no_target_and_what_it_keeps_is_not_learned_from() -> None:
    for planner in (left_out, from_each):
        with pytest.raises(UserError, match=r"^targets: got 15, 30, but digits has such to learn"):
            planner(kept(), ("15", "0", "30"), ())
    with pytest.raises(UserError, match=r"^sources: got 0, but digits keeps such for targets"):
        from_each(kept(), (), ("15", "0"))
    with pytest.raises(UserError, match=r"^digits: it keeps all of its domains for targets .0, 90"):
        left_out(kept().only(UNSEEN), ())


def test_variants_change_the_generator_and_never_the_backbone() -> None:
    known = varied(MAIN)
    assert known.pop("generalizeformer") == MAIN
    # The main loss is the entropy, and this recipe does not mirror, so these are no variants.
    same = {"generalizeformer_entropy", "generalizeformer_not_mirrored"}
    assert known.keys() == VARIANTS.keys() - same
    for recipe in known.values():
        assert recipe != MAIN
        assert (recipe.erm, recipe.validation, recipe.division) == (
            MAIN.erm,
            MAIN.validation,
            MAIN.division,
        )


def test_each_variant_is_what_its_name_says() -> None:
    known = varied(MAIN)
    for name in ("parameters", "features", "gradients"):
        inputs = known[f"generalizeformer_without_{name}"].model.generator.inputs
        assert {*inputs, name} == {"parameters", "features", "gradients"}
        assert name not in inputs
    assert known["generalizeformer_norms_only"].model.selection.kinds == ("norm",)
    assert known["generalizeformer_classifier_only"].model.selection.kinds == ("classifier",)
    assert known["generalizeformer_pseudo_label"].model.loss == "pseudo-label"
    assert known["generalizeformer_memo"].model.loss == "memo"
    assert known["generalizeformer_one_strength"].model.strengths == (1.0,)
    assert not known["generalizeformer_not_singly"].model.singly
    assert known["generalizeformer_with_kin"].model.kin == 0.3
    assert known["generalizeformer_mean_of_probabilities"].model.mean == "probabilities"
    recalling = known["generalizeformer_without_prototypes"].model.generator
    assert recalling == replace(MAIN.model.generator, recall=0.0)  # type: ignore[call-arg]
    mirroring = replace(MAIN, model=replace(MAIN.model, mirrored="all"))
    assert varied(mirroring)["generalizeformer_not_mirrored"].model.mirrored == "no"
    plain = known["generalizeformer_without_shift"]
    assert (plain.episodes, plain.meta.look_share) == ("looks", 0)
    assert plain.meta.looks is not None
    assert plain.meta.looks.strength == 0


def test_a_variant_that_is_the_main_recipe_is_left_out() -> None:
    memo = replace(MAIN, model=replace(MAIN.model, loss="memo", strengths=(1.0,)))
    known = varied(memo)
    assert "generalizeformer_entropy" in known
    assert not {"generalizeformer_memo", "generalizeformer_one_strength"} & known.keys()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("dynamic", {"looks": ("fog:3",)}, "looks: got 'fog:3' alone; give two or more, as they"),
        (
            "dynamic",
            {"looks": ("fog:3", "fog:9")},
            "target 'a@fog:9': the amount is '9'; fog takes",
        ),
        ("dynamic", {"looks": ("mist:3", "fog:1")}, "target 'a@mist:3': there is no change 'mist'"),
        ("dynamic", {"trainings": ("x",)}, "trainings: there is no 'x'; choose from: source, ge"),
        ("single-source", {"sources": ("z",)}, "synthetic: there is no domain 'z'; it has: a, b"),
        (
            "single-source",
            {"sources": ("a",), "targets": ("a",)},
            "sources and targets are both a; name a target that is not learned from",
        ),
        ("single-source", {"main": MAIN}, r"one source domain \('a'\) cannot play source and tar"),
        (
            "output-shift",
            {"main": replace(LOOKED, division="official")},
            "division is 'official', whose lists are of single domains, .*; use seeded or domainbed",
        ),
        (
            "several-targets",
            {"targets": ("a",)},
            "targets: got a; name two or more, as they are met",
        ),
        (
            "several-targets",
            {"targets": ()},
            "targets: got none; name two or more, as they are met",
        ),
        (
            "several-targets",
            {"targets": ("a", "b", "c")},
            "a, b, c and sources none; no target can",
        ),
        (
            "several-targets",
            {"sources": ("a",)},
            "targets are a, b and sources a; no target can be",
        ),
        (
            "several-targets",
            {"targets": ("a", "z")},
            "synthetic: there is no domain 'z'; it has: a, b",
        ),
        ("ablations", {"main": replace(MAIN, episodes="joint")}, "episodes are 'joint', which tr"),
        ("ablations", {"batch_sizes": ()}, "batch sizes: none was given; give at least one"),
    ],
)
def test_what_cannot_run_is_one_clear_line(name: str, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        planned(name, **given)
    assert "\n" not in str(caught.value)


def test_a_setting_of_another_suite_is_refused() -> None:
    check_options(("main", "dynamic"), {"looks": ("fog:3",), "sources": (), "classes_apart": None})
    with pytest.raises(UserError) as caught:
        check_options(("main",), {"looks": (), "sources": (), "classes_apart": "labels"})
    assert str(caught.value) == (
        "classes apart: got 'labels', but the suite main takes none; leave it out, or choose --suite output-shift"
    )
    with pytest.raises(UserError, match=r"choose --suite single-source or several-targets$"):
        check_options(("main",), {"looks": (), "sources": ("a",), "classes_apart": None})


def test_methods_need_the_training_that_they_are_compared_on() -> None:
    with pytest.raises(
        UserError, match=r"^methods: got lame, but they are compared on the model of"
    ):
        planned("main", methods=("lame",), trainings=("generalizeformer_paper",))
    with pytest.raises(UserError, match=r"^methods: got generalizeformer, which answers with a φ"):
        planned("main", methods=("lame", FULL), trainings=("source",))
    with pytest.raises(UserError, match="trainings: none was given"):
        planned("main", methods=("lame",), trainings=())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, WITH_PAPER),
        ({"methods": ("lame", FULL)}, WITH_PAPER),
        ({"methods": ("lame",)}, ("source",)),
        ({"methods": (FULL,)}, WITH_PAPER[1:]),
        ({"methods": ("lame",), "trainings": ("source", FULL)}, ("source", FULL)),
        ({"methods": (FULL,), "trainings": ("source", FULL)}, (FULL,)),
    ],
)
def test_what_is_trained_is_what_the_methods_answer_with(given: Any, expected: Any) -> None:
    made = planned("main", targets=("a",), **given)
    assert tuple(cell.training for cell in made) == expected
    assert all(cell.methods == () for cell in made if cell.training != "source")
    if "source" in expected and "methods" in given:
        assert made[0].methods == ("lame",)
        assert {task.method for task in tasks(made[0])} == {"lame"}


def test_the_search_for_other_methods_changes_no_model_of_phi() -> None:
    also = replace(MAIN, also={"itta": {}})
    source, ours, paper = planned("main", also, targets=("a",))
    assert (source.recipe["also"], ours.recipe["also"], paper.recipe["also"]) == (
        {"itta": {}},
        {},
        {},
    )
    assert ours.key() == planned("main", targets=("a",))[1].key()


def test_methods_with_the_largest_search_come_last() -> None:
    cell = planned("main", methods=("tast", "tent", "adanpc", "source"))[0]
    done = [task.method for task in tasks(cell) if task.stream == cell.streams()[0]]
    assert done == ["source", "tent", "adanpc", "tast"]
