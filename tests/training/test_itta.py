import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.adapters import itta as adapter
from generalizeformer.core.companions._styles import draw_mixing
from generalizeformer.core.companions.itta import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.episodes import minibatch
from generalizeformer.errors import SlotError, UserError
from generalizeformer.imaging.augmentation import recipe as augmentation_recipe
from generalizeformer.training import itta
from generalizeformer.training._run import train_recipe

from .toys import (
    CARD,
    PREPROCESSING,
    fabric,
    network,
    recipe,
    same,
    seeded,
    sources,
    state,
    wrapped,
)


def itta_of(backbone: nn.Module, **settings: Any) -> itta.Itta:
    config = itta.Config(**({"steps": 40, "per_domain": 6, "learning_rate": 1e-2} | settings))
    data = sources()
    return itta.Itta(wrapped(backbone), data, data, PREPROCESSING, config, fabric())


def test_it_learns_a_tiny_set_by_heart_and_leaves_the_lent_backbone_alone() -> None:
    backbone = network()
    lent = state(backbone)
    method = itta_of(backbone)
    before = method.validate()["score"]
    metrics = [method.update(step, seeded(step)) for step in range(40)]
    assert before < 60
    assert method.validate()["score"] > 90
    assert set(metrics[0]) == {"loss", "consistency", "difference"}
    assert same(state(backbone), lent)


def test_the_backbone_takes_an_adam_step_on_both_cross_entropies_and_the_consistency_loss() -> None:
    method = itta_of(network(), weighting_rate=1e-9)
    twin = copy.deepcopy(method.network)
    optimizer = torch.optim.Adam(twin.backbone.parameters(), lr=1e-2)
    got = method.update(0, seeded(3))

    generator = seeded(3)
    drawn = minibatch(sources(), 6, generator)
    images = PREPROCESSING(drawn.images)
    clean, mixed = twin(images), twin(images, draw_mixing(images, generator))
    classes = F.cross_entropy(clean.logits, drawn.labels) + F.cross_entropy(
        mixed.logits, drawn.labels
    )
    # A fresh weighting lets what is positive through as it is.
    consistency = (mixed.features - clean.features).clamp(min=0).square().mean()
    (classes + consistency).backward()
    optimizer.step()
    assert got["loss"] == pytest.approx(classes.item(), rel=1e-5)
    assert got["consistency"] == pytest.approx(consistency.item(), rel=1e-5)
    for name, value in method.network.backbone.named_parameters():
        torch.testing.assert_close(value, twin.backbone.get_parameter(name), rtol=0, atol=1e-6)


def test_statistics_of_the_source_stay() -> None:
    method = itta_of(network())
    before = state(method.network)
    method.update(0, seeded())
    after = state(method.network)
    statistics = [name for name in before if "running" in name or "num_batches" in name]
    assert statistics
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert set(moved) == set(before) - set(statistics)


def test_the_weighting_s_gradient_is_that_of_the_difference_of_standardised_gradients() -> None:
    """By finite differences, with means and spreads as constants."""
    method = itta_of(network(), alignment=0.1)
    method.network.double()
    drawn = minibatch(sources(), 6, seeded(1))
    images, weighting = PREPROCESSING(drawn.images).double(), method.network.weighting
    with torch.no_grad():
        weighting.scales.add_(torch.randn_like(weighting.scales) * 0.1)
        weighting.shifts.add_(torch.rand_like(weighting.shifts) * 0.1)

    def gradients() -> tuple[Tensor, Tensor]:
        losses = method._losses(images, drawn.labels, seeded(2))
        found = [method._gradient(loss, create_graph=False) for loss in losses]
        return found[0], found[1]

    given, wanted = gradients()
    mean, spread = given.mean(), given.std()
    target = (wanted - wanted.mean()) / wanted.std()

    def difference() -> float:
        return float((((gradients()[0] - mean) / spread - target) ** 2).mean())

    weights, before = weighting.scales, weighting.scales.detach().clone()
    method._align(*method._losses(images, drawn.labels, seeded(2)))
    with torch.no_grad():
        weights.copy_(before)
    assert weights.grad is not None
    for place in ((0, 0), (4, 2), (9, 5)):
        found = []
        for change in (1e-5, -1e-5):
            with torch.no_grad():
                weights[place] += change
            found.append(difference())
            with torch.no_grad():
                weights.copy_(before)
        expected = 0.1 * (found[0] - found[1]) / 2e-5
        assert float(weights.grad[place]) == pytest.approx(expected, rel=0.05, abs=1e-9)
    assert weights.grad.abs().max() > 1e-6


