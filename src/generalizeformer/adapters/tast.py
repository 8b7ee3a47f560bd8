"""Classes told by the nearest supports under many small projections, which learn to agree with them.

Jang, Chung and Chung, "Test-time adaptation via self-training with nearest neighbor information" (TAST), ICLR 2023
(first public in 2022), section 3, algorithm 1. Reference: github.com/mingukjang/TAST, domainbed/adapt_algorithms.py.

BN mode: the source's running statistics. Answers with its supports after, and its projections before their update: a
batch's own features are supports already (T3A's, with the classifier's rows first), so that an image may be its own
neighbour, and the first batch is answered by projections as they were drawn. Keeps the supports, the projections and
Adam's moments. Needs a linear classifier. The backbone is never changed.

Each projection h_e(z) = s_e * (V (r_e * z)) + a_e shares V with the others. Under it a support is as likely of a class
as its cosine with the mean support of the class says; an image's answer is the mean of its nearest supports', over
all projections. Neighbours are found among the source's features.

Deviations. Answers are the logarithms of the reference's probabilities, so that softmax gives those back. `predict`
learns nothing; the reference updates its projections whatever it is asked. Where there are fewer supports than
neighbours asked for, all are used; the reference fails. With all supports kept, at most supports / classes neighbours
are used, as in the reference. It names no default, only a grid to choose from on source data; ours is its most
projections with T3A's default of supports.
"""

from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._learner import Learner
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._prototypes import Judgement, judged, nearest
from generalizeformer.adapters._supports import Supports, observed
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import UserError
from generalizeformer.seeds import derive

ABOUT = About(
    paper="Jang et al., TAST, ICLR 2023",
    moves="small projections of the features",
    batch_norm="source",
    keeps="supports, projections, Adam's moments",
    answers="supports after, projections before",
    reference="mingukjang/TAST, trace tast",
    needs="linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    heads: int = 20  # projections
    supports: int | None = 100  # features kept per class; None keeps all, and memory grows
    neighbours: int = 4  # supports that speak for an image
    steps: int = 1  # updates per batch
    learning_rate: float = 1e-3  # of Adam; 0 leaves the projections as they were drawn
    scale: float = 10.0  # of cosines before softmax
    seed: int = 0  # of the projections

    def __post_init__(self) -> None:
        if self.supports is not None and self.supports < 1:
            raise UserError(
                f"tast: supports is {self.supports}; give at least 1, or None to keep all"
            )
        for name in ("heads", "neighbours", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"tast: {name} is {getattr(self, name)}; give at least 1")
        if not (0 <= self.learning_rate < float("inf") and 0 < self.scale < float("inf")):
            raise UserError(
                f"tast: learning_rate is {self.learning_rate} and scale is {self.scale}; give a learning rate of at "
                "least 0 and a scale above 0"
            )


GRID: tuple[dict[str, Any], ...] = tuple(
    {"heads": heads, "supports": supports, "neighbours": neighbours, "steps": steps}
    for heads, supports, neighbours, steps in product(
        (20, 1, 5, 10), (100, 1, 5, 20, 50, None), (4, 1, 2, 8), (1, 3)
    )
)
"""The reference's grid, to be searched on source data; our default first."""


class Heads(nn.Module):
    """Projections to a quarter of the width: one shared matrix, scaled before and after by each head."""

    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        narrow = max(1, width // 4)
        # Drawn like weight matrices, as in the reference: the scales are not near 1.
        self.shared = _drawn(narrow, width, generator)
        self.before = _drawn(heads, width, generator)
        self.after = _drawn(heads, narrow, generator)
        self.shift = nn.Parameter(torch.zeros(heads, narrow))

    def forward(self, features: Features) -> Float[Tensor, "heads images narrow"]:
        # Scaling the matrix gives what scaling every feature gives, and is smaller.
        matrices = self.shared * self.before.unsqueeze(1)
        return features @ matrices.mT * self.after.unsqueeze(1) + self.shift.unsqueeze(1)


def _drawn(rows: int, width: int, generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, width, generator=generator) * sqrt(2 / width))


class TAST(Supports, Learner):
    """T3A's supports, and projections that learn from them."""

    name = "tast"

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config, self.limit = config, config.supports
        super().__init__(source)

    def reset(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._begin_with_rows()
            generator = torch.Generator().manual_seed(derive(self.name, self.config.seed))
            width = self.supports.shape[1]
            self.heads = Heads(width, self.config.heads, generator).to(self.supports)
            self.optimizer = torch.optim.Adam(self.heads.parameters(), self.config.learning_rate)

    def learn(self, images: Images) -> Logits:
        with torch.no_grad():
            seen = observed(self.source, images)
        self._remember(seen.features, seen.logits)
        for _ in range(self.config.steps):
            judgement = self._judge(seen.features)
            self.optimizer.zero_grad()
            judgement.divergence().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return judgement.log_answers()

    def answer(self, images: Images) -> Logits:
        return self._judge(observed(self.source, images).features).log_answers()

    def _judge(self, features: Features) -> Judgement:
        features, classes = features.to(self.supports.dtype), self.source.classes
        most = self.limit or max(1, len(self.supports) // classes)
        near = nearest(features, self.supports, min(self.config.neighbours, most))
        points = self.heads(torch.cat([features, self.supports]))
        return judged(points, near, self.labels, classes, self.config.scale)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return TAST(source, config)
