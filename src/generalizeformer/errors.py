"""What a user can get wrong, as types. The command line turns each into one line and exit status 2."""


class UserError(ValueError):
    """Something outside this package must change: the message says what we got, what would be right, what to do."""


class SlotError(UserError):
    """The model offers nothing to generate, or not what was asked for."""


class ImageError(UserError):
    """Images that cannot be answered: empty, not finite, of the wrong shape or type, or not images at all."""


class CheckpointError(UserError):
    """A saved model that is missing, cut short, foreign, or newer than this package."""


class DataError(UserError):
    """Datasets, domains, classes or folders that do not fit what was asked."""
