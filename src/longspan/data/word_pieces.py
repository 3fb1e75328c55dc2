"""Word pieces: any tokenizer of the Hugging Face libraries, as the tokenizer of a task.

Ids are those of the tokenizer, so that a checkpoint and the examples made for it agree. A text is
never read as special tokens: "[MASK]" in a document is the characters of that word.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.errors import DataError, reason_of
from longspan.files import file_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Files that decide the ids. The identity of a tokenizer is the sha256 of those that it has.
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tekken.json"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model"),
)
OF_CORPUS = "corpus:"  # before the name of a corpus, for its tokenizer
CORPUS_FOLDERS: dict[str, Path] = {}  # of the tokenizers of the known corpora
_CONFIG = "config.json"  # of the model: names the class of a tokenizer without tokenizer.json
_NO_TEXT = "\ufffd"  # of an id without a token
_PROBE = "a"  # a text of at least one token, to see where special tokens are


@dataclass(frozen=True, eq=False)
class WordPieceTokenizer:
    """Tokenizer of the Hugging Face libraries.

    Attributes:
        name: folder or name on the hub, as given.
        sha256: identity: sha256 of the tokenizer's files.
        fast: the tokenizer; its truncation and padding are removed.
    """

    name: str
    sha256: str
    fast: "PreTrainedTokenizerFast"

    def __post_init__(self) -> None:
        """Let the tokenizer read the whole of each text, and none of it as special tokens."""
        pipeline = self.fast.backend_tokenizer
        pipeline.no_truncation()
        pipeline.no_padding()
        pipeline.encode_special_tokens = True

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of a manifest: name, sha256 of the files, number of ids."""
        return {"tokenizer": {"name": self.name, "sha256": self.sha256, "ids": self.vocab_size}}

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, added and unused ones included."""
        return max(self.fast.get_vocab().values()) + 1

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """Smallest type of the store that holds every id: uint16 or uint32."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Token of each id; U+FFFD for an id without one."""
        text_by_id = {token: text for text, token in self.fast.get_vocab().items()}
        return tuple(text_by_id.get(token, _NO_TEXT) for token in range(self.vocab_size))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens: padding, mask, separators, unknown and further ones."""
        added_tokens = self.fast.added_tokens_decoder.items()
        return frozenset(self.fast.all_special_ids) | {
            x for x, token in added_tokens if token.special
        }

    @cached_property
    def frame(self) -> tuple[np.ndarray, ...]:
        """Special tokens around one text: those before it and those after it."""
        return self._special_tokens(None)

    @cached_property
    def pair_frame(self) -> tuple[np.ndarray, ...]:
        """Special tokens around two texts: before the first, between them, after the second."""
        return self._special_tokens(_PROBE)

    def encode(self, text: bytes, length: int) -> np.ndarray:
        """Return at most `length` ids of a UTF-8 text, those of special tokens included.

        The text is cut, not its special tokens. A text without tokens, of a tokenizer without
        special ones, is one unknown token.
        """
        before, after = self.frame
        (pieces,) = self.encode_texts([text.decode()])
        pieces = pieces[: max(0, length - len(before) - len(after))]
        ids = np.concatenate((before, pieces, after))[:length]
        return ids if len(ids) else np.array([self.fast.unk_token_id or 0], self.dtype)

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, whole and without special tokens."""
        pipeline = self.fast.backend_tokenizer
        encodings = pipeline.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, self.dtype) for one in encodings]

    def encode_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a text without special tokens, and their characters.

        Returns:
            The ids (N,), and the first character and the one after the last of each, (N, 2).
        """
        encoding = self.fast.backend_tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, self.dtype), np.array(encoding.offsets, np.int64).reshape(
            -1, 2
        )

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; special tokens are shown."""
        pipeline = self.fast.backend_tokenizer
        return pipeline.decode(ids.tolist(), skip_special_tokens=False)

    def token_id(self, kind: str) -> int:
        """Return the id of a kind of special token: "mask", "sep", "cls", "pad", "eos".

        Raises:
            DataError: the tokenizer has no such token.
        """
        token = getattr(self.fast, f"{kind}_token_id")
        if token is None:
            raise DataError(
                f"tokenizer {self.name} has no {kind} token; add one with "
                f"add_special_tokens({{'{kind}_token': '[{kind.upper()}]'}}) and save it, or "
                "choose another tokenizer"
            )
        return int(token)

    def save(self, folder: Path) -> None:
        """Write the tokenizer to a folder, for `AutoTokenizer.from_pretrained`."""
        self.fast.save_pretrained(folder)

    def _special_tokens(self, second: str | None) -> tuple[np.ndarray, ...]:
        """Return the special tokens before, between and after one text or two."""
        encoding = self.fast.backend_tokenizer.encode(_PROBE, second)
        frame: list[list[int]] = [[] for _ in range(2 if second is None else 3)]
        place = 0
        for token, text in zip(encoding.ids, encoding.sequence_ids, strict=True):
            if text is None:
                frame[place].append(token)
            else:
                place = text + 1
        return tuple(np.array(part, self.dtype) for part in frame)


