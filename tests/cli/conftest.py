"""A trace that is simulated in an instant."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Twelve jobs of an hour, every third of team b, which want more GPUs than there are."""
    names = ("resnet50", "vgg16", "bert", "gpt2")
    rows = [f"job-{n},{600 * n},{2 + 2 * (n % 2)},3600,{names[n % 4]},{'aab'[n % 3]}" for n in range(12)]
    trace: Path = tmp_path_factory.mktemp("few") / "jobs.csv"
    trace.write_text("\n".join(("id,submit_s,gpus,duration_s,model,team", *rows, "")))
    return ["--trace", str(trace), "--cluster", "2xa100:8", "--models", "library"]
