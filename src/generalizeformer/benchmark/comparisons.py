"""Which methods run with which trained model, by suite. A table, to be added to."""

from collections.abc import Mapping
from dataclasses import dataclass

from generalizeformer.benchmark.variants import VARIANTS


@dataclass(frozen=True)
class Comparison:
    """What is run with a trained model: methods by the names of their records, and whose oracle is shown."""

    methods: Mapping[str, str]
    hindsight: tuple[str, ...] = ()
    forgetting: bool = True  # whether sources are answered after every stream


SHARED = ("source", "mirror", "alpha_bn", "t3a", "generalizeformer", "tent")
"""What takes longest comes last."""

MAIN = {
    "generalizeformer": Comparison({name: name for name in SHARED}, hindsight=("alpha_bn",)),
    # The same backbone, so that only φ is another.
    "generalizeformer_paper": Comparison({"generalizeformer_paper": "generalizeformer"}),
}

COMPARISONS: Mapping[str, Mapping[str, Comparison]] = {
    "main": MAIN,
    "dynamic": {
        "generalizeformer": Comparison({name: name for name in SHARED}, forgetting=False),
        **{
            name: Comparison({name: "generalizeformer"}, forgetting=False)
            for name in (
                "generalizeformer_paper",
                "generalizeformer_with_variation",
                "generalizeformer_with_variation_and_kin",
            )
        },
    },
    "single-source": MAIN,
    "output-shift": MAIN,
    "ablations": {
        "generalizeformer": Comparison({n: n for n in ("source", "generalizeformer")}),
        **{name: Comparison({name: "generalizeformer"}) for name in VARIANTS},
    },
}
"""By suite, then by training."""
