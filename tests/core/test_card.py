from dataclasses import replace

from generalizeformer.core.card import Card, render

FULL = Card(
    classes=("cat", "dog"),
    architecture="resnet18",
    dataset="pets",
    sources=("photo", "sketch"),
    training="meta, 100 steps",
    source_accuracy=87.654,
    adapted_accuracy=91.05,
)


def test_the_card_says_what_the_model_is() -> None:
    text = render(FULL, "my-model")
    assert "| classes | 2: cat, dog |" in text
    assert "| sources | pets: photo, sketch |" in text
    assert "| accuracy on source validation, plain | 87.7 % |" in text
    assert "| accuracy on source validation, generated | 91.0 % |" in text
    assert "meta, 100 steps" in text


def test_the_card_says_what_to_expect_of_a_target_where_that_is_known() -> None:
    known = replace(FULL, unseen_accuracy=60.0, unseen_adapted_accuracy=66.04)
    text = render(known, "my-model")
    assert "| accuracy on domains the backbone had not learned from, plain | 60.0 % |\n" in text
    assert "| accuracy on domains the backbone had not learned from, generated | 66.0 % |\n" in text
    assert "not learned from" not in render(FULL, "my-model")


def test_the_card_says_the_protocol_and_the_seed_where_there_are_some() -> None:
    text = render(replace(FULL, protocol="inner", seed=0), "my-model")
    assert "| sources | pets (inner): photo, sketch |" in text
    assert "| training | meta, 100 steps, seed 0 |" in text


def test_the_card_says_how_to_load_it() -> None:
    assert 'GeneralizeFormer.from_pretrained("my-model")' in render(FULL, "my-model")


def test_a_model_of_one_s_own_class_is_loaded_with_an_instance() -> None:
    assert 'from_pretrained("m", backbone=MyNetwork())' in render(Card(backbone="MyNet"), "m")


def test_what_is_unknown_is_said_to_be_unknown() -> None:
    text = render(Card(), "m")
    assert "not measured" in text
    assert "None" not in text


def test_many_classes_are_cut_short_but_counted() -> None:
    text = render(Card(classes=tuple(f"c{i}" for i in range(40))), "m")
    assert "| classes | 40: c0, " in text
    assert "c11, …" in text
    assert "c12" not in text


def test_names_with_braces_are_shown_and_not_run() -> None:
    assert "{{ 1 + 1 }}" in render(Card(classes=("{{ 1 + 1 }}",)), "m")
