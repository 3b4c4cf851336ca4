"""Your network, without registration: an nn.Module, a class, or a function that creates a module.

Choices: where a method, or ``dim``, requires another number of features than the module gives, a linear layer follows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedshift.content import digest, module_of
from fedshift.core.model import GaussianEncoder, Model, Shape
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.models.kept import keep, read
from fedshift.models.probed import check_output, is_normalised, logits_of, output
from fedshift.spec import OptionalWidth, setting
from fedshift.streams import Streams

FOLDER = "runs/models"
AUTO = "auto"  # the head that is found


class Widened(nn.Module):
    """A module (B, ...) to (B, features), followed by a linear layer to (B, out)."""

    def __init__(self, body: nn.Module, features: int, out: int) -> None:
        super().__init__()
        self.body, self.features, self.out = body, features, out
        self.projection = nn.Linear(features, out)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(self.body(x))
        return projected


class Before(nn.Module):
    """A module (B, ...) up to a submodule, whose input (B, features) it returns."""

    def __init__(self, body: nn.Module, head: str) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        given: list[Tensor] = []
        hook = self.body.get_submodule(self.head).register_forward_pre_hook(lambda _, values: given.append(values[0]))
        try:
            self.body(x)
        finally:
            hook.remove()
        return given[-1]


class Own(Model):
    """Your module: a file that fedshift.own_model wrote, or a class or function in a Python file (net.py:Net)."""

    path: str = setting(
        help="a file that fedshift.own_model wrote; or a Python file and a class or function in it: net.py:Net",
        path=True,
        code=True,
    )
    maker: str = setting("", help="the class or function in a Python file, which net.py:Net names as well")
    head: str = setting(
        "",
        help="of a whole classifier the submodule that gives the logits, which the method's classifier replaces; "
        "auto: the linear layer that does is found",
    )
    dim: OptionalWidth = setting(
        0, help="dimension d of the representation z, by a linear layer if need be; 0: as many as the module gives"
    )

    def __post_init__(self) -> None:
        path, _, maker = str(self.path).rpartition(":")
        if path.endswith(".py"):
            object.__setattr__(self, "path", path)
            object.__setattr__(self, "maker", maker)
        super().__post_init__()

    def check_here(self) -> None:
        if not Path(self.path).expanduser().is_file():
            raise FedshiftError(
                f"model.path = '{self.path}' does not exist; give a file that fedshift.own_model wrote, or a class in "
                "a Python file, such as net.py:Net."
            )

    def dim_for(self, shape: Shape) -> int:
        """``dim``, or the module's number of features for inputs (B, *shape)."""
        return self.dim or self._features(shape)

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        features = self._features(shape)
        module = self.body(shape)
        check_output(module, shape)  # which gives lazy layers their weights
        return module if features == out else Widened(module, features, out)

    def body(self, shape: Shape) -> nn.Module:
        """A new module without its head, for inputs (B, *shape)."""
        whole = self.whole()
        head = self.head_of(whole, shape)
        module = without(whole, head)
        return Before(module, head) if head and is_normalised(output(module, shape)) else module

    def head_of(self, whole: nn.Module, shape: Shape) -> str:
        """The submodule that gives the logits; empty: the module is an encoder."""
        if self.head != AUTO or hasattr(whole, AUTO):
            return self.head
        head = logits_of(whole, shape)
        if not head:
            raise FedshiftError(
                f"model.head = 'auto', but no linear layer of {type(whole).__name__} gives its logits; name the "
                f"submodule that does: {', '.join(name for name, _ in whole.named_modules() if name)}."
            )
        return head

    def whole_classifier_reason(self, shape: Shape, classes: int) -> str:
        """Why the module is probably a whole classifier, though it is used as an encoder; empty: it is not."""
        return "" if self.head else _suspicion(self, shape, classes, digest(self.path))

    def filled(self, encoder: nn.Module, classifier: nn.Module | None, shape: Shape) -> nn.Module:
        """A new module with an ``encoder``'s trained weights, and with the method's classifier in place of its head."""
        with Streams(0).as_global("a module that is given other weights"):
            whole = self.whole()
            head = self.head_of(whole, shape)
            output(whole, shape)  # which gives lazy layers their weights
        trained: Any = encoder
        while isinstance(trained, GaussianEncoder | Widened):
            trained = trained.body
        linear = classifier if isinstance(classifier, nn.Linear) and trained is encoder else None
        if head and linear is None:
            raise FedshiftError(
                f"The method replaces '{head}' by more than a linear layer, so {type(whole).__name__} alone "
                "does not predict as the run does; run.model() does."
            )
        trained = trained.body if isinstance(trained, Before) else trained
        without(whole, head).load_state_dict(trained.state_dict())
        if head and linear is not None:
            put(whole, head, deepcopy(linear).float())
        return whole.eval()

    def whole(self) -> nn.Module:
        self.check_here()
        if not self.path.endswith(".py"):
            return made(read(Path(self.path).expanduser()))
        file = module_of(self.path)
        defined = vars(file)
        if self.maker not in defined:
            known = [name for name, value in defined.items() if getattr(value, "__module__", "") == file.__name__]
            raise UnknownNameError(f"class or function in '{self.path}'", self.maker, known)
        maker = defined[self.maker]
        if isinstance(maker, nn.Module) or not callable(maker):
            raise FedshiftError(
                f"'{self.maker}' in '{self.path}' is not a class or function that returns a module; name one, or keep "
                "the module itself by fedshift.own_model."
            )
        return made(maker)

    def _features(self, shape: Shape) -> int:
        return _found(self, shape, digest(self.path))


