"""Who learns from which images, and what a target looks like."""

from dataclasses import replace

import pytest
import torch

from generalizeformer.benchmark.parts import known_to, learned_from, met
from generalizeformer.data.streams import Stream

from .lab import cells, domains

CELL = cells()[0]
LOOKS = ("rotation:30", "look:5", "gaussian_noise:3")
DYNAMIC = replace(CELL, suite="dynamic", looks=LOOKS)


def test_a_model_learns_from_all_others_or_from_those_named() -> None:
    assert learned_from(CELL, domains()).names == ("b", "c")
    assert learned_from(replace(CELL, sources=("c",)), domains()).names == ("c",)
    assert met(CELL, domains()).names == ("a",)


@pytest.mark.parametrize("apart", ["labels", "0", "3"])
def test_classes_apart_are_in_one_source_each_and_all_in_the_target(apart: str) -> None:
    cell = replace(CELL, classes_apart=apart)
    known = [set(domain.labels.tolist()) for domain in known_to(cell, domains()).domains]
    assert sorted(map(len, known)) == [1, 2]
    assert known[0] | known[1] == {0, 1, 2}
    assert set(met(cell, domains())["a"].labels.tolist()) == {0, 1, 2}


def test_the_order_of_the_labels_is_the_usual_way_to_share_them_out() -> None:
    known = known_to(replace(CELL, classes_apart="labels"), domains())
    assert set(known["b"].labels.tolist()) == {0, 1}
    assert set(known["c"].labels.tolist()) == {2}


def test_pooled_sources_are_the_same_images_as_one_domain() -> None:
    cell = replace(CELL, classes_apart="labels", pooled=True)
    (pool,) = learned_from(cell, domains()).domains
    b, c = known_to(cell, domains()).domains
    assert pool.name == "b+c"
    assert torch.equal(pool.images, torch.cat([b.images, c.images]))
    assert torch.equal(pool.labels, torch.cat([b.labels, c.labels]))


@pytest.mark.parametrize("number", range(5))
def test_looks_made_before_are_those_that_streams_make(number: int) -> None:
    stream = DYNAMIC.streams()[number]
    ours = list(stream.chunks(met(DYNAMIC, domains()), 1))
    theirs = list(stream.chunks(domains(), 1))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.truth.labels, other.truth.labels)
        assert torch.equal(one.truth.domains, other.truth.domains)


def pixels(stream: Stream, limit: int | None) -> list[bytes]:
    data = met(replace(DYNAMIC, limit=limit), domains())
    return sorted(i.numpy().tobytes() for batch in stream.chunks(data, 1) for i in batch.images)


@pytest.mark.parametrize("limit", [None, 4, 100])
def test_alone_mixed_and_changing_show_the_same_images(limit: int | None) -> None:
    *alone, mixed, changing = replace(DYNAMIC, limit=limit).streams()
    singly = sorted(image for stream in alone for image in pixels(stream, limit))
    assert len(singly) == 3 * min(limit or 15, 15)
    assert pixels(mixed, limit) == pixels(changing, limit) == singly


def test_several_targets_are_learned_by_nobody_and_met_as_they_are() -> None:
    cell = replace(CELL, targets=("a", "c"), limit=4)
    assert learned_from(cell, domains()).names == ("b",)
    assert learned_from(replace(cell, sources=("b",)), domains()).names == ("b",)
    data = met(cell, domains())
    assert (data.names, list(map(len, data.domains))) == (("a", "c"), [4, 4])
    *alone, mixed, changing = cell.streams()
    shown = [
        sorted(i.numpy().tobytes() for batch in stream.chunks(data, 1) for i in batch.images)
        for stream in (*alone, mixed, changing)
    ]
    assert shown[2] == shown[3] == sorted(shown[0] + shown[1])
    whole = met(replace(cell, limit=None), domains())
    assert [torch.equal(whole[n].images, domains()[n].images) for n in "ac"] == [True, True]


def test_a_limit_takes_the_same_images_whatever_the_looks() -> None:
    few = replace(DYNAMIC, limit=4, looks=("rotation:0", "look:5"))
    other = replace(few, looks=("fog:1", "rotation:0"))
    ours, theirs = (met(cell, domains())["a@rotation:0"].images for cell in (few, other))
    assert torch.equal(ours, theirs)
    assert not torch.equal(met(replace(few, seed=1), domains())["a@rotation:0"].images, ours)


def test_mixed_batches_hold_several_looks_and_changing_ones_one_after_another() -> None:
    *_, mixed, changing = replace(DYNAMIC, batch_sizes=(15,)).streams()
    data = met(DYNAMIC, domains())
    assert all(len(set(b.truth.domains.tolist())) > 1 for b in mixed.chunks(data, 1))
    order = changing.arrivals(data)[:, 0]
    assert torch.equal(order, order.sort().values)
