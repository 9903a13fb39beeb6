"""SLURM's short form of many host names, `node[01-03,07],gpu5`, written out."""

import re
from itertools import product

from megatron_mep.config.errors import ConfigError, Mistake

_NUMBERS = r"\d+(?:-\d+)?"
_BRACKET = rf"\[{_NUMBERS}(?:,{_NUMBERS})*\]"
_HOST = rf"(?:[^\[\],\s]|{_BRACKET})+"


def hosts(hostlist: str) -> list[str]:
    """Every host of the list, in its order; a host may hold several brackets, as `rack[1-2]node[1-4]`."""
    if not re.fullmatch(rf"{_HOST}(?:,{_HOST})*", hostlist):
        raise ConfigError(
            Mistake("SLURM_JOB_NODELIST", hostlist, "must be a SLURM host list, as node[01-03,07],gpu5", "correct it")
        )
    return [host for expression in re.findall(_HOST, hostlist) for host in _expanded(expression)]


def _expanded(expression: str) -> list[str]:
    """`a[1-2]b` as `a1b`, `a2b`."""
    # one group in the pattern: the text in brackets stands at the odd places
    parts = re.split(r"\[([^\]]*)\]", expression)
    choices = [_numbers(part) if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(ranges: str) -> list[str]:
    """`08-10,7` as `08`, `09`, `10`, `7`: a number is as wide as the first of its range."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return [
        str(number).zfill(len(first))
        for first, _, last in bounds
        for number in range(int(first), int(last or first) + 1)
    ]
