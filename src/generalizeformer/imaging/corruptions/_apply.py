"""The corruptions by name: what is asked is checked, constants are looked up, bytes come back as bytes."""

import difflib
from collections.abc import Callable

from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from generalizeformer.errors import DataError
from generalizeformer.imaging.corruptions import blur, digital, noise, weather
from generalizeformer.imaging.corruptions._draws import Draws
from generalizeformer.imaging.corruptions._severities import constants
from generalizeformer.imaging.pixels import to_bytes, to_unit

# Takes images in [0, 1], the draws, and the constants of one severity.
Corruption = Callable[..., Float[Tensor, "n c h w"]]

_CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost_synth": weather.frost_synth,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}

NAMES = tuple(_CORRUPTIONS)  # in the published order


def corrupt(
    images: UInt8[Tensor, "n c h w"], name: str, severity: int, seeds: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n c h w"]:
    """The images under one corruption, severity 1 to 5, on the device where they are.

    What becomes of an image depends on its pixels, its seed and the device, never on the other
    images. On a CPU only the lowest 32 bits of a seed count.
    """
    _check(len(images), name, severity, len(seeds))
    if not len(images):
        return images.clone()
    given = constants(name, severity, shorter_side=min(images.shape[2:]))
    draws = Draws(seeds, images.device)
    return to_bytes(_CORRUPTIONS[name](to_unit(images), draws, *given))


def _check(images: int, name: str, severity: int, seeds: int) -> None:
    if name not in _CORRUPTIONS:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(NAMES)}"
        raise DataError(f"corruptions: there is no {name!r}; {hint}")
    if severity not in range(1, 6):
        raise DataError(f"corruptions: severity is {severity}; choose 1, 2, 3, 4 or 5")
    if images != seeds:
        raise DataError(
            f"corruptions: got {seeds} seeds for {images} images; give one seed for each image"
        )
