"""WaterBird: the background of a bird is a shortcut to its kind.

Sagawa et al., ICLR 2020, put birds of CUB-200-2011 before backgrounds of Places; federated as in FedPIN (Tang et al.,
ICML 2024, Sec. 5.1 and E.1). A waterbird stands before water with probability p, else before land; a landbird before
land with probability p, else before water. The released images have one background each, but every test environment
needs its own, so the images are composed here from three downloads: CUB's images, CUB's segmentations and photographs
of land and water (Sagawa et al.: Places' bamboo_forest, forest-broadleaf against ocean, lake-natural).

Choices:
- Waterbirds are found in CUB's names as the release does it, by parts of words. This gives FedPIN's 46 and 154 species,
  of which three are landbirds in truth: Eastern Towhee, Western Meadowlark and Western Wood Pewee contain "tern". By
  whole words there are 43 and 157.
- A client contains a window of waterbird and one of landbird species in CUB's order; the next client's windows lie 10
  and 34 further; there are as many as fit (four), then they repeat. One species of each is left over.
- Image, mask and background are each resized to a square; the mask blends: its gray is the part of the bird.
- Backgrounds are drawn without replacement within an environment, and again from all when they run out. The tests have
  separate backgrounds, the same part of each place as of the birds. The oracle's background is black.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.datasets.images import check_fits, decode
from fedshift.datasets.listing import image_files, subfolders
from fedshift.datasets.shortcuts import ShortcutDataset, ShortcutPlan
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Pixels, Probability, setting
from fedshift.streams import Streams

# The families of seabirds and waterfowl among CUB's species (Sagawa et al., in the release's script).
WATERBIRDS = (
    *("albatross", "auklet", "cormorant", "frigatebird", "fulmar", "gull", "jaeger", "kittiwake", "pelican", "puffin"),
    *("tern", "gadwall", "grebe", "mallard", "merganser", "guillemot", "pacific_loon"),
)
LANDBIRD, WATERBIRD = CLASSES = ("landbird", "waterbird")
PLACES = ("land", "water")  # the habitat of each class, in the classes' order

Names = Literal["release", "words"]


class WaterBird(ShortcutDataset):
    """Waterbirds against landbirds, before water or land."""

    path: str = setting(
        help="CUB-200-2011's folder 'images': one folder a species, such as 053.Western_Grebe", path=True
    )
    masks: str = setting(help="CUB's folder 'segmentations', with the images' names but .png", path=True)
    backgrounds: str = setting(
        help="a folder with the folders 'land' and 'water', photographs anywhere below", path=True
    )
    size: Pixels = setting(224, help="height and width in pixels; at 224 all of CUB needs about 6 GB")
    normalise: bool = setting(False, help="ImageNet's mean and standard deviation")
    train_p: tuple[Probability, ...] = setting(
        (0.95, 0.85), help="a client's training p is drawn from these", source="FedPIN, Sec. 5.1"
    )
    waterbirds: Names = setting(
        "release", help="how waterbirds are recognised: by parts of words as the release (46), or by whole words (43)"
    )
    waterbird_window: tuple[Count, Count] = setting(
        (15, 10), help="waterbird species of a client, and the distance to the next client's", source="FedPIN, E.1"
    )
    landbird_window: tuple[Count, Count] = setting(
        (51, 34), help="landbird species of a client, and the distance to the next client's", source="FedPIN, E.1"
    )

    def inputs(self) -> Inputs:
        return Inputs(normalise=self.normalise)

    def check_here(self) -> None:
        _folders(self.path, "path")
        _folders(self.masks, "masks")
        for name in () if self.oracle else PLACES:
            self._photographs(name)

    def load(self, streams: Streams) -> DomainData:
        """Deal the birds to the clients and put them before backgrounds, for each environment again.

        ``x`` is uint8 (N, 3, size, size); all copies of a bird share a group.
        """
        species = _folders(self.path, "path")
        birds = [(number, image) for number, folder in enumerate(species) for image in image_files(folder)]
        water = torch.tensor([is_waterbird(folder.name, self.waterbirds) for folder in species])
        kind = torch.tensor([number for number, _ in birds])
        plan = self.plan(kind, self._windows(water), streams)
        y = water.long()[kind[plan.original]]
        return self.made(plan, self._compose([image for _, image in birds], plan, y, streams), y, CLASSES)

    def _windows(self, water: Tensor) -> list[list[int]]:
        """The species that clients contain, by number; as many windows as fit."""
        windows: list[list[list[int]]] = []
        for setting_name, kinds in (("landbird_window", ~water), ("waterbird_window", water)):
            width, stride = getattr(self, setting_name)
            numbers = kinds.nonzero().flatten().tolist()
            if len(numbers) < width:
                raise FedshiftError(
                    f"data.{setting_name} = {[width, stride]}, but '{self.path}' has only {len(numbers)} such species."
                )
            windows.append([numbers[start : start + width] for start in range(0, len(numbers) - width + 1, stride)])
        return [land + wet for land, wet in zip(*windows, strict=False)]

    def _compose(self, birds: list[Path], plan: ShortcutPlan, y: Tensor, streams: Streams) -> Tensor:
        """Every sample's image, uint8 (N, 3, size, size); each bird is read once."""
        check_fits(len(y), self.size, 3, "Choose a smaller data.size, or fewer data.test_p or data.originals.")
        x = torch.empty(len(y), 3, self.size, self.size, dtype=torch.uint8)
        black = torch.zeros(3, self.size, self.size, dtype=torch.uint8)
        behind = [] if self.oracle else self._drawn(plan, (plan.agrees == (y == 1)).long(), streams)
        order = torch.argsort(plan.original, stable=True)
        counts = torch.unique_consecutive(plan.original[order], return_counts=True)
        for original, samples in zip(counts[0].tolist(), torch.split(order, counts[1].tolist()), strict=True):
            bird, mask = self._bird(birds[original])
            for sample in samples.tolist():
                place = black if self.oracle else decode(str(behind[sample]), behind[sample], self.size, 3)
                x[sample] = blend(bird, mask, place)
        return x

    def _drawn(self, plan: ShortcutPlan, place: Tensor, streams: Streams) -> list[Path]:
        """The photograph behind each sample. ``place`` (N,) states whether it shows land (0) or water (1)."""
        files: list[Path] = []
        chosen = torch.empty_like(place)
        for number, name in enumerate(PLACES):
            found = self._photographs(name)
            order = streams.permutation(len(found), "backgrounds", name) + len(files)
            tested = min(max(round(self.test * len(found)), 1), len(found) - 1)
            for environment, label in enumerate(self.environment_names()):
                pool = order[tested:] if environment == 0 else order[:tested]
                inside = (plan.environment == environment) & (place == number)
                chosen[inside] = _without_replacement(pool, int(inside.sum()), streams, name, label)
            files += found
        return [files[number] for number in chosen.tolist()]

    def _photographs(self, name: str) -> list[Path]:
        folder = Path(self.backgrounds).expanduser() / name
        found = image_files(folder) if folder.is_dir() else []
        if len(found) < 2:
            raise FedshiftError(
                f"'{self.backgrounds}/{name}' (data.backgrounds) contains {len(found)} images; training and tests "
                "need at least one each."
            )
        return found

    def _bird(self, image: Path) -> tuple[Tensor, Tensor]:
        mask = Path(self.masks).expanduser() / image.parent.name / f"{image.stem}.png"
        if not mask.is_file():
            raise FedshiftError(f"The bird '{image}' has no mask '{mask}'; data.masks should be CUB's segmentations.")
        return decode(str(image), image, self.size, 3), decode(str(mask), mask, self.size, 1)


