"""Where a convolutional backbone goes from one resolution to the next: the last module of each stage."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from generalizeformer.core.shapes import Images


class Stage(NamedTuple):
    """A module after which the feature maps of one resolution are complete, and the shape of what it gives."""

    name: str
    shape: tuple[int, int, int]  # channels, height, width


class _Call(NamedTuple):
    name: str
    module: nn.Module
    shape: tuple[int, ...]


def find_stages(backbone: nn.Module, images: Images, most: int) -> tuple[Stage, ...]:
    """The stages with the `most` last resolutions, in the order in which they run; none where there are no maps.

    A resolution counts where a convolution gives maps of it, larger than one pixel. Of the modules that run once and
    give such maps, the outermost stand for the whole stage, and the last of them is its end: in a residual block the
    inner ones do not lie on everything's way.
    """
    calls = _calls(backbone, images)
    runs = [call.module for call in calls]
    convolved = [call for call in calls if isinstance(call.module, nn.Conv2d)]
    resolutions = dict.fromkeys(call.shape[2:] for call in convolved if call.shape[2:] != (1, 1))
    ends = []
    for resolution in resolutions:
        once = [c for c in calls if c.shape[2:] == resolution and runs.count(c.module) == 1]
        if once:
            outermost = min(call.name.count(".") for call in once)
            ends.append([call for call in once if call.name.count(".") == outermost][-1])
    ends.sort(key=calls.index)
    return tuple(
        Stage(end.name, (end.shape[1], end.shape[2], end.shape[3])) for end in ends[-most:]
    )


@torch.no_grad()
def _calls(backbone: nn.Module, images: Images) -> list[_Call]:
    """Everything that gives one map per image, in the order in which it is done."""
    calls: list[_Call] = []

    def watch(name: str, module: nn.Module) -> Any:
        def note(_: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() == 4 and len(output) == len(images):
                calls.append(_Call(name, module, tuple(output.shape)))

        return module.register_forward_hook(note)

    modes = {module: module.training for module in backbone.modules()}
    hooks = [watch(name, module) for name, module in backbone.named_modules() if name]
    try:
        backbone.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return calls
