"""What is published about a dataset: its domains, classes, counts and known defects. Data, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from generalizeformer.data.storage.findings import Kind


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A fault of the published files that everybody has, so it is told and not counted as an error."""

    files: tuple[
        str, ...
    ]  # domain/class/name without ending; fnmatch patterns, where only a part is known
    what: str
    kinds: tuple[Kind, ...] | None = None  # what it excuses; None: all, for exact names
    count: int | None = None  # how many of them at most, where names are patterns

    @property
    def exact(self) -> tuple[str, ...]:
        """The files that are named in full."""
        return tuple(file for file in self.files if "*" not in file)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A dataset as its authors gave it out. A file that is not there yet can be compared with this."""

    title: str
    citation: str
    licence: str
    domains: tuple[str, ...]  # in the order of their numbers
    classes: tuple[str, ...]  # in the order of their labels
    counts: Mapping[str, tuple[int, ...]] | None = None  # by domain, one for every class
    totals: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # by domain, one for every version
    defects: tuple[Defect, ...] = ()
    notes: tuple[str, ...] = ()  # what a user has to know, a sentence each
    layout: str = ""  # the folders below the root
    obtain: str = ""  # how to get the files, in words
    hub: str | None = None  # a dataset of the Hugging Face hub
    drive: str | None = None  # the id of a Google Drive file
    addresses: tuple[str, ...] = ()  # of archives that anybody can fetch
    folders: Mapping[str, str] = field(default_factory=dict)  # other names of the domains' folders
