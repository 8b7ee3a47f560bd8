"""What is generated, and how answers are made of it: the settings of `GeneralizeFormer`."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from generalizeformer.core.generators import channels, rows
from generalizeformer.core.guard import Guard
from generalizeformer.core.losses import LOSSES
from generalizeformer.core.mixture import Mean
from generalizeformer.core.slots import Selection
from generalizeformer.errors import UserError

Mirrored = Literal["no", "group", "all"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is generated, by which φ, from which gradients."""

    generator: channels.Config | rows.Config = field(default_factory=channels.Config)
    selection: Selection = field(default_factory=Selection)
    loss: Literal["entropy", "pseudo-label", "memo"] = "entropy"
    views: int = 8  # per image, for the memo loss only
    guard: Guard | None = None
    # Every answer is the mean over models this far from the source: 0 is the source, 1 as generated.
    strengths: tuple[float, ...] = (0.0, 1.0)
    # The mean also has the answers of the model that is generated for each image alone.
    singly: bool = True
    # The mean also has the answers to mirrored images, of the group's model or of all that are generated. For source
    # models that learned from mirrored images. None: a training switches it on for those (see `Recipe`), else "no".
    mirrored: Mirrored | None = None
    mean: Mean = "logits"  # what it is taken of
    # Images of a group count for each other as far as they look alike: exp(-distance² / kin), in source units; None:
    # all alike. For batches that hold several targets or looks. Only where each is looked at by itself (`singly`), and
    # with φ of channels. With its `variation`, both count only as far as a group is found to be mixed: nowhere, where
    # no layer settles (no BatchNorm), because that tells it.
    kin: float | None = 0.3

    def __post_init__(self) -> None:
        finite = all(0 <= strength < float("inf") for strength in self.strengths)
        if not any(self.strengths) or not finite:
            raise UserError(
                f"config: strengths are {self.strengths}; give numbers from 0 (the source) on, such as 1 (as "
                "generated), finite and not only 0"
            )
        if self.loss not in LOSSES or self.views < 1:
            raise UserError(
                f"config: got loss {self.loss!r} with {self.views} views; the losses are {', '.join(LOSSES)}, and "
                "there must be at least one view"
            )
        if self.kin is not None and not self.kin > 0:
            raise UserError(f"config: kin is {self.kin}; give a number above 0, or null for none")
        for name, known in (("mirrored", (None, *get_args(Mirrored))), ("mean", get_args(Mean))):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"config: {name} is {value!r}; choose from {known}")


PAPER = Config(generator=rows.Config(), strengths=(1.0,), singly=False, mirrored="no", kin=None)
"""The paper's configuration, literally: 8 layers of width 512 over whole parameter vectors, no guard."""
