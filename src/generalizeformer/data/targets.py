"""Targets of a stream as words: a domain, or a domain under a change, such as "sketch@fog:5".

What an image looks like under a target depends on the image, the word and the stream's seed. It
never depends on the images beside it, so every way of cutting a stream shows the same pixels.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Generator, Tensor

from generalizeformer.errors import DataError
from generalizeformer.imaging import corruptions, looks
from generalizeformer.imaging.pixels import to_bytes, to_unit, turning, warp
from generalizeformer.seeds import derive

SEVERITIES = (1, 2, 3, 4, 5)
# A look here is one change of the whole domain, and noise would differ from image to image.
LOOK = looks.Config(noise=0.0)


@dataclass(frozen=True)
class Target:
    """A domain, under a change of some amount where there is one."""

    domain: str
    change: str | None = None
    amount: float = 0.0  # degrees of a rotation, number of a look, severity of a corruption


def changes() -> tuple[str, ...]:
    """The names of all changes."""
    return ("rotation", "look", *corruptions.NAMES)


def parse(word: str, names: Sequence[str]) -> Target:
    """The target of a word, where the domains have these names. A domain's own name comes first."""
    if word in names:
        return Target(word)
    domain, at, rest = word.rpartition("@")
    if not at or domain not in names:
        raise DataError(
            f"targets: there is no domain {domain or word!r}; it has: {', '.join(names)}"
        )
    change, _, amount = rest.partition(":")
    if change not in changes():
        near = difflib.get_close_matches(change, changes(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(changes())}"
        raise DataError(f"target {word!r}: there is no change {change!r}; {hint}")
    return Target(domain, change, _amount(word, change, amount))


def image_seeds(word: str, seed: int, indices: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """One seed for each image of a target, by its place in its domain."""
    return torch.tensor([derive("change", seed, word, i) for i in indices.tolist()]).long()


def apply(
    target: Target, images: UInt8[Tensor, "n c h w"], seeds: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n c h w"]:
    """The images as they look under the target, each by itself."""
    if target.change is None or not len(images):
        return images
    if target.change == "rotation":
        return _turned(images, target.amount)
    if target.change == "look":
        return torch.cat([_look(image[None], int(target.amount)) for image in images])
    return corruptions.corrupt(images, target.change, int(target.amount), seeds)


def _turned(images: UInt8[Tensor, "n c h w"], degrees: float) -> UInt8[Tensor, "n c h w"]:
    """The images turned counter-clockwise. Grey ones are taken to lie on black; edges of others are drawn out."""
    if degrees == 0:
        return images
    matrix = turning(torch.tensor([degrees], device=images.device))
    # All images as channels of one: they share a grid, so none can feel how many there are.
    together = to_unit(images).flatten(0, 1)[None]
    turned = warp(together, matrix, "zeros" if images.shape[1] == 1 else "border")
    return to_bytes(turned).view_as(images)


def _look(image: UInt8[Tensor, "1 c h w"], number: int) -> UInt8[Tensor, "1 c h w"]:
    generator = Generator().manual_seed(derive("look", number))
    group = torch.zeros(1, dtype=torch.int64, device=image.device)
    return looks.apply(image, group, generator, LOOK)


def _amount(word: str, change: str, text: str) -> float:
    """The amount, or an error that says which amounts this change takes."""
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if change == "rotation":
        right, words = math.isfinite(amount), "degrees, such as 30"
    elif change == "look":
        right, words = (
            amount >= 0 and amount.is_integer(),
            "the number of a look: 0, 1, 2 and so on",
        )
    else:
        right, words = amount in SEVERITIES, "a severity: 1, 2, 3, 4 or 5"
    if not right:
        raise DataError(f"target {word!r}: the amount is {text!r}; {change} takes {words}")
    return amount
