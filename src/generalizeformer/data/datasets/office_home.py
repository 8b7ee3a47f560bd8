"""Office-Home: 65 kinds of everyday objects as art, clip art, product pictures and photographs.

Venkateswara, Eusebio, Chakraborty and Panchanathan, 2017.
"""

from generalizeformer.data.datasets._files import Config, load
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.cache import Report
from generalizeformer.data.storage.published import Published

__all__ = ["PUBLISHED", "Config", "build"]

_DOMAINS = ("Art", "Clipart", "Product", "Real World")

# Every class with its counts in the order of the domains. Capitals sort before small letters, so
# TV comes before Table; lists of other projects number the classes in another way.
_COUNTS = """
Alarm_Clock 74 60 79 86; Backpack 41 56 99 99; Batteries 27 64 62 64; Bed 40 98 43 83;
Bike 75 99 44 99; Bottle 99 99 62 78; Bucket 40 73 47 80; Calculator 33 46 81 73;
Calendar 20 78 81 68; Candles 76 99 56 99; Chair 69 99 99 96; Clipboards 25 40 65 65;
Computer 44 99 96 64; Couch 40 64 88 76; Curtains 40 42 75 73; Desk_Lamp 23 41 83 62;
Drill 15 48 67 51; Eraser 18 40 41 43; Exit_Sign 21 41 67 81; Fan 45 50 58 60;
File_Cabinet 22 40 71 58; Flipflops 46 40 99 85; Flowers 90 99 91 75; Folder 20 99 90 57;
Fork 46 61 41 36; Glasses 40 52 67 60; Hammer 40 99 57 52; Helmet 79 69 90 60; Kettle 46 40 72 72;
Keyboard 18 99 99 75; Knives 72 53 41 83; Lamp_Shade 49 40 54 78; Laptop 51 99 99 67;
Marker 20 71 56 23; Monitor 42 99 98 71; Mop 32 40 72 46; Mouse 18 76 96 60; Mug 49 99 41 58;
Notebook 21 83 93 68; Oven 20 40 68 64; Pan 19 51 70 30; Paper_Clip 19 40 47 68; Pen 20 99 60 65;
Pencil 26 99 40 59; Postit_Notes 19 41 38 67; Printer 18 87 99 52; Push_Pin 24 40 43 53;
Radio 47 46 43 66; Refrigerator 49 40 59 75; Ruler 15 67 58 41; Scissors 20 99 99 77;
Screwdriver 30 75 40 51; Shelf 42 42 49 66; Sink 41 42 46 77; Sneakers 46 43 99 88;
Soda 40 61 43 63; Speaker 20 90 99 81; Spoon 46 60 47 54; TV 40 99 76 53; Table 16 80 60 59;
Telephone 44 99 58 82; ToothBrush 43 39 42 85; Toys 20 99 45 67; Trash_Can 21 53 93 81;
Webcam 16 40 98 49
"""


def _table() -> dict[str, tuple[int, ...]]:
    """The counts of every class, by its name."""
    rows = (row.split() for row in _COUNTS.split(";"))
    return {name: tuple(map(int, counts)) for name, *counts in rows}


PUBLISHED = Published(
    title="Office-Home",
    citation="H. Venkateswara, J. Eusebio, S. Chakraborty and S. Panchanathan, Deep Hashing Network for "
    "Unsupervised Domain Adaptation, CVPR 2017",
    licence="for non-commercial research, with a fair-use notice on the project page",
    domains=_DOMAINS,
    classes=tuple(_table()),
    counts=dict(zip(_DOMAINS, zip(*_table().values(), strict=True), strict=True)),
    notes=(
        "No class has more than 99 images in a domain, and some have few: 15 drills and 15 rulers in Art.",
        "Images are of native sizes, from about 100 pixels to several thousand.",
        "The archive also holds tables beside the domain folders; they are not read.",
    ),
    layout="<root>/<Art|Clipart|Product|Real World>/<class>/<NNNNN>.jpg",
    obtain="fetch the zip that DomainBed names for Office-Home from Google Drive (id "
    "1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC), unpack it and rename OfficeHomeDataset_10072016 as you like",
    hub="flwrlabs/office-home",
    drive="1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC",
)


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The four domains, the images squashed into a square."""
    return load("office_home", PUBLISHED, config, report=report)
