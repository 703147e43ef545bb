"""Jobs that can never run: the reason and the exit code."""

from pathlib import Path

import pytest

from support.command_line import run_command


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One job that can run, one that is too big, and one of a kind that is not there."""
    path: Path = tmp_path_factory.mktemp("mixed") / "jobs.csv"
    path.write_text("id,submit_s,gpus,duration_s,gpu_kind\na,0,1,60,\nb,0,99,60,\nc,0,1,60,h100\n")
    return str(path)


@pytest.mark.parametrize("policy", ["fifo", "las", "gandiva"])
def test_the_reason_is_stated_and_the_exit_code_is_4(
    capsys: pytest.CaptureFixture[str], mixed: str, policy: str
) -> None:
    words = ["--trace", mixed, "--cluster", "1xv100:8"]
    for command in (["simulate", *words, "--policy", policy], ["compare", *words, "--policy", policy]):
        code, _, err = run_command(capsys, *command)
        assert code == 4
        assert "1 of 3 job can never run: It requests more GPUs than the cluster has" in err
        assert "1 of 3 job can never run: The cluster has no GPU of the kinds that it accepts." in err