def is_waterbird(species: str, names: Names = "release") -> bool:
    """Whether a species of CUB, named as its folder (053.Western_Grebe), counts as a waterbird.

    Args:
        species: the folder's name; case does not matter.
        names: "release": a family's name is part of it; "words": as a separate word.
    """
    name = species.rpartition(".")[2].lower()
    if names == "release":
        return any(family in name for family in WATERBIRDS)
    return any(f"_{family}_" in f"_{name}_" for family in WATERBIRDS)


def blend(bird: Tensor, mask: Tensor, background: Tensor) -> Tensor:
    """The bird before the background: (mask * bird + (255 - mask) * background) / 255, rounded.

    Args:
        bird: uint8 (3, H, W).
        mask: uint8 (1, H, W), 255 where there is nothing but bird.
        background: uint8 (3, H, W).
    """
    part = mask.float() / 255
    return (part * bird + (1 - part) * background).round().to(torch.uint8)


def _without_replacement(pool: Tensor, count: int, streams: Streams, *key: str) -> Tensor:
    passes = -(-count // len(pool))
    orders = [pool[streams.permutation(len(pool), "backgrounds", *key, number)] for number in range(passes)]
    return torch.cat([pool[:0], *orders])[:count]


CUB = {"path": "images", "masks": "segmentations"}  # folders of CUB by the setting that names them


def _folders(path: str, name: str) -> list[Path]:
    root = Path(path).expanduser()
    found = subfolders(root) if root.is_dir() else []
    if not found:
        raise FedshiftError(f"data.{name} = '{path}' contains no folders; give CUB-200-2011's folder '{CUB[name]}'.")
    return found
