"""From stored pixels to what a backbone takes: size, range, mean and standard deviation."""

from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.shapes import Images
from generalizeformer.errors import ImageError, UserError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Saved with the model, so that pixels are treated at test time as they were in training."""

    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0 or self.size < 1:
            raise UserError(
                f"preprocessing: got {self}; mean and std need one number per channel, std above 0, size at least 1"
            )

    @property
    def channels(self) -> int:
        return len(self.mean)

    def __call__(self, pixels: UInt8[Tensor, "n c h w"]) -> Images:
        """Float images of the right size, standardised. The aspect is not kept, as in the field's recipe."""
        if pixels.dtype != torch.uint8 or pixels.dim() != 4 or pixels.shape[1] != self.channels:
            raise ImageError(
                f"pixels: got {pixels.dtype} of shape {tuple(pixels.shape)}; give uint8 of shape "
                f"(N, {self.channels}, H, W)"
            )
        images = pixels.float() / 255
        if images.shape[-2:] != (self.size, self.size):
            images = F.interpolate(
                images, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False
            )
        mean = torch.tensor(self.mean, device=images.device).reshape(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).reshape(-1, 1, 1)
        return (images - mean) / std
