"""Which methods run with which trained model, by suite. A table, to be added to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from generalizeformer.benchmark.cells import SOURCE
from generalizeformer.benchmark.variants import VARIANTS


@dataclass(frozen=True)
class Comparison:
    """What is run with a trained model: methods by the names of their records, and whose oracle is shown."""

    methods: Mapping[str, str]
    hindsight: tuple[str, ...] = ()
    forgetting: bool = True  # whether sources are answered after every stream


METHODS = {name: name for name in ("source", "mirror", "alpha_bn", "t3a", "tent")}
"""On the source model, usually; what takes longest comes last."""
BOTH = ("generalizeformer", "generalizeformer_paper")


def _each(trainings: Iterable[str], *, forgetting: bool = True) -> dict[str, Comparison]:
    """Every φ by itself: its records have its training's name."""
    return {
        name: Comparison({name: "generalizeformer"}, forgetting=forgetting) for name in trainings
    }


MAIN = {SOURCE: Comparison(METHODS, hindsight=("alpha_bn",)), **_each(BOTH)}
LOOKED = ("generalizeformer_without_telling_apart",)
"""What meets several looks in a batch, beside the usual ones."""

COMPARISONS: Mapping[str, Mapping[str, Comparison]] = {
    "main": MAIN,
    "dynamic": {
        SOURCE: Comparison(METHODS, forgetting=False),
        **_each((*BOTH, *LOOKED), forgetting=False),
    },
    "single-source": MAIN,
    "output-shift": MAIN,
    "several-targets": MAIN,
    "ablations": {
        SOURCE: Comparison({"source": "source"}),
        **_each((*BOTH, *VARIANTS)),
    },
}
"""By suite, then by training."""
