"""Accuracy on labelled images: which are asked, in which groups."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from generalizeformer.core.card import Card
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import Domain
from generalizeformer.training._scoring import CHUNK, accuracy, doubt, told

PREPROCESSING = Preprocessing(size=2, mean=(0.0,), std=(1.0,))
COUNT = 2 * CHUNK + 7
DOMAIN = Domain(
    "numbered",
    (torch.arange(COUNT) % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2),
    torch.arange(COUNT) % 3,
)


def asked(group: int, limit: int | None = None) -> tuple[float, list[list[int]]]:
    """The accuracy of answering class 0 always, and the images of every group in order."""
    groups: list[list[int]] = []

    def answer(images: Tensor, ids: Tensor) -> Tensor:
        shown = (images[:, 0, 0, 0] * 255).round().long()
        groups.extend(shown[ids == number].tolist() for number in ids.unique())
        return torch.eye(3)[torch.zeros(len(images), dtype=torch.long)]

    score = accuracy(answer, DOMAIN, PREPROCESSING, group, torch.device("cpu"), limit=limit)
    return score, groups


def test_all_images_are_asked_in_groups_of_the_size() -> None:
    score, groups = asked(20)
    assert [len(group) for group in groups] == [20] * (COUNT // 20) + [COUNT % 20]
    assert sorted(i for group in groups for i in group) == sorted(i % 256 for i in range(COUNT))
    assert score == 100 * int((DOMAIN.labels == 0).sum()) / COUNT


def test_a_limit_takes_the_first_of_the_same_groups() -> None:
    _, every = asked(20)
    score, some = asked(20, 60)
    assert some == every[:3]
    assert 0 < score < 100


@pytest.mark.parametrize(
    ("plain", "adapted", "said"),
    [
        (50.0, 43.8, "are 6.2 points worse"),
        (50.0, 49.5, None),
        (50.0, 60.0, None),
        (None, None, None),
    ],
)
def test_a_loss_on_source_validation_is_told(
    plain: float | None, adapted: float | None, said: str | None
) -> None:
    words = doubt(Card(source_accuracy=plain, adapted_accuracy=adapted))
    assert words is None if said is None else words is not None and said in words


@pytest.mark.parametrize(
    ("plain", "adapted", "said"),
    [(60.0, 58.5, "gain nothing on domains"), (60.0, 60.0, "gain nothing"), (60.0, 60.1, None)],
)
def test_no_gain_on_unseen_domains_is_told(plain: float, adapted: float, said: str | None) -> None:
    words = doubt(Card(unseen_accuracy=plain, unseen_adapted_accuracy=adapted))
    assert words is None if said is None else words is not None and said in words


def test_accuracies_are_told_in_words() -> None:
    card = Card(source_accuracy=81.26, adapted_accuracy=83.0)
    assert told(card) == "source validation: 81.3 % plain, 83.0 % generated"
    card = replace(card, unseen_accuracy=60.0, unseen_adapted_accuracy=66.04)
    assert told(card).endswith(
        "; domains that the backbone had not learned from: 60.0 % plain, 66.0 % generated"
    )
