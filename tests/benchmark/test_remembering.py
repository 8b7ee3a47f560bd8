import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from generalizeformer import catalog
from generalizeformer.benchmark import remembering as file
from generalizeformer.benchmark.remembering import RememberingBackbone, remembering
from generalizeformer.benchmark.runner import ADAPTERS, arriving
from generalizeformer.benchmark.selection import choose, grid, scores
from generalizeformer.core.grouped import GroupedBackbone
from generalizeformer.core.groups import grouping
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.streams import Stream
from generalizeformer.errors import UserError

from .toys import dataset, source, taught

SEARCHED = [name for name in catalog.names(ADAPTERS) if len(grid(name)) > 1]
FROZEN = ["adanpc", "lame", "pl_c", "t3a", "tast", "tent_c"]  # those that ask the source alone
BATCH, BATCHES = 7, 2 * 3  # of images, and of two domains with 21 images each
STREAMS = [Stream((name,), BATCH, 0) for name in ("a", "b")]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Leaves a method some entries of its grid, from all over it, and says how many."""

    def cut(method: str) -> int:
        entries = grid(method)
        left = entries[:: max(1, len(entries) // 4)]
        monkeypatch.setattr(catalog.load(ADAPTERS, method), "GRID", left)
        return len(left)

    return cut


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all batches that went through a backbone."""
    seen: list[int] = []
    kind = type(source().backbone)
    forward = kind.forward

    def counted(self: nn.Module, images: Tensor) -> Any:
        seen.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(kind, "forward", counted)
    return seen


def asked(model: Any, images: Tensor) -> Any:
    return model.network.run(images, grouping(None, len(images), images), {})


