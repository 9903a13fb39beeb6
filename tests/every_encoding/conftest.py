"""The cases that the tests of every encoding run over: all that are built in, or the user's own."""

from importlib import import_module
from pkgutil import iter_modules

import pytest

from megatron_mep.catalogue import stated
from megatron_mep.config.errors import ConfigError
from tests.every_encoding import cases
from tests.every_encoding.case import Case


def built_in() -> list[Case]:
    """Those of all modules of `cases`."""
    modules = (import_module(f"{cases.__name__}.{module.name}") for module in iter_modules(cases.__path__))
    return [case for module in modules for case in module.CASES]


def _own(option: str) -> Case:
    """`module:Class`, and its options `key=value` after spaces."""
    name, *options = option.split()
    try:
        return Case(option, stated(name, options))
    except ConfigError as error:
        raise pytest.fail.Exception(f"--encoding {option}: {error}", pytrace=False) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    own = metafunc.config.getoption("--encoding")
    chosen = [_own(own)] if own else built_in()
    needs = metafunc.definition.get_closest_marker("kind")
    if needs is not None:
        chosen = [case for case in chosen if isinstance(case.encoding, needs.args)]
    wants = metafunc.definition.get_closest_marker("cases_that")
    if wants is not None:
        chosen = [case for case in chosen if wants.args[0](case)]
    metafunc.parametrize("case", [pytest.param(case, id=case.name) for case in chosen])
