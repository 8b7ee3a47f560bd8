import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from generalizeformer.core.generators import _norms, channels, rows
from generalizeformer.core.generators._units import Owners, relative, rms
from generalizeformer.core.observation import Observation
from generalizeformer.core.slots import Kind, Selection, towards
from generalizeformer.core.statistics import Statistics

from .nets import (
    ARCHITECTURES,
    CHANNELS,
    EVERYTHING,
    GENERATORS,
    ROWS,
    SETTLING,
    Net,
    architecture,
    by_loop,
    digits,
    images,
    lived,
    model_of,
    perturbed,
)

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])
SUBSETS = [
    ("parameters",),
    ("features",),
    ("gradients",),
    ("parameters", "features"),
    ("parameters", "gradients"),
    ("features", "gradients"),
]
BOTH = pytest.mark.parametrize("generator", list(GENERATORS))


def generated(model: Any, seen: Observation) -> dict[str, Tensor]:
    return model.generator(model.slots.parameters_of(model.backbone), seen)


@BOTH
@pytest.mark.parametrize("inputs", SUBSETS, ids="+".join)
def test_any_of_the_inputs_can_be_left_out_and_no_parameter_is_left_unused(
    generator: str, inputs: tuple[Any, ...]
) -> None:
    model = perturbed(digits(), replace(GENERATORS[generator], inputs=inputs))
    answers = model(images(6), GROUPS)
    torch.testing.assert_close(answers, by_loop(model, images(6), GROUPS), rtol=0, atol=1e-8)
    nn.functional.cross_entropy(answers, torch.tensor([0, 1, 2, 3, 4, 0])).backward()
    for name, value in model.generator.named_parameters():
        assert value.grad is not None, name
        assert value.grad.abs().max() > 0, name


@pytest.mark.parametrize("order", [("gradients", "features", "parameters"), SUBSETS[4][::-1]])
def test_the_order_in_which_inputs_are_named_does_not_matter(order: tuple[Any, ...]) -> None:
    backbone = digits()
    ordered = tuple(name for name in rows.INPUTS if name in order)
    one, two = (perturbed(backbone, replace(CHANNELS, inputs=i)) for i in (order, ordered))
    assert torch.equal(one(images(6), GROUPS), two(images(6), GROUPS))


def without_features(seen: Observation) -> Observation:
    """Another batch, as far as features, answers and statistics go."""
    statistics = {n: Statistics(-s.mean, s.variance + 1) for n, s in seen.statistics.items()}
    features, logits = seen.features.flip(1) + 1, 2 * seen.logits.flip(1)
    return replace(seen, features=features, logits=logits, statistics=statistics)


def without_gradients(seen: Observation) -> Observation:
    return replace(seen, gradients={n: -3 * g.flip(0) for n, g in seen.gradients.items()})


@pytest.mark.parametrize(
    ("left_out", "change"),
    [("features", without_features), ("gradients", without_gradients)],
    ids=["features", "gradients"],
)
@BOTH
def test_what_a_generator_is_not_shown_it_does_not_depend_on(
    generator: str, left_out: str, change: Any
) -> None:
    inputs = tuple(name for name in rows.INPUTS if name != left_out)
    model = perturbed(digits(), replace(GENERATORS[generator], inputs=inputs))
    seen = model.observe(images(6), GROUPS)
    before, after = generated(model, seen), generated(model, change(seen))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("change", [without_features, without_gradients])
@BOTH
def test_what_a_generator_is_shown_it_depends_on(generator: str, change: Any) -> None:
    model = perturbed(digits(), GENERATORS[generator])
    seen = model.observe(images(6), GROUPS)
    before, after = generated(model, seen), generated(model, change(seen))
    assert (before["classifier.weight"] - after["classifier.weight"]).abs().max() > 1e-6


def test_the_paper_s_generator_does_not_care_about_the_order_of_images() -> None:
    model = perturbed(digits(), ROWS)
    x = images(6)
    one, two = model.generate(x), model.generate(x.flip(0))
    assert all(torch.allclose(one[n], two[n], rtol=0, atol=1e-8) for n in one)


def test_mean_features_are_one_token_per_group() -> None:
    backbone = digits()
    each, mean = (perturbed(backbone, replace(ROWS, features=kind)) for kind in ("each", "mean"))
    seen = each.observe(images(6), GROUPS)
    tokens, empty = each.generator._feature_tokens(seen)
    assert tokens.shape == (3, 3, 16)
    assert empty.sum(1).tolist() == [2, 1, 0]
    tokens, empty = mean.generator._feature_tokens(seen)
    assert tokens.shape == (3, 1, 16)
    assert not empty.any()


