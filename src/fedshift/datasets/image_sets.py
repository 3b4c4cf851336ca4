"""Image data sets: a user's own, and published ones with known domains.

| name | domains | classes | source |
|---|---|---|---|
| pacs | 4 | 7 | Li et al., ICCV 2017 |
| office-home | 4 | 65 | Venkateswara et al., CVPR 2017 |
| office-caltech-10 | 4 | 10 | Gong et al., CVPR 2012 |
| domainnet | 6 | 345, of which some are drawn | Peng et al., ICCV 2019 |
| cifar10 | 1 | 10 | Krizhevsky, 2009 |

Each published one is read from the Hugging Face hub, from Parquet, or from a folder; what is found is checked against
the table above.

Choices: a domain has one name wherever it is read from ("Art Painting" and "art_painting" are the same). The hub's
splits carry no meaning here, as a protocol holds samples out: DomainNet's train and test images are put together, and
of CIFAR-10 the 50,000 training images are taken. The hub copies are flwrlabs/pacs, flwrlabs/office-home,
wltjr1007/DomainNet and uoft-cs/cifar10; no copy of Office-Caltech-10 is known, so it needs a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.image_tables import Columns, hub_images, images_at
from fedshift.datasets.images import ImageRows
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.hub import answers
from fedshift.spec import Count, Pixels, setting
from fedshift.streams import Streams

PATH_HELP = "'hub', a Parquet file or a folder of them, or a folder laid out as folder/domain/class/file"


class ImageFolder(ImageDataset):
    """Images in folder/domain/class/file: each first-level folder is a domain, each second a class."""

    seeded: ClassVar[bool] = False

    path: str = setting(help="the folder with one folder per domain", path=True)

    @property
    def online(self) -> bool:
        return False

    def found(self) -> ImageRows:
        """What the settings name; no image is read yet."""
        return images_at(self.path)

    def check_here(self) -> None:
        super().check_here()
        if not self.online or not answers():
            self.found()

    def domain_names(self) -> tuple[str, ...]:
        return tuple(sorted({*self.found().domains}))

    def read(self, streams: Streams) -> DomainData:
        return self.found().decoded(self.size, self.channels)


class ParquetFile(ImageFolder):
    """Parquet with ``image`` (bytes, or a struct with bytes, as the hub writes), ``domain`` and ``label``."""

    path: str = setting(help="a Parquet file, or a folder of them", path=True)


class HubDataset(ImageFolder):
    """A hub id such as flwrlabs/pacs, or a local folder in the hub's layout, read by the datasets library."""

    path: str = setting(help="the hub id, or a folder that the datasets library reads", path=True)
    split: str = setting("train", help="which split; 'train+test' joins two")

    @property
    def online(self) -> bool:
        return True

    def found(self) -> ImageRows:
        return hub_images(self.path, split=self.split, given=f"data.path = '{self.path}'")


