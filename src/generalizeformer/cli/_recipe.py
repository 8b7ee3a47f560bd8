"""The flags of `train` as a recipe."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from generalizeformer.cli._data import Choice

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
    """How it is learned; None where a flag was not given.

    Args:
        paper: Start from the paper's recipe, whose numbers hold where a flag is not given: joint episodes, rows,
            10,000 steps, learning rate 1e-4.
        episodes: held-out (if not given): extra backbones, each without one domain; joint: the paper's, one
            backbone; looks: one backbone and random looks of its domains, which works from a single domain (one more
            backbone where settings let it learn from looks itself).
        looks: Use random looks (colour, contrast, blur, …) of the domains as pseudo-domains in other episodes too.
        held_out: Domains to leave out in turn (held-out episodes); all if none is named.
        division: Who decides which source images are only validated on. seeded (if not given): our seed;
            domainbed: DomainBed's, with the seed as the trial; official: the dataset's own lists (pacs).
        augment: domainbed: crop, flip, colours (if not given, for datasets of image files); authors: the paper
            authors' variant; digits: small shifts; none.
        generator: channels (if not given): ours, small, for any architecture; rows: the paper's 8-layer
            transformer.
        loss: Unsupervised loss whose gradients φ sees; entropy if not given.
        source_steps: Steps of each backbone's training (joint episodes have `steps` for both); 300 if not given.
        steps: Steps of φ's training; 400 if not given.
        learning_rate: Peak learning rate of φ; 3e-3 if not given; use 1e-4 with rows.
        also: Compared methods that need a training of their own: da_erm, itta, metanorm, single_sample. Each has the
            steps of its publication, thousands; fewer with --settings: {"also": {"itta": {"steps": 500}}}.
        seed: Of everything random.
    """

    paper: bool = False
    episodes: Episodes | None = None
    looks: bool = False
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

    def suited(self, choice: Choice) -> "Flags":
        """The same, augmented as is usual for the dataset where nothing else was asked for."""
        files = hasattr(choice.load()[1], "cache")
        return self if self.augment or not files else replace(self, augment="domainbed")

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
            model=replace(base.model, **given(generator=self._generator(), loss=self.loss)),
            erm=replace(base.erm, **given(steps=self.source_steps, augmentation=augmentation)),
            meta=replace(base.meta, **meta),
            held_out=self.held_out or None,
            also={name: dict(seen) for name in self.also},
            seed=self.seed,
            **given(episodes=self.episodes, division=self.division),
        )

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