def test_mean_features_and_each_feature_differ_but_for_groups_of_one() -> None:
    backbone = digits()
    each, mean = (perturbed(backbone, replace(ROWS, features=kind)) for kind in ("each", "mean"))
    x, alone = images(6), torch.arange(6)
    torch.testing.assert_close(each(x, alone), mean(x, alone), rtol=0, atol=1e-10)
    assert (each(x, GROUPS) - mean(x, GROUPS)).abs().amax() > 1e-6


def test_mean_features_answer_groups_as_if_each_came_alone() -> None:
    model = perturbed(digits(), replace(ROWS, features="mean"))
    x = images(6)
    torch.testing.assert_close(model(x, GROUPS), by_loop(model, x, GROUPS), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["torchvision resnet18", "vit_tiny", "convnext_atto"])
def test_one_channel_generator_serves_other_architectures(name: str) -> None:
    trained = perturbed(digits())
    backbone, x = architecture(name), images(6, ARCHITECTURES[name][0])
    model = model_of(backbone)
    model.generator.load_state_dict(trained.generator.state_dict(), strict=True)
    with torch.no_grad():
        answers = model(x, GROUPS)
        assert answers.isfinite().all()
        assert (answers - backbone(x)).abs().amax() > 1e-4


def test_one_channel_generator_serves_other_class_counts() -> None:
    trained, model = perturbed(digits(5)), model_of(digits(3))
    model.generator.load_state_dict(trained.generator.state_dict(), strict=True)
    assert model(images(6), GROUPS).shape == (6, 3)


def test_the_channel_generator_does_not_care_about_the_order_of_channels() -> None:
    """Channels are a set: renumbering those of a layer renumbers what is generated for them."""
    backbone = digits()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    renumbered = copy.deepcopy(backbone)
    first, second = renumbered.blocks[0], renumbered.blocks[1]
    with torch.no_grad():
        first[0].weight.copy_(first[0].weight[order])
        for value in (first[1].weight, first[1].bias, first[1].running_mean, first[1].running_var):
            value.copy_(value[order])
        second[0].weight.copy_(second[0].weight[:, order])
    one, two = (perturbed(b).generate(images(6), GROUPS) for b in (backbone, renumbered))
    torch.testing.assert_close(two["blocks.0.1.weight"], one["blocks.0.1.weight"][:, order])
    torch.testing.assert_close(two["blocks.3.1.bias"], one["blocks.3.1.bias"])


def test_the_changes_of_the_channel_generator_are_bounded_however_wild_its_weights() -> None:
    backbone = digits()
    model = perturbed(backbone, selection=EVERYTHING)
    with torch.no_grad():
        for value in model.generator.parameters():
            value.mul_(1e4)
    source, target = model.slots.parameters_of(backbone), model.generate(1e3 * images(6), GROUPS)
    for slot in model.slots:
        own, moved = slot.rows(source), slot.rows(target)
        if slot.kind == "norm":
            most = torch.tensor(1.1 * 2).exp() * 1.3
            assert (moved[:, 0].abs() <= most * own[0].abs() + 1e-9).all()
        else:
            length = own.norm(dim=-1)
            assert ((moved - own).norm(dim=-1) <= 0.3 * 4 * (length + rms(own)[0] + 1e-9)).all()


def test_full_moves_make_a_norm_layer_normalise_by_the_batch() -> None:
    """reach 1 and both moves 1: γ and β that turn source statistics into the batch's own, as BN-adapt has them."""
    backbone, x = digits(), images(8)
    config = channels.Config(reach=1.0, width=16, heads=2, settle=False, prior=0.0, variation=0)
    model = model_of(backbone, config)
    seen = model.observe(x)
    slot = next(iter(model.slots))
    moves = torch.tensor([1.0, 1, 0, 0], dtype=x.dtype).expand(1, slot.size[1], 4)
    made = _norms.apply(
        [slot], model.slots.parameters_of(backbone), seen, moves, model.config.generator
    )
    block = copy.deepcopy(backbone).blocks[0]
    before = block[0](x).detach()
    mean, var = before.mean((0, 2, 3)), before.var((0, 2, 3), correction=0)
    norm = block[1]
    expected = nn.functional.batch_norm(before, mean, var, norm.weight, norm.bias, eps=1e-5)
    got = nn.functional.batch_norm(
        before,
        norm.running_mean,
        norm.running_var,
        made[f"{slot.layer}.weight"][0],
        made[f"{slot.layer}.bias"][0],
        eps=1e-5,
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)


def test_noise_and_dropout_are_off_in_eval_mode() -> None:
    model = perturbed(digits(), replace(CHANNELS, noise=5.0, dropout=0.5))
    seen = model.observe(images(6), GROUPS)
    one, two = generated(model, seen), generated(model, seen)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_slot_in_its_own_units_is_bounded_and_keeps_its_direction() -> None:
    values = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.5]]) * 1e-3
    scaled, size = relative(values, 0.0)
    assert scaled.square().mean().sqrt().item() == pytest.approx(1)
    torch.testing.assert_close(scaled * 10 ** (4 * size), values)


