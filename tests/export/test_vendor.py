"""The code of an exported model stands alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_mep.catalogue import stated
from megatron_mep.config.errors import ConfigError
from megatron_mep.export.files import sources_of
from megatron_mep.export.standalone.options_mep import Config, Field
from tests.export.cases import MODELS

IMPORTED = """
import sys
from importlib import import_module
from pathlib import Path

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("megatron_mep", "megatron", "deepspeed", "pydantic", "transformers"):
            raise ImportError(name)

sys.meta_path.insert(0, Refused())
for folder in Path(sys.argv[1]).iterdir():
    sys.path.insert(0, str(folder.parent))
    for file in sorted(folder.glob("*.py")):
        if file.stem not in ("modeling_mep", "configuration_mep"):
            import_module(f"{folder.name}.{file.stem}")
"""


def test_all_code_is_imported_where_nothing_but_torch_is(tmp_path: Path) -> None:
    for index, model in enumerate(MODELS):
        folder = tmp_path / f"model_{index}"
        folder.mkdir()
        for name, source in sources_of(model.encoding, model.tricks).items():
            (folder / name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-P", "-c", IMPORTED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_model_names_each_file_as_transformers_looks_for_it() -> None:
    files = sources_of(MODELS[0].encoding, ())
    named = set(re.findall(r"^\s*from\s+\.(\S+)\s+import", files["modeling_mep.py"], flags=re.MULTILINE))
    assert named == {Path(file).stem for file in files} - {"modeling_mep"}


def test_comments_and_formulas_stay_as_they_are() -> None:
    source = Path("megatron_mep/encodings/alibi.py").read_text(encoding="utf-8")
    exported = sources_of(stated("alibi", []), ())["mep_encodings_alibi.py"]
    formula = source[source.index("    def of_distance") :]
    assert formula in exported


def test_an_encoding_of_ones_own_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_alone.py").write_text(
        "import math\nfrom megatron_mep.encodings.alibi import Alibi\n\nclass Mine(Alibi):\n    name: str = 'mine'\n"
    )
    files = sources_of(stated("mine_alone:Mine", []), ())
    assert "from .mep_encodings_alibi import Alibi" in files["mep_mine_alone.py"]
    assert '"mep_mine_alone.Mine": mep_mine_alone_Mine' in files["classes_mep.py"]


@pytest.mark.parametrize("imported", ["import numpy as np", "from numpy import pi as np", "from . import np"])
def test_one_that_needs_more_is_refused(imported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / f"needs_{abs(hash(imported))}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "np.py").touch()
    (package / "more.py").write_text(
        f"{imported}\nfrom megatron_mep.encodings.nope import Nope\nNP = np\n\nclass More(Nope):\n    name: str = ''\n"
    )
    with pytest.raises(ConfigError, match="torch and transformers alone"):
        sources_of(stated(f"{package.name}.more:More", []), ())


class Options(Config):
    first: int = Field(1, gt=0)
    second: str = "two"
    third: "tuple[int, ...] | None" = None


def test_options_stand_in_for_those_of_pydantic() -> None:
    options = Options(third=(3,))
    assert dict(options) == {"first": 1, "second": "two", "third": (3,)}
    assert options.model_copy(update={"first": 5}) == Options(first=5, third=(3,))
    assert options.model_dump(include={"first"}) == {"first": 1}
    assert Options.model_construct(options.model_fields_set, **dict(options)) == options
    assert len({options, Options(third=(3,)), Options()}) == 2
    with pytest.raises(AttributeError, match="fixed"):
        options.first = 2
