"""Datasets by name: what a model learns from, and what it is evaluated on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from generalizeformer.cli._terminal import count_progress
from generalizeformer.data.datasets import DATASETS
from generalizeformer.errors import DataError, UserError

if TYPE_CHECKING:
    from generalizeformer.core.card import Card
    from generalizeformer.data.domains import Domain, DomainDataset


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A dataset as named on the command line; None where a flag was not given."""

    data: str
    protocol: str | None = None
    root: Path | None = None
    size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> tuple[ModuleType, Any]:
        """The dataset's module, and its config."""
        from generalizeformer import catalog
        from generalizeformer.config import from_dict

        module = catalog.load(DATASETS, self.data)
        known = {field.name for field in fields(module.Config)}
        given: dict[str, Any] = {
            "protocol": self.protocol,
            "root": None if self.root is None else str(self.root),
        }
        for name, value in given.items():
            if value is not None and name not in known:
                raise DataError(
                    f"{name}: got {value!r}, but {self.data} has no {name}; leave it out"
                )
        if "cache" in known:  # files are decoded to the size wanted; other images are resized later
            given["size"] = self.size
        given = {name: value for name, value in given.items() if value is not None}
        try:
            return module, from_dict(module.Config, {**self.settings, **given})
        except UserError as error:
            reason = str(error).removeprefix(f"{self.data}: ")
            raise DataError(f"{self.data}: {reason}") from None


def source_domains(
    choice: Choice, names: Sequence[str], left_out: Sequence[str] = ()
) -> "tuple[DomainDataset, str | None]":
    """The domains that a dataset has to learn from, or those named of them; and the protocol that they are of."""
    module, config = choice.load()
    domains = _built(module, "sources", config)
    if names and left_out:
        raise DataError("sources and leave out were both given; name the ones or the others")
    if left_out:
        if not set(domains.names) - set(left_out):
            raise DataError("leave out: no domain is left to learn from; leave out fewer")
        domains = domains.without(left_out)
    return domains.only(names) if names else domains, getattr(config, "protocol", None)


def all_domains(choice: Choice) -> "tuple[DomainDataset, str | None]":
    """Every domain, also those that the dataset keeps for targets; and the protocol that they are of."""
    module, config = choice.load()
    return _built(module, "build", config), getattr(config, "protocol", None)


def outlined(choice: Choice) -> "tuple[DomainDataset, str | None]":
    """The same as published and blank, an image for every class: plans need names, classes and shape, and no files.

    Datasets of which nothing is published are read: those that are made from nothing, and your own folders.
    """
    from generalizeformer.data.domains import DomainDataset

    module, config = choice.load()
    published = getattr(module, "PUBLISHED", None)
    if published is None:
        return all_domains(choice)
    kept = tuple(map(str, getattr(config, "unseen", ())))
    names = (*map(str, getattr(config, "seen", published.domains)), *kept)
    domains = tuple(_blank(name, len(published.classes), config.shape) for name in names)
    made = DomainDataset(choice.data, published.classes, domains, kept=kept)
    return made, getattr(config, "protocol", None)


def target_domains(
    card: "Card", words: Sequence[str], root: Path | None = None
) -> "tuple[DomainDataset, tuple[str, ...]]":
    """The domains that a model is evaluated on, and its targets: those named, or all it has not learned from."""
    from generalizeformer.data.targets import parse

    if card.dataset is None:
        raise DataError(
            "this model does not say which dataset it was trained on; use `predict` instead"
        )
    domains, strange = _known_domains(card, root)
    words = tuple(words) or strange
    if not words:
        raise DataError(
            f"{card.dataset}: the model has learned from every domain, so none is a target; train on fewer "
            f"(--sources), or name known ones: --targets {' '.join(domains.names)}"
        )
    names = dict.fromkeys(parse(word, domains.names).domain for word in words)
    return domains.only(names).renumbered(card.classes), words


def learned_from(card: "Card", words: Sequence[str], names: Sequence[str]) -> str:
    """What to say of targets whose images the model has learned from; nothing where there are none."""
    from generalizeformer import catalog
    from generalizeformer.data.targets import parse

    assert card.dataset is not None
    if hasattr(catalog.load(DATASETS, card.dataset), "targets"):
        return ""  # images that are never learned from, whatever their domain
    domains = dict.fromkeys(parse(word, names).domain for word in words)
    known = [name for name in domains if name in card.sources]
    if not known:
        return ""
    there = f"the model has learned from images of {', '.join(known)}"
    return f"{there}: accuracies there say little of domains that it has not seen."


def _known_domains(card: "Card", root: Path | None) -> "tuple[DomainDataset, tuple[str, ...]]":
    """The domains that can be targets of a model, and the names of those that usually are."""
    assert card.dataset is not None
    choice = Choice(
        data=card.dataset,
        protocol=card.protocol,
        root=root,
        size=card.preprocessing.size,
        settings=dict(card.dataset_settings),
    )
    module, config = choice.load()
    if hasattr(module, "targets"):  # images that are never learned from, whatever their domain
        domains = _built(module, "targets", config)
        return domains, domains.names
    domains = _built(module, "build", config)
    return domains, tuple(name for name in domains.names if name not in card.sources)


def _blank(name: str, classes: int, shape: tuple[int, int, int]) -> "Domain":
    """A black image of every class, all of them the same byte."""
    import torch

    from generalizeformer.data.domains import Domain

    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(classes, *shape)
    return Domain(name, images, torch.arange(classes))


def _built(module: ModuleType, part: str, config: Any) -> "DomainDataset":
    """That part of the dataset, or all of it where it has no parts. Reading image files shows a bar."""
    build = getattr(module, part, module.build)
    if not hasattr(config, "root"):
        return build(config)  # type: ignore[no-any-return]
    with count_progress("reading images") as report:
        return build(config, report)  # type: ignore[no-any-return]
