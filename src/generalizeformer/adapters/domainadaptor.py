"""Statistics merged by how far the batch is from the source, then one step of a generalised entropy; per batch.

Zhang, Qi, Shi and Gao, "DomainAdaptor: A novel approach to test-time adaptation", ICCV 2023, section 3 (AdaMixBN
and GEM). Reference: github.com/koncle/DomainAdaptor, models/DomainAdaptor.py.

BN mode: the batch's statistics (unbiased variance, with gradients), after the first pass has folded the merge
λ · source + (1-λ) · batch into each layer's γ and β. λ is the mean over images of 1 - st / (st + is + it), the
squared distances in mean and standard deviation between batch and source, image and source, image and batch, with
channels averaged. Answers after its update: γ and β as folded move, then the batch is answered again, with the
statistics that its features then have and no new merge. Keeps nothing: every batch begins at the source's
weights, each group of images is answered from itself alone, and `predict` learns and forgets as `step` does.
Needs BatchNorm layers with running statistics, over feature maps.

The losses divide centred logits by T, twice their standard deviation: `gem-t` is T² times the entropy at that
temperature, `gem-skd` T² times the cross-entropy to the prediction without it, `em` the plain entropy.

Deviations. The paper takes the mean of T² · entropy over images. The reference multiplies shapes (B) and (B, 1)
to a matrix of B x B, whose mean is mean entropy times mean T²: `broadcast=True` is that form, and the one that its
recorded numbers are compared with. T has a floor, where the reference divides by 0 for equal logits.
GEM-Aug and online adaptation are not part of this file. Layers without γ and β get ones and zeros to fold into.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._batch_norm import replace_batch_norms
from generalizeformer.adapters._episodes import Episodes
from generalizeformer.adapters._mixed import require_batch_norms, require_understood, unbiased
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.normalisers import rescaled
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.core.statistics import Statistics, moments
from generalizeformer.errors import ImageError, UserError

ABOUT = About(
    paper="Zhang et al., DomainAdaptor, ICCV 2023",
    moves="γ, β of BatchNorm, for each batch anew",
    batch_norm="batch, the merge with the source's folded into γ, β",
    keeps="nothing",
    answers="after",
    reference="koncle/DomainAdaptor, trace domainadaptor",
    needs="BatchNorm over feature maps",
)


Scalar = Float[Tensor, ""]
LOSSES = ("gem-t", "gem-skd", "em")


@dataclass(frozen=True, kw_only=True)
class Config:
    learning_rate: float = 1e-3  # of SGD without momentum; 0 leaves the merged statistics
    loss: Literal["gem-t", "gem-skd", "em"] = "gem-t"
    steps: int = 1  # updates per batch
    source_weight: float | None = None  # λ of every layer; None: as far as the batch is away
    broadcast: bool = (
        False  # mean entropy times mean T², as the reference; else the paper's mean of products
    )

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < float("inf"):
            raise UserError(
                f"domainadaptor: learning_rate is {self.learning_rate}; give a number of at least 0"
            )
        if self.loss not in LOSSES:
            raise UserError(
                f"domainadaptor: loss is {self.loss!r}; choose one of: {', '.join(LOSSES)}"
            )
        if self.steps < 1:
            raise UserError(f"domainadaptor: steps is {self.steps}; give at least 1")
        if self.source_weight is not None and not 0 <= self.source_weight <= 1:
            raise UserError(
                f"domainadaptor: source_weight is {self.source_weight}; it is a share, from 0 (batch) to 1 (source), "
                "or None"
            )


GRID: tuple[dict[str, Any], ...] = ({"loss": "gem-t"}, {"loss": "gem-skd"})
"""The paper's losses as far as they are here, its main one first."""


