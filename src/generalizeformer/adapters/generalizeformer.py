"""A model generated for each target batch by the meta-learned φ.

GeneralizeFormer, section 3, Eq. 6 and Alg. 2; our choices where the text is silent are in docs/decisions.md.

BN mode: the source's running statistics, as the text says; the generated γ and β do the moving. Answers after
generating: a batch is answered with the parameters generated from it. Keeps nothing, so `reset` has nothing to do,
and each group is answered from itself alone. Needs a trained φ: a fresh one answers like the source.
"""

import copy
from dataclasses import dataclass, replace
from itertools import chain

import torch

from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.guard import Guard
from generalizeformer.core.shapes import Groups, Images, Logits


@dataclass(frozen=True, kw_only=True)
class Config:
    guard: Guard | None = None  # keeps answers near the source's; None leaves the model's own


class Generalizing:
    """The model itself, with φ in eval mode whatever mode it was lent in."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.model = _answering(source, config)

    def step(self, images: Images) -> Logits:
        return self._answer(images, None)

    def predict(self, images: Images) -> Logits:
        return self._answer(images, None)

    def predict_groups(self, images: Images, groups: Groups) -> Logits:
        return self._answer(images, groups)

    def reset(self) -> None:
        pass

    @torch.no_grad()
    def _answer(self, images: Images, groups: Groups | None) -> Logits:
        return self.model(images, groups)  # type: ignore[no-any-return]


def _answering(source: GeneralizeFormer, config: Config) -> GeneralizeFormer:
    """A second handle on the lent model: every tensor is shared, its settings and φ's mode are its own."""
    tensors = chain(source.generator.parameters(), source.generator.buffers())
    generator = copy.deepcopy(source.generator, {id(tensor): tensor for tensor in tensors})
    model = copy.copy(source)
    model._modules = source._modules | {"generator": generator}
    model.config = replace(source.config, guard=config.guard or source.config.guard)
    return model.eval()


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Generalizing(source, config)
