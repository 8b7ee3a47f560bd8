"""Methods that tell classes by remembered examples: TAST, TAST-BN and AdaNPC."""

import copy
import math
from typing import Any

import pytest
import torch
from recordings import NORMS, assert_agree, recorded, stream_of
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.adapters import adanpc, t3a, tast, tast_bn
from generalizeformer.adapters._prototypes import judged, nearest
from generalizeformer.adapters._supports import observed
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def features_of(backbone: Any, images: Tensor) -> Tensor:
    features: Tensor = backbone.blocks(images).mean((2, 3)).detach()
    return features


def cosines(features: Tensor, keys: Tensor) -> Tensor:
    return F.cosine_similarity(features[:, None], keys[None], dim=2)


def net(*layers: nn.Module) -> GeneralizeFormer:
    """conv, ReLU, pooling, these layers, a classifier."""
    torch.manual_seed(4)
    first = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    backbone = nn.Sequential(*first, *layers, nn.Linear(8, 5)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


# Recorded numbers

HEADS = {"weight": "shared", "alpha_be": "before", "gamma_be": "after", "ensemble_bias": "shift"}


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("E5_K20_k4", tast.Config(heads=5, supports=20, neighbours=4)),
        ("E3_K5_k2_gamma3", tast.Config(heads=3, supports=5, neighbours=2, steps=3)),
        ("E1_Kall_k8", tast.Config(heads=1, supports=None, neighbours=8)),
        ("E3_K5_k1_bs1", tast.Config(heads=3, supports=5, neighbours=1)),
        ("E3_K1_k4_lr0.05", tast.Config(heads=3, supports=1, neighbours=4, learning_rate=0.05)),
    ],
)
def test_tast_gives_the_recorded_numbers(
    toy: GeneralizeFormer, variant: str, config: tast.Config
) -> None:
    trace, adapter = recorded("tast"), tast.TAST(toy, config)
    with torch.no_grad():
        for theirs, ours in HEADS.items():
            adapter.heads.get_parameter(ours).copy_(trace[f"{variant}/init/{theirs}"])
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter.step(batch).exp(), trace[f"{variant}/predictions"][number])
    for theirs, ours in HEADS.items():
        assert_agree(adapter.heads.get_parameter(ours), trace[f"{variant}/heads/{theirs}"])
    labels, entropies = trace[f"{variant}/support_labels"], trace[f"{variant}/ent"]
    order = entropies.argsort(stable=True)  # where all are kept, theirs are in order of arrival
    order = order[labels[order].argsort(stable=True)]
    assert torch.equal(adapter.labels, labels[order])
    assert_agree(adapter.entropies, entropies[order])
    assert_agree(adapter.supports, trace[f"{variant}/supports"][order])


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("K20_k4", tast_bn.Config(supports=20, neighbours=4)),
        ("K5_k2_gamma3", tast_bn.Config(supports=5, neighbours=2, steps=3)),
        ("K1_k1", tast_bn.Config(supports=1, neighbours=1)),
        ("K5_k1_bs1", tast_bn.Config(supports=5, neighbours=1)),
    ],
)
def test_tast_bn_gives_the_recorded_numbers(
    toy: GeneralizeFormer, variant: str, config: tast_bn.Config
) -> None:
    trace, adapter, stream = recorded("tast_bn"), tast_bn.TASTBN(toy, config), stream_of(variant)
    for number, batch in enumerate(stream):
        assert_agree(adapter.step(batch).exp(), trace[f"{variant}/predictions"][number])
        for norm in NORMS:
            for part in ("weight", "bias"):
                value = adapter.backbone.get_parameter(f"{norm}.{part}")
                assert_agree(value, trace[f"{variant}/params_per_batch/{norm}.{part}"][number])
    kept = trace[f"{variant}/support_stream_index"]
    assert torch.equal(adapter.supports, stream.flatten(0, 1)[kept])
    assert torch.equal(adapter.labels, trace[f"{variant}/support_labels"])
    assert_agree(adapter.entropies, trace[f"{variant}/ent"])


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("beta0_k5", adanpc.Config(confidence=0.0, neighbours=5)),
        ("beta0.35_k5", adanpc.Config(confidence=0.35, neighbours=5)),
        ("beta0.75_k1", adanpc.Config(confidence=0.75, neighbours=1)),
        ("beta0.25_k10_bs1", adanpc.Config(confidence=0.25, neighbours=10, temperature=0.05)),
    ],
)
def test_adanpc_gives_the_recorded_numbers_from_the_recorded_memory(
    toy: GeneralizeFormer, variant: str, config: adanpc.Config
) -> None:
    trace, known = recorded("adanpc"), recorded("source")
    adapter = adanpc.AdaNPC(toy, config)
    # What the reference begins with: a random row as if it were of class 0, then labelled source features.
    adapter.keys, adapter.labels = trace[f"{variant}/junk_row"], torch.zeros(1, dtype=torch.long)
    for images, labels in zip(known["images"], known["labels"], strict=True):
        adapter._remember(observed(toy, images).features, labels)
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter.step(batch).exp(), trace[f"{variant}/scores"][number])
    assert torch.equal(adapter.labels, trace[f"{variant}/memory_labels"])


