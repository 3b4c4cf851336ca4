"""What every data set of rows and columns has in common: how its rows become inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.federation.inputs import Inputs
from fedshift.federation.preparation import Preparation
from fedshift.settings.spec import setting


@dataclass(frozen=True, kw_only=True)
class TableDataset(Dataset):
    """Rows, of which missing cells may be filled in, numbers standardised, and categories be one-hot."""

    seeded: ClassVar[bool] = False

    statistics: Literal["none", "site", "pooled"] = setting(
        "none",
        help="what prepares rows: nothing, which takes numbers as they are; statistics of training rows, of each site "
        "alone; or of all sites together, from sums that each sends once",
    )
    impute: Literal["mean", "median"] = setting(
        "mean", help="what stands for a missing number; for a missing category it is the most frequent one"
    )

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: one is wrong, or they contradict each other.
        """
        super().__post_init__()
        if self.impute == "median" and self.statistics == "pooled":
            raise FedshiftError(
                "data.impute = 'median': the median of all sites' rows does not follow from what each can send of its "
                "own. Take the mean (--set data.impute=mean), or each site's own (--set data.statistics=site)."
            )

    @property
    def prepared(self) -> bool:
        """Whether rows are prepared."""
        return self.statistics != "none"

    def inputs(self) -> Inputs:
        """Rows as they are, or as they are prepared; the columns are known when the rows are read and divided."""
        return Inputs(preparation=Preparation(self.statistics, self.impute) if self.statistics != "none" else None)
