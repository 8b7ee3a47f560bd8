"""A student taught by its slow average on a balanced memory of the stream, with statistics that follow slowly.

Yuan, Xie and Li, "Robust test-time adaptation in dynamic scenarios" (RoTTA), CVPR 2023, section 3. Reference:
github.com/BIT-DA/RoTTA, core/adapter/rotta.py, core/utils/memory.py and bn_layers.py, configs/adapter/rotta.yaml.

The teacher answers a batch. Its images then go one by one into a memory in which every predicted class has its share
and old or uncertain images give way (_balanced_memory.py). After every 64 images of the stream the student, shown
one strong view of the memory, takes a step towards the teacher, shown the memory as it is; an image of age a (in
memory sizes) has the weight 1 / (1 + exp(a)). Then every parameter of the teacher moves a little to the student's.
γ and β of BatchNorm move.

BN mode: robust (_robust_norm.py): answers use the statistics kept, at first the source's; at every update those of
teacher and student each move 5 % of the way to the mean and biased variance of what they were shown. Answers before
its update: the whole batch, also where updates fall into it. Keeps student, teacher, Adam's moments, memory and
the number of images seen; answers do not depend on batch mates. Needs normalisation layers whose affine part are
parameters, and a card whose mean and standard deviation are the images', for the views (_strong_views.py).

Deviations. Copies are in eval mode, so dropout is off; the reference switches it on for updates. In a model whose
BatchNorm has no γ and β to learn, or that has none, those of its LayerNorm, GroupNorm, … move instead; what BatchNorm
there is has robust statistics all the same. Entropies are exact; the reference adds 1e-6 inside the logarithm. Nothing
to search was published: the reference has one file of settings.
"""

from dataclasses import dataclass

import torch
from torch import nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._balanced_memory import BalancedMemory
from generalizeformer.adapters._batch_norm import affine_layers
from generalizeformer.adapters._learner import released
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._robust_norm import following, make_robust
from generalizeformer.adapters._teacher import Taught, soft_cross_entropy
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import UserError
from generalizeformer.seeds import derive

ABOUT = About(
    paper="Yuan et al., RoTTA, CVPR 2023",
    moves="γ, β of a student's norm layers, slowly all of its teacher, who answers",
    batch_norm="kept, slowly following the memory's",
    keeps="student, teacher, statistics, memory of images, Adam's moments",
    answers="before",
    reference="no trace of BIT-DA/RoTTA",
    needs="norm layers with γ, β; a card with the images' mean and standard deviation",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    learning_rate: float = 1e-3  # of Adam
    memory_size: int = 64  # images
    update_every: int = 64  # images of the stream, however they are batched
    teacher_rate: float = (
        0.001  # share of the way that the teacher moves to the student; the paper's ν
    )
    statistics_rate: float = (
        0.05  # likewise of the statistics to those of the memory; the paper's α
    )
    age_weight: float = 1.0  # in what the memory gives up; the paper's λ_t
    uncertainty_weight: float = 1.0  # likewise; the paper's λ_u
    seed: int = 0  # of the views

    def __post_init__(self) -> None:
        for name in ("learning_rate", "age_weight", "uncertainty_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(
                    f"rotta: {name} is {getattr(self, name)}; give a number of at least 0"
                )
        for name in ("teacher_rate", "statistics_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"rotta: {name} is {getattr(self, name)}; give a number from 0 to 1"
                )
        for name in ("memory_size", "update_every"):
            if getattr(self, name) < 1:
                raise UserError(f"rotta: {name} is {getattr(self, name)}; give at least 1")


class RoTTA(Taught):
    """Student, teacher and memory."""

    name = "rotta"

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config, self.seed = config, derive(self.name, config.seed)
        super().__init__(source)

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        """γ and β of the BatchNorm, else of all norm layers."""
        make_robust(copied, self.config.statistics_rate, self.name)
        kind = "normalisation layer with a scale or shift"
        return released(affine_layers(copied), self.name, kind)

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(moving, lr=self.config.learning_rate, betas=(0.9, 0.999))

    def reset(self) -> None:
        super().reset()
        config = self.config
        self.memory = BalancedMemory(
            config.memory_size, self.source.classes, config.age_weight, config.uncertainty_weight
        )

    def learn(self, images: Images) -> Logits:
        logits = self.answer(images)
        labels, entropies = logits.argmax(1).tolist(), per_image_entropy(logits).tolist()
        for image, label, entropy in zip(images, labels, entropies, strict=True):
            self.memory.add(image, label, entropy)
            if self.memory.arrived % self.config.update_every == 0:
                self._update()
        return logits

    def _update(self) -> None:
        """The student learns from the memory, and the teacher follows it."""
        images = self.memory.images
        weights = torch.sigmoid(-images.new_tensor(self.memory.ages))
        with following(self.backbone, self.student):
            target = self.backbone(images)
            logits = self.student(self.view(images, self.generator))
        self.descend((soft_cross_entropy(logits, target) * weights).mean())
        self.follow(self.config.teacher_rate)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return RoTTA(source, config)
