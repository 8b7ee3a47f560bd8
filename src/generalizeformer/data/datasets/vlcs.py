"""VLCS: four collections of photographs that share five classes of objects.

Fang, Xu and Rockmore, 2013, in the form most used for domain generalisation: one folder per
collection, one folder per class, native sizes.
"""

from generalizeformer.data.datasets._files import Config, load
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.cache import Report
from generalizeformer.data.storage.published import Defect, Published

__all__ = ["PUBLISHED", "Config", "build"]

PUBLISHED = Published(
    title="VLCS",
    citation="C. Fang, Y. Xu and D. N. Rockmore, Unbiased Metric Learning: On the Utilization of Multiple "
    "Datasets and Web Images for Softening Bias, ICCV 2013",
    licence="a mixture of four collections without a joint licence; for research",
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    classes=("bird", "car", "chair", "dog", "person"),
    counts={
        "Caltech101": (237, 123, 118, 67, 870),
        "LabelMe": (80, 1209, 88, 42, 1237),
        "SUN09": (20, 932, 1036, 30, 1264),
        "VOC2007": (330, 699, 428, 420, 1499),
    },
    defects=(
        Defect(
            files=("SUN09/*", "VOC2007/*"),
            what="nine images are there twice within their class, under other names: six in SUN09, three in VOC2007",
            kinds=("duplicate",),
            count=9,
        ),
    ),
    notes=(
        "The classes are far from balanced: 20 birds in SUN09, 42 dogs in LabelMe, and 45 % of all images are persons.",
        "Many images show objects of several of the five classes.",
        "The other distribution, with folders CALTECH, LABELME, PASCAL and SUN, divides its images into parts "
        "and numbers its classes; it is not supported.",
    ),
    layout="<root>/<Caltech101|LabelMe|SUN09|VOC2007>/<bird|car|chair|dog|person>/<32 hexadecimal digits>.jpg",
    obtain="fetch the tar.gz that DomainBed names for VLCS from Google Drive "
    "(id 1skwblH1_okBwxWxmRsp9_qi15hyPpxg8) and unpack it",
    drive="1skwblH1_okBwxWxmRsp9_qi15hyPpxg8",
)


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The four collections, the images squashed into a square."""
    return load("vlcs", PUBLISHED, config, report=report)