def load_word_pieces(name: str | Path) -> WordPieceTokenizer:
    """Load a tokenizer from a folder, or from the Hugging Face hub and its cache.

    Args:
        name: folder of a tokenizer or checkpoint; name on the hub such as "roberta-base"; or
            "corpus:NAME" for that of an imported corpus, wherever its folder is.

    Raises:
        DataError: there is no such tokenizer, or it is damaged; the message says what to do.
    """
    folder = _find_folder(str(name))
    return _load(str(name), folder, folder_sha256(folder))


def tokenizer_sha256(name: str | Path) -> str:
    """Return the identity of the tokenizer that `load_word_pieces` would load.

    Raises:
        DataError: there is no such tokenizer.
    """
    return folder_sha256(_find_folder(str(name)))


def folder_sha256(folder: Path) -> str:
    """Return the sha256 over the names and contents of a tokenizer's files.

    Raises:
        DataError: the folder has none.
    """
    paths = _tokenizer_files(folder)
    if not paths:
        raise DataError(
            f"{folder} has no tokenizer; expected one or more of {', '.join(FILES[:6])}"
        )
    lines = (f"{path.name} {file_sha256(path)}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _tokenizer_files(folder: Path) -> list[Path]:
    return [path for name in sorted(FILES) if (path := folder / name).is_file()]


def has_word_pieces(folder: Path) -> bool:
    """Return whether a folder has files of a tokenizer."""
    return bool(_tokenizer_files(folder))


def _find_folder(name: str) -> Path:
    """Return the folder of a tokenizer; one on the hub is looked up in its cache first."""
    if name.startswith(OF_CORPUS):
        if name not in CORPUS_FOLDERS:
            corpus = name.removeprefix(OF_CORPUS)
            raise DataError(
                f"{name} is the tokenizer of a corpus that is not imported; run longspan data "
                f"import corpus PATH --name {corpus}, or pass --cache with the folder it was "
                "imported to"
            )
        return CORPUS_FOLDERS[name]
    if Path(name).exists():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise DataError(f"{name} does not exist; pass the folder of a tokenizer")
    # Heavy; not needed for folders.
    from huggingface_hub import snapshot_download

    problem = "no files of a tokenizer"
    for local in (True, False):
        try:
            folder = Path(
                snapshot_download(name, allow_patterns=[*FILES, _CONFIG], local_files_only=local)
            )
        except (OSError, ValueError) as error:
            problem = reason_of(error)
            continue
        if _tokenizer_files(folder):
            return folder
    raise DataError(
        f"tokenizer {name} is neither a folder, nor in the cache of the Hugging Face hub, nor "
        f"reachable ({problem}); connect to the network, or pass a folder"
    )


@functools.lru_cache(maxsize=8)
def _load(name: str, folder: Path, sha256: str) -> WordPieceTokenizer:
    """Load the tokenizer in a folder; `sha256` keeps a changed one from being served as before."""
    try:
        fast = _from_files(folder)
    # `tokenizers` raises bare exceptions for damaged files.
    except Exception as error:
        reason = reason_of(error)
        raise DataError(
            f"{folder}: the tokenizer cannot be loaded ({reason}); save it with save_pretrained "
            "as a fast tokenizer (tokenizer.json)"
        ) from error
    return WordPieceTokenizer(name, sha256, fast)


def _from_files(folder: Path) -> "PreTrainedTokenizerFast":
    """Load a tokenizer by its configuration; bare vocabularies are those of BERT and RoBERTa."""
    from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

    names = {path.name for path in _tokenizer_files(folder)}
    is_bare = not names & {"tokenizer.json"} and not (folder / _CONFIG).exists()
    if is_bare and "vocab.txt" in names:
        fast = BertTokenizer.from_pretrained(folder)
    elif is_bare and names >= {"vocab.json", "merges.txt"}:
        fast = RobertaTokenizer.from_pretrained(folder)
    else:
        fast = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not fast.is_fast:
        raise DataError("it is no fast tokenizer")
    return fast
