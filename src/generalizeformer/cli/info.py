"""`info`: what can be generated in a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.table import Table

from generalizeformer.cli._terminal import console, print_whole

if TYPE_CHECKING:
    from torch import nn


def info(
    model: Annotated[str, tyro.conf.Positional],
    /,
    kinds: tuple[Literal["norm", "classifier", "linear", "conv"], ...] = ("norm", "classifier"),
    stages: tuple[str, ...] = (),
    classes: int = 7,
    channels: int = 3,
) -> None:
    """List the slots of a model: the layers whose parameters can be generated.

    Args:
        model: Folder of a trained model, or the name of a backbone (digits, resnet18, timm:NAME, …).
        kinds: Kinds of layer to list.
        stages: Only these stages of the network; all if none is named.
        classes: Classes of the backbone, where a name is given.
        channels: Channels of its images, where a name is given.
    """
    from generalizeformer.core.backbones import build_backbone, parameter_count
    from generalizeformer.core.slots import Selection, find_slots

    if "/" in model or Path(model).is_dir():  # no backbone's name has a slash
        backbone = _trained(model)
    else:
        backbone = build_backbone(model, classes, channels=channels)
    slots = find_slots(backbone, Selection(kinds=kinds, stages=stages or None))
    table = Table("layer", "kind", "stage", "rows", "width", "parameters")
    for slot in slots:
        rows, width = slot.size
        table.add_row(slot.layer, slot.kind, slot.stage, str(rows), str(width), f"{rows * width:,}")
    print_whole(table)
    generated = sum(slot.size[0] * slot.size[1] for slot in slots)
    console.print(
        f"{len(slots)} slots, {generated:,} of {parameter_count(backbone):,} parameters; "
        f"classifier: {slots.classifier}",
        soft_wrap=True,
    )


def _trained(path: str) -> "nn.Module":
    """The backbone of a trained model, after a few words on the model."""
    from generalizeformer.core.backbones import parameter_count
    from generalizeformer.core.generalizeformer import GeneralizeFormer

    model = GeneralizeFormer.from_pretrained(path)
    card = model.card
    console.print(f"backbone: {card.architecture}, {len(card.classes)} classes", soft_wrap=True)
    console.print(
        f"training: {card.training}, on {card.dataset}: {', '.join(card.sources)}", soft_wrap=True
    )
    console.print(f"φ: {parameter_count(model.generator):,} parameters")
    return model.backbone
