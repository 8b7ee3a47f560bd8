"""Ablations: the main recipe with one thing changed. The backbones stay the same, so that only φ is another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from generalizeformer.core.generators import channels
from generalizeformer.core.generators._units import INPUTS, Input
from generalizeformer.core.slots import Kind
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training._recipe import Recipe

Variant = Callable[[Recipe], Recipe]


def _model(**changes: Any) -> Variant:
    return lambda recipe: replace(recipe, model=replace(recipe.model, **changes))


def _without(left_out: Input) -> Variant:
    """φ sees the other two kinds of information only."""

    def change(recipe: Recipe) -> Recipe:
        inputs = tuple(name for name in INPUTS if name != left_out)
        generator = replace(recipe.model.generator, inputs=inputs)
        return replace(recipe, model=replace(recipe.model, generator=generator))

    return change


def _without_prototypes(recipe: Recipe) -> Recipe:
    """Classifier rows do not move to what the source showed of their classes. The paper's φ never does."""
    generator = recipe.model.generator
    if isinstance(generator, channels.Config):
        generator = replace(generator, recall=0.0)
    return replace(recipe, model=replace(recipe.model, generator=generator))


def _telling_apart(*, variation: int, kin: float | None) -> Variant:
    """What is known of looks, and how far images of a batch count for each other.

    The paper's φ knows nothing of looks.
    """

    def change(recipe: Recipe) -> Recipe:
        generator = recipe.model.generator
        if isinstance(generator, channels.Config):
            generator = replace(generator, variation=variation)
        return replace(recipe, model=replace(recipe.model, generator=generator, kin=kin))

    return change


def _only(kind: Kind) -> Variant:
    """Only layers of this kind are generated."""

    def change(recipe: Recipe) -> Recipe:
        selection = replace(recipe.model.selection, kinds=(kind,))
        return replace(recipe, model=replace(recipe.model, selection=selection))

    return change


def _without_shift(recipe: Recipe) -> Recipe:
    """φ learns on the final model and its own domains as they are, and is validated there: no meta-learning."""
    meta = replace(recipe.meta, looks=Looks(strength=0.0), look_share=0.0)
    return replace(recipe, episodes="looks", meta=meta)


VARIANTS: Mapping[str, Variant] = {
    "generalizeformer_without_parameters": _without("parameters"),
    "generalizeformer_without_features": _without("features"),
    "generalizeformer_without_gradients": _without("gradients"),
    "generalizeformer_norms_only": _only("norm"),
    "generalizeformer_classifier_only": _only("classifier"),
    "generalizeformer_entropy": _model(loss="entropy"),
    "generalizeformer_pseudo_label": _model(loss="pseudo-label"),
    "generalizeformer_memo": _model(loss="memo"),
    "generalizeformer_without_shift": _without_shift,
    "generalizeformer_without_prototypes": _without_prototypes,
    "generalizeformer_one_strength": _model(strengths=(1.0,)),
    "generalizeformer_not_singly": _model(singly=False),
    "generalizeformer_not_mirrored": _model(mirrored="no"),
    "generalizeformer_with_kin": _telling_apart(variation=0, kin=0.3),
    "generalizeformer_with_variation": _telling_apart(variation=32, kin=None),
    "generalizeformer_without_telling_apart": _telling_apart(variation=0, kin=None),
    "generalizeformer_mean_of_probabilities": _model(mean="probabilities"),
}
"""By the name of the training and of its records."""


def variants_of(main: Recipe, names: Sequence[str]) -> dict[str, Recipe]:
    """These variants of the main recipe; one that changes nothing, as the main loss's own, is left out."""
    main = replace(main, also={})
    changed = {name: VARIANTS[name](main) for name in names}
    return {name: r for name, r in changed.items() if r.decided() != main.decided()}


def varied(main: Recipe) -> dict[str, Recipe]:
    """The main recipe and all its variants."""
    return {"generalizeformer": replace(main, also={}), **variants_of(main, tuple(VARIANTS))}
