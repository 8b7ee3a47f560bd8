"""Seeded division of source domains into a part to learn from and a part to select models with."""

import torch

from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError
from generalizeformer.seeds import derive


def split(domain: Domain, *, validation: float, seed: int) -> tuple[Domain, Domain]:
    """The training part and the validation part of a domain; together they are the domain.

    The draw depends on the seed and the number of images only, so another domain never moves it, and domains
    of one length hold out the same places. Rotated digits are the same digits at every angle: drawn for each
    angle by itself, every validation digit would have been learned from at another one.
    """
    held_out = _held_out(domain, validation)
    generator = torch.Generator().manual_seed(derive("split", seed, len(domain)))
    order = torch.randperm(len(domain), generator=generator)
    # Sorted, so that both parts keep the images in the order the domain has them.
    return (
        domain.take(order[held_out:].sort().values),
        domain.take(order[:held_out].sort().values),
    )


def split_all(
    dataset: DomainDataset, *, validation: float, seed: int
) -> tuple[DomainDataset, DomainDataset]:
    """The training parts and the validation parts of every domain, as two datasets."""
    parts = [split(domain, validation=validation, seed=seed) for domain in dataset.domains]
    training, held_out = zip(*parts, strict=True)
    return dataset.replaced(training), dataset.replaced(held_out)


def _held_out(domain: Domain, validation: float) -> int:
    """How many images are held out: the nearest count that leaves both parts something."""
    if not 0 < validation < 1:
        raise DataError(
            f"validation is {validation}, but it is the share of images held out: "
            "give a number between 0 and 1, such as 0.2"
        )
    if len(domain) < 2:
        raise DataError(
            f"domain {domain.name!r} has {len(domain)} image(s), and two parts need at least 2; "
            "add images or do not split it"
        )
    return min(max(1, round(validation * len(domain))), len(domain) - 1)
