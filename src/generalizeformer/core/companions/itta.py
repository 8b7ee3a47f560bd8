"""ITTA's network: a backbone, a learned weighting of what style changes in its features, and maps for test time.

Chen et al., "Improved test-time adaptation for domain generalization", CVPR 2023. A second branch sees the feature
maps of some stage with the styles of other images (MixStyle); the consistency loss is the weighted squared
difference of the two branches' features. At test time small elementwise maps are inserted after the stages, and
they alone follow that loss.
"""

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer import seeds
from generalizeformer.core.classifiers import class_count, find_classifier
from generalizeformer.core.companions._stages import Stage, find_stages
from generalizeformer.core.companions._styles import Mixing, draw_mixing, mix_styles
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import ImageError, SlotError, UserError

STAGES = 4  # that get maps: the last resolutions
WEIGHTING_DEPTH, MAP_DEPTH = 10, 5  # elementwise layers


class Seen(NamedTuple):
    features: Features
    logits: Logits


class Elementwise(nn.Module):
    """Layers that scale and shift every element by itself, with ReLU between them."""

    def __init__(self, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(depth, *shape))
        self.shifts = nn.Parameter(torch.zeros(depth, *shape))

    def forward(self, x: Float[Tensor, " images *shape"]) -> Float[Tensor, " images *shape"]:
        for scale, shift in zip(self.scales[:-1], self.shifts[:-1], strict=True):
            x = (scale * x + shift).relu()
        return self.scales[-1] * x + self.shifts[-1]


class InsertedMap(Elementwise):
    """The layers on what is positive; what is negative passes, so that a new map changes nothing in any network."""

    def forward(self, x: Float[Tensor, " images *shape"]) -> Float[Tensor, " images *shape"]:
        return super().forward(x.relu()) - (-x).relu()


class Itta(nn.Module):
    """A copy of the backbone and the weighting. Not for train mode: BatchNorm keeps its statistics throughout."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.classifier = find_classifier(backbone)
        if class_count(backbone, self.classifier) != classes:
            raise SlotError(
                f"itta: the classifier {self.classifier!r} does not tell {classes} classes apart; give the model a "
                "classifier that is its last Linear layer"
            )
        if not any(isinstance(layer, nn.Conv2d) for layer in backbone.modules()):
            raise SlotError(
                f"itta: {type(backbone).__name__} has no convolution, so there are no feature maps to restyle; give a "
                "convolutional backbone, or try t3a"
            )
        self.weighting = Elementwise((self.head.in_features,), WEIGHTING_DEPTH).to(self.head.weight)
        self.found: dict[tuple[int, ...], tuple[Stage, ...]] = {}

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.backbone.get_submodule(self.classifier))

    def forward(
        self, images: Images, mixing: Mixing | None = None, maps: nn.ModuleList | None = None
    ) -> Seen:
        """Features and logits, with styles mixed after one stage and maps after all where those are given."""
        features: list[Tensor] = []
        with ExitStack() as hooks:
            if mixing is not None or maps is not None:
                self._insert(self.stages(images), mixing, maps, hooks)
            note = lambda _, inputs: features.append(inputs[0])  # noqa: E731
            hooks.enter_context(self.head.register_forward_pre_hook(note))
            logits = self.backbone(images)
        return Seen(features[0], logits)

    def inconsistency(self, clean: Features, mixed: Features) -> Float[Tensor, ""]:
        """The consistency loss: the weighted difference of two branches' features, squared."""
        return cast(Tensor, self.weighting(mixed - clean)).square().mean()

    def stages(self, images: Images) -> tuple[Stage, ...]:
        """Where maps belong for images of this size."""
        size = tuple(images.shape[1:])
        if size not in self.found:
            self.found[size] = find_stages(self.backbone, images[:1], STAGES)
        if not self.found[size]:
            raise SlotError(
                f"itta: {type(self.backbone).__name__} has no convolution whose maps are larger than one pixel for "
                f"images of {size[-2]}x{size[-1]}; give a convolutional backbone, or larger images"
            )
        return self.found[size]

    def new_maps(self, images: Images) -> nn.ModuleList:
        """Maps for images of this size, which do nothing yet."""
        return nn.ModuleList(InsertedMap(s.shape, MAP_DEPTH) for s in self.stages(images)).to(
            images
        )

    def _insert(
        self,
        stages: tuple[Stage, ...],
        mixing: Mixing | None,
        maps: nn.ModuleList | None,
        hooks: ExitStack,
    ) -> None:
        mixed = -1 if mixing is None else min(mixing.stage, len(stages) - 1)
        for number, stage in enumerate(stages):

            def change(_: nn.Module, inputs: object, x: Tensor, number: int = number) -> Tensor:
                if mixing is not None and number == mixed:
                    x = mix_styles(x, mixing)
                return x if maps is None else cast(Tensor, maps[number](x))

            module = self.backbone.get_submodule(stage.name)
            hooks.enter_context(module.register_forward_hook(change))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How the maps learn."""

    learning_rate: float = 5e-6  # of Adam
    loss_weight: float = (
        1e-6  # of the consistency loss: how it compares with Adam's ε decides the step
    )
    steps: int = 1  # updates per batch
    seed: int = 0  # of the styles

    def __post_init__(self) -> None:
        for name in ("learning_rate", "loss_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(
                    f"itta: {name} is {getattr(self, name)}; give a number of at least 0"
                )
        if self.steps < 1:
            raise UserError(f"itta: steps is {self.steps}; give at least 1")


class Online:
    """The network and its maps on a stream: made for the size of the first batch that they learn from."""

    def __init__(self, network: Itta, pace: Pace) -> None:
        self.network, self.pace = network, pace
        self.maps: nn.ModuleList | None = None
        self.size: tuple[int, ...] = ()
        self.generator = torch.Generator().manual_seed(seeds.derive("itta", pace.seed))

    def learn(self, images: Images) -> None:
        """The batch's updates of the maps. One image has no partner in style, and so teaches nothing."""
        self._check(images)
        if len(images) < 2:
            return
        maps = self.maps or self._begin(images)
        moving = list(maps.parameters())
        for _ in range(self.pace.steps):
            mixing = draw_mixing(images, self.generator)
            with torch.enable_grad():
                clean, mixed = self.network(images, None, maps), self.network(images, mixing, maps)
                loss = self.network.inconsistency(clean.features, mixed.features)
                self.optimizer.zero_grad()
                (self.pace.loss_weight * loss).backward(inputs=moving)  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def answer(self, images: Images) -> Logits:
        self._check(images)
        return cast(Seen, self.network(images, None, self.maps)).logits

    def _begin(self, images: Images) -> nn.ModuleList:
        self.maps, self.size = self.network.new_maps(images), tuple(images.shape[1:])
        self.optimizer = torch.optim.Adam(self.maps.parameters(), lr=self.pace.learning_rate)
        return self.maps

    def _check(self, images: Images) -> None:
        size = tuple(images.shape[1:])
        if self.maps is not None and size != self.size:
            raise ImageError(
                f"itta: got images of {size[-2]}x{size[-1]}, but the inserted maps were made for "
                f"{self.size[-2]}x{self.size[-1]}; give images of one size, or reset between sizes"
            )


def build(backbone: nn.Module, classes: int) -> Itta:
    return Itta(backbone, classes)
