"""The source images that a run was only validated on: found again, and only those."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalizeformer.cli._data import Choice, source_domains
from generalizeformer.errors import DataError

if TYPE_CHECKING:
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.data.domains import DomainDataset

STAGES = ("meta", "joint")  # the last stage of a training, whichever it was


def held_sources(run: Path, model: "GeneralizeFormer", root: Path | None = None) -> "DomainDataset":
    """The validation part of every source of a run, divided as its training did; refused where images differ."""
    from generalizeformer.data.splits import share_classes, split_all
    from generalizeformer.training._start import near, origin

    card, learned = model.card, _settings(run)
    assert card.dataset is not None
    choice = Choice(
        data=card.dataset,
        protocol=card.protocol,
        root=root,
        size=card.preprocessing.size,
        settings=dict(card.dataset_settings),
    )
    sources = share_classes(source_domains(choice, card.sources)[0], card.classes_apart)
    found = origin(model.backbone, sources, card.preprocessing)["domains"]
    if found != learned["domains"]:
        raise DataError(
            f"source images: {run} has learned from {', '.join(learned['domains'])}, but {card.dataset} has "
            f"{', '.join(found)}; give the same images (--root), or leave out --sources and --choose"
        )
    division = {name: learned[name] for name in ("validation", "seed", "division")}
    _, held = split_all(sources, **division)
    return near(held, next(model.parameters()).device)


def _settings(run: Path) -> dict[str, Any]:
    """What the run was trained with, as its last stage has it."""
    import torch

    for path in (run / "training" / f"{stage}.state" for stage in STAGES):
        if path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            settings: dict[str, Any] = state["settings"]
            return settings
    raise DataError(
        f"source images: {run} has no training folder, so nobody knows which it was only validated on; evaluate "
        "where it was trained, or leave out --sources and --choose"
    )
