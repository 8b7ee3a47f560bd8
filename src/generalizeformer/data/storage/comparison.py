"""Domains, classes and counts of images, compared with those that are published or with each other."""

from collections.abc import Iterator, Mapping, Sequence

from generalizeformer.data.storage.findings import Counts, Finding
from generalizeformer.data.storage.published import Published


def structure(counts: Counts, published: Published) -> Iterator[Finding]:
    """Domains and classes that are missing, or that are there and are not published."""
    for domain in published.domains:
        if domain not in counts:
            what = f"this domain is missing; add its folder, with {len(published.classes)} classes"
            yield Finding(kind="missing domain", where=domain, what=what)
    for domain, there in counts.items():
        if domain not in published.domains:
            what = f"no such domain is published, only {listed(published.domains)}; rename or remove it"
            yield Finding(kind="unknown domain", where=domain, what=what)
            continue
        for label, images in _wanted(domain, published).items():
            if label not in there and images != 0:
                number = "" if images is None else f"{images:,} "
                what = f"this class is missing; add its folder, with its {number}images"
                yield Finding(kind="missing class", where=f"{domain}/{label}", what=what)
        for label in there:
            if label not in published.classes:
                what = f"no such class is published, only {listed(published.classes)}; rename or remove it"
                yield Finding(kind="unknown class", where=f"{domain}/{label}", what=what)


def _wanted(domain: str, published: Published) -> dict[str, int | None]:
    """How many images every class of a domain should have; None where that is not published."""
    counts = (published.counts or {}).get(domain, [None] * len(published.classes))
    return dict(zip(published.classes, counts, strict=True))


def unequal(counts: Counts) -> Iterator[Finding]:
    """Classes that some domains have and others have not."""
    every = sorted({label for there in counts.values() for label in there})
    for domain, there in counts.items():
        for label in every:
            if label not in there:
                having = [other for other in counts if label in counts[other]]
                what = f"this class is missing, but {listed(having)} has it; add or remove it everywhere"
                yield Finding(kind="missing class", where=f"{domain}/{label}", what=what)


def nearest(counts: Counts, published: Published) -> Mapping[str, int]:
    """The total of every domain, in the published version that comes nearest."""
    return min(versions(published), key=lambda totals: _distance(counts, totals), default={})


def version_sentence(counts: Counts, published: Published) -> str:
    """Which version it is, where several were given out."""
    every, near = versions(published), nearest(counts, published)
    if len(every) < 2:
        return ""
    sizes = listed([f"{sum(version.values()):,}" for version in every])
    this = "this is" if _distance(counts, near) == 0 else "this is nearest to"
    return f"versions of {sizes} images are published; {this} that of {sum(near.values()):,}"


def versions(published: Published) -> list[Mapping[str, int]]:
    """The total of every domain, for every version that was given out."""
    if published.totals:
        domains, totals = published.totals.keys(), published.totals.values()
        return [dict(zip(domains, each, strict=True)) for each in zip(*totals, strict=True)]
    if published.counts is not None:
        return [{domain: sum(each) for domain, each in published.counts.items()}]
    return []


def _distance(counts: Counts, totals: Mapping[str, int]) -> int:
    return sum(abs(sum(counts.get(name, {}).values()) - total) for name, total in totals.items())


def wrong_counts(
    counts: Counts, published: Published, totals: Mapping[str, int]
) -> Iterator[Finding]:
    """Numbers of images that differ from the published ones: by class where those are of this version."""
    for domain in (name for name in published.domains if name in counts):
        by_class = (published.counts or {}).get(domain)
        if by_class is not None and sum(by_class) == totals.get(domain, sum(by_class)):
            wanted = dict(zip(published.classes, by_class, strict=True))
            for label in (name for name in published.classes if name in counts[domain]):
                yield from _differing(f"{domain}/{label}", counts[domain][label], wanted[label])
        elif domain in totals:
            yield from _differing(domain, sum(counts[domain].values()), totals[domain])


def _differing(where: str, have: int, want: int) -> Iterator[Finding]:
    if have != want:
        words = f"{want - have:,} missing" if have < want else f"{have - want:,} too many"
        what = f"{have:,} images are there, but {want:,} are published: {words}"
        yield Finding(kind="wrong count", where=where, what=what)


def listed(names: Sequence[str], most: int = 8) -> str:
    """The names as words of a sentence; the first few of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
