"""What trainings of one network have in common, the backbone or a method's own, whatever they do in a step."""

from collections.abc import Callable, Iterable
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
    stored_as = "network"  # in a state

    def __init__(
        self,
        network: nn.Module,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Any,
        fabric: Fabric,
    ) -> None:
        self.network = placed(network, fabric.device)
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
        return {self.stored_as: self.network.state_dict(), **stored}

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state[self.stored_as])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state[name])

    def weights(self) -> dict[str, Tensor]:
        return self.network.state_dict()  # type: ignore[no-any-return]

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.network.load_state_dict(weights)
        self.network.eval()

    def _images(self, pixels: Tensor, generator: torch.Generator) -> Images:
        """As the network takes them, augmented where that was asked for."""
        return self.preprocessing(self._augmented(pixels.to(self.fabric.device), generator))

    def _augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        if self.config.augmentation is None:
            return pixels
        return augment(pixels, generator, self.config.augmentation)

    def _accuracy(self, domain: Domain) -> float:
        """Of a network that answers every image by itself."""
        return accuracy(self._answer, domain, self.preprocessing, 1, self.fabric.device)

    def _streamed(
        self, domain: Domain, learn: Callable[[Images], None], answer: Callable[[Images], Tensor]
    ) -> float:
        """Of a stream in the config's `validation_size`: each batch is first learned from, then answered."""
        size = self.config.validation_size

        def in_turn(images: Tensor, groups: Tensor) -> Tensor:
            answers = []
            with self.fabric.autocast():
                for batch in torch.split(images, size):
                    learn(batch)
                    answers.append(answer(batch))
                return torch.cat(answers)

        return accuracy(in_turn, domain, self.preprocessing, size, self.fabric.device)

    def _answer(self, images: Tensor, groups: Tensor) -> Tensor:
        with self.fabric.autocast():
            return self.network(images)  # type: ignore[no-any-return]

    def _adam(self, moving: Iterable[Any], rate: float, decay: float = 0.0) -> torch.optim.Adam:
        fused = self.fabric.device.type == "cuda" or None
        return torch.optim.Adam(moving, lr=rate, weight_decay=decay, fused=fused)
