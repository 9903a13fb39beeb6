"""How a run tells the person who waits: a bar on a terminal, plain lines anywhere else."""

import sys
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Shows steps, loss, tokens/s and time left on one rank; silent on the others."""

    def __init__(self, first_step: int, steps: int, shown: bool, stream: TextIO | None = None) -> None:
        self._steps = steps
        self._shown = shown
        self._stream = stream or sys.stdout
        self._bar = (
            tqdm(total=steps, initial=first_step, unit="step", file=self._stream, dynamic_ncols=True)
            if shown and self._stream.isatty()
            else None
        )

    def advance(self) -> None:
        """One step is done."""
        if self._bar is not None:
            self._bar.update()

    def tell(self, step: int, told: dict[str, str], left_s: float) -> None:
        """The state after a step."""
        if self._bar is not None:
            self._bar.set_postfix(told)
        elif self._shown:
            facts = "  ".join(f"{name} {value}" for name, value in told.items())
            self.say(f"step {step}/{self._steps}  {facts}  left {tqdm.format_interval(left_s)}")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        elif self._shown:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Leaves the terminal in order."""
        if self._bar is not None:
            self._bar.close()
