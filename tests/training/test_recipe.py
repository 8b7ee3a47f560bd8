import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import PAPER, Config
from generalizeformer.core.slots import Selection
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import CheckpointError, DataError, SlotError, UserError
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training import _run, _start, erm, meta
from generalizeformer.training._paper import PAPER_RECIPE
from generalizeformer.training._recipe import Recipe
from generalizeformer.training._run import train_recipe
from generalizeformer.training._start import placed, plain

from .toys import (
    CARD,
    PREPROCESSING,
    fabric,
    grouped_network,
    network,
    recipe,
    same,
    sources,
    state,
    windowed_network,
)


def trained(folder: Path, chosen: Recipe, **changes: Any) -> GeneralizeFormer:
    given = {"build": network, "sources": sources(), "card": CARD} | changes
    return train_recipe(recipe=chosen, folder=folder, fabric=fabric(), **given)


@pytest.fixture
def backbones(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(domains trained on, domains validated on, starting weights) of every backbone that is trained."""
    seen: list[Any] = []

    class Spy(erm.Erm):
        def __init__(self, backbone: nn.Module, train: Any, validation: Any, *rest: Any) -> None:
            seen.append((train.names, validation.names, state(backbone)))
            super().__init__(backbone, train, validation, *rest)

    monkeypatch.setattr(_run, "Erm", Spy)
    return seen


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The domains whose images each model's reference is measured on."""
    seen: list[tuple[str, ...]] = []
    calibrate = _run.calibrate

    def spy(model: Any, data: Any, *rest: Any) -> None:
        seen.append(data.names)
        calibrate(model, data, *rest)

    monkeypatch.setattr(_run, "calibrate", spy)
    return seen


def test_held_out_trains_a_backbone_without_each_domain(
    tmp_path: Path, backbones: list[Any], measured: list[tuple[str, ...]]
) -> None:
    trained(tmp_path, recipe())
    expected = [("a", "b", "c"), ("b", "c"), ("a", "c"), ("a", "b")]
    assert [names for names, _, _ in backbones] == expected
    assert [names for _, names, _ in backbones] == expected
    assert measured == expected
    assert all(same(start, backbones[0][2]) for _, _, start in backbones)


def test_only_the_named_domains_are_left_out_and_each_once(
    tmp_path: Path, backbones: list[Any]
) -> None:
    trained(tmp_path, recipe(held_out=("c", "c")))
    assert [names for names, _, _ in backbones] == [("a", "b", "c"), ("a", "b")]


def test_training_and_validation_images_are_apart(tmp_path: Path) -> None:
    run = _run._Run(network, sources(), recipe(), CARD, tmp_path, fabric(), None)
    for domain in sources().domains:
        assert len(run.data[domain.name]) + len(run.held[domain.name]) == len(domain)
        kept = {bytes(image.flatten().tolist()) for image in run.data[domain.name].images}
        held = {bytes(image.flatten().tolist()) for image in run.held[domain.name].images}
        assert not kept & held


def test_stages_leave_a_state_and_a_log_each(tmp_path: Path) -> None:
    trained(tmp_path, recipe(held_out=("b",)))
    names = {path.name for path in (tmp_path / "training").iterdir()}
    stages = ("erm", "erm-without-b", "meta")
    assert names == {f"{s}.{kind}" for s in stages for kind in ("state", "jsonl")}


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_the_saved_model_answers_like_the_trained_one(tmp_path: Path, episodes: Any) -> None:
    model = trained(tmp_path, recipe(episodes=episodes))
    card = model.card
    assert card.sources == ("a", "b", "c")
    assert card.training == f"{episodes} episodes, 6 steps"
    assert card.source_accuracy is not None
    assert 0 <= card.source_accuracy <= 100
    assert card.adapted_accuracy is not None
    assert 0 <= card.adapted_accuracy <= 100

    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=network())
    images = PREPROCESSING(sources().domains[0].images)
    groups = torch.arange(len(images)) // 5
    with torch.no_grad():
        assert torch.equal(model.eval()(images, groups), loaded(images, groups))
    assert loaded.card == replace(card, backbone="DigitNet")


def test_looks_episodes_work_from_one_domain(tmp_path: Path) -> None:
    looking = replace(recipe().meta, looks=Looks(), look_share=1.0)
    model = trained(tmp_path, recipe(episodes="looks", meta=looking), sources=sources(domains=1))
    assert model.card.sources == ("a",)
    assert {p.name for p in (tmp_path / "training").glob("*.state")} == {"erm.state", "meta.state"}


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_one_domain_is_refused_with_the_way_out(tmp_path: Path, episodes: Any) -> None:
    with pytest.raises(DataError, match=r"one source domain \('a'\).*: episodes 'looks'"):
        trained(tmp_path, recipe(episodes=episodes), sources=sources(domains=1))
    assert list(tmp_path.iterdir()) == []


