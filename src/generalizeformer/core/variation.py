"""What a few images show of their look: statistics vary from image to image, and from look to look.

One image's mean and spread tell more of what it shows than of how all images like it look. Source images under random
looks show both kinds of variation, and then a look has a best linear guess from n of its images (empirical Bayes). With
W the covariance within looks and B that between them, of f = (mean, log spread) of a layer's channels in source units,
it is B (B + W / n)^-1 f. Along the directions that make both diagonal this shrinks each by r / (r + 1 / n), r its ratio
of B to W; only the directions with the largest ratios are kept (docs/experiments.md, section 21).
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer.core.groups import Grouping
from generalizeformer.core.statistics import Moments, Statistics, bounded

RIDGE = 0.3  # of the mean variance, added to each: there are fewer images than channels


class Guess(NamedTuple):
    """A group's statistics f become `trust` · f + ((f @ into) · gain) @ backᵀ. Rows are groups."""

    into: Float[Tensor, "both directions"]
    back: Float[Tensor, "both directions"]
    trust: Float[Tensor, "groups 1"]
    gain: Float[Tensor, "groups directions"]

    def __call__(self, shown: Float[Tensor, "groups both"]) -> Float[Tensor, "groups both"]:
        return self.trust * shown + ((shown @ self.into) * self.gain) @ self.back.T

    def backward(self, of: Float[Tensor, "groups both"]) -> Float[Tensor, "groups both"]:
        """The gradient of what was shown, from that of the guess."""
        return self.trust * of + ((of @ self.back) * self.gain) @ self.into.T


class Variation(nn.Module):
    """The directions of every layer that settles; part of the saved model. Before anything is learned, there are none.

    What lies in no direction is weighed against `prior` images of the source.
    """

    def __init__(self, channels: Mapping[str, int], directions: int, prior: float) -> None:
        super().__init__()
        self.layers, self.prior = tuple(channels), prior
        for layer, count in channels.items():
            most = min(directions, 2 * count)
            for part in ("into", "back"):
                self.register_buffer(_key(layer, part), torch.zeros(2 * count, most))
            self.register_buffer(_key(layer, "ratio"), torch.zeros(most))

    def guess(self, layer: str, sizes: Float[Tensor, " groups"], dtype: torch.dtype) -> Guess:
        """For groups of these sizes."""
        into, back, ratio = (
            self._part(layer, part).to(dtype) for part in ("into", "back", "ratio")
        )
        count = sizes.unsqueeze(1).to(dtype)
        trust = count / (count + self.prior)
        return Guess(into, back, trust, (1 - trust) * ratio / (ratio + 1 / count))

    @torch.no_grad()
    def learn(self, seen: Mapping[str, Moments], looks: Grouping) -> None:
        """From source images one by one, in source units. `looks`: which of them look alike, two or more each."""
        for layer in self.layers:
            mean, spread = bounded(Statistics(seen[layer].mean, seen[layer].variance))
            self._keep(layer, *_directions(torch.cat((mean, spread), 1), looks))

    def _keep(self, layer: str, into: Tensor, back: Tensor, ratio: Tensor) -> None:
        for part, values in (("into", into), ("back", back), ("ratio", ratio)):
            kept = self._part(layer, part).zero_()
            most = min(kept.shape[-1], values.shape[-1])  # there are no more directions than looks
            kept[..., :most] = values[..., :most]

    def _part(self, layer: str, part: str) -> Tensor:
        return self.get_buffer(_key(layer, part))


def _directions(
    shown: Float[Tensor, "images both"], looks: Grouping
) -> tuple[Tensor, Tensor, Float[Tensor, " directions"]]:
    """What leads into the directions and back, and the ratio of B to W in each, the largest first."""
    with torch.autocast(shown.device.type, enabled=False):
        shown = shown.to(torch.promote_types(shown.dtype, torch.float32))
        means, count = looks.mean(shown), len(looks.sizes)
        apart = shown - looks.spread(means)
        within = apart.T @ apart / (len(shown) - count)
        ridge = RIDGE * within.diagonal().mean() + 1e-6
        root = torch.linalg.cholesky(within + ridge * torch.eye(len(within)).to(within))
        whitened = torch.linalg.solve_triangular(root, means.T, upper=False)
        turned, size, _ = torch.linalg.svd(whitened, full_matrices=False)
        # Means of a few images vary by chance as well.
        ratio = size.square() / count - (1 / looks.sizes).mean()
        into = torch.linalg.solve_triangular(root.T, turned, upper=True)
        return into, root @ turned, ratio.clamp(min=0)


def _key(layer: str, part: str) -> str:
    return f"{part}/{layer}".replace(
        ".", "/"
    )  # a prefix, so that no layer's name can be a method's
