"""MixStyle: images lend each other the means and spreads of their feature maps' channels.

Zhou et al., "Domain generalization with MixStyle", ICLR 2021; here after the first or the second stage, as in ITTA.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from generalizeformer.core.shapes import Images

CONCENTRATION = 0.1  # of the Beta distribution of an image's share in its own style
EPSILON = 1e-6  # added to variances


class Mixing(NamedTuple):
    """After which stage styles are mixed, each image's share in its own, and who gives the rest."""

    stage: int
    shares: Float[Tensor, " images"]
    partners: Int64[Tensor, " images"]


def draw_mixing(images: Images, generator: torch.Generator) -> Mixing:
    """The first or the second stage, and for every image a share from Beta(0.1, 0.1) and a partner by permutation."""
    stage = int(torch.randint(2, (1,), generator=generator))
    # torch has no Beta distribution that takes a generator.
    draws = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    shares = draws.beta(CONCENTRATION, CONCENTRATION, len(images))
    partners = torch.randperm(len(images), generator=generator)
    return Mixing(stage, torch.from_numpy(shares).to(images), partners.to(images.device))


def mix_styles(
    maps: Float[Tensor, "images c h w"], mixing: Mixing
) -> Float[Tensor, "images c h w"]:
    """The maps with each channel's mean and spread drawn towards the partner's; no gradient through either."""
    # In single precision at least: a channel that is nearly constant is divided by very little.
    precise = maps.to(torch.promote_types(maps.dtype, torch.float32))
    variance, mean = torch.var_mean(precise.detach(), (2, 3), keepdim=True)
    spread = (variance + EPSILON).sqrt()
    own, partners = mixing.shares.to(precise.dtype).reshape(-1, 1, 1, 1), mixing.partners
    mixed_spread = own * spread + (1 - own) * spread[partners]
    mixed_mean = own * mean + (1 - own) * mean[partners]
    return ((precise - mean) / spread * mixed_spread + mixed_mean).to(maps.dtype)
