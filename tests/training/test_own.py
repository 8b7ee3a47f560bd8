"""Training from Python on the reader's own model and images."""

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import generalizeformer
from generalizeformer import GeneralizeFormer, Preprocessing, Recipe
from generalizeformer.core.backbones import DigitNet, build_backbone
from generalizeformer.errors import DataError
from generalizeformer.imaging.looks import Config as Looks
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


def test_looks_need_no_settings_of_their_own(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=MetaConfig(steps=2, images=8, sizes=(4,)))
    generalizeformer.train(network(), domains("a", "b"), tmp_path, recipe=recipe)
    assert (tmp_path / "config.json").exists()


def test_the_classes_are_the_classifiers_not_those_of_the_labels(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    five = DigitNet(5, (4, 6), 3)
    model = generalizeformer.train(five, domains("a"), tmp_path, recipe=recipe)
    assert model.card.classes == ("0", "1", "2", "3", "4")
    with pytest.raises(DataError, match=r"domain 'a': labels go up to 3, but .* 2 classes apart"):
        generalizeformer.train(DigitNet(2, (4, 6), 3), domains("a"), tmp_path / "x", recipe=recipe)
    with pytest.raises(DataError, match="got 3 names, but the backbone's classifier tells 5"):
        generalizeformer.train(five, domains("a"), tmp_path / "x", classes=("x", "y", "z"))
    assert not (tmp_path / "x").exists()


def test_nothing_to_learn_from_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got no domains; give at least one"):
        generalizeformer.train(network(), {}, tmp_path)
    empty = {"a": (torch.zeros(0, 3, 16, 16, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))}
    with pytest.raises(DataError, match="domain 'a': it has no images"):
        generalizeformer.train(network(), empty, tmp_path)


def test_a_model_with_a_name_loads_by_itself(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    named = build_backbone("digits-small", 4)
    generalizeformer.train(
        named, domains("a"), tmp_path, recipe=recipe, architecture="digits-small"
    )
    assert GeneralizeFormer.from_pretrained(tmp_path).card.architecture == "digits-small"
    with pytest.raises(DataError, match="'digits-small' has other weights than the DigitNet"):
        generalizeformer.train(network(), domains("a"), tmp_path, architecture="digits-small")


def test_a_fabric_of_ones_own_is_used_and_the_device_is_not(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    where = Fabric(accelerator="cpu", devices=1)
    model = generalizeformer.train(
        network(), domains("a"), tmp_path, recipe=recipe, device="nonsense", fabric=where
    )
    assert next(model.parameters()).device == where.device


def test_one_domain_is_trained_on_its_looks_by_default() -> None:
    from generalizeformer.training._own import _usual

    assert _usual(1).episodes == "looks"
    assert _usual(1).meta.looks is not None
    assert _usual(2).episodes == "held-out"
