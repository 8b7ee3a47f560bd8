"""Source prototypes: a second classifier, whose rows point at what the source model's features of each class show.

Seen from the middle of all classes, those directions carry over to a shifted domain better than learned rows do
(docs/experiments.md, section 15). They are measured once, with `GeneralizeFormer.calibrate`, from the source model's
own answers. Until then the classifier's rows stand in for them, all equally long.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core.shapes import Features, Logits, Rows
from generalizeformer.core.slots import values_of

FEW = 1.0  # images, below which a class keeps the direction of the classifier's row
LITTLE = 1e-4  # of the features' length: classes that differ by less do not differ


class Prototypes(nn.Module):
    """Rows and biases in the place of the classifier's; part of the saved model."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        weight = torch.zeros_like(_weight(classifier))
        self.register_buffer("weight", weight)
        self.register_buffer("bias", weight[:, 0].clone())
        self.register_buffer("known", weight.new_zeros((), dtype=torch.bool))

    def rows(self, own: Rows) -> Rows:
        """A row for each class in the place of the classifier's own; where those have one, the last is the bias."""
        weight, bias = self.get_buffer("weight"), self.get_buffer("bias")
        stored = torch.cat([weight, bias.unsqueeze(1)], 1)[:, : own.shape[1]]
        features = own[:, : weight.shape[1]]
        instead = features.norm(dim=1).mean() * _directions(features)
        instead = F.pad(instead, (0, own.shape[1] - weight.shape[1]))
        return torch.where(self.get_buffer("known"), stored, instead)

    def learn(self, features: Features, logits: Logits, classifier: nn.Module) -> None:
        """From source images: the classes' directions, as long as it takes to answer as surely as `logits`.

        Images that show no two classes, or no difference between them, teach nothing.
        """
        with torch.autocast(
            features.device.type, enabled=False
        ):  # sums over many need their digits
            exact = torch.promote_types(features.dtype, torch.float32)
            features, logits = features.to(exact), logits.to(exact)
            answers = logits.softmax(-1)
            count = answers.sum(0)
            known = count >= FEW
            if known.sum() < 2:
                return
            shown = (answers.T @ features) / count.clamp(min=1e-6).unsqueeze(1)
            centre = shown[known].mean(0)
            seen, own = F.normalize(shown - centre, dim=1), _directions(_weight(classifier))
            directions = torch.where(known.unsqueeze(1), seen, own.to(exact))
            likeness = _apart((features - centre) @ directions.T)
            if likeness > LITTLE * features.norm(dim=1).mean():
                self._keep(directions * _apart(logits) / likeness, centre)

    def _keep(self, rows: Tensor, centre: Tensor) -> None:
        self.get_buffer("weight").copy_(rows)
        self.get_buffer("bias").copy_(-rows @ centre)
        self.get_buffer("known").fill_(True)


def _weight(classifier: nn.Module) -> Tensor:
    return dict(values_of(classifier))["weight"].detach()


def _directions(rows: Tensor) -> Tensor:
    """Where each row points, seen from the middle of all."""
    return F.normalize(rows - rows.mean(0), dim=1)


def _apart(logits: Logits) -> Tensor:
    """How far apart an image's logits are: root mean square over images and classes."""
    return (logits - logits.mean(1, keepdim=True)).square().mean().sqrt()
