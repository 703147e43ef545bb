from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from support.controllers import run_controller, submit_text, wait_until, wait_until_running
from wattline.errors import ConfigError
from wattline.service.metric_settings import MetricSettings, parse_metric_settings
from wattline.service.metrics.dcgm_job_files import DcgmJobFiles, write_job_files
from wattline.service.settings import ServiceSettings
from wattline.service.storage.store import Store


def read_files(folder: Path) -> dict[str, str]:
    """Return the text of each file; the service may remove some meanwhile."""
    texts = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            texts[path.name] = path.read_text()
    return texts


def test_a_running_job_has_a_file_for_each_of_its_gpus(tmp_path: Path) -> None:
    folder = tmp_path / "map"
    settings = ServiceSettings(metrics=MetricSettings(dcgm_job_mapping=str(folder)))
    with run_controller(tmp_path / "service", settings=settings) as controller:
        (job,) = submit_text(controller, "run: sleep 60\nresources: {gpus: 2}")
        gpus = wait_until_running(controller, job.id).allocation["gpus"]
        wait_until(lambda: read_files(folder) == {str(gpu): f"{job.id}\n" for gpu in gpus})
        controller.cancel(job.id)
        wait_until(lambda: read_files(folder) == {})


def test_jobs_that_share_a_gpu_stand_on_lines_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("1\n")
    (tmp_path / "README").write_text("kept")
    write_job_files(tmp_path, {0: ["3", "4"]})
    assert read_files(tmp_path) == {"0": "3\n4\n", "README": "kept"}


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Store.open(tmp_path / "service") as store, pytest.raises(ConfigError, match="dcgm_job_mapping"):
        DcgmJobFiles(store, tmp_path / "file" / "map")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"token": True}, "metrics.token is unknown, expected one of require_token, dcgm_job_mapping"),
        ({"require_token": "yes"}, "metrics.require_token is 'yes', expected true or false"),
        ({"dcgm_job_mapping": "map"}, "metrics.dcgm_job_mapping is 'map', expected an absolute path"),
        ("no", "metrics is 'no', expected a table"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_metric_settings(table, "settings.toml")
    assert message in caught.value.message
