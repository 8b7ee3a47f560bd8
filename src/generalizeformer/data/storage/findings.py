"""What a check of a dataset's files can find. Data, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "missing domain",
    "unknown domain",
    "missing class",
    "unknown class",
    "wrong count",
    "misplaced",
    "empty",
    "unreadable",
    "truncated",
    "duplicate",
    "contradiction",
    "known defect",
]
Counts = Mapping[str, Mapping[str, int]]  # images by domain and class


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found, and where."""

    kind: Kind
    where: str  # domain, domain/class or domain/class/name
    what: str
    files: tuple[str, ...] = ()  # the images that it is about: domain/class/name without ending


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a check has found. A tree without faults can be used as it is."""

    counts: Counts
    faults: tuple[Finding, ...]
    known: tuple[Finding, ...] = ()  # faults of the published files, which everybody has
    notes: tuple[Finding, ...] = ()  # harmless, but perhaps not meant
    version: str = ""  # which of several published versions it is, as a sentence
