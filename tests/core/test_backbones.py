import builtins

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models._api import WeightsEnum

from generalizeformer.core.backbones import (
    DigitNet,
    build_backbone,
    library_of,
    parameter_count,
    replace_head,
)
from generalizeformer.errors import SlotError, UserError


def built(name: str, classes: int = 4, channels: int = 3) -> nn.Module:
    with torch.device("meta"):
        return build_backbone(name, classes, channels=channels)


def test_there_are_no_published_weights_of_our_own() -> None:
    with pytest.raises(UserError, match="nobody has published ImageNet weights of 'digits-small'"):
        build_backbone("digits-small", 4, pretrained=True)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("digits", "generalizeformer"),
        ("digits-small", "generalizeformer"),
        ("resnet18", "torchvision"),
        ("torchvision:resnet18", "torchvision"),
        ("timm:resnet18", "timm"),
        ("vit_tiny_patch16_224", "timm"),
    ],
)
def test_a_name_is_ours_then_torchvision_s_then_timm_s_unless_it_says_which(
    name: str, library: str
) -> None:
    assert type(built(name)).__module__.split(".")[0] == library


@pytest.mark.parametrize("name", ["digits", "resnet18", "timm:resnet18", "regnety_002"])
def test_the_head_has_the_classes_that_were_asked_for(name: str) -> None:
    assert built(name, 7)(torch.zeros(2, 3, 64, 64, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", ["digits", "resnet18", "timm:resnet18"])
def test_the_stem_has_the_channels_that_were_asked_for(name: str) -> None:
    backbone = built(name, 7, channels=1)
    assert backbone(torch.zeros(2, 1, 64, 64, device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "channels"), [("torchvision:resnet18", 1), ("torchvision:vit_tiny_patch16_224", 3)]
)
def test_torchvision_by_name_is_never_quietly_timm(name: str, channels: int) -> None:
    with pytest.raises(UserError, match="torchvision has no"):
        built(name, channels=channels)


SEVERAL_HEADS = {"googlenet": 64, "inception_v3": 80}


@pytest.mark.parametrize("name", SEVERAL_HEADS)
def test_heads_that_only_help_to_learn_are_left_out(name: str) -> None:
    size, backbone = SEVERAL_HEADS[name], built(name, 7)
    assert backbone.train()(torch.zeros(2, 3, size, size, device="meta")).shape == (2, 7)
    assert not any("aux" in key.lower() for key in backbone.state_dict())


@pytest.mark.parametrize("name", SEVERAL_HEADS)
def test_published_weights_with_several_heads_make_the_same_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"weights": None, "aux_logits": True, "init_weights": False}
    published = torchvision.models.get_model(name, **options).state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: published)
    size, plain = SEVERAL_HEADS[name], build_backbone(name, 7).eval()
    backbone = build_backbone(name, 7, pretrained=True)
    images = torch.linspace(-1, 1, 2 * 3 * size**2).reshape(2, 3, size, size)
    assert backbone.train()(images).shape == (2, 7)
    # A saved model is built by its name, and then has the weights that are stored: its answers are to be the same.
    plain.load_state_dict(backbone.state_dict())
    with torch.no_grad():
        assert torch.equal(plain(images), backbone.eval()(images))


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="there is no 'resnet1888'; did you mean"):
        built("resnet1888")


def test_a_misspelt_name_of_ours_is_answered_with_ours() -> None:
    with pytest.raises(UserError, match="did you mean 'digits-small'"):
        built("digits-smal")


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(UserError, match="'keras:resnet18'; give a name, torchvision:name or timm"):
        built("keras:resnet18")


def test_without_timm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_timm(name: str, *args: object, **kwargs: object) -> object:
        if name == "timm":
            raise ImportError
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_timm)
    with pytest.raises(UserError, match=r"pip install 'generalizeformer\[timm\]'"):
        built("regnety_002")


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "vit_b_32"])
def test_replacing_the_head_keeps_everything_else(name: str) -> None:
    with torch.device("meta"):
        backbone = torchvision.models.get_model(name, weights=None, num_classes=10)
        kept = {id(p) for p in backbone.parameters()}
        replaced = replace_head(backbone, 3)
    fresh = [n for n, p in replaced.named_parameters() if id(p) not in kept]
    assert len(fresh) == 2
    assert replaced.get_parameter(fresh[0]).shape[0] == 3


def test_a_model_without_a_linear_head_cannot_get_another() -> None:
    with torch.device("meta"), pytest.raises(SlotError, match="no Linear layer"):
        replace_head(torchvision.models.squeezenet1_1(weights=None), 3)


def test_parameters_are_counted() -> None:
    assert parameter_count(DigitNet(2, (4,), 1)) == 4 * 9 + 8 + 4 * 2 + 2


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("digits", "ours"),
        ("resnet18", "torchvision"),
        ("timm:resnet18", "timm"),
        ("test_vit", "timm"),
    ],
)
def test_whose_a_backbone_is(name: str, library: str) -> None:
    assert library_of(name) == library


@pytest.mark.parametrize("name", ["resnte18", "torchvision:nope", "hub:resnet18"])
def test_a_backbone_that_nobody_has_is_refused_without_building_any(name: str) -> None:
    with pytest.raises(UserError, match=r"^backbone: "):
        library_of(name)
