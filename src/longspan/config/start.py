"""Start of a run: the checkpoint that its weights come from."""

from typing import Any

from pydantic import PositiveInt

from longspan.config.base import setting, settings
from longspan.errors import OptionError, check_name

EXTENSIONS = ("tile", "keep", "interpolate")  # of learned positions, as `longify` has them


@settings
class StartConfig:
    """Checkpoint that a run starts from: of another run of its protocol, or a given one.

    The folder of a given checkpoint is no part of the identity: its weights and tokenizer are.
    """

    task: str | None = setting(
        "task of the protocol whose run of that row and seed is the start", None
    )
    run: str | None = setting("hash of that run's configuration", None)
    checkpoint: str | None = setting("sha256 of the weights of a given checkpoint", None)
    tokenizer: str | None = setting(
        "sha256 of the tokenizer of a given checkpoint, if texts are encoded with it: the folder "
        "that task.vocabulary names is then no part of the run's identity",
        None,
    )
    positions: PositiveInt = setting("maximum number of tokens of the checkpoint")
    vocabulary: PositiveInt = setting("token ids of the checkpoint")
    extend_positions: str | None = setting(
        "how learned positions are extended to longer inputs: tile, keep or interpolate; none: "
        "inputs are no longer",
        None,
    )
    fields: dict[str, Any] | None = setting(
        "fields of a given checkpoint's configuration that the model has and no recipe sets", None
    )

    def __post_init__(self) -> None:
        """Check that there is one checkpoint, and how positions are extended.

        Raises:
            OptionError: there is none, or there are two.
            UnknownNameError: positions are not extended so; the message suggests near names.
        """
        if self.extend_positions is not None:
            check_name(self.extend_positions, EXTENSIONS, "method to extend learned positions")
        of_run = self.task is not None and self.run is not None
        partial = (self.task is None) != (self.run is None)
        if partial or of_run == (self.checkpoint is not None):
            raise OptionError(
                "a start is either task and run, or checkpoint; got "
                f"task={self.task!r}, run={self.run!r}, checkpoint={self.checkpoint!r}"
            )
