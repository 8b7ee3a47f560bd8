"""ITTA at test time: what its maps do, when they move, and what it refuses."""

from typing import Any

import pytest
import torch
from recordings import assert_agree, recorded
from torch import Tensor, nn

from generalizeformer import seeds
from generalizeformer.adapters import itta
from generalizeformer.core.companions._styles import Mixing, draw_mixing, mix_styles
from generalizeformer.core.companions.itta import Itta, build
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError

STRONG = {"learning_rate": 1e-2, "loss_weight": 1.0}


def adapter_of(source: GeneralizeFormer, **settings: Any) -> itta.ITTA:
    return itta.ITTA(source, itta.Config(**(STRONG | settings)))


def values(module: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in module.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def maps_of(adapter: itta.ITTA) -> nn.ModuleList:
    assert adapter.online.maps is not None
    return adapter.online.maps


def styled(maps: Tensor, mixing: Mixing) -> Tensor:
    """MixStyle once more, written otherwise."""
    own = mixing.shares[:, None, None, None]
    mean, spread = maps.mean((2, 3), True).detach(), (maps.var((2, 3), keepdim=True) + 1e-6).sqrt()
    spread, q = spread.detach(), mixing.partners
    normal = (maps - mean) / spread
    return normal * (own * spread + (1 - own) * spread[q]) + own * mean + (1 - own) * mean[q]


def elementwise(scales: Tensor, shifts: Tensor, x: Tensor) -> Tensor:
    for number in range(len(scales)):
        x = scales[number] * (x if number == 0 else x.clamp(min=0)) + shifts[number]
    return x


def test_an_update_is_one_adam_step_of_the_maps_on_the_weighted_consistency_loss(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    got = adapter.step(images)

    network: Any = adapter.network.backbone
    moving = [
        torch.full((5, *shape), start, dtype=torch.float64, requires_grad=True)
        for shape in ((8, 16, 16), (12, 8, 8))
        for start in (1.0, 0.0)
    ]

    def features(mixing: Mixing | None) -> Tensor:
        x = images
        for number, block in enumerate(network.blocks):
            x = block(x)
            x = styled(x, mixing) if mixing is not None and mixing.stage == number else x
            # MixStyle can give negative numbers, which pass.
            x = elementwise(*moving[2 * number : 2 * number + 2], x.clamp(min=0)) + x.clamp(max=0)
        return x.mean((2, 3))

    generator = torch.Generator().manual_seed(seeds.derive("itta", 0))
    difference = features(draw_mixing(images, generator)) - features(None)
    weights = adapter.network.weighting
    loss = elementwise(weights.scales, weights.shifts, difference).square().mean()
    optimizer = torch.optim.Adam(moving, lr=1e-2)
    loss.backward()
    optimizer.step()
    for value, expected in zip(maps_of(adapter).parameters(), moving, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-10)
    assert not torch.equal(moving[0], torch.ones_like(moving[0]))
    torch.testing.assert_close(got, network.classifier(features(None)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", [nn.ReLU, nn.Identity, nn.SiLU])
def test_new_maps_change_no_answer_whatever_the_sign_of_the_feature_maps(
    norm: type[nn.Module], images: Tensor
) -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 6, 3, 2), norm(), nn.Conv2d(6, 8, 3, 2), norm()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    network = build(nn.Sequential(*body, *head).double(), 5).eval()
    assert [stage.name for stage in network.stages(images)] == ["1", "3"]
    plain = network(images)
    mapped = network(images, None, network.new_maps(images))
    assert torch.equal(mapped.logits, plain.logits)
    assert torch.equal(mapped.features, plain.features)


def test_before_it_learned_it_answers_as_its_trained_network(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    expected = adapter.network.backbone(images)
    assert torch.equal(adapter.predict(images), expected)
    assert not torch.allclose(
        expected, source.backbone(images)
    )  # its own weights, not the source's
    assert torch.equal(adapter_of(source, learning_rate=0.0).step(images), expected)


def test_it_answers_after_its_update(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = adapter_of(source)
    before = adapter.predict(images)
    answer = adapter.step(images)
    assert torch.equal(adapter.predict(images), answer)
    assert not torch.allclose(answer, before)


def test_only_the_maps_move(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = adapter_of(source)
    network, kept = values(adapter.network), {**source.companions["itta"]}
    adapter.step(images[:12])
    first = values(maps_of(adapter))
    adapter.step(images[12:])
    assert same(values(adapter.network), network)
    assert all(torch.equal(source.companions["itta"][name], kept[name]) for name in kept)
    assert all(p.grad is None for p in adapter.network.parameters())
    assert not any(map(torch.equal, first, values(maps_of(adapter))))


def test_one_image_is_answered_and_teaches_nothing(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    assert torch.equal(adapter.step(images[:1]), adapter.network.backbone(images[:1]))
    assert adapter.online.maps is None
    adapter.step(images)  # from now on Adam's momentum alone would move them
    before, expected = values(maps_of(adapter)), adapter.predict(images[:1])
    assert torch.equal(adapter.step(images[:1]), expected)
    assert same(values(maps_of(adapter)), before)
    fresh = adapter_of(source)
    fresh.step(images)
    assert torch.equal(fresh.step(images), adapter.step(images))  # nor did it use random numbers


def test_one_image_has_no_gradient_for_the_maps(source: GeneralizeFormer, images: Tensor) -> None:
    network = adapter_of(source).network
    maps = network.new_maps(images)
    mixing = Mixing(1, torch.tensor([0.3]).double(), torch.tensor([0]))
    clean, mixed = network(images[:1], None, maps), network(images[:1], mixing, maps)
    # Without the trained weighting's shifts, or equal features would still have a loss of some size.
    loss = (mixed.features - clean.features).square().mean()
    gradients = torch.autograd.grad(loss, list(maps.parameters()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-12


def test_the_loss_goes_down_on_a_batch_that_comes_again_and_again(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source, learning_rate=1e-3)

    @torch.no_grad()
    def loss() -> float:
        network, maps = adapter.network, adapter.online.maps
        generator = torch.Generator().manual_seed(9)
        clean = network(images, None, maps).features
        mixed = [network(images, draw_mixing(images, generator), maps) for _ in range(10)]
        return float(sum(network.inconsistency(clean, m.features) for m in mixed))

    before = loss()
    for _ in range(20):
        adapter.step(images)
    assert loss() < 0.9 * before


def test_after_a_reset_a_stream_is_answered_as_the_first_time(
    source: GeneralizeFormer, images: Tensor
) -> None:
    """The law test with maps that move so far that what was not forgotten would be seen."""
    adapter = adapter_of(source)
    first = [adapter.step(batch) for batch in images.split(6)]
    assert not torch.allclose(first[-1], adapter.network.backbone(images[18:]), atol=1e-2)
    adapter.reset()
    assert same([adapter.step(batch) for batch in images.split(6)], first)


def test_more_steps_learn_more_from_a_batch(source: GeneralizeFormer, images: Tensor) -> None:
    thrice, once = adapter_of(source, steps=3), adapter_of(source)
    for _ in range(3):
        expected = once.step(images)
    assert torch.equal(thrice.step(images), expected)


def test_the_seed_decides_the_styles(source: GeneralizeFormer, images: Tensor) -> None:
    answers = [adapter_of(source, seed=seed).step(images) for seed in (0, 0, 1)]
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


def test_images_of_another_size_are_refused_until_it_is_reset(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = adapter_of(source)
    small = images[..., :12, :14]
    adapter.predict(small)  # without maps any size will do
    expected = adapter.step(images)
    line = (
        r"^itta: got images of 12x14, but the inserted maps were made for 16x16; give images of one"
    )
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=line):
            call(small)
    assert torch.equal(adapter.predict(images), expected)
    adapter.reset()
    assert adapter.step(small).isfinite().all()


def test_statistics_are_the_source_s(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = adapter_of(source)
    adapter.step(images)
    together = adapter.predict(images)
    alone = torch.cat([adapter.predict(image) for image in images.split(1)])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-10)


def test_a_model_that_was_not_trained_for_it_is_refused(source: GeneralizeFormer) -> None:
    source.companions.pop("itta")
    with pytest.raises(
        SlotError, match=r"^itta: this model was not trained for it; train one with"
    ):
        itta.build(source, itta.Config())


def test_a_network_without_convolutions_is_refused() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    line = (
        r"^itta: Sequential has no convolution, so .*; give a convolutional backbone, or try t3a$"
    )
    with pytest.raises(SlotError, match=line):
        build(backbone, 5)


def test_a_network_without_feature_maps_is_refused() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 5)).double()
    model = GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))
    model.companions = {"itta": build(backbone, 5).state_dict()}
    line = r"^itta: Sequential has no convolution whose maps are larger than one pixel for images of 2x2"
    with pytest.raises(SlotError, match=line):
        adapter_of(model).step(torch.randn(4, 3, 2, 2).double())


def test_a_head_for_other_classes_is_refused(backbone: nn.Module) -> None:
    with pytest.raises(
        SlotError, match=r"^itta: the classifier 'classifier' does not tell 9 classes"
    ):
        Itta(backbone, 9)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"learning_rate": -1.0}, "itta: learning_rate is -1.0; give a number of at least 0"),
        ({"loss_weight": float("nan")}, "itta: loss_weight is nan; give a number of at least 0"),
        ({"steps": 0}, "itta: steps is 0; give at least 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}$"):
        itta.Config(**settings)


@pytest.mark.parametrize("variant", ["random", "crossdomain", "lam0"])
def test_styles_are_mixed_as_recorded(variant: str) -> None:
    trace = {
        k.partition("/")[2]: v for k, v in recorded("mixstyle").items() if k.startswith(variant)
    }
    maps = trace["x"].requires_grad_()
    got = mix_styles(maps, Mixing(0, trace["lam"], trace["perm"]))
    assert_agree(got, trace["y"])
    (slope,) = torch.autograd.grad((got * trace["cotangent"]).sum(), maps)
    assert_agree(slope, trace["grad_x"])
