"""Datasets by name: what a model learns from, and what it is evaluated on."""

from collections.abc import Sequence
from dataclasses import fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from generalizeformer.errors import DataError

if TYPE_CHECKING:
    from generalizeformer.core.card import Card
    from generalizeformer.data.domains import DomainDataset

DATASETS = "generalizeformer.data.datasets"


def source_domains(
    data: str, names: Sequence[str], protocol: str | None
) -> "tuple[DomainDataset, str | None]":
    """The source domains of a dataset, or those named; and the protocol that they are of."""
    module, config = _dataset(data, protocol)
    domains: DomainDataset = getattr(module, "sources", module.build)(config)
    return domains.only(names) if names else domains, getattr(config, "protocol", None)


def target_domains(card: "Card", names: Sequence[str]) -> "DomainDataset":
    """The targets of the dataset and protocol a model was trained on, or those named."""
    if card.dataset is None:
        raise DataError(
            "this model does not say which dataset it was trained on; use `predict` instead"
        )
    module, config = _dataset(card.dataset, card.protocol)
    if hasattr(module, "targets"):  # images that are never learned from, whatever their domain
        domains: DomainDataset = module.targets(config)
        return domains.only(names) if names else domains
    domains = module.build(config)
    names = names or [name for name in domains.names if name not in card.sources]
    if not names:
        raise DataError(
            f"{card.dataset}: the model has learned from every domain, so none is a target; train on fewer "
            f"(--sources), or name known ones: --targets {' '.join(domains.names)}"
        )
    return domains.only(names)


def _dataset(name: str, protocol: str | None) -> tuple[ModuleType, Any]:
    """A dataset's module, and its config for the protocol, or for its usual one."""
    from generalizeformer import catalog

    module = catalog.load(DATASETS, name)
    if protocol is None:
        return module, module.Config()
    if "protocol" not in {field.name for field in fields(module.Config)}:
        raise DataError(f"protocol: got {protocol!r}, but {name} has no protocols; leave it out")
    return module, module.Config(protocol=protocol)
