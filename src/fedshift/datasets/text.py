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
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData, Unlabelled
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column
from fedshift.content import digest
from fedshift.datasets.column_files import (
    ColumnFiles,
    column_of,
    not_looked_at,
)
from fedshift.datasets.labelled import Labelled, beside, each_read, joined, shown
from fedshift.errors import FedshiftError, needs
from fedshift.hub import answers, hub, located
from fedshift.spec import Width, setting
from fedshift.streams import Streams

HASHING = "hashing"
BATCH = 1000  # texts that are tokenized together


class TextFile(ColumnFiles):
    """Columns of texts and classes, in CSV (a line of names first) or Parquet; or one file a domain."""

    readers: ClassVar[tuple[str, ...]] = ("tokens",)

    text: str = setting("text", help="the column of the text")
    tokens: str = setting(
        HASHING,
        help="'hashing': vectors of hashed words; or a tokenizer for token ids: a folder that save_pretrained wrote, "
        "or a hub id with its commit (ID@COMMIT)",
        path=True,
        words=(HASHING,),
    )
    width: Width = setting(1024, help="size of a vector, with hashing")
    length: Width = setting(128, help="tokens of a text, with a tokenizer; longer texts are cut")

    def inputs_named(self) -> tuple[str, ...]:
        return (self.text,)

    def check_here(self) -> None:
        self.files()
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
        _hashing() if self.tokens == HASHING else self._tokenizer()  # fails before texts are read
        files, odd = self.files(), list[int]()
        parts = each_read(lambda file: self._part(file, odd), files, f"things are wrong with the texts '{self.path}'")
        count = sum(len(part.x) for part in parts)
        return joined(parts, notes=(*beside(self.path, files), *self._notes(odd, count)))

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        odd: list[int] = []
        x = self._numbers(self.read(file, (), self.named("text"), [self.text]), file, odd)
        return Unlabelled(x, range(len(x)), (*not_looked_at(file, [self.text], self.form), *self._notes(odd, len(x))))

    def _part(self, file: Path, odd: list[int]) -> Labelled:
        frame = self.read(file, (), self.named("text") | self.other_columns, [self.text])
        x = self._numbers(frame, file, odd)
        return Labelled(str(file), x, self.label_of(file, frame), self.domain_of(file, frame))

    # Numbers --------------------------------------------------------------------------------------

    def _numbers(self, frame: Any, file: Path, odd: list[int]) -> Tensor:
        texts = list(frame[self.text])
        for row, value in enumerate(texts):
            if not isinstance(value, str) or not value.strip():
                raise FedshiftError(
                    f"{column_of(self.text, file)} contains {shown(value)} in row {row}, and should contain text; "
                    "fill it in or remove the row."
                )
        size = 4 * self.width if self.tokens == HASHING else 8 * self.length
        memory.check(
            2 * len(texts) * size,
            f"{len(texts):,} texts, {size:,} bytes each",
            "Choose a smaller data.width (with hashing) or data.length (with a tokenizer).",
        )
        return self._hashed(texts, odd) if self.tokens == HASHING else self._tokenized(file, texts, odd)

    def _hashed(self, texts: list[str], odd: list[int]) -> Tensor:
        hashed = _hashing()(n_features=self.width, dtype=np.float32).transform(texts)
        odd += [0] * int((np.diff(hashed.indptr) == 0).sum())
        return torch.from_numpy(hashed.toarray())

    def _tokenized(self, file: Path, texts: list[str], odd: list[int]) -> Tensor:
        """Token ids (N, length), int64; odd are texts that are cut, by how many tokens they have."""
        tokenizer = self._tokenizer()
        x = torch.full((len(texts), self.length), tokenizer.pad_token_id)
        for start in range(0, len(texts), BATCH):
            some = texts[start : start + BATCH]
            found = tokenizer(some, verbose=False)["input_ids"]
            cut = tokenizer(some, truncation=True, max_length=self.length)["input_ids"]
            for row, own in enumerate(cut, start):
                if not own:
                    raise FedshiftError(
                        f"{column_of(self.text, file)} contains {texts[row]!r:.100} in row {row}, of which the "
                        "tokenizer makes no token; correct it or remove the row."
                    )
                x[row, : len(own)] = torch.tensor(own)
            odd += [len(whole) for whole in found if len(whole) > self.length]
        return x

    def _notes(self, odd: Sequence[int], count: int) -> Iterator[str]:
        """What a reader of the results must know of how texts became numbers."""
        if odd and self.tokens == HASHING:
            yield f"{len(odd)} of {count} texts contain no word of two letters or digits; their vectors are zeros."
        elif odd:
            yield (
                f"{len(odd)} of {count} texts have more than {self.length} tokens, the longest {max(odd)}, and were "
                "cut: data.length."
            )

    def _tokenizer(self) -> Any:
        source, commit = located(self.tokens, "data.tokens")
        tokenizer = _read(source, commit, commit or digest(source))
        if tokenizer.pad_token_id is None:
            raise FedshiftError(
                f"data.tokens = '{self.tokens}': the tokenizer has no pad token, with which shorter texts are filled "
                "up; give it one (tokenizer.pad_token = tokenizer.eos_token, for example, and save_pretrained into a "
                "folder)."
            )
        around = tokenizer.num_special_tokens_to_add()
        if around >= self.length:
            raise FedshiftError(
                f"data.length = {self.length} leaves no room for a text beside the {around} tokens that the tokenizer "
                f"adds to it: --set data.length={around + 1} or more"
            )
        return tokenizer


def _hashing() -> Any:
    with needs("text", "data.tokens = 'hashing'"):
        from sklearn.feature_extraction.text import HashingVectorizer
    return HashingVectorizer


@lru_cache(maxsize=4)
def _read(source: str, commit: str | None, content: str) -> Any:
    """A tokenizer; read again only if its content has changed."""
    with needs("text", "A tokenizer"):
        import transformers
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads, of which it would warn when workers are forked
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
