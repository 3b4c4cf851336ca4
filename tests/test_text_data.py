"""A user's own texts: hashed by hand, tokenized by hand, what is refused, and runs of several methods on both."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusal import refuses

pytest.importorskip("sklearn", reason="the extra 'text' is not installed")
pytest.importorskip("transformers", reason="the extra 'text' is not installed")

from conftest import Make, names_sent, simulate
from fedshift.clients.checks import check_data
from fedshift.clients.inputs import Inputs
from fedshift.datasets.text import TextFile
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
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
    data = texts(written(tmp_path / "t.csv", rows), width=4096).load(Streams(0))
    v, g, f, whole = data.x
    assert data.x.dtype == torch.float32
    assert data.x.shape == (4, 4096)
    for word in (v, g, f):
        assert word.abs().sum() == 1
    summed = 2 * v + g + f
    torch.testing.assert_close(whole, summed / summed.norm())
    assert not data.notes


def test_files_as_domains_and_columns_of_other_names(tmp_path: Path):
    (tmp_path / "sites").mkdir()
    header = ("words", "kind")
    written(tmp_path / "sites" / "south.csv", [("good meal", 1), ("bad meal", 0)], header)
    written(tmp_path / "sites" / "north.csv", [("123 45", 1), ("bad film", 0)], header)
    dataset = TextFile(path=str(tmp_path / "sites"), text="words", label="kind", width=64)
    data = dataset.load(Streams(0))
    assert data.domains == dataset.domain_names() == ("north", "south")
    assert data.classes == ("0", "1")
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.domain.tolist() == [0, 0, 1, 1]
    assert data.x[0].abs().count_nonzero() == 2  # "123" and "45", though pandas would read numbers


def test_csv_and_parquet_are_equal(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    one = texts(written(tmp_path / "t.csv")).load(Streams(0))
    pandas.DataFrame(ROWS, columns=["domain", "label", "text"]).to_parquet(tmp_path / "t.parquet")
    other = texts(str(tmp_path / "t.parquet")).load(Streams(0))
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert (one.domains, one.classes) == (other.domains, other.classes) == (("film", "food"), ("bad", "good"))


def test_texts_without_words_are_counted(tmp_path: Path):
    rows = [*ROWS, ("food", "bad", "?!"), ("food", "bad", "a b c")]
    data = texts(written(tmp_path / "t.csv", rows)).load(Streams(0))
    assert data.notes == ("2 of 8 texts hold no word of two letters or digits; their vectors are zeros.",)
    assert data.x[-2:].abs().sum() == 0


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
    (tmp_path / "empty").mkdir()
    with refuses("data.tokens = ", "empty'", "'hashing'"):
        texts(path, tokens=str(tmp_path / "empty")).check_here()
    monkeypatch.setattr("fedshift.hub.answers", lambda: False)
    with refuses("data.tokens = 'hashign'", "ID@COMMIT"):
        texts(path, tokens="hashign").check_here()
    with refuses("data.length = 1", "2 tokens", "--set data.length=3"):
        texts(path, tokens=a_tokenizer(tmp_path / "tok"), length=1).load(Streams(0))


@pytest.mark.parametrize("kind", ["hashing", "tokens"])
def test_texts_to_predict_for_are_read_as_the_others(tmp_path: Path, kind: str):
    path = written(tmp_path / "t.csv")
    tokens = {"tokens": a_tokenizer(tmp_path / "tok"), "length": 6} if kind == "tokens" else {}
    dataset = texts(path, **tokens)
    read = dataset.samples(Path(path))
    assert torch.equal(read.x, dataset.load(Streams(0)).x)
    assert list(read.rows) == list(range(6))
    assert read.notes[0] == f"Columns that are not looked at: domain, label (of '{path}')."
    assert len(read.notes) == (2 if kind == "tokens" else 1)
    with refuses("'' (str)", "row 1", "fill it in"):
        dataset.samples(Path(written(tmp_path / "new.csv", [("good",), ("",)], ("text",))))


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("food", "good", ""), ("'text'", "t.csv'", "''", "row 6", "fill it in")),
        (("food", "good", "  "), ("'text'", "t.csv'", "'  '", "row 6")),
        (("food", "", "good"), ("'label'", "t.csv'", "nothing", "row 6")),
        ((" ", "good", "good"), ("'domain'", "t.csv'", "nothing", "row 6")),
        (("food", "good", "good", "more"), ("line 8", "t.csv'")),
    ],
)
def test_cells_that_are_wrong(tmp_path: Path, row: tuple[str, ...], message: tuple[str, ...]):
    with refuses(*message):
        texts(written(tmp_path / "t.csv", [*ROWS, row])).load(Streams(0))


def test_columns_that_are_not_there_or_named_twice(tmp_path: Path):
    path = written(tmp_path / "t.csv")
    for setting in ("text", "label", "domain"):
        with refuses(f"(data.{setting})", "t.csv'", f"--set data.{setting}=COLUMN"):
            texts(path, **{setting: "nothing"}).load(Streams(0))
    with refuses("data.label = ", "each column once"):
        texts(path, text="label")
    with refuses("none.csv'", "no row"):
        texts(written(tmp_path / "none.csv", [])).load(Streams(0))


# In a run -----------------------------------------------------------------------------------------


def many(tmp_path: Path) -> str:
    """Three sites of twelve texts of each class, told apart by a word."""
    generator = np.random.default_rng(0)
    rows = [
        (site, label, " ".join(generator.choice(["a", "meal", "film", "is", "this"], 3)) + f" {label}")
        for site in ("east", "north", "west")
        for label in ("bad", "good")
        for _ in range(12)
    ]
    return written(tmp_path / "many.csv", rows)


def changes(tmp_path: Path, kind: str, method: str) -> dict[str, Any]:
    data = {"name": "text", "path": many(tmp_path), "domain": "domain", "width": 32}
    model: dict[str, Any] = {"name": "mlp", "dim": 4, "hidden": [8]}
    if kind == "tokens":
        data |= {"tokens": a_tokenizer(tmp_path / "tok"), "length": 6}
        model = {"name": "transformers", "dim": 4, "path": an_encoder(tmp_path / "encoder")}
    own = {f"method.{key}": value for key, value in SMALL.get(method, {}).items()}
    train = {"train.rounds": 1, "train.lr": 0.001, "train.momentum": 0.0}
    return {"data": data, "model": model, "protocol": {"name": "in-domain"}, "method.name": method, **own, **train}


@pytest.mark.parametrize("kind", ["hashing", "tokens"])
@pytest.mark.parametrize("method", ["fedavg", "fedcir", "fraug", "scaffold"])
def test_methods_run_on_texts_unchanged(make: Make, tmp_path: Path, kind: str, method: str):
    simulation = simulate(make(changes(tmp_path, kind, method)))
    assert simulation.coordinator.position == len(simulation.coordinator.schedule)
    assert any(name.startswith(("encoder.", "head.")) for name in names_sent(simulation, "train", "down"))


def test_a_model_of_texts_is_put_together_again(make: Make, tmp_path: Path):
    """From ids, as the data set stores them; data.json says that they are ids."""
    given = changes(tmp_path, "tokens", "fedavg")
    run = Run(runner.start(make(given), Progress()))
    x = texts(given["data"]["path"], tokens=given["data"]["tokens"], length=6).load(Streams(0)).x
    probabilities = run.model()(x).exp()
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(len(x)))
    assert run.data_facts["inputs"]["tokens"] == len(WORDS)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"vocab_size": 10}, ("12 ids", "embeds 10", "data.tokens")),
        ({"pad_token_id": 1}, ("id 0", "pad_token_id = 1", '"pad_token_id": 0')),
        ({"max_position_embeddings": 5}, ("(6,)", "BertModel")),
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


# Who else reads token ids -------------------------------------------------------------------------


# The documentation --------------------------------------------------------------------------------


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each has at most ten lines beside imports, and learns or adapts what it says."""
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    import fedshift

    monkeypatch.chdir(tmp_path)
    original = fedshift.run

    def short(**options: Any) -> Run:
        settings = {**options.pop("settings"), "train.steps": 2, "run.engine": "sequential", "run.threads": 1}
        return original(**options, settings=settings, progress=Progress())

    monkeypatch.setattr(fedshift, "run", short)
    docs = Path(__file__).parents[1] / "docs"
    marked = r"<!-- (\w+) -->\n```python\n(.*?)```"
    pages = (docs / "text.md").read_text(encoding="utf-8") + (docs / "pretrained.md").read_text(encoding="utf-8")
    examples = dict(re.findall(marked, pages, re.DOTALL))
    assert list(examples) == ["hashing", "tokens", "transformers"]
    for name, code in examples.items():
        names: dict[str, Any] = {}
        exec(compile(code, name, "exec"), names)  # the point of the test
        sent = {each for way in names["run"].messages.values() for each in way["up"]["tensors"]}
        assert any("lora_A" in each for each in sent) == (name != "hashing")
        assert names["run"].finished