def test_looks_episodes_switch_looks_on_and_keep_those_given() -> None:
    assert Recipe(episodes="looks", erm=None).meta == meta.Config(looks=Looks())
    mild = meta.Config(looks=Looks(strength=0.5))
    assert Recipe(episodes="looks", meta=mild).meta == mild
    assert Recipe().meta.looks is None


def test_the_papers_recipe_is_adam_with_a_constant_rate_and_nothing_else() -> None:
    assert PAPER_RECIPE.episodes == "joint"
    assert PAPER_RECIPE.model == PAPER
    assert PAPER_RECIPE.erm is not None
    for part in (PAPER_RECIPE.erm, PAPER_RECIPE.meta):
        assert (part.steps, part.learning_rate) == (10_000, 1e-4)
        assert (part.weight_decay, part.schedule) == (0.0, "constant")
    assert (PAPER_RECIPE.meta.images, PAPER_RECIPE.meta.sizes) == (64, (20,))
    assert (PAPER_RECIPE.meta.clip, PAPER_RECIPE.meta.average) == (None, 0.0)


def test_an_unknown_domain_to_leave_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no domain 'z'; it has: a, b, c"):
        trained(tmp_path, recipe(held_out=("z",)))


@pytest.mark.parametrize(("setting", "value"), [("stay", 1.5), ("seed", -1), ("seed", 2**63)])
def test_settings_out_of_range_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"recipe: {setting} is {value}; it must be"):
        Recipe(**{setting: value})


def test_a_backbone_for_other_classes_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"answers 2 images with \(2, 5\); synthetic has 3 classes"):
        trained(tmp_path, recipe(), build=lambda: network(5))
    assert list(tmp_path.iterdir()) == []


def test_a_backbone_for_other_images_is_refused_before_training(tmp_path: Path) -> None:
    def picky() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, 3))

    with pytest.raises(UserError, match=r"Sequential does not take images of shape \(3, 8, 8\) \("):
        trained(tmp_path, recipe(), build=picky)


def test_images_go_where_the_backbone_is_to_see_whether_it_takes_them() -> None:
    elsewhere = network().to("meta")  # the other device that every machine has
    _start.check_fits(elsewhere, sources(), PREPROCESSING)
    more = DomainDataset("more", (*sources().classes, "another"), sources().domains)
    with pytest.raises(DataError, match=r"answers 2 images with \(2, 3\); more has 4 classes"):
        _start.check_fits(elsewhere, more, PREPROCESSING)


def test_a_backbone_without_a_linear_classifier_is_refused_before_training(tmp_path: Path) -> None:
    def convolutional() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    with pytest.raises(SlotError, match="there is no Linear layer"):
        trained(tmp_path, recipe(), build=convolutional, report=lambda *_: pytest.fail("trained"))
    assert list(tmp_path.iterdir()) == []


