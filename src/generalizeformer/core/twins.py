"""Private copies of modules: the same tensors in modules of their own, in eval mode; and what would get around them."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from generalizeformer.errors import SlotError

# Attributes by which timm, transformers and torchvision tell modules to compute again for gradients, when parameters of
# the call are no longer there.
CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing", "memory_efficient")


def twin_of(lent: nn.Module, name: str) -> nn.Module:
    """A shallow copy in eval mode. It shares _buffers with the lent module: moving that one moves this one."""
    _check_can_be_copied(lent, name)
    if is_parametrized(lent):  # they refuse to be copied so
        twin: nn.Module = object.__new__(type(lent))
        vars(twin).update(vars(lent), _compiled_call_impl=None)
    else:
        twin = copy.copy(lent)
    for key, value in vars(lent).items():
        if isinstance(value, MethodType) and value.__self__ is lent:
            vars(twin)[key] = MethodType(value.__func__, twin)
    twin.training = False
    for switch in CHECKPOINTING:
        if vars(twin).get(switch) is True:
            vars(twin)[switch] = False
    return twin


def _check_can_be_copied(lent: nn.Module, name: str) -> None:
    if isinstance(lent, ScriptModule):
        raise SlotError(
            f"{name or 'the model'}: a {type(lent).__name__} of TorchScript has no private copy; use the module it was "
            "made of"
        )
    own = vars(lent).get("forward")
    if own is not None and getattr(own, "__self__", None) is not lent:
        raise SlotError(
            f"{name or 'the model'}: the forward of this {type(lent).__name__} was set on the object, so a private "
            "copy of it would run the model that was lent; define forward in a class"
        )


def in_eval(lent: nn.Module) -> nn.Module:
    """The twin of a module and of all within, for one use."""
    twin = twin_of(lent, "")
    parts = lent._modules.items()
    twin._modules = {name: None if part is None else in_eval(part) for name, part in parts}
    return twin


def rebind(twin: nn.Module, made: Mapping[int, nn.Module]) -> None:
    """Methods of lent modules that the twin carries become those of their twins. `made`: these, by lent id."""
    for key, value in vars(twin).items():
        if isinstance(value, MethodType) and id(value.__self__) in made:
            vars(twin)[key] = _of(made[id(value.__self__)], value)


def _of(own: nn.Module, method: MethodType) -> Any:
    """The lent module's method as one of its twin."""
    if type(own) is type(method.__self__):
        return MethodType(method.__func__, own)
    # A layer that reads its parameters from the call has a forward of its own, and nothing else.
    name = getattr(method, "__name__", "")
    if not hasattr(own, name):
        raise SlotError(
            f"{name}: this method of a {type(method.__self__).__name__} is kept by another module, but the layer that "
            "takes its place has none of that name; call it as self.NAME in forward, or leave the layer out with "
            "Selection(exclude=...)"
        )
    return getattr(own, name)


@contextmanager
def at_rest(lent: nn.Module) -> Iterator[None]:
    """Refuses that this thread runs a module of the lent model itself, or one of its methods, before it is run.

    That would be in the lent model's mode and under its parameters, and BatchNorm would write into it.
    """
    with unrun(lent), _Unread(lent):
        yield


@contextmanager
def unrun(lent: nn.Module) -> Iterator[None]:
    """The same of modules that are called, for copies whose owners may read the lent model's parameters."""
    names, here = {id(module): name for name, module in lent.named_modules()}, get_ident()

    def look(module: nn.Module, _: Any) -> None:
        if id(module) in names and get_ident() == here:
            raise _refusal(lent, names[id(module)], module)

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


class _Unread(TorchFunctionMode):
    """Refuses what the lent model's own layers would do: work with their parameters, or write to their buffers.

    Twins have parameters of their own over the same numbers, and in eval mode they write to no buffer.
    """

    def __init__(self, lent: nn.Module) -> None:
        super().__init__()
        self.lent = lent
        self.parameters = _owners(lent, "_parameters")
        self.buffers = _owners(lent, "_buffers")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        given = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        theirs = [value for value in given if id(value) in self.parameters]
        if theirs and len(theirs) < len(given):  # by themselves they are only looked at, or copied
            raise _refusal(self.lent, *self.parameters[id(theirs[0])])
        written = getattr(func, "__name__", "").removesuffix("__")
        if written.endswith("_") and given and id(given[0]) in self.buffers:
            raise _refusal(self.lent, *self.buffers[id(given[0])])
        return func(*args, **named)


def _owners(lent: nn.Module, kind: str) -> dict[int, tuple[str, nn.Module]]:
    """The lent model's own tensors of a kind, by id, and the modules that have them."""
    return {
        id(value): (name, module)
        for name, module in lent.named_modules()
        for value in vars(module)[kind].values()
        if value is not None
    }


def _refusal(lent: nn.Module, name: str, module: nn.Module) -> SlotError:
    return SlotError(
        f"{name or 'the model'}: a private copy of {type(lent).__name__} runs this {type(module).__name__} of the "
        "model that was lent, and not its own; call modules as self.NAME in forward, and keep them or their methods in "
        "no list, dict or lambda (nn.ModuleList is fine)"
    )
