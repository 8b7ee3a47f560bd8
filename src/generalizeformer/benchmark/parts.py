"""Which images of the dataset a cell's model learns from, and which it meets."""

import torch
from torch import Generator

from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.images import Shown
from generalizeformer.data import targets
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.splits import share_classes
from generalizeformer.seeds import derive

AT_ONCE = 256  # images that are changed together: bounds memory, changes no pixel


def known_to(cell: Cell, domains: DomainDataset) -> DomainDataset:
    """The source domains, with the classes that each of them knows."""
    left_out = cell.targets or (cell.target,)
    others = domains.only(cell.sources) if cell.sources else domains.without(left_out)
    return share_classes(others, cell.classes_apart)


def learned_from(cell: Cell, domains: DomainDataset) -> DomainDataset:
    """The sources as the training takes them.

    Pooled, they are one domain: where each knows some classes only, a batch of one domain tells its classes, and
    the mean over domains of their accuracies says little about telling all classes apart.
    """
    sources = known_to(cell, domains)
    return _pooled(sources) if cell.pooled else sources


def met(cell: Cell, domains: DomainDataset, device: torch.device | str = "cpu") -> DomainDataset:
    """The target, or several, or a domain for every look of it, named by the words that streams have for them.

    A limit takes the same images whether they come alone, mixed or in turn, and for every look. Looks are made here,
    on the device, and once: streams would make the same pixels again for every method.
    """
    if cell.targets:
        return domains.replaced(_limited(domains[name], cell) for name in cell.targets)
    target = domains.only([cell.target])
    if not cell.looks:
        return target
    domain = _limited(domains[cell.target], cell)
    seen = tuple(_under(domain, word, cell.seed, device) for word in cell.words)
    return DomainDataset(domains.name, domains.classes, seen)


def shown(cell: Cell, domains: DomainDataset) -> tuple[Shown, ...]:
    """The domains that the cell's model learns from and meets.

    As the dataset has them: limits, looks and the classes that sources know follow from these and the cell.
    """
    targets = cell.targets or (cell.target,)
    names = (*(cell.sources or domains.without(targets).names), *targets)
    return tuple(Shown.of(domains[name]) for name in names)


def _limited(domain: Domain, cell: Cell) -> Domain:
    """No more images of the domain than the cell has for each of its streams."""
    if cell.limit is None:
        return domain
    generator = Generator().manual_seed(derive("met", cell.seed, domain.name))
    return domain.take(torch.randperm(len(domain), generator=generator)[: cell.limit])


def _under(domain: Domain, word: str, seed: int, device: torch.device | str) -> Domain:
    """The domain as it looks under a target's word, as streams of that seed show it."""
    target, looked = targets.parse(word, [domain.name]), []
    for places in torch.split(torch.arange(len(domain)), AT_ONCE):
        seeds = targets.image_seeds(word, seed, places)
        images = targets.apply(target, domain.read(places).to(device), seeds)
        looked.append(images.to(domain.stored.device))
    return Domain(word, torch.cat(looked), domain.labels)


def _pooled(sources: DomainDataset) -> DomainDataset:
    """The images of all domains as one of their joined names. They are copied."""
    images = torch.cat([domain.images for domain in sources.domains])
    labels = torch.cat([domain.labels for domain in sources.domains])
    one = Domain("+".join(sources.names), images, labels)
    return DomainDataset(sources.name, sources.classes, (one,))
