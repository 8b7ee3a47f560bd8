"""Who in a group is alike: a batch may hold images of several targets, and nobody says which.

Each image gets a model of its own, generated from the images of its group by how alike they look to the source
model's first layers, where style shows and content does not yet. A batch of one target has kin everywhere; in a mixed
one, each image is answered with its own kind (docs/experiments.md, section 18). Where it is known what tells looks
apart (`core.likeness`), that is so only as far as a batch is mixed (section 24).
"""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.groups import Grouping, Kin
from generalizeformer.core.statistics import Statistics, bounded

FIRST = 4  # one in so many norm layers, the first ones, tells what images look like


def kindred(
    seen: dict[str, Statistics],
    together: Grouping,
    width: float,
    mixed: Float[Tensor, " groups"] | None = None,
) -> Grouping:
    """Every image as a group of its own, made of its whole group with weights exp(-distance² / width).

    `seen`: of every image by itself, in source units; so is the distance, a mean over layers and channels. Where it is
    known how `mixed` the groups are, the squared distance counts only so far, and every image is told it.
    """
    looks, empty = together.dense(_looks(seen))
    apart = torch.cdist(looks, looks, compute_mode="donot_use_mm_for_euclid_dist").square()
    if mixed is not None:
        apart = apart * mixed.to(apart.dtype)[:, None, None]
        mixed = together.spread(mixed.to(together.sizes.dtype))
    alike = (-apart / width).exp().masked_fill(empty.unsqueeze(1), 0)
    alike = alike.nan_to_num(0)  # images that cannot be compared are no kin
    itself = torch.eye(alike.shape[1], device=alike.device, dtype=torch.bool)
    alike = alike.masked_fill(itself, 1)
    weights = alike / alike.sum(2, keepdim=True)
    ids, places = together.ids, together.places()
    sizes = weights.square().sum(2).reciprocal()[ids, places]
    kin = Kin(weights, ids, places)
    return Grouping(torch.arange(len(ids), device=ids.device), sizes, kin, mixed)


def _looks(seen: dict[str, Statistics]) -> Float[Tensor, "images numbers"]:
    """Mean and log spread of the first layers, so scaled that squared distances are means over layers and channels."""
    first = list(seen.values())[: -(-len(seen) // FIRST)]
    parts = [torch.cat(bounded(layer), 1) / sqrt(layer.mean.shape[1]) for layer in first]
    return torch.cat(parts, 1) / sqrt(len(first))
