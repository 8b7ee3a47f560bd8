"""Seeds from words: the same words give the same seed on every machine, and adding a run never moves another."""

import hashlib


def derive(*words: object) -> int:
    """A 63-bit seed that depends on the words and on nothing else, e.g. `derive("digits", "order", 3)`."""
    digest = hashlib.sha256(repr(words).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
