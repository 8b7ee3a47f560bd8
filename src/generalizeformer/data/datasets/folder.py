"""Your own images: a folder, or zips, laid out as domain/class/image."""

from dataclasses import dataclass

from generalizeformer.data.datasets import _files
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.cache import Report
from generalizeformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Config(_files.Config):
    """Where the files are: here the root must be given."""


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """One domain for every folder, in the order of their names; all need the same class folders."""
    if config.root is None:
        raise DataError(
            "folder: no root was given; give --root, the folder or zip that holds domain/class/image"
        )
    return _files.load("folder", None, config, report=report)
