"""How often images pass through a backbone, forwards and backwards, whoever holds the copy that they pass through."""

import threading
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class Passes:
    """Counts while it is entered, in the thread that entered it.

    Forwards: images given to a whole backbone. A backbone is every module with the type and the children of the
    source's: the lent one, its twins, and the private copies that methods make. A copy whose layers were replaced
    is one too; a wrapper around the backbone is counted once, through what it wraps.
    Backwards: images whose gradients arrived at the features of such a call, or at its logits where no feature
    needs gradients. A walk back through the same call twice counts twice, and all images of a call count, also those
    that a method has left out of its loss: they are computed all the same.
    Not counted: a classifier or projection that a method runs and teaches by itself on features that it keeps,
    and a compiled backbone, whose calls nobody sees.

    Nothing is written into any module: the hooks are PyTorch's global ones, which cost every layer some
    microseconds, all methods alike.
    """

    def __init__(self, backbone: nn.Module, classifier: str) -> None:
        self.kind, self.children, self.classifier = (
            type(backbone),
            set(backbone._modules),
            classifier,
        )
        self.forwards = self.backwards = 0
        self.thread: int | None = None
        self.inside: nn.Module | None = None  # the backbone that is running
        self.head: nn.Module | None = None  # its classifier
        self.watched = False  # whether gradients of the running call will be seen

    def __enter__(self) -> "Passes":
        self.thread = threading.get_ident()
        self.handles = (
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ended, always_call=True),
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self.handles:
            handle.remove()
        self.inside = self.head = None

    def _begins(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if threading.get_ident() != self.thread or not given:
            return
        if self.inside is None:
            if type(module) is self.kind and module._modules.keys() == self.children:
                self.inside, self.head = module, module.get_submodule(self.classifier)
                self.forwards += len(given[0])
                self.watched = False
        elif module is self.head:
            self._watch(given[0])

    def _ended(self, module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        if threading.get_ident() != self.thread or module is not self.inside:
            return
        if not self.watched and isinstance(answer, Tensor):
            self._watch(answer)
        self.inside = self.head = None

    def _watch(self, value: Tensor) -> None:
        """Gradients that arrive at this value are counted. They come in PyTorch's own threads on a GPU."""
        if value.requires_grad:
            self.watched = True
            value.register_hook(self._returned)  # type: ignore[no-untyped-call]

    def _returned(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