class NamedImages(ImageFolder):
    """A published data set: where it may be read from, and what has to be in it."""

    title: ClassVar[str]  # what its authors call it
    hub_id: ClassVar[str] = ""  # its copy on the Hugging Face hub; empty if none is known
    # its domains' names. If it is but one, every image is of it, whatever the source states.
    domains: ClassVar[tuple[str, ...]]
    aliases: ClassVar[Mapping[str, str]] = {}  # other spellings of a domain's name, simplified as by :func:`simplified`
    class_count: ClassVar[int]  # how many classes it has
    columns: ClassVar[Columns] = Columns()  # what its tables' columns are called

    path: str = setting("hub", help=PATH_HELP, path=True, words=("hub",))
    split: str = setting("train", help="which split of the hub's copy; 'train+test' joins two")

    def domain_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.domains))

    def read(self, streams: Streams) -> DomainData:
        """Read the images of the wanted classes."""
        found = self.found()
        classes, names = self.wanted(found.classes), self._published(found)
        domains = [names.get(name, self.domains[0]) for name in found.domains]
        return found._replace(domains=domains, classes=classes).decoded(self.size, self.channels)

    @property
    def online(self) -> bool:
        return self.path == "hub" and bool(self.hub_id)

    def found(self) -> ImageRows:
        """What ``path`` names."""
        if self.path == "hub":
            if not self.hub_id:
                raise FedshiftError(f"No copy of {self.title} on the hub is known: {self._elsewhere()}")
            return hub_images(self.hub_id, self.columns, self.split, instead=self._elsewhere())
        if not Path(self.path).expanduser().exists():
            online = " To download it, leave data.path out (it is then 'hub')." if self.hub_id else ""
            raise FedshiftError(f"data.path = '{self.path}' does not exist: {self._elsewhere()}.{online}")
        return images_at(self.path, self.columns)

    def wanted(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the classes found that are read: all of them, after counting."""
        if len(classes) != self.class_count:
            shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
            raise FedshiftError(
                f"{self.title} has {self.class_count} classes, but '{self._place()}' has {len(classes)} ({shown}). "
                "A part of it can be read by --set data.name=folder or parquet."
            )
        return classes

    def _published(self, images: ImageRows) -> dict[str, str]:
        """The published name of each domain found; empty for a data set of a single one."""
        if len(self.domains) == 1:
            return {}
        known = {simplified(name): name for name in self.domains} | dict(self.aliases)
        found = {name: known.get(simplified(name), "") for name in sorted(set(images.domains))}
        if sorted(found.values()) != sorted(self.domains):
            raise FedshiftError(
                f"{self.title} has the domains {', '.join(sorted(self.domains))}, but '{self._place()}' has "
                f"{', '.join(found) or 'none'}. Rename them, or read it by --set data.name=folder, parquet or hub."
            )
        return found

    def _place(self) -> str:
        return self.hub_id if self.path == "hub" else self.path

    def _elsewhere(self) -> str:
        return (
            f"give {self.title} as Parquet ({', '.join(('/'.join(self.columns.image), *self.columns.others()))}) or as "
            "folder/domain/class/file: --set data.path=PATH"
        )


def simplified(name: str) -> str:
    """A domain's name without case and without anything but letters and digits."""
    return "".join(character for character in name.lower() if character.isalnum())


class PACS(NamedImages):
    """Photo, art painting, cartoon and sketch: 9,991 images of 7 classes (Li et al., ICCV 2017)."""

    title: ClassVar[str] = "PACS"
    hub_id: ClassVar[str] = "flwrlabs/pacs"
    domains: ClassVar[tuple[str, ...]] = ("art_painting", "cartoon", "photo", "sketch")
    class_count: ClassVar[int] = 7


class OfficeHome(NamedImages):
    """Art, clipart, product and real world: 15,588 images of 65 classes (Venkateswara et al., CVPR 2017)."""

    title: ClassVar[str] = "Office-Home"
    hub_id: ClassVar[str] = "flwrlabs/office-home"
    domains: ClassVar[tuple[str, ...]] = ("art", "clipart", "product", "real_world")
    class_count: ClassVar[int] = 65


class OfficeCaltech10(NamedImages):
    """Amazon, Caltech-256, DSLR and webcam: 2,533 images of the 10 classes they share (Gong et al., CVPR 2012)."""

    title: ClassVar[str] = "Office-Caltech-10"
    domains: ClassVar[tuple[str, ...]] = ("amazon", "caltech10", "dslr", "webcam")
    aliases: ClassVar[Mapping[str, str]] = {"caltech": "caltech10", "caltech256": "caltech10"}
    class_count: ClassVar[int] = 10

    path: str = setting(help=PATH_HELP.removeprefix("'hub', "), path=True)
    size: Pixels = setting(
        128, help="height and width that images are resized to, in pixels", source="FedCiR, Sec. 6.1"
    )


class DomainNet(NamedImages):
    """Six domains of 345 classes, 586,575 images, of which some classes are drawn (Peng et al., ICCV 2019).

    Classes are drawn again for each seed. All images are kept in memory: at 64 pixels 50 classes take about 1 GB.
    """

    title: ClassVar[str] = "DomainNet"
    hub_id: ClassVar[str] = "wltjr1007/DomainNet"
    domains: ClassVar[tuple[str, ...]] = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    class_count: ClassVar[int] = 345

    seeded: ClassVar[bool] = True  # which classes are drawn

    split: str = setting("train+test", help="which split of the hub's copy; 'train+test' joins two")
    size: Pixels = setting(
        64, help="height and width that images are resized to, in pixels", source="Client2Vec, App. D.2"
    )
    classes: Count = setting(50, help="how many classes are drawn from all", source="Client2Vec, App. D.2")
    only: tuple[str, ...] = setting((), help="the classes by name, instead of drawing them")

    def load(self, streams: Streams) -> DomainData:
        """Draw the classes, unless they are named, and read their images."""
        drawn = self if self.only else self.replace(only=self._draw(streams))
        return super(DomainNet, drawn).load(streams)

    def wanted(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        for name in self.only:
            if name not in classes:
                raise UnknownNameError("class of data.only", name, classes)
        return tuple(name for name in classes if name in self.only)

    def _draw(self, streams: Streams) -> tuple[str, ...]:
        found = self.found().classes
        if len(found) < self.classes:
            raise FedshiftError(f"data.classes = {self.classes}, but '{self._place()}' has {len(found)} classes.")
        order = streams.permutation(len(found), "domainnet classes")
        return tuple(found[index] for index in order[: self.classes].tolist())


class CIFAR10(NamedImages):
    """10 classes of small photographs, a single domain; shifts come from how it is shared out (Krizhevsky, 2009)."""

    title: ClassVar[str] = "CIFAR-10"
    hub_id: ClassVar[str] = "uoft-cs/cifar10"
    domains: ClassVar[tuple[str, ...]] = ("cifar10",)
    class_count: ClassVar[int] = 10
    columns: ClassVar[Columns] = Columns(image=("image", "img"), domain="")

    size: Pixels = setting(32, help="height and width that images are resized to, in pixels")
