"""What passes through a backbone is counted, whoever holds the copy."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from generalizeformer.benchmark.passes import Passes
from generalizeformer.core.groups import grouping

from .toys import source

MODEL = source()
IMAGES = torch.randn(5, 3, 8, 8)


def counted(work: Callable[[], object]) -> tuple[int, int]:
    with Passes(MODEL.backbone, MODEL.slots.classifier) as passes:
        work()
    return passes.forwards, passes.backwards


def learning(part: str = "") -> nn.Module:
    copied = copy.deepcopy(MODEL.backbone).eval().requires_grad_(False)
    copied.get_submodule(part).requires_grad_()
    return copied


def test_the_lent_backbone_its_twin_and_copies_all_count() -> None:
    def work() -> None:
        MODEL.backbone(IMAGES)
        learning()(IMAGES[:2])
        MODEL.network.run(IMAGES, grouping(None, 5, IMAGES), {})

    assert counted(work) == (12, 0)


def test_a_copy_with_other_layers_and_one_inside_a_wrapper_count_once() -> None:
    other = copy.deepcopy(MODEL.backbone)
    other.classifier = nn.Linear(other.classifier.in_features, 9)
    assert counted(lambda: nn.Sequential(nn.Identity(), other)(IMAGES)) == (5, 0)


def test_parts_by_themselves_do_not_count() -> None:
    head = MODEL.backbone.classifier
    features = torch.randn(7, head.in_features, requires_grad=True)
    assert counted(lambda: head(features).sum().backward()) == (0, 0)


@pytest.mark.parametrize("part", ["", "blocks", "classifier"])
def test_gradients_count_wherever_they_go(part: str) -> None:
    network = learning(part)
    assert counted(lambda: network(IMAGES).sum().backward()) == (5, 5)
    moving = [value for value in network.parameters() if value.requires_grad]
    assert counted(lambda: torch.autograd.grad(network(IMAGES).sum(), moving)) == (5, 5)


def test_gradients_of_features_count_as_well() -> None:
    network, seen = learning(), list[Tensor]()
    network.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))

    def work() -> None:
        network(IMAGES)
        seen[0].sum().backward()

    assert counted(work) == (5, 5)


def test_every_walk_back_counts_and_none_does_where_there_was_none() -> None:
    network = learning()

    def twice() -> None:
        loss = network(IMAGES).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert counted(twice) == (5, 10)
    assert counted(lambda: network(IMAGES)) == (5, 0)


def test_a_call_that_fails_leaves_nothing_behind() -> None:
    def work() -> None:
        with pytest.raises(RuntimeError):
            MODEL.backbone(torch.randn(2, 4, 8, 8))
        MODEL.backbone(IMAGES)

    assert counted(work) == (7, 0)
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


def test_what_other_threads_do_is_theirs() -> None:
    counts: list[Any] = []

    def theirs() -> None:
        counts.append(counted(lambda: MODEL.backbone(IMAGES[:3])))

    def work() -> None:
        thread = threading.Thread(target=theirs)
        MODEL.backbone(IMAGES)
        thread.start()
        thread.join()

    assert counted(work) == (5, 0)
    assert counts == [(3, 0)]


def test_counting_changes_no_answer_and_no_gradient() -> None:
    plain, watched = learning(), learning()
    plain(IMAGES).square().sum().backward()
    counted(lambda: watched(IMAGES).square().sum().backward())
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
