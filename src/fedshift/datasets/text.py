"""Texts of yours, as CSV or Parquet: one sample a row.

*Choices*. With ``tokens = "hashing"`` a text becomes a vector: its words (two letters or digits and more, in small
letters) are counted in ``width`` signed bins by their hash, and the vector is divided by its norm (scikit-learn's
HashingVectorizer, with its defaults). There is no vocabulary and no statistic, so nothing is learnt from anybody's
texts. With a tokenizer a text becomes the ids of its tokens, with those that the tokenizer sets before and after it,
cut at ``length`` or filled up to it on the right by the tokenizer's own id for that. What was cut is counted and noted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedshift import memory
from fedshift.datasets.cells import SUFFIXES, check_named, column_names, names_in, read_columns
from fedshift.datasets.column_files import ColumnFiles, column_of, not_looked_at
from fedshift.datasets.parts import Names, Part, beside, files_in, joined
from fedshift.errors import FedshiftError, Problems, needs
from fedshift.federation.domains import DomainData, Unlabelled
from fedshift.federation.inputs import Inputs
from fedshift.federation.preparation import Column
from fedshift.hub import answers, hub, located
from fedshift.settings.content import digest
from fedshift.settings.spec import Width, setting
from fedshift.streams import Streams

HASHING = "hashing"
BATCH = 1000  # texts that are tokenized together
PARALLEL = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True, kw_only=True)
class TextFile(ColumnFiles):
    """Columns of texts and classes, in CSV (commas, UTF-8, a line of names) or Parquet; or one file a domain."""

    readers: ClassVar[tuple[str, ...]] = ("tokens",)

    text: str = setting("text", help="the column of the text")
    tokens: str = setting(
        HASHING,
        help="'hashing' makes vectors of hashed words; a folder that a tokenizer's save_pretrained wrote, or a hub id "
        "with its commit (ID@COMMIT), makes token ids",
        path=True,
        words=(HASHING,),
    )
    width: Width = setting(1024, help="numbers of a vector, with hashing")
    length: Width = setting(128, help="tokens of a text, with a tokenizer; longer texts are cut")

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: one is wrong, or a column has two uses.
        """
        super().__post_init__()
        used = [self.text, self.label, *([self.domain] if self.domain else [])]
        if not all((self.text, self.label)) or len(set(used)) < len(used):
            raise FedshiftError(
                f"data.text = '{self.text}', data.label = '{self.label}', data.domain = '{self.domain}': name the "
                "columns of the text and the label, and each column once."
            )

    def check_here(self) -> None:
        """Whether there are the files, and the tokenizer or the hub that has it."""
        files_in(self.path, SUFFIXES)
        if self.tokens != HASHING and (located(self.tokens, "data.tokens")[1] is None or not answers()):
            self._tokenizer()

    def inputs(self) -> Inputs:
        """Vectors as they are; or token ids, with how many there are and the one that fills up."""
        if self.tokens == HASHING:
            return Inputs()
        tokenizer = self._tokenizer()
        return Inputs(tokens=len(tokenizer), pad=tokenizer.pad_token_id)

    def load(self, streams: Streams) -> DomainData:
        """Read every row, and make numbers of its text."""
        with needs("text", "The data set 'text'"):
            import pandas  # noqa: F401  # which reads the files
        files = files_in(self.path, SUFFIXES)
        memory.check(sum(file.stat().st_size for file in files), f"The texts '{self.path}'", "Give fewer rows.")
        if self.tokens != HASHING:
            self._tokenizer()  # whether there is one is known before the texts are read
        rows: list[_Rows] = []
        problems = Problems(f"things are wrong with the texts '{self.path}'")
        for file in files:
            with problems.gathered():
                rows.append(self._rows(file))
        problems.check()
        count = sum(len(each.texts) for each in rows)
        size = 4 * self.width if self.tokens == HASHING else 8 * self.length
        memory.check(
            2 * count * size,
            f"{count:,} texts, {size:,} bytes each",
            "Choose a smaller data.width (with hashing) or data.length (with a tokenizer).",
        )
        made = [self._numbers(each.where, each.texts) for each in rows]
        parts = [Part(each.where, x, each.y, each.domain) for each, (x, _) in zip(rows, made, strict=True)]
        return joined(parts, notes=(*beside(self.path, files), *self._notes([odd for _, odd in made], count)))

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The column of the text."""
        check_named(file, column_names(file), {self.text: "data.text"})
        frame = read_columns(file, [self.text], texts=[self.text])
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        texts = _texts(frame[self.text], column_of(self.text, file))
        x, odd = self._numbers(str(file), texts)
        return Unlabelled(x, range(len(x)), (*not_looked_at(file, [self.text]), *self._notes([odd], len(x))))

    def _rows(self, file: Path) -> _Rows:
        """The rows of a file, each with a text and names."""
        frame = self._frame(file, [self.text, *self.named_apart])
        if not len(frame):
            raise FedshiftError(f"'{file}' has no row; write one for each sample.")
        problems = Problems(f"columns of '{file}' cannot be used")
        texts: list[str] = []
        with problems.gathered():
            texts = _texts(frame[self.text], column_of(self.text, file))
        with problems.gathered():
            y = names_in(frame[self.label], column_of(self.label, file), whole=True)
        with problems.gathered():
            domain = self.domain_of(file, frame)
        problems.check()
        return _Rows(str(file), texts, y, domain)

    def _frame(self, file: Path, columns: list[str]) -> Any:
        check_named(file, column_names(file), {self.text: "data.text"} | self.named_apart)
        return read_columns(file, columns, texts=[self.text], names=self.as_written)

    # Numbers --------------------------------------------------------------------------------------

    def _numbers(self, where: str, texts: list[str]) -> tuple[Tensor, list[int]]:
        """What becomes of the texts of a file; and a number for each of them that a note should count."""
        return self._hashed(texts) if self.tokens == HASHING else self._tokenized(where, texts)

    def _hashed(self, texts: list[str]) -> tuple[Tensor, list[int]]:
        """Vectors (N, width), float32; and how many words are known of each text of none: 0."""
        with needs("text", "data.tokens = 'hashing'"):
            from sklearn.feature_extraction.text import HashingVectorizer
        hashed = HashingVectorizer(n_features=self.width, dtype=np.float32).transform(texts)
        empty = np.flatnonzero(np.diff(hashed.indptr) == 0)
        return torch.from_numpy(hashed.toarray()), [0] * len(empty)

    def _tokenized(self, where: str, texts: list[str]) -> tuple[Tensor, list[int]]:
        """Token ids (N, length), int64; and how many tokens each text has that was cut."""
        tokenizer, cut = self._tokenizer(), []
        x = torch.full((len(texts), self.length), tokenizer.pad_token_id)
        for start in range(0, len(texts), BATCH):
            some = texts[start : start + BATCH]
            with _alone():
                whole = tokenizer(some, verbose=False)["input_ids"]
                ids = tokenizer(some, truncation=True, max_length=self.length)["input_ids"]
            for row, own in enumerate(ids, start):
                if not own:
                    raise FedshiftError(
                        f"The column '{self.text}' of '{where}' holds {texts[row]!r:.100} in row {row}, of "
                        "which the tokenizer makes no token; correct it or remove the row."
                    )
                x[row, : len(own)] = torch.tensor(own)
            cut += [len(each) for each in whole if len(each) > self.length]
        return x, cut

    def _notes(self, odd: Sequence[Sequence[int]], count: int) -> Iterator[str]:
        """What a reader of the results must know of how texts became numbers."""
        found = [number for each in odd for number in each]
        if found and self.tokens == HASHING:
            yield f"{len(found)} of {count} texts hold no word of two letters or digits; their vectors are zeros."
        elif found:
            yield (
                f"{len(found)} of {count} texts have more than {self.length} tokens, the longest {max(found)}, and "
                "were cut: data.length."
            )

    def _tokenizer(self) -> Any:
        source, commit = located(self.tokens, "data.tokens")
        tokenizer = _read(source, commit, commit or digest(source))
        if tokenizer.pad_token_id is None:
            raise FedshiftError(
                f"data.tokens = '{self.tokens}': the tokenizer has no pad token, with which shorter texts are filled "
                "up; give it one (tokenizer.pad_token = tokenizer.eos_token, say, and save_pretrained into a folder)."
            )
        around = tokenizer.num_special_tokens_to_add()
        if around >= self.length:
            raise FedshiftError(
                f"data.length = {self.length} leaves no room for a text beside the {around} tokens that the tokenizer "
                f"adds to it: --set data.length={around + 1} or more"
            )
        return tokenizer


@dataclass(frozen=True)
class _Rows:
    """The rows of one file: texts, classes and domains."""

    where: str
    texts: list[str]
    y: Names
    domain: Names


def _texts(column: Any, where: str) -> list[str]:
    """A column of texts, none of which is empty."""
    for row, value in enumerate(column):
        if not isinstance(value, str):
            missing = value is None or value != value  # noqa: PLR0124  # NaN
            shown = "nothing" if missing else f"{value!r:.100} ({type(value).__name__})"
            raise FedshiftError(
                f"{where} holds {shown} in row {row}, and should hold text; fill it in or remove the row."
            )
        if not value.strip():
            raise FedshiftError(f"{where} holds nothing ({value!r:.100}) in row {row}; fill it in or remove the row.")
    return list(column)


@lru_cache(maxsize=4)
def _read(source: str, commit: str | None, content: str) -> Any:
    """A tokenizer; read again only if its content has changed."""
    with needs("text", "A tokenizer"):
        import transformers
    try:
        with hub(source):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, revision=commit or "main")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FedshiftError(
            f"data.tokens = '{source}': no tokenizer could be read ({reason}). Give a folder that a tokenizer's "
            "save_pretrained wrote, or download it once where the hub can be reached; 'hashing' needs neither."
        ) from error
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    return tokenizer


@contextmanager
def _alone() -> Iterator[None]:
    """Lets a tokenizer start no threads, of which it would warn when worker processes are forked."""
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLEL]
        else:
            os.environ[PARALLEL] = before
