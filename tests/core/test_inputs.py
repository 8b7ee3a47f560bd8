import pytest
import torch
from torch import Tensor, nn

from generalizeformer.core.inputs import accepted_channels, check_images
from generalizeformer.errors import ImageError

from .nets import GENERATORS, Net, images, lived, model_of, perturbed


def broken(value: float) -> Tensor:
    x = images(4, dtype=torch.float32)
    x[2, 1, 3, 3] = value
    return x


REFUSED: dict[str, tuple[object, str]] = {
    "an empty batch": (torch.zeros(0, 3, 8, 8), r"got shape \(0, 3, 8, 8\); give a non-empty"),
    "images without pixels": (torch.zeros(2, 3, 0, 8), "non-empty batch"),
    "one image without a batch": (torch.zeros(3, 8, 8), r"got shape \(3, 8, 8\).*\(N, C, H, W\)"),
    "NaN": (broken(float("nan")), r"NaN or infinite pixels in image 2 \(1 such"),
    "infinity": (broken(float("inf")), "NaN or infinite pixels in image 2"),
    "grey images": (torch.zeros(2, 1, 8, 8), "got 1 channels; this model takes 3"),
    "bytes": (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "got torch.uint8; give floats.*255"),
    "doubles": (torch.zeros(2, 3, 8, 8).double(), r"float64 for a torch.float32 .*images\.to"),
    "no tensor": ([[1.0]], "got list; give a float tensor"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call", ["__call__", "generate", "observe", "explain", "calibrate"])
@pytest.mark.parametrize("case", list(REFUSED))
def test_every_public_call_refuses(case: str, call: str) -> None:
    value, text = REFUSED[case]
    with pytest.raises(ImageError, match=text) as error:
        getattr(model_of(Net()), call)(value)
    assert "\n" not in str(error.value)


GROUPS: dict[str, tuple[object, str]] = {
    "too few": (torch.zeros(2, dtype=torch.long), r"got shape \(2,\) for 3 images.*shape \(3,\)"),
    "too many": (torch.zeros(4, dtype=torch.long), r"got shape \(4,\) for 3 images"),
    "two axes": (torch.zeros(3, 1, dtype=torch.long), r"got shape \(3, 1\)"),
    "floats": (torch.zeros(3), "got torch.float32; give a LongTensor"),
    "booleans": (torch.zeros(3, dtype=torch.bool), "got torch.bool; give a LongTensor"),
    "a list": ([0, 0, 1], "got list; give a LongTensor"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", list(GROUPS))
def test_groups_are_refused_that_do_not_say_one_id_per_image(case: str) -> None:
    value, text = GROUPS[case]
    with pytest.raises(ImageError, match=text):
        model_of(Net())(images(3, dtype=torch.float32), value)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_groups_of_every_integer_type_are_understood(dtype: torch.dtype) -> None:
    model, x = perturbed(lived(Net())), images(3)
    expected = model(x, torch.tensor([1, 0, 1]))
    assert torch.equal(model(x, torch.tensor([1, 0, 1], dtype=dtype)), expected)


@pytest.mark.parametrize("generator", list(GENERATORS))
def test_one_image_is_answered(generator: str) -> None:
    answers = perturbed(lived(Net()), GENERATORS[generator])(images(1))
    assert answers.shape == (1, 5)
    assert answers.isfinite().all()


@pytest.mark.parametrize("loss", ["entropy", "pseudo-label", "memo"])
@pytest.mark.parametrize("generator", list(GENERATORS))
def test_a_model_with_one_class_answers_with_finite_logits(generator: str, loss: str) -> None:
    model = perturbed(lived(Net(classes=1)), GENERATORS[generator], loss=loss)
    answers = model(images(3), torch.tensor([0, 1, 1]))
    assert answers.shape == (3, 1)
    assert answers.isfinite().all()


@pytest.mark.parametrize("generator", list(GENERATORS))
def test_black_images_are_answered_with_finite_logits(generator: str) -> None:
    model = perturbed(lived(Net()), GENERATORS[generator])
    assert model(torch.zeros(2, 3, 16, 16, dtype=torch.float64)).isfinite().all()


def test_half_precision_images_are_accepted_under_autocast_only() -> None:
    x = images(2, dtype=torch.bfloat16)
    with pytest.raises(ImageError, match=r"bfloat16 for a torch\.float32 model"):
        check_images(x, Net())
    with torch.autocast("cpu", torch.bfloat16):
        check_images(x, Net())


def test_a_model_without_convolutions_takes_any_number_of_channels() -> None:
    assert accepted_channels(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) == []
    check_images(torch.zeros(2, 1, 2, 2), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
