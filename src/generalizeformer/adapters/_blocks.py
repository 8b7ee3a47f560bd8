"""Which part of the network may move: surgical fine-tuning, for every method that moves parameters.

Lee, Chen, Tajwar, Kumar, Yao, Liang and Finn, "Surgical fine-tuning improves adaptation to distribution shifts",
ICLR 2023, section 2: an early block for shifts of the input, a middle one for shifts of features, the last for shifts
of the output. There the target has labels; here the block follows the method's own loss, and the user chooses it.
"""

from collections.abc import Iterable

from torch import nn

from generalizeformer.errors import SlotError


def within(
    layers: Iterable[nn.Module], copied: nn.Module, blocks: tuple[str, ...], method: str
) -> list[nn.Module]:
    """Those of the copy's layers that are, or lie in, a module named by `blocks`; all where none is named."""
    if not blocks:
        return list(layers)
    # A module used in two places can be named by either.
    named = dict(copied.named_modules(remove_duplicate=False))
    for block in blocks:
        if block not in named or not block:
            raise SlotError(
                f"{method}: {type(copied).__name__} has no block {block!r}; its blocks are "
                f"{', '.join(name for name, _ in copied.named_children())}; name these, or modules inside them "
                "by their full names"
            )
    chosen = {module for block in blocks for module in named[block].modules()}
    return [layer for layer in layers if layer in chosen]


def where(blocks: tuple[str, ...]) -> str:
    """How an error says that the choice of blocks, not the model, left nothing to adapt."""
    return f" in {', '.join(blocks)}" if blocks else ""
