"""Text: a user's own, hashed and tokenized by hand; Shakespeare's roles in windows by hand; the LSTM; the MLP."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedshift.clients.domains import DomainData
from fedshift.clients.protocols import split
from fedshift.core.model import Model, ModelBuilder
from fedshift.datasets.shakespeare import Shakespeare
from fedshift.models.small import LSTM, MLP
from fedshift.streams import Streams
from refusal import refuses

pytest.importorskip("sklearn", reason="the extra 'text' is not installed")
pytest.importorskip("transformers", reason="the extra 'text' is not installed")

from conftest import Make, simulate
from fedshift.clients.data_checks import check_data
from fedshift.clients.inputs import Inputs
from fedshift.datasets.text import TextFile
from reference import SMALL

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "meal", "film", "very", "is", "this"]
ROWS = [
    ("food", "good", "this meal is good"),
    ("food", "bad", "a bad meal"),
    ("film", "good", "very very good film"),
    ("film", "bad", "bad"),
    ("food", "good", "good"),
    ("film", "bad", "this is a very bad film"),
]


def written(
    path: Path, rows: list[tuple[Any, ...]] = ROWS, header: tuple[str, ...] = ("domain", "label", "text")
) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def a_tokenizer(folder: Path, **special: str) -> str:
    """Words of the list above; [CLS] before a text and [SEP] after it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    if special.pop("around", True):
        made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", **special}
    PreTrainedTokenizerFast(tokenizer_object=made, **{k: v for k, v in names.items() if v}).save_pretrained(folder)
    return str(folder)


def an_encoder(folder: Path, **changes: Any) -> str:
    import transformers

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **{**small, **changes})
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    return str(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


def texts(path: str, **settings: Any) -> TextFile:
    return TextFile(path=path, **{"domain": "domain", **settings})


# Hashing ------------------------------------------------------------------------------------------


def test_words_are_hashed(tmp_path: Path):
    """A text is the sum of its words' vectors, one bin and sign each, divided by its norm.

    A word counts as often as it occurs: "very very good film" is (2 v + g + f) / |2 v + g + f|.
    """
    rows = [("x", "a", word) for word in ("very", "good", "film")] + [("x", "b", "Very very, GOOD film!")]
    data = texts(written(tmp_path / "t.csv", [*rows, ("x", "b", "a ?!")]), width=4096).load(Streams(0))
    v, g, f, whole, none = data.x
    assert (data.x.dtype, data.x.shape) == (torch.float32, (5, 4096))
    assert [float(word.abs().sum()) for word in (v, g, f, none)] == [1, 1, 1, 0]
    summed = 2 * v + g + f
    torch.testing.assert_close(whole, summed / summed.norm())
    assert data.notes == ("1 of 5 texts contain no word of two letters or digits; their vectors are zeros.",)


# A tokenizer --------------------------------------------------------------------------------------


def test_tokens_by_hand(tmp_path: Path):
    """[CLS] 2, [SEP] 3, "unheard" [UNK] 1, and PAD 0 on the right; a text of 8 tokens is cut to 6, [SEP] last."""
    rows = [*ROWS, ("food", "good", "good unheard meal")]
    dataset = texts(written(tmp_path / "t.csv", rows), tokens=a_tokenizer(tmp_path / "tok"), length=6)
    data = dataset.load(Streams(0))
    assert data.x.dtype == torch.int64
    assert data.x.tolist() == [
        [2, 11, 7, 10, 5, 3],
        [2, 4, 6, 7, 3, 0],
        [2, 9, 9, 5, 8, 3],
        [2, 6, 3, 0, 0, 0],
        [2, 5, 3, 0, 0, 0],
        [2, 11, 10, 4, 9, 3],
        [2, 5, 1, 7, 3, 0],
    ]
    assert data.notes == ("1 of 7 texts have more than 6 tokens, the longest 8, and were cut: data.length.",)
    assert dataset.inputs() == Inputs(tokens=12, pad=0)
    check_data(data, dataset.inputs())
    with refuses("contains 11", "row 0 of", "0 to 10"):
        check_data(data, Inputs(tokens=11))


def test_a_tokenizer_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path / "t.csv")
    with refuses("data.tokens = ", "pad token", "tokenizer.pad_token = "):
        texts(path, tokens=a_tokenizer(tmp_path / "no-pad", pad_token="")).inputs()
    monkeypatch.setattr("fedshift.hub.answers", lambda: False)
    with refuses("data.tokens = 'hashign'", "ID@COMMIT"):
        texts(path, tokens="hashign").check_here()
    with refuses("data.length = 1", "2 tokens", "--set data.length=3"):
        texts(path, tokens=a_tokenizer(tmp_path / "tok"), length=1).load(Streams(0))


