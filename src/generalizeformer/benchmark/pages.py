"""Pages: which tables and pictures belong together. What they look like is `figures` and `report`."""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor

from generalizeformer import atomic
from generalizeformer.benchmark import figures
from generalizeformer.benchmark.records import Record, Refusal
from generalizeformer.benchmark.report import Section, write_page
from generalizeformer.benchmark.summary import choices_table
from generalizeformer.benchmark.tables import (
    FEWER,
    accuracy_table,
    batch_sizes,
    gain_table,
    measures_table,
    refusal_table,
    sources_table,
    target_table,
)
from generalizeformer.core.change import Change

PICTURE = "accuracy.svg"  # beside the page of a benchmark
ABOUT_DEMO = (
    "A small network learned digits turned by 15 to 75 degrees and now meets digits turned by 0 and 90, "
    "angles and digits it has never seen. Every method starts from the same network and sees images only."
)
ABOUT_TABLE = (
    "Percent, mean over the two unseen rotations. “mixed”: both arrive in one stream. Tent and T3A learn along "
    "the stream; alpha-BN and GeneralizeFormer answer every batch by itself. Every method runs with "
    "the defaults listed below. Times are of this machine and include batching: methods that keep no state answer "
    "many batches at once."
)
ABOUT_CHANGE = (
    "What φ does to each layer, in proportion to the layer's own parameters, for batches of 20: next to nothing "
    "at 45 degrees, which the network knows, would be ideal."
)
MET = (
    "Percent, mean ± spread over the trainings in which the method met all targets; last, how many these are. Where it "
    "is none, of the targets that it met. What is of fewer trainings than others is of other source models, and never "
    "marked as the best"
)
ABOUT_TARGETS = f"{MET}."
ABOUT_TARGETS_AND_GAINS = f"{MET}: compare its gain over them, further below."
"""Where the page has a section of gains."""
ABOUT_BENCHMARK = (
    "Each target is left out once: models learn from other domains and then meet it as a stream of images without "
    "labels. All methods of a target start from the same source model."
)
ABOUT_CHOICES = (
    "Chosen for every target, seed and batch size on the source domains' validation images alone, by the "
    "accuracy after adaptation; ties go to the earlier one, the default being the first. In brackets: how often each "
    "was chosen."
)
ABOUT_EVALUATION = (
    "Percent, mean over the targets, of methods that could serve all of them. “single”: each target arrives by itself; "
    "“mixed”: all arrive in one stream. Dots in the picture: trainings; dotted line: the source model."
)
ABOUT_MEASURES = (
    "Mean over the streams, of methods that could serve all of them. Times are of this machine and include batching: "
    "methods that keep no state answer many batches at once. Forwards and backwards: images through a backbone."
)
ABOUT_SOURCES = (
    "Accuracy on the source domains' validation images once the target stream is over, percent: what a method has "
    "forgotten. The source model's own row is that before the stream. " + FEWER
)
ABOUT_PICTURE = (
    "Dots: trainings; dotted line: the source model; hatched: oracles; pale: methods of fewer trainings than others, "
    "so of other source models."
)
ABOUT_GAIN = f"Percentage points. {FEWER}"


def evaluation_page(
    path: Path,
    title: str,
    records: Sequence[Record],
    model: str = "",
    refused: Sequence[Refusal] = (),
) -> None:
    """Accuracy of every method in every setting, as a table and as bars; then each target, and all that was measured.

    `model`: what is known of the source model. `refused`: who could not take part.
    """
    settings = dict.fromkeys(record.setting for record in records)
    told = {setting: [r for r in records if r.setting == setting] for setting in settings}
    alone = {s: [r for r in mine if len(r.targets) == 1] for s, mine in told.items()}
    several = {s: mine for s, mine in alone.items() if len({r.targets for r in mine}) > 1}
    sections = [
        Section("Accuracy", ABOUT_EVALUATION, accuracy_table(records, title)),
        Section(figures.SAME, picture=figures.accuracy_bars(records)),
        *(
            Section(f"Every target: {s}", table=target_table(mine, mine[0].batch_size, ""))
            for s, mine in several.items()
        ),
        *(
            Section(f"All measures: {setting}", ABOUT_MEASURES, measures_table(mine, ""))
            for setting, mine in told.items()
        ),
        *refusal_sections(refused),
    ]
    introduction = " ".join(filter(None, (model, _arrived(records))))
    write_page(path, title, introduction, sections, _settings(records))


