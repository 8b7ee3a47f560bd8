import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from generalizeformer.core.slots import Kind, Selection, Slot, find_slots, stage_of
from generalizeformer.errors import SlotError

from .nets import EVERYTHING, Net, architecture, assert_unchanged, digits, state

SHAPES: dict[Kind, int] = {"norm": 1, "classifier": 2, "linear": 2, "conv": 4}


@st.composite
def layers(draw: st.DrawFn) -> tuple[Kind, tuple[tuple[str, tuple[int, ...]], ...]]:
    kind = draw(st.sampled_from(list(SHAPES)))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=SHAPES[kind], max_size=SHAPES[kind])))
    bias = (("bias", shape[:1]),) if draw(st.booleans()) else ()
    return kind, (("weight", shape), *bias)


@settings(deadline=None, max_examples=60)
@given(layer=layers(), lead=st.sampled_from([(), (1,), (3,), (2, 3)]))
def test_parameters_are_the_inverse_of_rows(
    layer: tuple[Kind, tuple[tuple[str, tuple[int, ...]], ...]], lead: tuple[int, ...]
) -> None:
    kind, shapes = layer
    slot = Slot("some.layer", kind, shapes)
    values = {f"some.layer.{suffix}": torch.randn(*lead, *own) for suffix, own in shapes}
    matrix = slot.rows(values)
    again = slot.parameters(matrix)
    assert matrix.shape == (*lead, *slot.size)
    assert again.keys() == values.keys()
    assert all(torch.equal(again[name], values[name]) for name in values)


@settings(deadline=None, max_examples=30)
@given(layer=layers(), lead=st.sampled_from([(), (1,), (3,), (2, 3)]))
def test_rows_are_the_inverse_of_parameters(
    layer: tuple[Kind, tuple[tuple[str, tuple[int, ...]], ...]], lead: tuple[int, ...]
) -> None:
    slot = Slot("some.layer", *layer)
    matrix = torch.randn(*lead, *slot.size)
    assert torch.equal(slot.rows(slot.parameters(matrix)), matrix)


def test_a_norm_slot_has_gamma_and_beta_as_rows() -> None:
    slot = Slot("n", "norm", (("weight", (3,)), ("bias", (3,))))
    rows = slot.rows({"n.weight": torch.tensor([1.0, 2, 3]), "n.bias": torch.tensor([4.0, 5, 6])})
    assert rows.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_linear_slot_has_one_row_per_output_and_the_bias_as_last_column() -> None:
    slot = Slot("l", "linear", (("weight", (2, 3)), ("bias", (2,))))
    weight = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    rows = slot.rows({"l.weight": weight, "l.bias": torch.tensor([7.0, 8])})
    assert rows.tolist() == [[1, 2, 3, 7], [4, 5, 6, 8]]


def test_the_default_selects_every_norm_layer_and_the_classifier() -> None:
    backbone = architecture("torchvision resnet18")
    expected = [n for n, m in backbone.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert [slot.layer for slot in find_slots(backbone, Selection())] == [*expected, "fc"]


@pytest.mark.parametrize(
    ("kind", "layers"),
    [("norm", ["norm"]), ("classifier", ["fc"]), ("linear", ["hidden"]), ("conv", ["conv"])],
)
def test_each_kind_selects_its_own_layers_only(kind: Kind, layers: list[str]) -> None:
    assert [slot.layer for slot in find_slots(Net(), Selection(kinds=(kind,)))] == layers


def test_stages_restrict_everything_but_the_classifier() -> None:
    backbone = architecture("torchvision resnet18")
    slots = find_slots(backbone, Selection(stages=("layer1", "layer3")))
    assert {slot.stage for slot in slots if slot.kind == "norm"} == {"layer1", "layer3"}
    assert [slot.layer for slot in slots if slot.kind == "classifier"] == ["fc"]


def test_a_stage_can_be_one_entry_of_a_list_of_blocks() -> None:
    slots = find_slots(digits(), Selection(kinds=("norm",), stages=("blocks.3",)))
    assert [slot.layer for slot in slots] == ["blocks.3.1"]


@pytest.mark.parametrize(
    ("layer", "stage"),
    [
        ("layer1.0.bn1", "layer1"),
        ("blocks.3.1", "blocks.3"),
        ("blocks.13.norm1", "blocks.13"),
        ("features.2", "features.2"),
        ("bn1", "bn1"),
    ],
)
def test_stage_of(layer: str, stage: str) -> None:
    assert stage_of(layer) == stage


def test_exclude_leaves_out_a_layer_and_all_below_a_name() -> None:
    backbone = architecture("torchvision resnet18")
    names = [s.layer for s in find_slots(backbone, Selection(exclude=("layer1", "fc")))]
    assert names
    assert not [name for name in names if name.startswith("layer1.")]
    assert "fc" not in names
    assert "layer2.0.bn1" in names


@pytest.mark.usefixtures("unchecked")
def test_a_name_by_itself_is_one_name() -> None:
    given: dict[str, Any] = {"kinds": "norm", "stages": "blocks.1", "exclude": "blocks.1"}
    expected = Selection(kinds=("norm",), stages=("blocks.1",), exclude=("blocks.1",))
    assert Selection(**given) == expected
    assert Selection(include="fc") == Selection(include=("fc",))  # type: ignore[arg-type]
    with pytest.raises(SlotError, match="there is no layer 'aux1' to exclude"):
        find_slots(digits(), Selection(exclude="aux1"))  # type: ignore[arg-type]


def test_excluding_what_is_not_there_is_refused() -> None:
    with pytest.raises(SlotError, match="there is no layer 'bn' to exclude"):
        find_slots(architecture("torchvision resnet18"), Selection(exclude=("bn",)))


def test_where_nothing_matches_the_error_names_what_exists() -> None:
    with pytest.raises(SlotError) as error:
        find_slots(digits(), Selection(kinds=("linear",)))
    assert "'norm': 4" in str(error.value)
    assert "blocks.3" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kinds", [("norm",), ("norm", "classifier")])
def test_a_stage_that_does_not_exist_is_refused_even_if_the_classifier_would_be_left(
    kinds: tuple[Kind, ...],
) -> None:
    with pytest.raises(SlotError, match=r"no stage 'layer9'; choose from \['blocks.0'"):
        find_slots(digits(), Selection(kinds=kinds, stages=("blocks.1", "layer9")))


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SlotError, match=r"'bias'.*choose from.*'norm'"):
        Selection(kinds=("bias",))  # type: ignore[arg-type]


