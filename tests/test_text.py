"""Text: Shakespeare's roles cut into windows by hand, the LSTM that reads them; the MLP's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import split
from fedshift.core.model import Model, ModelBuilder
from fedshift.datasets.shakespeare import Shakespeare
from fedshift.models.small import LSTM, MLP
from fedshift.streams import Streams
from refusal import refuses

PLAY = """A title that nobody speaks

ANNA:
abcdef
ghi

BEN:
ihg: not a speaker:
fe

with more of it

ANNA:
jk

CARL:
k
"""


@pytest.fixture
def play(tmp_path: Path) -> str:
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    return str(path)


def small(path: str, **settings) -> Shakespeare:
    """Windows of 3 characters in blocks of 6, all roles."""
    defaults = {"length": 3, "block": 6, "min_blocks": 1, "min_samples": 1, "fraction": 1.0}
    return Shakespeare(path=path, **{**defaults, **settings})


def windows(data: DomainData, dataset: Shakespeare, domain: str) -> list[tuple[str, str, int]]:
    """A role's samples as (window, next character, group)."""
    inside = data.domain == data.domains.index(domain)
    texts = dataset.inputs().text(data.x[inside])
    labels = [data.classes[y] for y in data.y[inside].tolist()]
    return list(zip(texts, labels, data.group[inside].tolist(), strict=True))


# Plays ------------------------------------------------------------------------------------------


def test_windows_by_hand(play: str):
    r"""Anna's text is "abcdef\nghi\njk", in blocks of six "abcdef", "\nghi\nj", "k".

    The first block has the windows abc->d, bcd->e, cde->f, the second \ngh->i, ghi->\n, hi\n->j, and the third none.
    Windows across a border, such as def->\n, are left out. Carl's "k" is too short for a window.
    """
    dataset = small(play)
    data = dataset.load(Streams(0))
    assert data.domains == dataset.domain_names() == ("ANNA", "BEN")
    assert windows(data, dataset, "ANNA") == [
        ("abc", "d", 0),
        ("bcd", "e", 0),
        ("cde", "f", 0),
        ("\ngh", "i", 1),
        ("ghi", "\n", 1),
        ("hi\n", "j", 1),
    ]
    assert data.x.dtype == data.y.dtype == torch.int64
    assert data.x.shape == (len(data.y), 3)


def test_a_speech_goes_on_until_the_next_speaker(play: str):
    """One block holds all of Ben's text: a colon inside a speech and a blank line end nothing."""
    dataset = small(play, length=30, block=100)
    data = dataset.load(Streams(0))
    samples = windows(data, dataset, "BEN")
    assert samples[0][0] + "".join(label for _, label, _ in samples) == "ihg: not a speaker:\nfe\nwith more of it"


def test_a_stride(play: str):
    r"""Every second window of "abcdef": abc->d and cde->f; of "\nghi\nj": \ngh->i and hi\n->j."""
    dataset = small(play, stride=2)
    samples = windows(dataset.load(Streams(0)), dataset, "ANNA")
    assert [window for window, _, _ in samples] == ["abc", "cde", "\ngh", "hi\n"]


def test_short_roles_are_left_out(play: str):
    """Anna has 2 blocks with windows and 6 windows; Ben's 38 characters make 6 blocks of 3 windows and 2 over: 18."""
    assert small(play, min_blocks=2).domain_names() == ("ANNA", "BEN")
    assert small(play, min_blocks=3).domain_names() == ("BEN",)
    assert small(play, min_samples=6).domain_names() == ("ANNA", "BEN")
    assert small(play, min_samples=7).domain_names() == ("BEN",)
    with refuses("No role", "1 blocks", "19 samples"):
        small(play, min_samples=19).domain_names()


@pytest.fixture
def long_play(tmp_path: Path) -> str:
    """Ten roles of 60 characters, all of them different but the fourth of every six, the first label of a block: *."""
    path = tmp_path / "long.txt"
    text = "".join("*" if number % 6 == 3 else chr(0x100 + number) for number in range(60))
    path.write_text("\n\n".join(f"ROLE{number}:\n{text}" for number in range(10)), encoding="utf-8")
    return str(path)


def test_samples_are_drawn_by_the_seed(long_play: str):
    """60 characters are 10 blocks of 3 windows."""
    every = small(long_play).load(Streams(0))
    few = [small(long_play, samples_per_role=4).load(Streams(seed)) for seed in (0, 0, 1)]
    assert torch.bincount(every.domain).tolist() == [30] * 10
    assert torch.bincount(few[0].domain).tolist() == [4] * 10
    assert torch.equal(few[0].x, few[1].x)
    assert not torch.equal(few[0].x, few[2].x)
    held = {(d, *x, y) for d, x, y in zip(every.domain.tolist(), every.x.tolist(), every.y.tolist(), strict=True)}
    drawn = [(d, *x, y) for d, x, y in zip(few[0].domain.tolist(), few[0].x.tolist(), few[0].y.tolist(), strict=True)]
    assert set(drawn) < held
    assert len(set(drawn)) == len(drawn)


