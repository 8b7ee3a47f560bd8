"""Accuracy on labelled source data, batch by batch, through any function from images to logits."""

from collections.abc import Callable

import torch
from torch import Tensor

from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import Domain

CHUNK = 256  # images at once: bounds memory, changes no answer


@torch.no_grad()
def accuracy(
    answer: Callable[[Tensor, Tensor], Tensor],
    domain: Domain,
    preprocessing: Preprocessing,
    group: int,
    device: torch.device,
) -> float:
    """Percent of the domain answered rightly in groups of `group` images (the last may be smaller)."""
    right = 0
    together = max(1, CHUNK // group) * group
    # Stored images are often sorted by class; a group of one class is another problem than a target batch.
    order = torch.randperm(len(domain), generator=torch.Generator().manual_seed(len(domain)))
    for part in torch.split(order, together):
        images = preprocessing(domain.images[part].to(device))
        groups = torch.arange(len(part), device=device) // group
        right += int((answer(images, groups).argmax(1) == domain.labels[part].to(device)).sum())
    return 100 * right / len(domain)
