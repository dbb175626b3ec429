"""What `python -m sim` says at the end of a program."""

from __future__ import annotations

from .session import Call, Session

__all__ = ["summary"]

_HEAD = ("kernel", "line", "runs", "blocks", "seconds", "NaN", "infinities", "undetermined")


def summary(session: Session) -> str:
    """A table of the kernels that ran, and a line for each thing worth knowing."""
    calls = list(session.notes.calls.values())
    ran = [c for c in calls if c.runs]
    lines = [f"simulated for {session.arch}; no GPU took part"]
    lines += ["", *_table([_HEAD, *map(_row, ran)])] if ran else ["no kernel ran"]
    told = [line for call in calls for line in _told(call)] + _asked(session)
    return "\n".join(lines + ([""] if told else []) + [f"  {line}" for line in told])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _row(call: Call) -> tuple[str, ...]:
    blocks = f"{call.blocks}" if call.simulated == call.blocks else f"{call.simulated} of {call.blocks}"
    counts = (call.nan, call.infinities, call.undetermined)
    return call.name, call.where, str(call.runs), blocks, f"{call.seconds:.1f}", *map(str, counts)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _told(call: Call) -> list[str]:
    """What is to be known of one kernel."""
    lines = [f"not simulated  {call.title}: {call.refused}"] if call.refused else []
    if call.born:
        lines.append(
            f"born           {call.title}: {_count(call.born, 'NaN or infinite value')}, the first {call.first}"
        )
    if call.undetermined:
        lines.append(f"undetermined   {call.title}: {_count(call.undetermined, 'output')} cannot be known")
    if call.simulated < call.blocks:
        lines.append(f"partial        {call.title}: other thread blocks were left out, and with them their outputs")
    return lines + [f"event          {call.title}: {event}" for event in call.events]


def _asked(session: Session) -> list[str]:
    """What a program asked for and did not get."""
    notes = session.notes
    lines = [
        f"not measured   {what}: {_count(count, 'call')} gave NaN at once" for what, count in notes.measurements.items()
    ]
    return lines + [f"not tuned      {choice}" for choice in notes.tuned]
