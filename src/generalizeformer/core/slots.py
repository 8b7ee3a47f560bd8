"""Slots: the layers of a backbone whose parameters can be generated. The only file that knows parameter names."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from generalizeformer.core.classifiers import check_linear, find_classifier
from generalizeformer.core.inputs import uncompiled
from generalizeformer.core.normalisers import has_source_statistics, is_norm, is_understood
from generalizeformer.core.shapes import Params, Rows
from generalizeformer.core.twins import in_eval
from generalizeformer.errors import SlotError

Kind = Literal["norm", "classifier", "linear", "conv"]
KINDS: tuple[Kind, ...] = ("norm", "classifier", "linear", "conv")
Named = tuple[str, Kind, nn.Module]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which layers are generated. The default is the paper's: every normalisation layer and the classifier."""

    kinds: tuple[Kind, ...] = ("norm", "classifier")
    stages: tuple[str, ...] | None = None  # only below these names (E17); classifier apart
    include: tuple[str, ...] = ()  # single layers besides, whatever their kind or stage
    exclude: tuple[str, ...] = ()  # layers, or everything below a name, to leave alone
    classifier: str | None = None  # its name, where the rule would not find it

    def __post_init__(self) -> None:
        for field in ("kinds", "stages", "include", "exclude"):
            if isinstance(one := getattr(self, field), str):  # a name by itself
                object.__setattr__(self, field, (one,))
        if unknown := set(self.kinds) - set(KINDS):
            raise SlotError(
                f"selection: {sorted(unknown)} are no kinds of slot; choose from {KINDS}"
            )


@dataclass(frozen=True)
class Slot:
    """One layer as a small matrix: a norm layer is the rows γ and β, a linear layer one row per output."""

    layer: str
    kind: Kind
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # (("weight", (64,)), ("bias", (64,)))
    settles: bool = (
        False  # a norm layer with source statistics, γ and β, which can move while it answers
    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.layer}.{suffix}" for suffix, _ in self.shapes)

    @property
    def stage(self) -> str:
        return stage_of(self.layer)

    @property
    def size(self) -> tuple[int, int]:
        """(rows, width) of the matrix. A bias is the last column of a linear layer, a row of a norm layer."""
        shape = self.shapes[0][1]
        if self.kind == "norm":
            return len(self.shapes), shape[0]
        return shape[0], prod(shape[1:]) + len(self.shapes) - 1

    def rows(self, params: Params) -> Rows:
        """The slot's matrix, read from parameters with any leading axes."""
        values = [params[name] for name in self.names]
        if self.kind == "norm":
            return torch.stack(values, -2)
        lead = values[0].shape[: values[0].dim() - len(self.shapes[0][1])]
        weight = values[0].reshape(*lead, self.shapes[0][1][0], -1)
        return torch.cat([weight, *(bias.unsqueeze(-1) for bias in values[1:])], -1)

    def parameters(self, rows: Rows) -> Params:
        """The inverse of `rows`."""
        if self.kind == "norm":
            return dict(zip(self.names, rows.unbind(-2), strict=True))
        shape = self.shapes[0][1]
        weight = rows[..., : prod(shape[1:])].reshape(*rows.shape[:-2], *shape)
        values = [weight, *rows[..., prod(shape[1:]) :].unbind(-1)]
        return dict(zip(self.names, values, strict=True))


def towards(layer: str) -> str:
    """The name under which φ says how far a layer moves while it answers.

    A norm layer moves to its group's statistics, (groups, 2, channels); the classifier to what the group shows of
    each class, (groups, classes).
    """
    return f"{layer}.towards"


@dataclass(frozen=True)
class Slots:
    """All slots of a backbone, in the order of its modules, and the name of its classifier."""

    slots: tuple[Slot, ...]
    classifier: str
    norms: tuple[str, ...] = ()  # every norm layer, generated or not: all of them are watched

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def __len__(self) -> int:
        return len(self.slots)

    def parameters_of(self, backbone: nn.Module) -> Params:
        """θ_s of the slots, detached. Read as attributes, because frozen BatchNorm keeps its affine in buffers."""
        return {
            f"{slot.layer}.{suffix}": value.detach()
            for slot in self.slots
            for suffix, value in values_of(backbone.get_submodule(slot.layer))
        }


def find_slots(backbone: nn.Module, selection: Selection) -> Slots:
    """The slots that `selection` asks for. Loud when there are none."""
    classifier = find_classifier(backbone, selection.classifier)
    named: list[Named] = [
        (name, kind, layer)
        for name, layer in backbone.named_modules()
        if (kind := _kind(name, layer, classifier)) is not None
    ]
    _check_names(backbone, named, selection)
    chosen = tuple(_slot(*each) for each in named if _is_selected(*each[:2], selection))
    if not chosen:
        found = {kind: sum(k == kind for _, k, _ in named) for kind in KINDS}
        raise SlotError(
            f"{type(backbone).__name__}: no slot matches {selection}; the model has {found} in the stages "
            f"{_stages(named)}; choose other kinds or stages"
        )
    if any(slot.kind == "classifier" for slot in chosen):
        check_linear(cast(nn.Linear, backbone.get_submodule(classifier)), classifier)
    norms = tuple(name for name, kind, layer in named if kind == "norm" and is_understood(layer))
    return Slots(chosen, classifier, norms)


