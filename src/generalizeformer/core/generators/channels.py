"""Our φ: tokens are channels (and classes, and filters), described in source-normalised units.

No weight of it depends on a layer's width or number, so one φ serves any architecture. Each element is
described by a few numbers, encoded, pooled into one token per slot; a transformer over the slot tokens lets
layers talk; what a slot learned is then decoded into a bounded change, one for all of its elements, or with
`detail` one for each:

- a channel of a norm layer moves its normalisation any part of the way to the batch's own statistics (as
  alpha-BN does, but by a learned amount, mean and variance apart), plus a small free change;
- a row of a linear layer moves along itself, along its gradient, and, in the classifier, towards what the
  batch's features predicted as its class look like (as T3A does, but by a learned amount);
- a row of the classifier also moves to what the source's features of its class showed (`core.prototypes`).

Where layers settle and gather, φ only says how far: the norm layers' statistics and the classes' features are those
of the answering run, in which earlier layers have moved already.
"""

import math
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from generalizeformer.core.generators import _norms, _rows
from generalizeformer.core.generators._units import INPUTS, Input, Owners, check_inputs, perturb
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Kind, Slot, Slots
from generalizeformer.errors import UserError

PLACES = 4  # frequencies of the code that tells a slot's relative depth
SUMMARY = 4  # numbers that describe a group as a whole
# Without gradients, CPUs encode about so many channels and rows at a time: all at once they take hundreds of megabytes.
ENCODED = 2**16
# In so many groups at least: matrix products round the last rows of a number that is no multiple of their blocks in
# another way, and then groups would be answered in other bits.
ALIGNED = 16
FAMILIES = {"norm": _norms, "classifier": _rows, "linear": _rows, "conv": _rows}


@dataclass(frozen=True, kw_only=True)
class Config:
    kind: Literal["channels"] = "channels"
    layers: int = 2  # of the transformer over slots
    width: int = 64
    heads: int = 4
    dropout: float = 0.0
    reach: float = 0.5  # bound of the move towards the batch's statistics; 1 is all the way
    pull: float = 1.1  # bound of what every gathered feature adds to its class's row
    recall: float = 1.0  # bound of the move of classifier rows to the source's prototypes; 0: none
    prior: float = 1.0  # images of the source that a batch's statistics are weighed against
    # Directions of each settling layer in which looks vary: in mixed groups, statistics count along them as far as they
    # tell of a look (`core.variation`), and the prior is one of five images. 0: none. Without effect if none settles.
    variation: int = 32
    away: float = 0.1  # what is left of a move in the other direction; 1 is all of it
    change: float = 0.3  # bound of every other change, in units of the source parameters
    settle: bool = True  # moves go towards what layers show in the answering run, not in the first
    gather: bool = True  # classifier rows move to their class's features in the answering run
    detail: bool = False  # each channel and row moves by itself; else all of a layer alike
    noise: float = 0.1  # on the descriptors, in training only
    inputs: tuple[Input, ...] = INPUTS  # which of the three kinds of information φ sees (E16)

    def __post_init__(self) -> None:
        check_inputs(self.inputs)
        shares = (self.away, self.recall)
        if min(self.reach, self.pull, self.change, self.prior, *shares) < 0 or max(shares) > 1:
            raise UserError(
                f"channels: reach is {self.reach}, pull {self.pull}, change {self.change}, prior {self.prior}, away "
                f"{self.away}, recall {self.recall}; none may be negative, and the last two are at most 1"
            )
        if self.variation < 0:
            raise UserError(
                f"channels: variation is {self.variation}; give a number of directions, say 32, or 0 for none"
            )
        if self.width % self.heads:
            raise UserError(
                f"channels: width {self.width} is not a multiple of {self.heads} heads; change one"
            )

    def settling(self, slots: Slots) -> list[Slot]:
        """The norm layers that move towards what they show in the answering run."""
        return [slot for slot in slots if slot.kind == "norm" and _norms.settles(slot, self)]

    def recalls(self, slots: Slots) -> bool:
        """Whether rows of the classifier move to the source's prototypes."""
        return any(_rows.recalls(slot.kind, self) for slot in slots)


