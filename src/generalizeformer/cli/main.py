"""`generalizeformer VERB …`: a table of verbs."""

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro

from generalizeformer import __version__, memory
from generalizeformer.cli import data
from generalizeformer.cli.benchmark import benchmark
from generalizeformer.cli.demo import demo
from generalizeformer.cli.evaluate import evaluate
from generalizeformer.cli.info import info
from generalizeformer.cli.methods import methods
from generalizeformer.cli.predict import predict
from generalizeformer.cli.reproduce import reproduce
from generalizeformer.cli.train import train
from generalizeformer.errors import UserError

VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "benchmark": benchmark,
    "reproduce": reproduce,
    "predict": predict,
    "info": info,
    "methods": methods,
    "data": data.data,
}
AT_THE_END = ("evaluate", "predict", "data check")
"""Verbs that tell what they have found once they have found all of it."""
DESCRIPTION = (
    "Keeps an image classifier accurate when the data shifts: parameters are generated for every batch. "
    "`generalizeformer --version` tells the version."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a verb. What a user can mend is one line on standard error and exit status 2."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["--version"]:
        print(__version__)
        return
    memory.keep()
    try:
        _run(arguments)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (UserError, OSError) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"stopped; {_left(arguments)}", file=sys.stderr)
        sys.exit(130)


def _run(words: list[str]) -> None:
    """Runs the verb that the words name. `data` has verbs of its own, and by itself tells them."""
    verbs, prog, description = VERBS, "generalizeformer", DESCRIPTION
    if words[:1] == ["data"]:
        verbs, prog, description = data.VERBS, f"{prog} data", data.data.__doc__ or ""
        words = words[1:] or ["--help"]
    _check_verb(words, verbs)
    tyro.extras.subcommand_cli_from_dict(verbs, prog=prog, description=description, args=words)


def _check_verb(words: list[str], verbs: Mapping[str, Any]) -> None:
    """Raises where the first word is no verb. Flags are left to the parser."""
    if not words or words[0].startswith("-") or words[0] in verbs:
        return
    near = difflib.get_close_matches(words[0], verbs, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"there is no verb {words[0]!r}; {hint}choose from: {', '.join(verbs)}")


def _left(words: list[str]) -> str:
    """What a verb that was stopped has left behind."""
    if " ".join(words[: 2 if words[:1] == ["data"] else 1]) in AT_THE_END:
        return "nothing was kept: the same command begins anew"
    return "run the same command again to go on"


def _one_line(error: Exception) -> str:
    """The message without line breaks; what the system refuses is a file and a reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
