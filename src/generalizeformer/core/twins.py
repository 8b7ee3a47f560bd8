"""Private copies of modules: the same tensors in modules of their own, in eval mode; and what would get around them."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from types import MethodType
from typing import Any

from torch import nn
from torch.jit import ScriptModule
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils.parametrize import is_parametrized

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
    # A layer that reads its parameters from the call has a forward of its own.
    return getattr(own, getattr(method, "__name__", ""), method)


@contextmanager
def at_rest(lent: nn.Module) -> Iterator[None]:
    """Refuses that this thread runs a module of the lent model itself, before it is run.

    That would be in the lent model's mode and under its parameters, and BatchNorm would write into it.
    """
    names, here = {id(module): name for name, module in lent.named_modules()}, get_ident()

    def look(module: nn.Module, _: Any) -> None:
        if id(module) in names and get_ident() == here:
            raise SlotError(
                f"{names[id(module)] or 'the model'}: a private copy of {type(lent).__name__} runs this "
                f"{type(module).__name__} of the model that was lent, and not its own; call modules as self.NAME in "
                "forward, and keep them or their methods in no list, dict or lambda (nn.ModuleList is fine)"
            )

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
