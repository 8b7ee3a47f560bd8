"""The parts of a model that its settings ask for. All but φ are there only where something needs them."""

from typing import cast

from torch import nn

from generalizeformer.core.generators import channels, rows
from generalizeformer.core.kinship import FIRST
from generalizeformer.core.likeness import Likeness
from generalizeformer.core.prototypes import Prototypes
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Slots
from generalizeformer.core.variation import Variation


def generator(config: Config, backbone: nn.Module, slots: Slots) -> nn.Module:
    """φ, untrained."""
    made: nn.Module
    if isinstance(config.generator, rows.Config):
        classifier = cast(nn.Linear, backbone.get_submodule(slots.classifier))
        made = rows.build(slots, classifier.in_features, config.generator)
    else:
        made = channels.build(slots, config.generator)
    return made.to(next(backbone.parameters()))


def prototypes(config: Config, backbone: nn.Module, slots: Slots) -> Prototypes | None:
    """What the classifier's rows move to, where they do."""
    phi = config.generator
    if not isinstance(phi, channels.Config) or not phi.recalls(slots):
        return None
    return Prototypes(backbone.get_submodule(slots.classifier))


def variation(config: Config, backbone: nn.Module, slots: Slots) -> Variation | None:
    """How the statistics of settling layers vary, where that is to be known."""
    phi = config.generator
    if not isinstance(phi, channels.Config) or not phi.variation:
        return None
    widths = {slot.layer: slot.size[1] for slot in phi.settling(slots)}
    if not widths:
        return None
    return Variation(widths, phi.variation, phi.prior).to(next(backbone.parameters()))


def likeness(config: Config, backbone: nn.Module, known: Variation | None) -> Likeness | None:
    """What tells looks apart in the first layers, where images of a mixed group are to find their kin."""
    if config.kin is None or known is None:
        return None
    told = known.channels
    first = list(told)[: -(-len(told) // FIRST)]
    made = Likeness({layer: told[layer] for layer in first})
    return made.to(next(backbone.parameters()))
