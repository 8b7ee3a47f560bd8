"""DomainAdaptor: what was recorded, the merge that γ and β carry, and the losses."""

from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import NORMS, assert_agree, recorded, stream_of
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.adapters import alpha_bn, domainadaptor
from generalizeformer.adapters.domainadaptor import (
    Config,
    DomainAdaptor,
    FoldedNorm,
    generalised_entropy,
)
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.settings import Config as ModelConfig
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError

LEARNING = {
    "gem_t": Config(learning_rate=0.05, broadcast=True),
    "gem_skd": Config(learning_rate=0.05, loss="gem-skd", broadcast=True),
    "em": Config(learning_rate=0.05, loss="em"),
    "gem_t_bs1": Config(learning_rate=0.05, broadcast=True),
}
MERGING = {
    "merge_only": Config(learning_rate=0.0),
    "merge_lambda0.7": Config(learning_rate=0.0, source_weight=0.7),
}


def assert_close(got: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def folded(model: nn.Module) -> dict[str, FoldedNorm]:
    return {n: layer for n, layer in model.named_modules() if isinstance(layer, FoldedNorm)}


def net(norm: nn.Module | None, *last: nn.Module) -> GeneralizeFormer:
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 8, 3), *([] if norm is None else [norm]), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last, nn.Linear(8, 5)]
    backbone = nn.Sequential(*layers, *head).double()
    return GeneralizeFormer(backbone, ModelConfig(selection=Selection(kinds=("classifier",))))


@pytest.mark.parametrize("variant", LEARNING)
def test_answers_weights_and_shares_are_the_recorded_ones(
    toy: GeneralizeFormer, variant: str
) -> None:
    trace, adapter = recorded("domainadaptor"), DomainAdaptor(toy, LEARNING[variant])
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter(batch, None), trace[f"{variant}/logits"][number])
        adapter.adapt(network := adapter.copied(), batch)
        layers = folded(network)
        shares = torch.stack([layers[norm].share for norm in NORMS])  # type: ignore[misc]
        assert_agree(shares, trace[f"{variant}/lambdas"][number])
        for norm in NORMS:
            for part in ("weight", "bias"):
                expected = trace[f"{variant}/params_per_batch/{norm}.{part}"][number]
                assert_agree(layers[norm].get_parameter(part), expected)


@pytest.mark.parametrize("variant", LEARNING)
def test_the_first_pass_merges_as_recorded(toy: GeneralizeFormer, variant: str) -> None:
    model = DomainAdaptor(toy, LEARNING[variant]).copied()
    assert_agree(
        model(stream_of(variant)[0]), recorded("domainadaptor")[f"{variant}/logits_before"][0]
    )


@pytest.mark.parametrize("variant", MERGING)
def test_without_learning_it_only_merges(toy: GeneralizeFormer, variant: str) -> None:
    adapter = domainadaptor.build(toy, MERGING[variant])
    got = torch.stack([adapter.step(batch) for batch in stream_of(variant)])
    assert_agree(got, recorded("domainadaptor")[f"{variant}/logits_before"])


def test_the_whole_stream_is_answered_in_one_call(toy: GeneralizeFormer) -> None:
    adapter, stream = domainadaptor.build(toy, LEARNING["gem_t"]), stream_of("gem_t")
    groups = torch.arange(len(stream)).repeat_interleave(stream.shape[1])
    got = adapter.predict_groups(stream.flatten(0, 1), groups)
    assert_agree(got, recorded("domainadaptor")["gem_t/logits"].flatten(0, 1))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_fixed_share_without_learning_is_alpha_bn(
    weight: float, source: GeneralizeFormer, images: Tensor
) -> None:
    config = Config(learning_rate=0.0, source_weight=weight)
    expected = alpha_bn.build(source, alpha_bn.Config(batch_weight=1 - weight)).step(images)
    assert_close(domainadaptor.build(source, config).step(images), expected)


