"""Labels that come in runs: every class is spread unevenly over as many chunks as there are classes.

Gong et al., 2022 (NOTE): beta 0.1, at least 10 images in a chunk. Zhao et al., 2023 (TTAB): the
same with at least 5. Inside a chunk the images of a class come together, so that nearly every
batch has one class; `shuffle_inside` is a milder stream. Targets come one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator

from generalizeformer.data.orders._draws import (
    REDRAWS,
    Indices,
    Labels,
    Pairs,
    by_label,
    check,
    cut,
    joined,
    numpy_generator,
    pairs,
)
from generalizeformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Config:
    """How unevenly; the smaller beta, the more a chunk is of few classes."""

    beta: float = 0.1
    minimum: int = 10  # images in a chunk; everything is drawn again until all have them
    shuffle_inside: bool = False  # mix the classes of a chunk

    def __post_init__(self) -> None:
        check("dirichlet", "beta", self.beta, self.beta > 0, "above 0")
        check("dirichlet", "minimum", self.minimum, self.minimum >= 0, "0 or more")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image exactly once."""
    draws = numpy_generator(generator)
    arranged = []
    for target, part in enumerate(parts):
        chunks = _chunks(by_label(part), draws, config)
        ordered = [_inside(chunk, draws, config) for chunk in chunks]
        arranged.append(pairs(target, joined(ordered)))
    return torch.cat(arranged)


def _chunks(
    classes: list[Indices], draws: np.random.Generator, config: Config
) -> list[list[Indices]]:
    """For every chunk, its pieces of single classes."""
    total = sum(map(len, classes))
    if total < config.minimum * len(classes):
        raise DataError(
            f"dirichlet: {total} images cannot make {len(classes)} chunks, one for each class, of at least "
            f"{config.minimum}; lower minimum to {total // len(classes)} or less, nothing else helps"
        )
    for _ in range(REDRAWS):
        chunks = _drawn(classes, draws, config.beta)
        if chunks and min(len(joined(chunk)) for chunk in chunks) >= config.minimum:
            return chunks
    raise DataError(
        f"dirichlet: {total} images of {len(classes)} classes gave no {len(classes)} chunks of at "
        f"least {config.minimum} in {REDRAWS:,} draws; lower minimum or raise beta"
    )


def _drawn(
    classes: list[Indices], draws: np.random.Generator, beta: float
) -> list[list[Indices]] | None:
    """One draw. None where a class finds no chunk with room."""
    chunks: list[list[Indices]] = [[] for _ in classes]
    room = sum(map(len, classes)) / len(classes)
    for images in classes:
        held = np.array([len(joined(chunk)) for chunk in chunks])
        shares = draws.dirichlet(np.full(len(chunks), beta)) * (held < room)
        if not shares.sum() > 0:
            return None
        for chunk, piece in zip(chunks, cut(draws.permutation(images), shares), strict=True):
            chunk.append(piece)
    return chunks


def _inside(chunk: list[Indices], draws: np.random.Generator, config: Config) -> Indices:
    """The images of a chunk in order of arrival: classes in random order, each in one run."""
    if config.shuffle_inside:
        return draws.permutation(joined(chunk))
    return joined([chunk[i] for i in draws.permutation(len(chunk))])
