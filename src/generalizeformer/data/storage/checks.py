"""Checks of a tree of images: against what is published about it, and every file by itself."""

import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

from generalizeformer.data.storage import comparison
from generalizeformer.data.storage.findings import Finding, Findings, Kind
from generalizeformer.data.storage.published import Defect, Published
from generalizeformer.data.storage.trees import DEPTH, Entry, Tree
from generalizeformer.errors import UserError
from generalizeformer.imaging.files import ENDINGS, OTHER_ENDINGS, complete, decode

Report = Callable[[int, int], None]  # images done, images in all

# How images start. What starts otherwise is no image, rather than one that was cut short.
STARTS = (b"\xff\xd8", b"\x89PNG", b"RIFF", b"GIF8")
FEW = 0.1  # of a class: where more of its names are also in another class, names are mere numbers


def check(tree: Tree, published: Published | None, report: Report) -> Findings:
    """What is wrong with a tree; where nothing is published, its domains are compared with each other."""
    counts = image_counts(tree)
    unread, digests = _looked_at(tree, report)
    alike, named = list(_identical(tree.entries, digests)), list(_namesakes(tree.entries, digests))
    inside, outside = _strays(tree, published)
    empty = {finding.where for finding in inside if finding.kind == "empty"}
    if published is None:  # names of one's own files may well be the numbers of a camera
        missing = [fault for fault in comparison.unequal(counts) if fault.where not in empty]
        faults = [*missing, *inside, *unread, *alike]
        return Findings(counts=counts, faults=tuple(faults), notes=(*outside, *named))
    version = comparison.nearest(counts, published)
    missing = [f for f in comparison.structure(counts, published) if f.where not in empty]
    faults = [*missing, *inside]
    faults += comparison.wrong_counts(counts, published, version)
    return Findings(
        counts=counts,
        faults=(*faults, *_not_known([*unread, *alike, *named], published.defects)),
        known=tuple(_known(tree, published)),
        notes=tuple(outside),
        version=comparison.version_sentence(counts, published),
    )


def image_counts(tree: Tree) -> dict[str, dict[str, int]]:
    """How many images every class of every domain has, in the order of the tree."""
    counts: dict[str, dict[str, int]] = {}
    for (domain, label), count in tree.counts().items():
        counts.setdefault(domain, {})[label] = count
    return counts


def _looked_at(tree: Tree, report: Report) -> tuple[list[Finding], list[bytes]]:
    """What is wrong with single images, and the digest of every one; empty for those without bytes."""
    faults, digests = [], []
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        looks = pool.map(lambda entry: _look(tree, entry), tree.entries)
        for done, (fault, digest) in enumerate(looks, 1):
            faults += [] if fault is None else [fault]
            digests.append(digest)
            report(done, len(tree.entries))
    finally:  # who stops a check does not wait for the images that are left
        pool.shutdown(cancel_futures=True)
    return faults, digests


def _look(tree: Tree, entry: Entry) -> tuple[Finding | None, bytes]:
    try:
        content = tree.read(entry)
    except UserError as error:
        return _about(entry, "unreadable", f"its bytes cannot be read ({error})"), b""
    digest = hashlib.sha256(content).digest() if content else b""
    if content.startswith(STARTS) and not complete(content):
        what = f"only a part of the file is there ({len(content):,} bytes); get it again"
        return _about(entry, "truncated", what), digest
    try:
        decode(content, entry.path, 3)
    except UserError as error:
        what = str(error).removeprefix(f"{entry.path}: ")
        return _about(entry, "unreadable", what), digest
    return None, digest


def _about(entry: Entry, kind: Kind, what: str) -> Finding:
    return Finding(kind=kind, where=entry.path, what=what, files=(entry.stem,))


def _identical(entries: Sequence[Entry], digests: Sequence[bytes]) -> Iterator[Finding]:
    """Files that have the same bytes: copies in one class, or one image with two labels."""
    groups: dict[bytes, list[Entry]] = defaultdict(list)
    for entry, digest in zip(entries, digests, strict=True):
        if digest:
            groups[digest].append(entry)
    for first, *others in groups.values():
        for other in others:
            yield _same_bytes(first, other)


