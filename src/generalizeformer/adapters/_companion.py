"""Methods that were trained for at source time: their network, filled with what that training left."""

from torch import nn

from generalizeformer import catalog
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import SlotError

COMPANIONS = "generalizeformer.core.companions"


def companion(source: GeneralizeFormer, method: str) -> nn.Module:
    """The method's own network beside the source model, in eval mode and without gradients."""
    if method not in source.companions:
        raise SlotError(
            f"{method}: this model was not trained for it; train one with `generalizeformer train --also {method}`"
        )
    like = next(source.backbone.parameters())
    network: nn.Module = catalog.load(COMPANIONS, method).build(source.backbone, source.classes)
    network.load_state_dict(source.companions[method])
    return network.to(like).eval().requires_grad_(False)
