"""Numbers a training can be run with. A refusal names the setting, its value and what it may be."""

from collections.abc import Sequence

from generalizeformer.errors import UserError


def check_counts(where: str, **values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{where}: {name} is {value}; it must be at least 1")


def check_sizes(where: str, **values: Sequence[int]) -> None:
    for name, sizes in values.items():
        if not sizes or min(sizes) < 1:
            raise UserError(
                f"{where}: {name} is {tuple(sizes)}; give at least one size, each at least 1"
            )


def check_shares(where: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise UserError(f"{where}: {name} is {value}; it must be between 0 and 1")


def check_positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise UserError(f"{where}: {name} is {value}; it must be above 0")


def check_not_negative(where: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise UserError(f"{where}: {name} is {value}; it must be 0 or above, and finite")
