"""Random crops, flips and colours for training: a whole batch at once, every image with draws of its own."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from generalizeformer.errors import DataError
from generalizeformer.imaging import colour
from generalizeformer.imaging.pixels import to_bytes, to_unit

TRIES = 10  # to draw a crop that lies in the image, as in torchvision
CACHED = 2**19  # floats that a CPU works on without going to memory, copies included

Change = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Config:
    """How far augmentation may go. Everything is off unless it is named."""

    shift: int | None = None  # whole pixels, either way, that an image moves over black
    flip_chance: float = 0.0  # that left and right change places
    crop: tuple[float, float] | None = None  # share of the area that a crop keeps, from and to
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height of a crop, from and to
    brightness: float = 0.0  # factors are uniform from 1 - this, but at least 0, to 1 + this
    contrast: float = 0.0  # likewise
    saturation: float = 0.0  # likewise
    hue: float = 0.0  # share of the circle of hues, either way
    grey_chance: float = 0.0  # that colours are lost

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                _check_range(field.name, *value)
            elif value is not None:
                _check_limit(field.name, value)


def _check_range(field: str, low: float, high: float) -> None:
    if not 0 < low <= high < math.inf:
        raise DataError(
            f"augmentation: {field} is {(low, high)}; give two numbers above 0, the smaller first"
        )


def _check_limit(field: str, value: float) -> None:
    top = 1.0 if field.endswith("chance") else 0.5 if field == "hue" else math.inf
    if not 0 <= value <= top or value == math.inf:
        right = "0 or more" if top == math.inf else f"between 0 and {top:g}"
        raise DataError(f"augmentation: {field} is {value}; it must be {right}, where 0 is off")


RECIPES = {
    # Gulrajani & Lopez-Paz, 2021.
    "domainbed": Config(
        crop=(0.7, 1.0),
        flip_chance=0.5,
        brightness=0.3,
        contrast=0.3,
        saturation=0.3,
        hue=0.3,
        grey_chance=0.1,
    ),
    # As in the released code of the paper. No crop is larger than the image: such draws are drawn again.
    "authors": Config(
        crop=(0.8, 1.2),
        ratio=(0.75, 1.33),
        flip_chance=0.5,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
    ),
    "digits": Config(shift=2),
}


def recipe(name: str) -> Config:
    """The settings of a published recipe, or an error that names the nearest there is."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(RECIPES)}"
        raise DataError(f"augmentation: there is no recipe {name!r}; {hint}")
    return RECIPES[name]


def augment(
    images: UInt8[Tensor, "n c h w"], generator: Generator, config: Config
) -> UInt8[Tensor, "n c h w"]:
    """New images of the same shape, every one changed by draws of its own.

    The draws come from a CPU generator wherever the images are. Only the order of the four colour
    changes is drawn once per call: an order for every image would cost four times as much.
    """
    images = images.clone()
    if not len(images):
        return images
    if config.shift:
        images = _shifted(images, config.shift, generator)
    if config.flip_chance:
        flipped = torch.rand(len(images), generator=generator) < config.flip_chance
        rows = flipped.nonzero().squeeze(1).to(images.device)
        images[rows] = images[rows].flip(3)
    changes = _changes(images, generator, config)
    together = _together(images)
    for start in range(0, len(images) if changes else 0, together):
        part = slice(start, start + together)
        changed = to_unit(images[part])
        for change, amounts in changes:
            changed = change(changed, amounts[part])
        images[part] = to_bytes(changed)
    return images


