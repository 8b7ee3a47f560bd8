"""`evaluate`: methods compared on target streams."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from generalizeformer.cli._data import learned_from, target_domains
from generalizeformer.cli._settings import method_settings
from generalizeformer.cli._sources import held_sources
from generalizeformer.cli._streams import Arrivals, store
from generalizeformer.cli._terminal import (
    Device,
    aside,
    check_folder,
    check_model,
    console,
    pick_device,
    show,
    show_words,
)
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from generalizeformer.benchmark.records import Record, Refusal
    from generalizeformer.core.card import Card
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.data.streams import Stream

METHODS = ("source", "alpha_bn", "tent", "t3a", "generalizeformer")


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    methods: tuple[str, ...] = METHODS,
    arriving: Annotated[Arrivals, tyro.conf.OmitArgPrefixes] = Arrivals(),  # noqa: B008, it is frozen
    settings: Path | None = None,
    choose: int | None = None,
    sources: bool = False,
    root: Path | None = None,
    out: Path | None = None,
    device: Device = "auto",
) -> None:
    """Compare methods on the target streams of a trained model's dataset.

    Args:
        run: Folder of a trained model.
        methods: Methods to compare; `all` for every one there is (`generalizeformer methods` lists them). One that
            cannot serve the model or a batch size is left out there, and told with its reason.
        arriving: What arrives, and in which order.
        settings: JSON file with settings of methods, such as {"tent": {"steps": 2}}; defaults if not given.
        choose: Choose the settings of methods that publish a search grid by their accuracy on so many source validation
            images of each domain, once for every batch size. What `settings` says of a method stays.
        sources: Also measure the accuracy on the run's source validation images, before and after each stream.
        root: Where the dataset's images are, as for `train`.
        out: Folder for records.json, refused.json, page.html and the streams; the run's own `evaluation` if not given.
            What an earlier evaluation has left there is replaced.
        device: Where to compute; auto takes a GPU if there is one.
    """
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.training._start import placed

    check_model(run)
    folder = out or run / "evaluation"
    check_folder(folder)
    arriving.check()
    if choose is not None and choose < 1:
        raise UserError(f"choose: got {choose}; give the number of images, 1 or more")
    chosen, own = known_methods(methods), method_settings(settings)
    model = placed(GeneralizeFormer.from_pretrained(run), pick_device(device))
    domains, words, arrivals = _arriving(arriving, model.card, root)
    held = held_sources(run, model, root) if sources or choose else None
    refused: list[Refusal] = []
    records: list[Record] = []
    for size in dict.fromkeys(stream.batch_size for stream in arrivals):
        mine = [stream for stream in arrivals if stream.batch_size == size]
        given = _chosen(model, held, chosen, size, choose, own) if held and choose else own
        trained, visited = model.card.seed or 0, held if sources else None
        records += compared(model, domains, chosen, mine, trained, given, visited, refused.append)
    if not records:  # nobody could take part, for reasons such as this one
        raise UserError(refused[0].why)
    again = _keep(folder, records, refused)
    store(folder / "streams", arrivals, domains)
    if known := learned_from(model.card, words, domains.names):
        aside.print(f"note: {known}", soft_wrap=True)
    _tell(records, refused, ", ".join(dict.fromkeys(words)))
    console.print(f"records: {folder / 'records.json'}{again}", soft_wrap=True)
    title = f"Evaluation of {run.resolve().name}"
    _page(folder / "page.html", title, records, refused, model.card, known)


def _arriving(
    arriving: Arrivals, card: "Card", root: Path | None
) -> "tuple[DomainDataset, tuple[str, ...], list[Stream]]":
    """The domains, the targets in words, and what arrives of them. A stream that cannot flow is told now."""
    stored = arriving.stored()
    named = tuple(word for stream in stored for word in stream.targets) or arriving.targets
    domains, words = target_domains(card, named, root)
    arrivals = stored or arriving.streams(words)
    for stream in arrivals:
        stream.arrivals(domains)
    return domains, words, arrivals


def _keep(folder: Path, records: "Sequence[Record]", refused: "Sequence[Refusal]") -> str:
    """Writes both into the folder; says whether there were some before."""
    from generalizeformer.benchmark.records import write

    again = " (in the place of earlier ones)" if (folder / "records.json").exists() else ""
    write(folder / "records.json", records)
    write(folder / "refused.json", refused)
    return again


def _chosen(
    model: "GeneralizeFormer",
    held: "DomainDataset",
    methods: Sequence[str],
    size: int,
    limit: int,
    own: dict[str, dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """The settings given, and for other methods with a grid those that do best on the sources."""
    from generalizeformer.benchmark.selection import choose, grid

    searched = [name for name in methods if name not in own and len(grid(name)) > 1]
    found: dict[str, dict[str, Any]] = {}
    with aside.status("choosing settings") as status:
        for name in searched:
            status.update(f"choosing settings of {name}, {size} images at once")
            try:
                found[name] = choose(model, held, name, size, model.card.seed or 0, limit)
            except UserError as error:
                words = f"{name}: not chosen, runs with its defaults if it runs at all ({error})"
                aside.print(words, soft_wrap=True)
    return found | own


def _tell(records: "Sequence[Record]", refused: "Sequence[Refusal]", targets: str) -> None:
    """The accuracies, then all that was measured, setting by setting, then who could not take part."""
    from generalizeformer.benchmark.tables import accuracy_table, measures_table, refusal_table

    show(accuracy_table(records, f"Accuracy on {targets}, %"))
    for setting in dict.fromkeys(record.setting for record in records):
        mine = [record for record in records if record.setting == setting]
        show(measures_table(mine, f"All measures: {setting}"))
    if refused:
        show_words(refusal_table(refused, "Could not take part"))


def _page(
    path: Path,
    title: str,
    records: "Sequence[Record]",
    refused: "Sequence[Refusal]",
    card: "Card",
    known: str,
) -> None:
    """The page as a file. The answer is there without its pictures."""
    from generalizeformer.benchmark.pages import evaluation_page

    learned = f", which learned from {', '.join(card.sources)}" if card.sources else ""
    model = f"Model: {card.architecture or card.backbone}{learned}."
    model += f" Of the targets, {known}" if known else ""
    try:
        evaluation_page(path, title, records, model, refused)
        console.print(f"page: {path}", soft_wrap=True)
    except UserError as error:
        console.print(f"no page: {error}", soft_wrap=True)


def known_methods(names: Sequence[str]) -> list[str]:
    """The methods of these names. A misspelt one is told before anything runs."""
    from generalizeformer import catalog
    from generalizeformer.benchmark.runner import ADAPTERS

    if not names:
        raise UserError(f"methods: none was named; choose from: {', '.join(METHODS)}, or all")
    if tuple(names) == ("all",):
        return catalog.names(ADAPTERS)
    for name in names:
        catalog.load(ADAPTERS, name)
    return list(names)


def compared(
    model: "GeneralizeFormer",
    domains: "DomainDataset",
    methods: Sequence[str],
    arrivals: "list[Stream]",
    run_seed: int,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sources: "DomainDataset | None" = None,
    refused: "Callable[[Refusal], None] | None" = None,
) -> "list[Record]":
    """The records of every method on every stream, with a word on what is running."""
    from generalizeformer.benchmark.runner import compare

    with aside.status("comparing") as status:

        def report(method: str, stream: "Stream") -> None:
            status.update(f"{method} on {', '.join(stream.targets)}, {stream.batch_size} at once")

        return compare(
            model, domains, methods, arrivals, run_seed, report, settings, sources, refused
        )