@pytest.mark.parametrize("method", SEARCHED)
def test_the_scores_are_those_without_remembering(
    method: str, short: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(method)
    model, data = taught(), dataset()
    remembered = scores(model, data, method, BATCH, 0)
    monkeypatch.setattr(file, "MOST", 0)
    assert scores(model, data, method, BATCH, 0) == remembered


def test_the_answers_of_every_entry_are_those_without_remembering_to_the_bit() -> None:
    model, data = taught(), dataset()
    for method in FROZEN:
        module = catalog.load(ADAPTERS, method)
        with remembering(model, data, STREAMS) as (lent, read):
            for settings in grid(method)[:: max(1, len(grid(method)) // 4)] * 2:
                config = module.Config(**settings)
                one, other = module.build(lent, config), module.build(model, config)
                for stream in STREAMS:
                    usual = arriving(model, data, stream, BATCH)
                    for kept, fresh in zip(read(lent, data, stream, BATCH), usual, strict=True):
                        assert torch.equal(kept.images, fresh.images)
                        assert torch.equal(one.step(kept.images), other.step(fresh.images))


@pytest.mark.parametrize("method", FROZEN)
def test_every_image_passes_through_the_backbone_once_in_a_search(
    method: str, short: Any, forwards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, model, data = short(method), source(), dataset()
    choose(model, data, method, BATCH, 0)
    assert sum(forwards) == BATCH * BATCHES
    forwards.clear()
    monkeypatch.setattr(file, "MOST", 0)
    choose(model, data, method, BATCH, 0)
    assert sum(forwards) == BATCH * BATCHES * entries > BATCH * BATCHES


def test_every_image_is_read_and_prepared_once_in_a_search(
    short: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, prepared = short("tent"), []
    prepare = Preprocessing.__call__

    def counted(self: Preprocessing, pixels: Tensor) -> Tensor:
        prepared.append(len(pixels))
        return prepare(self, pixels)

    monkeypatch.setattr(Preprocessing, "__call__", counted)
    choose(source(), dataset(), "tent", BATCH, 0)
    assert prepared == [BATCH] * BATCHES
    monkeypatch.setattr(file, "MOST", 2 * 21 * 3 * 8 * 8 * 4 - 1)  # one byte too little
    choose(source(), dataset(), "tent", BATCH, 0)
    assert prepared == [BATCH] * BATCHES * (1 + entries)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list["weakref.ref[RememberingBackbone]"]:
    """All networks that remember, as long as they live."""
    networks: list[weakref.ref[RememberingBackbone]] = []
    begin = RememberingBackbone.__init__

    def noted(self: RememberingBackbone, *given: Any) -> None:
        begin(self, *given)
        networks.append(weakref.ref(self))

    monkeypatch.setattr(RememberingBackbone, "__init__", noted)
    return networks


def test_nothing_is_remembered_after_a_search(
    short: Any, forwards: list[int], made: list[Any]
) -> None:
    model, data, before = source(), dataset(), dict(vars(source()))
    short("t3a")
    for _ in range(2):
        choose(model, data, "t3a", BATCH, 0)
        assert sum(forwards) == BATCH * BATCHES
        forwards.clear()
    gc.collect()
    assert [network() for network in made] == [None, None]
    assert vars(model).keys() == before.keys()
    assert type(model.network) is GroupedBackbone


def test_nothing_is_remembered_after_a_search_that_failed(
    monkeypatch: pytest.MonkeyPatch, made: list[Any]
) -> None:
    monkeypatch.setattr(catalog.load(ADAPTERS, "t3a"), "GRID", ({}, {"supports": 0}))
    with pytest.raises(UserError, match="supports is 0") as error:
        choose(source(), dataset(), "t3a", BATCH, 0)
    network = made[0]()
    assert network is not None  # the error's traceback keeps it
    assert not network.held
    assert not network.outputs
    del error


def test_two_source_models_do_not_share(forwards: list[int]) -> None:
    data, one, other = dataset(), source(), taught()
    with (
        remembering(one, data, STREAMS) as (first, read),
        remembering(other, data, STREAMS) as (second, _),
    ):
        images = next(iter(read(first, data, STREAMS[0], BATCH))).images
        second.network.hold(images)
        forwards.clear()  # those of the teaching
        answers = [asked(model, images).logits for model in (first, second, first, second)]
        assert forwards == [BATCH, BATCH]
        assert not torch.equal(answers[0], answers[1])
        assert torch.equal(answers[0], answers[2])
        assert torch.equal(answers[1], asked(other, images).logits)
        assert torch.equal(answers[0], asked(one, images).logits)


def test_what_a_method_does_to_an_answer_stays_its_own() -> None:
    data, model = dataset(), source()
    with remembering(model, data, STREAMS) as (lent, read):
        images = next(iter(read(lent, data, STREAMS[0], BATCH))).images
        for _ in range(2):
            seen = asked(lent, images)
            seen.logits.zero_()
            seen.features.zero_()
        expected = asked(model, images)
        assert torch.equal(asked(lent, images).logits, expected.logits)
        assert torch.equal(asked(lent, images).features, expected.features)


def test_only_answers_of_the_unchanged_source_to_held_images_are_remembered(
    forwards: list[int],
) -> None:
    data, model = dataset(), source()
    with remembering(model, data, STREAMS) as (lent, read):
        images = next(iter(read(lent, data, STREAMS[0], BATCH))).images
        together, params = grouping(None, BATCH, images), {}
        for name, value in model.slots.parameters_of(model.backbone).items():
            params[name] = 2 * value.unsqueeze(0)
        plain, run = asked(lent, images), lent.network.run
        assert not torch.equal(run(images, together, params).logits, plain.logits)
        assert run(images, together, {}, watch=True).statistics
        assert run(images.detach().requires_grad_(), together, {}).logits.requires_grad
        for others in (images.clone(), images[:3], images.flip(-1)):
            assert torch.equal(asked(lent, others).logits, asked(model, others).logits)
        assert len(forwards) == 4 + 6
        assert len(lent.network.outputs) == 1
        assert torch.equal(asked(lent, images.detach()).logits, plain.logits)
        assert len(forwards) == 4 + 6