class DomainAdaptor(Episodes):
    """One episode per group."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config = config
        super().__init__(source)

    def prepare(self, copied: nn.Module) -> nn.Module:
        require_batch_norms(copied, "domainadaptor")
        replace_batch_norms(
            copied, lambda name, layer: FoldedNorm(name, layer, self.config.source_weight)
        )
        return copied

    def learn(self, network: nn.Module, images: Images) -> Logits:
        self.adapt(network, images)
        with torch.no_grad():
            return network(images)  # type: ignore[no-any-return]

    def adapt(self, network: nn.Module, images: Images) -> None:
        """All updates for this batch."""
        moving = [value for value in network.parameters() if value.requires_grad]
        optimizer = torch.optim.SGD(moving, lr=self.config.learning_rate)
        for _ in range(self.config.steps):
            optimizer.zero_grad()
            loss = generalised_entropy(network(images), self.config)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


class FoldedNorm(nn.Module):
    """A BatchNorm layer that its first batch merges with the source, by moving γ and β (AdaMixBN)."""

    def __init__(self, name: str, layer: nn.Module, source_weight: float | None) -> None:
        super().__init__()
        require_understood(layer, name, "domainadaptor")
        self.name, self.source_weight = name, source_weight
        self.share: Scalar | None = None  # λ, once merged
        mean: Tensor = layer.running_mean  # type: ignore[assignment]
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        self.weight = nn.Parameter(torch.ones_like(mean) if weight is None else weight.clone())
        self.bias = nn.Parameter(torch.zeros_like(mean) if bias is None else bias.clone())
        self.layer: Any = layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        positions = self._check(x)
        seen = moments(x)
        batch = unbiased(seen, grouping(None, len(x), x), positions)
        if self.share is None:
            self._merge(seen, batch, positions)
        scale = (batch.variance + self.layer.eps).rsqrt() * self.weight
        return rescaled(self.layer, x, scale, self.bias - batch.mean * scale)

    @torch.no_grad()
    def _merge(self, images: Statistics, batch: Statistics, positions: int) -> None:
        """γ and β with which the batch's statistics give what the merged ones would have given."""
        mean, variance = (
            value.to(batch.mean) for value in (self.layer.running_mean, self.layer.running_var)
        )
        share = batch.mean.new_tensor(self.source_weight or 0.0)
        if self.source_weight is None:
            spread = (images.variance * positions / (positions - 1)).sqrt()
            of_batch = (batch.mean, batch.variance.sqrt())
            share = closeness((images.mean, spread), (mean, variance.sqrt()), of_batch)
        own = (batch.variance + self.layer.eps).sqrt()
        mixed = torch.lerp(batch.variance, variance, share) + self.layer.eps
        weight = self.weight * own / mixed.sqrt()
        self.bias.add_((share * (batch.mean - mean) / own * weight).squeeze(0))
        self.weight.copy_(weight.squeeze(0))
        self.share = share

    def _check(self, x: Tensor) -> int:
        """How many values an image has in a channel: enough for what is computed of them."""
        positions = x[0, 0].numel()
        if positions == 1 and self.source_weight is None:
            raise ImageError(
                f"domainadaptor: {self.name} sees one value per channel and image, and one value has no spread to "
                "weigh the source by; set source_weight, or try alpha_bn"
            )
        if positions * len(x) == 1:
            raise ImageError(
                f"domainadaptor: {self.name} sees one value per channel, and one value has no variance; give at "
                "least 2 images per group"
            )
        return positions


Described = tuple[Tensor, Tensor]  # mean and standard deviation, (images or 1, channels)


def closeness(images: Described, source: Described, batch: Described) -> Scalar:
    """λ: the source's weight, 1 where the batch is like the source."""

    def distance(one: Described, other: Described) -> Tensor:
        return sum((a - b).square().mean(-1) for a, b in zip(one, other, strict=True))  # type: ignore[return-value]

    away = distance(batch, source)
    total = away + distance(images, source) + distance(images, batch)
    return (1 - away / total.clamp(min=torch.finfo(total.dtype).tiny)).clamp(0, 1).mean()


def generalised_entropy(logits: Logits, config: Config) -> Scalar:
    """The loss of a batch."""
    if config.loss == "em":
        return per_image_entropy(logits).mean()
    centred = logits - logits.mean(1, keepdim=True).detach()
    spare = min(1, logits.shape[1] - 1)  # a single class has no spread
    temperature = 2 * centred.detach().std(1, keepdim=True, correction=spare)
    temperature = temperature.clamp(min=torch.finfo(logits.dtype).eps)
    log_p = (centred / temperature).log_softmax(1)
    target = centred.detach().softmax(1) if config.loss == "gem-skd" else log_p.exp()
    entropy, squared = -(target * log_p).sum(1), temperature.square().squeeze(1)
    return entropy.mean() * squared.mean() if config.broadcast else (entropy * squared).mean()


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Stateless(DomainAdaptor(source, config))
