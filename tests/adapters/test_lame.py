"""LAME: what was recorded, what its answers minimise, and the odd batches."""

from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn

from generalizeformer.adapters import lame
from generalizeformer.adapters.lame import Config
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import UserError

KINDS: list[Any] = ["rbf", "knn", "linear"]
VARIANTS = {
    "rbf": Config(),
    "knn": Config(affinity="knn"),
    "knn_symmetric": Config(affinity="knn", neighbours=3, symmetric=True),
    "linear": Config(affinity="linear"),
    "knn_bs1": Config(affinity="knn"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_probabilities_are_the_recorded_ones(toy: GeneralizeFormer, variant: str) -> None:
    adapter = lame.build(toy, VARIANTS[variant])
    got = torch.stack([adapter.step(batch) for batch in stream_of(variant)])
    assert_agree(got.softmax(-1), recorded("lame")[f"{variant}/probs"])


@pytest.mark.parametrize("variant", ["rbf", "knn"])
def test_the_whole_stream_is_answered_in_one_call(toy: GeneralizeFormer, variant: str) -> None:
    adapter, stream = lame.build(toy, VARIANTS[variant]), stream_of(variant)
    groups = torch.arange(len(stream)).repeat_interleave(stream.shape[1])
    got = adapter.predict_groups(stream.flatten(0, 1), groups)
    assert_agree(got.softmax(-1), recorded("lame")[f"{variant}/probs"].flatten(0, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_logarithms_of_probabilities(
    kind: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    logits = lame.build(source, Config(affinity=kind)).step(images)
    torch.testing.assert_close(logits.exp().sum(1), torch.ones(24).double())


def energy(log_y: Tensor, log_p: Tensor, weights: Tensor) -> Tensor:
    """What the paper minimises: divergence from the source less what equal assignments of neighbours earn."""
    y = log_y.exp()
    return (y * (log_y - log_p)).sum() - 0.5 * (y * (weights @ y)).sum()


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(0, 10**6), st.sampled_from(["rbf", "linear"]))
def test_answers_stand_still_and_have_less_energy_than_the_source(
    count: int, seed: int, kind: Any
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, features = (
        torch.randn(count, width, generator=generator, dtype=torch.float64) for width in (5, 7)
    )
    config, log_p = Config(affinity=kind, steps=1000), logits.log_softmax(1)
    features = features.abs() / features.norm(dim=1, keepdim=True)
    weights = lame.affinity(features, config)
    log_y = lame.refined(log_p, weights, config)
    assert energy(log_y, log_p, weights) <= energy(log_p, log_p, weights) + 1e-9
    again = (log_p + weights @ log_y.exp()).log_softmax(1)
    torch.testing.assert_close(again.exp(), log_y.exp(), rtol=0, atol=1e-2)


def test_images_that_are_alike_are_answered_alike(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = lame.build(source, Config(affinity="knn", neighbours=3))
    batch = images[:2].repeat_interleave(4, 0)
    logits = adapter.step(batch)
    assert torch.equal(logits.argmax(1), logits.argmax(1)[[0, 4]].repeat_interleave(4))
    source_answers = source.backbone(images[:2]).argmax(1)
    assert torch.equal(logits.argmax(1)[[0, 4]], source_answers)


def test_neighbours_never_include_the_image_itself(images: Tensor) -> None:
    equal = torch.ones(6, 4).double() / 2
    weights = lame.affinity(equal, Config(affinity="knn", neighbours=2))
    assert torch.equal(weights.sum(1), torch.full((6,), 2.0).double())
    assert torch.equal(weights.diagonal(), torch.zeros(6).double())


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_image_keeps_its_class(
    kind: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = lame.build(source, Config(affinity=kind))
    for image in images.split(1):
        logits = adapter.step(image)
        assert logits.isfinite().all()
        assert torch.equal(logits.argmax(1), backbone(image).argmax(1))


def test_a_single_image_without_neighbours_is_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    got = lame.build(source, Config(affinity="knn")).step(images[:1])
    torch.testing.assert_close(got.softmax(1), backbone(images[:1]).detach().softmax(1))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_images_are_finite(kind: Any, source: GeneralizeFormer, images: Tensor) -> None:
    batch = images[:1].expand(6, -1, -1, -1)
    assert lame.build(source, Config(affinity=kind)).step(batch).isfinite().all()


def test_answers_depend_on_batch_mates(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = lame.build(source, Config())
    assert (adapter.predict(images)[:4] - adapter.predict(images[:4])).abs().max() > 1e-3


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 24), st.sampled_from(KINDS), st.integers(2, 40))
def test_more_neighbours_than_images_are_all_of_them(
    source: GeneralizeFormer, images: Tensor, count: int, kind: Any, neighbours: int
) -> None:
    got = lame.build(source, Config(affinity=kind, neighbours=neighbours)).step(images[:count])
    assert got.isfinite().all()
    if neighbours > count:
        every = lame.build(source, Config(affinity=kind, neighbours=count + 1))
        assert torch.equal(got, every.step(images[:count]))


def test_half_precision_does_not_reach_the_logarithm(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    with torch.no_grad():
        backbone.classifier.weight.mul_(100)  # probabilities of 0 in half precision
    backbone.bfloat16()
    got = lame.build(source, Config()).step(images.bfloat16())
    assert got.dtype == torch.bfloat16
    assert got.isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Config(neighbours=1),
            "lame: neighbours is 1; give at least 2 for 'rbf', which counts the image itself",
        ),
        (
            lambda: Config(affinity="knn", neighbours=0),
            "lame: neighbours is 0; give at least 1 for 'knn'$",
        ),
        (lambda: Config(steps=0), "lame: steps is 0; give at least 1"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


def test_an_affinity_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    expected = r"^lame: affinity is 'cosine'; choose one of: rbf, knn, linear$"
    with pytest.raises(UserError, match=expected):
        Config(affinity="cosine")  # type: ignore[arg-type]


def test_the_grid_is_the_published_one() -> None:
    tried = {(entry["affinity"], entry["neighbours"]) for entry in lame.GRID}
    # rbf with 1 has no width, and linear has no neighbours to vary
    assert tried == {("rbf", 3), ("rbf", 5), ("knn", 1), ("knn", 3), ("knn", 5), ("linear", 5)}
