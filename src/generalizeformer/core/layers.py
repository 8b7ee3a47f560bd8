"""Layers that answer each image with its group's parameters. They live in a private copy of the backbone."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core import maps
from generalizeformer.core.groups import Grouping
from generalizeformer.core.guessing import settle_by_looks
from generalizeformer.core.maps import Act
from generalizeformer.core.normalisers import (
    along,
    channel_axis,
    check_understood,
    finish,
    folded,
    has_source_statistics,
    rescaled,
    self_normalise,
    source_scale,
)
from generalizeformer.core.settling import settle
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import towards
from generalizeformer.core.statistics import Statistics, moments
from generalizeformer.core.variation import Variation
from generalizeformer.errors import SlotError


@dataclass
class Call:
    """What one run of the backbone hands to its layers, and what they hand back."""

    grouping: Grouping | None = None
    params: Params = field(default_factory=dict)
    watched: dict[str, Statistics] | None = None  # filled where the caller wants statistics
    settled: Params = field(default_factory=dict)  # γ and β of layers that moved in this run
    features: Tensor | None = None
    logits: Tensor | None = None
    variation: Variation | None = None  # of the model: the same in every call

    def clear(self) -> None:
        """Lets go of every tensor of the call."""
        self.grouping, self.params, self.watched, self.settled = None, {}, None, {}
        self.features = self.logits = None


def _of_layer(name: str) -> property:
    return property(lambda self: getattr(self.layer, name))


class GroupedLayer(nn.Module):
    """A layer of the backbone beside the place where its calls are described."""

    # What a model may ask of its layers besides calling them, a dtype for one.
    weight, bias, eps = _of_layer("weight"), _of_layer("bias"), _of_layer("eps")
    in_features, out_features = _of_layer("in_features"), _of_layer("out_features")

    def __init__(self, name: str, layer: nn.Module, call: Call) -> None:
        super().__init__()
        self.name, self.layer, self.call = name, layer, call

    def check(self, x: Tensor) -> Grouping:
        """The grouping of the call, once it is sure that x has a row for every image."""
        grouping = self.call.grouping
        if grouping is None or len(x) != len(grouping.ids):
            raise SlotError(
                f"{self.name}: it saw {len(x)} rows for {0 if grouping is None else len(grouping.ids)} images, so "
                "which row belongs to which image cannot be told; leave it out with Selection(exclude=...)"
            )
        return grouping

    def generated(self, part: str) -> Tensor | None:
        """What each group has for this part of the layer, (groups, …); None where the layer has no such part."""
        return self.call.params.get(f"{self.name}.{part}")

    def shares(self, x: Tensor) -> list[Tensor | None]:
        """[weight, bias] of each image's group, shape (images, …); None where the layer has no such part."""
        grouping = self.check(x)
        parts = (self.generated("weight"), self.generated("bias"))
        return [None if part is None else grouping.spread(part) for part in parts]

    @property
    def is_generated(self) -> bool:
        return f"{self.name}.weight" in self.call.params


