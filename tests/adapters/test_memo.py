"""MEMO: what was recorded with stored views, what its own views are, and that nothing survives an image."""

import itertools
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn

from generalizeformer.adapters import memo
from generalizeformer.adapters.memo import MEMO, Config
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config as ModelConfig
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, UserError

ADAMW = Config(learning_rate=1e-3, optimizer="adamw", weight_decay=0.01)
SGD = {
    "sgd_prior16": Config(),
    "sgd_prior16_lr0.01": Config(learning_rate=0.01),
    "sgd_source_stats": Config(learning_rate=0.01, prior=None),
    "sgd_prior16_niter2": Config(learning_rate=0.01, steps=2),
}


def assert_close(got: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def with_stored_views(toy: GeneralizeFormer, config: Config) -> MEMO:
    """MEMO that finds the recorded views of the recorded images, the same for every update."""
    stream, stored = stream_of("bs1"), recorded("memo")["views"]

    def views(image: Tensor) -> Iterator[Tensor]:
        (number,) = [n for n, known in enumerate(stream) if torch.equal(known, image)]
        return itertools.repeat(stored[number])

    return MEMO(toy, config, views=views)


def unchanged(image: Tensor) -> Iterator[Tensor]:
    return itertools.repeat(image)


def recorded_names(params: Params) -> Params:
    """As the recorded network calls them: without our wrappers."""
    return {n.removeprefix("backbone.").replace(".layer", ""): v for n, v in params.items()}


@pytest.mark.parametrize("variant", SGD)
def test_answers_are_the_recorded_ones(toy: GeneralizeFormer, variant: str) -> None:
    adapter = with_stored_views(toy, SGD[variant])
    got = torch.stack([adapter(image, None) for image in stream_of("bs1")])
    assert_agree(got, recorded("memo")[f"{variant}/logits"])


def test_a_batch_is_answered_image_by_image(toy: GeneralizeFormer) -> None:
    adapter = with_stored_views(toy, SGD["sgd_prior16_lr0.01"])
    got = adapter(stream_of("bs1").flatten(0, 1), None)
    assert_agree(got, recorded("memo")["sgd_prior16_lr0.01/logits"].flatten(0, 1))


@pytest.mark.parametrize(("variant", "config"), [*list(SGD.items())[-1:], ("adamw_prior16", ADAMW)])
def test_all_weights_move_as_recorded(toy: GeneralizeFormer, variant: str, config: Config) -> None:
    trace, image = recorded("memo"), stream_of("bs1")[0]
    method = with_stored_views(toy, config)
    values = recorded_names(method.adapted(method.copied(), image))
    kept = {name for name in values if name != "conv3.weight"}  # the largest was not copied
    assert {key.split("/")[-1] for key in trace if key.startswith(f"{variant}/adapted")} == kept
    for name in kept:
        assert_agree(values[name], trace[f"{variant}/adapted/{name}"])


def test_adamw_agrees_on_the_first_image_only_because_the_recorded_moments_leak(
    toy: GeneralizeFormer,
) -> None:
    adapter, expected = with_stored_views(toy, ADAMW), recorded("memo")["adamw_prior16/logits"]
    got = torch.stack([adapter(image, None) for image in stream_of("bs1")])
    assert_agree(got[0], expected[0])
    assert (got[1:] - expected[1:]).abs().amax((1, 2)).min() > 1e-2


def test_adamw_begins_anew_with_every_image(toy: GeneralizeFormer) -> None:
    stream, adapter = stream_of("bs1"), with_stored_views(toy, ADAMW)
    expected = [with_stored_views(toy, ADAMW)(image, None) for image in stream]
    assert torch.equal(torch.stack([adapter(i, None) for i in stream]), torch.stack(expected))


def test_without_learning_and_with_source_statistics_it_is_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    for prior in (None, 1e15):
        config = Config(learning_rate=0.0, prior=prior, views=2)
        assert_close(memo.build(source, config).step(images), backbone(images).detach())


def test_one_view_without_change_is_a_step_of_entropy(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = MEMO(source, Config(learning_rate=0.1, prior=None), views=unchanged)
    adapted = adapter.adapted(adapter.copied(), images[:1])
    loss = per_image_entropy(backbone(images[:1])).sum()
    for (name, value), slope in zip(
        backbone.named_parameters(),
        torch.autograd.grad(loss, list(backbone.parameters())),
        strict=True,
    ):
        assert_close(adapted[f"backbone.{name}"].detach(), (value - 0.1 * slope).detach())


def test_views_become_surer(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = MEMO(source, Config(learning_rate=0.01, prior=None), views=unchanged)
    before = per_image_entropy(source.backbone(images)).detach()
    after = per_image_entropy(adapter(images, None))
    assert (after < before).all()


def test_answers_do_not_depend_on_batch_mates_or_order(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = memo.build(source, Config(views=4, learning_rate=0.01))
    alone = torch.cat([adapter.step(image) for image in images[:6].split(1)])
    assert_close(adapter.step(images[:6]), alone)
    assert_close(adapter.step(images[:6].flip(0)).flip(0), alone)
    groups = torch.tensor([3, 3, 1, 1, 1, 3])
    assert_close(adapter.predict_groups(images[:6], groups), alone)


def views_of(image: Tensor, seed: int = 0, count: int = 6) -> Iterator[Tensor]:
    return memo.augmix_views(image, preprocessing=Preprocessing(), count=count, seed=seed)


def test_views_follow_the_seed_and_the_image(images: Tensor) -> None:
    first, second = itertools.islice(views_of(images[:1]), 2)
    assert torch.equal(first, next(views_of(images[:1])))
    assert not torch.equal(first, second)  # another update, other views
    assert not torch.equal(first, next(views_of(images[:1], seed=1)))
    assert first.shape == (6, 3, 16, 16)
    assert first.dtype == images.dtype


def test_every_image_has_draws_of_its_own(images: Tensor) -> None:
    other = images[:1].clone()
    other[0, 0, 0, 0] = (
        1 - other[0, 0, 0, 0].sign()
    )  # with the same draws, hardly a pixel would tell
    difference = next(views_of(images[:1])) - next(views_of(other))
    assert (difference.abs() > 0.05).double().mean() > 0.5


def to_levels(views: Tensor) -> Tensor:
    """What the standardised pixels are from 0 to 255."""
    prepare = Preprocessing()
    mean, std = (torch.tensor(v)[:, None, None] for v in (prepare.mean, prepare.std))
    return (views * std + mean) * 255


def test_views_are_in_the_units_of_the_image() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(40, 60, (1, 3, 16, 16), dtype=torch.uint8, generator=generator)
    levels = to_levels(next(views_of(Preprocessing(size=16)(pixels), count=32)))
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)
    assert 30 < levels.median() < 70  # most changes leave most pixels near where they were


def test_a_black_image_has_black_views() -> None:
    black = Preprocessing(size=16)(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
    views = next(views_of(black, count=16))
    torch.testing.assert_close(views, black.expand_as(views), rtol=0, atol=1e-5)


def test_pixels_beyond_an_image_are_cut(images: Tensor) -> None:
    levels = to_levels(next(views_of(1000 * images[:1])))
    assert levels.min() > -0.01
    assert levels.max() < 255.01


def net(*last: nn.Module, channels: int = 3, card: Card | None = None) -> GeneralizeFormer:
    torch.manual_seed(4)
    backbone = nn.Sequential(
        nn.Conv2d(channels, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *last,
        nn.Linear(8, 5),
    ).double()
    selection = ModelConfig(selection=Selection(kinds=("classifier",)))
    return GeneralizeFormer(backbone, selection, card)


def test_a_model_without_batch_norm_is_served(images: Tensor) -> None:
    model = net()
    adapter = memo.build(model, Config(learning_rate=0.1, views=4))
    got, before = adapter.step(images[:2]), model.backbone(images[:2]).detach()
    assert (got - before).abs().max() > 1e-4


def test_one_value_per_channel_needs_the_source_statistics(images: Tensor) -> None:
    model = net(nn.BatchNorm1d(8))
    with pytest.raises(ImageError, match=r"^memo: 4 sees one value .*; keep .* with prior=None$"):
        memo.build(model, Config(views=2)).step(images)
    assert memo.build(model, Config(views=2, prior=None)).step(images[:2]).isfinite().all()


def test_a_card_for_other_channels_is_refused(images: Tensor) -> None:
    with pytest.raises(ImageError, match=r"^memo: got images of 1 channels .* how 3 are .*; give"):
        memo.build(net(channels=1), Config()).step(images[:, :1])
    card = Card(preprocessing=Preprocessing(mean=(0.5,), std=(0.5,)))
    adapter = memo.build(net(channels=1, card=card), Config(views=2))
    assert adapter.step(images[:2, :1]).isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(learning_rate=-1.0), "memo: learning_rate is -1.0; give a number of at"),
        (lambda: Config(weight_decay=-1.0), "memo: weight_decay is -1.0; give a number of at"),
        (lambda: Config(steps=0), "memo: steps is 0; give at least 1"),
        (lambda: Config(views=0), "memo: views is 0; give at least 1"),
        (lambda: Config(prior=-1.0), "memo: prior is -1.0; give a number of images.* or None"),
        (lambda: Config(prior=float("nan")), "memo: prior is nan"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


def test_it_says_that_a_prior_needs_more_than_one_value() -> None:
    assert memo.ABOUT.needs.endswith("with a prior, more than one value per channel and image")


def test_an_optimiser_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises(UserError, match=r"^memo: optimizer is 'adam'; give 'sgd' or 'adamw'$"):
        Config(optimizer="adam")  # type: ignore[arg-type]