def layer_with(images: Tensor) -> nn.BatchNorm2d:
    """A layer whose source statistics are those of the images."""
    layer = nn.BatchNorm2d(images.shape[1]).double()
    layer.running_var, layer.running_mean = torch.var_mean(images, (0, 2, 3))
    nn.init.uniform_(layer.weight, 0.5, 2)
    nn.init.normal_(layer.bias)
    return layer


def test_a_batch_like_the_source_leaves_weights_alone(images: Tensor) -> None:
    layer = layer_with(images)
    norm = FoldedNorm("norm", layer, None)
    assert_close(norm(images), layer.eval()(images))
    assert norm.share is not None
    assert_close(norm.share, torch.tensor(1.0).double())
    assert_close(norm.weight, layer.weight)
    assert_close(norm.bias, layer.bias)


@settings(max_examples=20)
@given(st.integers(1, 5), st.floats(0.1, 10), st.floats(-5, 5))
def test_the_share_falls_between_batch_and_source(count: int, scale: float, shift: float) -> None:
    torch.manual_seed(6)
    images = torch.randn(count, 3, 4, 4).double()
    norm = FoldedNorm("norm", layer_with(torch.randn(9, 3, 4, 4).double()), None)
    norm(scale * images + shift)
    assert norm.share is not None
    assert 0 <= norm.share <= 1
    if count == 1:  # as far from the batch, which it is, as from the source
        assert_close(norm.share, torch.tensor(0.5).double())


def test_equal_images_at_the_source_have_a_finite_share() -> None:
    layer = nn.BatchNorm2d(3).double()
    layer.running_mean.zero_()  # type: ignore[union-attr]
    layer.running_var.zero_()  # type: ignore[union-attr]
    norm = FoldedNorm("norm", layer, None)
    assert norm(torch.zeros(4, 3, 2, 2).double()).isfinite().all()
    assert norm.share == 1


def test_only_the_scale_and_shift_of_batch_norm_move(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    method = DomainAdaptor(source, Config(learning_rate=0.1))
    method.adapt(adapted := method.copied(), images)
    moving = {name for name, value in adapted.named_parameters() if value.requires_grad}
    norms = ("blocks.0.1", "blocks.1.1")
    assert moving == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}
    assert torch.equal(adapted.get_parameter("classifier.weight"), backbone.classifier.weight)


def test_it_answers_after_its_update(source: GeneralizeFormer, images: Tensor) -> None:
    still, slow, fast = (
        domainadaptor.build(source, Config(learning_rate=rate)).step(images)
        for rate in (0.0, 1e-3, 0.1)
    )
    assert 0 < (slow - still).abs().max() < (fast - still).abs().max()


def test_more_steps_lower_the_loss(source: GeneralizeFormer, images: Tensor) -> None:
    config = {steps: Config(learning_rate=0.01, loss="em", steps=steps) for steps in (1, 5, 20)}
    losses = [
        per_image_entropy(domainadaptor.build(source, c).step(images)).mean()
        for c in config.values()
    ]
    assert losses[0] > losses[1] > losses[2]


# Losses


def by_hand(logits: Tensor, skd: bool) -> tuple[Tensor, Tensor]:
    """(cross-)entropy and T² of each image."""
    centred = logits - logits.mean(1, keepdim=True)
    heat = 2 * centred.std(1, keepdim=True)
    p = (centred / heat).softmax(1)
    target = logits.softmax(1) if skd else p
    return -(target * p.log()).sum(1), heat.squeeze(1).square()


@pytest.mark.parametrize("loss", ["gem-t", "gem-skd"])
def test_the_recorded_loss_multiplies_means_and_the_papers_averages_products(loss: Any) -> None:
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).double() * 3
    entropy, squared = by_hand(logits, loss == "gem-skd")
    recorded_form = generalised_entropy(logits, Config(loss=loss, broadcast=True))
    # the reference's product has shape (7, 7)
    assert_close(recorded_form, (entropy * squared.unsqueeze(1)).mean())
    papers = generalised_entropy(logits, Config(loss=loss, broadcast=False))
    assert_close(papers, (entropy * squared).mean())
    assert (recorded_form - papers).abs() > 1e-3