def _together(images: UInt8[Tensor, "n c h w"]) -> int:
    """How many images to change at once: on a CPU as many as its cache holds, which takes half the time."""
    on_cpu = images.device.type == "cpu"
    return max(1, CACHED // images[0].numel()) if on_cpu else len(images)


def _changes(
    images: UInt8[Tensor, "n c h w"], generator: Generator, config: Config
) -> list[tuple[Change, Tensor]]:
    """What to do to images in [0, 1], step by step, each with one amount per image, on the images' device."""
    count, changes = len(images), list[tuple[Change, Tensor]]()
    if config.crop is not None:
        changes.append((_cropped, _boxes(images, generator, config.crop, config.ratio)))
    jitter = (
        (colour.brightness, _factors(config.brightness)),
        (colour.contrast, _factors(config.contrast)),
        (colour.saturation, _factors(config.saturation)),
        (colour.hue, (-config.hue, config.hue)),
    )
    for index in torch.randperm(len(jitter), generator=generator).tolist():
        change, (low, high) = jitter[index]
        if low < high:
            changes.append((change, _uniform(low, high, (count,), generator)))
    if config.grey_chance:
        chosen = torch.rand(count, generator=generator) < config.grey_chance
        changes.append((colour.greyscale, chosen))
    return [(change, amounts.to(images.device)) for change, amounts in changes]


def _shifted(
    images: UInt8[Tensor, "n c h w"], limit: int, generator: Generator
) -> UInt8[Tensor, "n c h w"]:
    """The images moved by whole pixels; what comes in from outside is black."""
    count, channels, height, width = images.shape
    starts = torch.randint(2 * limit + 1, (count, 2, 1), generator=generator).to(images.device)
    rows = starts[:, 0] + torch.arange(height, device=images.device)
    columns = starts[:, 1] + torch.arange(width, device=images.device)
    each = torch.arange(count, device=images.device)[:, None, None, None]
    planes = torch.arange(channels, device=images.device)[:, None, None]
    padded = F.pad(images, (limit, limit, limit, limit))
    return padded[each, planes, rows[:, None, :, None], columns[:, None, None, :]]


def _boxes(
    images: UInt8[Tensor, "n c h w"],
    generator: Generator,
    shares: tuple[float, float],
    ratios: tuple[float, float],
) -> Int64[Tensor, "n 4"]:
    """Top, left, height and width of a crop for every image, on the CPU, with torchvision's distribution.

    Areas are uniform, ratios uniform in their logarithm, places uniform. A crop that does not fit is
    drawn again; after ten tries the largest crop in the middle that has an allowed ratio is taken.
    """
    (count, _, height, width), limits = images.shape, torch.tensor(images.shape[2:])
    areas = height * width * _uniform(*shares, (count, TRIES), generator)
    aspects = _uniform(math.log(ratios[0]), math.log(ratios[1]), (count, TRIES), generator).exp()
    places = torch.rand(count, 2, generator=generator)
    tried = torch.stack(((areas / aspects).sqrt(), (areas * aspects).sqrt()), -1).round().long()
    fits = ((tried >= 1) & (tried <= limits)).all(-1)
    first = fits.int().argmax(1)  # the first that fits, where one does
    found, some = tried[torch.arange(count), first], fits.any(1, keepdim=True)
    whole = torch.tensor(
        [
            min(height, max(1, round(width / ratios[0]))),
            min(width, max(1, round(height * ratios[1]))),
        ]
    )
    sides = torch.where(some, found, whole)
    room = limits - sides
    starts = torch.minimum(
        (places * (room + 1)).long(), room
    )  # rounding up must not leave the image
    return torch.cat((torch.where(some, starts, room // 2), sides), 1)


def _cropped(
    images: Float[Tensor, "n c h w"], boxes: Int64[Tensor, "n 4"]
) -> Float[Tensor, "n c h w"]:
    """The crops, brought to the size of the images bilinearly. A crop never reads pixels beside it."""
    count, _, height, width = images.shape
    top, left, tall, wide = boxes.to(images.device).unbind(1)
    down = _places(top, tall, height)[:, :, None].expand(count, height, width)
    across = _places(left, wide, width)[:, None, :].expand(count, height, width)
    grid = torch.stack((across, down), -1)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _places(
    starts: Int64[Tensor, " n"], sides: Int64[Tensor, " n"], length: int
) -> Float[Tensor, "n length"]:
    """Where along an axis each pixel of the answer is read, as `grid_sample` counts: from -1 to 1."""
    centres = torch.arange(length, device=starts.device) + 0.5
    inside = centres * (sides / length)[:, None] - 0.5
    last = (sides - 1).to(inside.dtype)[:, None]
    pixels = starts[:, None] + torch.minimum(inside.clamp(min=0), last)
    return (2 * pixels + 1) / length - 1


def _factors(strength: float) -> tuple[float, float]:
    return max(0.0, 1 - strength), 1 + strength


def _uniform(
    low: float, high: float, shape: tuple[int, ...], generator: Generator
) -> Float[Tensor, "..."]:
    return low + (high - low) * torch.rand(shape, generator=generator)
