"""What different methods must agree on. Most mistakes in a method break one of these."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from generalizeformer import catalog
from generalizeformer.adapters import (
    adanpc,
    alpha_bn,
    batchnorm,
    cotta,
    domainadaptor,
    eata,
    eta,
    memo,
    pl,
    pl_c,
    rotta,
    sar,
    shot,
    shot_im,
    t3a,
    tent,
    tent_c,
)
from generalizeformer.adapters._objectives import mean_entropy
from generalizeformer.adapters._protocol import Adapter, GroupedAdapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.normalisers import is_norm

CATALOGUE = "generalizeformer.adapters"
NAMES = catalog.names(CATALOGUE)
BY_IMAGE = ["source", "mirror", "metanorm", "single_sample", "memo"]


def build(method: str, source: GeneralizeFormer, config: Any = None) -> Adapter:
    module = catalog.load(CATALOGUE, method)
    adapter: Adapter = module.build(source, config or module.Config())
    return adapter


def replay(adapter: Adapter, images: Tensor) -> Tensor:
    return torch.cat([adapter.step(batch) for batch in images.split(8)])


def plain(source: GeneralizeFormer, images: Tensor) -> Tensor:
    with torch.no_grad():
        answers: Tensor = source.backbone.eval()(images)
    return answers


SOURCE = [
    ("alpha_bn", alpha_bn.Config(batch_weight=0.0)),
    ("batchnorm", batchnorm.Config(prior=1e14)),
    ("tent_c", tent_c.Config(learning_rate=0.0, steps=3)),
    ("pl", pl.Config(threshold=1.0, steps=3)),
    ("pl", pl.Config(learning_rate=0.0, threshold=0.0)),
    ("pl_c", pl_c.Config(threshold=1.0)),
    ("shot", shot.Config(learning_rate=0.0, threshold=0.0)),
    ("shot_im", shot_im.Config(learning_rate=0.0)),
    ("memo", memo.Config(learning_rate=0.0, prior=None, views=2)),
    ("memo", memo.Config(learning_rate=0.0, prior=1e14, views=2)),
    ("domainadaptor", domainadaptor.Config(learning_rate=0.0, source_weight=1.0)),
]


@pytest.mark.parametrize(("method", "config"), SOURCE, ids=lambda value: str(value)[:40])
def test_methods_that_may_do_nothing_are_the_source_model(
    method: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    got = replay(build(method, source, config), images)
    torch.testing.assert_close(got, plain(source, images), rtol=0, atol=1e-8)


BATCH = [
    ("tent", tent.Config(learning_rate=0.0)),
    ("tent", tent.Config(learning_rate=0.0, steps=3, episodic=True)),
    ("eta", eta.Config(learning_rate=0.0)),
    ("eata", eata.Config(learning_rate=0.0)),
    ("sar", sar.Config(learning_rate=0.0)),
    ("cotta", cotta.Config(learning_rate=0.0, restore_chance=0.0, confidence=0.0)),
]


@pytest.mark.parametrize(("method", "config"), BATCH, ids=lambda value: str(value)[:40])
def test_methods_on_the_batch_s_statistics_that_learn_nothing_are_bn_adapt(
    method: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    expected = replay(build("batchnorm", source), images)
    got = replay(build(method, source, config), images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)
    assert (expected - plain(source, images)).abs().max() > 0.1


def test_alpha_bn_all_the_way_is_bn_adapt_but_for_the_unbiased_variance(
    source: GeneralizeFormer, images: Tensor
) -> None:
    """n / (n - 1), which is little for large feature maps and must be something."""
    everything = alpha_bn.Config(batch_weight=1.0)
    difference = replay(build("alpha_bn", source, everything), images) - replay(
        build("batchnorm", source), images
    )
    assert 1e-6 < difference.abs().max() < 0.2


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9])
def test_domainadaptor_with_a_fixed_weight_and_no_learning_is_alpha_bn(
    weight: float, source: GeneralizeFormer, images: Tensor
) -> None:
    fixed = domainadaptor.Config(learning_rate=0.0, source_weight=weight)
    got = replay(build("domainadaptor", source, fixed), images)
    mixed = alpha_bn.Config(batch_weight=1 - weight)
    expected = replay(build("alpha_bn", source, mixed), images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


def test_memo_of_one_plain_view_follows_the_entropy_as_tent_would_by_plain_descent(
    source: GeneralizeFormer, images: Tensor
) -> None:
    """Under the source's statistics for both; MEMO moves all parameters, of which Tent has the norm layers' affine."""
    image, rate = images[:1], 1e-2
    config = memo.Config(learning_rate=rate, prior=None)
    method = memo.MEMO(source, config, views=lambda image: iter([image]))
    learned = method.adapted(method.copied(), image)
    tent_like = copy.deepcopy(source.backbone).eval().requires_grad_(True)
    moving = [p for m in tent_like.modules() if is_norm(m) for p in m.parameters()]
    mean_entropy(tent_like(image)).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(moving, rate).step()
    for name, module in tent_like.named_modules():
        if is_norm(module):
            for part, expected in module.named_parameters():
                got = learned[f"backbone.{name}.{part}"]
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
                before = source.backbone.get_parameter(f"{name}.{part}")
                assert not torch.equal(got, before)


def test_shot_without_pseudo_labels_is_shot_im(source: GeneralizeFormer, images: Tensor) -> None:
    settings: dict[str, Any] = {"learning_rate": 1e-2, "steps": 2}
    without = shot.Config(label_weight=0.0, **settings)
    got = replay(build("shot", source, without), images)
    expected = replay(build("shot_im", source, shot_im.Config(**settings)), images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)
    assert (got - plain(source, images)).abs().max() > 1e-3


def test_eata_without_memory_of_the_source_is_eta(source: GeneralizeFormer, images: Tensor) -> None:
    settings: dict[str, Any] = {"learning_rate": 1e-2, "entropy_margin": 1.0}
    got = replay(build("eata", source, eata.Config(fisher_alpha=0.0, **settings)), images)
    expected = replay(build("eta", source, eta.Config(**settings)), images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


def test_t3a_before_the_first_image_answers_like_rows_of_one_length_without_bias(
    source: GeneralizeFormer, images: Tensor
) -> None:
    classifier = source.backbone.get_submodule(source.slots.classifier)
    assert isinstance(classifier, nn.Linear)
    with torch.no_grad():
        classifier.weight.copy_(nn.functional.normalize(classifier.weight, dim=1))
        classifier.bias.zero_()
    got = build("t3a", source, t3a.Config()).predict(images)
    assert torch.equal(got.argmax(1), plain(source, images).argmax(1))


def test_t3a_before_the_first_image_knows_neither_the_lengths_of_rows_nor_the_bias(
    source: GeneralizeFormer, images: Tensor
) -> None:
    """As long as every row is itself taken for its own class."""
    classifier = source.backbone.get_submodule(source.slots.classifier)
    assert isinstance(classifier, nn.Linear)
    with torch.no_grad():
        classifier.weight.mul_(torch.tensor([0.8, 1, 1.3, 0.7, 1.2]).double().unsqueeze(1))
        classifier.bias.copy_(torch.tensor([0.3, -0.1, 0, 0.2, -0.2]))
    lengths = classifier.weight.detach().norm(dim=1)
    expected = (plain(source, images) - classifier.bias.detach()) / lengths
    got = build("t3a", source, t3a.Config()).predict(images)
    assert torch.equal(got.argmax(1), expected.argmax(1))
    assert not torch.equal(got.argmax(1), plain(source, images).argmax(1))


def test_t3a_without_bias_and_filter_does_not_know_the_scale_of_features(
    source: GeneralizeFormer, images: Tensor
) -> None:
    """Longer features are surer, but votes count alike and templates are directions."""
    classifier = source.backbone.get_submodule(source.slots.classifier)
    assert isinstance(classifier, nn.Linear)
    with torch.no_grad():
        classifier.bias.zero_()
    everything = t3a.Config(supports=None)
    before = replay(build("t3a", source, everything), images)
    last = [m for m in source.backbone.modules() if isinstance(m, nn.BatchNorm2d)][-1]
    with torch.no_grad():  # ReLU and the mean over places keep a common factor
        last.weight.mul_(3)
        last.bias.mul_(3)
    after = replay(build("t3a", source, everything), images)
    assert torch.equal(after.argmax(1), before.argmax(1))
    torch.testing.assert_close(after, 3 * before)


@pytest.mark.parametrize("method", ["t3a", "tast", "adanpc"])
def test_those_with_a_memory_predict_without_seeing_who_else_is_in_the_batch(
    method: str, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(method, source)
    replay(adapter, images)
    alone = torch.cat([adapter.predict(image[None]) for image in images[:6]])
    torch.testing.assert_close(adapter.predict(images[:6]), alone, rtol=0, atol=1e-8)


def test_adanpc_that_trusts_nobody_keeps_no_state(source: GeneralizeFormer, images: Tensor) -> None:
    careful = adanpc.Config(confidence=1.0)
    adapter = build("adanpc", source, careful)
    before = adapter.predict(images)
    replay(adapter, images)
    assert torch.equal(adapter.predict(images), before)


@pytest.mark.parametrize("method", NAMES)
def test_after_a_reset_a_stream_is_answered_as_by_a_new_object(
    method: str, source: GeneralizeFormer, images: Tensor
) -> None:
    used = build(method, source)
    replay(used, images.flip(0))
    used.reset()
    assert torch.equal(replay(used, images), replay(build(method, source), images))


EAGER: dict[str, Any] = {"learning_rate": 1e-2}
LEARNING = [
    ("tent_c", tent_c.Config(**EAGER)),
    ("pl", pl.Config(threshold=0.2, **EAGER)),
    ("pl_c", pl_c.Config(threshold=0.2, **EAGER)),
    ("shot", shot.Config(threshold=0.2, **EAGER)),
    ("shot_im", shot_im.Config(**EAGER)),
    ("rotta", rotta.Config(update_every=6, memory_size=10)),
]


@pytest.mark.parametrize(("method", "config"), LEARNING, ids=[name for name, _ in LEARNING])
def test_those_under_the_source_s_statistics_are_the_source_again_after_a_reset(
    method: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    """Bit for bit, and also in the first step, whose answer comes before its update."""
    adapter, expected = build(method, source, config), build("source", source).predict(images)
    replay(adapter, images)
    assert not torch.allclose(adapter.predict(images), expected, rtol=0, atol=1e-3)
    adapter.reset()
    assert torch.equal(adapter.predict(images), expected)
    assert torch.equal(adapter.step(images), expected)


@pytest.mark.parametrize("method", NAMES)
def test_methods_without_state_do_not_remember_earlier_batches(
    method: str, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(method, source)
    if not isinstance(adapter, GroupedAdapter):
        pytest.skip("keeps state")
    fresh = adapter.step(images[:8])
    replay(adapter, images.flip(0))
    assert torch.equal(adapter.step(images[:8]), fresh)


@pytest.mark.parametrize("method", BY_IMAGE)
def test_methods_for_single_images_do_not_see_who_else_is_in_the_batch(
    method: str, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(method, source)
    alone = torch.cat([adapter.step(image[None]) for image in images[:6]])
    torch.testing.assert_close(adapter.step(images[:6]), alone, rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", ["tent", "tent_c", "pl", "pl_c", "shot", "shot_im", "eta"])
def test_those_that_answer_before_they_learn_answer_the_first_batch_at_any_rate(
    method: str, source: GeneralizeFormer, images: Tensor
) -> None:
    kind = catalog.load(CATALOGUE, method).Config
    slow, fast = (build(method, source, kind(learning_rate=rate)) for rate in (1e-6, 1.0))
    torch.testing.assert_close(slow.step(images[:8]), fast.step(images[:8]), rtol=0, atol=1e-10)
