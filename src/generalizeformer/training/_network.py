"""What trainings of a network of a method's own have in common, whatever they do in a step."""

from collections.abc import Iterable
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.shapes import Images
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.imaging.augmentation import augment
from generalizeformer.training._loop import Metrics
from generalizeformer.training._scoring import accuracy
from generalizeformer.training._start import placed


class NetworkTraining:
    """All but the steps of a training method (`_loop.Method`): its network, optimisers, images, and validation."""

    network: Any
    config: Any  # with an `augmentation`

    def __init__(
        self,
        network: nn.Module,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Any,
        fabric: Fabric,
    ) -> None:
        self.network = placed(network.requires_grad_(), fabric.device)
        self.data, self.validation, self.preprocessing = train, validation, preprocessing
        self.config, self.fabric = config, fabric
        self.optimizers: dict[str, Optimizer] = {}  # by the names that they are stored under

    def validate(self) -> Metrics:
        """Mean accuracy over the domains, as at test time."""
        self.network.eval()
        scores = [self._accuracy(domain) for domain in self.validation.domains]
        return {"score": sum(scores) / len(scores)}

    def state(self) -> dict[str, Any]:
        stored = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {"network": self.network.state_dict(), **stored}

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state[name])

    def weights(self) -> dict[str, Tensor]:
        return self.network.state_dict()  # type: ignore[no-any-return]

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.network.load_state_dict(weights)
        self.network.eval()

    def _images(self, pixels: Tensor, generator: torch.Generator) -> Images:
        """As the network takes them, augmented where that was asked for."""
        pixels = pixels.to(self.fabric.device)
        if self.config.augmentation is not None:
            pixels = augment(pixels, generator, self.config.augmentation)
        return self.preprocessing(pixels)

    def _accuracy(self, domain: Domain) -> float:
        """Of a network that answers every image by itself."""
        return accuracy(self._answer, domain, self.preprocessing, 1, self.fabric.device)

    def _answer(self, images: Tensor, groups: Tensor) -> Tensor:
        with self.fabric.autocast():
            return self.network(images)  # type: ignore[no-any-return]

    def _adam(self, moving: Iterable[Any], rate: float, decay: float = 0.0) -> torch.optim.Adam:
        fused = self.fabric.device.type == "cuda" or None
        return torch.optim.Adam(moving, lr=rate, weight_decay=decay, fused=fused)
