"""What a method says of itself in a line each, for the table of all methods (docs/methods.md)."""

from dataclasses import dataclass, fields

from generalizeformer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class About:
    """The constant ABOUT of every file in this folder. The file's docstring has the whole story."""

    paper: str  # authors, short title, where, year
    moves: str  # which parameters learn or change
    batch_norm: str  # whose statistics BatchNorm layers use
    keeps: str  # what is carried from batch to batch
    answers: str  # before or after the batch's own update
    reference: str  # repository, and the trace that our numbers are compared with; or "none"
    needs: str  # of the model and the batches

    def __post_init__(self) -> None:
        for field in fields(self):
            words = getattr(self, field.name)
            if not words or words != " ".join(words.split()) or "|" in words:
                raise UserError(
                    f"about: {field.name} is {words!r}; give a few words in one line, without |"
                )
