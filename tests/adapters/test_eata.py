"""ETA and EATA: what was recorded, which images they learn from, and the anchor at the source."""

import math
from typing import Any

import pytest
import torch
from filtering import (
    PARTS,
    VISIBLE,
    assert_parameters,
    assert_same_parameters,
    distance,
    net,
    one_sgd_step,
)
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn

from generalizeformer.adapters import eata, eta
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.errors import ImageError

# Recorded numbers

TOLD_APART = {"learning_rate": VISIBLE, "redundancy_margin": 0.6}


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("eta", eta.Config(**TOLD_APART)),
        (
            "eta_strict",
            eta.Config(learning_rate=VISIBLE, entropy_margin=0.1, redundancy_margin=0.3),
        ),
        (
            "eta_bs1",
            eta.Config(
                learning_rate=VISIBLE, entropy_margin=1.6 / math.log(5), redundancy_margin=0.9995
            ),
        ),
        ("eta_published_d_margin", eta.Config(learning_rate=VISIBLE)),
        ("eata", eata.Config(**TOLD_APART, fisher_images=0)),
        ("eata_alpha1", eata.Config(**TOLD_APART, fisher_images=0, fisher_alpha=1.0)),
    ],
)
def test_eta_and_eata_give_the_recorded_numbers(
    toy: GeneralizeFormer, variant: str, config: Any
) -> None:
    trace = recorded("eata")
    adapter: Any = (eata.EATA if isinstance(config, eata.Config) else eta.ETA)(toy, config)
    if isinstance(adapter, eata.EATA):
        for batch in recorded("source")["images"]:  # as the reference does, before the target
            adapter.weigh(batch)
        for part, importance in zip(PARTS, adapter.importance, strict=True):
            assert_agree(importance, trace[f"eata/fisher/{part}"])
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter.step(batch), trace[f"{variant}/logits"][number])
        assert_parameters(adapter, trace, variant, number)
        average = torch.zeros(5).double() if adapter.average is None else adapter.average
        assert_agree(average, trace[f"{variant}/prob_average"][number])


# ETA


def test_eta_weighs_sure_images_more(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = eta.ETA(source, eta.Config(learning_rate=0.1, entropy_margin=0.6))
    adapter.step(images)

    def loss(_: nn.Module, logits: Tensor) -> Tensor:
        sure = [h for h in per_image_entropy(logits) if h < 0.6 * math.log(5)]
        assert 1 < len(sure) < len(images)
        return sum(h * math.exp(0.6 * math.log(5) - h.item()) for h in sure) / len(sure)  # type: ignore[return-value]

    assert_same_parameters(adapter, one_sgd_step(backbone, images, loss, 0.1))


def test_eta_learns_nothing_from_predictions_it_has_seen(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = eta.ETA(source, eta.Config(learning_rate=0.1, redundancy_margin=0.0, momentum=0.0))
    adapter.step(images)
    after, average = adapter.values(), adapter.average
    adapter.step(images)
    assert average is adapter.average
    assert all(torch.equal(one, other) for one, other in zip(after, adapter.values(), strict=True))


def test_eta_forgets_the_average_at_reset(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = eta.ETA(source, eta.Config(entropy_margin=1.0))
    adapter.step(images)
    assert adapter.average is not None
    adapter.reset()
    assert adapter.average is None


# EATA

FAST: dict[str, Any] = {"learning_rate": 0.05, "entropy_margin": 1.0, "redundancy_margin": 2.0}


def test_eata_without_its_anchor_is_eta(source: GeneralizeFormer, images: Tensor) -> None:
    one = eata.build(source, eata.Config(fisher_alpha=0.0, **FAST))
    other = eta.build(source, eta.Config(**FAST))
    for batch in images.split(8):
        assert torch.equal(one.step(batch), other.step(batch))


def test_eata_stays_nearer_to_the_source_the_heavier_its_anchor(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    distances = []
    for alpha in (0.0, 10.0, 100.0):
        adapter = eata.EATA(source, eata.Config(fisher_alpha=alpha, **FAST))
        for _ in range(5):
            for batch in images.split(8):
                adapter.step(batch)
        distances.append(distance(adapter, backbone))
    assert distances[0] > 1.02 * distances[1] > 1.02**2 * distances[2] > 0


def test_eata_weighs_at_the_source_wherever_it_has_moved_to(
    source: GeneralizeFormer, images: Tensor
) -> None:
    moved, still = (
        eata.EATA(source, eata.Config(**FAST | {"learning_rate": rate})) for rate in (1.0, 0.0)
    )
    for batch in images.split(8):
        moved.step(batch)
        still.step(batch)
    for one, other in zip(moved.importance, still.importance, strict=True):
        assert torch.equal(one, other)
        assert one.any()


def test_eata_weighs_the_first_images_only(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = eata.EATA(source, eata.Config(fisher_images=9, **FAST))
    weighed = []
    for batch in images.split(8):
        adapter.step(batch)
        weighed.append(torch.cat([value.flatten() for value in adapter.importance]))
    assert (adapter.batches_weighed, adapter.images_weighed) == (2, 16)
    assert not torch.equal(weighed[0], weighed[1])
    assert torch.equal(weighed[1], weighed[2])


def test_eata_is_where_it_was_after_a_batch_that_cannot_be_weighed(images: Tensor) -> None:
    adapter = eata.EATA(net(nn.BatchNorm1d(8)), eata.Config(**FAST))
    adapter.step(images)
    before = adapter.predict(images)
    with pytest.raises(ImageError, match="at least 2"):
        adapter.step(images[:1])
    assert torch.equal(adapter.predict(images), before)
