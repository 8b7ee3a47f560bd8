"""How mixed a group is: the ratio against the book, groups of one look and of several, and the model that uses it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from generalizeformer.core import likeness as module
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.groups import grouping
from generalizeformer.core.kinship import kindred
from generalizeformer.core.likeness import STRANGE, Likeness, _same
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.core.statistics import Statistics

from .nets import ARCHITECTURES, architecture, digits, images, perturbed

WIDTH, EACH = 6, 24
BETWEEN = torch.tensor([1.0, 0.7, 0.0, 0.0, 0.0, 0.0]).double()
WITHIN = torch.tensor([0.1, 0.1, 0.3, 0.3, 0.3, 0.3]).double()
CONFIG = Config(generator=channels.Config(variation=4), kin=0.3)


def drawn(looks: int, each: int, seed: int) -> tuple[dict[str, Statistics], Tensor]:
    """Images whose first two channels tell the look, and the others what they show; and their looks."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    ids = torch.arange(looks).repeat_interleave(each)
    mean = (draw(looks, WIDTH) * BETWEEN)[ids] + draw(len(ids), WIDTH) * WITHIN
    return {"first": Statistics(mean, torch.ones_like(mean))}, ids


def learned() -> Likeness:
    made = Likeness({"first": WIDTH}).double()
    seen, looks = drawn(60, EACH, seed=0)
    made.learn(seen, grouping(looks, len(looks), looks.double()))
    return made


def mixed(of: Likeness, seen: dict[str, Statistics], groups: Any) -> Tensor:
    ids = torch.as_tensor(groups)
    return of.mixed(seen, grouping(ids, len(ids), seen["first"].mean))


def test_the_ratio_is_that_of_two_normal_distributions() -> None:
    torch.manual_seed(0)
    along, ratio = torch.randn(1, 5, 3).double(), torch.tensor([2.0, 0.3, 0.0]).double()
    got = _same(along, ratio)[0]
    one, eye = torch.diag(ratio), STRANGE * torch.eye(3).double()
    zero = torch.zeros(3).double()
    for i in range(5):
        for j in range(5):
            both = torch.cat([along[0, i], along[0, j]])
            cross = torch.cat([torch.cat([one + eye, one]), torch.cat([one, one + eye])], 1)
            alike = MultivariateNormal(torch.cat([zero, zero]), cross).log_prob(both)
            apart = [MultivariateNormal(zero, one + eye).log_prob(along[0, k]) for k in (i, j)]
            torch.testing.assert_close(got[i, j], alike - sum(apart))


def test_groups_of_one_look_are_told_from_mixed_ones() -> None:
    made = learned()
    seen, looks = drawn(8, 20, seed=1)
    alone = mixed(made, seen, looks)
    together = mixed(
        made, seen, torch.randperm(160, generator=torch.Generator().manual_seed(0)) % 8
    )
    assert alone.max() == 0
    assert together.min() == 1


def test_some_strangers_are_a_little_mixed_and_very_few_are_not() -> None:
    made, (seen, _) = learned(), drawn(2, 20, seed=6)
    places = torch.arange(40)
    some, half = places[:26], torch.cat([places[:10], places[20:30]])
    found = []
    for chosen in (places[:20], places[:21], some, half):
        part = {
            "first": Statistics(*(v[chosen] for v in (seen["first"].mean, seen["first"].variance)))
        }
        found.append(float(mixed(made, part, [0] * len(chosen))[0]))
    assert found[0] == found[1] == 0 < found[2] < found[3]


def test_a_group_does_not_notice_the_others_nor_their_sizes() -> None:
    made, (seen, _) = learned(), drawn(6, 5, seed=2)
    groups = torch.tensor([7] * 3 + [-1] * 26 + [4])
    together = mixed(made, seen, groups)
    for number, group in enumerate((-1, 4, 7)):
        mine = groups == group
        part = {"first": Statistics(seen["first"].mean[mine], seen["first"].variance[mine])}
        torch.testing.assert_close(mixed(made, part, groups[mine]), together[number : number + 1])
    assert together[1] == 0  # one image is of one look
    seen["first"].mean[groups == 7] = float("nan")
    again = mixed(made, seen, groups)
    assert torch.equal(again[:2], together[:2])
    assert again.isfinite().all()


