"""Domains and datasets of domains: labelled images held as bytes. Knows no file formats."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.errors import DataError


@dataclass(frozen=True, eq=False)
class Domain:
    """The labelled images of one distribution."""

    name: str
    stored: UInt8[Tensor, "m c h w"]  # may be a mapped file larger than memory
    labels: Int64[Tensor, " n"]
    rows: Int64[Tensor, " n"] | None = None  # which stored images are meant; None: all, in order
    files: tuple[str, ...] | None = None  # where each image came from, such as "dog/056_0001"

    def __post_init__(self) -> None:
        if self.stored.ndim != 4 or self.stored.dtype != torch.uint8:
            got = f"{tuple(self.stored.shape)} of {self.stored.dtype}"
            raise DataError(
                f"domain {self.name!r}: images are {got}; they must be (n, c, h, w) of "
                "torch.uint8, so keep pixels in 0..255 and standardise them later"
            )
        count = len(self.stored if self.rows is None else self.rows)
        if self.labels.shape != (count,) or self.labels.dtype != torch.int64:
            got = f"{tuple(self.labels.shape)} of {self.labels.dtype}"
            raise DataError(
                f"domain {self.name!r}: labels are {got}; give one torch.int64 label for each of "
                f"the {count} images"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        _, channels, height, width = self.stored.shape
        return channels, height, width

    @property
    def images(self) -> UInt8[Tensor, "n c h w"]:
        """All images at once. For a part of a large domain that is a copy: prefer `read`."""
        return self.stored if self.rows is None else _gather(self.stored, self.rows)

    def read(self, indices: Int64[Tensor, " m"]) -> UInt8[Tensor, "m c h w"]:
        """The images at these places."""
        rows = indices if self.rows is None else self.rows[indices.to(self.rows.device)]
        return _gather(self.stored, rows.to(self.stored.device))

    def take(self, indices: Int64[Tensor, " m"]) -> "Domain":
        """The domain of these images only, in this order, under the same name. No pixel is copied."""
        indices = indices.to(self.labels.device)
        rows = indices if self.rows is None else self.rows[indices]
        files = None if self.files is None else tuple(self.files[i] for i in indices.tolist())
        return Domain(self.name, self.stored, self.labels[indices], rows, files)

    def to(self, device: torch.device | str) -> "Domain":
        """The domain with its images on another device, those that are meant and no others."""
        return Domain(self.name, self.images.to(device), self.labels.to(device), None, self.files)


@dataclass(frozen=True, eq=False)
class DomainDataset:
    """Domains that share their classes and the shape of their images."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    every: tuple[str, ...] = ()  # all domains of the dataset that these were chosen from
    kept: tuple[str, ...] = ()  # of all domains, those that the dataset keeps for targets

    def __post_init__(self) -> None:
        _check_names(self)
        if not self.every:
            object.__setattr__(self, "every", self.names)
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
        return self.replaced(self[name] for name in names)

    def replaced(self, domains: Iterable[Domain]) -> "DomainDataset":
        """The dataset with these domains for its own: chosen, divided or changed ones."""
        return replace(self, domains=tuple(domains))

    def renumbered(self, classes: tuple[str, ...]) -> "DomainDataset":
        """The dataset with its classes numbered as in a longer list that holds all of them."""
        if classes == self.classes:
            return self
        unknown = [name for name in self.classes if name not in classes]
        if unknown:
            raise DataError(
                f"{self.name}: it has the class {', '.join(map(repr, unknown))}, but the model tells "
                f"{', '.join(map(repr, classes))} apart; leave those images out, or train on them"
            )
        numbers = torch.tensor([classes.index(name) for name in self.classes])
        return replace(
            self,
            classes=classes,
            domains=tuple(
                replace(d, labels=numbers.to(d.labels.device)[d.labels]) for d in self.domains
            ),
        )

    def to(self, device: torch.device | str) -> "DomainDataset":
        """The dataset with its images on another device."""
        return self.replaced(domain.to(device) for domain in self.domains)

    def without(self, names: Iterable[str]) -> "DomainDataset":
        """The dataset of every domain but the named ones: what is left to learn from."""
        left_out = {self[name].name for name in names}
        return self.only(name for name in self.names if name not in left_out)

    def pick(
        self, rows: Int64[Tensor, "n 2"]
    ) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
        """Images and labels of (domain, image) index pairs, in their order."""
        first = self.domains[0]
        images, labels = (
            first.stored.new_empty(len(rows), *first.shape),
            first.labels.new_empty(len(rows)),
        )
        # One gather per domain: joining the domains first would copy every image of the dataset.
        for index in sorted(set(rows[:, 0].tolist())):
            mine = rows[:, 0] == index
            domain, places = self.domains[index], rows[mine, 1]
            images[mine.to(images.device)] = domain.read(places)
            labels[mine.to(labels.device)] = domain.labels[places.to(labels.device)]
        return images, labels


def _gather(
    stored: UInt8[Tensor, "m c h w"], rows: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n c h w"]:
    """A copy of these images. On a CPU by numpy: torch's threads get in each other's way where cores are shared."""
    if stored.device.type == "cpu":
        return torch.from_numpy(np.take(stored.numpy(), rows.numpy(), axis=0))
    return stored.index_select(0, rows)


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
    if domain.shape != first.shape:
        raise DataError(
            f"{where}: images are {domain.shape}, but those of {first.name!r} are {first.shape}; "
            "bring all domains to one (channels, height, width)"
        )
    low, high = int(domain.labels.min()), int(domain.labels.max())
    if low < 0 or high >= len(dataset.classes):
        raise DataError(
            f"{where}: labels run from {low} to {high}, but {len(dataset.classes)} classes allow "
            f"0 to {len(dataset.classes) - 1}; name every class or renumber the labels"
        )
