"""Methods that keep nothing between batches: one function from images and groups to logits is all they are."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from generalizeformer.core.shapes import Groups, Images, Logits


@dataclass(frozen=True)
class Stateless:
    """The protocol around such a function: learning is answering, and there is nothing to forget."""

    answer: Callable[[Images, Groups | None], Logits]

    @torch.no_grad()
    def predict(self, images: Images) -> Logits:
        return self.answer(images, None)

    def step(self, images: Images) -> Logits:
        return self.predict(images)

    @torch.no_grad()
    def predict_groups(self, images: Images, groups: Groups) -> Logits:
        return self.answer(images, groups)

    def reset(self) -> None:
        pass
