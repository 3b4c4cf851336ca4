"""Any network that transformers opens by its Auto classes: trained whole, from a stage on, or by adapters.

The encoder is the network, a pooling of its last hidden states, and a linear layer to z. Stage 1 is everything before
the first layer (the embeddings), each layer is a stage, and what follows the last belongs to it; a network without a
list of layers is one stage. What does not affect z (an unused pooler, for example) is not part of the encoder.

With ``adapter_rank`` the network is fixed (:class:`~fedshift.models.opened.Fixing`), and low-rank adapters of its
linear layers are trained (LoRA; Hu et al., ICLR 2022), by the peft library: only they and the layer to z are sent,
aggregated and kept. The content of its folder, or its commit, identifies the network.

*Choices*: dropout inside the network is off, as it draws from a global generator. Attention is computed plainly, so
that clients can be stacked where the architecture allows it. Images are normalised inside by the mean and standard
deviation of the network's preprocessor_config.json, or ImageNet's if it has none. Padding tokens are excluded from
attention and from the mean. When a network is cut, it is checked that the cut network gives the whole network's output.
"""

from __future__ import annotations

import warnings
from itertools import chain
from math import prod
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedshift.clients.inputs import Inputs
from fedshift.content import digest
from fedshift.core.frozen import FrozenNetwork
from fedshift.core.model import Shape
from fedshift.errors import FedshiftError, needs
from fedshift.hub import answers, located
from fedshift.models.opened import (
    Fixing,
    Opened,
    Reached,
    config_of,
    copied,
    image_shape,
    layers_of,
    leave,
    open_network,
    replace_input,
)
from fedshift.models.staged import Freezing, check_untied
from fedshift.spec import Positive, Width, setting

MISFITS = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)  # what a library's network raises
PROBE = 2  # samples with which a network is tried out
Rank = Annotated[int, Ge(0), Le(4096)]


