"""Training scripts are loaded without training."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from wattline.errors import ConfigError, NotFound  # noqa: E402
from wattline.fusion.script_loader import load_script  # noqa: E402

IMPORTS = "from pathlib import Path\nimport torch\nfrom torch import nn\n"
DEFINITIONS = """
def build(config):
    return nn.Linear(config["width"], 2)

def train(array, configs):
    raise AssertionError("trained")
"""
MARK = "Path(__file__).with_suffix('.ran').touch()\n"
PLAIN_LOOP = """
model = nn.Linear(2, 2)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(1, 2)).sum().backward()
    optimiser.step()
"""


def write(folder: Path, *parts: str) -> Path:
    path = folder / "script.py"
    path.write_text(IMPORTS + "".join(parts))
    return path


def has_run(script: Path) -> bool:
    return script.with_suffix(".ran").exists()


@pytest.mark.parametrize(
    ("importing", "call"),
    [
        ("from wattline import fusion\n", "fusion.main(build, train)\n"),
        ("from wattline import fusion as f\n", "f.main(build, train)\n"),
        ("import wattline.fusion\n", "wattline.fusion.main(build, train)\n"),
        ("import wattline\n", "wattline.fusion.main(build, train)\n"),
        ("import wattline.fusion as f\n", "f.main(build, train)\n"),
        ("from wattline.fusion import main as go\n", "go(build, train)\n"),
        ("from wattline import fusion\n", "if __name__ == '__main__':\n    fusion.main(build, train)\n"),
        ("from wattline import fusion\n", "def start():\n    fusion.main(build, train)\n\nstart()\n"),
        ("", ""),
    ],
)
def test_build_and_train_are_found_without_training(tmp_path: Path, importing: str, call: str) -> None:
    build, train = load_script(write(tmp_path, importing, DEFINITIONS, call))
    assert build({"width": 3}).in_features == 3
    with pytest.raises(AssertionError, match="trained"):
        train(None, [])  # type: ignore[arg-type]


def test_nothing_after_the_call_of_main_runs(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "from wattline import fusion\n",
        DEFINITIONS,
        "fusion.main(build, train)\n",
        MARK,
        PLAIN_LOOP,
    )
    load_script(script)
    assert not has_run(script)


def test_the_main_part_of_a_script_that_only_defines_build_and_train_does_not_run(tmp_path: Path) -> None:
    script = write(tmp_path, DEFINITIONS, "if __name__ == '__main__':\n    ", MARK, "    train(None, [])\n")
    load_script(script)
    assert not has_run(script)


@pytest.mark.parametrize("body", [PLAIN_LOOP, "x = 1\n", "def main(a, b): ...\nmain(1, 2)\n"])
def test_an_ordinary_script_is_refused_before_it_runs(tmp_path: Path, body: str) -> None:
    script = write(tmp_path, MARK, body)
    with pytest.raises(ConfigError, match=r"nothing calls wattline\.fusion\.main") as refusal:
        load_script(script)
    assert not has_run(script)
    assert "define build(config)" in refusal.value.hint


@pytest.mark.parametrize(
    "body",
    [
        PLAIN_LOOP,
        "train(None, [])\n",
        "def run():\n    train(None, [])\n\ndef outer():\n    run()\n\nif True:\n    outer()\n",
        "try:\n    loss = nn.Linear(2, 2)(torch.zeros(2)).sum()\n    loss.backward()\nfinally:\n    pass\n",
    ],
)
@pytest.mark.parametrize("call", ["", "from wattline import fusion\nfusion.main(build, train)\n"])
def test_a_script_that_also_trains_at_the_top_is_refused_before_it_runs(
    tmp_path: Path, body: str, call: str
) -> None:
    script = write(tmp_path, MARK, DEFINITIONS, body, call)
    with pytest.raises(ConfigError, match=r"script.py:\d+: trains outside train"):
        load_script(script)
    assert not has_run(script)


def test_training_in_an_imported_module_is_stopped_before_its_first_update(tmp_path: Path) -> None:
    (tmp_path / "trains_on_import.py").write_text(
        IMPORTS + PLAIN_LOOP.replace("optimiser.step()", "optimiser.step()\n    " + MARK)
    )
    script = write(tmp_path, "import trains_on_import\n", DEFINITIONS)
    with pytest.raises(ConfigError, match="trains while it is loaded"):
        load_script(script)
    assert not has_run(tmp_path / "trains_on_import.py")
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    torch.optim.SGD([parameter], lr=1.0).step()  # the guard is gone
    assert parameter.item() == -1


def test_loops_that_prepare_data_are_allowed(tmp_path: Path) -> None:
    script = write(tmp_path, "rows = []\nfor i in range(3):\n    rows.append(i)\n", DEFINITIONS)
    assert callable(load_script(script)[0])


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such script"):
        load_script(tmp_path / "nowhere.py")
    with pytest.raises(ConfigError, match="not a Python script"):
        load_script(write(tmp_path, "def build(:\n"))
    with pytest.raises(ConfigError, match="exited"):
        load_script(write(tmp_path, DEFINITIONS, "import sys\nsys.exit('no data')\n"))