class Softmax(nn.Module):
    """A network that changes its classifier's outputs, which only shows where it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).softmax(1)


@pytest.mark.parametrize(
    ("build", "words"),
    [(Softmax, "changes its classifier's outputs"), (windowed_network, "it saw 8 rows for 2")],
)
def test_what_shows_only_in_answers_is_told_before_training(
    tmp_path: Path, build: Any, words: str
) -> None:
    with pytest.raises(SlotError, match=words):
        trained(tmp_path, recipe(), build=build, report=lambda *_: pytest.fail("trained"))
    assert list(tmp_path.iterdir()) == []


class Several(nn.Module):
    """A network that does not answer with its logits alone."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.inner, self.answer = network(), answer
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self.drop(self.inner(x)), self.training)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda logits, _: {"logits": logits}, "Several answers with a dict; it must return the"),
        (
            lambda logits, training: (logits, logits) if training else logits,
            "Several answers with a tuple while it is trained; it must return the logits alone",
        ),
    ],
)
def test_a_backbone_that_returns_no_plain_tensor_is_refused_before_training(
    tmp_path: Path, answer: Any, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        trained(tmp_path, recipe(), build=lambda: Several(answer))
    assert list(tmp_path.iterdir()) == []


def test_a_backbone_that_fails_only_while_it_is_trained_is_refused_before_that() -> None:
    def answer(logits: torch.Tensor, training: bool) -> torch.Tensor:
        return logits.reshape(-1, 7) if training else logits

    given = Several(answer), sources(), PREPROCESSING
    _start.check_fits(*given)
    with pytest.raises(UserError, match=r"Several does not take images of shape .* \(shape "):
        _start.check_learns(*given)


def test_looking_how_a_backbone_learns_changes_neither_it_nor_random_numbers() -> None:
    backbone, numbers = Several(lambda logits, _: logits).eval(), torch.get_rng_state()
    before = state(backbone)
    _start.check_learns(backbone, sources(), PREPROCESSING)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert not backbone.training
    assert same(state(backbone), before)


def test_trying_a_backbone_changes_neither_it_nor_random_numbers() -> None:
    backbone, numbers = network().train(), torch.get_rng_state()
    before = state(backbone)
    _start.check_serves(backbone, recipe().model, sources(), PREPROCESSING)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert backbone.training
    assert same(state(backbone), before)


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_a_network_with_layers_over_windows_is_trained_without_those(
    tmp_path: Path, episodes: Any
) -> None:
    without = replace(recipe().model, selection=Selection(exclude=("3.norm",)))
    chosen = recipe(episodes=episodes, held_out=("a",), model=without)
    model = trained(tmp_path, chosen, build=windowed_network)
    assert model.reference.layers == ["3.norm"]
    assert [slot.layer for slot in model.slots] == ["1", "4"]


def test_a_folder_that_cannot_be_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        trained(tmp_path / "file" / "run", recipe(), report=lambda *_: pytest.fail("trained"))


def test_a_name_that_is_no_file_name_is_no_obstacle(tmp_path: Path) -> None:
    a, b, c = sources().domains
    renamed = Domain("art/../pop art", b.images, b.labels)
    data = DomainDataset("synthetic", sources().classes, (a, renamed, c))
    trained(tmp_path, recipe(held_out=(renamed.name,)), sources=data)
    states = [path.name for path in (tmp_path / "training").glob("erm-without*.state")]
    assert states == ["erm-without-art%2F..%2Fpop%20art.state"]


@pytest.mark.parametrize("shared", [False, True])
def test_names_of_any_length_are_no_obstacle(tmp_path: Path, shared: bool) -> None:
    a, b, c = (
        Domain(name * 30, domain.images, domain.labels)
        for name, domain in zip("艺画草", sources().domains, strict=True)
    )
    data = DomainDataset("synthetic", sources().classes, (a, b, c))
    backbones = tmp_path / "backbones" if shared else None
    given = {"sources": data, "backbones": backbones}
    first = trained(tmp_path, recipe(), **given)
    stages = {path.stem for path in tmp_path.glob("**/erm*.state")}
    assert len(stages) == 4  # each has a name of its own
    told: list[Any] = []
    again = trained(tmp_path, recipe(), report=lambda *words: told.append(words), **given)
    assert told == []
    assert same(state(first), state(again))


def test_a_finished_training_is_not_run_again(tmp_path: Path) -> None:
    told: list[Any] = []
    first = trained(tmp_path, recipe(held_out=("a",)))
    again = trained(tmp_path, recipe(held_out=("a",)), report=lambda *words: told.append(words))
    assert told == []
    assert same(state(first), state(again))


def test_a_finished_training_needs_no_backbone_but_its_own(tmp_path: Path) -> None:
    told: list[Any] = []
    first = trained(tmp_path, recipe())
    without = list((tmp_path / "training").glob("erm-without-*.state"))
    assert without
    for path in without:
        path.unlink()
    again = trained(tmp_path, recipe(), report=lambda *words: told.append(words))
    assert told == []
    assert same(state(first), state(again))


def test_finished_stages_keep_weights_and_no_optimiser(tmp_path: Path) -> None:
    trained(tmp_path, recipe())
    for path in (tmp_path / "training").glob("*.state"):
        kept = torch.load(path, weights_only=True)
        assert kept["method"] is None
        assert kept["weights"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"erm": replace(recipe().erm, learning_rate=0.5)}, "erm.learning_rate 0.01, not 0.5"),
        ({"erm": replace(recipe().erm, steps=7)}, "erm.steps 6, not 7"),
        ({"meta": replace(recipe().meta, learning_rate=0.5)}, "meta.learning_rate 0.001, not 0.5"),
        ({"meta": replace(recipe().meta, steps=7)}, "meta.steps 6, not 7"),
        ({"validation": 0.5}, "validation 0.2, not 0.5"),
        ({"stay": 0.5}, "stay 0.2, not 0.5"),
    ],
)
def test_going_on_with_other_settings_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    trained(tmp_path, recipe(held_out=("a",)))
    with pytest.raises(CheckpointError, match=f"belongs to a run with {words}"):
        trained(tmp_path, recipe(held_out=("a",), **change))


