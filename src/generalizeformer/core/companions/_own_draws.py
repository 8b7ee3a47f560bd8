"""Fresh networks whose first weights depend on a word and the caller's seed, and on nothing drawn before."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from generalizeformer.seeds import derive


@contextmanager
def own_draws(word: str) -> Iterator[None]:
    """Random numbers of the word's and the caller's seed's own inside, the caller's as before outside.

    So a training that is killed before its first state begins anew from the same weights, and whoever builds a
    network only to fill it takes no random number from the caller.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(word, torch.initial_seed()))
        yield
