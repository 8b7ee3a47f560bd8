"""How mixed a group of images is: whether they can all be of one look.

Distances in source units cannot tell it, because images differ by what they show as much as by their looks. Source
images under random looks tell both kinds of variation apart, as recordings tell speakers apart (probabilistic linear
discriminant analysis with two covariances): with W the covariance of what single images show within looks and B that
between looks, along directions in which W is 1 and B is r, a look is N(0, r) and an image of it N(look, κ). Every two
images then have a likelihood ratio of one look against two. As weights of kin these are too sharp; how many images
they leave to each other tells how mixed a group is (docs/experiments.md, section 24).
"""

from collections.abc import Mapping
from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from generalizeformer.core.groups import Grouping
from generalizeformer.core.statistics import Statistics, bounded
from generalizeformer.core.variation import in_units_of_images

DIRECTIONS = 64
STRANGE = 2.0  # κ: images of an unknown domain vary more within a look than the source's do
FEW = 0.5  # of a group's images: what leaves only so many to each image can hardly be more mixed
# Of what is then found, groups of one look had .63 at most, groups of eight looks .99 at least. So up to UNSURE a group
# is not mixed at all, and STEEP further on it wholly is.
UNSURE = 0.6
STEEP = 0.3

Seen = Mapping[str, Statistics]
Numbers = Float[Tensor, "images numbers"]


class Likeness(nn.Module):
    """What tells looks apart in what first layers show; part of the saved model."""

    def __init__(self, channels: Mapping[str, int]) -> None:
        """`channels`: of the layers that tell, by name."""
        super().__init__()
        self.layers = tuple(channels)
        numbers = 2 * sum(channels.values())
        self.register_buffer("centre", torch.zeros(numbers))
        self.register_buffer("into", torch.zeros(numbers, DIRECTIONS))
        self.register_buffer("ratio", torch.zeros(DIRECTIONS))

    @torch.no_grad()
    def learn(self, seen: Seen, looks: Grouping) -> None:
        """From source images one by one, in source units. `looks`: which of them look alike, two or more each."""
        with torch.autocast(looks.ids.device.type, enabled=False):
            shown = self._numbers(seen)
            centre, into, ratio = _directions(shown, looks)
            most = min(len(ratio), DIRECTIONS)
            self.get_buffer("centre").copy_(centre)
            self.get_buffer("into").zero_()[:, :most] = into[:, :most]
            self.get_buffer("ratio").zero_()[:most] = ratio[:most]

    @torch.no_grad()
    def mixed(self, seen: Seen, together: Grouping) -> Float[Tensor, " groups"]:
        """Of each group: 0 where all images can be of one look, 1 where nearly half of them are not, or more."""
        with torch.autocast(together.ids.device.type, enabled=False):
            shown = self._numbers(seen)
            names = ("centre", "into", "ratio")
            centre, into, ratio = (self.get_buffer(name).to(shown.dtype) for name in names)
            along, empty = together.dense((shown - centre) @ into)
            alike = _same(along, ratio).sigmoid()
            return _mixed(alike.masked_fill(empty.unsqueeze(1), 0), empty)

    def _numbers(self, seen: Seen) -> Numbers:
        """Of every image, so scaled that all layers weigh alike, whatever their width; in single precision at least."""
        parts = [seen[name] for name in self.layers]
        told = [torch.cat(bounded(p), 1) / sqrt(p.mean.shape[1]) for p in parts]
        centre = self.get_buffer("centre")
        exact = torch.promote_types(centre.dtype, torch.float32)
        return torch.cat(told, 1).to(centre.device, exact)


def _mixed(
    alike: Float[Tensor, "groups most most"], empty: Bool[Tensor, "groups most"]
) -> Float[Tensor, " groups"]:
    """From the chances that two images are of one look."""
    itself = torch.eye(alike.shape[1], device=alike.device, dtype=torch.bool)
    alike = alike.nan_to_num(0).masked_fill(itself, 1)  # what cannot be compared is not alike
    left = alike.sum(2).square() / alike.square().sum(2)  # images, as the weights count them
    here = (~empty).to(left.dtype)
    share = (left * here).sum(1) / here.sum(1).square()
    found = ((1 - share) / FEW).clamp(0, 1)
    return ((found - UNSURE) / STEEP).clamp(0, 1)


def _same(
    along: Float[Tensor, "groups most directions"], ratio: Float[Tensor, " directions"]
) -> Float[Tensor, "groups most most"]:
    """Log likelihood ratio of every two images: one look against two.

    A pair's sum and difference are independent. Of one look, their variances are 2 (1 + 2 r) and 2; of two, 2 (1 + r)
    both, all in units of κ.
    """
    along, ratio = along / STRANGE**0.5, ratio / STRANGE
    chance = (ratio.log1p() - 0.5 * (2 * ratio).log1p()).sum()
    # Multiplied out, so that nothing larger than (most, most) is kept.
    one, two = 1 / (1 + 2 * ratio), 1 / (1 + ratio)
    square = (along.square() * (two / 2 - one / 4 - 0.25)).sum(2)
    across = (along * (0.5 - one / 2)) @ along.transpose(1, 2)
    return chance + square.unsqueeze(2) + square.unsqueeze(1) + across


def _directions(
    shown: Numbers, looks: Grouping
) -> tuple[
    Float[Tensor, " numbers"], Float[Tensor, "numbers directions"], Float[Tensor, " directions"]
]:
    """The mean of all, what leads into the directions, and the ratio of B to W in each, the largest first."""
    centre = shown.mean(0)
    shown = shown - centre
    root, first, second = in_units_of_images(shown, looks, least=1e-9)
    turned = torch.linalg.svd(first + second, full_matrices=False).U
    # What both halves of a look's images agree in is the look's: chance has no part in it.
    ratio = ((turned.T @ first) * (turned.T @ second)).mean(1).clamp(min=0)
    ratio, order = ratio.sort(descending=True, stable=True)
    return centre, torch.linalg.solve_triangular(root.T, turned[:, order], upper=True), ratio
