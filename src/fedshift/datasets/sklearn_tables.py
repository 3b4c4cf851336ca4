"""Two medical tables that scikit-learn ships, each in three sites; nothing is downloaded.

Neither file names where a patient was seen, so the sites are made from a covariate, and the page names which.

*Diabetes* (Efron, Hastie, Johnstone and Tibshirani, Annals of Statistics 2004): 442 patients, ten baseline
measurements, and the progression of the disease one year later. Sites are age bands, as of clinics that see young
adults, the middle-aged and the elderly. The class is whether the progression is above 140.5, which is its median.

*Breast cancer* (Wolberg, Street and Mangasarian, 1995): 569 fine-needle aspirates, thirty measurements of cell nuclei,
benign or malignant. There is no covariate of the patient or the hospital. Sites are thirds by the mean texture, the
spread of the gray levels of an image: of the ten measurements it is the one of gray levels rather than of outlines, so
the one that staining and digitisation move. It stands for those, and is no record of them; it also goes with the class
(89, 63 and 37 % are benign), so labels shift, too. The three columns of texture are no inputs.

*Choices.* Bounds of age and texture, and the median, are constants here, as they define the sites and the task. Sex,
whose values 1 and 2 scikit-learn does not explain, is a category.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fedshift.clients.domains import DomainData
from fedshift.clients.preparation import Column
from fedshift.datasets.labelled import Array
from fedshift.datasets.table_file import TableDataset
from fedshift.errors import needs
from fedshift.spec import setting
from fedshift.streams import Streams

MEDIAN_PROGRESSION = 140.5


class _Shipped(TableDataset):
    """A table of scikit-learn, whose sites are the bands of one of its columns."""

    sites: ClassVar[tuple[str, ...]]
    bounds: ClassVar[tuple[float, ...]]  # the lower bounds of the second site, the third, etc.

    statistics: Literal["none", "site", "pooled", "combat"] = setting(
        "pooled",
        help="what prepares rows: nothing; statistics of training rows of each site alone, of all, or ComBat's",
    )

    def domain_names(self) -> tuple[str, ...]:
        return self.sites

    def check_here(self) -> None:
        _sklearn()

    def _data(self, x: Array, columns: tuple[Column, ...], y: Array, classes: tuple[str, str], by: Array) -> DomainData:
        """Rows x (N, columns) with labels y (N,), in sites by another column (N,)."""
        return DomainData(
            x=torch.from_numpy(np.ascontiguousarray(x, np.float64 if self.prepared else np.float32)),
            y=torch.from_numpy(y.astype(np.int64)),
            domain=torch.from_numpy(np.digitize(by, self.bounds).astype(np.int64)),
            domains=self.sites,
            classes=classes,
            group=torch.arange(len(y)),
            columns=columns,
        )


class Diabetes(_Shipped):
    """442 patients with diabetes in three age bands, and whether the disease progresses faster than in half of them."""

    sites: ClassVar[tuple[str, ...]] = ("under 43", "43 to 55", "56 and over")
    bounds: ClassVar[tuple[float, ...]] = (43, 56)

    def load(self, streams: Streams) -> DomainData:
        """Age, sex, body mass index, blood pressure and six serum measurements, as they were measured."""
        table = _sklearn().load_diabetes(scaled=False)
        x, names = table.data.copy(), table.feature_names
        columns = [Column(name) for name in names]
        if self.prepared:
            sex = names.index("sex")
            columns[sex], x[:, sex] = Column("sex", ("1", "2")), x[:, sex] - 1
        y = table.target > MEDIAN_PROGRESSION
        return self._data(x, tuple(columns), y, ("slower", "faster"), table.data[:, names.index("age")])


class BreastCancer(_Shipped):
    """569 breast tumours, benign or malignant, in three sites by the texture of their images."""

    sites: ClassVar[tuple[str, ...]] = ("smooth", "medium", "coarse")
    bounds: ClassVar[tuple[float, ...]] = (17.2, 20.7)

    def load(self, streams: Streams) -> DomainData:
        """Twenty-seven measurements of cell nuclei."""
        table = _sklearn().load_breast_cancer()
        names = [str(name) for name in table.feature_names]
        kept = [place for place, name in enumerate(names) if "texture" not in name]
        columns = tuple(Column(names[place]) for place in kept)
        classes = ("malignant", "benign")  # 0 and 1 in the file
        return self._data(
            table.data[:, kept], columns, table.target, classes, table.data[:, names.index("mean texture")]
        )


def _sklearn() -> Any:
    with needs("sklearn", "A table of scikit-learn"):
        from sklearn import datasets
    return datasets
