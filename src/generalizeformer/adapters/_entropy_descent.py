"""Methods that follow the entropy of the sure images downhill, over the scale and shift of normalisation layers."""

from abc import abstractmethod
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from generalizeformer.adapters._batch_norm import use_batch_statistics
from generalizeformer.adapters._learner import CopyLearner, released
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.normalisers import is_norm
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import UserError

TOP_LAYERS = ("layer4", "blocks.9", "blocks.10", "blocks.11", "norm.")
"""The last stage of ResNets, the last blocks and the last norm of ViT-B: what SAR and DeYO leave as it is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What these methods have in common, with the published values for ResNet-50 on ImageNet."""

    learning_rate: float = 2.5e-4  # of SGD; 0 leaves the batch's statistics as the only change
    momentum: float = 0.9  # of SGD
    steps: int = 1  # updates per batch
    episodic: bool = False  # forget everything before each batch
    entropy_margin: float = 0.4  # only surer images teach; a share of the largest entropy there is
    frozen: tuple[
        str, ...
    ] = ()  # layers with this in their name stay; with a dot, also if it is all

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < float("inf"):
            self._refuse("learning_rate", "give a number of at least 0")
        if not 0 <= self.momentum < 1:
            self._refuse("momentum", "give a number from 0 to below 1")
        if self.steps < 1:
            self._refuse("steps", "give at least 1")
        if not self.entropy_margin >= 0:
            self._refuse(
                "entropy_margin", "it is a share of log(classes), from 0 (none) to 1 (all)"
            )

    def _refuse(self, name: str, remedy: str) -> None:
        method = type(self).__module__.rpartition(".")[2]
        raise UserError(f"{method}: {name} is {getattr(self, name)}; {remedy}")


class EntropyDescent(CopyLearner):
    """A private copy of the backbone under the batch's statistics, moved by SGD; `update` is what methods differ in."""

    config: Settings
    moving: list[nn.Parameter]

    def __init__(self, source: GeneralizeFormer, config: Settings) -> None:
        self.config, self.episodic = config, config.episodic
        self.margin = config.entropy_margin * log(source.classes)
        super().__init__(source)

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        """γ and β of all norm layers that are not frozen."""
        use_batch_statistics(copied, self.name)
        layers = [m for n, m in copied.named_modules() if is_norm(m) and not self._is_frozen(n)]
        outside = f" outside {', '.join(self.config.frozen)}" if self.config.frozen else ""
        kind = f"normalisation layer with a scale or shift{outside}"
        return released(layers, self.name, kind)

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        self.moving = moving
        return torch.optim.SGD(moving, self.config.learning_rate, self.config.momentum)

    def learn(self, images: Images) -> Logits:
        for _ in range(self.config.steps):
            logits = self.update(images)
        return logits

    @abstractmethod
    def update(self, images: Images) -> Logits:
        """One update from the batch, and the answer from before it."""

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def values(self) -> list[Tensor]:
        """What moves, as it is now."""
        return [value.detach().clone() for value in self.moving]

    @torch.no_grad()
    def put(self, values: list[Tensor]) -> None:
        """Sets what moves to these values."""
        for moving, value in zip(self.moving, values, strict=True):
            moving.copy_(value)

    def _is_frozen(self, name: str) -> bool:
        return any(part in name or part == f"{name}." for part in self.config.frozen)
