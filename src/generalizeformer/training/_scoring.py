"""Accuracy on labelled source data, batch by batch, through any function from images to logits."""

from collections.abc import Callable

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.imaging.looks import apply as apply_looks
from generalizeformer.seeds import derive

CHUNK = 128  # images at once: bounds memory
WORSE = 1.0  # points that generated parameters may lose on source validation before it is said
Answer = Callable[[Tensor, Tensor], Tensor]
"""From images and one group id each to logits."""


@torch.no_grad()
def accuracy(
    answer: Answer,
    domain: Domain,
    preprocessing: Preprocessing,
    group: int,
    device: torch.device,
    looks: Looks | None = None,
    limit: int | None = None,
) -> float:
    """Percent of the domain answered rightly in groups of `group` images (the last may be smaller).

    With `looks`, every other group has a random look of its own. `limit`: of that many images, drawn at random.
    Both are the same whenever this is called.
    """
    right = 0
    together = max(1, CHUNK // group) * group
    # Stored images are often sorted by class; a group of one class is another problem than a target batch.
    order = torch.randperm(len(domain), generator=torch.Generator().manual_seed(len(domain)))
    order = order[:limit]
    for number, part in enumerate(torch.split(order, together)):
        pixels = domain.read(part).to(device)
        groups = number * together // group + torch.arange(len(part), device=device) // group
        if looks is not None:
            pixels = _every_other(pixels, groups, looks, derive("validation looks", group, number))
        answers = answer(preprocessing(pixels), groups).argmax(1)
        right += int((answers == domain.labels[part.to(domain.labels.device)].to(device)).sum())
    return 100 * right / len(order)


def mean_accuracies(
    model: GeneralizeFormer,
    data: DomainDataset,
    preprocessing: Preprocessing,
    device: torch.device,
) -> tuple[float, float]:
    """Mean over the domains of the plain backbone's accuracy, and of the model's on groups of 20."""
    plain = [plain_accuracy(model, domain, preprocessing, device) for domain in data.domains]
    adapted = [accuracy(model, domain, preprocessing, 20, device) for domain in data.domains]
    return sum(plain) / len(plain), sum(adapted) / len(adapted)


def told(card: Card) -> str:
    """What was right on source images that nothing was learned from."""
    words = f"source validation: {_both(card.source_accuracy, card.adapted_accuracy)}"
    gained = unseen(card)
    return words if gained is None else f"{words}; {gained}"


def unseen(card: Card) -> str | None:
    """What was right on source domains, each with a backbone that had not learned from it, where that is known."""
    if card.unseen_accuracy is None:
        return None
    both = _both(card.unseen_accuracy, card.unseen_adapted_accuracy)
    return f"domains that the backbone had not learned from: {both}"


def _both(plain: float | None, adapted: float | None) -> str:
    assert plain is not None
    assert adapted is not None
    return f"{plain:.1f} % plain, {adapted:.1f} % generated"


def doubt(card: Card) -> str | None:
    """What to do where generated parameters answer worse than the plain backbone, or no better where they should."""
    plain, adapted = card.source_accuracy, card.adapted_accuracy
    if plain is not None and adapted is not None and plain - adapted > WORSE:
        return _advised(
            f"are {plain - adapted:.1f} points worse than the plain backbone on source validation"
        )
    plain, adapted = card.unseen_accuracy, card.unseen_adapted_accuracy
    if plain is not None and adapted is not None and adapted <= plain:
        return _advised(
            f"gain nothing on domains that the backbone had not learned from ({_both(plain, adapted)})"
        )
    return None


def _advised(words: str) -> str:
    return (
        f"generated parameters {words}: train φ for more steps or on more domains, and see with `generalizeformer "
        "evaluate` whether targets gain"
    )


def plain_accuracy(
    model: GeneralizeFormer, domain: Domain, preprocessing: Preprocessing, device: torch.device
) -> float:
    """Percent of the domain that the model's backbone answers rightly by itself."""
    return accuracy(plainly(model), domain, preprocessing, 1, device)


def plainly(model: GeneralizeFormer) -> Answer:
    """The model's backbone by itself."""
    backbone = model.backbone.eval()
    return lambda images, _: backbone(images)


def _every_other(
    pixels: UInt8[Tensor, "n c h w"], groups: Int64[Tensor, " n"], looks: Looks, seed: int
) -> UInt8[Tensor, "n c h w"]:
    """Looks for the even groups, so that a single group has one too; the others stay clean."""
    looked = apply_looks(pixels, groups, torch.Generator().manual_seed(seed), looks)
    return torch.where((groups % 2 == 0)[:, None, None, None], looked, pixels)
