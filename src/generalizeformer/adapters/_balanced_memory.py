"""A memory of target images with room for every class, in which old and uncertain images give way.

The rule is RoTTA's ("category-balanced sampling with timeliness and uncertainty"). An image counts as of the class
that it is answered with. It has a score, λ_t / (1 + exp(-age / capacity)) + λ_u · entropy / log(classes), where age
is the number of images that arrived since; low is good. While its class has less than its share, capacity /
classes, an image finds room or takes that of the worst of the largest classes; afterwards only that of the worst of
its own class. It never takes the room of one whose score is not above its own.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.shapes import Images


@dataclass(frozen=True, eq=False)
class Item:
    image: Float[Tensor, "channels height width"]
    label: int  # that it was answered with
    entropy: float  # of that answer
    arrival: int  # how many had arrived before


class BalancedMemory:
    """The images kept, in order of arrival."""

    def __init__(
        self, capacity: int, classes: int, age_weight: float, uncertainty_weight: float
    ) -> None:
        self.capacity, self.classes = capacity, classes
        self.age_weight, self.uncertainty_weight = age_weight, uncertainty_weight
        self.items: list[Item] = []
        self.arrived = 0

    def add(
        self, image: Float[Tensor, "channels height width"], label: int, entropy: float
    ) -> None:
        """Takes the image in if there is room or a worse one to replace. All others grow older in any case."""
        new = Item(image, label, entropy, self.arrived)
        rivals = self._rivals(label)
        # Of equally bad ones the last goes, by class and then by arrival, as in the reference.
        worst = max(rivals, key=lambda i: (self.score(i), i.label, i.arrival), default=None)
        if worst is None or self.score(worst) > self.score(new):
            self.items = [item for item in self.items if item is not worst]
            # A copy, or one image would keep its whole batch.
            self.items.append(Item(image.clone(), label, entropy, self.arrived))
        self.arrived += 1

    def score(self, item: Item) -> float:
        """How readily the image is given up, at this moment."""
        age = (self.arrived - item.arrival) / self.capacity
        largest = math.log(max(self.classes, 2))  # one class alone has no entropy to measure
        return (
            self.age_weight / (1 + math.exp(-age))
            + self.uncertainty_weight * item.entropy / largest
        )

    @property
    def images(self) -> Images:
        return torch.stack([item.image for item in self.items])

    @property
    def ages(self) -> list[float]:
        """How long each image has been there, counted in arrivals, as a share of the capacity."""
        return [(self.arrived - item.arrival) / self.capacity for item in self.items]

    def _rivals(self, label: int) -> list[Item]:
        """The images of which one must go for a new one of this class; none where there is room."""
        counts = [0] * self.classes
        for item in self.items:
            counts[item.label] += 1
        if counts[label] >= self.capacity / self.classes:
            return [item for item in self.items if item.label == label]
        if len(self.items) < self.capacity:
            return []
        return [item for item in self.items if counts[item.label] == max(counts)]
