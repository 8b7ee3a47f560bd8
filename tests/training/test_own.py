"""Training from Python on the reader's own model and images."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import generalizeformer
from generalizeformer import GeneralizeFormer, Preprocessing, Recipe
from generalizeformer.core.backbones import DigitNet
from generalizeformer.data.looks import Config as Looks
from generalizeformer.errors import DataError
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.meta import Config as MetaConfig

META = MetaConfig(steps=2, images=8, sizes=(1, 4), looks=Looks(), look_share=1.0)


def domains(*names: str, channels: int = 3) -> dict[str, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    shape = (12, channels, 16, 16)
    return {n: (torch.randint(256, shape, dtype=torch.uint8), torch.arange(12) % 4) for n in names}


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return DigitNet(4, (4, 6), channels)


def test_a_trained_backbone_is_kept_and_only_the_generator_learns(tmp_path: Path) -> None:
    backbone = network()
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    model = generalizeformer.train(backbone, domains("a"), tmp_path, recipe=recipe)
    kept = model.backbone.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in backbone.state_dict().items())
    assert model.backbone is not backbone
    assert any(value.abs().max() > 0 for value in model.generator.decode["norm"][-1].parameters())


def test_the_lent_backbone_keeps_its_weights_and_its_mode(tmp_path: Path) -> None:
    backbone = network().train()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    recipe = Recipe(erm=ErmConfig(steps=2, per_domain=4), meta=META)
    generalizeformer.train(backbone, domains("a", "b"), tmp_path, recipe=recipe)
    assert backbone.training
    assert all(torch.equal(before[name], v) for name, v in backbone.state_dict().items())


def test_the_saved_model_answers_alike(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    model = generalizeformer.train(network(), domains("a"), tmp_path, recipe=recipe)
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=network())
    x = torch.randn(5, 3, 16, 16)
    assert torch.equal(model.eval()(x), loaded(x))
    assert loaded.card.sources == ("a",)
    assert loaded.card.classes == ("0", "1", "2", "3")


def test_images_of_any_number_of_channels_can_be_trained_on(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    model = generalizeformer.train(network(2), domains("a", channels=2), tmp_path, recipe=recipe)
    assert model.card.preprocessing == Preprocessing(size=16, mean=(0.5, 0.5), std=(0.5, 0.5))


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_episodes_that_train_backbones_need_settings_for_it(tmp_path: Path, episodes: str) -> None:
    recipe = Recipe(episodes=episodes, erm=None, meta=META)
    with pytest.raises(DataError, match="use episodes 'looks' to train φ alone"):
        generalizeformer.train(network(), domains("a", "b"), tmp_path, recipe=recipe)


def test_one_domain_is_trained_on_its_looks_by_default() -> None:
    from generalizeformer.training._own import _usual

    assert _usual(1).episodes == "looks"
    assert _usual(1).meta.looks is not None
    assert _usual(2).episodes == "held-out"