class Transformer(Freezing):
    """A network of the transformers library, by folder or hub id (fedshift[images]; adapters: fedshift[adapters])."""

    path: str = setting(help="a folder that save_pretrained wrote; or a hub id with its commit, ID@COMMIT", path=True)
    part: str = setting("", help="the part of the network that is used, such as 'vision_model' of a CLIP; empty: all")
    dim: Width = setting(64, help="dimension d of the representation z")
    pooling: Literal["mean", "first", "pooler"] = setting(
        "mean",
        help="representation of a sample: the mean of the last hidden states, over tokens without padding or over "
        "places of an image; the first token's; or the output of the network's pooler",
    )
    vectors: bool = setting(
        False, help="read vectors (width,) or sequences of them (length, width) instead of embedded tokens"
    )
    adapter_rank: Rank = setting(
        0, help="rank of the low-rank adapters that are trained instead of the network; 0: none"
    )
    adapter_alpha: Positive = setting(
        16.0, help="adapters are scaled by alpha / rank", source="LoRA, Sec. 4.1; the value varies with the network"
    )
    adapter_targets: tuple[str, ...] = setting(
        (), help="the layers that get adapters, by the ends of their names; none: all linear layers"
    )

    def check_here(self) -> None:
        """Check that the network, or the hub that has it, is available, and peft where adapters are requested."""
        source, commit = located(self.path, "model.path")
        if commit is None or not answers():
            config_of(source, commit)
        if self.adapter_rank:
            _peft()

    def check(self, inputs: Inputs) -> None:
        super().check(inputs)
        if self.adapter_rank:
            _peft()
        opened = self._opened()
        if opened.kind == "images" and inputs.normalise:
            raise FedshiftError("A network of transformers normalises images itself: --set data.normalise=false")
        if inputs.vocabulary:
            raise FedshiftError(
                f"'{self.path}' does not read single characters: give data.name = 'text' with its tokenizer, or the "
                "model 'lstm'."
            )
        if (opened.kind == "tokens") != bool(inputs.ids):
            numbers = "--set data.tokens=hashing"
            words = "--set data.tokens=TOKENIZER, or let it read vectors: --set model.vectors=true"
            raise FedshiftError(
                f"'{self.path}' reads {opened.kind}, and the samples are {'' if inputs.ids else 'no '}token ids: "
                f"{words if opened.kind == 'tokens' else numbers}"
            )
        config = opened.network.config
        if opened.kind == "tokens" and (inputs.ids > config.vocab_size or config.pad_token_id != inputs.pad):
            raise FedshiftError(
                f"The tokenizer has {inputs.ids} ids and pads with the id {inputs.pad}, but '{self.path}' embeds "
                f"{config.vocab_size} and states pad_token_id = {config.pad_token_id}: give the tokenizer that belongs "
                f'to it (data.tokens), or write "pad_token_id": {inputs.pad} into its config.json.'
            )

    def frozen_network(self) -> FrozenNetwork | None:
        if not self.freezes:
            return None
        opened = self._opened()
        if opened.kind == "vectors":
            raise FedshiftError("Stages are frozen for images and texts, not for vectors: --set model.freeze_until=0")
        name = f"transformers {self.part or 'network'}, stages 1 to {self.freeze_until}, {self.pooling}"
        return FrozenNetwork(name, opened.content, self._front, opened.mean, opened.std, opened.kind)

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Samples (B, *shape), or the output of the frozen stages, to (B, out)."""
        opened = self._opened()
        if self.freeze_until == len(opened.names):
            if self.adapter_rank:
                raise FedshiftError(
                    f"model.freeze_until = {self.freeze_until} freezes the whole network, so model.adapter_rank = "
                    f"{self.adapter_rank} has nothing to adapt: lower one of them."
                )
            width = torch.Size(shape).numel()
            return nn.Sequential(nn.Flatten(), nn.Linear(width, out))
        reader = Reader(opened, self.pooling, shape)
        if self.freezes:
            self._check_cut(opened)
            reader.begin_at(self.freeze_until - 1)
        if self.adapter_rank:
            self._adapt(reader.network)
        return TransformerEncoder(reader, shape, out)

    def _opened(self) -> Opened:
        source, commit = located(self.path, "model.path")
        opened = open_network(source, commit, commit or digest(source), self.part)
        if self.freeze_until > len(opened.names):
            raise self.unknown_stage(opened.names)
        if self.vectors and opened.kind != "tokens":
            raise FedshiftError(f"'{self.path}' reads {opened.kind}, not vectors: --set model.vectors=false")
        return opened._replace(kind="vectors") if self.vectors else opened

    def _front(self) -> nn.Module:
        opened = self._opened()
        reader = Reader(opened, self.pooling)
        if self.freeze_until < len(opened.names):
            reader.end_at(self.freeze_until - 1)
        reader.normalises = False  # the images are
        return reader

    def _check_cut(self, opened: Opened) -> None:
        config = opened.network.config
        if opened.kind == "images":
            shape = image_shape(config)
            x = torch.linspace(-1, 1, PROBE * prod(shape)).view(PROBE, *shape)
        else:
            x = torch.arange(PROBE * 4).view(PROBE, 4) % config.vocab_size
        whole, front, back = Reader(opened, self.pooling), self._front(), Reader(opened, self.pooling)
        back.begin_at(self.freeze_until - 1)
        whole.normalises = False
        try:
            with torch.no_grad():
                alike = torch.allclose(whole(x), back(front(x)), rtol=1e-3, atol=1e-4)
        except MISFITS:
            alike = False
        if not alike:
            raise FedshiftError(
                f"model.freeze_until = {self.freeze_until}: {type(opened.network).__name__} has a different output "
                f"when it is cut there; train it whole (0), freeze all of it ({len(opened.names)}), or train adapters "
                "(model.adapter_rank)."
            )

    def _adapt(self, network: Any) -> None:
        peft = _peft()
        config = peft.LoraConfig(
            r=self.adapter_rank,
            lora_alpha=self.adapter_alpha,
            target_modules=list(self.adapter_targets) or "all-linear",
            lora_dropout=0.0,
        )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "fan_in_fan_out is set")  # peft sets it right
                peft.inject_adapter_in_model(config, network)
        except (ValueError, TypeError, NotImplementedError) as error:
            layers = {
                name.rpartition(".")[2]: layer._parameters.get("weight") for name, layer in network.named_modules()
            }
            ends = sorted(name for name, weight in layers.items() if weight is not None and weight.ndim >= 2)
            raise FedshiftError(
                f"model.adapter_targets = {list(self.adapter_targets)}: {type(network).__name__} has no such "
                f"layers; its layers with a matrix end in {', '.join(ends)}."
            ) from error


# The network as an encoder --------------------------------------------------------------------------


class Reader(nn.Module):
    """Gives samples to a network of transformers, whose tensors it shares; from samples of a shape to features to pool.

    ``normalises`` is whether it still has to normalise images.
    """

    def __init__(self, opened: Opened, pooling: str, shape: Shape = ()) -> None:
        super().__init__()
        self.network = copied(opened.network, chain(opened.network.parameters(), opened.network.buffers()))
        pad = getattr(self.network.config, "pad_token_id", None)
        self.kind, self.pooling, self.pad = opened.kind, pooling, -1 if pad is None else pad  # -1: none pads
        for name, values in (("mean", opened.mean), ("std", opened.std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.normalises = True
        self.layer = ""  # at which it begins or ends
        self.begins = False
        width = shape[-1] if self.kind == "vectors" and shape else 0
        own = getattr(self.network.config, "hidden_size", width)
        self.entry = nn.Linear(width, own) if width != own and self.kind == "vectors" else nn.Identity()

    def end_at(self, number: int) -> None:
        """Return a layer's input, and compute nothing behind it."""
        self.layer = f"{layers_of(self.network)[0]}.{number}"
        self.network.get_submodule(self.layer).register_forward_pre_hook(leave, with_kwargs=True)

    def begin_at(self, number: int) -> None:
        """Read a layer's input, and compute nothing before it."""
        name, self.begins = layers_of(self.network)[0], True
        self.layer = f"{name}.{number}"
        self.network.get_submodule(self.layer).register_forward_pre_hook(replace_input, with_kwargs=True)
        for before in range(number):
            del self.network.get_submodule(name)._modules[str(before)]  # the others keep their names

    def forward(self, x: Tensor) -> Tensor:
        """Samples (B, ...) to (B, F), or to the input of the layer at which it ends, (B, ...)."""
        known: Tensor | None = None
        if self.begins:
            x, known = self._enter_at_layer(x)
        given, mask = self._given(x, known)
        try:
            outputs = self.network(**given)
        except Reached as reached:
            return _with_mask(reached.hidden, mask)
        if self.layer and not self.begins:
            layer: Any = self.network.get_submodule(self.layer)
            hidden, layer.entered = layer.entered, None
            return _with_mask(hidden, mask)
        return self._pooled(outputs, mask)

    def _enter_at_layer(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Set the input of the first layer; returns samples that stand for it, and which tokens are not padding."""
        layer: Any = self.network.get_submodule(self.layer)
        if self.kind == "images":
            layer.given = x
            return x.new_zeros(1, *image_shape(self.network.config)), None
        layer.given = x[..., :-1]
        return x.new_zeros(x.shape[:2], dtype=torch.int64), x[..., -1].long()

    def _given(self, x: Tensor, known: Tensor | None) -> tuple[dict[str, Tensor], Tensor | None]:
        """The arguments of the network, and which tokens are not padding."""
        if self.kind == "images":
            if self.normalises and not self.begins:
                x = (x - self.get_buffer("mean")) / self.get_buffer("std")
            return {"pixel_values": x}, None
        if self.kind == "tokens":
            if x.is_floating_point():
                raise FedshiftError("The network reads token ids, and these are numbers: --set data.tokens=TOKENIZER")
            mask = torch.ne(x, self.pad).long() if known is None else known
            return {"input_ids": x, "attention_mask": mask}, mask
        x = self.entry(x if x.ndim == 3 else x.unsqueeze(1))
        return {"inputs_embeds": x}, None

    def _pooled(self, outputs: Any, mask: Tensor | None) -> Tensor:
        name = "pooler_output" if self.pooling == "pooler" else "last_hidden_state"
        hidden: Tensor | None = getattr(outputs, name, None)
        if hidden is None or (hidden.ndim == 4 and self.pooling == "first"):
            raise FedshiftError(
                f"model.pooling = '{self.pooling}', which {type(self.network).__name__} does not give: --set "
                "model.pooling=mean"
            )
        if self.pooling == "pooler":
            return hidden.flatten(1)
        if hidden.ndim == 4:
            hidden = hidden.flatten(2).transpose(1, 2)
        if self.pooling == "first":
            return hidden[:, 0]
        if mask is None:
            return hidden.mean(dim=1)
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


class TransformerEncoder(Fixing):
    """A network of transformers and a linear layer; tensors that do not affect z are fixed."""

    def __init__(self, reader: Reader, shape: Shape, out: int) -> None:
        super().__init__()
        self.reader = reader.eval()
        self.projection: nn.Module = nn.Identity()
        tokens = reader.kind == "tokens" and not reader.begins
        try:
            probe = torch.zeros(PROBE, *shape, dtype=torch.int64 if tokens else torch.float32)
            if tokens:
                probe += int(reader.pad == 0)  # no token pads
            elif reader.kind == "tokens":
                probe[..., -1] = 1
            with torch.enable_grad():
                pooled = reader(probe)
                total = pooled.sum()
        except MISFITS as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FedshiftError(
                f"Samples of the shape {shape} do not fit {type(reader.network).__name__}: {reason}"
            ) from error
        named = [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]
        moves = torch.autograd.grad(total, [each for _, each in named], allow_unused=True)
        trained = {name for (name, _), gradient in zip(named, moves, strict=True) if gradient is not None}
        check_untied(self, trained)
        self.projection = nn.Linear(pooled.shape[1], out)
        self.fix(trained | {"projection.weight", "projection.bias"})
        for tensor in self.state_dict(keep_vars=True).values():
            tensor.data = tensor.data.clone()  # what changes is not the network's that others read

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.projection(self.reader(x))
        return z


def _with_mask(hidden: Tensor, mask: Tensor | None) -> Tensor:
    return hidden if mask is None else torch.cat([hidden, mask.unsqueeze(-1).to(hidden.dtype)], -1)


def _peft() -> Any:
    with needs("adapters", "model.adapter_rank"):
        import peft
    return peft
