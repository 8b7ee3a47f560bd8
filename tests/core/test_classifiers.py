import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from generalizeformer.core.classifiers import class_count, find_classifier
from generalizeformer.core.slots import Selection
from generalizeformer.errors import SlotError

from .nets import Net, images, model_of


def on_meta(build, *args, **kwargs) -> nn.Module:  # type: ignore[no-untyped-def]
    """The structure of a network without the cost of its weights."""
    with torch.device("meta"):
        return build(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("resnet18", "fc"),
        ("tf_efficientnet_lite0", "classifier"),
        ("regnety_002", "head.fc"),
        ("convnext_atto", "head.fc"),
        ("vit_tiny_patch16_224", "head"),
        ("mobilenetv3_small_050", "classifier"),
    ],
)
def test_timm_models_say_themselves_which_layer_it_is(name: str, classifier: str) -> None:
    backbone = on_meta(timm.create_model, name, num_classes=7)
    assert find_classifier(backbone) == classifier
    assert class_count(backbone, classifier) == 7


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("resnet50", "fc"),
        ("mobilenet_v2", "classifier.1"),
        ("vgg11_bn", "classifier.6"),
        ("convnext_tiny", "classifier.2"),
        ("densenet121", "classifier"),
        ("vit_b_32", "heads.head"),
        ("swin_t", "head"),
    ],
)
def test_torchvision_models_are_known_by_the_usual_names(name: str, classifier: str) -> None:
    backbone = on_meta(torchvision.models.get_model, name, weights=None, num_classes=7)
    assert find_classifier(backbone) == classifier
    assert class_count(backbone, classifier) == 7


def test_otherwise_it_is_the_last_linear_layer() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert find_classifier(backbone) == "3"


def test_a_name_that_is_given_wins() -> None:
    assert find_classifier(Net(), "hidden") == "hidden"


@pytest.mark.parametrize("name", ["conv", "nothing.here", ""])
def test_a_name_that_is_no_linear_layer_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(SlotError, match=rf"Net: '{name}' is no Linear layer; .*: hidden, fc$"):
        find_classifier(Net(), name)


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(SlotError, match="Sequential: there is no Linear layer"):
        find_classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))


class Detached(Net):
    """Its last Linear layer, `fc`, is followed by a convolution that gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(5, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(super().forward(x)[:, :, None, None]).flatten(1)


def test_a_model_whose_logits_are_not_its_last_linear_layer_s_is_refused_in_one_line() -> None:
    model = model_of(Detached())
    with pytest.raises(SlotError, match=r"returns \(2, 7\) but .* gives \(2, 5\)") as error:
        model(images(2, dtype=torch.float32))
    assert "Selection(classifier=...)" in str(error.value)
    assert "\n" not in str(error.value)


class Unused(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(self.norm(self.conv(x)).mean((2, 3)))


def test_a_model_that_never_calls_its_classifier_is_refused_until_the_right_one_is_named() -> None:
    x = images(2, dtype=torch.float32)
    with pytest.raises(SlotError, match="the classifier never ran"):
        model_of(Unused())(x)
    model = model_of(Unused(), selection=Selection(classifier="hidden"))
    assert model(x).shape == (2, 6)


class Dictionary(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": super().forward(x)}


@pytest.mark.usefixtures("unchecked")
def test_a_model_that_returns_no_tensor_is_refused() -> None:
    with pytest.raises(SlotError, match="returns dict"):
        model_of(Dictionary())(images(2, dtype=torch.float32))


class PerPixel(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).movedim(1, -1)
        return self.fc(self.hidden(x)).mean((1, 2))


def test_a_classifier_that_runs_per_pixel_is_refused() -> None:
    with pytest.raises(SlotError, match="not on one feature vector per image"):
        model_of(PerPixel())(images(2, dtype=torch.float32))


class Merged(Net):
    """Folds pairs of images into one row, so that rows are no images any more."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).flatten(0, 0)[:1])
        return super().forward(x) + 0 * y.mean()


def test_a_layer_that_sees_other_rows_than_images_is_refused() -> None:
    with pytest.raises(SlotError, match=r"norm: it saw 1 rows for 2 images.*exclude"):
        model_of(Merged())(images(2, dtype=torch.float32))


class Idle(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.BatchNorm2d(4)


def test_a_layer_that_is_never_called_is_refused_until_it_is_left_out() -> None:
    x = images(2, dtype=torch.float32)
    with pytest.raises(SlotError, match=r"spare.weight has no effect on the logits"):
        model_of(Idle())(x)
    assert model_of(Idle(), selection=Selection(exclude=("spare",)))(x).shape == (2, 5)
