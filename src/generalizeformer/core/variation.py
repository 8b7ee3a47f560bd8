"""What images show of their looks: statistics vary from image to image, and from look to look.

One image's mean and spread tell more of what it shows than of how all images like it look. Source images under random
looks show both kinds of variation, and then a look has a best linear guess from n of its images (empirical Bayes). With
f = (mean, log spread) of a layer's channels in source units, as single images show it, W its covariance within looks
and B how far the means of looks are from the source, that is B (B + W / n)^-1 f. Along the directions that make both
diagonal this shrinks each by r / (r + 1 / n), r its ratio of B to W; those with the largest ratios are kept. That
single images have less spread than the source has counts as a look that all have (docs/experiments.md, section 21).

Images that arrive together need not look alike. Along a direction, images of one look vary by 1 (W); what a group
varies more than that, d, is looks that differ, and then an image's own look is d / (d + 1) of the way from the group's
mean to the image (section 22).

To single images and groups of one look, all this does more harm than good. Where it is known how mixed a group is
(`core.likeness`), it counts only so far; what is left is the ordinary rule, n / (n + 1) of what n images show. Where no
group is mixed, layers settle as if nothing were known of looks.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer.core.groups import Grouping
from generalizeformer.core.statistics import Statistics, bounded
from generalizeformer.errors import SlotError

RIDGE = 0.3  # of the mean variance, added to each: there are fewer images than channels
# Images of the source that a mixed group is weighed against, in what lies in no direction.
GUESSED = 5.0
MOST = 4.0  # how much looks that arrive together may differ, in units of how much known ones do


def priors(prior: float, guessed: float, of: Grouping) -> Float[Tensor, "groups 1"]:
    """Images of the source that each group is weighed against: from `prior`, not mixed, to `guessed`, mixed."""
    if of.alike:
        return torch.full_like(of.sizes, prior).unsqueeze(1)
    mixed = torch.ones_like(of.sizes) if of.mixed is None else of.mixed
    return (prior + mixed * (guessed - prior)).unsqueeze(1)


class Guess(NamedTuple):
    """Of one layer: from what groups and their images show to their looks. A row is (mean, log spread)."""

    into: Float[Tensor, "both directions"]
    back: Float[Tensor, "both directions"]
    ratio: Float[Tensor, " directions"]
    prior: float
    guessed: float

    def __call__(
        self, shown: Float[Tensor, "groups both"], each: Float[Tensor, "images both"], of: Grouping
    ) -> tuple[Float[Tensor, "groups both"], Float[Tensor, "images both"]]:
        """The groups' looks, and the images'."""
        count = of.sizes.unsqueeze(1).to(shown.dtype)
        along = each @ self.into
        apart = along - of.spread(of.mean(along))
        differ = self._differ(apart.detach(), of, count)
        mixed = 1.0 if of.mixed is None else of.mixed.unsqueeze(1).to(shown.dtype)
        trust = count / (count + priors(self.prior, self.guessed, of).to(shown.dtype))
        gain = mixed * (1 - trust) * self.ratio / (self.ratio + (1 + differ) / count)
        groups = trust * shown + ((shown @ self.into) * gain) @ self.back.T
        own = (apart * of.spread(mixed * differ / (differ + 1))) @ self.back.T
        return groups, of.spread(groups) + own

    def _differ(self, apart: Tensor, of: Grouping, count: Tensor) -> Tensor:
        """How much a group's images vary along each direction, beyond what images of one look do."""
        variance = of.mean(apart.square()) * count / (count - 1).clamp(min=1)
        return (variance - 1).clamp(min=0).minimum(MOST * self.ratio)


class Variation(nn.Module):
    """The directions of every layer that settles; part of the saved model. Before anything is learned, there are none.

    What lies in no direction is weighed against images of the source: `guessed` of them, and `prior` where a group is
    known not to be mixed.
    """

    def __init__(
        self, channels: Mapping[str, int], directions: int, prior: float, guessed: float = GUESSED
    ) -> None:
        super().__init__()
        self.channels, self.prior, self.guessed = dict(channels), prior, guessed
        for layer, count in channels.items():
            most = min(directions, 2 * count)
            for part in ("into", "back"):
                self.register_buffer(_key(layer, part), torch.zeros(2 * count, most))
            self.register_buffer(_key(layer, "ratio"), torch.zeros(most))

    def guess(self, layer: str, dtype: torch.dtype) -> Guess:
        """For what that layer shows."""
        into, back, ratio = (
            self._part(layer, part).to(dtype) for part in ("into", "back", "ratio")
        )
        return Guess(into, back, ratio, self.prior, self.guessed)

    def forget(self) -> None:
        """There are no directions, as in the beginning."""
        for values in self.buffers():
            values.zero_()

    @torch.no_grad()
    def learn(self, seen: Mapping[str, Statistics], looks: Grouping) -> None:
        """From source images one by one, in source units. `looks`: which of them look alike, two or more each."""
        for layer in self.channels:
            if layer not in seen:
                raise SlotError(
                    f"{layer}: it was not called once for every image, so how its statistics vary is unknown; leave it "
                    "out with Selection(exclude=...)"
                )
            self._keep(layer, *_directions(seen[layer], looks))

    def _keep(self, layer: str, into: Tensor, back: Tensor, ratio: Tensor) -> None:
        for part, values in (("into", into), ("back", back), ("ratio", ratio)):
            kept = self._part(layer, part).zero_()
            most = min(kept.shape[-1], values.shape[-1])  # there are no more directions than looks
            kept[..., :most] = values[..., :most]

    def _part(self, layer: str, part: str) -> Tensor:
        return self.get_buffer(_key(layer, part))


def _directions(
    seen: Statistics, looks: Grouping
) -> tuple[Tensor, Tensor, Float[Tensor, " directions"]]:
    """What leads into the directions and back, and the ratio of B to W in each, the largest first.

    The directions are those of one half of each look's images, the ratios those of the other: in wide layers, chance
    finds directions in which any few images differ.
    """
    with torch.autocast(seen.mean.device.type, enabled=False):
        exact = torch.promote_types(seen.mean.dtype, torch.float32)
        shown = torch.cat(bounded(seen), 1).to(exact)
        root, first, second = in_units_of_images(shown, looks, least=1e-6)
        turned = torch.linalg.svd(first, full_matrices=False).U
        chance = (1 / (looks.sizes / 2).floor()).mean()
        ratio = (turned.T @ second).square().mean(1) - chance
        ratio, order = ratio.clamp(min=0).sort(descending=True, stable=True)
        turned = turned[:, order]
        into = torch.linalg.solve_triangular(root.T, turned, upper=True)
        return into, root @ turned, ratio


def in_units_of_images(
    shown: Float[Tensor, "images numbers"], looks: Grouping, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A root of W, and the means of looks over each half of their images in its units, (numbers, looks)."""
    apart = shown - looks.spread(looks.mean(shown))
    within = apart.T @ apart / (len(shown) - len(looks.sizes))
    ridge = RIDGE * within.diagonal().mean() + least
    root = torch.linalg.cholesky(within + ridge * torch.eye(len(within)).to(within))
    first, second = (
        torch.linalg.solve_triangular(root, half.T, upper=False) for half in looks.halves(shown)
    )
    return root, first, second


def _key(layer: str, part: str) -> str:
    """A buffer's name. What stands before the layer's makes sure that it is no method's."""
    return f"{part}/{layer}".replace(".", "/")
