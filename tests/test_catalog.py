import pytest

from generalizeformer.catalog import load, names

PACKAGE = "generalizeformer.core.generators"


def test_the_entries_are_the_plain_files() -> None:
    assert names(PACKAGE) == ["channels", "rows"]


@pytest.mark.parametrize("name", names(PACKAGE))
def test_an_entry_is_its_module(name: str) -> None:
    assert load(PACKAGE, name).__name__ == f"{PACKAGE}.{name}"


@pytest.mark.parametrize("name", names(PACKAGE))
def test_every_generator_has_a_config_and_a_build(name: str) -> None:
    module = load(PACKAGE, name)
    assert module.Config().kind == name
    assert callable(module.build)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="generators: there is no 'chanels'; did you mean 'chann"):
        load(PACKAGE, "chanels")


def test_a_name_like_none_is_answered_with_all() -> None:
    with pytest.raises(ValueError, match=r"choose one of: channels, rows\."):
        load(PACKAGE, "zzz")


@pytest.mark.parametrize("name", ["_norms", "_units"])
def test_machinery_is_no_entry(name: str) -> None:
    with pytest.raises(ValueError, match="there is no"):
        load(PACKAGE, name)
