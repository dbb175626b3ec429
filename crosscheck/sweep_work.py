"""The combinations of a sweep in parallel processes, through joblib, and how far they are."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from .sweep_axes import Numbered, Sweep
from .sweep_row import rows
from .terminal import Progress

__all__ = ["Bar", "groups_of", "rows_of"]

IDLE = 20  # seconds after which a process without work ends, also when the sweep was killed


def rows_of(sweep: Sweep, todo: Numbered, jobs: int | None) -> Iterator[dict[str, Any]]:
    """The rows of these combinations, as they are done.

    jobs: processes (default one for each CPU, or worker of a cluster); joblib.parallel_config chooses another backend
    than its own processes. Without joblib: in this process.
    """
    groups = groups_of(todo) if sweep.kernel is None else [[each] for each in todo]
    try:
        import joblib
    except ImportError:
        yield from (row for group in groups for row in rows(sweep, group))
        return
    tasks = [joblib.delayed(rows)(sweep, group) for group in groups]
    settings: dict[str, Any] = {"n_jobs": -1 if jobs is None else jobs, "batch_size": 1}
    backend = joblib.parallel.get_active_backend()[0]
    if isinstance(backend, joblib.parallel.LokyBackend):
        settings["idle_worker_timeout"] = IDLE
    if backend.supports_return_generator:
        done = joblib.Parallel(**settings, return_as="generator_unordered")(tasks)
    else:  # Ray gives lists
        done = _by_lists(joblib, settings, tasks)
    for found in done:
        yield from found


def groups_of(todo: Numbered) -> list[Numbered]:
    """The flash loop's combinations that differ in `stages` alone, together."""
    found: dict[str, Numbered] = {}
    for number, each in todo:
        others = repr({name: value for name, value in each.items() if name != "stages"})
        found.setdefault(others, []).append((number, each))
    return list(found.values())


def _by_lists(joblib: Any, settings: dict[str, Any], tasks: list[Any]) -> Iterator[Any]:
    with joblib.Parallel(**settings) as pool:
        step = 4 * joblib.effective_n_jobs(settings["n_jobs"])
        for at in range(0, len(tasks), step):
            yield from pool(tasks[at : at + step])


class Bar(Progress):
    """A progress bar on stderr, when that is a terminal: what is done, how many are bad, and the time that is left."""

    def __init__(self, of: int, there: int) -> None:
        super().__init__(of)
        self.done = self.there = there

    def _draw(self) -> None:
        if not self.shown:
            return
        parts = [f"{self.done} of {self.steps}", self.text or "starting", self._left()]
        columns, tail = shutil.get_terminal_size().columns, " " + ", ".join(part for part in parts if part)
        width = max(min(40, columns - len(tail) - 3), 0)
        full = width * self.done // max(self.steps, 1)
        sys.stderr.write("\r\x1b[K" + f"[{'#' * full}{'.' * (width - full)}]{tail}"[: columns - 1])
        sys.stderr.flush()

    def _left(self) -> str:
        """The time that the rest takes at the pace so far."""
        new = self.done - self.there
        if not new:
            return ""
        seconds = (self.steps - self.done) * (time.monotonic() - self.started) / new
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f} left"
