"""A trained model as one function, from samples as the data set stores them to probabilities."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fedshift.clients.inputs import Inputs
from fedshift.core.frozen import Front
from fedshift.errors import FedshiftError
from fedshift.runs.run import Picked, Run
from fedshift.runs.trained import Trained


class Probabilities(nn.Module):
    """A trained model with all that prepares its inputs: samples (B, ...) to probabilities (B, classes).

    A method that draws noise in prediction draws that of a single sample, and every sample has it, as where
    ``fedshift predict`` predicts for one at a time. So a sample's probabilities do not depend on others.

    Attributes:
        model: the trained model.
        front: the frozen network of ``data.frozen``, which reads the samples before the model does; None: there is
            none.
        inputs: what samples are.
    """

    def __init__(self, model: Trained, front: Front | None, inputs: Inputs) -> None:
        """Take a model."""
        super().__init__()
        if model.measures:
            raise FedshiftError(
                "This model measures batch-norm statistics on the samples that it predicts for, so what it states "
                "about a sample depends on the others of the batch, and no file could give the same. Train with "
                "statistics that stay, as with --set method.bn=shared."
            )
        self.model, self.front, self.inputs = model, front, inputs
        self._noise = tuple(model.noise(1))
        for name, tensor in model.noise(1).items():
            self.register_buffer(f"noise_{name}", tensor)
        self.eval()

    @classmethod
    def of(cls, run: Run, client: int | str | None, round: Picked) -> Probabilities:
        """That of a run; see :meth:`Run.model`."""
        model = run.model(client, round)
        run.check_readers()
        front, inputs = run.experiment.data.front(), model.blueprint.inputs
        if front is not None or model.front is not None:  # that is then of what the frozen network gives
            inputs = run.experiment.data.inputs()
        return cls(model, front, inputs)

    @property
    def reader(self) -> Front | None:
        """The frozen network that reads the samples, of the data or of the model; None: the model reads them itself."""
        return self.front or self.model.front

    @property
    def dtype(self) -> torch.dtype:
        blueprint = self.model.blueprint
        if self.reader is not None:
            return torch.uint8 if self.reader.reads == "images" else torch.int64
        if blueprint.type:
            found: torch.dtype = getattr(torch, blueprint.type)
            return found
        if self.inputs.ids:
            return torch.int64
        return torch.float64 if self.inputs.preparation is not None else torch.float32

    def forward(self, samples: Tensor) -> Tensor:
        """Samples (B, ...) as the data set stores them to probabilities (B, classes)."""
        x = samples if self.front is None else self.front(samples)
        noise = {name: self.get_buffer(f"noise_{name}") for name in self._noise}
        return self.model.given_noise(x, noise).softmax(dim=1)

    @torch.no_grad()
    def reference(self, x: Tensor) -> Tensor:
        """What ``run.model()`` gives for samples (B, ...): probabilities (B, classes), float64."""
        x = x if self.front is None else self.front(x)
        pieces = x.split(1) if self.model.draws else (x,)
        return torch.cat([self.model(piece).double().softmax(dim=1) for piece in pieces])

    @torch.no_grad()
    def traced(self, example: Tensor) -> ExportedProgram:
        """The same as a graph of PyTorch's operations, for batches of any size.

        Args:
            example: two samples or more; what a graph contains of them is written with it.
        """
        try:
            with quiet():
                program = torch.export.export(self, (example,), dynamic_shapes=({0: Dim("batch")},), strict=False)
        except Exception as error:  # of many kinds, by what the model's code does
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FedshiftError(
                f"torch.export cannot write this model as a graph ({type(error).__name__}: {reason}). Its code must "
                "not branch on the values of samples; run.model() gives it as a module."
            ) from error
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # the folders of this machine
        return program


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's own warnings, which are about its parts and not about the model, to itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
