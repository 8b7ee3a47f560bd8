"""What a saved model says of itself: classes, preprocessing, where it comes from, how well it did on its sources."""

from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment

from generalizeformer.core.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Card:
    classes: tuple[str, ...] = ()
    architecture: str | None = (
        None  # a name `build_backbone` knows; None for the reader's own class
    )
    backbone: str | None = None  # the class of the backbone, for people
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    dataset: str | None = None
    protocol: str | None = None  # which of the dataset's divisions into sources and targets
    dataset_settings: dict[str, Any] = field(default_factory=dict)  # others that it was built with
    sources: tuple[str, ...] = ()
    # Where each source knows some of the classes only: in which order they were shared out.
    classes_apart: str | None = None
    training: str = "untrained"
    seed: int | None = None  # of the training
    source_accuracy: float | None = None  # percent, source validation, plain backbone
    adapted_accuracy: float | None = None  # percent, source validation, generated parameters
    # The same of source domains, each with a backbone that had learned from the others only.
    unseen_accuracy: float | None = None
    unseen_adapted_accuracy: float | None = None


MARK = "library_name: generalizeformer"  # by which our model cards are known
TEMPLATE = """---
{{ mark }}
tags: [test-time-adaptation, domain-generalization, image-classification]
---
# {{ card.architecture or card.backbone or "GeneralizeFormer model" }} with GeneralizeFormer

An image classifier whose normalisation and classifier parameters are generated anew for every batch of
images, so that it follows shifts of the data without being fine-tuned.

| | |
|---|---|
| backbone | {{ card.architecture or card.backbone or "unknown" }} |
| classes | {{ card.classes | length }}{% if card.classes %}: {{ card.classes[:12] | join(", ") }}{% if card.classes | length > 12 %}, …{% endif %}{% endif %} |
| sources | {{ card.dataset or "unknown" }}{% if card.protocol %} ({{ card.protocol }}){% endif %}{% if card.sources %}: {{ card.sources | join(", ") }}{% endif %}{% if card.classes_apart %}, every class in one of them only (order: {{ card.classes_apart }}){% endif %} |
| preprocessing | {{ card.preprocessing.size }} px, mean {{ card.preprocessing.mean | list }}, std {{ card.preprocessing.std | list }} |
| training | {{ card.training }}{% if card.seed is not none %}, seed {{ card.seed }}{% endif %} |
| accuracy on source validation, plain | {{ percent(card.source_accuracy) }} |
| accuracy on source validation, generated | {{ percent(card.adapted_accuracy) }} |
{%- if card.unseen_accuracy is not none %}
| accuracy on domains the backbone had not learned from, plain | {{ percent(card.unseen_accuracy) }} |
| accuracy on domains the backbone had not learned from, generated | {{ percent(card.unseen_adapted_accuracy) }} |
{%- endif %}

```python
from generalizeformer import GeneralizeFormer

model = GeneralizeFormer.from_pretrained("{{ folder }}"{% if not card.architecture %}, backbone=MyNetwork(){% endif %})
logits = model(images)
```
"""


def render(card: Card, folder: str) -> str:
    """The card as the README.md of the model's folder."""
    environment = Environment(keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE)
    return template.render(card=card, folder=folder, mark=MARK, percent=_percent)


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f} %"