def test_distances_count_as_far_as_a_group_is_mixed() -> None:
    seen, _ = drawn(3, 4, seed=4)
    together = grouping(torch.arange(12) % 2, 12, seen["first"].mean)
    values = torch.randn(12, 2).double()
    for share, like in ((0.0, None), (1.0, 0.3), (0.5, 0.6)):
        got = kindred(seen, together, 0.3, torch.full((2,), share).double()).mean(values)
        plain = together.spread(together.mean(values))
        expected = plain if like is None else kindred(seen, together, like).mean(values)
        torch.testing.assert_close(got, expected)


def model() -> GeneralizeFormer:
    made = perturbed(digits(), CONFIG.generator, kin=0.3, singly=True)
    made.learn_looks(images(24), torch.arange(24) // 4)
    return made


def test_only_a_model_with_both_has_it_and_it_is_saved(tmp_path: Any) -> None:
    made = model()
    assert made.likeness is not None
    assert made.likeness.get_buffer("ratio").max() > 0
    made.save_pretrained(tmp_path)
    again = GeneralizeFormer.from_pretrained(tmp_path, backbone=digits())
    assert torch.equal(again.likeness.into, made.likeness.into)  # type: ignore[union-attr]
    others = (channels.Config(variation=0), 0.3), (CONFIG.generator, None)
    for generator, kin in others:
        config = Config(generator=generator, kin=kin)
        assert GeneralizeFormer(digits(), config).likeness is None


def test_groups_are_answered_as_if_each_had_come_alone() -> None:
    made, x, groups = model(), images(11), torch.tensor([3, 3, 0, 0, 0, 9, 3, 0, 9, 9, 5])
    with torch.no_grad():
        together = made(x, groups)
        for group in (0, 3, 5, 9):
            alone = made(x[groups == group])
            torch.testing.assert_close(together[groups == group], alone, rtol=0, atol=1e-9)
        plain = made.backbone(x)
    assert (together - plain).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["digits", "regnety_002", "tf_efficientnet_lite0"])
def test_groups_that_are_mixed_more_or_less_are_answered_like_a_loop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = perturbed(architecture(name), CONFIG.generator, kin=0.3, singly=True)
    x, groups = images(7, ARCHITECTURES[name][0]), torch.tensor([0, 1, 1, 0, 2, 1, 0])
    told = torch.tensor([0.4, 1.0, 0.0], dtype=x.dtype)  # one image alone is of one look
    with torch.no_grad():
        monkeypatch.setattr(made.likeness, "mixed", lambda *_: told)
        together = made(x, groups)
        for group, share in enumerate(told):
            monkeypatch.setattr(made.likeness, "mixed", lambda *_, s=share: s.reshape(1))
            alone = made(x[groups == group])
            torch.testing.assert_close(together[groups == group], alone, rtol=0, atol=1e-8)


