"""Meta-training of φ (Alg. 1, meta-generalization stage, Eq. 5), on (model, domain) pairs.

A pair is a source model and a domain to carry it to. Where the pairs come from is the recipe's choice:
the paper's `joint` episodes use the one model and every source domain; `held-out` episodes use, for each
domain, a model that never saw it. Random looks turn any domain into many. Each group is answered by
`GeneralizeFormer.forward`, the same call as at test time, and φ learns from its cross-entropy.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators.channels import Channels
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import Domain
from generalizeformer.data.episodes import Episode, episode, group_sizes
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.imaging.augmentation import augment
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.imaging.looks import apply as apply_looks
from generalizeformer.training._checks import (
    check_counts,
    check_not_negative,
    check_positive,
    check_shares,
    check_sizes,
)
from generalizeformer.training._loop import Metrics
from generalizeformer.training._scoring import Answer, accuracy, plainly
from generalizeformer.training._together import Schedule, descend, schedule


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 1000
    images: int = 80  # per step, over all groups
    sizes: tuple[int, ...] = (1, 4, 20)  # of groups, drawn anew for every group
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"
    clip: float | None = 1.0  # norm of φ's gradient: one strange batch must not throw it off
    augmentation: Augmentation | None = None  # crops, flips and colours, drawn for every image
    looks: Looks | None = None  # random looks as pseudo-domains, one per group
    look_share: float = 0.5  # of the steps that use them
    # Where φ of channels begins, which is good nearly everywhere: the part of the way to the batch's statistics, what
    # gathered features add to rows, and the part of the rows' way to the source's prototypes. 0 is the source model.
    first_move: float = 0.2
    first_pull: float = 0.1
    first_recall: float = 0.5
    average: float = 0.98  # decay of the moving average of φ's weights that is validated and kept
    every: int = 100  # steps between validations
    validation_sizes: tuple[int, ...] = (1, 20)
    validation_images: int = 1000  # at most, of each pair and in each size

    def __post_init__(self) -> None:
        check_counts("meta", steps=self.steps, images=self.images, every=self.every)
        check_counts("meta", validation_images=self.validation_images)
        check_sizes("meta", sizes=self.sizes, validation_sizes=self.validation_sizes)
        check_shares("meta", look_share=self.look_share, average=self.average)
        check_not_negative("meta", weight_decay=self.weight_decay)
        check_not_negative("meta", first_move=self.first_move, first_pull=self.first_pull)
        check_not_negative("meta", first_recall=self.first_recall)
        clip = {} if self.clip is None else {"clip": self.clip}
        check_positive("meta", learning_rate=self.learning_rate, **clip)


@dataclass(frozen=True)
class Pair:
    """A source model, a domain to carry it to, and how often the pair is drawn."""

    model: GeneralizeFormer  # all pairs share one generator
    train: Domain
    validation: Domain
    weight: float = 1.0
    unseen: bool = False  # whether the model has learned without the domain, as without a user's


def blend(strange: list[Pair], own: list[Pair], stay: float) -> list[Pair]:
    """Both kinds of pair, the own ones with `stay` of the total weight."""
    total = sum(pair.weight for pair in strange)
    strange = [replace(pair, weight=(1 - stay) * pair.weight / total) for pair in strange]
    return strange + [replace(pair, weight=stay / len(own)) for pair in own if stay]


class Meta:
    """Trains the generator that the pairs' models share, from a beginning of its own. Backbones stay as they are."""

    def __init__(
        self, pairs: list[Pair], preprocessing: Preprocessing, config: Config, fabric: Fabric
    ) -> None:
        self.pairs, self.preprocessing = pairs, preprocessing
        self.config, self.fabric = config, fabric
        self.generator = pairs[0].model.generator
        assert all(pair.model.generator is self.generator for pair in pairs)
        begin(self.generator, config)
        self.optimizer = torch.optim.AdamW(
            self.generator.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=fabric.device.type == "cuda" or None,
        )
        self.smooth = {name: value.clone() for name, value in self.generator.state_dict().items()}
        self.plain: float | None = None  # accuracy on unseen domains before anything is generated

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        schedule(self.optimizer, self.config, step)
        weights = torch.tensor([pair.weight for pair in self.pairs])
        pair = self.pairs[int(torch.multinomial(weights, 1, generator=generator))]
        drawn = self._draw(pair.train, generator)
        labels = drawn.labels.to(self.fabric.device)
        self.generator.train()
        with self.fabric.autocast():
            logits = pair.model(self.preprocessing(drawn.images), drawn.groups)
            loss = F.cross_entropy(logits, labels)
        descend(self.fabric, self.optimizer, loss, self.config.clip)
        self._smooth(step)
        return {
            "loss": loss.item(),
            "accuracy": 100 * (logits.argmax(1) == labels).float().mean().item(),
        }

    def validate(self) -> Metrics:
        """Weighted accuracy over the pairs' validation parts, mean over the group sizes, with averaged weights.

        Where φ learns from looks, half of the groups have one: on clean images of known domains the best φ is the
        one that does nothing.
        """
        raw = {name: value.clone() for name, value in self.generator.state_dict().items()}
        self.load_weights(self.smooth)
        metrics: Metrics = {}
        for size in self.config.validation_sizes:
            right = [self._accuracy(pair.model, pair, size) for pair in self.pairs]
            scores = [pair.weight * each for pair, each in zip(self.pairs, right, strict=True)]
            metrics[f"accuracy_{size}"] = sum(scores) / sum(pair.weight for pair in self.pairs)
        self.generator.load_state_dict(raw)
        score = sum(metrics.values()) / len(metrics)
        return metrics | {"score": score} | self._unseen(right, size)

    def state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.state_dict(),
            "smooth": self.smooth,
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.generator.load_state_dict(state["generator"])
        self.smooth = {n: v.to(self.fabric.device) for n, v in state["smooth"].items()}
        self.optimizer.load_state_dict(state["optimizer"])

    def weights(self) -> dict[str, Tensor]:
        return self.smooth

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.generator.load_state_dict(weights)
        self.generator.eval()

    def _draw(self, domain: Domain, generator: torch.Generator) -> Episode:
        sizes = tuple(min(size, len(domain)) for size in self.config.sizes)
        drawn = episode(domain, group_sizes(self.config.images, sizes, generator), generator)
        pixels, groups = drawn.images.to(self.fabric.device), drawn.groups.to(self.fabric.device)
        if self.config.augmentation is not None:
            pixels = augment(pixels, generator, self.config.augmentation)
        looks, share = self.config.looks, self.config.look_share
        if looks is not None and float(torch.rand(1, generator=generator)) < share:
            pixels = apply_looks(pixels, groups, generator, looks)
        return Episode(pixels, drawn.labels, groups)

    def _smooth(self, step: int) -> None:
        # Young averages must not remember the start.
        decay = min(self.config.average, (step + 1) / (step + 10))
        for name, value in self.generator.state_dict().items():
            self.smooth[name] = decay * self.smooth[name] + (1 - decay) * value

    def _unseen(self, right: list[float], size: int) -> Metrics:
        """Mean accuracy on unseen domains, without φ and with it: what to expect of a target, not weighted."""
        places = [number for number, pair in enumerate(self.pairs) if pair.unseen]
        if not places:
            return {}
        if self.plain is None:
            strange = [self.pairs[place] for place in places]
            answers = [self._accuracy(plainly(pair.model), pair, size) for pair in strange]
            self.plain = sum(answers) / len(answers)
        adapted = sum(right[place] for place in places) / len(places)
        return {"unseen_plain": self.plain, "unseen_adapted": adapted}

    def _accuracy(self, answer: Answer, pair: Pair, size: int) -> float:
        device, looks, limit = self.fabric.device, self.config.looks, self.config.validation_images
        with self.fabric.autocast():  # as it learns, and as backbones are validated
            return accuracy(answer, pair.validation, self.preprocessing, size, device, looks, limit)


def begin(generator: nn.Module, config: Config) -> None:
    """Sets φ to its first moves. That of rows has none that are good everywhere, and begins as the source model."""
    if isinstance(generator, Channels):
        generator.begin(config.first_move, config.first_pull, config.first_recall)
