"""What a search would compute again for every entry of a grid, kept while it lasts: images and the source's answers."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor

from generalizeformer.benchmark.runner import Arrival, Read, arriving
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.grouped import GroupedBackbone, Output
from generalizeformer.core.groups import Grouping
from generalizeformer.core.shapes import Images, Params
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream

MOST = 2**30  # bytes of prepared images that a search may hold


class RememberingBackbone(GroupedBackbone):
    """The source's network, which runs a batch that is held only once, whoever asks.

    Only what the unchanged source model answers is remembered: with generated parameters, statistics to be watched or
    gradients to be had, it runs as always.
    """

    def __init__(self, network: GroupedBackbone) -> None:
        vars(self).update(vars(network))  # the same twin, compiled or not
        self.held: dict[tuple[Any, ...], Tensor] = {}
        self.outputs: dict[tuple[Any, ...], Output] = {}

    def hold(self, images: Images) -> None:
        """From now on answers to these images are remembered. They must not change, and are kept alive."""
        self.held[_place(images)] = images

    def forget(self) -> None:
        self.held.clear()
        self.outputs.clear()

    def run(
        self, images: Images, grouping: Grouping, params: Params, *, watch: bool = False
    ) -> Output:
        place = _place(images)
        if params or watch or images.requires_grad or place not in self.held:
            return super().run(images, grouping, params, watch=watch)
        # Groups differ in their generated parameters alone, so here they make no difference.
        if place not in self.outputs:
            self.outputs[place] = super().run(images, grouping, params)
        known = self.outputs[place]
        # Copies: a method may do with them what it likes.
        return Output(known.logits.clone(), known.features.clone(), {}, {})


def _place(images: Tensor) -> tuple[Any, ...]:
    """Where the pixels lie: the same for a detached alias, and never another's while a tensor there is alive."""
    return images.data_ptr(), images.shape, images.stride()


@contextmanager
def remembering(
    source: GeneralizeFormer, dataset: DomainDataset, streams: Sequence[Stream]
) -> Iterator[tuple[GeneralizeFormer, Read]]:
    """A stand-in for the source model and a way to read the streams, for many runs; all is forgotten at the end.

    Every tensor of the stand-in is the source's; only its network is its own. Where the streams have too many images
    to be held, these are the source model itself and the usual way.
    """
    prepare = source.card.preprocessing
    images = sum(len(stream.arrivals(dataset)) for stream in streams)
    if images * prepare.channels * prepare.size**2 * 4 > MOST:  # prepared as float32
        yield source, arriving
        return
    network, lent = RememberingBackbone(source.network), copy.copy(source)
    lent.network = network

    @cache
    def read(*given: Any) -> list[Arrival]:
        arrivals = list(arriving(*given))
        for arrival in arrivals:
            network.hold(arrival.images)
        return arrivals

    try:
        yield lent, read
    finally:  # not when the last reference goes: on a GPU this is much memory
        network.forget()
        read.cache_clear()