@pytest.mark.parametrize("groups", [[0] * 9, [0, 1, 1, 0, 0, 2, 1, 1, 0], list(range(9))])
def test_a_group_that_is_not_mixed_is_answered_by_the_ordinary_rule(
    monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    made, x, ids = model(), images(9), torch.tensor(groups)
    ordinary = replace(CONFIG.generator, variation=0, prior=1.0)
    plain = perturbed(made.backbone, ordinary, singly=True, strengths=made.config.strengths)
    plain.generator.load_state_dict(made.generator.state_dict())
    with torch.no_grad():
        assert (made(x, torch.zeros(9).long()) - made.backbone(x)).abs().max() > 1e-3
        monkeypatch.setattr(made.likeness, "mixed", lambda _, together: 0 * together.sizes)
        assert torch.equal(made(x, ids), plain(x, ids))
        for name, value in plain.generate(x, ids).items():
            assert torch.equal(made.generate(x, ids)[name], value)
        monkeypatch.setattr(made.likeness, "mixed", lambda _, together: together.sizes**0)
        if len(set(groups)) < 9:
            assert (made(x, ids) - plain(x, ids)).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("convnext_atto", {}),
        ("vit_tiny", {}),
        ("digits", {"selection": Selection(kinds=("classifier",))}),
        ("digits", {"generator": {"settle": False}}),
    ],
)
def test_nobody_has_kin_where_no_layer_tells_how_mixed_a_group_is(
    name: str, changes: dict[str, Any]
) -> None:
    size, groups = ARCHITECTURES[name][0], torch.arange(8) // 4
    phi = replace(CONFIG.generator, **changes.get("generator", {}))
    others = {key: value for key, value in changes.items() if key != "generator"}

    def answers(kin: float | None, variation: int) -> Tensor:
        generator = replace(phi, variation=variation)
        made = perturbed(architecture(name), generator, kin=kin, singly=True, **others)
        assert made.likeness is None
        with torch.no_grad():
            return made(images(8, size), groups)

    assert torch.equal(answers(0.3, 4), answers(None, 4))
    assert (answers(0.3, 0) - answers(None, 0)).abs().max() > 1e-9  # asked for without a gate


def test_a_group_beside_a_mixed_one_is_answered_by_the_ordinary_rule_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, x, ids = model(), images(9), torch.tensor([0, 1, 1, 0, 0, 0, 1, 1, 0])

    def shares(*values: float) -> None:
        told = torch.tensor(values, dtype=x.dtype)
        monkeypatch.setattr(made.likeness, "mixed", lambda *_: told)

    with torch.no_grad():
        shares(0.0, 0.0)
        plain = made(x, ids)
        shares(1.0, 0.0)
        both = made(x, ids)
        shares(1.0)
        alone = made(x[ids == 0])
    torch.testing.assert_close(both[ids == 1], plain[ids == 1], rtol=0, atol=1e-9)
    torch.testing.assert_close(both[ids == 0], alone, rtol=0, atol=1e-9)
    assert (both - plain).abs().max() > 1e-6


def test_gradients_reach_every_weight_of_phi() -> None:
    made = model().train()
    made(images(6), torch.arange(6) // 3).square().sum().backward()
    assert all(weight.grad is not None for weight in made.generator.parameters())
    assert not list(made.likeness.parameters())  # type: ignore[union-attr]


def test_half_precision_does_not_reach_it() -> None:
    made, (seen, _) = learned().float(), drawn(4, 5, seed=5)
    seen = {"first": Statistics(seen["first"].mean.float(), seen["first"].variance.float())}
    exact = mixed(made, seen, torch.arange(20) % 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mixed(made, seen, torch.arange(20) % 2), exact)


def test_a_model_in_half_precision_learns_looks_and_tells_them() -> None:
    made = GeneralizeFormer(digits().bfloat16(), CONFIG).eval()
    x, groups = images(48, dtype=torch.bfloat16), torch.arange(48) // 6
    # Looks differ by their contrast.
    x = x * (1 + groups.to(x.dtype) / 4)[:, None, None, None]
    made.learn_looks(x, groups)
    assert made.likeness is not None
    assert made.likeness.get_buffer("ratio").dtype == torch.bfloat16
    assert made.likeness.get_buffer("ratio").max() > 0
    seen = made.reference.relate(made._watch(x).statistics)
    alone = made.likeness.mixed(seen, grouping(groups, 48, x))
    together = made.likeness.mixed(seen, grouping(groups * 0, 48, x))
    assert alone.dtype == torch.float32
    assert together.min() > alone.max()
    assert made(x, groups).isfinite().all()


def test_more_directions_than_looks_are_none() -> None:
    made = Likeness({"first": WIDTH}).double()
    seen, looks = drawn(3, 4, seed=6)
    made.learn(seen, grouping(looks, 12, looks.double()))
    assert (made.get_buffer("ratio") > 0).sum() <= 3
    assert made.get_buffer("ratio").shape == (module.DIRECTIONS,)