def test_texts_to_predict_for_are_read_as_the_others(tmp_path: Path):
    path = written(tmp_path / "t.csv")
    dataset = texts(path, tokens=a_tokenizer(tmp_path / "tok"), length=6)
    read = dataset.samples(Path(path))
    assert torch.equal(read.x, dataset.load(Streams(0)).x)
    assert list(read.rows) == list(range(6))
    assert read.notes[0] == f"Columns that are ignored: domain, label (of '{path}')."


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("food", "good", "  "), ("'text'", "t.csv'", "'  '", "row 6", "fill it in")),
        (("food", "", "good"), ("'label'", "t.csv'", "empty", "row 6")),
        ((" ", "good", "good"), ("'domain'", "t.csv'", "empty", "row 6")),
    ],
)
def test_cells_that_are_wrong(tmp_path: Path, row: tuple[str, ...], message: tuple[str, ...]):
    with refuses(*message):
        texts(written(tmp_path / "t.csv", [*ROWS, row])).load(Streams(0))


# In a run -----------------------------------------------------------------------------------------


def changes(tmp_path: Path, kind: str, method: str) -> dict[str, Any]:
    """Three sites of twelve texts of each class, distinguished by a word."""
    draw, words = np.random.default_rng(0), ["a", "meal", "film", "is", "this"]
    rows = [
        (site, label, " ".join(draw.choice(words, 3)) + f" {label}")
        for site in ("east", "north", "west")
        for label in ("bad", "good") * 12
    ]
    data = {"name": "text", "path": written(tmp_path / "many.csv", rows), "domain": "domain", "width": 32}
    model: dict[str, Any] = {"name": "mlp", "dim": 4, "hidden": [8]}
    if kind == "tokens":
        data |= {"tokens": a_tokenizer(tmp_path / "tok"), "length": 6}
        model = {"name": "transformers", "dim": 4, "path": an_encoder(tmp_path / "encoder")}
    own = {f"method.{key}": value for key, value in SMALL.get(method, {}).items()}
    train = {"train.rounds": 1, "train.lr": 0.001, "train.momentum": 0.0}
    return {"data": data, "model": model, "protocol": {"name": "in-domain"}, "method.name": method, **own, **train}


@pytest.mark.parametrize("kind", ["hashing", "tokens"])
@pytest.mark.parametrize("method", ["fedcir", "fraug"])
def test_methods_run_on_texts_unchanged(make: Make, tmp_path: Path, kind: str, method: str):
    simulation = simulate(make(changes(tmp_path, kind, method)))
    assert simulation.coordinator.position == len(simulation.coordinator.schedule)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"vocab_size": 10}, ("12 ids", "embeds 10", "data.tokens")),
        ({"pad_token_id": 1}, ("id 0", "pad_token_id = 1", '"pad_token_id": 0')),
    ],
)
def test_an_encoder_of_another_tokenizer(make: Make, tmp_path: Path, encoder: dict[str, int], message: tuple[str, ...]):
    import transformers

    given = changes(tmp_path, "tokens", "fedavg")
    config = transformers.BertConfig.from_pretrained(given["model"]["path"])
    for name, value in encoder.items():
        setattr(config, name, value)
    transformers.BertModel(config).save_pretrained(given["model"]["path"])
    with refuses(*message):
        simulate(make(given))


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
    (tmp_path / "play.txt").write_text(PLAY)
    return str(tmp_path / "play.txt")


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
    Windows across a border, such as def->\n, are excluded. Carl's "k" is too short for a window.
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
    """One block contains all of Ben's text: a colon inside a speech and a blank line end nothing."""
    dataset = small(play, length=30, block=100)
    data = dataset.load(Streams(0))
    samples = windows(data, dataset, "BEN")
    assert samples[0][0] + "".join(label for _, label, _ in samples) == "ihg: not a speaker:\nfe\nwith more of it"


