"""Group arithmetic: one id per image in, one value per group out, and never a glance at another group."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from generalizeformer.core.shapes import Groups
from generalizeformer.errors import ImageError


@dataclass(frozen=True)
class Kin:
    """Of what the mean of every image is made: the images of its group, each with a weight.

    A matrix for every group, so that no group's inf reaches another. All are as large as the largest group's: one large
    group among many small ones costs what many large ones do.
    """

    weights: Float[Tensor, "groups most most"]  # of each row's images; rows sum to 1
    group: Int64[Tensor, " images"]
    place: Int64[Tensor, " images"]  # in the group

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """As tensors, for calls that take nothing else. Not copied, as `dataclasses.astuple` does."""
        return self.weights, self.group, self.place

    def mean(self, values: Float[Tensor, " images *rest"]) -> Float[Tensor, " images *rest"]:
        """Around every image."""
        return self._times(self.weights, values)

    def shared(self, values: Float[Tensor, " images *rest"]) -> Float[Tensor, " images *rest"]:
        """What every image has in the means of all others: `mean` the other way round, for gradients."""
        return self._times(self.weights.transpose(1, 2), values)

    def alone(self) -> "Kin":
        """The same images, none of which counts for another."""
        weights = self.weights
        itself = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
        return Kin(itself.expand_as(weights), self.group, self.place)

    def _times(self, weights: Tensor, values: Tensor) -> Tensor:
        exact = torch.promote_types(values.dtype, weights.dtype)
        with torch.autocast(values.device.type, enabled=False):  # sums need their digits
            flat = values.reshape(len(values), -1).to(exact)
            dense = flat.new_zeros(*weights.shape[:2], flat.shape[1])
            dense = weights.to(exact) @ dense.index_put((self.group, self.place), flat)
            return dense[self.group, self.place].reshape(values.shape).to(values.dtype)


@dataclass(frozen=True)
class Grouping:
    """Which image belongs to which group: ids 0..G-1, and how many images each group has.

    With `kin`, every image is a group of its own, and is as large as the weights of its kin say. `mixed`: how far each
    group is of several looks, from 0 to 1; None where nobody knows. `alike`: it is known that none is.
    """

    ids: Groups
    sizes: Float[Tensor, " groups"]
    kin: Kin | None = None
    mixed: Float[Tensor, " groups"] | None = None
    alike: bool = False

    def tensors(self) -> tuple[Tensor, ...]:
        """All that it is made of."""
        kin = () if self.kin is None else self.kin.parts()
        return (self.ids, self.sizes, *kin, *(() if self.mixed is None else (self.mixed,)))

    def mean(self, values: Float[Tensor, " images *rest"]) -> Float[Tensor, " groups *rest"]:
        """The mean of each group. A sum by index: a matrix product would let one group's inf reach the others."""
        if self.kin is not None:
            return self.kin.mean(values)
        total = values.new_zeros(len(self.sizes), *values.shape[1:]).index_add(0, self.ids, values)
        return total / self.sizes.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))

    def shared(self, values: Float[Tensor, " groups *rest"]) -> Float[Tensor, " images *rest"]:
        """What each image has in the means: `mean` the other way round, for gradients."""
        if self.kin is not None:
            return self.kin.shared(values)
        return self.spread(
            values / self.sizes.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
        )

    def spread(self, values: Float[Tensor, " groups *rest"]) -> Float[Tensor, " images *rest"]:
        """Each image's share of what its group has."""
        return values.index_select(0, self.ids)

    def dense(
        self, values: Float[Tensor, "images feature"]
    ) -> tuple[Float[Tensor, "groups most feature"], Bool[Tensor, "groups most"]]:
        """The images of each group side by side, and which places are empty because a group is smaller."""
        most = int(self.sizes.max())
        dense = values.new_zeros(len(self.sizes), most, values.shape[1])
        dense = dense.index_put((self.ids, self.places()), values)
        return dense, torch.arange(most, device=values.device) >= self.sizes.unsqueeze(1)

    def places(self) -> Int64[Tensor, " images"]:
        """Which of its group's images each image is, counted from 0."""
        order = self.ids.argsort(stable=True)
        start = (self.sizes.cumsum(0) - self.sizes).long()
        rank = torch.arange(len(order), device=order.device) - start[self.ids[order]]
        return torch.empty_like(rank).index_put((order,), rank)

    def halves(self, values: Float[Tensor, " images *rest"]) -> list[Tensor]:
        """The mean of each group over every second of its images, and over the others. Only without kin."""
        odd, parts = self.places() % 2, []
        for half in (0, 1):
            ids = self.ids[odd == half]
            part = Grouping(ids, torch.bincount(ids, minlength=len(self.sizes)).to(self.sizes))
            parts.append(part.mean(values[odd == half]))
        return parts

    def each(self) -> "Grouping":
        """Every image as a group of its own, in the form that this one has; only with kin."""
        assert self.kin is not None
        return replace(self, sizes=torch.ones_like(self.sizes), kin=self.kin.alone())

    def repeat(self, times: int) -> "Grouping":
        """The grouping of `times` copies of the images, one copy after another. Only without kin."""
        assert self.kin is None
        return replace(self, ids=self.ids.repeat(times), sizes=self.sizes * times)


def side_by_side(groupings: list[Grouping]) -> Grouping:
    """The groups of all of them in one, in this order. All have kin, then of equally large groups, or none has.

    Of all it is known how mixed they are, or of none; all are alike, or none is.
    """
    ids = _onward([one.ids for one in groupings], [len(one.sizes) for one in groupings])
    sizes = torch.cat([one.sizes for one in groupings])
    known = [one.mixed for one in groupings if one.mixed is not None]
    assert len(known) in (0, len(groupings))
    mixed, alike = torch.cat(known) if known else None, groupings[0].alike
    assert all(one.alike == alike for one in groupings)
    every = [one.kin for one in groupings if one.kin is not None]
    if not every:
        return Grouping(ids, sizes, mixed=mixed, alike=alike)
    assert len(every) == len(groupings)
    weights, places = torch.cat([kin.weights for kin in every]), [kin.place for kin in every]
    group = _onward([kin.group for kin in every], [len(kin.weights) for kin in every])
    return Grouping(ids, sizes, Kin(weights, group, torch.cat(places)), mixed, alike)


def _onward(ids: list[Tensor], counts: list[int]) -> Tensor:
    """All ids, those of each part counted on from where the parts before it end."""
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return torch.cat([part + start for part, start in zip(ids, starts, strict=True)])


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
