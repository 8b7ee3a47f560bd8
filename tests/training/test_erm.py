import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from generalizeformer.config import from_dict, to_dict
from generalizeformer.data.episodes import minibatch
from generalizeformer.errors import UserError
from generalizeformer.imaging.augmentation import augment
from generalizeformer.imaging.augmentation import recipe as augmentation_recipe
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training import erm, meta
from generalizeformer.training._recipe import Recipe
from generalizeformer.training._scoring import accuracy
from generalizeformer.training._start import placed

from .toys import PREPROCESSING, fabric, network, same, seeded, sources, state


def erm_of(backbone: nn.Module, **settings: Any) -> erm.Erm:
    data = sources()
    config = erm.Config(**({"steps": 40, "per_domain": 8, "learning_rate": 1e-2} | settings))
    return erm.Erm(backbone, data, data, PREPROCESSING, config, fabric())


def test_it_learns_a_tiny_set_by_heart() -> None:
    method = erm_of(network())
    before = method.validate()["score"]
    for step in range(40):
        method.update(step, seeded(step))
    assert before < 60
    assert method.validate()["score"] > 95


def test_an_update_is_a_plain_adamw_step_on_the_pooled_images() -> None:
    backbone = network()
    plain = placed(copy.deepcopy(backbone), torch.device("cpu"))
    method = erm_of(backbone)
    loss = method.update(20, seeded(3))["loss"]

    drawn = minibatch(sources(), 8, seeded(3))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=1e-4)
    optimizer.param_groups[0]["lr"] = method.optimizer.param_groups[0]["lr"]
    expected = F.cross_entropy(plain.train()(PREPROCESSING(drawn.images)), drawn.labels)
    expected.backward()
    optimizer.step()
    assert loss == expected.item()
    assert same(state(backbone), state(plain))


def test_what_is_frozen_in_a_backbone_stays_as_it_is() -> None:
    backbone = network()
    first = next(backbone.parameters()).requires_grad_(False)
    before = first.clone()
    assert erm_of(backbone).update(0, seeded())["loss"] > 0
    assert not first.requires_grad
    assert torch.equal(first, before)


def test_running_statistics_move_in_training() -> None:
    backbone = network()
    before = state(backbone)
    erm_of(backbone).update(0, seeded())
    statistics = [name for name in before if "running" in name]
    assert statistics
    assert not any(torch.equal(before[name], backbone.state_dict()[name]) for name in statistics)


def test_validation_changes_nothing() -> None:
    backbone = network()
    method = erm_of(backbone)
    method.update(0, seeded())
    before = state(backbone)
    method.validate()
    assert same(before, state(backbone))


def test_validation_is_the_mean_over_domains() -> None:
    method = erm_of(network())
    scores = [
        accuracy(lambda x, _: method.network(x), d, PREPROCESSING, 1, torch.device("cpu"))
        for d in sources().domains
    ]
    assert method.validate()["score"] == pytest.approx(sum(scores) / 3)


def test_every_image_gets_a_look_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(pixels: Any, groups: Any, generator: Any, config: Any) -> Any:
        seen.append(groups)
        return pixels

    monkeypatch.setattr(erm, "apply_looks", spy)
    erm_of(network(), looks=Looks()).update(0, seeded())
    assert len(seen[0].unique()) == 3 * 8


def test_augmentation_changes_the_pixels_by_the_steps_own_draws_before_looks_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def spy(pixels: Any, groups: Any, generator: Any, config: Any) -> Any:
        seen.append(pixels)
        return pixels

    monkeypatch.setattr(erm, "apply_looks", spy)
    chosen = augmentation_recipe("domainbed")
    erm_of(network(), augmentation=chosen, looks=Looks()).update(0, seeded(3))
    generator = seeded(3)
    drawn = minibatch(sources(), 8, generator)
    expected = augment(drawn.images, generator, chosen)
    assert torch.equal(seen[0], expected)
    assert not torch.equal(expected, drawn.images)


def test_augmented_steps_are_the_same_for_the_same_draws() -> None:
    losses = {
        erm_of(network(), augmentation=augmentation_recipe("authors")).update(0, seeded(seed))[
            "loss"
        ]
        for seed in (1, 1, 2)
    }
    assert len(losses) == 2


@pytest.mark.parametrize("name", ["domainbed", "authors", "digits"])
def test_a_recipe_with_augmentation_survives_the_way_to_json_and_back(name: str) -> None:
    chosen = augmentation_recipe(name)
    given = Recipe(erm=erm.Config(augmentation=chosen), meta=meta.Config(augmentation=chosen))
    assert from_dict(Recipe, to_dict(given)) == given


def test_a_setting_of_the_augmentation_that_does_not_fit_is_named() -> None:
    with pytest.raises(UserError, match=r"erm\.augmentation.*hue is 2.0; it must be between"):
        from_dict(Recipe, {"erm": {"augmentation": {"hue": 2.0}}})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("per_domain", 0),
        ("every", 0),
        ("learning_rate", -1.0),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("weight_decay", float("inf")),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"erm: {setting} is {value}; it must be"):
        erm.Config(**{setting: value})