def test_one_entry_that_outgrows_its_slot_is_clipped() -> None:
    values = torch.zeros(1, 100)
    values[0, 3] = -1e6
    assert relative(values, 1e-5)[0].min() == -4


def test_gradients_that_are_rounding_noise_are_not_blown_up() -> None:
    scaled, _ = relative(1e-12 * torch.ones(2, 3), 1e-5)
    assert scaled.abs().max() < 1e-6


def test_the_mean_of_thousands_keeps_its_digits_in_half_precision() -> None:
    values = torch.ones(1, 5000, 1, dtype=torch.bfloat16)
    mean = Owners.of([1000, 4000], values.device).mean(values)
    assert mean.dtype == torch.bfloat16
    assert mean.flatten().tolist() == [1, 1]


def test_a_slot_s_token_is_the_mean_of_its_encoded_elements() -> None:
    model = perturbed(digits(), CHANNELS)
    generator, seen = model.generator, model.observe(images(6), GROUPS)
    tokens, hidden = generator._read("norm", model.slots.parameters_of(model.backbone), seen)
    encoded = generator.encode["norm"][-1](hidden)
    widths = [slot.size[1] for slot in generator.kinds["norm"]]
    each = [part.mean(1) for part in encoded.split(widths, 1)]
    torch.testing.assert_close(tokens, torch.stack(each, 1))


@pytest.mark.parametrize("module", [channels, rows])
@pytest.mark.usefixtures("unchecked")
def test_a_width_that_the_heads_do_not_divide_is_refused(module: Any) -> None:
    with pytest.raises(ValueError, match="width 10 is not a multiple of 4 heads"):
        module.Config(width=10, heads=4)


@pytest.mark.parametrize("module", [channels, rows])
@pytest.mark.parametrize("inputs", [(), ("pixels",)])
@pytest.mark.usefixtures("unchecked")
def test_unknown_inputs_or_none_are_refused(module: Any, inputs: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="give one or more of"):
        module.Config(inputs=inputs)


def test_slots_of_one_stage_can_be_generated_alone() -> None:
    for generator in GENERATORS.values():
        selection = Selection(kinds=("norm",), stages=("blocks.2",))
        model = perturbed(digits(), generator, selection=selection)
        assert set(model.generate(images(6), GROUPS)) == {"blocks.2.1.weight", "blocks.2.1.bias"}


def all_the_way(model: Any, seen: Observation) -> dict[str, Tensor]:
    """The source's parameters, and every norm layer told to go all the way to its group's statistics."""
    groups = len(seen.grouping.sizes)
    source = model.slots.parameters_of(model.backbone)
    target = {name: value.expand(groups, *value.shape) for name, value in source.items()}
    for slot in model.slots:
        if slot.settles:
            target[towards(slot.layer)] = torch.ones(groups, 2, slot.size[1], dtype=torch.float64)
    return target


def test_layers_that_settle_all_the_way_normalise_by_the_batch_one_after_another() -> None:
    """As BN-adapt does: a deeper layer sees what shallower ones give after they have moved."""
    backbone, x = digits(), 0.7 * images(8)
    model = model_of(backbone, SETTLING)
    seen = model.observe(x)
    run = model.network.run(x, seen.grouping, all_the_way(model, seen))
    adapted = copy.deepcopy(backbone).train()  # BatchNorm in train mode: the batch's own statistics
    torch.testing.assert_close(run.logits, adapted(x), rtol=0, atol=1e-3)
    assert set(run.settled) == {n for s in model.slots if s.settles for n in s.names}


def test_a_generator_without_features_does_not_settle_either() -> None:
    model = perturbed(digits(), replace(SETTLING, inputs=("parameters", "gradients")))
    made = generated(model, model.observe(images(6), GROUPS))
    assert not [name for name in made if name.endswith("towards")]


def test_layers_without_source_statistics_move_in_the_first_run() -> None:
    backbone = lived(Net(nn.GroupNorm(2, 8)))
    settling = replace(CHANNELS, settle=True)
    made = generated(
        perturbed(backbone, settling), perturbed(backbone, settling).observe(images(6))
    )
    same = generated(
        perturbed(backbone, CHANNELS), perturbed(backbone, CHANNELS).observe(images(6))
    )
    assert made.keys() == same.keys()
    assert all(torch.equal(made[name], same[name]) for name in made)


def test_without_detail_all_channels_of_a_layer_move_alike() -> None:
    model = perturbed(digits(), replace(SETTLING, detail=False))
    made = generated(model, model.observe(images(6), GROUPS))
    for slot in model.slots:
        if slot.settles:
            moves = made[towards(slot.layer)]
            assert (moves - moves[..., :1]).abs().max() < 1e-12
            assert moves.abs().max() > 1e-4


