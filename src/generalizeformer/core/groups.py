"""Group arithmetic: one id per image in, one value per group out, and never a glance at another group."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from generalizeformer.core.shapes import Groups
from generalizeformer.errors import ImageError


@dataclass(frozen=True)
class Grouping:
    """Which image belongs to which group: ids 0..G-1, and how many images each group has."""

    ids: Groups
    sizes: Float[Tensor, " groups"]

    def mean(self, values: Float[Tensor, " images *rest"]) -> Float[Tensor, " groups *rest"]:
        """The mean of each group. A sum by index: a matrix product would let one group's inf reach the others."""
        total = values.new_zeros(len(self.sizes), *values.shape[1:]).index_add(0, self.ids, values)
        return total / self.sizes.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))

    def spread(self, values: Float[Tensor, " groups *rest"]) -> Float[Tensor, " images *rest"]:
        """Each image's share of what its group has."""
        return values.index_select(0, self.ids)

    def dense(
        self, values: Float[Tensor, "images feature"]
    ) -> tuple[Float[Tensor, "groups most feature"], Bool[Tensor, "groups most"]]:
        """The images of each group side by side, and which places are empty because a group is smaller."""
        order = self.ids.argsort(stable=True)
        start = (self.sizes.cumsum(0) - self.sizes).long()
        rank = torch.arange(len(order), device=order.device) - start[self.ids[order]]
        most = int(self.sizes.max())
        dense = values.new_zeros(len(self.sizes), most, values.shape[1])
        dense = dense.index_put((self.ids[order], rank), values[order])
        return dense, torch.arange(most, device=order.device) >= self.sizes.unsqueeze(1)

    def repeat(self, times: int) -> "Grouping":
        """The grouping of `times` copies of the images, one copy after another."""
        return Grouping(self.ids.repeat(times), self.sizes * times)


def grouping(groups: Groups | None, images: int, like: Tensor) -> Grouping:
    """The grouping of a call. Ids may be any integers; groups are ordered by id. None is one group."""
    # Autograd keeps the ids, and refuses those made in inference mode.
    with torch.inference_mode(False):
        if groups is None:
            ids = torch.zeros(images, dtype=torch.long, device=like.device)
        else:
            _check(groups, images)
            ids = torch.unique(groups.to(like.device), return_inverse=True)[1]
        # Half precision cannot count: 257 images are 256 in bfloat16.
        return Grouping(ids, torch.bincount(ids).to(torch.promote_types(like.dtype, torch.float32)))


def _check(groups: Tensor, images: int) -> None:
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.dtype == torch.bool:
        got = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
        raise ImageError(f"groups: got {got}; give a LongTensor with one id per image")
    if groups.shape != (images,):
        raise ImageError(
            f"groups: got shape {tuple(groups.shape)} for {images} images; give one id per image, shape ({images},)"
        )
