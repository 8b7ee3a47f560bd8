"""Weather: snow, frost, fog, and a brighter light."""

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.imaging.corruptions._draws import Draws
from generalizeformer.imaging.corruptions._filters import smear
from generalizeformer.imaging.corruptions._moves import zoom
from generalizeformer.imaging.corruptions._textures import crystals, plasma

Images = Float[Tensor, "n c h w"]


def snow(
    images: Images,
    draws: Draws,
    mean: float,
    deviation: float,
    size: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Images:
    """The images whitened, under flakes that fall: large noise, of which only peaks stay, smeared."""
    flakes = mean + deviation * draws.normal(1, *images.shape[2:])
    flakes = zoom(flakes, size).clamp(max=1)
    flakes = flakes.masked_fill(flakes < threshold, 0)
    flakes = smear(flakes, radius, sigma, draws.uniform(-135, -45))
    white = torch.maximum(images, 1.5 * _grey(images) + 0.5)
    return kept * images + (1 - kept) * white + flakes + flakes.flip(2, 3)


def _grey(images: Images) -> Float[Tensor, "n 1 h w"]:
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    weights = images.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


def frost_synth(images: Images, draws: Draws, kept: float, thickness: float) -> Images:
    """The images behind ice, with the published weights.

    The published frost is cut from photographs that are not ours to ship. This one is drawn from
    noise, so that accuracies under it cannot be compared with those under the original.
    """
    return kept * images + thickness * crystals(draws, *images.shape[1:])


def fog(images: Images, draws: Draws, thickness: float, decay: float) -> Images:
    """The images behind clouds, darkened so that their brightest value stays where it was."""
    height, width = images.shape[2:]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    clouds = plasma(draws, height, width, decay)
    return (images + thickness * clouds) * brightest / (brightest + thickness)


def brightness(images: Images, draws: Draws, added: float) -> Images:
    """The images with more value in the sense of hue, saturation, value; the other two stay."""
    value = images.amax(dim=1, keepdim=True)
    brighter = (value + added).clamp(max=1)
    # Black has no hue to keep, and becomes grey.
    return torch.where(value > 0, images * (brighter / value.clamp(min=1e-3)), brighter)