def test_moves_away_from_the_batch_are_cut_short() -> None:
    model = perturbed(digits(), replace(SETTLING, reach=0.5, away=0.1, prior=0.0))
    seen = model.observe(images(6), GROUPS)
    reached = {}
    for sign in (-1.0, 1.0):
        for decoder in model.generator.decode.values():
            nn.init.constant_(decoder[-1].bias, 100 * sign)
        made = generated(model, seen)
        reached[sign] = [value for name, value in made.items() if name.endswith("towards")]
    assert reached[1.0]
    for away, onward in zip(reached[-1.0], reached[1.0], strict=True):
        torch.testing.assert_close(away, -0.1 * onward)
        assert (onward > 0.4).all()


def test_few_images_are_weighed_against_those_of_the_source() -> None:
    """Twice as many source images as a group has leave a third of a norm layer's moves to the batch."""
    moved = []
    for prior in (0.0, 4.0):
        model = perturbed(digits(), replace(SETTLING, prior=prior))
        made = generated(model, model.observe(images(6), torch.tensor([1, 1, 2, 2, 3, 3])))
        moved += [made[f"{slot.layer}.towards"] for slot in model.slots if slot.kind == "norm"]
    half = len(moved) // 2
    assert all(move.any() for move in moved)
    for free, weighed in zip(moved[:half], moved[half:], strict=True):
        torch.testing.assert_close(weighed, free / 3)


def test_a_classifier_that_gathers_turns_its_rows_to_the_features_taken_for_their_class() -> None:
    """w + a |w| Σ p (ẑ - mean ẑ) per group and class, with a gate of its own for every group."""
    model, x = model_of(digits(), SETTLING), images(6)
    seen = model.observe(x, GROUPS)
    target = all_the_way(model, seen)
    source = {name: value for name, value in target.items() if not name.endswith("towards")}
    name = model.slots.classifier
    pull = torch.linspace(0.1, 0.9, len(seen.grouping.sizes) * model.classes, dtype=torch.float64)
    pull = pull.reshape(-1, model.classes)
    run = model.network.run(x, seen.grouping, source | {towards(name): pull})
    weight, bias = source[f"{name}.weight"][0], source[f"{name}.bias"][0]
    for number, group in enumerate(sorted(set(GROUPS.tolist()))):
        mine = seen.features[group == GROUPS]
        votes = (mine @ weight.T + bias).softmax(1)
        length = weight.norm(dim=1, keepdim=True)
        directions = mine / mine.norm(dim=1, keepdim=True)
        centred = directions - directions.mean(0)
        rows = weight + length * pull[number, :, None] * (votes.T @ centred)
        torch.testing.assert_close(run.settled[f"{name}.weight"][number], rows, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            run.logits[group == GROUPS], mine @ rows.T + bias, rtol=0, atol=1e-9
        )


def test_a_classifier_gathers_only_where_phi_may_see_features() -> None:
    for inputs, gathers in ((("features",), True), (("parameters", "gradients"), False)):
        model = perturbed(digits(), replace(SETTLING, inputs=inputs))
        made = generated(model, model.observe(images(6), GROUPS))
        assert (towards(model.slots.classifier) in made) == gathers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_gradients_groups_are_encoded_a_few_at_a_time_bit_for_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = copy.deepcopy(architecture("tf_efficientnet_lite0")).to(dtype)
    model = perturbed(backbone, SETTLING)
    x = images(21, 48, dtype=dtype)
    seen, source = model.observe(x, torch.arange(21)), model.slots.parameters_of(backbone)
    counts: list[tuple[str, int]] = []
    encode = channels.Channels._encode

    def spy(self: channels.Channels, kind: Kind, values: Tensor) -> Tensor:
        counts.append((kind, len(values)))
        return encode(self, kind, values)

    monkeypatch.setattr(channels.Channels, "_encode", spy)
    with torch.no_grad():
        parts = model.generator(source, seen)
        assert counts == [("classifier", 21), ("norm", 16), ("norm", 5)]
        counts.clear()
        monkeypatch.setattr(channels, "ENCODED", 10**9)
        whole = model.generator(source, seen)
        assert counts == [("classifier", 21), ("norm", 21)]
    assert parts.keys() == whole.keys()
    for key, value in whole.items():
        assert torch.equal(parts[key], value), key


@pytest.mark.parametrize("generator", [CHANNELS, SETTLING], ids=["detail", "alike"])
def test_what_is_generated_is_the_same_with_and_without_gradients(generator: Any) -> None:
    model = perturbed(digits(), generator)
    seen = model.observe(images(6), GROUPS)
    expected = generated(model, seen)
    with torch.no_grad():
        for key, value in generated(model, seen).items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-10)
