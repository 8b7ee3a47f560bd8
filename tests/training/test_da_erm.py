import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from generalizeformer.adapters import da_erm as adapter
from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.companions.da_erm import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import DataError, UserError
from generalizeformer.training import da_erm
from generalizeformer.training._domain_prototypes import mixed_domains, prototypical_loss
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


def da_erm_of(backbone: nn.Module, domains: int = 3, **settings: Any) -> da_erm.DaErm:
    usual = {"steps": 6, "embedding_share": 0.5, "per_domain": 6, "learning_rate": 1e-2}
    config = da_erm.Config(**(usual | {"embedding_rate": 1e-3} | settings))
    data = sources(domains)
    return da_erm.DaErm(wrapped(backbone), data, data, PREPROCESSING, config, fabric())


def test_it_learns_a_tiny_set_by_heart_and_leaves_the_lent_backbone_alone() -> None:
    torch.manual_seed(7)
    backbone = DigitNet(3, (8, 16), channels=3)
    lent = state(backbone)
    method = da_erm_of(backbone, steps=80, per_domain=8, embedding_rate=1e-2)
    told = [method.update(step, seeded(step))["domain_loss"] for step in range(40)]
    assert sum(told[-5:]) < 0.2 * sum(told[:5])
    assert method.validate()["domain_accuracy"] > 95
    for step in range(40, 80):
        method.update(step, seeded(step))
    assert method.validate()["score"] > 95
    assert same(state(backbone), lent)


def test_first_domains_are_learned_then_classes_and_neither_moves_the_other() -> None:
    method = da_erm_of(network())
    start = state(method.network)
    for step in range(3):
        assert set(method.update(step, seeded(step))) == {"domain_loss"}
    middle = state(method.network)
    moved = {name for name in start if not torch.equal(start[name], middle[name])}
    assert moved == {name for name in start if name.startswith("embedder.")}
    for step in range(3, 6):
        assert set(method.update(step, seeded(step))) == {"loss"}
    end = state(method.network)
    moved = {name for name in start if not torch.equal(middle[name], end[name])}
    assert moved == {name for name in start if not name.startswith("embedder.")}


def test_classes_are_learned_with_the_mean_embeddings_of_the_domains() -> None:
    method = da_erm_of(network(), images=1000)
    for step in range(4):
        method.update(step, seeded(step))
    assert method.domains is not None
    assert not method.domains.requires_grad
    method.network.eval()
    for domain, found in zip(sources().domains, method.domains, strict=True):
        expected = method.network.embed(PREPROCESSING(domain.images)).mean(0)
        torch.testing.assert_close(found, expected)


def test_a_half_trained_network_never_scores_higher_than_a_whole_one() -> None:
    method = da_erm_of(network())
    assert method.validate()["score"] <= -100
    for step in range(4):
        method.update(step, seeded(step))
    assert method.validate()["score"] >= 0


def test_validation_changes_nothing() -> None:
    method = da_erm_of(network())
    for step in range(5):
        method.update(step, seeded(step))
        before = state(method.network)
        first = method.validate()
        assert method.validate() == first
        assert same(before, state(method.network))


@pytest.mark.parametrize("broken", [2, 3, 4])
def test_a_run_that_was_broken_off_ends_like_a_whole_one(broken: int) -> None:
    whole, first, second = (da_erm_of(network()) for _ in range(3))
    for step in range(6):
        whole.update(step, seeded(step))
    for step in range(broken):
        first.update(step, seeded(step))
    second.load(copy.deepcopy(first.state()))
    for step in range(broken, 6):
        second.update(step, seeded(step))
    assert same(dict(second.weights()), dict(whole.weights()))


def test_the_loss_is_that_of_nearest_means() -> None:
    embedded = torch.randn(3 * 5, 4, generator=seeded())
    total = 0.0
    means = [embedded[5 * d : 5 * d + 2].mean(0) for d in range(3)]
    for domain in range(3):
        for query in embedded[5 * domain + 2 : 5 * domain + 5]:
            near = [math.exp(-float(((query - mean) ** 2).sum())) for mean in means]
            total -= math.log(near[domain] / sum(near)) / 9
    assert float(prototypical_loss(embedded, 5, 2)) == pytest.approx(total, rel=1e-5)


def test_mixed_domains_lie_between_two_domains_with_one_weight_each() -> None:
    images = torch.arange(3.0).repeat_interleave(4).reshape(12, 1, 1, 1).expand(12, 3, 2, 2) * 10
    mixed = mixed_domains(images, 4, seeded(1)).reshape(3, 4, 3, 2, 2)
    values = [domain.unique() for domain in mixed]
    assert all(len(value) == 1 for value in values)
    pairs = []
    for value in values:
        shares = {
            (a, b): (float(value) - 10 * b) / (10 * a - 10 * b)
            for a in range(3)
            for b in range(3)
            if a != b
        }
        pairs.append([pair for pair, share in shares.items() if 0.199 < share < 0.801])
    assert all(pairs)
    rings = [[(0, 1), (1, 2), (2, 0)], [(0, 2), (2, 1), (1, 0)]]
    assert any(all(any(p in found for p in ring) for found in pairs) for ring in rings)


def test_mixtures_are_further_domains_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def spy(embedded: Any, per_domain: int, supports: int) -> Any:
        sizes.append((len(embedded), per_domain, supports))
        return prototypical_loss(embedded, per_domain, supports)

    monkeypatch.setattr(da_erm, "prototypical_loss", spy)
    for mixup in (True, False):
        da_erm_of(network(), mixup=mixup, support_share=0.4).update(0, seeded())
    assert sizes == [(36, 6, 2), (18, 6, 2)]


def test_shares_leave_something_for_both_parts() -> None:
    config = da_erm.Config(steps=2, per_domain=2, embedding_share=0.01, support_share=0.99)
    assert (config.embedding_steps, config.supports) == (1, 1)
    assert da_erm.Config().embedding_steps == 1000
    assert da_erm.Config().supports == 2


def test_a_recipe_trains_it_beside_the_model_and_the_adapter_finds_it(tmp_path: Path) -> None:
    also = {"da_erm": {"steps": 4, "every": 1, "per_domain": 4}}
    settings = recipe(episodes="looks", also=also)
    model = train_recipe(network, sources(), settings, CARD, tmp_path / "run", fabric())
    assert build_network(network(), 3).load_state_dict(model.companions["da_erm"])
    loaded = GeneralizeFormer.from_pretrained(tmp_path / "run", backbone=network())
    images = PREPROCESSING(sources().domains[0].images[:6])
    answers = [adapter.build(m, adapter.Config()).step(images) for m in (model, loaded)]
    assert torch.equal(*answers)


def test_one_domain_cannot_be_told_apart_from_others() -> None:
    with pytest.raises(
        DataError, match=r"^da_erm: it learns to tell domains apart, and 'a' is the only"
    ):
        da_erm_of(network(), domains=1)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 1),
        ("per_domain", 1),
        ("every", 0),
        ("images", 0),
        ("validation_size", 0),
        ("learning_rate", -1.0),
        ("embedding_rate", 0.0),
        ("embedding_share", 1.0),
        ("support_share", 0.0),
        ("embedding_decay", -1.0),
        ("embedding_decay", float("nan")),
        ("embedding_decay", float("inf")),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("weight_decay", float("inf")),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"da_erm: {setting} is {value}; it must be"):
        da_erm.Config(**{setting: value})
