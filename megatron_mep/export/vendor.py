"""The source files that an exported model needs of this package, made to stand alone in one folder.

transformers copies, of what a model's file imports, the files beside it that it names by `from .file import ...`: so
all go into one folder under names of their own, their imports of each other become relative, and everything else of
them stays as it is, comments included. Annotations are never evaluated, and imports that they alone use are dropped:
pydantic, and the unions that a run file chooses from, stay behind.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from megatron_mep.config.errors import ConfigError, Mistake

PACKAGE = "megatron_mep"
STANDALONE = f"{PACKAGE}.export.standalone"
OPTIONS = f"{STANDALONE}.options_mep"
STAND_INS = {"pydantic": OPTIONS, f"{PACKAGE}.config.base": OPTIONS}
"""Modules in whose place another one comes along."""
ALLOWED = {"torch", "transformers", *sys.stdlib_module_names}


def vendored(modules: Iterable[str]) -> dict[str, str]:
    """The files, by their names, that hold these modules and all that they need of this package and beside them.

    A `ConfigError` where one needs a package that need not be there where a model is loaded.
    """
    files: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if file_of(module) not in files:
            source, needed = _rewritten(module)
            files[file_of(module)] = source
            waiting += needed
    return dict(sorted(files.items()))


def file_of(module: str) -> str:
    """The name of the file that holds a module."""
    return f"{stem_of(module)}.py"


def stem_of(module: str) -> str:
    """The same without its ending: what `from .` is followed by."""
    module = STAND_INS.get(module, module)
    if module.startswith(f"{STANDALONE}."):
        return module.removeprefix(f"{STANDALONE}.")
    return "mep_" + module.removeprefix(f"{PACKAGE}.").replace(".", "_")


def with_all_named(source: str, files: Iterable[str]) -> str:
    """A model's source that names these files too: transformers 4 copies none that it does not name."""
    lines = (f"from .{Path(file).stem} import __name__ as _  # noqa: F401" for file in files)
    return "\n".join(
        [source.rstrip("\n"), "", "# transformers 4 copies the files alone that are named here", *lines, ""]
    )


def _rewritten(module: str) -> tuple[str, list[str]]:
    """A module's source with other imports, and which modules it needs."""
    spec = find_spec(module)
    assert spec is not None, f"{module} is not there"
    source = Path(spec.origin or "").read_text(encoding="utf-8")
    tree = ast.parse(source)
    # transformers evaluates the annotations of classes that are its own
    used = set(_names_at_run_time(tree, annotations=module.startswith(STANDALONE)))
    lines: list[str | None] = list(source.splitlines())
    needed: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
            text, modules = _import(module, node, names)
            needed += modules
            assert node.end_lineno is not None, "ast tells where a statement ends"
            lines[node.lineno - 1 : node.end_lineno] = [text, *[None] * (node.end_lineno - node.lineno)]
    after_docstring = tree.body[0].end_lineno if ast.get_docstring(tree) is not None else 0
    lines[after_docstring:after_docstring] = ["", "from __future__ import annotations"]
    return "\n".join(line for line in lines if line is not None) + "\n", needed


def _import(module: str, node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> tuple[str | None, list[str]]:
    """An import statement of the names that are used, `None` for no names, and the modules that come along with it."""
    if not names:
        return None, []
    if isinstance(node, ast.Import):
        for alias in names:
            _refuse_foreign(module, alias.name)
        return f"import {_listed(names)}", []
    origin = node.module or ""
    if node.level:
        raise ConfigError(_foreign(module, "." * node.level + origin))
    if not (origin in STAND_INS or origin.partition(".")[0] == PACKAGE or _beside(module, origin)):
        _refuse_foreign(module, origin)
        return f"from {origin} import {_listed(names)}", []
    lines, modules = [], []
    whole = [alias for alias in names if origin not in STAND_INS and _is_module(f"{origin}.{alias.name}")]
    for alias in whole:
        inner = f"{origin}.{alias.name}"
        # the first is what transformers looks for, the second is what the module says
        lines += [
            f"from .{stem_of(inner)} import __name__ as _",
            f"from . import {stem_of(inner)} as {alias.asname or alias.name}",
        ]
        modules.append(inner)
    others = [alias for alias in names if alias not in whole]
    if others:
        lines.append(f"from .{stem_of(origin)} import {_listed(others)}")
        modules.append(STAND_INS.get(origin, origin))
    return "\n".join(lines), modules


def _is_module(name: str) -> bool:
    """Whether a dotted name is that of a module."""
    parent = find_spec(name.rpartition(".")[0])
    return parent is not None and parent.submodule_search_locations is not None and find_spec(name) is not None


def _beside(module: str, origin: str) -> bool:
    """Whether a user's module imports another one of the same user's package."""
    first = module.partition(".")[0]
    return first != PACKAGE and "." in module and origin.partition(".")[0] == first


def _refuse_foreign(module: str, origin: str) -> None:
    if origin.partition(".")[0] not in ALLOWED:
        raise ConfigError(_foreign(module, origin))


def _foreign(module: str, origin: str) -> Mistake:
    rule = f"cannot be exported: it imports {origin}, and an exported model stands on torch and transformers alone"
    return Mistake(module, None, rule, "let it import nothing but torch, Python's library and megatron_mep's encodings")


def _listed(names: list[ast.alias]) -> str:
    return ", ".join(alias.name if alias.asname is None else f"{alias.name} as {alias.asname}" for alias in names)


def _names_at_run_time(node: ast.AST, annotations: bool) -> Iterator[str]:
    """The names that are looked up when the code runs, those in annotations where these are evaluated."""
    if isinstance(node, ast.Name):
        yield node.id
    for field, value in ast.iter_fields(node):
        if annotations or field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _names_at_run_time(child, annotations)