def test_convolutions_that_pad_or_standardise_by_themselves_are_no_slots() -> None:
    backbone = architecture("tf_efficientnet_lite0")
    chosen = {slot.layer for slot in find_slots(backbone, Selection(kinds=("conv",)))}
    same = {n for n, m in backbone.named_modules() if type(m).__name__ == "Conv2dSame"}
    assert same
    assert chosen
    assert not chosen & same


def test_the_output_projection_of_attention_is_no_slot() -> None:
    attention = nn.MultiheadAttention(8, 2)
    backbone = nn.Sequential(attention, nn.Linear(8, 8), nn.Linear(8, 3))
    chosen = [slot.layer for slot in find_slots(backbone, EVERYTHING)]
    assert chosen == ["1", "2"]


def test_parameters_of_gives_the_tensors_of_the_backbone_without_a_graph() -> None:
    backbone = digits()
    params = find_slots(backbone, EVERYTHING).parameters_of(backbone)
    own = dict(backbone.named_parameters())
    assert params.keys() == own.keys()
    assert all(params[n].data_ptr() == own[n].data_ptr() for n in own)
    assert not any(value.requires_grad for value in params.values())


def test_a_classifier_that_computes_something_else_than_linear_is_refused() -> None:
    class Cosine(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 10 * nn.functional.normalize(x) @ nn.functional.normalize(self.weight).T

    backbone = Net()
    backbone.fc = Cosine(6, 4)
    with pytest.raises(SlotError, match=re.escape("fc: Cosine does not compute what Linear")):
        find_slots(backbone, Selection())
    assert len(find_slots(backbone, Selection(kinds=("norm",)))) == 1


def test_a_classifier_that_overrides_linear_but_computes_the_same_is_taken() -> None:
    class Logged(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    backbone = Net()
    backbone.fc = Logged(6, 4)
    assert "fc" in [slot.layer for slot in find_slots(backbone, Selection())]


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.training
        return super().forward(x)


@pytest.mark.parametrize("norm", [None, weight_norm, spectral_norm])
def test_looking_at_a_classifier_changes_nothing_of_it(norm: Any) -> None:
    backbone = Net()
    backbone.fc = Counting(6, 4) if norm is None else norm(Counting(6, 4))
    before = state(backbone.train())
    find_slots(backbone, Selection())
    assert_unchanged(backbone, before)


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_parametrised_values_are_those_in_eval_mode_and_no_copies_are_made(
    norm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = Net()
    norm(backbone.fc)
    before, slots = state(backbone.train()), find_slots(backbone, Selection())
    expected = copy.deepcopy(backbone).eval().fc.weight
    monkeypatch.delattr(nn.Parameter, "__deepcopy__")
    monkeypatch.setattr(torch.Tensor, "__deepcopy__", None)
    found = slots.parameters_of(backbone)
    assert torch.equal(found["fc.weight"], expected)
    assert found["fc.bias"].data_ptr() == backbone.fc.bias.data_ptr()
    assert_unchanged(backbone, before)


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "prune": lambda layer: prune.random_unstructured(layer, "weight", 0.5),  # type: ignore[no-untyped-call]
}


@pytest.mark.filterwarnings("ignore:.*_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("hook", list(HOOKS))
def test_weights_that_a_hook_sets_are_refused_where_they_would_be_generated(hook: str) -> None:
    backbone = Net()
    HOOKS[hook](backbone.hidden)
    assert len(find_slots(backbone, Selection())) == 2
    with pytest.raises(SlotError, match=r"hidden: a hook .*; use torch.nn.utils.parametrizations"):
        find_slots(backbone, Selection(kinds=("linear",)))


def test_a_single_layer_can_be_included_whatever_its_kind() -> None:
    slots = find_slots(
        Net(nn.BatchNorm2d(8)), Selection(kinds=("classifier",), include=("hidden",))
    )
    assert [(slot.layer, slot.kind) for slot in slots] == [
        ("hidden", "linear"),
        ("fc", "classifier"),
    ]


def test_including_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(SlotError, match="'blocks' is no layer whose parameters could be generated"):
        find_slots(digits(), Selection(include=("blocks",)))


def test_stages_can_be_parts_of_a_wrapped_network() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = architecture("torchvision resnet18")

    slots = find_slots(Wrapped(), Selection(kinds=("norm",), stages=("encoder.layer2",)))
    assert len(slots) == 5
    assert all(slot.layer.startswith("encoder.layer2.") for slot in slots)
