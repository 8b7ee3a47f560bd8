"""Training from Python, on the reader's own model and images."""

from collections.abc import Mapping
from pathlib import Path

from jaxtyping import Int64, UInt8
from lightning_fabric import Fabric
from torch import Tensor, nn

from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.looks import Config as Looks
from generalizeformer.training._loop import Report
from generalizeformer.training._recipe import Recipe, train_recipe
from generalizeformer.training.meta import Config as MetaConfig

Labelled = tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]


def train(
    backbone: nn.Module,
    domains: Mapping[str, Labelled],
    folder: str | Path,
    *,
    classes: tuple[str, ...] = (),
    preprocessing: Preprocessing | None = None,
    recipe: Recipe | None = None,
    device: str = "auto",
    report: Report | None = None,
) -> GeneralizeFormer:
    """A trained model, also saved in `folder`; your backbone is copied, never written to.

    `domains`: name → (pixels as uint8, labels). `preprocessing` says how pixels become what the backbone takes
    (ImageNet's mean and spread if not given). With several domains the backbones are trained too, each once more
    without one domain; `Recipe(episodes="looks", erm=None)` keeps the backbone as it is and trains φ alone, on
    random looks of the images. Run again after an interruption, it goes on.
    """
    count = 1 + max(int(labels.max()) for _, labels in domains.values())
    names = classes or tuple(str(number) for number in range(count))
    parts = tuple(Domain(name, images, labels) for name, (images, labels) in domains.items())
    data = DomainDataset("own", names, parts)
    card = Card(
        classes=names,
        backbone=type(backbone).__name__,
        preprocessing=preprocessing or _imagenet(data),
        dataset=None,
    )
    chosen = recipe or _usual(len(parts))
    fabric = Fabric(accelerator=device, devices=1)
    return train_recipe(lambda: backbone, data, chosen, card, Path(folder), fabric, report)


def _usual(domains: int) -> Recipe:
    """Held-out episodes where they are possible; random looks of a single domain where not."""
    if domains > 1:
        return Recipe()
    return Recipe(episodes="looks", meta=MetaConfig(looks=Looks()))


def _imagenet(data: DomainDataset) -> Preprocessing:
    _, channels, height, _ = data.domains[0].images.shape
    if channels == 3:
        return Preprocessing(size=height)
    return Preprocessing(size=height, mean=(0.5,) * channels, std=(0.5,) * channels)
