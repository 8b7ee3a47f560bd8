"""Methods that follow a loss of the logits downhill with Adam: in the whole backbone, or in what follows its features.

The harness: Iwasawa and Matsuo's comparison of such methods, github.com/matsuolab/T3A,
domainbed/adapt_algorithms.py and scripts/unsupervised_adaptation.py. Its learning rate at test time is that of source
training times a factor; source training is DomainBed's, whose default is 5e-5. Ours are multiples of 5e-5 whatever the
source model was trained with, because a lent model does not tell: where that was another rate, the harness would search
around that one.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from generalizeformer.adapters._blocks import where, within
from generalizeformer.adapters._learner import CopyLearner, released
from generalizeformer.adapters._objectives import Scalar
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import UserError

SOURCE_LEARNING_RATE = 5e-5
HARNESS_GRID: tuple[dict[str, Any], ...] = tuple(
    {"learning_rate": rate, "steps": steps}
    for rate in (SOURCE_LEARNING_RATE, 5e-6, 5e-4)
    for steps in (1, 3)
)
"""The harness's grid for every method that learns: factors 0.1, 1 and 10 of the learning rate, times steps."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all of these methods but Tent have in common, as the harness has it."""

    learning_rate: float = SOURCE_LEARNING_RATE  # of Adam; 0 leaves the source model
    steps: int = 1  # updates per batch

    def __post_init__(self) -> None:
        check_settings(self._method, self.learning_rate, self.steps)

    @property
    def _method(self) -> str:
        return type(self).__module__.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class LabelSettings(Settings):
    """Those of methods that learn from pseudo labels."""

    threshold: float = 0.9  # images surer than this have a pseudo label; 1: none has

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise UserError(
                f"{self._method}: threshold is {self.threshold}; it is a probability, from 0 (every image) to 1 (none)"
            )


def check_settings(method: str, learning_rate: float, steps: int) -> None:
    """Raises where Adam could not use the settings."""
    if not 0 <= learning_rate < float("inf"):
        raise UserError(f"{method}: learning_rate is {learning_rate}; give a number of at least 0")
    if steps < 1:
        raise UserError(f"{method}: steps is {steps}; give at least 1")


class Descent(CopyLearner):
    """A private copy of the backbone; answers come before the last update of a batch, as in the harness."""

    config: Any  # `Settings`, or Tent's

    def __init__(self, source: GeneralizeFormer, config: Any) -> None:
        self.config = config
        super().__init__(source)

    @abstractmethod
    def loss(self, logits: Logits) -> Scalar: ...

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(moving, lr=self.config.learning_rate)

    def learn(self, images: Images) -> Logits:
        return self.descend(lambda: self.answer(images))

    def descend(self, forward: Callable[[], Logits]) -> Logits:
        """All updates of a batch; gives back the logits from which the last one was made."""
        for _ in range(self.config.steps):
            logits = forward()
            self.optimizer.zero_grad()
            self.loss(logits).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return logits


class HeadDescent(Descent):
    """A private copy of the classifier alone, on features that the source model gives once per batch (SRC)."""

    def reset(self) -> None:
        classifier = self.source.backbone.get_submodule(self.source.slots.classifier)
        # As ordinary tensors even inside a caller's inference_mode.
        with torch.inference_mode(False):
            self.head = copy.deepcopy(classifier).eval().requires_grad_(False)
            self.optimizer = self.optimise(self.release(self.head))

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        return released(copied.modules(), self.name, "parameter in its classifier")

    @torch.no_grad()
    def features(self, images: Images) -> Features:
        return self.source.network.run(images, grouping(None, len(images), images), {}).features

    def respond(self, features: Features) -> Logits:
        return self.head(features)  # type: ignore[no-any-return]

    def answer(self, images: Images) -> Logits:
        return self.respond(self.features(images))

    def learn(self, images: Images) -> Logits:
        features = self.features(images)
        return self.descend(lambda: self.respond(features))


def release_all(copied: nn.Module, blocks: tuple[str, ...], method: str) -> list[nn.Parameter]:
    """Every parameter in the blocks, each once, also where two layers share it."""
    layers = within(copied.modules(), copied, blocks, method)
    return list(dict.fromkeys(released(layers, method, f"parameter{where(blocks)}")))


def release_features(
    copied: nn.Module, classifier: str, blocks: tuple[str, ...], method: str
) -> list[nn.Parameter]:
    """Every parameter in the blocks but the classifier's, which stay also where another layer shares them."""
    head = copied.get_submodule(classifier)
    kept = set(head.modules())
    layers = within([m for m in copied.modules() if m not in kept], copied, blocks, method)
    kind = f"parameter outside its classifier{where(blocks)}"
    moving = dict.fromkeys(released(layers, method, kind))
    head.requires_grad_(False)
    return [value for value in moving if value.requires_grad]
