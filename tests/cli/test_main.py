"""The table of commands: their help, and what it imports."""

import subprocess
import sys

import pytest

from wattline.cli.main import COMMANDS, main

ACTIONS = {
    "budget": ("show", "set"),
    "fuse": ("check",),
    "library": ("list", "show"),
    "token": ("add", "list", "revoke"),
    "tune": ("show", "reset", "replay"),
}
HELP = [[name, *action] for name in COMMANDS for action in [(), *((a,) for a in ACTIONS.get(name, ()))]]


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_every_command_has_a_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: wattline {' '.join(words)}")
    assert err == ""


def test_no_help_imports_numpy() -> None:
    script = (
        "import sys\n"
        "from wattline.cli.main import main\n"
        f"for words in {HELP!r}:\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'rich', 'plotly', 'scipy', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_help_of_wattline_imports_no_command() -> None:
    script = (
        "import sys\n"
        "from wattline.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "parts = ('wattline.cli.simulation', 'wattline.cli.service', 'wattline.cli.models')\n"
        "print([name for name in sys.modules if name.startswith(parts)], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_an_alias_is_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ps", "--help"])
    assert "--state" in capsys.readouterr().out
