"""Domains and datasets of domains: labelled images held as bytes. Knows no file formats."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.errors import DataError


@dataclass(frozen=True, eq=False)
class Domain:
    """The labelled images of one distribution."""

    name: str
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            got = f"{tuple(self.images.shape)} of {self.images.dtype}"
            raise DataError(
                f"domain {self.name!r}: images are {got}; they must be (n, c, h, w) of "
                "torch.uint8, so keep pixels in 0..255 and standardise them later"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            got = f"{tuple(self.labels.shape)} of {self.labels.dtype}"
            raise DataError(
                f"domain {self.name!r}: labels are {got}; give one torch.int64 label for each of "
                f"the {len(self.images)} images"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Int64[Tensor, " m"]) -> "Domain":
        """The domain of these images only, in this order, under the same name."""
        return Domain(self.name, self.images[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class DomainDataset:
    """Domains that share their classes and the shape of their images."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]

    def __post_init__(self) -> None:
        _check_names(self)
        for domain in self.domains:
            _check_domain(self, domain)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the domains, in order."""
        return tuple(domain.name for domain in self.domains)

    def __getitem__(self, name: str) -> Domain:
        return self.domains[self.index(name)]

    def index(self, name: str) -> int:
        """The position of a domain: the domain id used by streams and minibatches."""
        if name not in self.names:
            raise DataError(
                f"{self.name}: there is no domain {name!r}; it has: {', '.join(self.names)}"
            )
        return self.names.index(name)

    def only(self, names: Iterable[str]) -> "DomainDataset":
        """The dataset of the named domains, in the order asked."""
        return DomainDataset(self.name, self.classes, tuple(self[name] for name in names))

    def without(self, names: Iterable[str]) -> "DomainDataset":
        """The dataset of every domain but the named ones: what is left to learn from."""
        left_out = {self[name].name for name in names}
        return self.only(name for name in self.names if name not in left_out)

    def pick(
        self, rows: Int64[Tensor, "n 2"]
    ) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
        """Images and labels of (domain, image) index pairs, in their order."""
        images, labels = self.domains[0].images, self.domains[0].labels
        images, labels = images.new_empty(len(rows), *images.shape[1:]), labels.new_empty(len(rows))
        # One gather per domain: joining the domains first would copy every image of the dataset.
        for index in sorted(set(rows[:, 0].tolist())):
            mine = rows[:, 0] == index
            images[mine] = self.domains[index].images[rows[mine, 1]]
            labels[mine] = self.domains[index].labels[rows[mine, 1]]
        return images, labels


def _check_names(dataset: DomainDataset) -> None:
    if not dataset.domains:
        raise DataError(f"{dataset.name}: got no domains; give at least one")
    twice = sorted({name for name in dataset.names if dataset.names.count(name) > 1})
    if twice:
        raise DataError(
            f"{dataset.name}: domain names must differ, but {', '.join(twice)} came more than "
            "once; rename or drop the copies"
        )


def _check_domain(dataset: DomainDataset, domain: Domain) -> None:
    where, first = f"{dataset.name}, domain {domain.name!r}", dataset.domains[0]
    if not len(domain):
        raise DataError(f"{where}: it has no images; leave the domain out or fill it")
    if domain.images.shape[1:] != first.images.shape[1:]:
        got, right = tuple(domain.images.shape[1:]), tuple(first.images.shape[1:])
        raise DataError(
            f"{where}: images are {got}, but those of {first.name!r} are {right}; "
            "bring all domains to one (channels, height, width)"
        )
    low, high = int(domain.labels.min()), int(domain.labels.max())
    if low < 0 or high >= len(dataset.classes):
        raise DataError(
            f"{where}: labels run from {low} to {high}, but {len(dataset.classes)} classes allow "
            f"0 to {len(dataset.classes) - 1}; name every class or renumber the labels"
        )