# Neighbours and prototypes


def test_a_class_without_supports_has_cosine_0() -> None:
    points = torch.randn(7, 3).double()
    near, labels = torch.ones(2, 5, dtype=torch.bool), torch.tensor([0, 0, 2, 2, 2])
    logits = judged(points, near, labels, 4, 10.0).logits
    assert torch.equal(logits[:, [1, 3]], torch.zeros(2, 2).double())
    assert (logits[:, [0, 2]] != 0).all()


def test_one_neighbour_gives_a_target_of_one_class() -> None:
    points = torch.randn(2, 9, 3).double()
    near = nearest(points[0, :4], points[0, 4:], 1)
    targets = judged(points, near, torch.tensor([0, 1, 2, 1, 0]), 3, 10.0).targets
    assert torch.equal(targets.sort(-1).values, torch.tensor([0.0, 0, 1]).double().expand(2, 4, 3))


def test_the_nearest_are_found_by_angle_and_not_by_length() -> None:
    features, supports = torch.tensor([[1.0, 0]]), torch.tensor([[0.9, 0.5], [90.0, 1], [0.1, 0.1]])
    assert nearest(features, supports, 1).tolist() == [[False, True, False]]
    assert nearest(features, supports, 9).tolist() == [[True, True, True]]


# TAST