class Channels(nn.Module):
    """φ over channels: describe → encode → pool per slot → transformer over slots → decode per channel."""

    def __init__(self, slots: Slots, config: Config) -> None:
        super().__init__()
        self.config, width = config, config.width
        depth = {slot.layer: number / max(1, len(slots) - 1) for number, slot in enumerate(slots)}
        kinds = sorted({slot.kind for slot in slots})
        self.kinds = {kind: [slot for slot in slots if slot.kind == kind] for kind in kinds}
        self.depth = [depth[slot.layer] for mine in self.kinds.values() for slot in mine]
        self.encode = nn.ModuleDict({k: _mlp(FAMILIES[k].DESCRIPTORS, width, width) for k in kinds})
        moves = {k: FAMILIES[k].MOVES + _rows.recalls(k, config) for k in kinds}
        self.decode = nn.ModuleDict({k: _mlp(2 * width, width, moves[k]) for k in kinds})
        for decoder in self.decode.values():
            nn.init.zeros_(decoder[-1].weight)  # type: ignore[index]
            nn.init.zeros_(decoder[-1].bias)  # type: ignore[index]
        self.place = nn.Linear(2 * PLACES, width)
        self.summary = nn.Linear(SUMMARY, width)
        layer = nn.TransformerEncoderLayer(
            width,
            config.heads,
            2 * width,
            config.dropout,
            "gelu",
            batch_first=True,
            norm_first=True,
        )
        layer.activation_relu_or_gelu = 0  # no fused path: one arithmetic in training and at test
        self.mix = nn.TransformerEncoder(
            layer, config.layers, nn.LayerNorm(width), enable_nested_tensor=False
        )

    def forward(self, source: Params, seen: Observation) -> Params:
        read = {kind: self._read(kind, source, seen) for kind in self.kinds}
        tokens = torch.cat([token for token, _ in read.values()], 1)
        context = self.mix(tokens + self._place(tokens) + self._about(seen))
        parts = torch.split(context, [len(mine) for mine in self.kinds.values()], 1)
        target: Params = {}
        for (kind, mine), part in zip(self.kinds.items(), parts, strict=True):
            moves = self._moves(kind, read[kind][1], part)
            target |= FAMILIES[kind].apply(mine, source, seen, moves, self.config)
        return target

    @torch.no_grad()
    def begin(self, move: float, pull: float, recall: float) -> None:
        """Where a training starts: how far norm layers move, what rows gather of each feature, how far they recall.

        At most nine tenths of what is possible: at its bound a move has no gradient.
        """
        starts: tuple[tuple[Kind, slice, float, float], ...] = (
            ("norm", _norms.TOWARDS, move, self.config.reach),
            ("classifier", _rows.GATHER, pull, self.config.pull),
            ("classifier", _rows.RECALL, recall, self.config.recall),
        )
        for kind, moves, start, bound in starts:
            if start and bound and kind in self.decode:
                part = min(start / bound, 0.9)
                self.decode[kind][-1].bias[moves] = math.atanh(part)  # type: ignore[index]

    def _read(self, kind: Kind, source: Params, seen: Observation) -> tuple[Tensor, Tensor | None]:
        """A token of each slot of a kind, and what is encoded of each element where something needs that later on.

        The tokens are (groups, slots, width): the mean of what is encoded of each slot's elements. The last layer is
        linear, so it may come after the mean: a token of each slot instead of thousands of channels.
        """
        described = FAMILIES[kind].describe(self.kinds[kind], source, seen, self.config.inputs)
        values = perturb(described, self.config.noise if self.training else 0.0)
        owners, last = self._owners(kind, values), self._encoder(kind)[-1]
        if self.config.detail or torch.is_grad_enabled() or values.device.type != "cpu":
            hidden = self._encode(kind, values)
            return last(owners.mean(hidden)), hidden
        at_once = ALIGNED * max(1, ENCODED // (ALIGNED * values.shape[1]))
        parts = torch.split(values, at_once)
        means = [owners.mean(self._encode(kind, part)) for part in parts]
        return last(torch.cat(means)), None

    def _encode(self, kind: Kind, values: Tensor) -> Tensor:
        """(groups, elements, width): the elements of all slots of a kind, in one pass, but for the last layer."""
        for layer in self._encoder(kind)[:-1]:
            values = layer(values)
        return values

    def _moves(self, kind: Kind, hidden: Tensor | None, context: Tensor) -> Tensor:
        """(groups, elements, moves) of a kind, from -1 to 1."""
        owners = self._owners(kind, context)
        if self.config.detail:
            assert hidden is not None
            own = self._encoder(kind)[-1](hidden)
            known = torch.cat([own, owners.spread(context)], -1)
            return self.decode[kind](known).tanh()  # type: ignore[no-any-return]
        # What is alike for all elements of a slot is decoded once.
        known = torch.cat([torch.zeros_like(context), context], -1)
        return owners.spread(self.decode[kind](known).tanh())

    def _encoder(self, kind: Kind) -> nn.Sequential:
        return cast(nn.Sequential, self.encode[kind])

    def _owners(self, kind: Kind, like: Tensor) -> Owners:
        counts = [FAMILIES[kind].elements(slot) for slot in self.kinds[kind]]
        return Owners.of(counts, like.device)

    def _place(self, like: Tensor) -> Tensor:
        """(slots, width): how deep in the network each slot lies."""
        depth = torch.tensor(self.depth, device=like.device, dtype=like.dtype).unsqueeze(1)
        angles = depth * torch.pi * 2.0 ** torch.arange(PLACES).to(like)
        return self.place(torch.cat([angles.sin(), angles.cos()], 1))  # type: ignore[no-any-return]

    def _about(self, seen: Observation) -> Tensor:
        return self.summary(_summary(seen, self.config.inputs)).unsqueeze(1)  # type: ignore[no-any-return]


def _summary(seen: Observation, inputs: tuple[Input, ...]) -> Tensor:
    """A group as a whole: how many images, how sure the source model is, how varied its answers are."""
    classes = seen.logits.shape[1]
    scale = torch.tensor(max(classes, 2), dtype=seen.logits.dtype, device=seen.logits.device).log()
    unsure = seen.grouping.mean(per_image_entropy(seen.logits)) / scale
    mean_answer = seen.grouping.mean(seen.logits.softmax(-1))
    varied = -(mean_answer * mean_answer.clamp(min=1e-12).log()).sum(-1) / scale
    size = seen.grouping.sizes.to(unsure.dtype)
    told = float("features" in inputs)
    return torch.stack([told * unsure, told * varied, size.log() / 4, size.rsqrt()], -1)


def _mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, outputs),
    )


def build(slots: Slots, config: Config) -> Channels:
    return Channels(slots, config)
