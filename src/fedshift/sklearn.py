"""scikit-learn's interface: a federation of arrays as one classifier.

Inputs are used as given. A scaler in a pipeline sees the samples of all sites together, which a real federation could
not; see the table settings for statistics that stay at the sites or are summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, ClassVar, Literal, Self, get_args
from weakref import finalize

import numpy as np
import torch

from fedshift.datasets.in_memory import in_memory
from fedshift.errors import DamagedError, FedshiftError, needs
from fedshift.runs.events import Progress
from fedshift.runs.predictions import probabilities
from fedshift.runs.run import Picked
from fedshift.runs.schema import Blueprint
from fedshift.runs.trained import Trained, of_unseen
from fedshift.study import api

with needs("sklearn", "FederatedClassifier"):
    from scipy.sparse import issparse
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.metrics import accuracy_score
    from sklearn.utils._param_validation import Interval, StrOptions
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, check_X_y, validate_data

Array = np.ndarray[Any, Any]
ALONE = "all"  # the name of the only site, where none is named
NAME = "classifier"  # of its runs
LR = 0.003  # of Adam, whose steps stay small for unscaled features
MISSING = ("", "None", "nan", "<NA>", "NaT")  # how a site that is not known is written
WEIGHTS = "train.class_weights"
BATCH = 512  # samples that are predicted for together


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that sites train together, by any method.

    Attributes:
        classes_: the classes, sorted.
        sites_: the sites' names, sorted.
        n_features_in_, feature_names_in_: as in scikit-learn; the second for pandas tables.
        run_: the run, with its records and messages; its files are removed with the classifier unless ``out`` is set. A
            copied or unpickled classifier has no run.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {  # as scikit-learn's estimators
        "method": "no_validation",
        "model": "no_validation",
        "rounds": [Interval(Integral, 1, None, closed="left")],
        "seed": [Integral],
        "settings": [Mapping, None],
        "class_weight": [Mapping, StrOptions({"balanced"}), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "round": [StrOptions({*get_args(Picked)})],
        "out": [str, PathLike, None],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        method: Any = "fedsr",
        model: Any = "mlp",
        *,
        rounds: int = 20,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        validation_fraction: float = 0.0,
        round: Picked = "last",
        out: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        """Set the parameters of training.

        Args:
            method: a name, instance or table, as in :func:`fedshift.run`.
            model: a name, instance or table.
            rounds: communication rounds.
            seed: the seed of all random draws.
            settings: other settings by dotted name, such as ``{"train.lr": 0.1, "method.l2r": 0.05}``.
            class_weight: the weight of each class in the cross-entropy, 1 for a class that is not named; or "balanced",
                n / (C n_c) for a class with n_c of n samples of C classes. Weights are scaled to a mean of 1 over each
                site's training samples; see ``train.class_weights``.
            validation_fraction: part of each site's samples that is scored instead of trained on, from 0 to below 1.
            round: "last", or "selected": predict with the model of the round with the best validation score.
            out: the folder of the data and the run; None: temporary. A finished run there is reused, an interrupted one
                resumed.
            verbose: whether to show the progress.
        """
        self.method = method
        self.model = model
        self.rounds = rounds
        self.seed = seed
        self.settings = settings
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.round = round
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sites: Any = None) -> Self:  # noqa: N803  # scikit-learn's name
        """Train.

        Args:
            X: samples (N, features) of numbers, or (N, ...) for models with that input shape, or uint8 images (N,
                channels, height, width); or a mapping from each site's name to its samples and their classes.
            y: the class of each sample, (N,); None with a mapping.
            sites: the site of each sample, (N,); None: a single site.

        Raises:
            ValueError: samples, classes or a parameter cannot be used.
            FedshiftError: a setting is wrong, or the run failed.
        """
        self._validate_params()
        given = X
        if isinstance(X, Mapping) and not issparse(X):  # some of which are mappings
            if y is not None or sites is not None:
                raise ValueError("A mapping from sites to (X, y) has classes and sites: give it alone.")
            given, y, sites = _together(X)
        _check_masked(y)
        x, y = validate_data(self, given, y, dtype=_dtype(given), allow_nd=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"All {len(y)} samples are of 1 class ({self.classes_[0]}); there must be at least two.")
        if self.round == "selected" and not self.validation_fraction:
            raise ValueError('round="selected" chooses on samples that are not trained on: give validation_fraction.')
        names = np.full(len(y), ALONE) if sites is None else _names(sites)
        check_consistent_length(x, names)
        self.sites_ = np.unique(names)
        self._dtype = x.dtype
        self._temporary = _Temporary() if self.out is None else None
        folder = Path(str(self.out)) if self._temporary is None else self._temporary.path
        by_site = {name: (x[names == name], codes[names == name]) for name in self.sites_.tolist()}
        table = {
            "name": NAME,
            "protocol": {"name": "train-on-all", "validation": self.validation_fraction},
            "train": {"optimiser": "adam", "lr": LR},
            "run": {} if self._temporary is None else {"checkpoint_every": int(self.rounds)},
        }
        requested: dict[str, Any] = {name: getattr(self, name) for name in ("method", "model", "rounds", "seed")}
        requested["settings"] = self._settings()
        data = in_memory(by_site, self.classes_.astype(str).tolist(), folder / "data")
        progress = None if self.verbose else Progress()
        self.run_ = api.compare(table, progress=progress, data=data, out=folder / "runs", **requested).runs[0]
        self._models = self._trained()
        self._unseen = self._of_unseen()
        return self

    def _settings(self) -> dict[str, Any]:
        """The settings, with class weights keyed by the run's class names."""
        settings = dict(self.settings or {})
        if self.class_weight is None:
            return settings
        if WEIGHTS in settings:
            raise ValueError(f"class_weight and settings['{WEIGHTS}'] are both set: set only one.")
        weights: Any = self.class_weight
        if isinstance(weights, Mapping):
            there = {str(name): weight for name, weight in weights.items() if name in self.classes_}
            weights = {name: float(there.get(name, 1.0)) for name in self.classes_.astype(str).tolist()}
        return settings | {WEIGHTS: weights}

    def predict_proba(self, X: Any, sites: Any = None) -> Array:  # noqa: N803
        """The probability of each class, (N, classes), computed in float64 so that a row does not depend on other rows.

        Args:
            X: samples, as in :meth:`fit`.
            sites: the site of each sample, (N,), for methods with personalised models; a global model ignores it. A
                sample without a site, or of a site that was not trained on, is predicted as the method does for a
                client that never trained (see its page); if that uses every client's model, by their mean probability.

        Raises:
            ValueError: samples cannot be used.
            FedshiftError: a sample's site is unknown, and ``round="selected"`` keeps no model for such sites.
        """
        check_is_fitted(self)
        if _dtype(X) != self._dtype:
            raise ValueError(f"It was fitted to {self._dtype}, so give samples of that type and scale.")
        x = torch.from_numpy(np.ascontiguousarray(validate_data(self, X, dtype=_dtype(X), allow_nd=True, reset=False)))
        names = np.full(len(x), "") if sites is None else _names(sites)
        check_consistent_length(x, names)
        found = np.empty((len(x), len(self.classes_)))
        for name in np.unique(names):
            rows, model = names == name, self._models.get("", self._models.get(name))
            models = self._unseen if model is None else [model]
            if not models:
                whose = f"The site '{name}' has no model" if name else "Every site has a personalised model"
                raise FedshiftError(
                    f"{whose}, and the selected round keeps none for others: give sites=..., for each sample one of "
                    f'{", ".join(self.sites_)}, or fit with round="last".'
                )
            of_each = [torch.cat(list(probabilities(one, [x[rows]], BATCH))) for one in models]
            found[rows] = torch.stack(of_each).mean(dim=0).numpy()
        return found

    def predict(self, X: Any, sites: Any = None) -> Array:  # noqa: N803
        """The most probable class of each sample, (N,); see :meth:`predict_proba`."""
        chosen: Array = self.predict_proba(X, sites).argmax(axis=1)
        predicted: Array = self.classes_[chosen]
        return predicted

    def score(self, X: Any, y: Any, sample_weight: Any = None, sites: Any = None) -> float:  # noqa: N803
        """The accuracy; see :meth:`predict_proba` for ``sites``."""
        return float(accuracy_score(y, self.predict(X, sites), sample_weight=sample_weight))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("run_", "_temporary")}

    def _trained(self) -> dict[str, Trained]:
        try:
            return {"": self.run_.model(round=self.round).double()}
        except FedshiftError:
            models = {name: self.run_.model(name, self.round).double() for name in self.sites_.tolist()}
            return models if len(models) > 1 else {"": next(iter(models.values()))}

    def _of_unseen(self) -> list[Trained]:
        """The models for a site that was not trained on; empty with a global model or if the round keeps none."""
        if "" in self._models:
            return []
        run = self.run_
        weights = run.weights if self.round == "last" else run.selected
        try:
            models = of_unseen(run.experiment, Blueprint.model_validate(run.data_facts), weights)
        except DamagedError:  # a selected round keeps only the models of its clients
            if self.round == "last":
                raise
            return []
        return [model.double() for model in models]


