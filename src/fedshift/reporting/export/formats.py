"""The formats in which a model is written; each is read back as a user reads it, to be compared with the model."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import indent
from typing import Literal, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph

from fedshift.errors import FedshiftError, needs
from fedshift.files import write
from fedshift.reporting.export.function import quiet

Format = Literal["onnx", "torch", "safetensors"]
Predict = Callable[[Tensor], Tensor]
INPUT, OUTPUT = "samples", "probabilities"
LARGEST_ONNX = 2**30  # bytes of tensors in one file, whose format ends at 2 GiB
ASSERTION = torch.ops.aten._assert_tensor_metadata.default


def check_onnx() -> None:
    """Raise an error unless the extra is installed."""
    with needs("onnx", "Export to ONNX"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401  # which PyTorch's exporter needs


def write_onnx(program: ExportedProgram, folder: Path) -> Predict:
    """Write model.onnx, and beside it model.onnx.data where the tensors are large.

    Returns:
        What ONNX Runtime makes of the file.
    """
    with needs("onnx", "Export to ONNX"):
        import onnx
    file = folder / "model.onnx"
    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    try:
        with quiet():
            made = torch.onnx.export(
                program, (), dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
            )
            assert made is not None
            made.save(file, external_data=size > LARGEST_ONNX)
        onnx.checker.check_model(file)
        return read_onnx(folder)
    except Exception as error:  # of many kinds, by the operation that is not known
        raise _cannot("onnx", error) from error


def read_onnx(folder: Path) -> Predict:
    """What ONNX Runtime makes of model.onnx."""
    with needs("onnx", "A model in ONNX"):
        import onnxruntime
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])

    def predict(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])

    return predict


def write_torch(program: ExportedProgram, folder: Path) -> Predict:
    """Write model.pt2 by ``torch.export.save``.

    Returns:
        What the file gives when it is read again.
    """
    try:
        torch.export.save(program, folder / "model.pt2")
        return read_torch(folder)
    except Exception as error:  # of many kinds
        raise _cannot("torch", error) from error


def read_torch(folder: Path) -> Predict:
    """What model.pt2 predicts."""
    predict: Predict = torch.export.load(folder / "model.pt2").module()
    return predict


def write_safetensors(program: ExportedProgram, folder: Path) -> Predict:
    """Write model.safetensors, and model.py, whose class ``Model`` reads it.

    Returns:
        What that class gives.
    """
    code, tensors = as_code(program)
    write(folder / "model.safetensors", save(tensors))
    write(folder / "model.py", code)
    return read_safetensors(folder)


def read_safetensors(folder: Path) -> Predict:
    predict: Predict = runpy.run_path(str(folder / "model.py"))["Model"]()
    return predict


class Written(NamedTuple):
    """A format."""

    # writes a program into a folder, and gives what the files there predict
    write: Callable[[ExportedProgram, Path], Predict]
    check: Callable[[], None]  # raises an error unless what it needs is installed
    needs: str  # what a user needs to run the files
    use: str  # how they are run, in Python


FORMATS: Mapping[Format, Written] = {
    "onnx": Written(
        write_onnx,
        check_onnx,
        "onnxruntime and numpy",
        f"""import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
samples = np.load("checks.npz")["samples"]
(found,) = session.run(["{OUTPUT}"], {{"{INPUT}": samples}})
print(found)""",
    ),
    "torch": Written(
        write_torch,
        lambda: None,
        "torch",
        """import numpy as np, torch
model = torch.export.load("model.pt2").module()
samples = torch.from_numpy(np.load("checks.npz")["samples"])
print(model(samples))""",
    ),
    "safetensors": Written(
        write_safetensors,
        lambda: None,
        "torch and safetensors",
        """import numpy as np, torch
from model import Model  # model.py, which you can read, and model.safetensors
samples = torch.from_numpy(np.load("checks.npz")["samples"])
print(Model()(samples))""",
    ),
}


def _cannot(name: Format, error: Exception) -> FedshiftError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = re.sub(r"\x1b\[\d+m", "", lines[-1] if lines else "")
    others = " or ".join(f"--format {other}" for other in FORMATS if other != name)
    return FedshiftError(f"This model cannot be {name} ({type(error).__name__}: {reason:.300}). Try {others}.")


# The module as code -------------------------------------------------------------------------------


CODE = '''"""A trained model: samples (B, ...) to probabilities (B, classes).

Written by fedshift from the graph that torch.export made; every step of it, preparation of the samples included, is
below. It needs torch and safetensors, predicts on the CPU, and is not for training.
"""

from math import inf, nan
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import device

TENSORS = {tensors}


class Model(torch.nn.Module):
    """The model with the tensors of model.safetensors."""

    def __init__(self, weights=Path(__file__).with_name("model.safetensors")):
        super().__init__()
        found = load_file(weights)
        for variable, name in TENSORS.items():
            self.register_buffer(variable, found[name])

    @torch.no_grad()
    def forward(self, {input}):
        """Samples to probabilities."""
        (found,) = self.probabilities(*(getattr(self, variable) for variable in TENSORS), {input})
        return found

{function}
'''
RELEASED = re.compile(r";  [\w =]+ = None$", re.MULTILINE)  # variables that are not read any more
KNOWN = {
    "torch",
    "device",
    "inf",
    "nan",
    "NoneType",
    "fx_pytree",
    "pytree",
}  # what such code may name; two are not used


def as_code(program: ExportedProgram) -> tuple[str, dict[str, Tensor]]:
    """A program as Python that imports torch and safetensors alone, and the tensors that it reads, by name."""
    graph = _plain(program)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    tensors, variables = dict[str, Tensor](), dict[str, str]()
    for node in graph.find_nodes(op="placeholder"):
        if specs[node.name].kind == InputKind.USER_INPUT:
            continue
        if not node.users:
            graph.erase_node(node)
            continue
        name = str(specs[node.name].target)
        tensor = program.state_dict.get(name, program.constants.get(name))
        assert isinstance(tensor, Tensor)
        variables[node.name] = name.removeprefix("model.")
        tensors[variables[node.name]] = tensor.detach().clone().contiguous()
    return _written(graph, variables), tensors


def _plain(program: ExportedProgram) -> Graph:
    """A copy of a program's graph without assertions and what nothing reads."""
    graph = Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    for node in graph.find_nodes(op="call_function", target=ASSERTION):
        graph.erase_node(node)
    graph.eliminate_dead_code()
    if nested := graph.find_nodes(op="get_attr"):
        raise FedshiftError(
            f"This model cannot be written as a separate Python module: it has {len(nested)} graphs within its "
            "graph, as with mixed precision. Try --format torch."
        )
    return graph


def _written(graph: Graph, variables: Mapping[str, str]) -> str:
    code = graph.python_code("self")
    if unknown := code.globals.keys() - KNOWN:
        raise FedshiftError(
            f"This model cannot be written as a separate Python module: it names {', '.join(sorted(unknown))}. Try "
            "--format torch."
        )
    function = RELEASED.sub("", code.src).strip().replace("def forward(", "def probabilities(", 1)
    names = "".join(f"    {variable!r}: {name!r},\n" for variable, name in variables.items())
    return CODE.format(tensors=f"{{\n{names}}}", input=INPUT, function=indent(function, "    "))
