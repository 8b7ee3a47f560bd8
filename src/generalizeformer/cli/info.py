"""`info`: what can be generated in a model."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.table import Table

from generalizeformer.cli._terminal import check_model, console, print_whole

if TYPE_CHECKING:
    from torch import nn

    from generalizeformer.core.slots import Selection


def info(
    model: Annotated[str, tyro.conf.Positional],
    /,
    kinds: tuple[Literal["norm", "classifier", "linear", "conv"], ...] = (),
    stages: tuple[str, ...] = (),
    classes: int = 7,
    channels: int = 3,
) -> None:
    """List the slots of a model: the layers whose parameters can be generated.

    Args:
        model: Folder of a trained model, or the name of a backbone (digits, resnet18, timm:NAME, …).
        kinds: Kinds of layer to list; if none is named, those a trained model generates, norm and classifier of others.
        stages: Only these stages of the network; if none is named, those a trained model generates, all of others.
        classes: Classes of the backbone, where a name is given.
        channels: Channels of its images, where a name is given.
    """
    from generalizeformer.core.backbones import build_backbone, parameter_count
    from generalizeformer.core.slots import Selection, find_slots

    if "/" in model or Path(model).is_dir():  # no backbone's name has a slash
        backbone, selection = _trained(Path(model))
    else:
        backbone, selection = build_backbone(model, classes, channels=channels), Selection()
    selection = replace(
        selection, kinds=kinds or selection.kinds, stages=stages or selection.stages
    )
    slots = find_slots(backbone, selection)
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


def _trained(path: Path) -> "tuple[nn.Module, Selection]":
    """The backbone of a trained model and what is generated in it, after a few words on the model."""
    from generalizeformer.core.backbones import parameter_count
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.training._scoring import unseen

    check_model(path)
    model = GeneralizeFormer.from_pretrained(path)
    card = model.card
    console.print(f"backbone: {card.architecture}, {len(card.classes)} classes", soft_wrap=True)
    sources = f": {', '.join(card.sources)}" if card.sources else ""
    learned = f"{card.dataset or 'unknown'}{sources}"  # trained in Python, on images without a name
    console.print(f"training: {card.training}, on {learned}", soft_wrap=True)
    if gained := unseen(card):
        console.print(gained, soft_wrap=True)
    console.print(f"φ: {parameter_count(model.generator):,} parameters")
    return model.backbone, model.config.selection
