"""A backbone that runs many target batches at once: convolutions shared, generated parameters per group."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from generalizeformer.core.groups import Grouping, side_by_side
from generalizeformer.core.inputs import uncompiled
from generalizeformer.core.layers import (
    Call,
    GroupedClassifier,
    GroupedConv,
    GroupedLayer,
    GroupedLinear,
    GroupedNorm,
)
from generalizeformer.core.shapes import Features, Images, Logits, Params
from generalizeformer.core.slots import Slots
from generalizeformer.core.statistics import Statistics, pool_all
from generalizeformer.core.twins import at_rest, rebind, twin_of
from generalizeformer.core.variation import Variation
from generalizeformer.errors import SlotError

Layers = Mapping[str, Callable[[str, nn.Module, Call], GroupedLayer]]
LAYERS: Layers = {
    "norm": GroupedNorm,
    "classifier": GroupedClassifier,
    "linear": GroupedLinear,
    "conv": GroupedConv,
}


@dataclass(frozen=True)
class Output:
    """One run: logits, penultimate features, and what the norm layers saw where that was asked for."""

    logits: Logits
    features: Features
    statistics: dict[str, Statistics]  # of every norm layer, generated or not; empty unless watched
    settled: Params  # γ and β of the layers that moved to their group's statistics in this run


@dataclass(frozen=True)
class Question:
    """Images to be answered under parameters of their groups (leading group axis)."""

    images: Images
    grouping: Grouping
    params: Params


class GroupedBackbone:
    """A private twin of the backbone whose slot layers read their parameters from the call.

    The twin shares every tensor with the model we were lent and copies none: its parameters are frozen
    aliases, so no gradient can reach the source, and its modules are in eval mode, so BatchNorm keeps the
    source statistics whatever mode the lent model is in. Not an nn.Module, so that it is never saved,
    moved or counted beside the backbone. One run at a time: those of other threads wait. `layers` makes the
    layer of each kind of slot: another method can answer groups with layers of its own.
    """

    def __init__(
        self,
        backbone: nn.Module,
        slots: Slots,
        layers: Layers = LAYERS,
        variation: Variation | None = None,
    ) -> None:
        self.backbone, self.layers, self.call = backbone, layers, Call(variation=variation)
        self.lock = RLock()
        self.options: dict[str, Any] | None = None
        self.kinds = dict.fromkeys(slots.norms, "norm") | {s.layer: s.kind for s in slots}
        self.kinds[slots.classifier] = "classifier"
        self.modules: tuple[int, ...] = ()
        self.storage: tuple[int, ...] = ()
        self.follow()

    def run(
        self, images: Images, grouping: Grouping, params: Params, *, watch: bool = False
    ) -> Output:
        """Logits of every image under its group's `params` (leading group axis); other layers are the source's."""
        with self.lock:  # layers read what they need from the one call
            self.follow()
            try:
                given = (images, grouping, params, watch)
                looked = self.checked or torch.compiler.is_compiling()
                if self.options is None:
                    with nullcontext() if looked else at_rest(self.backbone):
                        return self.traced(*given)
                if not looked:  # a compiled run cannot be looked into
                    with at_rest(self.backbone), torch.no_grad():
                        self.traced(*given)
                return self._captured(*given)
            finally:
                self.call.clear()  # also where memory ran out

    def answer(self, questions: list[Question]) -> list[Logits]:
        """The logits of each, in one run: a GPU spends its time on the number of operations, not on their size."""
        params = {
            name: torch.cat([question.params[name] for question in questions])
            for name in questions[0].params
        }
        images = torch.cat([question.images for question in questions])
        together = side_by_side([question.grouping for question in questions])
        logits = self.run(images, together, params).logits
        return list(torch.split(logits, [len(question.images) for question in questions]))

    def traced(self, images: Images, grouping: Grouping, params: Params, watch: bool) -> Output:
        """The part of `run` that is only tensor work: what torch.compile captures, for any number of groups."""
        call = self.call
        call.grouping, call.params = grouping, params
        call.watched, call.settled = {} if watch else None, {}
        logits = self.network(images)
        statistics = pool_all(call.watched or {}, grouping)
        return Output(logits, self._check(logits), statistics, call.settled)

    def compile(self, **options: Any) -> None:
        """From now on runs are compiled (torch.compile), one graph for any number of groups and images."""
        self.options, self.compiled = options, torch.compile(self.traced, **options)

    def _captured(self, images: Images, grouping: Grouping, params: Params, watch: bool) -> Output:
        """`traced`, compiled.

        Only these axes vary. Left to itself, the compiler would treat height and width as unknown too, and never
        finish with networks that compute their padding from them.
        """
        for value in (images, *grouping.tensors(), *params.values()):
            torch._dynamo.maybe_mark_dynamic(value, 0)
        if grouping.kin is not None:
            torch._dynamo.maybe_mark_dynamic(grouping.kin.weights, (1, 2))
        return self.compiled(images, grouping, params, watch)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of. Its twin, its calls, its lock and what it compiled are its own."""
        left = ("network", "twins", "compiled", "lock")
        state = {name: value for name, value in vars(self).items() if name not in left}
        return state | {"call": Call(variation=self.call.variation), "modules": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lock = RLock()
        if self.options is not None:
            self.compile(**self.options)

    def follow(self) -> None:
        """Catches up with a backbone that was moved, cast, or changed in a layer since the last call."""
        modules = tuple(id(module) for module in self.backbone.modules())
        if modules != self.modules:
            self.twins: list[tuple[nn.Module, nn.Module]] = []
            made: dict[int, nn.Module] = {}
            self.network = self._twin(self.backbone, "", made)
            for twin, _ in self.twins:
                rebind(twin, made)
            self.modules, self.storage, self.checked = modules, (), False
        storage = tuple(value.data_ptr() for value in self.backbone.parameters())
        if storage != self.storage:
            for twin, lent in self.twins:
                twin._parameters = {
                    name: None if value is None else nn.Parameter(value.detach(), False)
                    for name, value in lent._parameters.items()
                }
            self.storage = storage

    def _check(self, logits: Tensor) -> Features:
        """The features the classifier saw, once it is sure that its outputs are the model's."""
        seen, features = self.call.logits, self.call.features
        if seen is None or features is None or features.dim() != 2:
            raise SlotError(
                "the classifier never ran, or not on one feature vector per image; name it with "
                "Selection(classifier=...)"
            )
        if not isinstance(logits, Tensor) or logits.shape != seen.shape:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise SlotError(
                f"the model returns {got} but its classifier gives {tuple(seen.shape)}: that is not the layer whose "
                "output are the logits; name it with Selection(classifier=...)"
            )
        if not self.checked and not torch.compiler.is_compiling():
            if not torch.allclose(logits, seen, 0, 0, equal_nan=True):
                raise SlotError(
                    "the model changes its classifier's outputs before it returns them (a softmax, or a mean over "
                    "heads?); it must return the logits of one Linear layer"
                )
            self.checked = True  # looking once is enough, and looking makes a GPU wait
        return features

    def _twin(self, lent: nn.Module, name: str, made: dict[int, nn.Module]) -> nn.Module:
        if id(lent) in made:  # a module used in two places stays one module
            return made[id(lent)]
        if (inner := uncompiled(lent)) is not lent:
            return self._twin(inner, f"{name}._orig_mod".lstrip("."), made)
        if isinstance(lent, _BatchNorm) and lent.running_var is None:
            raise SlotError(
                f"{name}: this {type(lent).__name__} keeps no running statistics, so the answer for an image would "
                "depend on the others; train with track_running_stats=True"
            )
        twin = twin_of(lent, name)
        self.twins.append((twin, lent))
        twin._modules = dict(lent._modules)
        for child, module in lent._modules.items():
            if module is not None:
                path = f"{name}.{child}".lstrip(".")
                twin._modules[child] = self._twin(module, path, made)
        if isinstance(twin, nn.TransformerEncoderLayer):
            twin.activation_relu_or_gelu = 0  # its fused path would read norm weights by itself
        if name in self.kinds:
            twin = self.layers[self.kinds[name]](name, twin, self.call).eval()
        made[id(lent)] = twin
        return twin
