"""Training from Python, on the reader's own model and images."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int, UInt8
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.card import Card
from generalizeformer.core.classifiers import class_count, find_classifier
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.inputs import check_module, uncompiled
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError, UserError
from generalizeformer.training._given import as_domains
from generalizeformer.training._loop import Report
from generalizeformer.training._places import Device, check_out
from generalizeformer.training._places import fabric as on
from generalizeformer.training._progress import shown
from generalizeformer.training._recipe import Recipe
from generalizeformer.training._run import train_recipe
from generalizeformer.training._scoring import doubt

Array = NDArray[np.integer[Any]]
Labelled = tuple[UInt8[Tensor, "n c h w"] | Array, Int[Tensor, " n"] | Array]


def train(
    backbone: nn.Module,
    domains: Mapping[str, Labelled],
    folder: str | Path,
    *,
    classes: tuple[str, ...] = (),
    preprocessing: Preprocessing | None = None,
    recipe: Recipe | None = None,
    architecture: str | None = None,
    device: Device = "auto",
    fabric: Fabric | None = None,
    report: Report | Literal["auto"] | None = "auto",
) -> GeneralizeFormer:
    """A trained model, also saved in `folder`; your backbone is copied, never written to.

    `domains`: name → (pixels as uint8 (n, c, h, w), labels), tensors or numpy's arrays. `preprocessing` says how
    pixels become what the backbone takes (ImageNet's mean and spread if not given). With several domains the backbones
    are trained too, each once more without one domain. Start from weights that have not seen these domains: otherwise
    the models without a domain have seen it all the same. For a backbone that is trained on them already,
    `Recipe(episodes="looks", erm=None)` keeps it as it is and trains φ alone, on random looks of the images.

    `architecture`: the backbone's name (digits, resnet18, timm:NAME, …), with which the folder loads by itself and
    works on the command line. `device`: auto (a GPU if there is one), cpu, cuda or mps. `fabric`: where and how to
    compute, instead of `device`. `report`: is called after every step as report(stage, steps done, steps in all,
    metrics); "auto" shows a line of progress in a terminal, None nothing. Run again after an interruption, it goes on.
    """
    check_module(backbone)
    _check_recipe(recipe)
    check_out(Path(folder))
    backbone, parts = uncompiled(backbone), as_domains(domains)
    chosen = recipe or _usual(len(parts))
    count = class_count(backbone, find_classifier(backbone, chosen.model.selection.classifier))
    data = _dataset(parts, tuple(classes), count)
    card = Card(
        classes=data.classes,
        architecture=architecture,
        backbone=type(backbone).__name__,
        preprocessing=preprocessing or _imagenet(data),
        dataset=None,
    )
    _check_architecture(backbone, card)
    where = fabric or on(device)
    with shown() if report == "auto" else nullcontext(report) as told:
        model = train_recipe(lambda: backbone, data, chosen, card, Path(folder), where, told)
    if where.global_rank == 0 and (words := doubt(model.card)):
        warnings.warn(words, stacklevel=2)
    return model


def _check_recipe(recipe: object) -> None:
    """Raises where it says in another way how to train."""
    if not isinstance(recipe, Recipe | None):
        raise UserError(
            f"recipe: got {type(recipe).__name__}; give a Recipe, such as Recipe(meta=MetaConfig(steps=300))"
        )


def _usual(domains: int) -> Recipe:
    """Held-out episodes where they are possible; random looks of a single domain where not."""
    return Recipe() if domains > 1 else Recipe(episodes="looks")


def _dataset(parts: tuple[Domain, ...], classes: tuple[str, ...], count: int) -> DomainDataset:
    """The domains, checked; without names, classes are numbered as the classifier has them."""
    for domain in parts:
        if len(domain) and int(domain.labels.max()) >= count:
            raise DataError(
                f"domain {domain.name!r}: labels go up to {int(domain.labels.max())}, but the backbone's classifier "
                f"tells {count} classes apart (0 to {count - 1}); renumber the labels or give it a larger classifier"
            )
    if classes and len(classes) != count:
        raise DataError(
            f"classes: got {len(classes)} names, but the backbone's classifier tells {count} classes apart; "
            "give one name per class"
        )
    return DomainDataset("own", classes or tuple(str(number) for number in range(count)), parts)


def _check_architecture(backbone: nn.Module, card: Card) -> None:
    """Raises where the name does not build such a backbone: the folder could not be loaded after the training."""
    if card.architecture is None:
        return
    with torch.random.fork_rng([]):  # fresh weights draw random numbers, which are the caller's
        named = build_backbone(
            card.architecture, len(card.classes), channels=card.preprocessing.channels
        )
    if _shapes(named) != _shapes(backbone):
        raise DataError(
            f"architecture: {card.architecture!r} has other weights than the {card.backbone} given; name the one "
            "that it is, or none"
        )


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def _imagenet(data: DomainDataset) -> Preprocessing:
    channels, height, _ = data.domains[0].shape
    if channels == 3:
        return Preprocessing(size=height)
    return Preprocessing(size=height, mean=(0.5,) * channels, std=(0.5,) * channels)
