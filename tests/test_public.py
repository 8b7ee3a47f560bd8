"""The names that `generalizeformer` itself has."""

import generalizeformer
from generalizeformer.training import erm, meta


def test_there_are_few_public_names_and_each_can_be_had() -> None:
    names = [name for name in generalizeformer.__all__ if not name.startswith("__")]
    assert len(names) <= 10
    assert all(getattr(generalizeformer, name) is not None for name in names)
    assert dir(generalizeformer) == sorted(generalizeformer.__all__)


def test_every_name_with_a_home_can_be_had_whether_listed_or_not() -> None:
    assert set(generalizeformer._HOMES) >= {"Card", "PAPER"}
    assert all(getattr(generalizeformer, name) is not None for name in generalizeformer._HOMES)


def test_settings_of_training_are_at_hand() -> None:
    assert generalizeformer.ErmConfig is erm.Config
    assert generalizeformer.MetaConfig is meta.Config
    recipe = generalizeformer.Recipe(
        erm=generalizeformer.ErmConfig(steps=30), meta=generalizeformer.MetaConfig(steps=20)
    )
    assert (recipe.erm.steps, recipe.meta.steps) == (30, 20)
