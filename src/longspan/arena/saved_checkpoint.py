"""Saved checkpoints: what they are, and the settings of a run that starts from one."""

import dataclasses
from pathlib import Path
from typing import Any

from longspan.arena.run_state import read_state
from longspan.attention import options_of
from longspan.config import ModelConfig, TaskConfig
from longspan.config.architecture import declared
from longspan.data.word_pieces import WordPieceTokenizer, has_word_pieces, tokenizer_sha256
from longspan.errors import DataError, OptionError
from longspan.models import LongspanConfig
from longspan.tasks import TASKS, Task, build
from longspan.tasks.info import LANGUAGE_MODELING
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_folder import read_config, weights_sha256
from longspan.training.checkpoint_names import saved_step

# Fields that a run takes over, except that of a decoder: hashes have it among `start.fields`.
_MODEL = [field.name for field in dataclasses.fields(ModelConfig) if field.name != "is_decoder"]
# Fields of a model that settings of a run or its task decide.
_DECIDED = {
    *("vocab_size", "input_features", "max_position_embeddings", "class_weights"),
    *("attention", "attention_options", "attention_backend"),
    *_MODEL,
}
_FREEZING = {"freeze", "frozen_positions"}  # of the training that goes on, not of another task


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """Checkpoint to start from: of a run, or of a user.

    Attributes:
        folder: folder with the configuration and the weights.
        sha256: of the weights.
        config: configuration.
        task: task that a run trained it on; None: it is not of a run.
    """

    folder: Path
    sha256: str
    config: LongspanConfig
    task: TaskConfig | None

    @property
    def mechanism(self) -> str:
        """Mechanism of all layers.

        Raises:
            OptionError: the layers have several mechanisms, or one with several options.
        """
        config = self.config
        names = sorted(set(config.attention_names))
        if len(names) > 1:
            raise OptionError(
                f"the layers of {self.folder} have several mechanisms ({', '.join(names)}), a run "
                "has one; convert the source with longspan longify --mechanism NAME"
            )
        options = config.attention_options
        if not isinstance(options, dict) and any(x != options[0] for x in options):
            raise OptionError(
                f"the layers of {self.folder} have {names[0]} with several options, a run has one "
                "set of them; convert the source with longspan longify --set NAME=VALUE"
            )
        return names[0]

    @property
    def vocabulary(self) -> str | int | None:
        """Vocabulary of texts as an option of tasks; None: not known."""
        if has_word_pieces(self.folder):
            return f"tokenizer:{self.folder}"
        if self.task is None or self.task.name not in TASKS:
            return None
        if isinstance(option := self.task.options.get("vocabulary"), str | int):
            return option
        tokenizer = getattr(build(self.task.name, self.task.options), "tokenizer", None)
        return f"tokenizer:{tokenizer.name}" if isinstance(tokenizer, WordPieceTokenizer) else None

    def changes(
        self, task: Task, mechanism: str | None = None, extend_positions: str | None = None
    ) -> dict[str, Any]:
        """Return the settings of a run that starts from the checkpoint, by dotted name.

        Args:
            task: task of the run, with the options of its protocol.
            mechanism: mechanism of the run, which may be another one with the same weights; None:
                that of the checkpoint.
            extend_positions: how learned positions are extended; None: they are not.
        """
        config = self.config
        model = {name: getattr(config, name) for name in _MODEL}
        model["position"] = config.position_encoding
        options: dict[str, Any] = {}
        if mechanism in (None, self.mechanism):
            options = {**options_of(self.mechanism), **config.layer_options(0)}
        return {
            **self.encoding(task, extend_positions),
            **{f"model.{name}": x for name, x in model.items()},
            **{f"mechanism.{name}": x for name, x in options.items()},
            "training.word_vectors": "random",  # those of the checkpoint are loaded
            "start.checkpoint": self.sha256,
            "start.positions": config.max_position_embeddings,
            "start.vocabulary": config.vocab_size,
            "start.fields": self._other_fields(task),
            **({"start.extend_positions": extend_positions} if extend_positions else {}),
        }

    def encoding(self, task: Task, extend_positions: str | None = None) -> dict[str, Any]:
        """Return the options of a task that fit the checkpoint, by dotted name.

        Own texts are read as far as the checkpoint can, others as far as their options say. With
        more positions than those of the checkpoint, all are. Queries are no longer than documents.
        Targets are no longer than the checkpoint's decoder, whose positions are not extended.

        Args:
            task: task with the options of its protocol.
            extend_positions: how learned positions are extended; None: they are not.
        """
        names = {field.name for field in dataclasses.fields(task.options)}
        changes: dict[str, Any] = {}
        if "vocabulary" in names and self.vocabulary is not None:
            changes["task.vocabulary"] = self.vocabulary
            if has_word_pieces(self.folder):
                changes["start.tokenizer"] = tokenizer_sha256(self.folder)
        longest = self.config.max_position_embeddings
        if (
            extend_positions is None
            and "length" in names
            and (task.is_own or task.length > longest)
        ):
            changes["task.length"] = longest
            if "query_length" in names and task.options.query_length > longest:
                changes["task.query_length"] = longest
        if self.config.is_encoder_decoder and "target_length" in names:
            written = self.config.decoder_overrides.get("max_position_embeddings", longest)
            if task.options.target_length > written:
                changes["task.target_length"] = written
        return changes

    def _other_fields(self, task: Task) -> dict[str, Any]:
        """Return the fields of the configuration that differ from the defaults of models."""
        defaults = LongspanConfig()
        is_language = task.info.head in LANGUAGE_MODELING
        left_out = _DECIDED if is_language else _DECIDED | _FREEZING
        return {
            name: getattr(self.config, name)
            for name in declared(LongspanConfig, "effect")
            if name not in left_out and getattr(self.config, name) != getattr(defaults, name)
        }


def open_checkpoint(path: str | Path) -> SavedCheckpoint:
    """Return the checkpoint that a path names.

    Args:
        path: record or directory of a finished run, or a folder that `save_pretrained`, `longify`
            or `convert` has written.

    Raises:
        DataError: there is no checkpoint, it is damaged, or its model is none of longspan.
        RunError: the state of a run's directory is invalid.
    """
    folder = _find_folder(Path(path))
    sha256, config, state = weights_sha256(folder), read_config(folder), read_state(folder.parent)
    task = None if state is None else state.config.task
    return SavedCheckpoint(folder=folder.absolute(), sha256=sha256, config=config, task=task)


def _find_folder(path: Path) -> Path:
    """Return the folder of a checkpoint's files."""
    if path.is_file() and path.suffix == ".json":
        path = path.parent / "work" / path.stem
    if not path.is_dir():
        raise DataError(
            f"{path} is no folder; name the record or directory of a run, or a folder of "
            "save_pretrained"
        )
    if (path / "config.json").exists() or read_state(path) is None:
        return path
    best, record = Checkpoints(path).best(), path.parent.parent / f"{path.name}.json"
    # A run that was killed as it ended has a record, and resumption checkpoints yet.
    if best is None or (saved_step(path) is not None and not record.exists()):
        raise DataError(f"the run in {path} has not finished; run it to its end first")
    return best
