"""Private twins of models as they come: compiled, parametrised, patched; copied, pickled, and asked from threads."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError

from .nets import (
    EVERYTHING,
    VARYING,
    Net,
    assert_as_lent,
    assert_unchanged,
    digits,
    images,
    lived,
    model_of,
    perturbed,
    state,
)

GROUPS = torch.tensor([0, 1, 0, 1, 0, 1])


def net() -> nn.Module:
    torch.manual_seed(0)
    return lived(Net())


def test_threads_get_the_answers_that_each_would_get_alone() -> None:
    class Slow(Net):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.02)  # the other thread's turn
            return super().forward(x)

    torch.manual_seed(0)
    model = perturbed(lived(Slow()), VARYING, strengths=(0.0, 1.0), singly=True, kin=0.3)
    given = [images(6, seed=seed) for seed in range(2)]
    with torch.no_grad():
        expected = [model(x, GROUPS) for x in given]
    barrier = Barrier(2)

    @torch.no_grad()
    def ask(x: Tensor) -> list[Tensor]:
        barrier.wait(10)
        return [model(x, GROUPS) for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        for answers, wanted in zip(pool.map(ask, given), expected, strict=True):
            assert all(torch.equal(answer, wanted) for answer in answers)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("compiled", [False, True])
def test_copies_run_weights_of_their_own(copied: Any, compiled: bool) -> None:
    model, x = perturbed(digits()), images(6)
    if compiled:  # torch.compile without a compiler
        model.network.compile(disable=True)
    expected = model(x, GROUPS)
    other = copied(model)
    assert torch.equal(other(x, GROUPS), expected)
    assert other.network.options == model.network.options
    with torch.no_grad():
        for value in other.backbone.parameters():
            value.mul_(1.5)
    assert (other(x, GROUPS) - expected).abs().amax() > 1e-4
    assert torch.equal(model(x, GROUPS), expected)


def test_a_copy_made_during_a_run_holds_none_of_its_tensors() -> None:
    class Copying(Net):
        def forward(self, x: Tensor) -> Tensor:
            if made:
                made.append(copy.deepcopy(made[0].network))
            return super().forward(x)

    made: list[Any] = []
    model, x = model_of(lived(Copying())), images(2)
    made.append(model)
    model(x)
    assert made[1].call.grouping is None
    assert made[1].lock is not model.network.lock


def test_a_compiled_model_is_unwrapped() -> None:
    backbone = net()
    model = model_of(torch.compile(backbone))
    assert model.backbone is backbone
    assert_as_lent(torch.compile(backbone))


def test_compiled_layers_are_unwrapped() -> None:
    backbone = net()
    for name in ("conv", "norm", "fc"):
        setattr(backbone, name, torch.compile(getattr(backbone, name), backend="eager"))
    model = perturbed(backbone)
    assert [slot.layer for slot in model.slots] == ["norm._orig_mod", "fc._orig_mod"]
    expected = perturbed(net())(images(6), GROUPS)
    torch.testing.assert_close(model(images(6), GROUPS), expected, rtol=0, atol=1e-9)


def test_a_model_compiled_in_place_is_twinned_as_it_is() -> None:
    backbone = net()
    weight_norm(backbone.hidden)
    backbone.compile(backend="eager")
    backbone.hidden.compile(backend="eager")
    twin = model_of(backbone).network.network
    assert twin._compiled_call_impl is None
    assert twin.hidden._compiled_call_impl is None


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
@pytest.mark.parametrize("selection", [Selection(), EVERYTHING], ids=["default", "everything"])
def test_parametrised_layers_are_served(norm: Any, selection: Selection) -> None:
    backbone = net()
    for layer in (backbone.conv, backbone.hidden, backbone.fc):
        norm(layer)
    assert_as_lent(backbone, selection=selection)


def test_a_forward_of_its_own_is_run_by_the_twin() -> None:
    def twice(self: nn.Module, x: Tensor) -> Tensor:
        return Net.forward(self, 2 * x)

    backbone = net()
    backbone.forward = MethodType(twice, backbone)
    backbone.norm.forward = backbone.norm.forward
    backbone.train()
    before = state(backbone)
    model, x = model_of(backbone), images(6)
    torch.testing.assert_close(model(x, GROUPS), net()(2 * x), rtol=0, atol=1e-9)
    assert_unchanged(backbone, before)


@pytest.mark.parametrize("where", ["", "norm"])
def test_a_forward_that_would_run_the_lent_model_is_refused(where: str) -> None:
    backbone = net()
    part = backbone.get_submodule(where)
    part.forward = partial(type(part).forward, part)
    with pytest.raises(SlotError, match=f"{where or 'the model'}: the forward of this .* in a cl"):
        GeneralizeFormer(backbone)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_scripted_modules_are_refused() -> None:
    def traced(module: nn.Module, x: Tensor) -> nn.Module:
        return torch.jit.trace(module, x)  # type: ignore[no-any-return, no-untyped-call]

    x = images(2)
    with pytest.raises(SlotError, match="there is no Linear layer that could be the classifier"):
        GeneralizeFormer(traced(net(), x))
    backbone = net()
    backbone.conv = traced(backbone.conv, x)
    with pytest.raises(
        SlotError, match=r"conv: a TopLevelTracedModule .* use the module it was ma"
    ):
        GeneralizeFormer(backbone)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("HIP out of memory")]
)
def test_that_memory_ran_out_is_not_blamed_on_the_images(error: RuntimeError) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 4), nn.LayerNorm(4), nn.Linear(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] == 4:
                raise error
            return self.body(x.flatten(1))

    model = GeneralizeFormer(Flat())
    with pytest.raises(type(error), match="out of memory"):
        model(torch.randn(2, 3, 4, 4))
    with pytest.raises(ImageError, match="do not fit"):
        model(torch.randn(2, 3, 3, 3))
