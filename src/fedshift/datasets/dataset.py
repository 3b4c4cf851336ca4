"""The base of data sets: samples with a label and a domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import ClassVar, Literal

from fedshift import parquet
from fedshift.clients.domains import DomainData, Unlabelled
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column, Preparation
from fedshift.core.frozen import Embedding, Front, FrozenNetwork, embedded, frozen_network, silent
from fedshift.datasets.image_tables import Columns, images_at
from fedshift.datasets.images import decoded
from fedshift.datasets.listing import image_suffixes
from fedshift.errors import FedshiftError, needs
from fedshift.spec import OptionalPixels, Pixels, Spec, setting
from fedshift.streams import Streams

PARQUET = ".parquet"


class Dataset(Spec):
    """A data set."""

    section: ClassVar[str] = "data"
    readers: ClassVar[tuple[str, ...]] = ()  # settings that name files which :meth:`samples` and :meth:`front` need
    seeded: ClassVar[bool] = True  # whether :meth:`load` draws random numbers, so that each seed reads the data again

    def domain_names(self) -> tuple[str, ...]:
        """The domains' names, without loading the samples."""
        raise NotImplementedError

    def load(self, streams: Streams) -> DomainData:
        """Read every sample into memory; random choices come from the streams.

        A run checks the result by :func:`fedshift.clients.data_checks.check_data`.
        """
        raise NotImplementedError

    def embedded(self, data: DomainData, notify: Embedding = silent) -> DomainData:
        """The loaded samples, with images replaced by features if the settings require it.

        Args:
            data: the loaded samples.
            notify: called with the network's name, the number of embedded images and of all images.
        """
        return data

    def inputs(self) -> Inputs:
        """How samples become a network's inputs."""
        return Inputs()

    # Files to predict for -------------------------------------------------------------------------

    def suffixes(self) -> tuple[str, ...]:
        """The lower-case suffixes of files that :meth:`samples` reads; empty if it reads no new files."""
        return ()

    def reads(self, file: Path) -> bool:
        """Whether :meth:`samples` reads a file, by its name."""
        return file.name.lower().endswith(self.suffixes())

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The samples of a new file, read as :meth:`load` would; its labels are ignored, with a note.

        Args:
            file: the file.
            columns: for prepared rows, the model's columns.

        Raises:
            FedshiftError: it cannot be read; the message names the file, the row, the column and the value.
        """
        raise NotImplementedError

    def front(self) -> Front | None:
        """The network that embeds these samples, if :meth:`embedded` does."""
        return None


class ImageDataset(Dataset):
    """Images of any size, resized when they are read."""

    readers: ClassVar[tuple[str, ...]] = ("frozen",)

    size: Pixels = setting(224, help="height and width that images are resized to, in pixels")
    channels: Literal[1, 3] = setting(3, help="3: colour; 1: gray")
    augment: bool = setting(False, help="crop, flip, colour jitter and grayscale in training (needs 3 channels)")
    flip: bool = setting(True, help="false: augment without flips, where a mirror image is another thing, as in text")
    normalise: bool = setting(False, help="ImageNet's mean and standard deviation (needs 3 channels)")
    missing_classes: Literal["error", "allow"] = setting(
        "error", help="treatment of a domain without images of a class"
    )
    frozen: str = setting(
        "none",
        help="the pretrained network whose features replace the images: 'none', 'efficientnet-lite0', a hub id, or "
        "a local folder that save_pretrained wrote",
        path=True,
    )
    frozen_size: OptionalPixels = setting(
        0, help="height and width in pixels that images are resized to for the frozen network; 0: as size"
    )
    harmonise: Literal["none", "combat"] = setting(
        "none",
        help="with frozen: whether ComBat removes each site's differences in location and scale from the features",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frozen != "none" and (self.augment or self.normalise):
            name = "augment" if self.augment else "normalise"
            raise FedshiftError(
                f"data.{name} works on images, but data.frozen = '{self.frozen}' leaves features only, made of "
                f"normalised images: --set data.{name}=false"
            )
        if self.frozen == "none" and self.harmonise != "none":
            raise FedshiftError(
                f"data.harmonise = '{self.harmonise}' is for features of a frozen network, and data.frozen = 'none': "
                "name a network (--set data.frozen=efficientnet-lite0), or leave data.harmonise out."
            )

    def load(self, streams: Streams) -> DomainData:
        """Read the images and check that every domain has every class."""
        self.frozen_network()  # a missing network is reported before the images are read, which takes longer
        data = self.read(streams)
        missing = data.missing()
        if missing and self.missing_classes == "error":
            places = ", ".join(f"class '{label}' in domain '{domain}'" for domain, label in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise FedshiftError(
                f"No image of {places}{more}. Add images, or accept it: --set data.missing_classes=allow"
            )
        return data

    def check_here(self) -> None:
        """Raise an error if the frozen network is missing."""
        self.frozen_network()

    def frozen_network(self) -> FrozenNetwork | None:
        """The network whose features replace the images, if any."""
        return None if self.frozen == "none" else frozen_network(self.frozen)

    def read(self, streams: Streams) -> DomainData:
        """Read the images; random choices come from the streams."""
        raise NotImplementedError

    def embedded(self, data: DomainData, notify: Embedding = silent) -> DomainData:
        """The data with features (N, F), float32, in place of images, unless ``frozen`` is 'none'."""
        found = embedded(data, self.frozen_network(), self.frozen_size, notify)
        return found if self.harmonise == "none" else replace(found, columns=feature_columns(found.x.shape[1]))

    def suffixes(self) -> tuple[str, ...]:
        return (*image_suffixes(), PARQUET)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """An image, or the column ``image`` of a Parquet file."""
        if file.suffix.lower() != PARQUET:
            return Unlabelled(decoded([(str(file), file)], self.size, self.channels))
        source = images_at(str(file), Columns(label="", domain=""))
        if not source.labels:
            raise FedshiftError(f"'{file}' has no rows; write one for each image.")
        x = decoded(source.read(), self.size, self.channels)
        others = sorted(name for name in parquet.columns_of(file) if name != "image")
        note = f"Columns that are ignored: {', '.join(others)} (of '{file}')."
        return Unlabelled(x, range(len(x)), (note,) if others else ())

    def front(self) -> Front | None:
        network = self.frozen_network()
        return None if network is None else Front(network, self.frozen_size)

    def inputs(self) -> Inputs:
        """Scaling and augmentation, as set."""
        if self.channels != 3 and (self.augment or self.normalise):
            raise FedshiftError("data.augment and data.normalise need colour images: --set data.channels=3")
        harmonised = Preparation(self.harmonise) if self.harmonise != "none" else None
        inputs = Inputs(self.augment, self.normalise, flip=self.augment and self.flip, preparation=harmonised)
        return augmented(inputs)


def feature_columns(count: int) -> tuple[Column, ...]:
    return tuple(Column(f"feature {number}") for number in range(count))


def augmented(inputs: Inputs) -> Inputs:
    if inputs.augment:
        with needs("images", "Augmentation"):
            distribution("kornia")  # its import takes seconds
    return inputs
