"""Views as teachers and students see them: colours jittered, the image moved, blurred, mirrored and made noisy.

The list is that of KATANA, "Simple post-training robustness using test time augmentations", 2021, which CoTTA took
over with these limits, and RoTTA from CoTTA. It is meant for pixels from 0 to 1, so standardised images are first
taken back with the mean and standard deviation of the model's card, changed as floats, and standardised again: no
bytes in between, as nothing was lost before. What the card puts outside 0 to 1 is cut off, as in the references;
an image that the card does not describe therefore gives poor views, and one of other channels is refused.

A view has one set of draws for all images of the call; only noise differs. Deviations: blur follows the cut to the
image's size, not the other way round, which only the outermost two pixels can tell; hue and saturation leave
images without 3 channels as they are.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.shapes import Images
from generalizeformer.errors import ImageError
from generalizeformer.imaging import appearance, colour
from generalizeformer.imaging.pixels import turning

Change = Callable[[Tensor, Tensor], Tensor]

JITTER: tuple[tuple[Change, float, float], ...] = (
    (colour.brightness, 0.6, 1.4),
    (colour.contrast, 0.7, 1.3),
    (colour.saturation, 0.5, 1.5),
    (colour.hue, -0.06, 0.06),
    (lambda images, exponents: appearance.gamma(images, exponents.log()), 0.7, 1.3),
)
DEGREES = 15.0  # either way
SHIFT = (
    1 / 8
)  # of a side, either way: a sixteenth of the references' images, padded to twice the side
SCALE = (0.9, 1.1)
BLUR = (0.001, 0.5)  # sigma in pixels
FLIP_CHANCE = 0.5
NOISE = 0.005  # standard deviation


def check_described(images: Images, preprocessing: Preprocessing, method: str) -> None:
    """Raises where the card cannot take the images back to pixels."""
    if images.shape[1] != preprocessing.channels:
        raise ImageError(
            f"{method}: images have {images.shape[1]} channels, but the model's card gives mean and std for "
            f"{preprocessing.channels}; build the model with Card(preprocessing=Preprocessing(mean=…, std=…))"
        )


def strong_view(images: Images, preprocessing: Preprocessing, generator: Generator) -> Images:
    """One view of every image, in the units of the images. The draws come from a CPU generator."""
    exact = images.to(torch.promote_types(images.dtype, torch.float32))
    mean = exact.new_tensor(preprocessing.mean).reshape(-1, 1, 1)
    std = exact.new_tensor(preprocessing.std).reshape(-1, 1, 1)
    view = _jittered((exact * std + mean).clamp(0, 1), generator)
    view = _moved(view, generator)
    view = appearance.blur(view, _shared(view, BLUR, generator), BLUR[1])
    if torch.rand((), generator=generator) < FLIP_CHANCE:
        view = view.flip(3)
    view = appearance.roughen(view, torch.full_like(view[:, 0, 0, 0], NOISE), generator)
    return ((view.clamp(0, 1) - mean) / std).to(images.dtype)


def _jittered(pixels: Images, generator: Generator) -> Images:
    """The images with other colours, the changes in a random order."""
    for index in torch.randperm(len(JITTER), generator=generator).tolist():
        change, low, high = JITTER[index]
        pixels = change(pixels, _shared(pixels, (low, high), generator))
    return pixels


def _moved(pixels: Images, generator: Generator) -> Images:
    """The images turned and scaled about their centre, then shifted by whole pixels; edges are drawn out."""
    degrees = _shared(pixels[:1], (-DEGREES, DEGREES), generator)
    matrix = turning(degrees)[0] / _shared(pixels[:1], SCALE, generator)
    sides = pixels.new_tensor([pixels.shape[3], pixels.shape[2]])
    draws = 2 * torch.rand(2, generator=generator).to(pixels) - 1
    shift = (draws * SHIFT * sides).round()
    # affine_grid counts in half sides from the centre, and asks where each pixel of the answer is read.
    reading = matrix * sides / sides[:, None]
    affine = torch.cat((reading, -(reading @ (2 * shift / sides))[:, None]), 1)
    grid = F.affine_grid(affine.expand(len(pixels), 2, 3), list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def _shared(pixels: Images, limits: tuple[float, float], generator: Generator) -> Tensor:
    """One uniform draw, the same for every image."""
    low, high = limits
    drawn = low + (high - low) * torch.rand((), generator=generator).item()
    return pixels.new_full((len(pixels),), drawn)
