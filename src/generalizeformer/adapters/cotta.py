"""A student taught by its own slow average, which forgets a little of what it learned after every batch.

Wang, Fink, Van Gool and Dai, "Continual test-time domain adaptation" (CoTTA), CVPR 2022, section 3, algorithm 1.
Reference: github.com/qinenergy/cotta, cifar/cotta.py and imagenet/cotta.py, with their conf.py and cfgs.

Per batch: the teacher's answer is the target, or, where the source model is unsure of the batch (the mean of its
largest probabilities lies below a threshold), the mean of the teacher's logits over 32 strong views; the student
takes one step towards it; the teacher takes a small step towards the student; of the student's weights a few, drawn
one by one, become the source's again. All parameters move.

BN mode: the current batch's statistics (biased variance), in student, teacher and the source model that is asked
how sure it is. Answers before its last update: the answer is the target. Keeps student, teacher and the optimizer's
moments from batch to batch (online), or only until the next one (`episodic`). Needs a card whose mean and standard
deviation are the images', for the views (_strong_views.py). Models without BatchNorm are served as well. A single
image is normalised by itself, which works but removes most of what tells images apart.

`predict` draws the very views that `step` would draw next, so that it answers as `step` would, and changes nothing.

Deviations. The copies are in eval mode, so dropout is off; the reference leaves it on. Every BatchNorm is served,
not only BatchNorm2d. Every parameter moves and is restored, not only those called weight or bias. Views are made
only where they are used (the reference's CIFAR file always makes them, with the same answers).
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._batch_norm import use_batch_statistics
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._teacher import Taught, soft_cross_entropy
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import UserError
from generalizeformer.seeds import derive

ABOUT = About(
    paper="Wang et al., CoTTA, CVPR 2022",
    moves="all parameters of a student, and slowly of its teacher, who answers",
    batch_norm="batch",
    keeps="student, teacher, optimizer's moments",
    answers="before",
    reference="no trace of qinenergy/cotta",
    needs="a card with the images' mean and standard deviation, for views",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The reference's settings for CIFAR-10-C."""

    optimizer: Literal["adam", "sgd"] = "adam"  # sgd has Nesterov's momentum of 0.9
    learning_rate: float = 1e-3
    symmetric: bool = (
        False  # also the cross-entropy of the target under the student's probabilities
    )
    teacher_momentum: float = 0.999  # share of itself that the teacher keeps
    restore_chance: float = (
        0.01  # that a weight of the student becomes the source's, each by itself
    )
    confidence: float = 0.92  # of the source model, below which views are averaged; 0 is never
    views: int = 32
    steps: int = 1  # updates per batch
    episodic: bool = False  # forget everything before each batch
    seed: int = 0  # of views and of what is restored

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "sgd"):
            raise UserError(f"cotta: optimizer is {self.optimizer!r}; give 'adam' or 'sgd'")
        if not 0 <= self.learning_rate < float("inf"):
            raise UserError(
                f"cotta: learning_rate is {self.learning_rate}; give a number of at least 0"
            )
        for name in ("teacher_momentum", "restore_chance", "confidence"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"cotta: {name} is {getattr(self, name)}; give a number from 0 to 1"
                )
        for name in ("views", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"cotta: {name} is {getattr(self, name)}; give at least 1")


_CIFAR = {"optimizer": "adam", "learning_rate": 1e-3, "symmetric": False, "restore_chance": 0.01}
_IMAGENET = {"optimizer": "sgd", "learning_rate": 0.01, "symmetric": True, "restore_chance": 0.001}

GRID: tuple[dict[str, Any], ...] = (
    _CIFAR | {"confidence": 0.92},
    _CIFAR | {"confidence": 0.72},
    _IMAGENET | {"confidence": 0.1},
)
"""The reference names no grid; these are its settings for CIFAR-10-C (the default), CIFAR-100-C and ImageNet-C."""


class CoTTA(Taught):
    """Student and teacher, and the source model as an anchor for both the threshold and the restoring."""

    name = "cotta"

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config, self.episodic = config, config.episodic
        self.seed = derive(self.name, config.seed)
        super().__init__(source)

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(copied, self.name)
        return list(copied.requires_grad_().parameters())

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        rate = self.config.learning_rate
        if self.config.optimizer == "sgd":
            return torch.optim.SGD(moving, lr=rate, momentum=0.9, nesterov=True)
        return torch.optim.Adam(moving, lr=rate, betas=(0.9, 0.999))

    def reset(self) -> None:
        super().reset()
        with torch.inference_mode(False):
            self.anchor = copy.deepcopy(self.backbone)

    def answer(self, images: Images) -> Logits:
        ahead = Generator()
        ahead.set_state(self.generator.get_state())
        return self._target(images, ahead)

    def learn(self, images: Images) -> Logits:
        for _ in range(self.config.steps):
            target = self._target(images, self.generator)
            logits = self.student(images)
            loss = soft_cross_entropy(logits, target)
            if self.config.symmetric:
                loss = (loss + soft_cross_entropy(target, logits)) / 2
            self.descend(loss.mean())
            self.follow(1 - self.config.teacher_momentum)
            self._restore()
        return target

    @torch.no_grad()
    def _target(self, images: Images, generator: Generator) -> Logits:
        """The teacher's answer to the images or, where the source model is unsure of them, to views of them."""
        plain = super().answer(images)
        sureness = self.anchor(images).softmax(1).amax(1).mean()
        if sureness >= self.config.confidence:
            return plain
        count, total = self.config.views, torch.zeros_like(plain)
        for _ in range(count):
            total += super().answer(self.view(images, generator))
        return total / count

    @torch.no_grad()
    def _restore(self) -> None:
        """Takes a random few of the student's weights back to the source."""
        seed = int(torch.randint(2**62, (1,), generator=self.generator))
        # Drawn where the weights are: so many draws on a CPU would take longer than the update.
        local = Generator(next(self.student.parameters()).device).manual_seed(seed)
        pairs = zip(self.student.parameters(), self.anchor.parameters(), strict=True)
        for value, original in pairs:
            drawn = torch.rand(value.shape, generator=local, device=value.device)
            value.copy_(torch.where(drawn < self.config.restore_chance, original, value))


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return CoTTA(source, config)
