"""What compared methods need of the sources, trained beside the finished backbone by their own training methods."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from lightning_fabric import Fabric
from torch import nn

from generalizeformer import catalog
from generalizeformer.config import from_dict
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import UserError
from generalizeformer.training._loop import Method

TRAINING, COMPANIONS = "generalizeformer.training", "generalizeformer.core.companions"


@runtime_checkable
class Pace(Protocol):
    """What the config of every companion's training says."""

    @property
    def steps(self) -> int: ...
    @property
    def every(self) -> int: ...


def trained_for() -> list[str]:
    """The methods that have something to be trained."""
    return catalog.names(COMPANIONS)


def config_of(name: str, settings: Mapping[str, Any]) -> Pace:
    """The training's config. A name that has no companion is refused with those that have one."""
    known = trained_for()
    if name not in known:
        raise UserError(f"also: there is no {name!r} to train; choose from: {', '.join(known)}")
    config: Pace = from_dict(catalog.load(TRAINING, name).Config, dict(settings))
    return config


def check_companion(name: str, backbone: nn.Module, sources: DomainDataset) -> None:
    """Raises where the method cannot be trained for: before anything else is trained, not after it."""
    catalog.load(COMPANIONS, name).build(backbone, len(sources.classes))
    if check := getattr(catalog.load(TRAINING, name), "check", None):
        check(sources)


def training_of(
    name: str,
    model: GeneralizeFormer,
    train: DomainDataset,
    validation: DomainDataset,
    preprocessing: Preprocessing,
    config: Pace,
    fabric: Fabric,
) -> Method:
    """The training method of that companion. The model is lent: its backbone is copied, never moved."""
    method: Method = catalog.load(TRAINING, name).build(
        model, train, validation, preprocessing, config, fabric
    )
    return method