def test_going_on_from_other_weights_or_other_data_is_refused(tmp_path: Path) -> None:
    def other() -> nn.Module:
        backbone = network()
        nn.init.zeros_(backbone.classifier.bias)
        return backbone

    trained(tmp_path, recipe(held_out=("a",)))
    with pytest.raises(CheckpointError, match="a run with starting weights '"):
        trained(tmp_path, recipe(held_out=("a",)), build=other)
    told = r"a run with domains a \(24 images, \w{12}\), .*, not a \(27 images, \w{12}\), "
    with pytest.raises(CheckpointError, match=told):
        trained(tmp_path, recipe(held_out=("a",)), sources=sources(per_class=9))


def test_going_on_at_another_size_tells_the_size_and_no_digests(tmp_path: Path) -> None:
    trained(tmp_path, recipe(held_out=("a",)))
    config = synthetic.Config(domains=3, classes=3, per_class=8, size=12)
    card = replace(CARD, preprocessing=Preprocessing(size=12))
    with pytest.raises(CheckpointError, match="a run with images of 8 px, not 12; go on"):
        trained(tmp_path, recipe(held_out=("a",)), sources=synthetic.build(config), card=card)


@pytest.mark.parametrize("part", ["stored", "labels"])
def test_going_on_with_other_pixels_or_labels_is_refused(tmp_path: Path, part: str) -> None:
    trained(tmp_path, recipe(held_out=("a",)))
    *others, last = sources().domains
    changed = getattr(last, part).clone()
    changed.view(-1)[-1] = 0
    other = replace(last, **{part: changed})
    data = DomainDataset("synthetic", sources().classes, (*others, other))
    with pytest.raises(CheckpointError, match="a run with domains "):
        trained(tmp_path, recipe(held_out=("a",)), sources=data)


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_the_callers_random_numbers_are_left_alone(tmp_path: Path, episodes: Any) -> None:
    backbone = network()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    trained(tmp_path, recipe(episodes=episodes), build=lambda: backbone)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_card_says_which_seed_the_training_had(tmp_path: Path) -> None:
    assert trained(tmp_path, recipe(held_out=("a",), seed=5)).card.seed == 5


def test_backbones_are_kept_where_only_the_generators_training_changes(tmp_path: Path) -> None:
    trained(tmp_path, recipe(held_out=("a",)))
    (tmp_path / "training" / "meta.state").unlink()
    told: list[str] = []
    longer = recipe(held_out=("a",), meta=replace(recipe().meta, steps=9))
    trained(tmp_path, longer, report=lambda name, *_: told.append(name))
    assert set(told) == {"meta"}


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_layers_without_statistics_are_measured_on_the_final_backbone(
    tmp_path: Path, episodes: Any
) -> None:
    model = trained(tmp_path, recipe(episodes=episodes), build=grouped_network)
    run = _run._Run(grouped_network, sources(), recipe(), CARD, tmp_path, fabric(), None)
    kept = state(model.reference)
    _run.calibrate(placed(model, torch.device("cpu")), run.data, PREPROCESSING)
    assert kept
    assert same(kept, state(model.reference))


def test_as_many_images_are_measured_as_the_recipe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    measure = GeneralizeFormer.calibrate

    def spy(model: GeneralizeFormer, images: torch.Tensor, *given: Any) -> None:
        seen.append(len(images))
        measure(model, images, *given)

    monkeypatch.setattr(GeneralizeFormer, "calibrate", spy)
    trained(tmp_path, recipe(held_out=("a",), calibration=2))
    assert seen == [6, 4]  # of three domains, then of two
    seen.clear()
    trained(tmp_path / "joint", recipe(episodes="joint", calibration=2))
    assert set(seen) == {6}
    with pytest.raises(UserError, match="calibration"):
        recipe(calibration=0)


def test_the_card_tells_accuracies_unless_nobody_will_read_it(tmp_path: Path) -> None:
    told = trained(tmp_path, recipe(held_out=("a",))).card
    assert told.source_accuracy is not None
    assert told.adapted_accuracy is not None
    silent = trained(tmp_path, recipe(held_out=("a",)), scored=False).card
    assert silent == replace(told, source_accuracy=None, adapted_accuracy=None)