@pytest.mark.parametrize("loss", ["gem-t", "gem-skd"])
def test_both_forms_are_one_for_a_single_image(loss: Any) -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5]]).double()
    forms = [generalised_entropy(logits, Config(loss=loss, broadcast=b)) for b in (True, False)]
    assert_close(forms[0], forms[1])


@pytest.mark.parametrize("loss", ["gem-t", "gem-skd"])
def test_the_temperature_carries_no_gradient(loss: Any) -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(generalised_entropy(logits, Config(loss=loss)), logits)
    heat = 2 * logits.detach().std()
    scaled = ((logits - logits.detach().mean()) / heat).log_softmax(1)
    target = logits.detach().softmax(1) if loss == "gem-skd" else scaled.exp()
    (expected,) = torch.autograd.grad(-(target * scaled).sum() * heat**2, logits)
    assert_close(got, expected)


@pytest.mark.parametrize("loss", ["gem-t", "gem-skd", "em"])
def test_equal_logits_have_a_finite_gradient(loss: Any) -> None:
    logits = torch.full((3, 5), 2.0, requires_grad=True)
    (slope,) = torch.autograd.grad(generalised_entropy(logits, Config(loss=loss)), logits)
    assert slope.isfinite().all()


# Models and errors


def test_layers_without_affine_and_frozen_ones_are_served(images: Tensor) -> None:
    kinds = (nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False), FrozenBatchNorm2d(8))
    config = Config(learning_rate=0.01)
    expected, *others = (domainadaptor.build(net(norm), config).step(images) for norm in kinds)
    for got in others:
        assert_close(got, expected, 1e-6)


def test_a_model_without_batch_norm_is_refused() -> None:
    with pytest.raises(SlotError, match=r"^domainadaptor: Sequential has no BatchNorm .*; try t3a"):
        domainadaptor.build(net(nn.GroupNorm(2, 8)), Config())


def test_what_only_looks_like_batch_norm_is_refused() -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    with pytest.raises(SlotError, match=r"^domainadaptor: 1 is a Doubled, which does not .*t3a$"):
        domainadaptor.build(net(Doubled(8)), Config())


def test_one_value_per_channel_is_refused(images: Tensor) -> None:
    model = net(None, nn.BatchNorm1d(8))
    with pytest.raises(ImageError, match=r"^domainadaptor: 4 sees one value .*set source_weight"):
        domainadaptor.build(model, Config()).step(images)
    adapter = domainadaptor.build(model, Config(source_weight=0.5))
    with pytest.raises(ImageError, match=r"^domainadaptor: 4 sees one .* give at least 2 images"):
        adapter.step(images[:1])
    assert adapter.step(images[:2]).isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(learning_rate=-1.0), "domainadaptor: learning_rate is -1.0; give a number"),
        (lambda: Config(steps=0), "domainadaptor: steps is 0; give at least 1"),
        (lambda: Config(source_weight=1.5), "domainadaptor: source_weight is 1.5; it is a share"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


def test_a_loss_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises(
        UserError, match=r"^domainadaptor: loss is 'gem'; choose one of: gem-t, gem-skd, em$"
    ):
        Config(loss="gem")  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["gem-t", "gem-skd", "em"])
def test_a_single_class_has_no_entropy(loss: Any) -> None:
    logits = torch.randn(3, 1).double().requires_grad_()
    found = generalised_entropy(logits, Config(loss=loss))
    (slope,) = torch.autograd.grad(found, logits)
    assert found == 0
    assert torch.equal(slope, torch.zeros(3, 1).double())
