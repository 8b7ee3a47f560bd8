"""`train`: a backbone and φ from source domains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from generalizeformer.cli._data import source_domains
from generalizeformer.cli._recipe import Episodes, Flags, Generator, Loss
from generalizeformer.cli._settings import overridden
from generalizeformer.cli._terminal import Device, check_folder, console, fabric, stage_progress
from generalizeformer.errors import DataError

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import nn

    from generalizeformer.core.card import Card
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.training._recipe import Recipe


def train(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    data: str = "digits",
    protocol: Literal["outer", "inner"] | None = None,
    sources: tuple[str, ...] = (),
    backbone: str = "digits-small",
    pretrained: bool = False,
    image_size: int | None = None,
    paper: bool = False,
    episodes: Episodes | None = None,
    looks: bool = False,
    held_out: tuple[str, ...] = (),
    generator: Generator | None = None,
    loss: Loss | None = None,
    source_steps: int | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    settings: Path | None = None,
    device: Device = "auto",
    devices: int = 1,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
) -> None:
    """Train a backbone and φ on source domains. Run again after an interruption, it goes on.

    Args:
        out: Folder of the trained model, with checkpoints and logs below it.
        data: Dataset whose source domains are learned from: digits, synthetic.
        protocol: Of the digits. outer: sources from 15 to 75 degrees, targets beyond; inner: targets between
            the sources. If not given, outer.
        sources: Domains to learn from; all of the dataset's sources if none is named.
        backbone: digits, digits-small, or a name of torchvision or timm (timm:NAME chooses timm).
        pretrained: Start from published ImageNet weights (needs a network or a filled cache).
        image_size: Pixels per side; the dataset's own if not given.
        paper: Start from the paper's recipe, whose numbers hold where a flag is not given: joint episodes, rows,
            10,000 steps, learning rate 1e-4.
        episodes: held-out (if not given): extra backbones, each without one domain; joint: the paper's, one
            backbone; looks: one backbone and random looks of its domains, which works from a single domain.
        looks: Use random looks (colour, contrast, blur, …) of the domains as pseudo-domains in other episodes too.
        held_out: Domains to leave out in turn (held-out episodes); all if none is named.
        generator: channels (if not given): ours, small, for any architecture; rows: the paper's 8-layer
            transformer.
        loss: Unsupervised loss whose gradients φ sees; entropy if not given.
        source_steps: Steps of each backbone's training (joint episodes have `steps` for both); 300 if not given.
        steps: Steps of φ's training; 400 if not given.
        learning_rate: Peak learning rate of φ; 3e-3 if not given; use 1e-4 with rows.
        seed: Of everything random.
        settings: JSON file with any settings of the recipe; it overrides the flags.
        device: Where to compute; auto takes a GPU if there is one.
        devices: How many of them.
        precision: bf16-mixed is faster on recent GPUs.
    """
    check_out(out)
    domains, divided = source_domains(data, sources, protocol)
    recipe = Flags(
        paper=paper,
        looks=looks,
        episodes=episodes,
        held_out=held_out,
        generator=generator,
        loss=loss,
        source_steps=source_steps,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    ).recipe()
    recipe = recipe if settings is None else overridden(recipe, settings)
    recipe.check(domains)
    card = card_for(domains, backbone, image_size, divided)
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
    from generalizeformer.training._recipe import train_recipe

    def build() -> "nn.Module":
        assert card.architecture is not None
        return build_backbone(
            card.architecture,
            len(card.classes),
            channels=card.preprocessing.channels,
            pretrained=pretrained,
        )

    with stage_progress() as report:
        model = train_recipe(build, domains, recipe, card, out, where, report)
    if where.global_rank == 0:
        console.print(
            f"source validation: {model.card.source_accuracy:.1f} % plain, "
            f"{model.card.adapted_accuracy:.1f} % generated; saved in {out}",
            soft_wrap=True,
        )
    return model


def check_out(folder: Path) -> None:
    """Raises where a model cannot be written, or would replace files that are not a training's."""
    check_folder(folder)
    theirs = [name for name in ("README.md", "config.json") if (folder / name).exists()]
    if theirs and not (folder / "training").is_dir():
        raise DataError(
            f"{folder}: holds a {theirs[0]} that no training wrote and that this one would replace; "
            "name a new folder"
        )


def card_for(
    domains: "DomainDataset", architecture: str, size: int | None, protocol: str | None
) -> "Card":
    """The card of a model for these domains; mean and spread are ImageNet's for colour, the digits' for grey."""
    from generalizeformer.core.card import Card
    from generalizeformer.core.preprocessing import Preprocessing

    channels, height, _ = domains.domains[0].shape
    size = height if size is None else size
    if size < 1:
        raise DataError(f"image size: got {size}; it must be at least 1")
    if channels not in (1, 3):
        raise DataError(f"{domains.name}: images have {channels} channels; 1 or 3 are supported")
    grey = Preprocessing(size=size, mean=(0.1307,), std=(0.3081,))
    return Card(
        classes=domains.classes,
        architecture=architecture,
        preprocessing=grey if channels == 1 else Preprocessing(size=size),
        dataset=domains.name,
        protocol=protocol,
    )
