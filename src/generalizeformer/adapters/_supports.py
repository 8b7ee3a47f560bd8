"""Supports: examples kept per class, each under the class it was taken for, the surest first."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.grouped import Output
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.core.slots import values_of

Rows = Float[Tensor, "classes feature"]


def rows_of(source: GeneralizeFormer) -> tuple[Rows, Tensor | None]:
    """Weight and bias of the source's linear classifier, whose rows look like features of their classes."""
    values = dict(values_of(source.backbone.get_submodule(source.slots.classifier)))
    return values["weight"].detach(), values.get("bias")


def observed(source: GeneralizeFormer, images: Images) -> Output:
    """Features and logits of the source model, with its running statistics; bad images are refused."""
    check_images(images, source.backbone)
    return source.network.run(images, grouping(None, len(images), images), {})


class Supports:
    """Supports, their pseudo labels and entropies: by class, and inside a class by entropy.

    `limit` is how many each class keeps; None keeps all. A support's label and entropy stay those of its arrival.
    """

    source: GeneralizeFormer
    limit: int | None
    supports: Float[Tensor, " supports *example"]
    labels: Int64[Tensor, " supports"]
    entropies: Float[Tensor, " supports"]

    def _forget(self, like: Tensor) -> None:
        """No supports; the next ones have the dtype and place of `like`."""
        self.supports, self.entropies = like.new_empty(0), like.new_empty(0)
        self.labels = torch.empty(0, dtype=torch.long, device=like.device)

    def _begin_with_rows(self) -> None:
        """The classifier's rows, labelled by what they are predicted as: not always the class they are the row of."""
        rows, bias = rows_of(self.source)
        self._forget(rows)
        self._remember(rows, F.linear(rows, rows, bias))

    def _remember(self, values: Float[Tensor, " images *example"], logits: Logits) -> None:
        """Adds the values with their predicted classes; of each class the surest stay, the others go for good."""
        supports = torch.cat([self.supports, values.to(self.supports.dtype)])
        entropies = torch.cat([self.entropies, per_image_entropy(logits).to(self.entropies.dtype)])
        labels = torch.cat([self.labels, logits.argmax(1)])
        order = entropies.argsort(stable=True)
        order = order[labels[order].argsort(stable=True)]
        if self.limit is not None:
            counts = torch.bincount(labels, minlength=self.source.classes)
            first = counts.cumsum(0) - counts  # where each class begins in `order`
            rank = torch.arange(len(order), device=order.device) - first[labels[order]]
            order = order[rank < self.limit]
        self.supports, self.labels, self.entropies = (
            supports[order],
            labels[order],
            entropies[order],
        )
