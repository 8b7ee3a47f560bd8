"""Each image by itself: all weights follow the entropy of its views' mean prediction downhill, then it is answered.

Zhang, Levine and Finn, "MEMO: Test time robustness via adaptation and augmentation", NeurIPS 2022, section 3,
algorithm 1. Reference: github.com/zhangmarvin/memo, imagenet-exps.

BN mode: mixed; mean and variance are each N/(N+1) · source + 1/(N+1) · current, N being the prior, with the
unbiased variance of what is current: the views together while learning, the image alone while answering. No
gradient flows through them. Prior None keeps the source's statistics. Answers after its update, on the image as it
came. Keeps nothing: every image begins at the source's weights, so it is answered alike in whatever batch, and
`predict` learns and forgets as `step` does. Needs the card's preprocessing, since views are made of plain pixels
(imaging/augmix.py). With a prior it also needs more than one value per channel and image in every BatchNorm layer:
the image is answered alone, and one value has no variance.

Deviations. The optimiser begins anew with every image; the reference keeps one, so that AdamW's moments leak from
image to image (SGD has none). The draws of an image come from the seed and its own pixels, so that a replay is
identical. Pixels are the standardised ones turned back into bytes, cut to 0 to 255 where they are no image's.
"""

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from torch import Tensor, nn
from torch.func import functional_call

from generalizeformer import seeds
from generalizeformer.adapters._about import About
from generalizeformer.adapters._batch_norm import replace_batch_norms
from generalizeformer.adapters._episodes import Episodes
from generalizeformer.adapters._mixed import MixedNorm, Mixing
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.layers import Call
from generalizeformer.core.losses import marginal_entropy
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.shapes import Images, Logits, Params
from generalizeformer.errors import ImageError, UserError
from generalizeformer.imaging import augmix
from generalizeformer.imaging.pixels import to_bytes, to_unit

ABOUT = About(
    paper="Zhang et al., MEMO, NeurIPS 2022",
    moves="all parameters, for each image anew",
    batch_norm="source and current mixed, by a prior",
    keeps="nothing",
    answers="after",
    reference="zhangmarvin/memo, trace memo",
    needs="the card's preprocessing, for views; with a prior, more than one value per channel and image",
)


Views = Callable[[Images], Iterator[Images]]
"""From one image, shape (1, channels, height, width), to its views, shape (views, …), anew for every update."""
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    learning_rate: float = 2.5e-4
    optimizer: Literal["sgd", "adamw"] = "sgd"  # large networks: adamw, as in GRID
    weight_decay: float = 0.0
    steps: int = 1  # updates per image
    views: int = 64  # per update
    prior: float | None = 16.0  # images that the source's statistics count for; None: they are kept
    seed: int = 0  # of the views

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(
                    f"memo: {name} is {getattr(self, name)}; give a number of at least 0"
                )
        for name in ("steps", "views"):
            if getattr(self, name) < 1:
                raise UserError(f"memo: {name} is {getattr(self, name)}; give at least 1")
        if self.prior is not None and not 0 <= self.prior < float("inf"):
            raise UserError(
                f"memo: prior is {self.prior}; give a number of images, 0 or more, or None to keep the source's "
                "statistics"
            )
        if self.optimizer not in OPTIMISERS:
            raise UserError(f"memo: optimizer is {self.optimizer!r}; give 'sgd' or 'adamw'")


GRID: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "learning_rate": 2.5e-4, "weight_decay": 0.0, "views": 64},
    {"optimizer": "adamw", "learning_rate": 1e-5, "weight_decay": 0.01, "views": 64},
    {"optimizer": "sgd", "learning_rate": 0.005, "weight_decay": 0.0, "views": 32},
)
"""The reference names no grid; these are its settings for ResNet-50 (the default), large networks, and CIFAR-10."""


class MEMO(Episodes):
    """One episode per image. `views` makes its views; AugMix's, unless others are given.

    All images of a call share one private copy, which is never written to: an episode has parameters of its own, and
    no new copy, which would take a GPU's host as long as everything else.
    """

    def __init__(
        self, source: GeneralizeFormer, config: Config, views: Views | None = None
    ) -> None:
        self.config = config
        self.views = views or partial(
            augmix_views,
            preprocessing=source.card.preprocessing,
            count=config.views,
            seed=config.seed,
        )
        super().__init__(source)

    def prepare(self, copied: nn.Module) -> nn.Module:
        prior, call = self.config.prior, Call()
        if prior is not None:
            mixing = Mixing(
                method="memo",
                batch_weight=lambda sizes: torch.full_like(sizes, 1 / (prior + 1)),
                gradients=False,
                remedy="keep the source's statistics with prior=None",
            )
            replace_batch_norms(copied, lambda name, layer: MixedNorm(name, layer, call, mixing))
        return Shared(copied, call)

    def networks(self) -> Iterator[nn.Module]:
        return itertools.repeat(self.copied())

    def episodes(self, together: Grouping) -> list[Tensor]:
        return list(torch.arange(len(together.ids), device=together.ids.device).unsqueeze(1))

    def learn(self, network: nn.Module, images: Images) -> Logits:
        adapted = self.adapted(network, images)
        with torch.no_grad():
            return functional_call(network, adapted, (images,))  # type: ignore[no-any-return]

    def adapted(self, network: nn.Module, image: Images) -> Params:
        """The parameters of the network after this image's updates, by their names in it."""
        config, source = self.config, network.named_parameters()
        params = {name: value.clone().requires_grad_() for name, value in source}
        optimizer = OPTIMISERS[config.optimizer](
            params.values(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        for views in itertools.islice(self.views(image), config.steps):
            optimizer.zero_grad()
            logits = functional_call(network, params, (views,))
            marginal_entropy(logits.unsqueeze(1)).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return params


class Shared(nn.Module):
    """A network whose mixing layers read from one place how many images there are."""

    def __init__(self, backbone: nn.Module, call: Call) -> None:
        super().__init__()
        self.backbone, self.call = backbone, call

    def forward(self, images: Images) -> Logits:
        self.call.grouping = grouping(None, len(images), images)  # once for all layers
        return self.backbone(images)  # type: ignore[no-any-return]


def augmix_views(
    image: Images, *, preprocessing: Preprocessing, count: int, seed: int
) -> Iterator[Images]:
    """Views of an image by AugMix, in the image's own units, from draws that are the image's own."""
    if image.shape[1] != preprocessing.channels:
        raise ImageError(
            f"memo: got images of {image.shape[1]} channels for a model whose card tells how {preprocessing.channels} "
            "are standardised, so their pixels are unknown; give the model a card with its own preprocessing"
        )
    shape = (-1, 1, 1)
    mean = image.new_tensor(preprocessing.mean).reshape(shape)
    std = image.new_tensor(preprocessing.std).reshape(shape)
    pixels = to_bytes(image * std + mean)
    generator = torch.Generator().manual_seed(seeds.derive("memo", seed, _fingerprint(pixels)))
    while True:
        views = augmix.views(pixels, count, generator).squeeze(1)
        yield (to_unit(views).to(image.dtype) - mean) / std


def _fingerprint(pixels: UInt8[Tensor, "n c h w"]) -> int:
    return zlib.crc32(pixels.cpu().contiguous().numpy().tobytes())


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Stateless(MEMO(source, config))