def _arrived(records: Sequence[Record]) -> str:
    """Which targets came, and how many images."""
    targets = dict.fromkeys(target for record in records for target in record.targets)
    counts = sorted({record.images for record in records})
    images = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return (
        f"Targets: {', '.join(targets)}; {images} images a stream. Every method starts from the same source model and "
        "sees images only."
    )


def benchmark_page(
    path: Path,
    title: str,
    records: Sequence[Record],
    sections: Sequence[Section] | None = None,
    about: str = ABOUT_BENCHMARK,
) -> None:
    """The page of a suite, the main one where no sections are given: which names are oracles', how many trainings.

    Its bars are a file of their own beside it as well, for other pages to show.
    """
    parts = benchmark_sections(records) if sections is None else sections
    seeds = len({record.run_seed for record in records})
    write_page(path, title, about, parts, f"{_oracles(records)} Trainings: {seeds}.")
    drawn = next((part.picture for part in parts if part.title == figures.SAME), None)
    atomic.write_text(path.with_name(PICTURE), drawn or figures.accuracy_bars(records))


def benchmark_sections(records: Sequence[Record]) -> list[Section]:
    """Leave one domain out: every target, gains, batch sizes, forgetting, and the settings chosen."""
    targets = [
        Section(
            f"Accuracy in batches of {size}",
            ABOUT_TARGETS_AND_GAINS,
            target_table(records, size, ""),
        )
        for size in batch_sizes(records)
    ]
    by_size = Section("Accuracy by batch size", picture=figures.batch_lines(records))
    return [
        *targets,
        Section(figures.SAME, ABOUT_PICTURE, picture=figures.accuracy_bars(records)),
        Section("Gain over the source model", ABOUT_GAIN, gain_table(records, "")),
        *([by_size] if len(targets) > 1 else []),  # one point is no line
        Section("On the sources, afterwards", ABOUT_SOURCES, sources_table(records, "")),
        Section("Settings", ABOUT_CHOICES, choices_table(records, "")),
    ]


def refusal_sections(refused: Sequence[Refusal]) -> list[Section]:
    """Who could not serve the model or some batches, where there is anyone."""
    about = "In the methods' own words."
    table = refusal_table(refused, "")
    return [Section("Could not take part", about, table)] if refused else []


def _oracles(records: Sequence[Record]) -> str:
    """Which numbers are not results of a method that could be used."""
    named = dict.fromkeys(record.method for record in records if record.is_oracle)
    if not named:
        return "No number here is an oracle's."
    return (
        f"Oracles: {', '.join(named)}. Their settings were picked with the target's labels, which nobody has: an "
        "upper bound, and never marked as the best."
    )


def demo_page(
    path: Path,
    records: Sequence[Record],
    sources: dict[str, float],
    changes: dict[str, Change],
    images: dict[str, UInt8[Tensor, "n c h w"]],
) -> None:
    """The demo's page: the task, the comparison, where accuracy is lost and won, what φ changes."""
    alone = [record for record in records if len(record.targets) == 1]
    single = max(alone, key=lambda record: record.batch_size).setting
    sections = [
        Section(
            "The task", "Sources on top, unseen targets below.", picture=figures.image_rows(images)
        ),
        Section("Accuracy on the unseen rotations", ABOUT_TABLE, accuracy_table(records, "")),
        Section(figures.SAME, picture=figures.accuracy_bars(records)),
        Section(
            "Accuracy by angle",
            "Grey: the plain network on unseen digits at the angles it learned.",
            picture=figures.target_lines(records, sources, single),
        ),
        Section("What is generated", ABOUT_CHANGE, picture=figures.change_bars(changes)),
    ]
    write_page(path, "GeneralizeFormer on rotated digits", ABOUT_DEMO, sections, _settings(records))


def _settings(records: Sequence[Record]) -> str:
    """Which settings the methods ran with, where it matters in which batches, and over how many trainings."""
    used: dict[str, dict[str, list[int]]] = {}
    for record in records:
        settings = ", ".join(f"{k}={v}" for k, v in record.settings.items()) or "none"
        sizes = used.setdefault(record.method, {}).setdefault(settings, [])
        sizes += [] if record.batch_size in sizes else [record.batch_size]
    words = [
        f"{method}{_in_batches(sizes) if len(found) > 1 else ''} ({settings})"
        for method, found in used.items()
        for settings, sizes in found.items()
    ]
    seeds = len({record.run_seed for record in records})
    return f"Settings: {'; '.join(words)}. Trainings: {seeds}."


def _in_batches(sizes: Sequence[int]) -> str:
    return f" in batches of {', '.join(map(str, sorted(sizes)))}"
