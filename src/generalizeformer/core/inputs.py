"""What the public calls accept: each refusal says what came, what would be right, and what to do."""

import torch
from torch import Tensor, nn

from generalizeformer.errors import ImageError, UserError

# What devices and their libraries say where memory ran out and PyTorch has no type for it.
MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def check_images(images: Tensor, backbone: nn.Module) -> None:
    """Raises ImageError unless `images` is a non-empty, finite (N, C, H, W) tensor of the backbone's dtype."""
    if not isinstance(images, Tensor):
        raise ImageError(
            f"images: got {type(images).__name__}; give a float tensor of shape (N, C, H, W)"
        )
    if images.dim() != 4 or 0 in images.shape:
        raise ImageError(
            f"images: got shape {tuple(images.shape)}; give a non-empty batch of shape (N, C, H, W)"
        )
    _check_dtype(images, backbone)
    channels = accepted_channels(backbone)
    if channels and images.shape[1] not in channels:
        raise ImageError(
            f"images: got {images.shape[1]} channels; this model takes {channels[0]}; convert the images first"
        )
    if not torch.isfinite(images).all():
        bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero().flatten().tolist()
        raise ImageError(
            f"images: NaN or infinite pixels in image {bad[0]} ({len(bad)} such images); drop them"
        )


def check_module(backbone: object) -> None:
    """Raises UserError unless the backbone is a module: not its name, its class, or what builds it."""
    if not isinstance(backbone, nn.Module):
        got = (
            f"the class {backbone.__name__}"
            if isinstance(backbone, type)
            else type(backbone).__name__
        )
        raise UserError(
            f"backbone: got {got}; give a torch module, such as timm.create_model('resnet18')"
        )


def check_gradients_pass(backbone: nn.Module) -> None:
    """Raises UserError where a parameter or a buffer was made in torch.inference_mode: autograd refuses those."""
    for name, value in (*backbone.named_parameters(), *backbone.named_buffers()):
        if value.is_inference():
            raise UserError(
                f"backbone: {name} was made in torch.inference_mode, so no gradient can pass through "
                f"{type(backbone).__name__}; build and load it outside of that, or give copy.deepcopy(backbone) made "
                "outside"
            )


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, or the one given: what is compiled cannot be looked into."""
    # Its own child: a wrapper may pass on what it is asked for to the module within.
    return dict(module.named_children()).get("_orig_mod", module)


def is_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out, of whatever device: the images are not to blame for that."""
    told = any(words in str(error) for words in MEMORY)
    return told or isinstance(error, torch.OutOfMemoryError)


def accepted_channels(backbone: nn.Module) -> list[int]:
    """Channels that some convolution takes, the first one's first: which one meets the images cannot be told."""
    return [module.in_channels for module in backbone.modules() if isinstance(module, nn.Conv2d)]


def _check_dtype(images: Tensor, backbone: nn.Module) -> None:
    dtype = next((p.dtype for p in backbone.parameters() if p.is_floating_point()), torch.float32)
    if not images.is_floating_point():
        raise ImageError(
            f"images: got {images.dtype}; give floats, preprocessed as the model was trained (for example "
            "images / 255, then mean and standard deviation)"
        )
    if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
        raise ImageError(
            f"images: got {images.dtype} for a {dtype} model; convert with images.to({dtype})"
        )
