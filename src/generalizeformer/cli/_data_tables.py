"""How datasets look in a terminal: what is published, what was counted, what was found."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from generalizeformer.cli._terminal import console, print_whole, printable
from generalizeformer.data.storage.comparison import versions

if TYPE_CHECKING:
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.data.storage.findings import Counts, Finding, Findings
    from generalizeformer.data.storage.published import Published

HEADS = ("name", "what it is", "domains", "classes", "images", "files")
GAP = 2  # between columns
MOST = 20  # findings of one kind that are shown; the rest are counted

Row = tuple[str, str, str, str, str, str]


def say(line: str) -> None:
    """Prints a line as it is, however long."""
    console.print(printable(line), soft_wrap=True)


def show_list(rows: Sequence[Row]) -> None:
    """Prints a row for every dataset; what it is may take several lines."""
    columns = list(zip(HEADS, *rows, strict=True))
    widths = [max(map(len, texts)) for texts in columns]
    if sum(widths) + GAP * len(HEADS) > console.width:  # cells may break at spaces, never in a word
        widths[:-1] = [max(map(len, " ".join(texts).split())) for texts in columns[:-1]]
    table = Table(box=None, padding=(0, GAP, 0, 0), width=sum(widths) + GAP * len(HEADS))
    for head, width in zip(HEADS, widths, strict=True):
        number = head in ("domains", "classes", "images")
        table.add_column(head, justify="right" if number else "left", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table, crop=False)


def sizes(
    published: "Published | None", built: "DomainDataset | None", upright: int | None
) -> tuple[str, str, str]:
    """How many domains, classes and images a dataset has; of images that are turned, how many are."""
    if published is not None:
        domains, classes, totals = published.domains, published.classes, _totals(published)
    elif built is not None:
        domains, classes, totals = built.names, built.classes, [sum(map(len, built.domains))]
    else:
        return "", "", ""
    images = ", ".join(f"{total:,}" for total in totals)
    images = images if upright is None else f"{upright:,} turned"
    return str(len(domains)), str(len(classes)), images


def _totals(published: "Published") -> list[int]:
    """The images of every version that was given out."""
    return [sum(version.values()) for version in versions(published)]


def show_published(published: "Published") -> None:
    """Prints what is published about a dataset."""
    images = " or ".join(f"{total:,}" for total in _totals(published))
    say(published.title)
    say(f"citation: {published.citation}")
    say(f"licence: {published.licence}")
    say(f"{len(published.domains)} domains: {', '.join(published.domains)}")
    say(f"{len(published.classes)} classes: {', '.join(published.classes)}")
    if images:
        say(f"images: {images}")
    if published.counts is not None:
        by_class = {
            domain: dict(zip(published.classes, counts, strict=True))
            for domain, counts in published.counts.items()
        }
        show_counts(by_class, published)
    for defect in published.defects:
        say(f"known defect: {_located(', '.join(defect.files), defect.what)}")
    for note in published.notes:
        say(f"note: {note}")
    if published.layout:
        say(f"layout: {published.layout}")
    if published.obtain:
        say(f"how to get it: {published.obtain}")


def show_module(module: ModuleType) -> None:
    """Prints what the file of a dataset says about itself, and its settings."""
    say((module.__doc__ or "").strip())
    for field in fields(module.Config):
        say(f"setting {field.name}: {_default(field)}")


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "has to be given"
    return "not set" if field.default is None else f"{field.default} if not given"


def show_counts(counts: "Counts", published: "Published | None") -> None:
    """Prints the images of every class and domain, with totals; published ones first, in their order."""
    domains = _ordered(counts, () if published is None else published.domains)
    labels = sorted({label for there in counts.values() for label in there})
    labels = _ordered(labels, () if published is None else published.classes)
    table = Table("class")
    for head in (*domains, "all"):
        table.add_column(Text(printable(head)), justify="right")
    for label in labels:
        _add(table, label, [counts[domain].get(label, 0) for domain in domains])
    table.add_section()
    _add(table, "all", [sum(counts[domain].values()) for domain in domains])
    print_whole(table)


def _ordered(names: Iterable[str], first: Sequence[str]) -> list[str]:
    there = list(names)
    return [name for name in first if name in there] + [name for name in there if name not in first]


def _add(table: Table, head: str, numbers: list[int]) -> None:
    table.add_row(Text(printable(head)), *(f"{number:,}" for number in [*numbers, sum(numbers)]))


def show_findings(findings: "Findings", published: "Published | None") -> None:
    """Prints what a check has counted and found, a line each; of many alike the first few."""
    show_counts(findings.counts, published)
    say(f"{sum(sum(there.values()) for there in findings.counts.values()):,} images")
    if findings.version:
        say(f"version: {findings.version}")
    for known in findings.known:
        say(_line(known))
    for before, found in (("note: ", findings.notes), ("", findings.faults)):
        for kind in dict.fromkeys(finding.kind for finding in found):
            alike = [before + _line(finding) for finding in found if finding.kind == kind]
            _show_some(alike, f"{before}{kind}: ")


def show_faults(faults: Sequence[str]) -> None:
    """Prints faults, a line each; of many the first few."""
    _show_some([" ".join(fault.split()) for fault in faults], "")


def _show_some(lines: Sequence[str], before: str) -> None:
    for line in lines[:MOST]:
        say(line)
    if len(lines) > MOST:
        say(f"{before}and {len(lines) - MOST:,} more")


def _line(finding: "Finding") -> str:
    return f"{finding.kind}: {_located(finding.where, finding.what)}"


def _located(where: str, what: str) -> str:
    return f"{where}: {what}" if where else what
