"""Lengths of time as SLURM writes them."""

import re

_PATTERN = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")


def seconds_of(text: str) -> int:
    """`minutes`, `minutes:seconds`, `hours:minutes:seconds` or `days-hours[:minutes[:seconds]]`, in seconds."""
    match = _PATTERN.fullmatch(text.strip())
    if not match:
        raise ValueError("must be a time as SLURM writes it; for example 90 (minutes), 24:00:00 or 2-12:00:00")
    numbers = [int(number) for number in match["clock"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def slurm_time(seconds: int) -> str:
    """The same the other way, `2-12:00:00`; whole minutes are all that SLURM keeps."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
