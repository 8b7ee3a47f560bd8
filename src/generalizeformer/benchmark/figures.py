"""Pictures as inline SVG, so that a report is one file that needs nothing else."""

import io
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from generalizeformer.benchmark.records import ORACLE, Record
from generalizeformer.benchmark.tables import (
    batch_sizes,
    by_target,
    method_names,
    seed_means,
    whole,
)
from generalizeformer.core.change import Change
from generalizeformer.errors import UserError

COLOURS = ("#8d99ae", "#e9a23b", "#c8553d", "#588157", "#2b59c3", "#6d597a", "#00798c")
SAME = "The same as a picture"
"""Heads the section with the bars of a page."""
ACROSS = 4  # panels beside each other
PALE = 0.4  # bars of fewer trainings than others: of other source models, so no match for them


def check_plots() -> None:
    """Raises where plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("plots need matplotlib; pip install 'generalizeformer[report]'") from None


def accuracy_bars(
    records: Sequence[Record], words: Callable[[Record], str] = attrgetter("setting")
) -> str:
    """Mean accuracy, a panel for every setting, seeds as dots, the best on top; dotted: the source's.

    The best in the setting that most methods met. Of methods that met all streams of a setting, as in the tables.
    `words`: what a panel calls its setting, as told by any record of it.
    """
    named, settings = _names(records)
    titles = {record.setting: words(record) for record in records}
    found = {(m, s): seed_means(records, m, s) for m in named for s in settings}
    told = [m for m in named if any(found[m, s] for s in settings)]
    ranked = sorted(settings, key=lambda s: -sum(bool(found[m, s]) for m in told))
    methods = sorted(told, key=lambda m: [_mean(found[m, s]) for s in ranked])
    columns = min(len(settings), ACROSS)
    rows = -(-len(settings) // columns)
    figure = _figure(1.6 + 2.1 * columns, 0.4 + rows * (0.5 + 0.24 * len(methods)))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in panels[len(settings) :]:
        axes.set_visible(False)
    for axes, setting in zip(panels, settings, strict=False):
        _bars(axes, {m: found[m, setting] for m in methods})
        axes.set_title(titles[setting], fontsize=9)
        axes.tick_params(labelbottom=True)
    lowest = min((value for values in found.values() for value in values), default=0.0)
    panels[0].set_xlim(left=max(0, lowest - 8))
    panels[0].set_yticks(range(len(methods)), methods, fontsize=8)
    figure.supxlabel("accuracy, %", fontsize=9)
    figure.tight_layout()
    return _svg(figure)


def _bars(axes: Any, values: Mapping[str, Sequence[float]]) -> None:
    """A bar for every method, its seeds as dots, and a line where the source model is."""
    most = max(map(len, values.values()), default=0)
    for place, (method, seeds) in enumerate(values.items()):
        look = {"hatch": "///" if method.endswith(ORACLE) else None, "edgecolor": "white"}
        alpha = 1 if len(seeds) == most else PALE
        axes.barh(place, _mean(seeds), 0.75, color=_role(method), alpha=alpha, **look)
        axes.scatter(seeds, [place] * len(seeds), s=6, color="black", zorder=3)
    if plain := values.get("source"):
        axes.axvline(_mean(plain), color="#444444", linewidth=0.8, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)


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
    """Mean accuracy over the batch sizes, of methods that met all streams of several; oracles dashed."""
    figure, axes = _axes(6.2, 3.2)
    here = {size: [r for r in records if r.batch_size == size] for size in batch_sizes(records)}
    for number, (method, points) in enumerate(_over_sizes(here).items()):
        style = "o--" if method.endswith(ORACLE) else "o-"
        axes.plot(*zip(*points.items(), strict=True), style, color=_colour(number), label=method)
    axes.set_xscale("log")
    axes.set_xticks(list(here), map(str, here))
    axes.minorticks_off()
    axes.set_xlabel("images per batch")
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return _svg(figure)


def _over_sizes(records: Mapping[int, Sequence[Record]]) -> dict[str, dict[int, float]]:
    """By method and batch size the mean accuracy, of methods with more than one size where there are any."""
    found: dict[str, dict[int, float]] = {}
    for size, here in records.items():
        for method in method_names(here):
            if mine := whole(here, method):
                found.setdefault(method, {})[size] = _mean([r.accuracy for r in mine])
    return {m: points for m, points in found.items() if len(points) > 1} or found


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


def _role(method: str) -> str:
    """Grey for what all are compared with, blue for us, and one colour for all others: their names stand beside."""
    if method.startswith("generalizeformer"):
        return COLOURS[4]
    return COLOURS[0] if method in ("source", "mirror") else COLOURS[1]


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
