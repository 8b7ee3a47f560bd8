"""Pictures as inline SVG, so that a report is one file that needs nothing else."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from generalizeformer.benchmark.records import ORACLE, Record
from generalizeformer.benchmark.tables import batch_sizes, by_target, method_names, seed_means
from generalizeformer.core.change import Change
from generalizeformer.errors import UserError

COLOURS = ("#8d99ae", "#e9a23b", "#c8553d", "#588157", "#2b59c3", "#6d597a", "#00798c")


def check_plots() -> None:
    """Raises where plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("plots need matplotlib; pip install 'generalizeformer[report]'") from None


def accuracy_bars(records: Sequence[Record]) -> str:
    """Mean accuracy of every method in every setting, seeds as dots."""
    methods, settings = _names(records)
    figure, axes = _axes(1.6 + 1.9 * len(settings), 3.2)
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        places = [s + (number - (len(methods) - 1) / 2) * width for s in range(len(settings))]
        values = [seed_means(records, method, setting) for setting in settings]
        heights = [_mean(v) for v in values]
        axes.bar(places, heights, width * 0.92, color=_colour(number), label=method)
        for place, seeds in zip(places, values, strict=True):
            axes.scatter([place] * len(seeds), seeds, s=7, color="black", zorder=3)
    lowest = min(value for m in methods for s in settings for value in seed_means(records, m, s))
    axes.set_ylim(bottom=max(0, lowest - 8))
    axes.set_xticks(range(len(settings)), settings)
    axes.set_ylabel("accuracy, %")
    axes.legend(
        frameon=False, ncols=len(methods), fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1)
    )
    return _svg(figure)


def target_lines(records: Sequence[Record], sources: dict[str, float], setting: str) -> str:
    """Accuracy over all domains that are numbers (angles): the sources' as a band, the targets per method."""
    methods, _ = _names(records)
    figure, axes = _axes(6.2, 3.2)
    if sources:
        axes.plot(
            [float(s) for s in sources],
            list(sources.values()),
            "o--",
            color="#bbbbbb",
            label="sources",
        )
    for number, method in enumerate(methods):
        points = by_target(records, method, setting)
        axes.scatter(
            [float(t) for t in points], list(points.values()), color=_colour(number), label=method
        )
    axes.set_xlabel("rotation, degrees")
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def batch_lines(records: Sequence[Record]) -> str:
    """Mean accuracy of every method over the batch sizes; oracles dashed."""
    figure, axes = _axes(6.2, 3.2)
    for number, method in enumerate(method_names(records)):
        mine = [record for record in records if record.method == method]
        sizes = batch_sizes(mine)
        heights = [_mean([r.accuracy for r in mine if r.batch_size == size]) for size in sizes]
        style = "o--" if method.endswith(ORACLE) else "o-"
        axes.plot(sizes, heights, style, color=_colour(number), label=method)
    axes.set_xscale("log")
    axes.set_xticks(batch_sizes(records), map(str, batch_sizes(records)))
    axes.minorticks_off()
    axes.set_xlabel("images per batch")
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return _svg(figure)


def interval_lines(differences: Mapping[str, tuple[float, float, float]]) -> str:
    """Mean, low and high end of every method's difference, the first on top."""
    figure, axes = _axes(6.2, 0.8 + 0.3 * len(differences))
    for place, (middle, low, high) in enumerate(differences.values()):
        axes.plot([low, high], [place, place], color=_colour(0))
        axes.plot([middle], [place], "o", color=_colour(4))
    axes.axvline(0, color="#bbbbbb", linewidth=1)
    axes.set_yticks(range(len(differences)), list(differences), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("percentage points")
    return _svg(figure)


def change_bars(changes: dict[str, Change]) -> str:
    """How far each layer is moved, in proportion to its source parameters; one colour per domain."""
    figure, axes = _axes(7.2, 2.9)
    width = 0.8 / len(changes)
    for number, (name, change) in enumerate(changes.items()):
        places = [p + (number - (len(changes) - 1) / 2) * width for p in range(len(change.layers))]
        axes.bar(
            places,
            change.relative.mean(0).tolist(),
            width * 0.92,
            color=_colour(number),
            label=name,
        )
        axes.set_xticks(
            range(len(change.layers)), change.layers, rotation=30, ha="right", fontsize=8
        )
    axes.set_ylabel("relative change")
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def image_rows(rows: dict[str, UInt8[Tensor, "n c h w"]]) -> str:
    """A few images of each domain, one row per domain."""
    count = min(len(images) for images in rows.values())
    figure = _figure(0.62 * count, 0.66 * len(rows))
    grid = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images[:count], strict=True):
            axes.imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray")
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return _svg(figure)


def _names(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    return method_names(records), list(dict.fromkeys(r.setting for r in records))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _axes(width: float, height: float) -> tuple[Any, Any]:
    figure = _figure(width, height)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _figure(width: float, height: float) -> Any:
    check_plots()
    from matplotlib.figure import Figure  # not pyplot: no display, nothing global to set or close

    return Figure(figsize=(width, height))


def _svg(figure: Any) -> str:
    from matplotlib import rc_context

    text = io.StringIO()
    # Fixed date and ids: the same records give the same bytes.
    with rc_context({"svg.hashsalt": "generalizeformer", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def few(images: UInt8[Tensor, "n c h w"], count: int) -> UInt8[Tensor, "count c h w"]:
    """Images spread evenly over a domain, so that its classes show."""
    return images[torch.linspace(0, len(images) - 1, count).long()].cpu()
