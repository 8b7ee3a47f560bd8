"""What training draws: plain minibatches over all sources, and groups that imitate a target."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Generator, Tensor

from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Images of every domain, equally many of each."""

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    domains: Int64[Tensor, " n"]  # positions in the dataset's domains


@dataclass(frozen=True, eq=False)
class Episode:
    """Groups of one domain, each as it could arrive in a batch at test time."""

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    groups: Int64[Tensor, " n"]  # counted from 0; images of one group stand together


def minibatch(dataset: DomainDataset, per_domain: int, generator: Generator) -> Minibatch:
    """`per_domain` images of every domain, domain after domain, drawn with replacement."""
    if per_domain < 1:
        raise DataError(f"minibatch: per_domain is {per_domain}; it must be at least 1")
    sizes = [len(domain) for domain in dataset.domains]
    drawn = torch.cat([torch.randint(size, (per_domain,), generator=generator) for size in sizes])
    domains = torch.arange(len(sizes)).repeat_interleave(per_domain)
    images, labels = dataset.pick(torch.stack((domains, drawn), dim=1))
    return Minibatch(images, labels, domains.to(labels.device))


def group_sizes(total: int, sizes: tuple[int, ...], generator: Generator) -> Int64[Tensor, " g"]:
    """Group sizes drawn from `sizes` until `total` images are used; the last one is cut.

    The smaller a size, the oftener it is drawn, so that each gets about as many images: drawn evenly, single
    images would hardly count beside groups of twenty.
    """
    if total < 1:
        raise DataError(f"group_sizes: total is {total}; it must be at least 1")
    if not sizes or min(sizes) < 1:
        raise DataError(
            f"group_sizes: sizes is {sizes}; give at least one size, each at least 1, "
            "such as (1, 20)"
        )
    # So many groups of the smallest size always reach the total.
    enough = -(-total // min(sizes))
    share = 1 / torch.tensor(sizes, dtype=torch.float64)
    chosen = torch.multinomial(share, enough, replacement=True, generator=generator)
    drawn = torch.tensor(sizes)[chosen]
    ends = drawn.cumsum(0).clamp(max=total)
    cut = ends.diff(prepend=ends.new_zeros(1))
    return cut[cut > 0]


def episode(domain: Domain, sizes: Int64[Tensor, " g"], generator: Generator) -> Episode:
    """One group for each size, all from one domain; within a group no image comes twice."""
    if not len(sizes) or int(sizes.min()) < 1:
        raise DataError(
            f"episode: sizes is {sizes.tolist()}; give at least one size, each at least 1"
        )
    largest = int(sizes.max())
    if largest > len(domain):
        raise DataError(
            f"episode: a group of {largest} was asked of domain {domain.name!r}, which has "
            f"{len(domain)} images and gives each once per group; ask for smaller groups"
        )
    draws = [torch.randperm(len(domain), generator=generator)[:size] for size in sizes.tolist()]
    drawn = torch.cat(draws)
    labels = domain.labels[drawn.to(domain.labels.device)]
    groups = torch.arange(len(sizes)).repeat_interleave(sizes.cpu())
    return Episode(domain.read(drawn), labels, groups.to(labels.device))