def _same_bytes(first: Entry, other: Entry) -> Finding:
    files = (first.stem, other.stem)
    if (first.domain, first.label) == (other.domain, other.label):
        what = f"the same bytes as {first.path}; keep one of the two"
        return Finding(kind="duplicate", where=other.path, what=what, files=files)
    differing = "classes" if first.label != other.label else "domains"
    what = f"the same bytes as {first.path}, so one image is in two {differing}; keep the right one"
    return Finding(kind="contradiction", where=other.path, what=what, files=files)


def _namesakes(entries: Sequence[Entry], digests: Sequence[bytes]) -> Iterator[Finding]:
    """Files of one name in two classes of a domain, unless names are numbers within a class."""
    named: dict[str, dict[str, dict[str, tuple[Entry, bytes]]]] = defaultdict(dict)
    for entry, digest in zip(entries, digests, strict=True):
        name = entry.stem.rpartition("/")[2]
        named[entry.domain].setdefault(entry.label, {})[name] = entry, digest
    for classes in named.values():
        for one, other in itertools.combinations(classes.values(), 2):
            shared = one.keys() & other.keys()
            if len(shared) <= max(1, FEW * min(len(one), len(other))) < min(len(one), len(other)):
                pairs = ((one[name], other[name]) for name in sorted(shared))
                # Those of the same bytes are told already.
                yield from (_same_name(a[0], b[0]) for a, b in pairs if a[1] != b[1])


def _same_name(first: Entry, other: Entry) -> Finding:
    what = f"the same name as {first.path}, so one image may be in two classes; keep the right one"
    files = (first.stem, other.stem)
    return Finding(kind="contradiction", where=other.path, what=what, files=files)


def _strays(tree: Tree, published: Published | None) -> tuple[list[Finding], list[Finding]]:
    """Files that are no images in their places: those among the images, and harmless ones elsewhere."""
    domains = {entry.domain for entry in tree.entries}
    domains |= set() if published is None else {*published.domains, *published.folders}
    inside: list[Finding] = []
    outside: list[Finding] = []
    for path in tree.others:
        if path.endswith("/"):
            what = "a folder without images; fill it or take it away"
            finding = Finding(kind="empty", where=path[:-1], what=what)
            (inside if path.count("/") < DEPTH else outside).append(finding)
            continue
        image = path.lower().endswith(ENDINGS)
        other = path.lower().endswith(OTHER_ENDINGS)
        kind = "an image of a kind that is not read here" if other else "not an image"
        what = "an image that is not at domain/class/name" if image else kind
        finding = Finding(kind="misplaced", where=path, what=f"{what}; move it or take it away")
        among = image or domains.intersection(path.split("/")[:-1])
        (inside if among else outside).append(finding)
    return inside, outside


def _known(tree: Tree, published: Published) -> Iterator[Finding]:
    """The published defects that this tree has."""
    for defect in published.defects:
        stems = (entry.stem for entry in tree.entries)
        there = tuple(stem for stem in stems if _names(defect.files, stem))
        if there or not defect.files:
            # A pattern stands for itself: it may fit thousands of files.
            named = there if defect.files == defect.exact else defect.files
            where = comparison.listed(named)
            yield Finding(kind="known defect", where=where, what=defect.what, files=there)


def _not_known(findings: Iterable[Finding], defects: Sequence[Defect]) -> list[Finding]:
    left = list(findings)
    for defect in defects:
        left = list(_beyond(defect, left))
    return left


def _beyond(defect: Defect, findings: Iterable[Finding]) -> Iterator[Finding]:
    """What a defect does not excuse: other findings, and more of its own than are published."""
    excused = 0
    for finding in findings:
        if _explains(defect, finding) and (defect.count is None or excused < defect.count):
            excused += 1
        else:
            yield finding


def _explains(defect: Defect, finding: Finding) -> bool:
    """Whether a finding may be that defect. Without kinds only images that are named in full are excused."""
    if defect.kinds is not None and finding.kind not in defect.kinds:
        return False
    files = defect.exact if defect.kinds is None else defect.files
    return all(_names(files, stem) for stem in finding.files)


def _names(patterns: Iterable[str], stem: str) -> bool:
    return any(fnmatchcase(stem, pattern) for pattern in patterns)