@lru_cache(maxsize=64)
def _found(model: Own, shape: Shape, content: str) -> int:
    with Streams(0).as_global("a module of which only the width is requested"):
        return check_output(model.body(shape), shape)


@lru_cache(maxsize=64)
def _suspicion(model: Own, shape: Shape, classes: int, content: str) -> str:
    """Why a module is probably a whole classifier; recomputed when its file has changed."""
    with Streams(0).as_global("a module that is only inspected"):
        whole = model.whole()
        given = output(whole, shape)
        head = logits_of(whole, shape)
    ends = ", which sum to 1 as after a softmax" if is_normalised(given) else ""
    if not ends and not (head and given.shape[1] == classes):
        return ""
    return (
        f"{type(whole).__name__} gives {given.shape[1]} numbers for {classes} classes{ends}: it looks like a whole "
        "classifier, but is used as an encoder, to which the method adds its classifier. If it is a classifier, name "
        f"the layer that gives the logits: own_model(..., head='{head or AUTO}') (--set model.head={head or AUTO})."
    )


def own_model(
    what: nn.Module | type[nn.Module] | Callable[[], nn.Module],
    head: str | None = None,
    dim: int | None = None,
    folder: str | Path = FOLDER,
) -> Own:
    """Use your network as ``model=`` of :func:`fedshift.compare`, :func:`fedshift.run` and the others.

    It maps inputs (B, ...) to features (B, F), and the method adds its classifier. It is kept in a file, with the
    source of what a script or notebook defines, so that other processes can resume the run. Loading such a file runs
    its code, so run folders from elsewhere require trust, as plugins do.

    Args:
        what: a module, whose weights are the initial ones whatever the seed; or a class or function that creates one
            without arguments, whose initial weights are drawn from the run's seed.
        head: of a whole classifier the submodule that gives the logits, such as "fc" or "classifier.1", or "auto" to
            find
            that linear layer: its input is the representation, and the method's classifier replaces it. A softmax after
            it is dropped.
        dim: dimension of the representation, by a linear layer if need be; by default F.
        folder: where the file is written, unless it exists. A run reads it, so it should stay.

    Returns:
        The model that reads the file.

    Raises:
        FedshiftError: it creates no module, has no such submodule, or cannot be pickled.
        DiskError: the file cannot be written.
    """
    if not callable(what):
        raise FedshiftError(f"{type(what).__name__} is not a module, nor a class or function that returns one.")
    with Streams(0).as_global("a module that is only inspected"):
        module = made(what)
        if head != AUTO:
            check_head(module, head or "")
    name = type(what).__name__ if isinstance(what, nn.Module) else getattr(what, "__name__", type(what).__name__)
    path = keep(what, name.strip("<>"), Path(folder).expanduser().resolve())
    return Own(path=str(path), head=head or "", dim=dim or 0)


def made(what: Any) -> nn.Module:
    """A module, or what a class or function returns; raises a FedshiftError if that is not a module."""
    if isinstance(what, nn.Module):
        return what
    name = getattr(what, "__name__", type(what).__name__)
    try:
        module = what()
    except FedshiftError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise FedshiftError(
            f"'{name}' returns no module when it is called without arguments ({type(error).__name__}: {error}). If it "
            f"takes some, give a function: lambda: {name}(...)"
        ) from error
    if not isinstance(module, nn.Module):
        raise FedshiftError(f"'{name}' returns a {type(module).__name__}; it should return an nn.Module.")
    return module


def without(module: nn.Module, head: str) -> nn.Module:
    """A module with an identity in place of a submodule; raises a FedshiftError if it has no such submodule."""
    check_head(module, head)
    if head:
        put(module, head, nn.Identity())
    return module


def put(module: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


def check_head(module: nn.Module, head: str) -> None:
    known = [name for name, _ in module.named_modules()]
    if head not in known:
        raise UnknownNameError(f"submodule of {type(module).__name__} (head)", head, known[1:])
