"""A canvas that fills up before one's eyes: a streamer for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from pmlm.results import Step


class LiveCanvas:
    """Shows the text on stderr while it is written, the newest token marked; leaves nothing behind."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=console or Console(stderr=True), transient=True, refresh_per_second=20)

    def put_draft(self, canvas: Sequence[str | None]) -> None:
        self._given = {i for i, token in enumerate(canvas) if token is not None}
        self._live.start()
        self._live.update(self._picture(canvas, None), refresh=True)

    def put(self, step: Step) -> None:
        self._live.update(self._picture(step.canvas, step.position), refresh=True)

    def end(self) -> None:
        self._live.stop()

    def _picture(self, canvas: Sequence[str | None], newest: int | None) -> Text:
        from rich.text import Text

        picture = Text()
        for i, token in enumerate(canvas):
            style = "reverse" if i == newest else "bold" if i in self._given else "cyan"
            picture.append(" _" if token is None else token, style="dim" if token is None else style)
        return picture