class _Temporary:
    """A folder that is removed with its last reference, or when the interpreter ends."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="fedshift-"))
        finalize(self, rmtree, self.path, ignore_errors=True)


def _dtype(X: Any) -> np.dtype[Any]:  # noqa: N803
    _check_masked(X)
    images = getattr(X, "dtype", None) == np.uint8 and getattr(X, "ndim", 0) == 4
    return np.dtype(np.uint8 if images else np.float32)


def _check_masked(*given: Any) -> None:
    if any(map(np.ma.is_masked, given)):
        raise ValueError("X or y has masked values: fill them in (filled(value)), or leave such rows out.")


def _names(sites: Any) -> Array:
    """The site of each sample.

    Raises:
        ValueError: a sample has none, or several.
    """
    names = np.asarray(sites, object)  # a missing site stays missing
    if names.ndim != 1:
        raise ValueError(f"sites has the shape {names.shape}; give the site of each sample, (N,).")
    missing = [row for row, name in enumerate(names) if str(name).strip() in MISSING]
    if missing:
        raise ValueError(f"Sample {missing[0]} has no site ({names[missing[0]]!r}); name it, or leave it out.")
    return names.astype(str)


def _together(sites: Mapping[Any, Any]) -> tuple[Any, Array, Array]:
    """The samples, classes and sites of a mapping as arrays; pandas tables are concatenated as tables.

    Raises:
        ValueError: a site is empty, or differs from the first in shape, type or columns; the message names it.
    """
    xs, ys, names = list[Array](), list[Array](), list[str]()
    alike: list[tuple[Any, ...]] = []
    for site, given in sites.items():
        if not isinstance(given, Sequence) or len(given) != 2:
            raise ValueError(f"The site {site!r} has a {type(given).__name__}; give (X, y).")
        try:
            _check_masked(*given)
            x, y = check_X_y(*given, dtype=None, allow_nd=True)
        except ValueError as error:
            raise ValueError(f"The site {site!r}: {error}") from error
        alike.append((x.shape[1:], x.dtype.kind, list(getattr(given[0], "columns", ()))))
        if alike[-1] != alike[0]:
            raise ValueError(
                f"The site {site!r} has samples of the shape, type and columns {alike[-1]}, the first site {alike[0]}; "
                "convert them to the same."
            )
        xs.append(x)
        ys.append(y)
        names += [str(site)] * len(x)
    if not xs:
        raise ValueError("The mapping contains no site.")
    x, (first, _) = np.concatenate(xs), next(iter(sites.values()))
    table = type(first)(x, columns=first.columns) if hasattr(first, "iloc") else x
    return table, np.concatenate(ys), np.array(names)
