"""The paper's φ: tokens are whole parameter vectors, features and gradients; the parameter positions come out changed.

Eq. 6 of the paper: γ, β of a layer are generated together, the K rows of the classifier together, each slot
from its own rows, the batch's features and its own gradients, by one PyTorch transformer encoder.
Our choices where the text is silent are listed in docs/decisions.md.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor, nn

from generalizeformer.core.generators._units import (
    GRADIENT_FLOOR,
    INPUTS,
    Input,
    check_inputs,
    relative,
    rms,
)
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Slot, Slots
from generalizeformer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Config:
    kind: Literal["rows"] = "rows"
    layers: int = 8  # the paper also reports 4 and 2
    width: int = 512  # every vector is brought to this width
    heads: int = 8
    feedforward: int = 2048
    dropout: float = 0.1
    features: Literal["each", "mean"] = "each"  # one token per image, or one per group
    inputs: tuple[Input, ...] = INPUTS  # which of the three kinds of token φ sees (E16)

    def __post_init__(self) -> None:
        check_inputs(self.inputs)
        if self.width % self.heads:
            raise UserError(
                f"rows: width {self.width} is not a multiple of {self.heads} heads; change one"
            )


class Rows(nn.Module):
    """φ over rows: (source rows | features | gradient rows) → encoder → the changes of the source rows."""

    def __init__(self, slots: Slots, features: int, config: Config) -> None:
        super().__init__()
        self.config = config
        # Side by side, because slots of equal row count share one call of the encoder.
        self.slots = sorted(slots, key=lambda slot: slot.size[0])
        widths = sorted({slot.size[1] for slot in slots})
        width, inputs = config.width, config.inputs
        # Slots of equal width share their projections, as "formatted to the same dimension" suggests.
        self.widen_rows = _projections(widths if "parameters" in inputs else [], width)
        self.widen_gradients = _projections(widths if "gradients" in inputs else [], width)
        self.narrow = nn.ModuleDict({str(w): nn.Linear(width, w) for w in widths})
        for layer in self.narrow.values():
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        if "features" in inputs:
            self.widen_features = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, width))
        if "gradients" in inputs:
            self.magnitude = nn.Parameter(torch.randn(width) * 0.02)
        self.roles = ("rows", *(kind for kind in inputs if kind != "parameters"))
        self.role = nn.Parameter(torch.randn(len(self.roles), width) * 0.02)
        self.layer = nn.Parameter(torch.randn(len(slots), width) * 0.02)
        self.place = nn.Parameter(torch.randn(max(s.size[0] for s in slots), width) * 0.02)
        encoder = nn.TransformerEncoderLayer(
            width, config.heads, config.feedforward, config.dropout, batch_first=True
        )
        encoder.activation_relu_or_gelu = (
            0  # no fused path: one arithmetic, whether training, testing or exporting
        )
        self.encoder = nn.TransformerEncoder(encoder, config.layers, enable_nested_tensor=False)

    def forward(self, source: Params, seen: Observation) -> Params:
        tokens, empty = self._feature_tokens(seen)
        target: Params = {}
        numbered = list(enumerate(self.slots))
        for _, same in groupby(numbered, key=lambda pair: pair[1].size[0]):
            target |= self._generate(list(same), source, seen, tokens, empty)
        return target

    def _generate(
        self,
        slots: list[tuple[int, Slot]],
        source: Params,
        seen: Observation,
        features: Tensor,
        empty: Tensor,
    ) -> Params:
        """The slots of one row count, all layers and groups in one pass of the encoder."""
        groups, count = len(seen.grouping.sizes), slots[0][1].size[0]
        tokens = torch.stack(
            [self._slot_tokens(number, slot, source, seen) for number, slot in slots]
        ).flatten(0, 1)  # (layers · groups, rows or 2 rows, width)
        mask = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        tokens = torch.cat([tokens, features.repeat(len(slots), 1, 1)], 1)
        mask = torch.cat([mask, empty.repeat(len(slots), 1)], 1)
        encoded = self.encoder(tokens, src_key_padding_mask=mask)[:, :count]
        target: Params = {}
        for (_, slot), changed in zip(slots, encoded.unflatten(0, (-1, groups)), strict=True):
            rows = slot.rows(source)
            target |= slot.parameters(rows + rms(rows) * self.narrow[str(slot.size[1])](changed))
        return target

    def _slot_tokens(self, number: int, slot: Slot, source: Params, seen: Observation) -> Tensor:
        """A slot's own tokens: its rows and, at the same places, their gradients."""
        groups, (count, width) = len(seen.grouping.sizes), slot.size
        where = self.layer[number] + self.place[:count]
        rows = self.role[0] + where
        if "parameters" in self.config.inputs:
            matrix = slot.rows(source)
            rows = rows + self.widen_rows[str(width)](matrix / (rms(matrix) + 1e-12))
        tokens = [rows.expand(groups, -1, -1)]
        if "gradients" in self.config.inputs:
            gradients, size = relative(slot.rows(seen.gradients), GRADIENT_FLOOR)
            role = self.role[self.roles.index("gradients")]
            tokens.append(
                self.widen_gradients[str(width)](gradients) + size * self.magnitude + role + where
            )
        return torch.cat(tokens, 1)

    def _feature_tokens(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """(groups, images of the largest group, width), and which of those places are empty."""
        grouping = seen.grouping
        if "features" not in self.config.inputs:
            none = seen.features.new_zeros(len(grouping.sizes), 0, self.config.width)
            return none, none.new_zeros(none.shape[:2], dtype=torch.bool)
        tokens = self.widen_features(seen.features) + self.role[self.roles.index("features")]
        if self.config.features == "each":
            return grouping.dense(tokens)
        mean = grouping.mean(tokens).unsqueeze(1)
        return mean, mean.new_zeros(mean.shape[:2], dtype=torch.bool)


def _projections(widths: list[int], width: int) -> nn.ModuleDict:
    return nn.ModuleDict({str(w): nn.Linear(w, width) for w in widths})


def build(slots: Slots, features: int, config: Config) -> Rows:
    return Rows(slots, features, config)
