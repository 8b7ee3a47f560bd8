"""The paper's training (Alg. 1): one model; each iteration a random source domain plays the target.

Meta-source stage (Eq. 4): cross-entropy of θ on the other domains. Meta-generalization stage (Eq. 5): φ
carries the fresh θ to the chosen domain and learns from its labels. Where the algorithm's generation line
prints source features and gradients we follow the text: those of the meta-target.
"""

from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import DomainDataset
from generalizeformer.training._loop import Metrics
from generalizeformer.training._start import PER_DOMAIN, calibrate
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.erm import Erm
from generalizeformer.training.meta import Config as MetaConfig
from generalizeformer.training.meta import Meta, Pair


@dataclass(frozen=True, kw_only=True)
class Config:
    """How θ and φ learn; the paper's numbers are in `_paper.py`."""

    erm: ErmConfig
    meta: MetaConfig
    calibration: int = PER_DOMAIN  # images of each domain that the model is measured on


class Joint:
    """θ learns the meta-source domains; φ learns to carry θ to a domain left out of this iteration."""

    def __init__(
        self,
        model: GeneralizeFormer,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Config,
        fabric: Fabric,
    ) -> None:
        self.model, self.train, self.preprocessing = model, train, preprocessing
        self.source = Erm(model.backbone, train, validation, preprocessing, config.erm, fabric)
        pairs = [
            Pair(model, domain, held)
            for domain, held in zip(train.domains, validation.domains, strict=True)
        ]
        self.target = Meta(pairs, preprocessing, config.meta, fabric)
        self.pairs, self.calibration = pairs, config.calibration

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        chosen = int(torch.randint(len(self.pairs), (1,), generator=generator))
        self.source.data = self.train.without([self.train.names[chosen]])
        self.target.pairs = [self.pairs[chosen]]
        source = self.source.update(step, generator)
        target = self.target.update(step, generator)
        return {
            "source_loss": source["loss"],
            "target_loss": target["loss"],
            "accuracy": target["accuracy"],
        }

    def validate(self) -> Metrics:
        self.target.pairs = self.pairs
        self._calibrate()
        plain = self.source.validate()["score"]
        return self.target.validate() | {"source": plain}

    def state(self) -> dict[str, Any]:
        return {"source": self.source.state(), "target": self.target.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.source.load(state["source"])
        self.target.load(state["target"])
        self._calibrate()

    def weights(self) -> dict[str, Tensor]:
        backbone = {f"backbone.{name}": v for name, v in self.source.weights().items()}
        return backbone | {f"generator.{name}": v for name, v in self.target.weights().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        for part, owner in (("backbone.", self.source), ("generator.", self.target)):
            mine = {n.removeprefix(part): v for n, v in weights.items() if n.startswith(part)}
            owner.load_weights(mine)
        # How looks vary depends on φ as well, and is needed once both are what they will be.
        self._calibrate(with_looks=True)

    def _calibrate(self, with_looks: bool = False) -> None:
        """θ moves, and with it what its layers see. Follows from the weights, so it is not part of the state."""
        calibrate(self.model, self.train, self.preprocessing, self.calibration, with_looks)
