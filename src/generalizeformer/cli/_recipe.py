"""The flags of `train` as a recipe."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from generalizeformer.imaging.augmentation import Config as Augmentation
    from generalizeformer.training._recipe import Recipe

Augment = Literal["none", "domainbed", "authors", "digits"]
Division = Literal["seeded", "domainbed", "official"]
Episodes = Literal["held-out", "joint", "looks"]
Generator = Literal["channels", "rows"]
Loss = Literal["entropy", "pseudo-label", "memo"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What was asked for; None where a flag was not given."""

    paper: bool = False
    looks: bool = False
    episodes: Episodes | None = None
    held_out: tuple[str, ...] = ()
    division: Division | None = None
    augment: Augment | None = None
    generator: Generator | None = None
    loss: Loss | None = None
    source_steps: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    also: tuple[str, ...] = ()
    seed: int = 0

    def recipe(self) -> "Recipe":
        """The command line's usual recipe, or the paper's, with what was asked for."""
        from generalizeformer.config import to_dict
        from generalizeformer.imaging.looks import Config as Looks
        from generalizeformer.training._paper import PAPER_RECIPE

        base = PAPER_RECIPE if self.paper else _usual()
        assert base.erm is not None
        looks, augmentation = Looks() if self.looks else None, self._augmentation()
        meta = given(steps=self.steps, learning_rate=self.learning_rate, looks=looks)
        meta |= given(augmentation=augmentation)
        seen = {} if augmentation is None else {"augmentation": to_dict(augmentation)}
        return replace(
            base,
            model=replace(base.model, **self._model(augmentation)),
            erm=replace(base.erm, **given(steps=self.source_steps, augmentation=augmentation)),
            meta=replace(base.meta, **meta),
            held_out=self.held_out or None,
            also={name: dict(seen) for name in self.also},
            seed=self.seed,
            **given(episodes=self.episodes, division=self.division),
        )

    def _model(self, augmentation: "Augmentation | None") -> dict[str, Any]:
        # Whoever learns from mirrored images can be asked about them.
        flips = augmentation is not None and augmentation.flip_chance > 0
        mirrored = "all" if flips and not self.paper else None
        return given(generator=self._generator(), loss=self.loss, mirrored=mirrored)

    def _augmentation(self) -> "Augmentation | None":
        from generalizeformer.imaging.augmentation import recipe

        return None if self.augment in (None, "none") else recipe(self.augment)

    def _generator(self) -> Any:
        from generalizeformer.core.generators import channels, rows

        configs = {"channels": channels.Config, "rows": rows.Config}
        return None if self.generator is None else configs[self.generator]()


def _usual() -> "Recipe":
    from generalizeformer.training._recipe import Recipe
    from generalizeformer.training.erm import Config as ErmConfig
    from generalizeformer.training.meta import Config as MetaConfig

    return Recipe(
        erm=ErmConfig(steps=300, per_domain=16, learning_rate=3e-3),
        meta=MetaConfig(steps=400, images=160, learning_rate=3e-3),
    )


def given(**settings: Any) -> dict[str, Any]:
    """The settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}
