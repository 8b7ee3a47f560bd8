"""A classifier written for every image, from the sources' class centres and a descriptor of the image.

Xiao, Zhen, Shao and Snoek, "Learning to generalize across domains on single test samples", ICLR 2022. Reference:
github.com/zzzx1224/SingleSampleGeneralization-ICLR2022, pacs_code/pacs_model.py.

BN mode: the source's running statistics of the method's own network, which was trained on from the source model.
Keeps nothing: an image's rows are the mean that the network writes for it, without draws, so each image is answered
alike in whatever company. With `shared`, the reference's variant for several samples, the descriptor is the mean over
the batch (or group) instead. Needs a model trained with `generalizeformer train --also single_sample`. Logits have no
bias.

Deviations. The descriptor's inner feature maps are found by stage in any network (core/companions/single_sample.py);
in a ResNet they are the reference's. The class centres come from the sources' training images and are kept with the
model: the reference draws 10 images of each class and source anew for every test. There is nothing published to
search: `shared` is another use of the images, not a setting that the reference chooses.
"""

from dataclasses import dataclass
from threading import Lock

from generalizeformer.adapters._about import About
from generalizeformer.adapters._companion import companion
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Groups, Images, Logits

ABOUT = About(
    paper="Xiao et al., Learning to generalize across domains on single test samples, ICLR 2022",
    moves="the classifier, written for each image",
    batch_norm="source",
    keeps="nothing",
    answers="there is no update",
    reference="no trace of zzzx1224/SingleSampleGeneralization-ICLR2022",
    needs="training for it; linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    shared: bool = False  # one descriptor for the whole batch: the mean of its images'


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    network, lock = companion(source, "single_sample"), Lock()

    def answer(images: Images, groups: Groups | None) -> Logits:
        check_images(images, source.backbone)
        together = grouping(groups, len(images), images)
        with lock:  # it watches its own layers, whoever runs them
            return network(images, together if config.shared else None)  # type: ignore[no-any-return]

    return Stateless(answer)