def test_tast_answers_are_log_probabilities(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = tast.build(source, tast.Config())
    for answer in (adapter.predict(images), adapter.step(images)):
        assert_close(answer.exp().sum(1), torch.ones(len(images)).double())


def test_tast_keeps_the_supports_of_t3a(source: GeneralizeFormer, images: Tensor) -> None:
    one, other = tast.TAST(source, tast.Config(supports=3)), t3a.T3A(source, t3a.Config(supports=3))
    for batch in images.split(5):
        one.step(batch)
        other.step(batch)
        assert torch.equal(one.supports, other.supports)
        assert torch.equal(one.labels, other.labels)
        assert one.labels.bincount().max() <= 3


def test_tast_without_learning_answers_by_its_supports_alone(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = tast.build(source, tast.Config(learning_rate=0.0, steps=3))
    for batch in images.split(8):
        assert torch.equal(adapter.step(batch), adapter.predict(batch))


def test_tast_answers_its_first_batch_before_its_heads_learn(
    source: GeneralizeFormer, images: Tensor
) -> None:
    slow, fast = (tast.build(source, tast.Config(learning_rate=r)) for r in (1e-4, 0.1))
    assert torch.equal(slow.step(images[:8]), fast.step(images[:8]))
    assert not torch.allclose(slow.step(images[8:]), fast.step(images[8:]))


def test_tast_heads_learn_to_agree_with_the_neighbours(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    left = []
    for steps in (1, 40):
        adapter = tast.TAST(source, tast.Config(learning_rate=0.01, steps=steps))
        adapter.step(images)
        left.append(adapter._judge(features_of(backbone, images)).divergence().item())
    assert left[1] < 0.9 * left[0]


def test_tast_with_one_plain_head_and_neighbour_gives_the_class_of_the_nearest_support(
    toy: GeneralizeFormer,
) -> None:
    known, shown = stream_of("bs8")[:2]
    adapter = tast.TAST(toy, tast.Config(heads=1, neighbours=1, scale=1e5, learning_rate=0.0))
    adapter.step(known)
    adapter.heads.forward = lambda features: features.unsqueeze(0)  # type: ignore[method-assign]
    got = adapter.predict(shown)
    kept, labels, expected = adapter.supports, adapter.labels, []
    means = torch.stack([kept[labels == label].mean(0) for label in range(5)])
    for feature in observed(toy, shown).features.detach():
        support = kept[int(cosines(feature[None], kept).argmax())]
        expected.append(int(cosines(support[None], means).argmax()))
    assert got.argmax(1).tolist() == expected
    assert len(set(expected)) > 1
    assert got.isfinite().all()  # also where a probability is too small to be told from 0


def test_tast_draws_its_heads_from_its_seed(source: GeneralizeFormer, images: Tensor) -> None:
    one, same, other = (tast.build(source, tast.Config(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.step(images), same.step(images))
    assert not torch.allclose(one.predict(images), other.predict(images))


def test_tast_draws_its_heads_like_weight_matrices() -> None:
    heads = tast.Heads(800, 50, torch.Generator().manual_seed(0))
    assert heads.shared.shape == (200, 800)
    for value, width in ((heads.shared, 800), (heads.before, 800), (heads.after, 200)):
        assert value.std().item() == pytest.approx(math.sqrt(2 / width), rel=0.05)
    assert not heads.shift.any()


def test_tast_heads_scale_before_and_after_the_shared_matrix() -> None:
    heads = tast.Heads(8, 3, torch.Generator().manual_seed(0)).double()
    features = torch.randn(5, 8).double()
    got = heads(features)
    for number in range(3):
        scaled = (features * heads.before[number]) @ heads.shared.T
        assert_close(got[number], scaled * heads.after[number] + heads.shift[number])


def test_tast_uses_all_supports_where_there_are_fewer_than_asked_for(
    source: GeneralizeFormer, images: Tensor
) -> None:
    many, all_five = (
        tast.build(source, tast.Config(neighbours=k)).predict(images) for k in (50, 5)
    )
    assert torch.equal(many, all_five)  # before any data there are five, the classifier's rows


# TAST-BN


def test_tast_bn_moves_the_affine_parts_of_batch_norm_only(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tast_bn.TASTBN(source, tast_bn.Config())
    adapter.step(images)
    before = dict(backbone.named_parameters())
    moved = {n for n, v in adapter.backbone.named_parameters() if not torch.equal(v, before[n])}
    norms = ("blocks.0.1", "blocks.1.1")
    assert moved == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}


def test_tast_bn_begins_as_the_classifier_under_batch_statistics(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tast_bn.TASTBN(source, tast_bn.Config())
    expected = copy.deepcopy(backbone).train()(images).detach()
    assert_close(adapter.predict(images), expected)
    adapter.step(images)
    assert not torch.allclose(adapter.predict(images), expected)
    adapter.reset()
    assert not len(adapter.supports)
    assert_close(adapter.predict(images), expected)


def test_tast_bn_runs_a_batch_beside_what_it_keeps(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tast_bn.TASTBN(source, tast_bn.Config(learning_rate=0.0, supports=2))
    for batch in images.split(8):
        adapter.step(batch)
        together = torch.cat([batch, adapter.supports])
        assert_close(
            adapter.features.detach(), features_of(copy.deepcopy(backbone).train(), together)
        )
        assert adapter.labels.bincount().max() <= 2


def test_tast_bn_keeps_150_images_at_most(source: GeneralizeFormer) -> None:
    assert tast_bn.TASTBN(source, tast_bn.Config(supports=29)).limit == 29
    adapter = tast_bn.TASTBN(source, tast_bn.Config(supports=1000))
    for seed in range(3):
        torch.manual_seed(seed)
        adapter.step(torch.randn(90, 3, 4, 4).double() + torch.randn(90, 3, 1, 1))
    assert len(adapter.supports) <= 150
    assert adapter.labels.bincount().max() == 30


def test_tast_bn_answers_its_first_batch_before_learning(
    source: GeneralizeFormer, images: Tensor
) -> None:
    slow, fast = (tast_bn.build(source, tast_bn.Config(learning_rate=r)) for r in (1e-4, 0.1))
    assert torch.equal(slow.step(images[:8]), fast.step(images[:8]))
    assert not torch.allclose(slow.step(images[8:]), fast.step(images[8:]))


def test_tast_bn_refuses_another_size_and_changes_nothing(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = tast_bn.build(source, tast_bn.Config())
    adapter.step(images)
    before = adapter.predict(images)
    expected = (
        r"^tast_bn: got images of \(3, 8, 8\) after images of \(3, 16, 16\).*; give one size, or"
    )
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=expected):
            call(images[..., :8, :8])
    assert torch.equal(adapter.predict(images), before)
    adapter.reset()
    assert adapter.step(images[..., :8, :8]).isfinite().all()


@pytest.mark.parametrize("layer", [nn.LayerNorm(8), nn.BatchNorm1d(8, affine=False)])
def test_tast_bn_needs_an_affine_batch_norm(layer: nn.Module) -> None:
    expected = r"^tast_bn: the model has no BatchNorm layer with a scale.*; try t3a or"
    with pytest.raises(SlotError, match=expected):
        tast_bn.build(net(layer), tast_bn.Config())


def test_tast_bn_refuses_one_image_where_a_layer_sees_one_value_per_channel(
    images: Tensor,
) -> None:
    adapter = tast_bn.build(net(nn.BatchNorm1d(8)), tast_bn.Config())
    with pytest.raises(ImageError, match=r"^tast_bn: 1 image leaves .*at least 2 images"):
        adapter.step(images[:1])
    assert adapter.step(images[:2]).isfinite().all()


# AdaNPC


def test_adanpc_begins_with_the_rows_of_the_classifier(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = adanpc.AdaNPC(source, adanpc.Config(neighbours=1))
    rows = backbone.get_parameter("classifier.weight").detach()
    assert adapter.labels.tolist() == [0, 1, 2, 3, 4]
    nearest_row = cosines(features_of(backbone, images), rows).argmax(1)
    assert torch.equal(adapter.predict(images).argmax(1), nearest_row)
    assert len(nearest_row.unique()) > 1


def test_adanpc_answers_before_it_adds(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = adanpc.AdaNPC(source, adanpc.Config())
    for number, batch in enumerate(images.split(8)):
        before = adapter.predict(batch)
        assert torch.equal(adapter.step(batch), before)
        assert len(adapter.keys) == 5 + 8 * (number + 1)
        assert torch.equal(adapter.labels[-8:], before.argmax(1))
        assert not torch.allclose(adapter.predict(batch), before)
    adapter.reset()
    assert len(adapter.keys) == len(adapter.labels) == 5


@pytest.mark.parametrize("confidence", [0.75, 1.1])
def test_adanpc_adds_nothing_beyond_the_ceiling_of_its_confidence(
    confidence: float, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adanpc.AdaNPC(source, adanpc.Config(confidence=confidence, neighbours=1))
    expected = adapter.predict(images)
    assert float(expected.exp().softmax(1).max()) < math.e / (math.e + 4)
    assert torch.equal(adapter.step(images), expected)
    assert torch.equal(adapter.step(images), expected)
    assert len(adapter.keys) == 5


def test_adanpc_adds_only_the_confident(source: GeneralizeFormer, images: Tensor) -> None:
    every = adanpc.AdaNPC(source, adanpc.Config(neighbours=3))
    confidences = every.step(images).exp().softmax(1).max(1).values
    middle = float(confidences.median())
    some = adanpc.AdaNPC(source, adanpc.Config(neighbours=3, confidence=middle))
    some.step(images)
    assert torch.equal(some.keys[5:], every.keys[5:][confidences >= middle])
    assert 5 < len(some.keys) < len(every.keys)


def test_adanpc_at_a_high_temperature_counts_votes(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = adanpc.AdaNPC(source, adanpc.Config(neighbours=7, temperature=1e12))
    adapter.step(images)
    voters = cosines(features_of(backbone, images), adapter.keys).topk(7).indices
    counts = F.one_hot(adapter.labels[voters], 5).double().mean(1)
    assert_close(adapter.predict(images).exp(), (counts + 1e-5).clamp(max=1))


def test_adanpc_does_not_care_for_the_length_of_features(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = adanpc.AdaNPC(source, adanpc.Config(neighbours=4))
    adapter.step(images)
    features = features_of(backbone, images)
    assert_close(adapter._scores(7 * features), adapter._scores(features))


# Settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tast.Config(heads=0), "tast: heads is 0; give at least 1"),
        (lambda: tast.Config(supports=-1), "tast: supports is -1; give at least 1, or None to"),
        (lambda: tast.Config(neighbours=0), "tast: neighbours is 0; give at least 1"),
        (lambda: tast.Config(steps=0), "tast: steps is 0; give at least 1"),
        (lambda: tast.Config(scale=0.0), "tast: learning_rate is 0.001 and scale is 0.0; give"),
        (lambda: tast.Config(learning_rate=math.nan), "tast: learning_rate is nan and scale"),
        (lambda: tast_bn.Config(supports=0), "tast_bn: supports is 0; give at least 1"),
        (lambda: tast_bn.Config(steps=-1), "tast_bn: steps is -1; give at least 1"),
        (lambda: tast_bn.Config(learning_rate=-1.0), "tast_bn: learning_rate is -1.0 and scale"),
        (lambda: adanpc.Config(confidence=-0.1), r"adanpc: confidence is -0.1; give 0 \(add all"),
        (lambda: adanpc.Config(neighbours=0), "adanpc: neighbours is 0; give at least 1"),
        (lambda: adanpc.Config(temperature=0.0), "adanpc: temperature is 0.0; give a number above"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


def values(grid: tuple[dict[str, Any], ...], name: str) -> set[Any]:
    return {entry[name] for entry in grid}


def test_the_grids_are_the_published_ones() -> None:
    assert len(tast.GRID) == 192
    assert values(tast.GRID, "heads") == {1, 5, 10, 20}
    assert values(tast.GRID, "supports") == {1, 5, 20, 50, 100, None}
    assert len(tast_bn.GRID) == 24
    assert values(tast_bn.GRID, "supports") == {1, 5, 20}
    for grid in (tast.GRID, tast_bn.GRID):
        assert values(grid, "neighbours") == {1, 2, 4, 8}
        assert values(grid, "steps") == {1, 3}
    assert len(adanpc.GRID) == 180
    assert values(adanpc.GRID, "confidence") == {0.0, 0.25, 0.75, 1.1}
    assert values(adanpc.GRID, "neighbours") == {1, 5, 10, 25, 50, 75, 100, 150, 200}
    assert values(adanpc.GRID, "temperature") == {0.01, 0.05, 0.1, 0.25, 0.5}
