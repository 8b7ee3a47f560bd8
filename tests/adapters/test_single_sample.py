"""Single-sample generalization: classifiers written for each image from class centres and its descriptor."""

import copy
from typing import Any

import pytest
import torch
from recordings import toy_network
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import resnet18

from generalizeformer.adapters import single_sample
from generalizeformer.core.companions.single_sample import answers, between_stages, build
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import SlotError


@pytest.fixture
def written_for(toy: GeneralizeFormer) -> Any:
    """An untrained network, whose centres differ."""
    network = build(toy.backbone, 5).eval()
    torch.manual_seed(6)
    network.centres.copy_(torch.randn_like(network.centres))
    return network


# The network


def test_the_descriptor_of_a_resnet_is_the_published_one() -> None:
    torch.manual_seed(0)
    backbone = resnet18(num_classes=7).eval()
    assert sum(between_stages(backbone).values()) + 512 == 960
    network, images = build(backbone, 7).eval(), torch.randn(2, 3, 64, 64)
    given: list[Tensor] = []
    network.describe.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    features, _ = network.observe(images)
    x = backbone.maxpool(backbone.relu(backbone.bn1(backbone.conv1(images))))
    means = []
    for stage in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4):
        x = stage(x)
        means.append(x.mean((2, 3)))
    assert_close(given[0], torch.cat(means, 1))
    assert_close(features, means[-1])


def test_stages_without_norm_layers_of_their_own_are_found_by_their_convolutions() -> None:
    assert between_stages(toy_network()) == {"conv2": 8, "conv3": 16}
    assert between_stages(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))) == {}


def test_rows_are_written_from_descriptor_and_centres(written_for: Any, images: Tensor) -> None:
    features, descriptors = written_for.observe(images)
    logits = written_for(images)
    for image in (0, 7):
        for label in range(5):
            known = written_for.sources(written_for.centres[label])[0]
            joined = written_for.join(torch.cat([descriptors[image], known]))
            row = written_for.rows(joined)[0]
            assert_close(logits[image, label], row @ features[image])


def test_written_rows_are_the_mean_over_what_is_known(written_for: Any, images: Tensor) -> None:
    _, descriptors = written_for.observe(images)
    known = torch.randn(4, 5, 32).double()
    got = written_for.written(descriptors, known)
    each = [written_for.written(descriptors, draw.unsqueeze(0)) for draw in known]
    assert_close(got.mean, torch.stack([one.mean for one in each]).mean(0))
    # Spreads are averaged before the softplus.
    spreads = torch.stack([one.variance.sqrt().expm1().log() for one in each]).mean(0)
    assert_close(got.variance, nn.functional.softplus(spreads).square())


def test_without_spread_the_logits_of_training_are_those_of_the_test(
    written_for: Any, images: Tensor
) -> None:
    with torch.no_grad():
        for writer in (written_for.sources, written_for.rows):
            writer.spread.weight.zero_()
            writer.spread.bias.fill_(-40)
    noise = torch.Generator().manual_seed(0)
    features, descriptors = written_for.observe(images)
    known = written_for.known(written_for.centres, 3, noise)
    drawn = answers(features, written_for.written(descriptors, known).sample(4, noise))
    assert drawn.shape == (4, len(images), 5)
    assert_close(drawn, written_for(images).expand(4, -1, -1))


def test_draws_have_the_mean_and_spread_they_should(written_for: Any) -> None:
    known = written_for.known(written_for.centres, 4000, torch.Generator().manual_seed(0))
    mean, spread = written_for.sources(written_for.centres)
    spread = nn.functional.softplus(spread)
    assert_close(known.mean(0) / spread, mean / spread, rtol=0, atol=0.1)
    assert_close(known.std(0) / spread, torch.ones_like(spread), rtol=0, atol=0.1)


def test_building_leaves_the_backbone_and_the_caller_s_random_numbers_alone() -> None:
    backbone = toy_network()
    before = copy.deepcopy(backbone.state_dict())
    torch.manual_seed(9)
    network = build(backbone, 5)
    drawn = torch.rand(3)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(3), drawn)
    again = build(backbone, 5).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in network.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


# The adapter


def test_an_image_is_answered_alike_alone_and_in_company(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = single_sample.build(source, single_sample.Config())
    together = adapter.predict(images)
    alone = torch.cat([adapter.predict(image) for image in images.split(1)])
    assert_close(alone, together, rtol=0, atol=1e-10)
    assert together.std(1).min() > 1e-6  # classes have rows of their own


def test_images_have_rows_of_their_own(source: GeneralizeFormer, images: Tensor) -> None:
    """No fixed rows give these answers: more images than features would have to agree."""
    one = single_sample.build(source, single_sample.Config()).predict(images)
    common = single_sample.build(source, single_sample.Config(shared=True)).predict(images)
    assert (one - common).abs().max() > 1e-6


def test_a_shared_descriptor_is_the_group_s_mean_and_no_other_s(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = single_sample.build(source, single_sample.Config(shared=True))
    single = single_sample.build(source, single_sample.Config())
    assert_close(adapter.predict(images[:1]), single.predict(images[:1]))
    groups = torch.arange(24) % 3
    got = adapter.predict_groups(images, groups)
    for group in range(3):
        assert_close(got[groups == group], adapter.predict(images[groups == group]))


def test_logits_have_the_type_of_the_images(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    expected = single_sample.build(source, single_sample.Config()).predict(images)
    backbone.bfloat16()
    got = single_sample.build(source, single_sample.Config()).predict(images.bfloat16())
    assert got.dtype == torch.bfloat16
    assert (got.double() - expected).abs().mean() < 0.1 * expected.abs().mean()


def test_class_centres_decide(source: GeneralizeFormer, images: Tensor) -> None:
    before = single_sample.build(source, single_sample.Config()).predict(images)
    source.companions["single_sample"]["centres"] = source.companions["single_sample"][
        "centres"
    ].flip(0)
    after = single_sample.build(source, single_sample.Config()).predict(images)
    assert_close(after, before.flip(1))


def test_a_model_that_was_not_trained_for_it_is_refused(backbone: nn.Module) -> None:
    expected = "^single_sample: this model was not trained for it; train one with .*--also single"
    with pytest.raises(SlotError, match=expected):
        single_sample.build(GeneralizeFormer(backbone), single_sample.Config())


def test_a_layer_that_is_not_the_classifier_is_refused() -> None:
    with pytest.raises(SlotError, match=r"^single_sample: fc gives 5 numbers for 4 classes.*name"):
        build(toy_network(), 4)


def test_a_convolution_that_never_runs_is_named(images: Tensor) -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.idle = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
            self.fc = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.first(x).mean((2, 3)))

    with pytest.raises(SlotError, match=r"^single_sample: the model's forward never calls idle,"):
        build(Idle().double(), 5)(images)