def _check_names(backbone: nn.Module, named: list[Named], selection: Selection) -> None:
    """Raises where a selection names what is not there: a misspelt name must not pass silently."""
    model, modules = type(backbone).__name__, {name for name, _ in backbone.named_modules()}
    for stage in selection.stages or ():
        if not any(_is_below(name, stage) for name, kind, _ in named if kind != "classifier"):
            raise SlotError(f"{model}: there is no stage {stage!r}; choose from {_stages(named)}")
    for name in selection.exclude:
        if name not in modules:
            raise SlotError(f"{model}: there is no layer {name!r} to exclude")
    for name in selection.include:
        if name not in {found for found, _, _ in named}:
            raise SlotError(f"{model}: {name!r} is no layer whose parameters could be generated")


def _stages(named: list[Named]) -> list[str]:
    return sorted({stage_of(name) for name, kind, _ in named if kind != "classifier"})


def stage_of(layer: str) -> str:
    """The stage a layer belongs to: `layer1`, or `blocks.3` where the first name is only a list."""
    first, *rest = layer.split(".")
    is_list = rest and rest[0].isdigit() and not first[-1].isdigit()
    return f"{first}.{rest[0]}" if is_list else first


def _kind(name: str, layer: nn.Module, classifier: str) -> Kind | None:
    if name == classifier:
        return "classifier"
    if uncompiled(layer) is not layer:  # it looks like the layer within, which is named as well
        return None
    if is_norm(layer):
        return "norm"
    if isinstance(layer, nn.Linear):
        return "linear" if _is_plain_linear(layer) else None
    return "conv" if isinstance(layer, nn.Conv2d) and _is_plain_conv(layer) else None


def _is_plain_linear(layer: nn.Linear) -> bool:
    """Not so: subclasses that compute something else, and attention's out_proj, whose forward is never called."""
    return type(layer).forward is nn.Linear.forward and not isinstance(
        layer, NonDynamicallyQuantizableLinear
    )


def _is_plain_conv(layer: nn.Conv2d) -> bool:
    """Not so: other padding, and subclasses that pad or standardise their filters by themselves."""
    own = type(layer)
    return (
        own.forward is nn.Conv2d.forward
        and own._conv_forward is nn.Conv2d._conv_forward
        and layer.padding_mode == "zeros"
    )


def _is_selected(name: str, kind: Kind, selection: Selection) -> bool:
    if name in selection.include:
        return True
    if kind not in selection.kinds or any(_is_below(name, e) for e in selection.exclude):
        return False
    stages = selection.stages
    return kind == "classifier" or stages is None or any(_is_below(name, s) for s in stages)


def _is_below(name: str, where: str) -> bool:
    return f"{name}.".startswith(f"{where}.")


def _slot(name: str, kind: Kind, layer: nn.Module) -> Slot:
    _check_hooks(name, layer)
    shapes = _shapes(layer)
    settles = kind == "norm" and has_source_statistics(layer) and len(shapes) == 2
    return Slot(name, kind, shapes, settles)


def _shapes(layer: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((suffix, tuple(value.shape)) for suffix, value in values_of(layer))


def values_of(layer: nn.Module) -> list[tuple[str, Tensor]]:
    """The layer's weight and bias, those it has."""
    values = ((suffix, _value(layer, suffix)) for suffix in ("weight", "bias"))
    return [(suffix, value) for suffix, value in values if isinstance(value, Tensor)]


def _value(layer: nn.Module, suffix: str) -> object:
    """A parametrised one as it is in eval mode: in train mode some change by being looked at."""
    parametrised = layer._modules.get("parametrizations")  # asked of every layer in every call
    worked_out = None if parametrised is None else parametrised._modules.get(suffix)
    return getattr(layer, suffix, None) if worked_out is None else in_eval(worked_out)()


def _check_hooks(name: str, layer: nn.Module) -> None:
    """Raises where a weight is no parameter but set before each call: it lags behind what it is made of."""
    found = [suffix for suffix in ("weight", "bias") if isinstance(vars(layer).get(suffix), Tensor)]
    if found and layer._forward_pre_hooks:
        raise SlotError(
            f"{name}: a hook sets the {found[0]} of this {type(layer).__name__} anew before each call "
            "(torch.nn.utils.weight_norm, spectral_norm, prune), so it cannot be generated; use "
            "torch.nn.utils.parametrizations, or remove the hook (remove_weight_norm, prune.remove)"
        )
