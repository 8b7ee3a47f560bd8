"""The paper's training by name. What its text leaves open is in docs/decisions.md."""

from dataclasses import replace

from generalizeformer.core.settings import PAPER
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training._recipe import Recipe
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.meta import Config as MetaConfig

STEPS = 10_000
RATE = 1e-4

PAPER_RECIPE = Recipe(
    episodes="joint",
    model=PAPER,
    # A batch is 64 images of the meta-source domains: 32 of each, as PACS has three sources and one plays the target.
    erm=ErmConfig(
        steps=STEPS, per_domain=32, learning_rate=RATE, weight_decay=0.0, schedule="constant"
    ),
    # The same 64 for the meta-target. AdamW without weight decay is Adam; nothing is clipped or averaged.
    meta=MetaConfig(
        steps=STEPS,
        images=64,
        sizes=(20,),
        learning_rate=RATE,
        weight_decay=0.0,
        schedule="constant",
        clip=None,
        average=0.0,
    ),
)
"""Joint episodes, the literal φ, plain Adam with a constant learning rate."""

PAPER_PHI = replace(
    PAPER_RECIPE,
    episodes="looks",
    # Looks without strength, in no step: the one model meets its own domains in turn, in validation too.
    meta=replace(PAPER_RECIPE.meta, looks=Looks(strength=0.0), look_share=0.0),
)
"""The paper's φ on a backbone that is trained before it, so that it can be the one that other methods start from."""
