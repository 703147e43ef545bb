from pathlib import Path

import pytest

from wattline.jobfile.script_check import LIMIT_BYTES, find_fusible_script

_SCRIPT = "from wattline.fusion import main\nmain(build, train)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (_SCRIPT, True),
        ("from wattline.fusion import main as go\ngo(build, train)", True),
        ("import wattline.fusion\nwattline.fusion.main(build, train)", True),
        ("import wattline.fusion as wf\nif __name__ == '__main__':\n    wf.main(build, train)", True),
        ("from wattline import fusion\nfusion.main(build, train)", True),
        ("from wattline import fusion as f\ndef it():\n    f.main(build, train)", True),
        ("import wattline\nimport wattline.fusion\nwattline.fusion.main(b, t)", True),
        ("from wattline.fusion import main", False),
        ("def main(): ...\nmain()", False),
        ("from other import main\nmain(build, train)", False),
        ("from .wattline.fusion import main\nmain(build, train)", False),
        ("import wattline.fusion as wf\nwf.fuse(models)", False),
        ("# from wattline.fusion import main\n'main()'", False),
        ("raise SystemExit('run')\n(", False),
        ("\0", False),
        ("", False),
    ],
)
def test_a_script_that_calls_main_is_fusible(tmp_path: Path, text: str, found: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert find_fusible_script(["python", "train.py", "lr=1e-3"], tmp_path) == (
        script.resolve() if found else None
    )


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py", True),
        ("python3 -u train.py lr=1e-3 seed=1", True),
        ("/usr/bin/python3.11 ./train.py lr=", True),
        ("python2 train.py", False),
        ("pythonic train.py", False),
        ("python -m train.py", False),
        ("python -u", False),
        ("python", False),
        ("python train.py --lr=1e-3", False),
        ("python train.py lr", False),
        ("python train.py lr=1,2", False),
        ("python train.py lr=1 lr=2", False),
        ("python other.py lr=1", False),
        ("bash train.py", False),
        ("torchrun train.py", False),
    ],
)
def test_a_command_is_fusible_if_its_arguments_are_names_and_values(
    tmp_path: Path, command: str, found: bool
) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    assert (find_fusible_script(command.split(), tmp_path) is not None) == found


def test_scripts_are_never_run_and_large_or_invalid_ones_are_not_fusible(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT + f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert find_fusible_script(["python", str(script)], Path("/")) == script.resolve()
    assert not (tmp_path / "ran").exists()
    script.write_text(_SCRIPT + "#" * LIMIT_BYTES)
    assert find_fusible_script(["python", "train.py"], tmp_path) is None
    script.write_text(_SCRIPT + "(" * 100_000)
    assert find_fusible_script(["python", "train.py"], tmp_path) is None
    assert find_fusible_script(["python", "a\0b.py"], tmp_path) is None
    assert find_fusible_script([], tmp_path) is None
