"""DA-ERM at test time: what its embedding is made of, when, and what depends on it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from generalizeformer.adapters import da_erm
from generalizeformer.core.companions.da_erm import DaErm
from generalizeformer.core.companions.da_erm import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import SlotError, UserError


def adapter_of(source: GeneralizeFormer, **settings: Any) -> da_erm.DAERM:
    return da_erm.DAERM(source, da_erm.Config(**settings))


def answered(network: DaErm, images: Tensor, embedding: Tensor) -> Tensor:
    logits: Tensor = network(images, embedding.expand(len(images), -1)).detach()
    return logits


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_a_batch_is_answered_with_the_mean_over_all_images_so_far_its_own_counted(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter, seen = adapter_of(source), 0
    embedded = adapter.network.embed(images)
    assert embedded.shape == (24, 3)  # a quarter of the features
    for batch in images.split([5, 1, 10, 8]):
        seen += len(batch)
        mean = embedded[:seen].mean(0)
        assert_close(adapter.step(batch), answered(adapter.network, batch, mean))
    # Or the embedding would not have mattered.
    assert (
        answered(adapter.network, images, embedded[0]) - adapter.predict(images)
    ).abs().max() > 1e-3


def test_only_the_first_images_are_counted_also_when_a_batch_has_more(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source, images=7)
    expected = adapter.network.embed(images[:7]).mean(0)
    adapter.step(images[:5])
    assert_close(adapter.step(images[5:]), answered(adapter.network, images[5:], expected))
    assert_close(adapter.predict(images), answered(adapter.network, images, expected))
    assert adapter.online.count == 7


def test_once_all_are_counted_images_are_answered_one_by_one_and_embedded_no_more(
    source: GeneralizeFormer, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapter_of(source, images=8)
    adapter.step(images[:8])
    monkeypatch.setattr(adapter.network, "embed", None)
    together = adapter.step(images)
    assert_close(torch.cat([adapter.step(image) for image in images.split(1)]), together)


def test_without_a_limit_all_images_count(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = adapter_of(source, images=None)
    for _ in range(20):
        adapter.step(images)
    assert adapter.online.count == 480
    expected = adapter.network.embed(images).mean(0)
    assert_close(adapter.predict(images), answered(adapter.network, images, expected))


def test_the_order_of_the_images_does_not_matter(source: GeneralizeFormer, images: Tensor) -> None:
    one, other = adapter_of(source), adapter_of(source)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    for batch in images.split(5):
        one.step(batch)
    for batch in images[order].split(7):
        other.step(batch)
    assert_close(other.predict(images), one.predict(images))


def test_answers_depend_on_the_embedding_through_its_columns_of_the_bottleneck_alone(
    source: GeneralizeFormer, images: Tensor
) -> None:
    width = source.backbone.get_submodule("classifier").in_features
    weight = source.companions["da_erm"]["bottleneck.weight"]
    assert weight.shape == (1024, width + width // 4)
    weight[:, width:] = 0
    adapter = adapter_of(source)
    expected = adapter.predict(images)
    adapter.step(50 * images)
    assert_close(adapter.predict(images), expected)


def test_a_source_s_embedding_gives_the_forward_that_was_trained(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    adapter.step(images)
    embedding = torch.rand(3).double()
    adapter.online.embedding = embedding
    network = adapter.network
    features = network.featurizer(images)
    known = torch.cat([features, embedding.repeat(24, 1)], 1)
    assert_close(adapter.predict(images), network.classifier(network.bottleneck(known).relu()))


def test_before_any_image_was_counted_predict_embeds_what_it_is_given_and_keeps_nothing(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    alone = [adapter.predict(batch) for batch in images.split(8)]
    assert adapter.online.count == 0
    for batch, expected in zip(images.split(8), alone, strict=True):
        adapter.reset()
        assert_close(adapter.step(batch), expected)


def test_networks_are_its_own_copies_and_nothing_learns(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    before = {name: value.clone() for name, value in adapter.network.state_dict().items()}
    adapter.step(images)
    after = adapter.network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    lent = {value.data_ptr() for value in source.backbone.parameters()}
    assert not lent & {value.data_ptr() for value in adapter.network.parameters()}


def test_an_untrained_network_is_always_the_same_and_takes_no_random_number(
    backbone: nn.Module,
) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one = build_network(backbone, 5).state_dict()
    assert torch.equal(torch.rand(3), expected)
    other = build_network(backbone, 5).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert isinstance(backbone.get_submodule("classifier"), nn.Linear)  # replaced in copies only


def test_a_model_that_was_not_trained_for_it_is_refused(source: GeneralizeFormer) -> None:
    source.companions.pop("da_erm")
    with pytest.raises(
        SlotError, match=r"^da_erm: this model was not trained for it; train one with"
    ):
        da_erm.build(source, da_erm.Config())


def test_a_head_for_other_classes_is_refused(backbone: nn.Module) -> None:
    with pytest.raises(
        SlotError, match=r"^da_erm: the classifier 'classifier' does not tell 9 classes"
    ):
        build_network(backbone, 9)


def test_an_embedding_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"^da_erm: images is 0; give at least 1, or None for all$"):
        da_erm.Config(images=0)
