"""Private twins run nothing of the lent model itself: what modules keep of each other, and what is computed twice."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from generalizeformer.core.slots import Selection
from generalizeformer.errors import SlotError

from .nets import (
    EVERYTHING,
    Net,
    architecture,
    assert_as_lent,
    assert_unchanged,
    by_loop,
    images,
    lived,
    model_of,
    perturbed,
    state,
)

GROUPS = torch.tensor([0, 1, 0, 1, 0, 1])


class Kept(Net):
    """Runs its norm layer through something that also has it."""

    def __init__(self, keep: Callable[["Kept"], Any], run: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.kept, self.run = keep(self), run

    def forward(self, x: Tensor) -> Tensor:
        x = self.run(self.kept)(self.conv(x)).mean((2, 3))
        return self.fc(self.hidden(x).relu())


WAYS: dict[str, tuple[Callable[[Kept], Any], Callable[[Any], Any]]] = {
    "list": (lambda net: [net.norm], lambda kept: kept[0]),
    "dict": (lambda net: {"norm": net.norm}, lambda kept: kept["norm"]),
    "lambda": (lambda net: lambda x: net.norm(x), lambda kept: kept),
    "method in a list": (lambda net: [net.norm.forward], lambda kept: kept[0]),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", list(WAYS))
def test_that_a_lent_module_would_run_is_refused_before_it_does(way: str, compiled: bool) -> None:
    backbone = Kept(*WAYS[way])
    before = state(backbone)
    model = model_of(backbone, selection=Selection(kinds=("classifier",)))
    if compiled:  # torch.compile without a compiler
        model.network.compile(disable=True)
    for _ in range(2):
        with pytest.raises(
            SlotError, match=r"norm: a private copy of Kept .* call modules as self"
        ):
            model(images(2, dtype=torch.float32))
    assert_unchanged(backbone, before)


class Methods(nn.Module):
    """Keeps methods of its parts, one of which is a slot and another has a part that keeps one of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Net()
        self.body.fc.whole = self.last  # type: ignore[assignment]
        self.features, self.norm = self.first, self.body.norm.forward
        self.head = self.body.fc.__call__

    def first(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.body.conv(x), training=self.training)

    def last(self, x: Tensor) -> Tensor:
        return self.head(self.body.hidden(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.features(x)).mean((2, 3)))


@pytest.mark.parametrize("selection", [Selection(), EVERYTHING], ids=["default", "everything"])
def test_methods_that_modules_keep_are_those_of_their_twins(selection: Selection) -> None:
    torch.manual_seed(0)
    backbone = lived(Methods())
    assert_as_lent(backbone, selection=selection)
    model = perturbed(backbone, selection=selection)
    answers = model(images(6), GROUPS)
    torch.testing.assert_close(answers, by_loop(model, images(6), GROUPS), rtol=0, atol=1e-8)
    assert model.network.network.body.fc.layer.whole.__self__ is model.network.network


def test_the_lent_model_may_run_elsewhere_meanwhile() -> None:
    class Asking(Net):
        def forward(self, x: Tensor) -> Tensor:
            if asked:
                pool.submit(asked.pop(), x).result(10)
            return super().forward(x)

    asked: list[nn.Module] = []
    model, x = model_of(lived(Asking())), images(2)
    with ThreadPoolExecutor(1) as pool:
        asked.append(model.backbone)
        model(x)
    assert not asked


def test_checkpointing_changes_no_answer_and_no_gradient() -> None:
    backbone, x = copy.deepcopy(architecture("vit_tiny")), images(6, 32)
    models = [perturbed(backbone)]
    backbone.set_grad_checkpointing(True)
    models.append(perturbed(backbone))
    plain, told = (
        (answers, *torch.autograd.grad(answers.square().sum(), list(model.generator.parameters())))
        for model in models
        for answers in [model(x, GROUPS)]
    )
    assert all(torch.equal(one, other) for one, other in zip(plain, told, strict=True))
    assert backbone.grad_checkpointing


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_in_a_forward_is_refused(reentrant: bool) -> None:
    class Sparing(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.conv(x)).mean((2, 3))
            return self.fc(checkpoint(self.hidden, x, use_reentrant=reentrant).relu())

    model = model_of(Sparing().double(), selection=EVERYTHING)
    with pytest.raises(SlotError, match=r"torch\.utils\.checkpoint.*switch checkpointing off"):
        model(images(2))


class Sideways(nn.BatchNorm2d):
    """Has a method beside its forward."""

    def aside(self, x: Tensor) -> Tensor:
        return nn.BatchNorm2d.forward(self, x)


class Aside(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Sideways(8)
        self.kept = self.norm.aside

    def forward(self, x: Tensor) -> Tensor:
        x = self.kept(self.norm(self.conv(x))).mean((2, 3))
        return self.fc(self.hidden(x).relu())


def test_a_method_that_the_layer_in_its_place_has_not_is_refused() -> None:
    backbone = Aside()
    before = state(backbone)
    with pytest.raises(SlotError, match=r"aside: this method of a Sideways is kept by another"):
        model_of(backbone)
    assert_unchanged(backbone, before)


class Passing(nn.Module):
    """Passes on what it is asked for to the module within, as wrappers do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(2 * x + 1)  # type: ignore[no-any-return]


def test_a_wrapper_around_a_compiled_model_stays() -> None:
    lent = Passing(torch.compile(Net(), backend="eager")).eval()
    x = images(2, dtype=torch.float32)
    torch.testing.assert_close(model_of(lent)(x), lent(x), rtol=1e-4, atol=1e-5)
