"""Labels cannot be reached from an adapter: a method that looks everywhere finds none.

Claimed: nothing that a method is given, holds, or finds on the stack below it leads to a label, a truth, or a dataset,
and its tensors carry no more memory than they show. Not claimed: safety from code that walks through the whole
interpreter (every object the garbage collector knows, frames of other threads, imported modules). No Python program
can keep that from a module in the same process; that adapters import no data is checked by the import contracts.
"""

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer.benchmark import runner
from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.streams import Chunk, Stream, Truth

SECRET = (Truth, Chunk, Stream, Domain, DomainDataset)
STREAM = Stream(("a", "b"), 7, 0)


def neighbours(thing: object) -> Iterable[object]:
    """What one step leads to. Classes, modules and globals are what imports lead to, and not followed."""
    if isinstance(thing, type | ModuleType | BuiltinFunctionType):
        return ()
    if isinstance(thing, FrameType):
        return thing.f_locals.values()  # such as that of a generator
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return [*cells, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
    inside = gc.get_referents(thing)
    if isinstance(thing, Tensor):
        inside += [thing._base, thing.grad if thing.is_leaf else None, thing.__dict__]
    return inside


def reachable(roots: Iterable[object]) -> Iterator[object]:
    """Everything that any number of steps lead to."""
    waiting, seen = list(roots), {}
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen[id(thing)] = thing  # kept, so that no id is used twice
            yield thing
            waiting.extend(neighbours(thing))


def stack() -> list[object]:
    """The variables of all frames below, as far as this thread goes."""
    found: list[object] = []
    frame = inspect.currentframe()
    while frame is not None:
        found.extend(frame.f_locals.values())
        frame = frame.f_back
    return found


def leaks(roots: Iterable[object], truths: list[list[int]]) -> list[str]:
    """What of the truth can be reached: the things themselves, or the labels as numbers."""
    found = []
    for thing in reachable(roots):
        if isinstance(thing, SECRET):
            found.append(type(thing).__name__)
        if isinstance(thing, Tensor) and not thing.is_floating_point() and thing.ndim:
            thing = thing.flatten().tolist()
        if isinstance(thing, list | tuple) and all(isinstance(item, int) for item in thing):
            found += ["labels"] * (list(thing) in truths)
    return found


class Spy:
    """Answers class 0, and remembers whatever of the truth it could reach."""

    truths: list[list[int]] = []  # noqa: RUF012 - on the class, which is where the spy does not look

    def __init__(self, source: GeneralizeFormer) -> None:
        self.source, self.found, self.calls = source, list[str](), 0

    def step(self, images: Tensor) -> Tensor:
        return self.look(images)

    predict = step

    def reset(self) -> None: ...

    def look(self, *given: Tensor) -> Tensor:
        self.calls += 1
        for tensor in given:
            if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
                self.found.append("memory beyond the tensor")
        self.found += leaks((given, self, *stack()), type(self).truths)
        return torch.zeros(len(given[0]), 3)


class GroupedSpy(Spy):
    def predict_groups(self, images: Tensor, groups: Tensor) -> Tensor:
        return self.look(images, groups)


@pytest.fixture
def dataset() -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=2, classes=3, per_class=7, size=8))


@pytest.fixture
def model() -> GeneralizeFormer:
    card = Card(classes=tuple("012"), preprocessing=Preprocessing(size=8))
    return GeneralizeFormer(DigitNet(3, (4, 6), channels=3), card=card).eval()


def labels_of(dataset: DomainDataset) -> list[list[int]]:
    """The labels of every batch, of whole streams, and of every domain."""
    found = [domain.labels.tolist() for domain in dataset.domains]
    for stream in (STREAM, *(Stream((name,), STREAM.batch_size, 0) for name in dataset.names)):
        batches = [batch.truth.labels.tolist() for batch in stream.chunks(dataset, 1)]
        found += [*batches, [label for batch in batches for label in batch]]
    return found


@pytest.fixture
def spied(
    dataset: DomainDataset, model: GeneralizeFormer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[type[Spy]], Spy]:
    """Runs a spy as any method is run, from a thread whose stack does not hold this whole test session."""

    def run(kind: type[Spy], sources: DomainDataset | None = None) -> Spy:
        spy = kind(model)
        monkeypatch.setattr(runner, "build_adapter", lambda *_: (spy, {}))
        monkeypatch.setattr(kind, "truths", labels_of(dataset) + labels_of(sources or dataset))
        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(runner.run, model, dataset, "spy", STREAM, 0, sources=sources).result()
        return spy

    return run


@pytest.mark.parametrize(("kind", "calls"), [(Spy, 6), (GroupedSpy, 1)])
def test_a_method_that_looks_everywhere_finds_no_labels(
    kind: type[Spy], calls: int, spied: Callable[[type[Spy]], Spy]
) -> None:
    spy = spied(kind)
    assert spy.calls == calls
    assert spy.found == []


@pytest.mark.parametrize(("kind", "calls"), [(Spy, 6 + 4 * 3), (GroupedSpy, 1 + 4)])
def test_nor_does_it_when_it_is_asked_about_the_sources(
    kind: type[Spy], calls: int, spied: Callable[..., Spy]
) -> None:
    # Of another length than the targets: groups of 7 are numbered as 7 images of each class are labelled.
    sources = synthetic.build(synthetic.Config(domains=2, classes=3, per_class=6, size=8))
    spy = spied(kind, sources)  # it stands for the plain source too, which answers before
    assert spy.calls == calls
    assert spy.found == []


def test_on_the_stack_of_the_runner_it_would_find_them(
    spied: Callable[[type[Spy]], Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        """No thread at all."""

        def submit(self, call: Any, *given: Any) -> Any:
            answer = call(*given)
            return SimpleNamespace(result=lambda: answer)

    monkeypatch.setattr(runner, "ALONE", Here())
    assert {"DomainDataset", "Truth", "labels"} <= set(spied(GroupedSpy).found)


# A spy that finds nothing must be one that can find.

LABELS = torch.tensor([0, 2, 1, 1])


def in_a_closure(secret: object) -> object:
    return lambda: secret


def in_an_object(secret: object) -> object:
    return SimpleNamespace(inner=[{"deep": (secret,)}])


def in_a_module(secret: object) -> object:
    module = torch.nn.Linear(1, 1)
    module.secret = secret
    return module


def in_a_generator(secret: object) -> object:
    made = (secret for _ in range(2))
    next(made)
    return made


@pytest.mark.parametrize("place", [in_a_closure, in_an_object, in_a_module, in_a_generator])
@pytest.mark.parametrize(
    "secret", [LABELS, LABELS.to(torch.uint8), LABELS.tolist(), Truth(LABELS, LABELS)], ids=repr
)
def test_the_spy_finds_what_is_hidden(place: Any, secret: object) -> None:
    assert leaks([place(secret)], [LABELS.tolist()])
    assert not leaks([place(torch.ones(4))], [LABELS.tolist()])


def test_the_spy_finds_what_a_view_is_of() -> None:
    assert leaks([LABELS[:0]], [LABELS.tolist()])


@pytest.mark.parametrize("hidden", [None, LABELS, Truth(LABELS, LABELS)], ids=repr)
def test_the_spy_finds_what_lies_on_the_stack(hidden: object) -> None:
    def above() -> list[str]:
        return leaks(stack(), [LABELS.tolist()])

    def below(variable: object) -> list[str]:
        return above()

    with ThreadPoolExecutor(1) as fresh:  # the stack of a test itself holds all tests
        assert bool(fresh.submit(below, hidden).result()) == (hidden is not None)
