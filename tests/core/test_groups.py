import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.core.groups import grouping, side_by_side

LIKE = torch.zeros(1, dtype=torch.float64)
IDS = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


def values(count: int, *rest: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *rest, generator=generator, dtype=torch.float64)


@settings(deadline=None, max_examples=25)
@given(IDS)
def test_groups_are_numbered_in_the_order_of_their_ids(ids: list[int]) -> None:
    together = grouping(torch.tensor(ids), len(ids), LIKE)
    known = sorted(set(ids))
    assert together.ids.tolist() == [known.index(i) for i in ids]
    assert together.sizes.tolist() == [ids.count(i) for i in known]


@settings(deadline=None, max_examples=25)
@given(IDS)
def test_the_mean_of_a_group_is_that_of_its_images(ids: list[int]) -> None:
    groups, x = torch.tensor(ids), values(len(ids), 2, 3)
    expected = torch.stack([x[groups == i].mean(0) for i in sorted(set(ids))])
    torch.testing.assert_close(grouping(groups, len(ids), LIKE).mean(x), expected)


@settings(deadline=None, max_examples=25)
@given(IDS)
def test_spreading_the_means_gives_each_image_its_own_group_s(ids: list[int]) -> None:
    groups, x = torch.tensor(ids), values(len(ids), 2)
    together = grouping(groups, len(ids), LIKE)
    expected = torch.stack([x[groups == i].mean(0) for i in ids])
    torch.testing.assert_close(together.spread(together.mean(x)), expected)


@settings(deadline=None, max_examples=25)
@given(IDS)
def test_dense_holds_each_group_s_images_in_order_and_marks_the_empty_places(
    ids: list[int],
) -> None:
    groups, x = torch.tensor(ids), values(len(ids), 3)
    dense, empty = grouping(groups, len(ids), LIKE).dense(x)
    for number, i in enumerate(sorted(set(ids))):
        assert torch.equal(dense[number][~empty[number]], x[groups == i])
    assert dense[empty].abs().sum() == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_one_group_holds_never_reaches_the_mean_of_another(bad: float) -> None:
    x = values(4, 2)
    x[0] = bad
    mean = grouping(torch.tensor([0, 1, 0, 1]), 4, LIKE).mean(x)
    torch.testing.assert_close(mean[1], x[[1, 3]].mean(0))
    assert not mean[0].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_images_are_counted_exactly_in_half_precision(dtype: torch.dtype) -> None:
    ids = torch.arange(3001) // 7
    together = grouping(ids, 3001, torch.zeros(1, dtype=dtype))
    assert together.sizes.sum() == 3001
    dense, empty = together.dense(torch.arange(3001.0)[:, None])
    assert torch.equal(dense[~empty].flatten(), torch.arange(3001.0))


def test_no_groups_is_one_group() -> None:
    together = grouping(None, 3, LIKE)
    assert together.ids.tolist() == [0, 0, 0]
    assert together.sizes.tolist() == [3]


def test_repeating_repeats_the_ids_and_multiplies_the_sizes() -> None:
    twice = grouping(torch.tensor([5, 2, 5]), 3, LIKE).repeat(2)
    assert twice.ids.tolist() == [1, 0, 1, 1, 0, 1]
    assert twice.sizes.tolist() == [2, 4]


def test_ids_made_in_inference_mode_can_be_kept_by_autograd() -> None:
    with torch.inference_mode():
        together = [
            grouping(None, 2, torch.zeros(1)),
            grouping(torch.tensor([3, 1]), 2, torch.zeros(1)),
        ]
    assert not any(t.ids.is_inference() or t.sizes.is_inference() for t in together)


@settings(deadline=None, max_examples=25)
@given(st.lists(IDS, min_size=1, max_size=4))
def test_groupings_side_by_side_keep_their_groups(parts: list[list[int]]) -> None:
    every = [grouping(torch.tensor(ids), len(ids), LIKE) for ids in parts]
    x = [values(len(ids), 2) for ids in parts]
    together = side_by_side(every)
    expected = torch.cat([one.mean(part) for one, part in zip(every, x, strict=True)])
    torch.testing.assert_close(together.mean(torch.cat(x)), expected)
    assert together.sizes.tolist() == [size for one in every for size in one.sizes.tolist()]
