"""A catalogue is a folder whose plain files are its entries: adding a method is adding one file."""

import difflib
import importlib
import pkgutil
from types import ModuleType

from generalizeformer.errors import UserError

WORDS = {"adapters": "methods"}
"""What users call the entries of a folder, where it is not the folder's name."""


def names(package: str) -> list[str]:
    """The entries of a catalogue package, sorted. Files that start with an underscore are machinery."""
    path = importlib.import_module(package).__path__
    return sorted(
        entry.name for entry in pkgutil.iter_modules(path) if not entry.name.startswith("_")
    )


def load(package: str, name: str) -> ModuleType:
    """The module of one entry, or an error that names the nearest entry that exists."""
    known = names(package)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(known)}."
        word = package.rpartition(".")[2]
        raise UserError(f"{WORDS.get(word, word)}: there is no {name!r}; {hint}")
    return importlib.import_module(f"{package}.{name}")