def test_branches_that_agree_do_not_break_the_weighting(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmixed(images: Tensor, generator: torch.Generator) -> Any:
        return draw_mixing(images, generator)._replace(shares=torch.ones(len(images)))

    monkeypatch.setattr(itta, "draw_mixing", unmixed)
    method = itta_of(network())
    for step in range(3):
        assert method.update(step, seeded(step))["difference"] >= 0
    assert all(value.isfinite().all() for value in method.weights().values())


def test_validation_adapts_maps_and_nothing_else() -> None:
    method = itta_of(network())
    method.update(0, seeded())
    before, gradients = state(method.network), [p.grad for p in method.network.parameters()]
    first = method.validate()
    assert method.validate() == first
    assert same(before, state(method.network))
    assert all(
        one is other
        for one, other in zip(gradients, [p.grad for p in method.network.parameters()], strict=True)
    )


def test_a_run_that_was_broken_off_ends_like_a_whole_one() -> None:
    whole, first, second = (itta_of(network()) for _ in range(3))
    for step in range(6):
        whole.update(step, seeded(step))
    for step in range(3):
        first.update(step, seeded(step))
    second.load(copy.deepcopy(first.state()))
    for step in range(3, 6):
        second.update(step, seeded(step))
    assert same(dict(second.weights()), dict(whole.weights()))


def test_augmentation_is_drawn_from_the_step_s_own_numbers() -> None:
    chosen = augmentation_recipe("digits")
    losses = {
        itta_of(network(), augmentation=chosen).update(0, seeded(seed))["loss"]
        for seed in (1, 1, 2)
    }
    plain = itta_of(network()).update(0, seeded(1))["loss"]
    assert len(losses) == 2
    assert plain not in losses


def test_a_recipe_trains_it_beside_the_model_and_the_adapter_finds_it(tmp_path: Path) -> None:
    also = {"itta": {"steps": 4, "every": 2, "per_domain": 4}}
    settings = recipe(episodes="looks", also=also)
    model = train_recipe(network, sources(), settings, CARD, tmp_path / "run", fabric())
    assert build_network(network(), 3).load_state_dict(model.companions["itta"])
    loaded = GeneralizeFormer.from_pretrained(tmp_path / "run", backbone=network())
    images = PREPROCESSING(sources().domains[0].images[:6])
    answers = [adapter.build(m, adapter.Config()).step(images) for m in (model, loaded)]
    assert torch.equal(*answers)


def test_a_network_without_convolutions_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    def flat() -> nn.Module:
        hidden = [nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8)]
        return nn.Sequential(*hidden, nn.ReLU(), nn.Linear(8, 3))

    settings = recipe(episodes="looks", also={"itta": {"steps": 2, "every": 1, "per_domain": 4}})
    with pytest.raises(SlotError, match=r"^itta: Sequential has no convolution"):
        train_recipe(flat, sources(), settings, CARD, tmp_path / "run", fabric())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("per_domain", 0),
        ("every", 0),
        ("validation_size", 0),
        ("learning_rate", -1.0),
        ("weighting_rate", 0.0),
        ("alignment", 0.0),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("weight_decay", float("inf")),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"itta: {setting} is {value}; it must be"):
        itta.Config(**{setting: value})