@pytest.mark.parametrize("again", [False, True])
def test_the_card_tells_what_unseen_domains_gained_also_when_nothing_is_left_to_train(
    tmp_path: Path, again: bool
) -> None:
    if again:
        trained(tmp_path, recipe())
    card = trained(tmp_path, recipe()).card
    assert card.unseen_accuracy is not None
    assert card.unseen_adapted_accuracy is not None
    logged = (tmp_path / "training" / "meta.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in logged]
    assert card.unseen_accuracy in {line["unseen_plain"] for line in told}
    assert card.unseen_adapted_accuracy in {line["unseen_adapted"] for line in told}


@pytest.mark.parametrize("episodes", ["looks", "joint"])
def test_the_card_tells_no_gain_where_no_domain_was_left_out(tmp_path: Path, episodes: Any) -> None:
    assert trained(tmp_path, recipe(episodes=episodes)).card.unseen_accuracy is None


def shared_between_targets(folder: Path, targets: str) -> GeneralizeFormer:
    """The model of the last target, after trainings for all of them that share their backbones."""
    every = sources(4)
    for target in targets:
        given = {"sources": every.without([target]), "backbones": folder / "backbones"}
        model = trained(folder / target, recipe(), **given)
    return model


def test_trainings_can_share_backbones_of_the_same_domains(tmp_path: Path) -> None:
    shared_between_targets(tmp_path, "ab")
    made = {path.stem for path in (tmp_path / "backbones").glob("*/*.state")}
    triples, pairs = (
        {"erm-b+c+d", "erm-a+c+d"},
        {"erm-b+c", "erm-b+d", "erm-c+d", "erm-a+c", "erm-a+d"},
    )
    assert made == triples | pairs
    assert not list((tmp_path / "b" / "training").glob("erm*"))


def test_a_shared_backbone_is_the_one_that_would_have_been_trained(tmp_path: Path) -> None:
    after_another = shared_between_targets(tmp_path / "both", "ab")
    alone = shared_between_targets(tmp_path / "one", "b")
    assert same(state(after_another), state(alone))


def test_a_training_does_not_store_settings_that_are_as_they_were_before_they_existed(
    tmp_path: Path,
) -> None:
    trained(tmp_path, with_variation(0))
    told = torch.load(tmp_path / "training" / "meta.state", weights_only=True)["settings"]
    assert "variation" not in told["model"]["generator"]
    assert "prior" in told["model"]["generator"]


def with_variation(count: int) -> Recipe:
    generator = channels.Config(layers=1, width=8, heads=2, variation=count)
    return recipe(held_out=("a",), model=Config(generator=generator))


def test_every_model_learns_how_its_own_domains_vary(tmp_path: Path) -> None:
    model = trained(tmp_path / "one", with_variation(3))
    assert model.variation is not None
    found = {name: value.clone() for name, value in model.variation.state_dict().items()}
    assert any((value != 0).any() for name, value in found.items() if name.startswith("ratio"))
    again = trained(tmp_path / "two", with_variation(3))
    assert same(again.state_dict(), model.state_dict())
    kept = GeneralizeFormer.from_pretrained(tmp_path / "one", backbone=network())
    assert kept.variation is not None
    assert same(kept.variation.state_dict(), found)


def test_looks_of_a_domain_are_the_same_in_any_company() -> None:
    domain = sources()["b"]
    one, two = (_start.under_looks(domain, torch.device("cpu")) for _ in range(2))
    assert len(one) == _start.LOOKS
    assert all(map(torch.equal, one, two))
    assert len({len(look) for look in one}) == 1


def test_domains_of_one_image_teach_nothing_of_looks() -> None:
    alone = DomainDataset(
        "one", sources().classes, tuple(d.take(torch.tensor([0])) for d in sources().domains)
    )
    model = GeneralizeFormer(network(), Config(generator=with_variation(3).model.generator))
    _start.calibrate(model, alone, Preprocessing(size=8))
    assert model.likeness is not None
    assert not any(value.any() for value in model.likeness.buffers())


def test_weights_lie_channels_last_for_work_and_as_they_were_afterwards() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3), nn.Conv3d(2, 3, 2), nn.Linear(4, 3)
    )
    before, strides = state(module), [value.stride() for value in module.parameters()]
    worked = placed(module, torch.device("cpu"))
    assert worked is module
    assert module[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert not module[1].weight.is_contiguous()
    assert same(state(module), before)
    assert [value.stride() for value in plain(module).parameters()] == strides
    assert same(state(module), before)
