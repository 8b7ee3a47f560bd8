"""`evaluate`: methods compared on target streams."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from generalizeformer.cli._terminal import console, show
from generalizeformer.errors import DataError

if TYPE_CHECKING:
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.data.streams import Stream

METHODS = ("source", "alpha_bn", "tent", "t3a", "generalizeformer")


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    methods: tuple[str, ...] = METHODS,
    targets: tuple[str, ...] = (),
    batch_sizes: tuple[int, ...] = (1, 20),
    mixed: bool = True,
    limit: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> None:
    """Compare methods on the target streams of a trained model's dataset.

    Args:
        run: Folder of a trained model.
        methods: Methods to compare; `all` for every one there is.
        targets: Target domains; all of the dataset's targets if none is named.
        batch_sizes: Images that arrive together.
        mixed: Also let all targets arrive mixed, in the largest batch size.
        limit: Images per stream; all if not given.
        seed: Of the order of arrival.
        out: Folder for records.json and page.html; the run's own `evaluation` if not given.
        device: Where to compute; auto takes a GPU if there is one.
    """
    from generalizeformer import catalog
    from generalizeformer.benchmark.pages import evaluation_page
    from generalizeformer.benchmark.records import write
    from generalizeformer.benchmark.runner import ADAPTERS, compare
    from generalizeformer.benchmark.tables import accuracy_table
    from generalizeformer.core.generalizeformer import GeneralizeFormer

    model = GeneralizeFormer.from_pretrained(run).to(pick_device(device)).eval()
    domains = target_domains(model.card.dataset, targets)
    chosen = catalog.names(ADAPTERS) if tuple(methods) == ("all",) else list(methods)
    for name in chosen:
        catalog.load(ADAPTERS, name)  # a misspelt method is told before anything runs
    with console.status("evaluating") as status:
        records = compare(
            model,
            domains,
            chosen,
            streams(domains, batch_sizes, mixed, limit, seed),
            run_seed=0,
            report=lambda m, s: status.update(
                f"{m} on {', '.join(s.targets)}, batches of {s.batch_size}"
            ),
        )
    folder = out or run / "evaluation"
    write(folder / "records.json", records)
    table = accuracy_table(records, f"Accuracy on {', '.join(domains.names)}, %")
    show(table)
    evaluation_page(folder / "page.html", f"Evaluation of {run.name}", records)
    console.print(f"records and page in {folder}")


def streams(
    domains: "DomainDataset",
    batch_sizes: tuple[int, ...],
    mixed: bool,
    limit: int | None,
    seed: int,
) -> list["Stream"]:
    """Every target alone in every batch size, then all of them mixed in the largest."""
    from generalizeformer.data.streams import Stream

    alone = [Stream((t,), b, seed, limit) for b in batch_sizes for t in domains.names]
    together = (
        [Stream(domains.names, max(batch_sizes), seed, limit)]
        if mixed and len(domains.names) > 1
        else []
    )
    return alone + together


def target_domains(dataset: str | None, names: tuple[str, ...]) -> "DomainDataset":
    """The targets of the dataset a model was trained on, or those named."""
    from generalizeformer import catalog

    if dataset is None:
        raise DataError(
            "this model does not say which dataset it was trained on; use `predict` instead"
        )
    module = catalog.load("generalizeformer.data.datasets", dataset)
    build = getattr(module, "targets", module.build)
    domains: DomainDataset = build(module.Config())
    return domains.only(names) if names else domains


def pick_device(name: str) -> Any:
    """The device of that name; auto is a GPU where there is one."""
    import torch

    from generalizeformer.errors import UserError

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: cuda was asked for, but there is no usable GPU; use --device cpu")
    return torch.device(name)
