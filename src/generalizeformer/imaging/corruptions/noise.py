"""Noise: of a sensor, of too little light, of broken pixels. Every channel has its own."""

from jaxtyping import Float
from torch import Tensor

from generalizeformer.imaging.corruptions._draws import Draws

Images = Float[Tensor, "n c h w"]


def gaussian_noise(images: Images, draws: Draws, deviation: float) -> Images:
    """The images with normal noise added."""
    return images + deviation * draws.normal(*images.shape[1:])


def shot_noise(images: Images, draws: Draws, photons: float) -> Images:
    """The images as a count of photons, of which a white pixel gives so many on average."""
    return draws.poisson(images * photons) / photons


def impulse_noise(images: Images, draws: Draws, share: float) -> Images:
    """The images with this share of their values lost, half of them to 0 and half to 1."""
    drawn = draws.uniform(0, 1, *images.shape[1:])
    return images.masked_fill(drawn < share / 2, 0).masked_fill(drawn >= 1 - share / 2, 1)
