"""Copies of the backbone that methods may write to."""

import copy

from torch import nn

from generalizeformer.core.inputs import uncompiled


def private_copy(backbone: nn.Module) -> nn.Module:
    """In eval mode and without gradients. Of what torch.compile wrapped, the module within: layers are looked into."""
    copied = uncompiled(copy.deepcopy(backbone))
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():
            parent._modules[name] = None if child is None else uncompiled(child)
    return copied.eval().requires_grad_(False)
