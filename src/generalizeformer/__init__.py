"""Keeps an image classifier accurate when the data shifts, by generating parameters for every batch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "PAPER_RECIPE",
    "Config",
    "ErmConfig",
    "GeneralizeFormer",
    "Guard",
    "MetaConfig",
    "Preprocessing",
    "Recipe",
    "Selection",
    "__version__",
    "train",
]

if TYPE_CHECKING:
    from generalizeformer.core.card import Card as Card
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.core.guard import Guard
    from generalizeformer.core.preprocessing import Preprocessing
    from generalizeformer.core.settings import PAPER as PAPER
    from generalizeformer.core.settings import Config
    from generalizeformer.core.slots import Selection
    from generalizeformer.training._own import train
    from generalizeformer.training._paper import PAPER_RECIPE
    from generalizeformer.training._recipe import Recipe
    from generalizeformer.training.erm import Config as ErmConfig
    from generalizeformer.training.meta import Config as MetaConfig

_HOMES = {
    "Card": "core.card",
    "Config": "core.settings",
    "ErmConfig": "training.erm:Config",
    "GeneralizeFormer": "core.generalizeformer",
    "Guard": "core.guard",
    "MetaConfig": "training.meta:Config",
    "PAPER": "core.settings",
    "PAPER_RECIPE": "training._paper",
    "Preprocessing": "core.preprocessing",
    "Recipe": "training._recipe",
    "Selection": "core.slots",
    "train": "training._own",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when first used: `--help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, called = _HOMES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), called or name)


def __dir__() -> list[str]:
    """For completion."""
    return list(__all__)
