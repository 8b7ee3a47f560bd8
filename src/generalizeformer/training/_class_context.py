"""Labelled source images by domain and class, and the centres of their features."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from generalizeformer.data.domains import Domain, DomainDataset

Places = Int64[Tensor, "n 2"]
Cells = Int64[Tensor, " n"]


class ClassContext:
    """Where the images of each class of each domain are. A cell is such a pair, counted domain by domain."""

    def __init__(self, data: DomainDataset) -> None:
        self.data, self.classes = data, len(data.classes)
        self.members = [members for domain in data.domains for members in self._members(domain)]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Places, Cells]:
        """`count` images of every cell that has any, with replacement, and the cell of each."""
        return self._gather(
            lambda found: found[torch.randint(len(found), (count,), generator=generator)]
        )

    def spread(self, most: int) -> tuple[Places, Cells]:
        """At most so many images of every cell, evenly spread, the same ones always."""
        return self._gather(
            lambda found: found[torch.linspace(0, len(found) - 1, min(most, len(found))).long()]
        )

    def centres(
        self, features: Float[Tensor, "n feature"], cells: Cells
    ) -> Float[Tensor, "domains classes feature"]:
        """The mean feature of every cell. A class that a domain lacks has there its mean over the others."""
        count, width = len(self.members), features.shape[1]
        cells = cells.to(features.device)
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        total = features.new_zeros(count, width).index_add(0, cells, features)
        sizes = torch.bincount(cells, minlength=count).to(features.dtype)
        shape = (-1, self.classes, 1)
        means = (total / sizes.clamp(min=1).unsqueeze(1)).reshape(-1, self.classes, width)
        present: Bool[Tensor, "domains classes 1"] = sizes.reshape(shape) > 0
        overall = means.sum(0) / present.sum(0).clamp(min=1)  # a cell without images adds 0
        return torch.where(present, means, overall)

    def _members(self, domain: Domain) -> list[Tensor]:
        labels = domain.labels.cpu()
        return [(labels == number).nonzero().flatten() for number in range(self.classes)]

    def _gather(self, choose: Callable[[Tensor], Tensor]) -> tuple[Places, Cells]:
        chosen = {cell: choose(found) for cell, found in enumerate(self.members) if len(found)}
        cells = torch.cat([torch.full_like(part, cell) for cell, part in chosen.items()])
        return torch.stack((cells // self.classes, torch.cat([*chosen.values()])), 1), cells
