"""`train`: a backbone and φ from source domains."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from generalizeformer.cli._terminal import console, fabric, stage_progress
from generalizeformer.errors import DataError, UserError

if TYPE_CHECKING:
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.training._recipe import Recipe


def train(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    data: Literal["digits", "synthetic"] = "digits",
    sources: tuple[str, ...] = (),
    backbone: str = "digits-small",
    pretrained: bool = False,
    image_size: int | None = None,
    episodes: Literal["held-out", "joint", "looks"] = "held-out",
    looks: bool = False,
    held_out: tuple[str, ...] = (),
    generator: Literal["channels", "rows"] = "channels",
    loss: Literal["entropy", "pseudo-label", "memo"] = "entropy",
    source_steps: int = 300,
    steps: int = 400,
    learning_rate: float = 3e-3,
    seed: int = 0,
    settings: Path | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    devices: int = 1,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
) -> None:
    """Train a backbone and φ on source domains. Run again after an interruption, it goes on.

    Args:
        out: Folder of the trained model, with checkpoints and logs below it.
        data: Dataset whose source domains are learned from.
        sources: Domains to learn from; all of the dataset's sources if none is named.
        backbone: digits, digits-small, or a name of torchvision or timm (timm:NAME chooses timm).
        pretrained: Start from published ImageNet weights (needs a network or a filled cache).
        image_size: Pixels per side; the dataset's own if not given.
        episodes: held-out: extra backbones, each without one domain; joint: the paper's, one backbone;
            looks: one backbone and random looks of its domains, which works from a single domain.
        looks: Use random looks (colour, contrast, blur, …) of the domains as pseudo-domains.
        held_out: Domains to leave out in turn (held-out episodes); all if none is named.
        generator: channels: ours, small, for any architecture; rows: the paper's 8-layer transformer.
        loss: Unsupervised loss whose gradients φ sees.
        source_steps: Steps of each backbone's training.
        steps: Steps of φ's training.
        learning_rate: Peak learning rate of φ; use 1e-4 with rows.
        seed: Of everything random.
        settings: JSON file with any settings of the recipe; it overrides the flags.
        device: Where to compute; auto takes a GPU if there is one.
        devices: How many of them.
        precision: bf16-mixed is faster on recent GPUs.
    """
    from generalizeformer.core.card import Card
    from generalizeformer.core.generalizeformer import Config
    from generalizeformer.core.generators import channels, rows
    from generalizeformer.data.looks import Config as Looks
    from generalizeformer.training._recipe import Recipe
    from generalizeformer.training.erm import Config as ErmConfig
    from generalizeformer.training.meta import Config as MetaConfig

    domains = source_domains(data, sources)
    recipe = Recipe(
        episodes=episodes,
        model=Config(
            generator=channels.Config() if generator == "channels" else rows.Config(), loss=loss
        ),
        erm=ErmConfig(steps=source_steps, per_domain=16, learning_rate=3e-3),
        meta=MetaConfig(
            steps=steps, images=160, learning_rate=learning_rate, looks=Looks() if looks else None
        ),
        held_out=held_out or None,
        seed=seed,
    )
    recipe = recipe if settings is None else overridden(recipe, settings)
    card = Card(
        classes=domains.classes,
        architecture=backbone,
        preprocessing=preprocessing_for(domains, image_size),
        dataset=domains.name,
    )
    run_training(domains, recipe, card, out, pretrained, fabric(device, devices, precision))


def run_training(
    domains: "DomainDataset", recipe: "Recipe", card: Any, out: Path, pretrained: bool, where: Any
) -> Any:
    """Trains with bars and says where the model is. Gives the model."""
    from generalizeformer.core.backbones import build_backbone
    from generalizeformer.training._recipe import train as train_recipe

    prepared = card.preprocessing

    def build() -> Any:
        return build_backbone(
            card.architecture, len(card.classes), channels=prepared.channels, pretrained=pretrained
        )

    with stage_progress() as report:
        model = train_recipe(build, domains, recipe, card, out, where, report)
    if where.global_rank == 0:
        console.print(
            f"source validation: {model.card.source_accuracy:.1f} % plain, "
            f"{model.card.adapted_accuracy:.1f} % generated; saved in {out}"
        )
    return model


def source_domains(data: str, names: tuple[str, ...]) -> "DomainDataset":
    """The source domains of a dataset, or those named."""
    from generalizeformer import catalog

    module = catalog.load("generalizeformer.data.datasets", data)
    build = getattr(module, "sources", module.build)
    domains: DomainDataset = build(module.Config())
    return domains.only(names) if names else domains


def preprocessing_for(domains: "DomainDataset", size: int | None) -> Any:
    """Size of the dataset's images; mean and spread of ImageNet for colour, of the digits for grey."""
    from generalizeformer.core.preprocessing import Preprocessing

    _, channels, height, _ = domains.domains[0].images.shape
    if channels == 3:
        return Preprocessing(size=size or height)
    if channels == 1:
        return Preprocessing(size=size or height, mean=(0.1307,), std=(0.3081,))
    raise DataError(f"{domains.name}: images have {channels} channels; 1 or 3 are supported")


def overridden(recipe: "Recipe", path: Path) -> "Recipe":
    """The recipe with the settings of a JSON file laid over it."""
    from generalizeformer.config import from_dict, to_dict

    try:
        changes = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: no readable JSON settings ({error})") from None
    if not isinstance(changes, dict):
        raise UserError(f"{path}: got {type(changes).__name__}; settings are a JSON object")
    return replace(from_dict(type(recipe), _merged(to_dict(recipe), changes)))


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in changes.items()
    }
    return base | both
