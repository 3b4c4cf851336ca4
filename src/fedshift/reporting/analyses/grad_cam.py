"""Where in an image a convolutional model looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Interval
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from fedshift.errors import FedshiftError, needs
from fedshift.reporting.analyses.analysis import Analysis, Measured, Rows
from fedshift.reporting.analyses.pictures import as_png, check_images, draw_grid, pixels_of
from fedshift.reporting.charts import Chart, style
from fedshift.reporting.table import Table
from fedshift.runs.observed import TrainedSimulation
from fedshift.spec import setting

INCH = 1.05  # of a picture


def last_spatial_layer(model: nn.Module, predict: Callable[[], Tensor]) -> nn.Module | None:
    """The layer that is called last of those whose outputs are maps (B, C, H, W) of more than a pixel; None without."""
    found: list[nn.Module] = []

    def look(layer: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[-1] * output.shape[-2] > 1:
            found.append(layer)

    hooks = [layer.register_forward_hook(look) for layer in model.modules() if not [*layer.children()]]
    try:
        with torch.no_grad():
            predict()
    finally:
        for hook in hooks:
            hook.remove()
    return found[-1] if found else None


def grad_cam(layer: nn.Module, predict: Callable[[], Tensor], target: Tensor) -> Tensor:
    """Grad-CAM of a layer's maps A (B, C, H, W) for a class of each sample, (B, H, W), in 0 and above.

    relu(sum_k a_k A_k), where a_k is the mean over the map of the derivative of the class's output (Eq. 1-2).

    Args:
        layer: whose maps are weighed.
        predict: calls the model on the samples; (B, classes).
        target: the class of each sample (B,).
    """
    with needs("analyse", "Grad-CAM"):
        from captum.attr import LayerGradCam

    cam = LayerGradCam(lambda samples: predict(), layer)
    with torch.enable_grad():
        maps: Tensor = cam.attribute(torch.zeros(len(target), 1), target=target, relu_attributions=True)
    return maps.detach()[:, 0]


class GradCAM(Analysis):
    """Grad-CAM: which parts of an image raise a class's log-probability; each map has its own scale, 0 to 1.

    The maps are those of the last layer whose output is a map. The images are evenly spaced in a test environment, the
    same for all rows of one seed and held-out domain.
    """

    title: ClassVar[str] = "Grad-CAM"
    source: ClassVar[str] = "FedPIN, Fig. 3; Selvaraju et al., Grad-CAM, ICCV 2017, Eq. 1-2"

    images: Annotated[int, Interval(ge=1, le=12)] = setting(6, help="Images")
    environment: str = setting("", help="The test environment; by default the first")
    of: Literal["predicted", "true"] = setting("predicted", help="Whose class: the predicted or the true one")

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The images and their maps, under the model of the environment's client."""
        run = trained.run
        check_images(run)
        environments = {
            one.name: one for one in reversed(trained.simulation.federated.environments) if one.role == "test"
        }
        name = self.environment or [*environments][-1]
        if name not in environments:
            raise FedshiftError(f"'{run.path}' has no test environment '{name}'; it has {', '.join(environments)}.")
        environment = environments[name]
        model = run.model(environment.client if trained.simulation.evaluation.model_of(environment) == "own" else None)
        chosen = (
            torch.linspace(0, len(environment.samples) - 1, min(self.images, len(environment.samples))).round().long()
        )
        x, y = environment.samples.batch(chosen.to(environment.samples.y.device))
        x, y = x.cpu(), y.cpu()

        def predict() -> Tensor:
            output: Tensor = model(x)
            return output

        layer = last_spatial_layer(model, predict)
        if layer is None:
            raise FedshiftError(
                f"'{run.path}' has no convolutional layer, so there is no Grad-CAM. Run a convolutional model: "
                "--model cnn or --model resnet18."
            )
        given = predict().argmax(dim=1)
        maps = grad_cam(layer, predict, given if self.of == "predicted" else y)
        maps = maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        classes, rows, images = run.data_facts["classes"], list[dict[str, Any]](), dict[str, str]()
        for place, image in enumerate(x):
            images[f"{place}"], images[f"{place}/map"] = as_png(image), _as_png(maps[place], image.shape[-2:])
            words = {"class": classes[int(y[place])], "predicted": classes[int(given[place])]}
            rows.append({"environment": name, "sample": int(chosen[place]), "place": place, **words})
        return Measured(rows=rows, images=images)

    def tables(self, rows: Rows) -> list[Table]:
        """What is predicted for each image, first seed."""
        first = next(iter(rows.values()))[0].measured.rows
        cells = [
            [
                str(row["sample"]),
                str(row["class"]),
                *(str(its[0].measured.rows[place]["predicted"]) for its in rows.values()),
            ]
            for place, row in enumerate(first)
        ]
        return [Table(f"Images of {first[0]['environment']}, first seed", ["sample", "class", *rows], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """A row for each image: itself, and under each method where it looks."""
        firsts = {label: its[0].measured for label, its in rows.items()}
        shown = next(iter(firsts.values()))
        grid: list[list[Any]] = []
        for place in range(len(shown.rows)):
            original = pixels_of(shown.images[f"{place}"])
            maps = [pixels_of(its.images[f"{place}/map"])[:, :, 0] for its in firsts.values()]
            grid.append([original, *(overlaid(original, one) for one in maps)])
        with style():
            figure = Figure(figsize=(INCH * (1 + len(rows)) + 0.2, INCH * len(grid) + 0.3), layout="constrained")
            axes = figure.subplots(len(grid), 1 + len(rows), squeeze=False)
            draw_grid(axes, grid)
            for axis, label in zip(axes[0], ("image", *rows), strict=True):
                axis.set_title(label, parse_math=False)
        return [
            Chart(
                "grad-cam-grid",
                "Where models look",
                f"Bright: what raises the {self.of} class most in this image; each map has its own scale. First seed.",
                f"Images and where {', '.join(rows)} look in them.",
                figure,
                [{"method": label, **row} for label, its in firsts.items() for row in its.rows],
            )
        ]


def overlaid(original: NDArray[np.uint8], strength: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image in gray (H, W, 3) under a map (H, W) in colour."""
    gray = original.mean(axis=2, keepdims=True).repeat(3, axis=2)
    colour = 255 * colormaps["inferno"](strength)[:, :, :3]
    mixed: NDArray[np.uint8] = (0.45 * gray + 0.55 * colour).astype(np.uint8)
    return mixed


def _as_png(one: Tensor, size: torch.Size) -> str:
    large = nn.functional.interpolate(one[None, None].float(), size=tuple(size), mode="bilinear", align_corners=False)
    return as_png((255 * large[0].clamp(0, 1)).round().to(torch.uint8))
