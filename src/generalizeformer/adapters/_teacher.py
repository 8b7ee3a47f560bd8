"""Methods in which a student learns from a teacher that is the slow average of it, and the teacher answers."""

import copy

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from generalizeformer.adapters._learner import CopyLearner
from generalizeformer.adapters._strong_views import check_described, strong_view
from generalizeformer.core.shapes import Images, Logits


class Taught(CopyLearner):
    """Two private copies: the student, whose parameters follow a loss, and the teacher, which follows the student.

    The frame's `backbone` is the teacher, because it is what answers. All draws come from one generator, which
    begins anew at every reset.
    """

    seed = 0  # of the generator

    def view(self, images: Images, generator: Generator) -> Images:
        """A strong view of the images."""
        return strong_view(images, self.source.card.preprocessing, generator)

    def answer(self, images: Images) -> Logits:
        """The teacher's answer. Refused where no views could be made, also if this batch needs none."""
        check_described(images, self.source.card.preprocessing, self.name)
        return super().answer(images)

    def descend(self, loss: Float[Tensor, ""]) -> None:
        """One update of the student."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Moves every parameter of the teacher this share of the way to the student's."""
        pairs = zip(self.backbone.parameters(), self.student.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, share)

    def reset(self) -> None:
        super().reset()
        with torch.inference_mode(False):
            self.student = self.backbone
            self.backbone = copy.deepcopy(self.student).requires_grad_(False)
            self.generator = Generator().manual_seed(self.seed)


def soft_cross_entropy(logits: Logits, target: Logits) -> Float[Tensor, " images"]:
    """-Σ q log p of each image, where q are the probabilities of the target and p those of the logits."""
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)
