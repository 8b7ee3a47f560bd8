"""DeYO: images with their patches shuffled, and what it learns from them."""

import math

import pytest
import torch
from filtering import assert_same_parameters, distance, net, one_sgd_step
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from generalizeformer.adapters import deyo
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.errors import ImageError


@given(
    patches=st.integers(1, 5),
    high=st.integers(5, 23),
    wide=st.integers(5, 23),
    count=st.integers(1, 4),
)
@settings(max_examples=25)
def test_shuffled_images_keep_their_shape_and_a_single_patch_its_content(
    patches: int, high: int, wide: int, count: int
) -> None:
    images = torch.rand(count, 2, high, wide).double()
    got = deyo.shuffled(images, patches, torch.Generator().manual_seed(0))
    assert got.shape == images.shape
    assert got.isfinite().all()
    if patches == 1:
        assert torch.equal(got, images)


def test_a_shuffle_moves_whole_patches_of_each_image_in_its_own_order() -> None:
    numbers = torch.arange(16).reshape(4, 4).repeat_interleave(3, 0).repeat_interleave(2, 1)
    images = numbers.expand(6, 2, 12, 8).double()
    got = deyo.shuffled(images, 4, torch.Generator().manual_seed(0))
    assert torch.equal(got[:, 0], got[:, 1])
    corners = got[:, 0, ::3, ::2]
    assert torch.equal(
        corners.repeat_interleave(3, 1).repeat_interleave(2, 2), got[:, 0]
    )  # patches are whole
    orders = corners.flatten(1)
    assert torch.equal(orders.sort(1).values, torch.arange(16.0).double().expand(6, 16))
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_a_patch_keeps_what_is_inside_it() -> None:
    images = torch.rand(1, 3, 8, 12).double()
    got = deyo.shuffled(images, 2, torch.Generator().manual_seed(1))
    tiles = {
        name: {
            tuple(x[0, :, i : i + 4, j : j + 6].flatten().tolist()) for i in (0, 4) for j in (0, 6)
        }
        for name, x in (("given", images), ("got", got))
    }
    assert tiles["given"] == tiles["got"]
    assert len(tiles["got"]) == 4


def test_deyo_learns_from_what_falls_apart_with_its_patches(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = deyo.Config(learning_rate=0.1, entropy_margin=0.5, threshold=0.01, patches=2)
    adapter = deyo.DeYO(source, config)
    adapter.step(images)
    generator = deyo.DeYO(source, config).generator

    def loss(network: nn.Module, logits: Tensor) -> Tensor:
        p, total, count = logits.softmax(1), torch.zeros(()).double(), 0
        sure = [n for n, h in enumerate(per_image_entropy(logits)) if h < 0.5 * math.log(5)]
        destroyed = network(deyo.shuffled(images[sure], 2, generator)).softmax(1)
        for row, number in enumerate(sure):
            label = int(p[number].argmax())
            fall = (p[number, label] - destroyed[row, label]).item()
            if fall > 0.01:
                h = per_image_entropy(logits[number : number + 1])[0]
                total = total + h * (math.exp(0.4 * math.log(5) - h.item()) + math.exp(fall))
                count += 1
        assert 0 < count < len(sure) < len(images)
        return total / count

    assert_same_parameters(adapter, one_sgd_step(backbone, images, loss, 0.1))


def test_deyo_moves_nothing_where_no_answer_falls(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = deyo.DeYO(source, deyo.Config(learning_rate=1.0, entropy_margin=1.0, threshold=1.0))
    adapter.step(images)
    assert distance(adapter, backbone) == 0


def test_deyo_shuffles_by_its_seed(source: GeneralizeFormer, images: Tensor) -> None:
    answers = []
    for seed in (1, 1, 2):
        config = deyo.Config(learning_rate=0.5, entropy_margin=1.0, threshold=0.0, seed=seed)
        adapter = deyo.build(source, config)
        adapter.step(images)
        answers.append(adapter.predict(images))
    assert torch.equal(answers[0], answers[1])
    assert not torch.allclose(answers[0], answers[2])


def one_sure(images: Tensor, adapter: deyo.DeYO) -> float:
    """The entropy below which one image of the batch is."""
    first, second, *_ = per_image_entropy(adapter.predict(images)).sort().values.tolist()
    return float(first + second) / 2


def test_deyo_says_that_a_single_sure_image_is_what_it_refuses(images: Tensor) -> None:
    model = net(nn.BatchNorm1d(8))
    margin = one_sure(images, deyo.DeYO(model, deyo.Config())) / math.log(5)
    adapter = deyo.DeYO(model, deyo.Config(entropy_margin=margin))
    expected = (
        rf"^deyo: 1 of 24 images was sure, .*; raise entropy_margin, which is {margin} \(1 takes "
        r".*\), give larger batches, or use a model without such a layer$"
    )
    for _ in range(2):  # the first call has not changed the second's
        drawn = adapter.generator.get_state()
        with pytest.raises(ImageError, match=expected):
            adapter.step(images)
        assert torch.equal(adapter.generator.get_state(), drawn)


def test_a_batch_that_deyo_refuses_teaches_nothing_even_if_an_earlier_step_on_it_could_learn(
    images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = deyo.Config(learning_rate=0.1, entropy_margin=1.0, threshold=-1.0, steps=2)
    used, fresh = (deyo.DeYO(net(nn.BatchNorm1d(8)), config) for _ in range(2))
    for adapter in (used, fresh):
        adapter.step(images[:12])
    learned = []

    def narrowing(batch: Tensor) -> Tensor:
        logits = deyo.DeYO.update(used, batch)
        learned.append(not torch.equal(used.predict(images), fresh.predict(images)))
        used.margin = one_sure(batch, used)
        return logits

    monkeypatch.setattr(used, "update", narrowing)
    with pytest.raises(ImageError, match="1 of 24 images was sure"):
        used.step(images)
    monkeypatch.undo()
    assert learned == [True]
    used.margin = fresh.margin
    assert torch.equal(used.predict(images), fresh.predict(images))
    assert torch.equal(used.step(images), fresh.step(images))
    assert torch.equal(used.predict(images), fresh.predict(images))


def test_deyo_refuses_images_smaller_than_its_patches(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = deyo.build(source, deyo.Config(patches=9))
    expected = r"^deyo: got images of 16x8 pixels, too small for 9 patches a side; give larger"
    with pytest.raises(ImageError, match=expected):
        adapter.step(images[..., :8])
