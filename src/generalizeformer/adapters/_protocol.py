"""What every test-time method is: a source model meeting unlabelled target batches."""

from typing import Protocol, runtime_checkable

from generalizeformer.core.shapes import Groups, Images, Logits


@runtime_checkable
class Adapter(Protocol):
    """It is shown images and nothing else: no labels, no domains, no files."""

    def step(self, images: Images) -> Logits:
        """Learns from this target batch, where the method learns at all, and answers it."""

    def predict(self, images: Images) -> Logits:
        """Answers with what is known so far, and changes nothing."""

    def reset(self) -> None:
        """Forgets every target batch."""


@runtime_checkable
class GroupedAdapter(Adapter, Protocol):
    """A method that keeps no state, so that many target batches can be answered at once."""

    def predict_groups(self, images: Images, groups: Groups) -> Logits:
        """Answers each group (one id per image) as `predict` would answer it alone."""
