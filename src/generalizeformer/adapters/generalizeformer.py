"""A model generated for each target batch by the meta-learned φ.

GeneralizeFormer, section 3, Eq. 6 and Alg. 2; our choices where the text is silent are in docs/decisions.md.

BN mode: the source's running statistics, as the text says; the generated γ and β do the moving. Answers after
generating: a batch is answered with the parameters generated from it. Keeps nothing, so `reset` has nothing to do,
and each group is answered from itself alone. Needs a trained φ: a fresh one answers like the source
(where mirror images are looked at, like the mean of its answers to image and mirror image).
"""

import copy
from dataclasses import dataclass, replace
from itertools import chain

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.guard import Guard

ABOUT = About(
    paper="GeneralizeFormer: this method",
    moves="what φ generates: γ, β and classifier, for each batch",
    batch_norm="source",
    keeps="nothing",
    answers="after",
    reference="none",
    needs="trained φ",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    guard: Guard | None = None  # keeps answers near the source's; None leaves the model's own


def _answering(source: GeneralizeFormer, config: Config) -> GeneralizeFormer:
    """A second handle on the lent model: every tensor is shared, its settings and φ's mode (eval) are its own."""
    tensors = chain(source.generator.parameters(), source.generator.buffers())
    generator = copy.deepcopy(source.generator, {id(tensor): tensor for tensor in tensors})
    model = copy.copy(source)
    model._modules = source._modules | {"generator": generator}
    model.config = replace(source.config, guard=config.guard or source.config.guard)
    return model.eval()


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Stateless(_answering(source, config))
