"""Domains told apart by the means of their images, and mixtures of them as further domains."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.companions.da_erm import Embeddings
from generalizeformer.core.shapes import Images


def prototypical_loss(embedded: Embeddings, per_domain: int, supports: int) -> Float[Tensor, ""]:
    """Cross-entropy of images among the domains, by squared distance to the means of each domain's first images.

    Domain after domain, equally many images of each. The first `supports` of them make the mean, the others are asked.
    """
    domains = embedded.reshape(-1, per_domain, embedded.shape[1])
    means, queries = domains[:, :supports].mean(1), domains[:, supports:]
    distances = (queries.flatten(0, 1).unsqueeze(1) - means).square().sum(-1)
    own = torch.arange(len(domains), device=embedded.device)
    return F.cross_entropy(-distances, own.repeat_interleave(queries.shape[1]))


def mixed_domains(images: Images, per_domain: int, generator: torch.Generator) -> Images:
    """As many domains again: each is mixed, image by image, with the next one of a random ring."""
    domains = images.reshape(-1, per_domain, *images.shape[1:])
    ring = torch.randperm(len(domains), generator=generator).to(images.device)
    shares = (0.2 + 0.6 * torch.rand(len(domains), 1, 1, 1, 1, generator=generator)).to(images)
    mixed: Tensor = shares * domains[ring] + (1 - shares) * domains[ring.roll(-1)]
    return mixed.flatten(0, 1)
