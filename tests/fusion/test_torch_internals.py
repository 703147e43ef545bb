"""Private parts of PyTorch are in one file, which checks the version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import wattline.fusion  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import torch_internals  # noqa: E402
from wattline.fusion.torch_internals import TESTED, UNTESTED_TORCH, check_torch_version  # noqa: E402

ROOT = Path(wattline.fusion.__file__).parent
PRIVATE = re.compile(
    r"torch(\.\w+)*\._[a-z]|from torch(\.\w+)* import _|\bnn\.modules(\.\w+)*\._|torch\.fx\.experimental"
)


def test_private_parts_of_torch_are_imported_in_one_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.name != "torch_internals.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "import these from torch_internals:\n" + "\n".join(found)


def test_the_search_finds_private_parts() -> None:
    for line in (
        "from torch._C import _functorch",
        "from torch.utils._pytree import tree_map",
        "from torch.utils import _pytree",
        "from torch import Tensor, nn  # torch._inductor",
        "isinstance(module, nn.modules.dropout._DropoutNd)",
        "from torch.fx.experimental.proxy_tensor import make_fx",
    ):
        assert PRIVATE.search(line)
    assert not PRIVATE.search("from torch.optim import Adam; torch.func.vmap(f)")


@pytest.mark.parametrize("name", torch_internals.__all__)
def test_every_private_part_exists(name: str) -> None:
    assert getattr(torch_internals, name) is not None


@pytest.mark.parametrize("version", [f"{TESTED[-1]}.0", f"{TESTED[-1]}.2+cu128", str(torch.__version__)])
def test_a_tested_version_is_accepted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.delenv(UNTESTED_TORCH, raising=False)
    monkeypatch.setattr(torch, "__version__", version)
    check_torch_version()


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0+cpu", "2.130.0", "3.13.0", "2.14.0a0+git1234"])
def test_an_untested_version_is_refused_with_the_command_to_type(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.delenv(UNTESTED_TORCH, raising=False)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ConfigError, match=re.escape(f"PyTorch {version} is installed")) as refusal:
        check_torch_version()
    assert f"pip install torch=={TESTED[-1]}.0" in refusal.value.hint
    assert f"{UNTESTED_TORCH}=1" in refusal.value.hint


def test_an_untested_version_may_be_used_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNTESTED_TORCH, "1")
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    with pytest.warns(UserWarning, match=r"PyTorch 9\.9\.9 is installed"):
        check_torch_version()