def test_no_character_is_on_two_sides_of_a_split(long_play: str):
    """Every character but * occurs once in a role's text, so windows that overlap share one.

    Ten blocks of one first label are divided 3, 3 and 4; each has five such characters.
    """
    dataset = small(long_play)
    data = dataset.load(Streams(0))
    tested, validated = split(data, (0.3, 0.3), Streams(0))
    star = data.classes.index("*")
    for domain in range(10):
        sides = []
        for side in (tested, validated, ~(tested | validated)):
            inside = side & (data.domain == domain)
            sides.append((set(data.x[inside].flatten().tolist()) | set(data.y[inside].tolist())) - {star})
        assert [len(side) for side in sides] == [15, 15, 20]
        assert len(set.union(*sides)) == 50


def test_a_block_must_hold_a_window(play: str):
    with refuses("data.block = 3", "--set data.block=15"):
        small(play, block=3).load(Streams(0))


def test_what_is_no_play(tmp_path: Path):
    with refuses("data.path", "nothing'"):
        small(str(tmp_path / "nothing")).load(Streams(0))
    (tmp_path / "prose.txt").write_text("Once upon a time:\nthere\n".replace(":", "."))
    with refuses("prose.txt'", "no speaker"):
        small(str(tmp_path / "prose.txt")).load(Streams(0))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    with refuses("bytes.txt'", "UTF-8"):
        small(str(tmp_path / "bytes.txt")).load(Streams(0))


def test_a_changed_file_is_read_again(tmp_path: Path):
    path = tmp_path / "play.txt"
    path.write_text("ANNA:\nabcdef\n")
    assert small(str(path)).inputs().vocabulary == tuple("abcdef")
    path.write_text("ANNA:\nabcdefgh\n")
    assert small(str(path)).inputs().vocabulary == tuple("abcdefgh")


# Inputs -----------------------------------------------------------------------------------------


def test_token_ids_pass_unscaled():
    x = torch.tensor([[0, 255], [7, 1]])
    inputs = Inputs(vocabulary=("a", "b"))
    assert torch.equal(inputs.evaluation(x), x)
    assert torch.equal(inputs.training(x, Streams(0), 0), x)
    assert inputs.evaluation(x).dtype == torch.int64


# Networks ---------------------------------------------------------------------------------------


def spec(model: Model, shape: tuple[int, ...], seed: int = 0) -> ModelBuilder:
    return ModelBuilder(model, shape, 10, Streams(seed), 1)


def test_the_lstms_tensors_are_leafs():
    """Embedding 128x8; each layer has 4 gates of 256: 1024x8 and 1024x256, then 1024x256 twice, and two biases."""
    shapes = [tuple(tensor.shape) for tensor in spec(LSTM(dim=5), (80,)).encoder().parameters()]
    layer = [(1024, 256), (1024,), (1024,)]
    assert shapes == [(128, 8), (1024, 8), *layer, (1024, 256), *layer, (5, 256), (5,)]


def test_one_layer_by_hand():
    """One layer, one unit, weights 1, biases 0, tokens 0 -> e = 0 and 1 -> e = 1, read as (0, 1).

    At e = 0: gates sigmoid(0) = 1/2, candidate tanh(0) = 0, so c = 0 and h = 0.
    At e = 1: c = sigmoid(1) tanh(1) = 0.731059 * 0.761594 = 0.556770, h = sigmoid(1) tanh(c) = 0.369606.
    z is 2 h + 1 = 1.739213.
    """
    encoder = LSTM(vocabulary=2, embedding=1, hidden=1, layers=1).encoder((2,), 1)
    with torch.no_grad():
        for name, tensor in encoder.named_parameters():
            tensor.fill_(0.0 if "bias" in name else 1.0)
        encoder.embedding.weight.copy_(torch.tensor([[0.0], [1.0]]))
        encoder.projection.weight.fill_(2.0)
        encoder.projection.bias.fill_(1.0)
    assert encoder(torch.tensor([[0, 1]])).item() == pytest.approx(1.739213, abs=1e-5)


def test_what_the_lstm_does_not_read():
    with refuses("takes tokens", "[3, 8, 8]", "try 'cnn'"):
        spec(LSTM(), (3, 8, 8)).encoder()
    encoder = spec(LSTM(vocabulary=4), (2,)).encoder()
    encoder(torch.tensor([[0, 3]]))
    with refuses("token 4", "model.vocabulary = 4", "--set model.vocabulary=5"):
        encoder(torch.tensor([[0, 4]]))
    with refuses("'lstm'", "token ids", "try 'mlp'"):
        encoder(torch.zeros(1, 2))


def test_fedpins_network_is_one_hidden_layer():
    """Encoder and head together: 6 -> 390, ReLU, 390 -> 10, with the same initial values as the plain encoder."""
    built = spec(MLP(hidden=(), dim=390, final_relu=True), (6,))
    encoder, head = built.encoder(), built.head()
    x = torch.randn(4, 6, generator=Streams(0).generator("x"))
    linear = encoder[1]
    torch.testing.assert_close(head(encoder(x)), head((x @ linear.weight.T + linear.bias).clamp(min=0)))
    assert torch.equal(linear.weight, spec(MLP(hidden=(), dim=390), (6,)).encoder()[1].weight)
