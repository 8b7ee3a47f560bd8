"""`train`: a backbone and φ from source domains."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from generalizeformer.cli._checks import check_apart, check_size
from generalizeformer.cli._data import Choice, source_domains
from generalizeformer.cli._recipe import Flags
from generalizeformer.cli._settings import overridden, settings_of_data
from generalizeformer.cli._terminal import (
    Device,
    aside,
    console,
    fabric,
    introduced,
    pick_device,
    stage_progress,
)
from generalizeformer.errors import DataError
from generalizeformer.training._places import check_out

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import nn

    from generalizeformer.core.card import Card
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.training._recipe import Recipe

Apart = Literal["labels", "0", "1", "2", "3", "4"]

# Mean and spread of grey datasets, the digits' where nothing else is published.
DIGITS = ((0.1307,), (0.3081,))
GREY = {"rotated_fashion_mnist": ((0.2860,), (0.3530,))}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What is learned from.

    Args:
        data: Dataset whose source domains are learned from, one of `generalizeformer data list`; folder: your own
            images. If not given, folder where there is a root, else digits.
        root: Where the images are: a tree domain/class/image, or zips of one. If not given, the folder of that name
            in $GENERALIZEFORMER_DATA.
        protocol: Of rotated digits. outer: sources from 15 to 75 degrees, targets beyond; inner: targets between
            the sources. Of living17: good, rand or bad. The dataset's usual one if not given.
        sources: Domains to learn from; all of the dataset's sources if none is named.
        leave_out: Domains not to learn from, so that they are targets; instead of sources.
        data_settings: Other settings of the dataset, such as drop_error=true for pacs, rotation=clean for
            rotated_mnist or source_angles=[15,75] for rotated digits.
        classes_apart: Share the classes out over the sources, so that none knows all of them (output-level shift):
            labels: in the order of the labels; 0 to 4: in one of five seeded orders.
        image_size: Pixels per side; if not given, the dataset's own, or 224 for image files.
    """

    data: str | None = None
    root: Path | None = None
    protocol: str | None = None
    sources: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    data_settings: tuple[str, ...] = ()
    classes_apart: Apart | None = None
    image_size: int | None = None

    def choice(self) -> Choice:
        """The dataset."""
        return Choice(
            data=self.data or ("digits" if self.root is None else "folder"),
            protocol=self.protocol,
            root=self.root,
            size=self.image_size,
            settings=settings_of_data(self.data_settings),
        )

    def load(self) -> "tuple[DomainDataset, str | None]":
        """The domains, and the protocol that they are of."""
        from generalizeformer.data.splits import share_classes

        domains, divided = source_domains(self.choice(), self.sources, self.leave_out)
        return share_classes(domains, self.classes_apart), divided


def train(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    source: Annotated[Sources, tyro.conf.OmitArgPrefixes] = Sources(),
    backbone: str | None = None,
    pretrained: bool = False,
    training: Annotated[Flags, tyro.conf.OmitArgPrefixes] = Flags(),  # noqa: B008
    settings: Path | None = None,
    device: Device = "auto",
    devices: int = 1,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
) -> None:
    """Train a backbone and φ on source domains. Run again after an interruption, it goes on.

    Args:
        out: Folder of the trained model, with checkpoints and logs below it.
        source: What is learned from.
        backbone: digits, digits-small, or a name of torchvision or timm (timm:NAME chooses timm). If not given,
            resnet18, or digits-small for images up to 64 pixels without pretrained.
        pretrained: Start from published ImageNet weights (needs a network or a filled cache).
        training: How it is learned.
        settings: JSON file with any settings of the recipe; it overrides the flags.
        device: Where to compute; auto takes a GPU if there is one.
        devices: How many of them.
        precision: bf16-mixed is faster on recent GPUs.
    """
    from generalizeformer.core.backbones import library_of

    check_out(out)
    check_apart(out, source.root)
    recipe = training.suited(source.choice()).recipe()
    recipe = recipe if settings is None else overridden(recipe, settings)
    if backbone is not None:
        library_of(backbone)  # a name that nobody knows is told before images are read
    check_size(source.image_size)
    pick_device(device)
    domains, divided = source.load()
    recipe.check(domains)
    card = card_for(domains, backbone, source.image_size, divided, pretrained)
    card = replace(
        card,
        dataset_settings=settings_of_data(source.data_settings),
        classes_apart=source.classes_apart,
    )
    run_training(domains, recipe, card, out, pretrained, fabric(device, devices, precision))


def run_training(
    domains: "DomainDataset",
    recipe: "Recipe",
    card: "Card",
    out: Path,
    pretrained: bool,
    where: "Fabric",
) -> "GeneralizeFormer":
    """Trains with bars and says where the model is. Gives the model."""
    from generalizeformer.core.backbones import build_backbone
    from generalizeformer.training._run import train_recipe
    from generalizeformer.training._scoring import doubt, told

    def build() -> "nn.Module":
        assert card.architecture is not None
        return build_backbone(
            card.architecture,
            len(card.classes),
            channels=card.preprocessing.channels,
            pretrained=pretrained,
        )

    start = "ImageNet weights" if pretrained else "random weights"
    words = f"training {card.architecture} from {start} on {', '.join(domains.names)}"
    with stage_progress() as bars:
        report = introduced(bars, f"{words} ({where.device.type})")
        model = train_recipe(build, domains, recipe, card, out, where, report)
    if where.global_rank == 0:
        console.print(f"{told(model.card)}; saved in {out}", soft_wrap=True)
        if doubtful := doubt(model.card):
            aside.print(f"warning: {doubtful}", soft_wrap=True)
    return model


def card_for(
    domains: "DomainDataset",
    architecture: str | None,
    size: int | None,
    protocol: str | None,
    pretrained: bool = False,
) -> "Card":
    """The card of a model for these domains; mean and spread are the backbone's for colour, the digits' for grey."""
    from generalizeformer.core.backbones import pixel_range
    from generalizeformer.core.card import Card
    from generalizeformer.core.preprocessing import Preprocessing

    channels, height, _ = domains.domains[0].shape
    check_size(size)
    size = height if size is None else size
    if len(domains.classes) < 2:
        raise DataError(
            f"{domains.name}: one class only ({domains.classes[0]}); a classifier needs two or more, so put the images "
            "of another class beside it"
        )
    if channels not in (1, 3):
        raise DataError(f"{domains.name}: images have {channels} channels; 1 or 3 are supported")
    small = size <= 64 and not pretrained
    architecture = architecture or ("digits-small" if small else "resnet18")
    mean, std = GREY.get(domains.name, DIGITS) if channels == 1 else pixel_range(architecture)
    return Card(
        classes=domains.classes,
        architecture=architecture,
        preprocessing=Preprocessing(size=size, mean=mean, std=std),
        dataset=domains.name,
        protocol=protocol,
    )
