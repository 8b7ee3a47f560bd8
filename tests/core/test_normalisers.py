"""Every norm layer of torch, torchvision and timm: found, generated, grouped, and the same as before."""

import copy
from collections.abc import Callable

import pytest
import timm.layers
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.convnext import LayerNorm2d as TorchvisionLayerNorm2d
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.core.normalisers import along, rescaled
from generalizeformer.core.slots import Selection, find_slots
from generalizeformer.errors import SlotError

from .nets import Net, by_loop, images, lived, model_of, perturbed

NORMS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "BatchNorm2d": (lambda: nn.BatchNorm2d(8), False),
    "BatchNorm1d": (lambda: Flat(nn.BatchNorm1d(8)), False),
    "SyncBatchNorm": (lambda: Alone(nn.SyncBatchNorm(8)), False),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), False),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(8, affine=True), False),
    "InstanceNorm2d with statistics": (
        lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        False,
    ),
    "LayerNorm": (lambda: nn.LayerNorm(8), True),
    "LayerNorm without bias": (lambda: nn.LayerNorm(8, bias=False), True),
    "RMSNorm": (lambda: nn.RMSNorm(8), True),
    "torchvision FrozenBatchNorm2d": (lambda: FrozenBatchNorm2d(8), False),
    "torchvision LayerNorm2d": (lambda: TorchvisionLayerNorm2d(8), False),
    "timm LayerNorm": (lambda: timm.layers.LayerNorm(8), True),
    "timm LayerNorm2d": (lambda: timm.layers.LayerNorm2d(8), False),
    "timm LayerNormAct2d": (lambda: timm.layers.LayerNormAct2d(8), False),
    "timm BatchNormAct2d": (lambda: timm.layers.BatchNormAct2d(8), False),
    "timm FrozenBatchNormAct2d": (lambda: timm.layers.FrozenBatchNormAct2d(8), False),
    "timm GroupNorm": (lambda: timm.layers.GroupNorm(8, num_groups=2), False),
    "timm GroupNorm1": (lambda: timm.layers.GroupNorm1(8), False),
    "timm GroupNormAct": (lambda: timm.layers.GroupNormAct(8, num_groups=2), False),
    "timm RmsNorm": (lambda: timm.layers.RmsNorm(8), True),
    "timm RmsNorm2d": (lambda: timm.layers.RmsNorm2d(8), False),
}
NAMES = list(NORMS)


class Flat(nn.Module):
    """A norm over (images, channels, length)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(2)).reshape(x.shape)


class Alone(nn.Module):
    """SyncBatchNorm trains on a GPU only; here it never trains."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = norm

    def forward(self, x: Tensor) -> Tensor:
        self.inner.eval()
        return self.inner(x)


def net(name: str) -> nn.Module:
    torch.manual_seed(0)
    build, tokens = NORMS[name]
    return lived(Net(build(), tokens))


