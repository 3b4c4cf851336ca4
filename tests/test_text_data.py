"""A user's own texts: hashed by hand, tokenized by hand, what is refused, and runs of several methods on both."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusal import refuses

pytest.importorskip("sklearn", reason="the extra 'text' is not installed")
pytest.importorskip("transformers", reason="the extra 'text' is not installed")

from conftest import Make, simulate
from fedshift.clients.checks import check_data
from fedshift.clients.inputs import Inputs
from fedshift.datasets.text import TextFile
from fedshift.streams import Streams
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
    assert data.notes == ("1 of 5 texts hold no word of two letters or digits; their vectors are zeros.",)


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
    with refuses("holds 11", "row 0 of", "0 to 10"):
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
    assert read.notes[0] == f"Columns that are not looked at: domain, label (of '{path}')."


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("food", "good", "  "), ("'text'", "t.csv'", "'  '", "row 6", "fill it in")),
        (("food", "", "good"), ("'label'", "t.csv'", "nothing", "row 6")),
        ((" ", "good", "good"), ("'domain'", "t.csv'", "nothing", "row 6")),
    ],
)
def test_cells_that_are_wrong(tmp_path: Path, row: tuple[str, ...], message: tuple[str, ...]):
    with refuses(*message):
        texts(written(tmp_path / "t.csv", [*ROWS, row])).load(Streams(0))


# In a run -----------------------------------------------------------------------------------------


def changes(tmp_path: Path, kind: str, method: str) -> dict[str, Any]:
    """Three sites of twelve texts of each class, told apart by a word."""
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
