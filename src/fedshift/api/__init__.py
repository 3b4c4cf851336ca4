"""What the commands do, from Python; the command line itself calls these functions.

Every function that carries out or plans experiments takes a *source* and *options*. A source is a TOML file, the name
of an experiment that comes with fedshift, a table like such a file's, an :class:`Experiment`, or a list of these. The
options change it and are those of :class:`Options`.
"""

from fedshift.api.before import bench, estimate, index, inspect_data
from fedshift.api.comparison import Comparison
from fedshift.api.experiments import FIELDS, Options, experiment, grid, only
from fedshift.api.runs import compare, load, predict, resume, run, search_budget, tune
from fedshift.study.study_plan import Forecast

__all__ = [
    "FIELDS",
    "Comparison",
    "Forecast",
    "Options",
    "bench",
    "compare",
    "estimate",
    "experiment",
    "grid",
    "index",
    "inspect_data",
    "load",
    "only",
    "predict",
    "resume",
    "run",
    "search_budget",
    "tune",
]
