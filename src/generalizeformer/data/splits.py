"""Division of source domains: what is learned from, what models are selected with, who knows which classes."""

import hashlib
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.data.datasets import DATASETS
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError
from generalizeformer.seeds import derive

Division = Literal["seeded", "domainbed", "official"]


def split_all(
    dataset: DomainDataset, *, validation: float, seed: int, division: Division = "seeded"
) -> tuple[DomainDataset, DomainDataset]:
    """The training parts and the validation parts of every domain, as two datasets.

    seeded: our own draw; domainbed: the one of Gulrajani & Lopez-Paz, 2021, bit for bit, where the seed is the
    trial; official: the lists that came with the dataset, whatever the seed (PACS has them).
    """
    held = [_held_out(dataset, domain, validation, seed, division) for domain in dataset.domains]
    pairs = list(zip(dataset.domains, held, strict=True))
    # Sorted, so that both parts keep the images in the order the domain has them.
    training = (domain.take(_others(out, len(domain))) for domain, out in pairs)
    return dataset.replaced(training), dataset.replaced(
        d.take(out.sort().values) for d, out in pairs
    )


def seeded(count: int, validation: float, seed: int) -> Int64[Tensor, " held_out"]:
    """Places of the validation images.

    The draw depends on the seed and the number of images only, so another domain never moves it, and domains
    of one length hold out the same places. Rotated digits are the same digits at every angle: drawn for each
    angle by itself, every validation digit would have been learned from at another one.
    """
    generator = torch.Generator().manual_seed(derive("split", seed, count))
    held_out = min(max(1, round(validation * count)), count - 1)
    return torch.randperm(count, generator=generator)[:held_out]


def domainbed(count: int, validation: float, trial: int, number: int) -> Int64[Tensor, " held_out"]:
    """Places of DomainBed's "out" part of the domain of this number among all of its dataset."""
    places = list(range(count))
    np.random.RandomState(seed_hash(trial, number)).shuffle(places)
    return torch.tensor(places[: int(count * validation)])


def seed_hash(*words: object) -> int:
    """DomainBed's seed from words."""
    return int(hashlib.md5(str(words).encode()).hexdigest(), 16) % 2**31


def share_classes(sources: DomainDataset, order: str | None) -> DomainDataset:
    """The sources with every class in one of them only: output-level shift. None: as they are.

    Seven classes over three sources are 3, 2 and 2, in the order of the "labels", or in one of the seeded orders
    "0", "1", "2", … that show how much hangs on who knows what.
    """
    if order is None:
        return sources
    if len(sources.classes) < len(sources.domains):
        raise DataError(
            f"{sources.name}: {len(sources.classes)} classes cannot be shared out over {len(sources.domains)} "
            "domains, each needs at least one; use fewer domains"
        )
    classes = np.arange(len(sources.classes))
    if order != "labels":
        classes = np.random.default_rng(int(order)).permutation(len(classes))
    parts = [torch.from_numpy(part) for part in np.array_split(classes, len(sources.domains))]
    pairs = zip(sources.domains, parts, strict=True)
    return sources.replaced(_with_classes(domain, part) for domain, part in pairs)


def _with_classes(domain: Domain, classes: Int64[Tensor, " k"]) -> Domain:
    return domain.take(torch.isin(domain.labels.cpu(), classes).nonzero().flatten())


def _held_out(
    dataset: DomainDataset, domain: Domain, validation: float, seed: int, division: Division
) -> Int64[Tensor, " held_out"]:
    if division == "official":
        return _official(dataset, domain)
    if not 0 < validation < 1:
        raise DataError(
            f"validation is {validation}, but it is the share of images held out: "
            "give a number between 0 and 1, such as 0.2"
        )
    if division == "seeded":
        _check_two_parts(domain, len(domain) - 1)
        return seeded(len(domain), validation, seed)
    held_out = domainbed(len(domain), validation, seed, dataset.every.index(domain.name))
    _check_two_parts(domain, len(held_out))
    return held_out


def _official(dataset: DomainDataset, domain: Domain) -> Int64[Tensor, " held_out"]:
    known = dataset.name in catalog.names(DATASETS)
    module = catalog.load(DATASETS, dataset.name) if known else None
    official = getattr(module, "official_validation", None)
    if official is None:
        raise DataError(
            f"split: {dataset.name} came without official lists; use the split seeded or domainbed"
        )
    held_out: Tensor = official(domain)
    return held_out


def _check_two_parts(domain: Domain, held_out: int) -> None:
    if held_out < 1:
        raise DataError(
            f"domain {domain.name!r} has {len(domain)} image(s), too few for two parts; "
            "add images or do not split it"
        )


def _others(held_out: Int64[Tensor, " held_out"], count: int) -> Int64[Tensor, " others"]:
    kept = torch.ones(count, dtype=torch.bool)
    kept[held_out] = False
    return kept.nonzero().flatten()