class GroupedNorm(GroupedLayer):
    """A norm layer: source statistics always, the group's γ and β."""

    def __init__(self, name: str, layer: nn.Module, call: Call) -> None:
        super().__init__(name, layer, call)
        check_understood(layer, name)
        self.axis, self.act = channel_axis(layer), folded(layer)

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_generated:
            self.watch(x)
            return self.layer(x)  # type: ignore[no-any-return]
        grouping = self.check(x)
        weight, bias = self.generated("weight"), self.generated("bias")
        assert weight is not None
        self.watch(x)
        if has_source_statistics(self.layer):
            mean, scale = source_scale(self.layer, self.name)
            if towards(self.name) in self.call.params:
                assert bias is not None  # only layers with both settle
                return self.settle(x, weight, bias, (mean, scale), grouping)
            # Statistics and affine are folded per group first.
            weight = weight.to(torch.promote_types(x.dtype, torch.float32)) * scale
            bias = -mean * weight if bias is None else bias - mean * weight
            return rescaled(self.layer, x, grouping.spread(weight), grouping.spread(bias))
        x = self_normalise(self.layer, x)
        weight = along(grouping.spread(weight), self.axis, x).to(x.dtype)
        if bias is None:
            return finish(self.layer, x * weight)
        bias = along(grouping.spread(bias), self.axis, x).to(x.dtype)
        return finish(self.layer, torch.addcmul(bias, x, weight))

    def settle(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        source: tuple[Tensor, Tensor],
        grouping: Grouping,
    ) -> Tensor:
        """The answer under γ and β that move towards what each group shows this layer in this very run."""
        moves, variation = self.call.params[towards(self.name)], self.call.variation
        act = self.act if maps.serves(x) else Act.NONE
        given = (x, weight, bias, moves, source, grouping)
        if variation is None or grouping.alike:
            y, weight, bias = settle(*given, act)
        else:
            guess = variation.guess(self.name, torch.promote_types(x.dtype, torch.float32))
            y, weight, bias = settle_by_looks(*given, guess, act)
        self.call.settled |= {f"{self.name}.weight": weight, f"{self.name}.bias": bias}
        return self.finished(y, act)

    def finished(self, y: Tensor, done: Act) -> Tensor:
        """y after what else the layer does, where that was not done with the rest."""
        return y if done else finish(self.layer, y)

    def watch(self, x: Tensor) -> None:
        """Notes what each image shows this layer, in source units, where the caller asked for it."""
        grouping, watched = self.call.grouping, self.call.watched
        if watched is None or grouping is None or len(x) != len(grouping.ids):
            return
        x = x.detach()
        if has_source_statistics(self.layer):
            seen = moments(x.movedim(self.axis, 1))
            watched[self.name] = seen.relative_to(*source_scale(self.layer, self.name))
        else:
            watched[self.name] = moments(self_normalise(self.layer, x).movedim(self.axis, 1))


class GroupedLinear(GroupedLayer):
    """A Linear layer with the group's rows and bias, over (images, feature) or (images, …, feature)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_generated:
            return self.layer(x)  # type: ignore[no-any-return]
        weight, bias = self.shares(x)
        assert weight is not None
        y = torch.bmm(x.reshape(len(x), -1, x.shape[-1]), weight.to(x.dtype).transpose(1, 2))
        y = y if bias is None else y + bias.to(x.dtype).unsqueeze(1)
        return y.reshape(*x.shape[:-1], -1)


class GroupedClassifier(GroupedLinear):
    """The classifier, which also shows the features it got and the logits it gave."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if towards(self.name) in self.call.params and x.dim() == 2:
            logits = self.gather(x, logits)
        self.call.features, self.call.logits = x, logits
        return logits

    def gather(self, x: Tensor, logits: Tensor) -> Tensor:
        """Logits under rows that moved to the features which this very run takes for their class.

        With ẑ_n the images' directions, each p_n sure of that class: w' = w + a |w| Σ p_n (ẑ_n - mean ẑ). The more
        images speak for a class, the more they count; what all images of the group have in common tells nothing
        apart, and a single image moves nothing.
        """
        grouping, weight = self.check(x), self.generated("weight")
        assert weight is not None
        votes = logits.detach().softmax(-1).to(weight.dtype).unsqueeze(-1)
        directions = F.normalize(x.to(weight.dtype), dim=-1)
        middle = grouping.mean(directions).unsqueeze(1)
        seen = grouping.mean(votes * directions.unsqueeze(1)) - grouping.mean(votes) * middle
        pull = self.call.params[towards(self.name)] * grouping.sizes.to(weight.dtype).unsqueeze(1)
        change = weight.norm(dim=-1, keepdim=True) * pull.unsqueeze(-1) * seen
        self.call.settled |= {f"{self.name}.weight": weight + change}
        change = grouping.spread(change).to(x.dtype)
        return logits + torch.bmm(change, x.unsqueeze(-1)).squeeze(-1)


class GroupedConv(GroupedLayer):
    """A convolution with the group's filters: every image is one group of a grouped convolution (E11)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_generated:
            return self.layer(x)  # type: ignore[no-any-return]
        weight, bias = self.shares(x)
        conv = self.layer
        assert weight is not None
        assert isinstance(conv, nn.Conv2d)
        y = F.conv2d(
            x.reshape(1, -1, *x.shape[2:]),
            weight.to(x.dtype).flatten(0, 1),
            None if bias is None else bias.to(x.dtype).flatten(),
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups * len(x),
        )
        return y.reshape(len(x), -1, *y.shape[2:])