def test_strides_and_short_roles(play: str):
    r"""Every second window of "abcdef": abc->d and cde->f; of "\nghi\nj": \ngh->i and hi\n->j.

    Anna has 2 blocks with windows and 6 windows; Ben's 38 characters make 6 blocks of 3 windows and 2 over: 18.
    """
    dataset = small(play, stride=2)
    samples = windows(dataset.load(Streams(0)), dataset, "ANNA")
    assert [window for window, _, _ in samples] == ["abc", "cde", "\ngh", "hi\n"]
    for name, enough in (("min_blocks", 2), ("min_samples", 6)):
        assert small(play, **{name: enough}).domain_names() == ("ANNA", "BEN")
        assert small(play, **{name: enough + 1}).domain_names() == ("BEN",)
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
    held, drawn = (
        [(d, *x, y) for d, x, y in zip(each.domain.tolist(), each.x.tolist(), each.y.tolist(), strict=True)]
        for each in (every, few[0])
    )
    assert set(drawn) < set(held)
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


def test_what_is_no_play(play: str, tmp_path: Path):
    (tmp_path / "prose.txt").write_text("Once upon a time.\nthere\n")
    for path, settings, words in (
        (play, {"block": 3}, ("data.block = 3", "--set data.block=15")),
        (str(tmp_path / "nothing"), {}, ("data.path", "nothing'")),
        (str(tmp_path / "prose.txt"), {}, ("prose.txt'", "no speaker")),
    ):
        with refuses(*words):
            small(path, **settings).load(Streams(0))


# Networks ---------------------------------------------------------------------------------------


def spec(model: Model, shape: tuple[int, ...]) -> ModelBuilder:
    return ModelBuilder(model, shape, 10, Streams(0), 1)


def test_the_lstms_tensors_are_leafs():
    """Embedding 128x8; each layer has 4 gates of 256: 1024x8 and 1024x256, then 1024x256 twice, and two biases."""
    shapes = [tuple(tensor.shape) for tensor in spec(LSTM(dim=5), (80,)).encoder().parameters()]
    layer = [(1024, 256), (1024,), (1024,)]
    assert shapes == [(128, 8), (1024, 8), *layer, (1024, 256), *layer, (5, 256), (5,)]


def test_a_token_beyond_the_vocabulary_is_refused():
    encoder = spec(LSTM(vocabulary=4), (2,)).encoder()
    encoder(torch.tensor([[0, 3]]))
    with refuses("token 4", "model.vocabulary = 4", "--set model.vocabulary=5"):
        encoder(torch.tensor([[0, 4]]))


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


def test_fedpins_network_is_one_hidden_layer():
    """Encoder and head together: 6 -> 390, ReLU, 390 -> 10."""
    built = spec(MLP(hidden=(), dim=390, final_relu=True), (6,))
    encoder, head = built.encoder(), built.head()
    x = torch.randn(4, 6, generator=Streams(0).generator("x"))
    torch.testing.assert_close(head(encoder(x)), head((x @ encoder[1].weight.T + encoder[1].bias).clamp(min=0)))
