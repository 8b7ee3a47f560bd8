"""What a training is told: a recipe, and which of its settings stored things are told apart by."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from generalizeformer.core.settings import Config as ModelConfig
from generalizeformer.core.settings import Mirrored
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.splits import Division
from generalizeformer.errors import DataError, UserError
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training._checks import check_counts, check_shares
from generalizeformer.training._companions import config_of
from generalizeformer.training._start import PER_DOMAIN
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.meta import Config as MetaConfig

Episodes = Literal["held-out", "joint", "looks"]
# Settings that older trainings and records do not know, by where they stand, and the value that means what was done
# then: with it, both are found again.
FORMERLY = {("model", "generator", "variation"): 0}
# Settings that are gone, which older trainings and records name, and the value that means what is always done now.
GONE = {("meta", "sureness"): 0.0}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How φ, and the backbone where it has to be, are trained.

    Where `model.mirrored` is not given, training takes "all" if the backbone learns from mirrored images
    (`erm.augmentation` flips them), else "no": see `decided`.

    held-out: one more backbone per left-out domain, which that domain then is a real target of;
    joint: the paper's, one backbone for all;
    looks: one backbone, and random looks of its own domains as targets, so `meta.looks` is switched on. Works
    from a single domain, and with `erm=None` on a backbone that is trained already. Where the backbone learns from
    looks as well (`erm.looks`), there is one more that does not, so that they are new to it.
    """

    episodes: Episodes = "held-out"
    model: ModelConfig = field(default_factory=ModelConfig)
    # None: the backbone is trained already
    erm: ErmConfig | None = field(default_factory=ErmConfig)
    meta: MetaConfig = field(default_factory=MetaConfig)
    held_out: tuple[str, ...] | None = None  # domains to leave out in turn; None: every one
    # Images of each domain that the reference and the prototypes are measured on.
    calibration: int = PER_DOMAIN
    stay: float = 0.2  # share of meta-steps on the final model's own domains: do no harm
    validation: float = 0.2  # share of every source domain that is only validated on
    division: Division = "seeded"  # who decides which: our seed, DomainBed's, or the official lists
    # Compared methods to be trained for as well, with the settings of their trainings.
    also: dict[str, dict[str, Any]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares("recipe", stay=self.stay)
        check_counts("recipe", calibration=self.calibration)
        for name, settings in self.also.items():
            config_of(name, settings)
        if not 0 <= self.seed < 2**63:
            raise UserError(f"recipe: seed is {self.seed}; it must be from 0 to 2^63 - 1")
        if self.episodes == "looks" and self.meta.looks is None:
            object.__setattr__(self, "meta", replace(self.meta, looks=Looks()))

    def decided(self) -> "Recipe":
        """The same with what it leaves open, once nothing will change it any more; what is stored is of this form.

        Whoever learns from mirrored images can be asked about them.
        """
        if self.model.mirrored is not None:
            return self
        seen = None if self.erm is None else self.erm.augmentation
        mirrored: Mirrored = "all" if seen is not None and seen.flip_chance > 0 else "no"
        return replace(self, model=replace(self.model, mirrored=mirrored))

    def check(self, sources: DomainDataset, phi: bool = True) -> None:
        """Raises DataError where the sources do not allow these episodes. Without `phi` there are none."""
        if self.episodes != "looks" and self.erm is None:
            raise DataError(
                f"episodes {self.episodes!r} train backbones, so they need settings for it (erm); use "
                "episodes 'looks' to train φ alone"
            )
        if not phi:
            return
        if self.episodes != "looks" and len(sources.names) < 2:
            raise DataError(
                f"one source domain ({sources.names[0]!r}) cannot play source and target at once; give two or "
                "more, or use its random looks as pseudo-domains: episodes 'looks' (in a file of --settings, "
                '{"episodes": "looks"}; `train` also takes --episodes looks)'
            )
        for name in self.held_out or ():
            sources.index(name)


def lasting(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as plain data, as if it had been stored at the beginning: what stored things are told apart by.

    Newer settings that change nothing are left out, and those that are gone are named.
    """
    for path, value in FORMERLY.items():
        recipe = _unless(recipe, path, value)
    for (part, name), did_nothing in GONE.items():
        recipe = recipe | {part: {name: did_nothing} | recipe[part]}
    return recipe


def readable(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as plain data of any time, without the settings that are gone where they did nothing."""
    for path, value in GONE.items():
        recipe = _unless(recipe, path, value)
    return recipe


def _unless(settings: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The settings without the one at this path, if it has this value."""
    name, *deeper = path
    if not deeper:
        return {n: v for n, v in settings.items() if n != name or v != value}
    if not isinstance(settings.get(name), dict):
        return settings
    return settings | {name: _unless(settings[name], deeper, value)}