GROUPS = torch.tensor([4, 4, -2, 9, 9, 9, -2])


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_is_found(name: str) -> None:
    slots = find_slots(net(name), Selection(kinds=("norm",)))
    assert [slot.layer.split(".")[0] for slot in slots] == ["norm"]


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_model_answers_like_the_plain_one(name: str) -> None:
    backbone, x = net(name), images(7)
    torch.testing.assert_close(model_of(backbone)(x, GROUPS), backbone(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_model_generates_the_source_parameters_bit_for_bit(name: str) -> None:
    backbone, x = net(name), images(7)
    model = model_of(backbone)
    source = model.slots.parameters_of(backbone)
    generated = model.generate(x, GROUPS)
    assert generated.keys() == source.keys()
    assert all(torch.equal(v, source[n].expand_as(v)) for n, v in generated.items())


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_answered_as_if_each_came_alone(name: str) -> None:
    backbone, x = net(name), images(7)
    model = perturbed(backbone, selection=Selection(kinds=("norm",)))
    answers = model(x, GROUPS)
    assert (answers - backbone(x)).abs().amax() > 1e-4
    torch.testing.assert_close(answers, by_loop(model, x, GROUPS), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_generated_parameters_put_into_the_backbone_give_the_same_answers(name: str) -> None:
    backbone, x = net(name), images(3)
    model = perturbed(backbone)
    target = {n: value[0] for n, value in model.generate(x).items()}
    expected = torch.func.functional_call(backbone, target, (x,))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-8)


def test_every_norm_layer_of_a_model_on_channels_last_images_is_answered_alike() -> None:
    backbone, x = net("timm LayerNorm2d"), images(7)
    model = perturbed(backbone)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(last, GROUPS), model(x, GROUPS), rtol=0, atol=1e-8)


HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@HALF
@pytest.mark.parametrize("offset", [0.0, 5.0, 50.0])
def test_half_precision_is_rounded_once_however_far_from_zero(
    dtype: torch.dtype, offset: float
) -> None:
    x = (images(6) + offset).to(dtype)
    slope, start = torch.rand(6, 3) + 0.5, torch.randn(6, 3)
    start -= offset * slope
    expected = x.double() * along(slope.double(), 1, x) + along(start.double(), 1, x)
    answers = rescaled(nn.BatchNorm2d(3), x, slope, start)
    assert answers.dtype == dtype
    rtol = torch.finfo(dtype).eps
    torch.testing.assert_close(answers.double(), expected, rtol=rtol, atol=1e-5 * (1 + offset))


@HALF
def test_a_constant_channel_does_not_overflow(dtype: torch.dtype) -> None:
    x, narrow = torch.full((2, 3, 4, 4), 300.0), nn.BatchNorm2d(3)
    mean, scale = torch.full((3,), 300.0), torch.full((3,), narrow.eps).rsqrt()
    assert rescaled(narrow, x.to(dtype), scale, -mean * scale).abs().max() < 0.01


@HALF
def test_models_of_half_precision_answer_far_from_zero_as_they_did(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    backbone = Net()
    with torch.no_grad():
        backbone.conv.bias.add_(30)
    lived(backbone).to(dtype)
    with torch.no_grad():
        x = images(7, dtype=dtype)
        answers, plain = model_of(backbone)(x, GROUPS), backbone(x)
        exact = copy.deepcopy(backbone).double()(x.double())
    error, own = ((given - exact).abs().max().item() for given in (answers, plain))
    assert error < 2 * own


class SquaredScale(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.square(), self.bias, self.eps)


class OneMore(nn.RMSNorm):
    """As in models that keep γ - 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), 1 + self.weight, self.eps)


class OwnStatistics(nn.BatchNorm2d):
    """Normalises by the batch even in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


class Loud(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class ChannelsFirst(nn.LayerNorm):
    """Takes another shape than its family, which its name does not tell."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    "norm",
    [
        SquaredScale(8),
        OneMore(8),
        OwnStatistics(8),
        Loud(8),
        ChannelsFirst(8),
        timm.layers.EvoNorm2dB0(8),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_a_subclass_that_computes_something_else_is_refused_by_name(norm: nn.Module) -> None:
    with pytest.raises(SlotError, match=rf"norm: {type(norm).__name__} does not compute.*exclude"):
        model_of(Net(norm))


@pytest.mark.parametrize(
    "family", [nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm], ids=lambda f: f.__name__
)
def test_a_subclass_that_computes_the_same_is_taken(family: type[nn.Module]) -> None:
    own = type("Own", (family,), {})(8)
    over_tokens = family is nn.LayerNorm
    backbone = lived(Net(Flat(own) if family is nn.BatchNorm1d else own, over_tokens))
    x = images(3)
    torch.testing.assert_close(model_of(backbone)(x), backbone(x), rtol=0, atol=1e-10)


def test_batch_norm_without_running_statistics_is_refused_with_a_way_out() -> None:
    backbone = Net(nn.BatchNorm2d(8, track_running_stats=False))
    with pytest.raises(SlotError, match=r"norm: .*no running statistics.*track_running_stats=True"):
        model_of(backbone)


def test_norm_layers_without_parameters_are_no_slots() -> None:
    slots = find_slots(Net(nn.BatchNorm2d(8, affine=False)), Selection())
    assert [slot.layer for slot in slots] == ["fc"]


def test_layer_norm_over_several_axes_is_no_slot() -> None:
    slots = find_slots(Net(nn.LayerNorm((8, 7, 7))), Selection())
    assert [slot.layer for slot in slots] == ["fc"]


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fused_path_of_torch_s_transformer_layer_does_not_bypass_generation(
    norm_first: bool,
) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 8, 4, 4)
            layer = nn.TransformerEncoderLayer(
                8, 2, 16, batch_first=True, norm_first=norm_first, dropout=0
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.fc = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.encoder(self.patch(x).flatten(2).mT).mean(1))

    torch.manual_seed(0)
    backbone, x = lived(Encoder()), images(7)
    model = perturbed(backbone)
    with torch.no_grad():
        answers = model(x, GROUPS)
    assert (answers - backbone(x)).abs().amax() > 1e-4
    torch.testing.assert_close(answers, by_loop(model, x, GROUPS), rtol=0, atol=1e-8)
    target = {n: value[0] for n, value in model.generate(x[:2]).items()}
    expected = torch.func.functional_call(backbone, target, (x[:2],))
    torch.testing.assert_close(answers[:2], expected, rtol=0, atol=1e-8)
