"""What every adapter promises. A new file in the catalogue is tested here without being named."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.adapters import (
    deyo,
    generalizeformer,
    pl,
    pl_c,
    rotta,
    shot,
    t3a,
    tent,
)
from generalizeformer.adapters._protocol import Adapter, GroupedAdapter
from generalizeformer.config import from_dict, to_dict
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.guard import Guard
from generalizeformer.errors import ImageError, UserError

CATALOGUE = "generalizeformer.adapters"
NAMES = catalog.names(CATALOGUE)
CASES = [
    *[pytest.param(name, catalog.load(CATALOGUE, name).Config(), id=name) for name in NAMES],
    pytest.param("tent", tent.Config(steps=3, episodic=True), id="tent-episodic"),
    pytest.param("t3a", t3a.Config(supports=None), id="t3a-all"),
    # At their defaults these would hardly learn anything from images this few and this random.
    pytest.param("pl", pl.Config(threshold=0.2, steps=3, learning_rate=1e-2), id="pl-eager"),
    pytest.param("pl_c", pl_c.Config(threshold=0.2, steps=3, learning_rate=1e-2), id="pl_c-eager"),
    pytest.param("shot", shot.Config(threshold=0.2, steps=3, learning_rate=1e-2), id="shot-eager"),
    pytest.param("rotta", rotta.Config(update_every=6, memory_size=10), id="rotta-eager"),
    pytest.param(
        "deyo", deyo.Config(learning_rate=0.5, entropy_margin=1.0, threshold=0.0), id="deyo-eager"
    ),
    pytest.param(
        "generalizeformer", generalizeformer.Config(guard=Guard(limit=0.01)), id="guarded"
    ),
]
every_case = pytest.mark.parametrize(("name", "config"), CASES)


def build(name: str, source: GeneralizeFormer, config: Any) -> Adapter:
    adapter: Adapter = catalog.load(CATALOGUE, name).build(source, config)
    return adapter


def replay(adapter: Adapter, images: Tensor) -> Tensor:
    return torch.cat([adapter.step(batch) for batch in images.split(8)])


def state(source: GeneralizeFormer) -> dict[str, Any]:
    """Everything an adapter could have changed in what it was lent."""
    values = dict(source.named_parameters()) | dict(source.named_buffers())
    return {
        "values": {name: value.detach().clone() for name, value in values.items()},
        "places": {name: value.data_ptr() for name, value in values.items()},
        "gradients": {name: value.grad for name, value in values.items()},
        "learning": {name: value.requires_grad for name, value in values.items()},
        "modes": {name: module.training for name, module in source.named_modules()},
        "config": source.config,
    }


@every_case
def test_answers_every_image_with_finite_logits(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    for call in (adapter.predict, adapter.step, adapter.predict):
        logits = call(images)
        assert logits.shape == (len(images), source.classes)
        assert logits.isfinite().all()
        assert logits.dtype == images.dtype
        assert not logits.requires_grad


@every_case
def test_predict_changes_nothing(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    expected = replay(build(name, source, config), images)
    adapter, got = build(name, source, config), []
    for batch in images.split(8):
        assert torch.equal(adapter.predict(images.flip(0)), adapter.predict(images.flip(0)))
        got.append(adapter.step(batch))
    assert torch.equal(torch.cat(got), expected)


@every_case
def test_reset_forgets_every_target_batch(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    untouched, first = adapter.predict(images), replay(adapter, images)
    adapter.reset()
    assert torch.equal(adapter.predict(images), untouched)
    assert torch.equal(replay(adapter, images), first)


@every_case
def test_source_is_bit_identical_after_use(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    source.backbone.train()
    source.train()
    before = state(source)
    adapter = build(name, source, config)
    replay(adapter, images)
    adapter.predict(images)
    adapter.reset()
    after = state(source)
    values = before.pop("values"), after.pop("values")
    assert all(torch.equal(values[0][key], values[1][key]) for key in values[0] | values[1])
    assert after == before


@every_case
def test_batch_of_one_is_answered_or_refused(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    try:
        assert adapter.step(images[:1]).isfinite().all()
    except UserError:
        return
    assert adapter.predict(images[:1]).isfinite().all()


@every_case
def test_two_adapters_of_one_source_share_no_state(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    alone = replay(build(name, source, config), images)
    one, other = build(name, source, config), build(name, source, config)
    replay(other, images.flip(0))
    assert torch.equal(replay(one, images), alone)


@every_case
def test_stateless_adapters_answer_each_group_as_alone(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    if not isinstance(adapter, GroupedAdapter):
        pytest.skip("keeps state")
    sizes = torch.tensor([1, 9, 2, 5, 7])
    groups = torch.tensor([4, -1, 30, 0, 7]).repeat_interleave(sizes)
    expected = torch.cat([adapter.predict(part) for part in images.split(sizes.tolist())])
    for seed in range(3):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        got = adapter.predict_groups(images[order], groups[order])
        torch.testing.assert_close(got, expected[order], rtol=0, atol=1e-8)
    disturbed = torch.where((groups == 0)[:, None, None, None], images, 50 * images + 9)
    got = adapter.predict_groups(disturbed, groups)[groups == 0]
    torch.testing.assert_close(got, expected[groups == 0], rtol=0, atol=1e-8)


@every_case
def test_stateless_adapters_step_as_they_predict(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    if not isinstance(adapter, GroupedAdapter):
        pytest.skip("keeps state")
    expected = adapter.predict(images[:8])
    replay(adapter, images)
    assert torch.equal(adapter.step(images[:8]), expected)


@every_case
def test_threads_may_share_a_stateless_adapter(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    if not isinstance(adapter, GroupedAdapter):
        pytest.skip("keeps state")
    parts = images.split(6) * 2
    expected = [adapter.predict(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(adapter.predict, parts))
    assert all(map(torch.equal, got, expected))


@every_case
def test_stateless_adapters_follow_a_source_that_changes(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    if not isinstance(adapter, GroupedAdapter) or name in source.companions:
        pytest.skip("keeps state, or answers with a network of its own")
    before = adapter.predict(images)
    with torch.no_grad():
        for value in source.backbone.parameters():
            value.mul_(1.3)
    after = adapter.predict(images)
    assert not torch.equal(after, before)
    assert torch.equal(after, build(name, source, config).predict(images))


@every_case
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_without_gradients(
    context: Any, name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    expected = replay(build(name, source, config), images)
    with context():
        inside = build(name, source, config)
        assert torch.equal(replay(inside, images.clone()), expected)
        inside.reset()
    assert torch.equal(replay(inside, images), expected)


@every_case
def test_mode_of_the_lent_model_does_not_matter(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    expected = replay(build(name, source, config), images)
    source.backbone.train()
    source.train()
    assert torch.equal(replay(build(name, source, config), images), expected)


@every_case
def test_images_are_left_alone(
    name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    lent = images.clone().requires_grad_()
    logits = build(name, source, config).step(lent)
    assert lent.grad is None
    assert torch.equal(lent, images)
    assert not logits.requires_grad


@every_case
@pytest.mark.parametrize("bad", ["bytes", "empty", "channels", "nan"])
def test_bad_images_are_refused_and_change_nothing(
    bad: str, name: str, config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(name, source, config)
    adapter.step(images)
    before = adapter.predict(images)
    offered = {
        "bytes": torch.zeros(2, 3, 16, 16, dtype=torch.float32),
        "empty": images[:0],
        "channels": images[:, :1],
        "nan": torch.full_like(images, torch.nan),
    }[bad]
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=r"^images: got|^images: NaN"):
            call(offered)
    assert torch.equal(adapter.predict(images), before)


@pytest.mark.parametrize("name", NAMES)
def test_config_is_plain_frozen_data_that_survives_json(name: str) -> None:
    kind = catalog.load(CATALOGUE, name).Config
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(kind))
    assert from_dict(kind, to_dict(kind())) == kind()
