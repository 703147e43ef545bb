"""The JSON Schema of job files, as editors use it."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from wattline.jobfile import read_job
from wattline.jobfile.json_schema import build_schema
from wattline.jobfile.yaml_reader import read_yaml

ROOT = Path(__file__).parents[2]
SHIPPED = files("wattline.jobfile").joinpath("job.schema.json").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_the_shipped_schema_is_that_of_the_code() -> None:
    assert build_schema() == SHIPPED, "python -m wattline.jobfile.json_schema writes it anew"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid_for_the_schema_and_the_reader(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    document = read_yaml(text, path.name).plain(lambda at: at[:1] == ("deadline",))  # YAML 1.2, as editors
    jsonschema_rs.validator_for(json.loads(SHIPPED)).validate(document)
    assert read_job(text, path.name).words


def test_the_job_file_of_the_documentation_is_valid() -> None:
    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    found = re.search(r"## The job file\n\n```yaml\n(.*?)```", text, re.S)
    assert found
    jsonschema_rs.validator_for(json.loads(SHIPPED)).validate(yaml.safe_load(found[1]))


@pytest.mark.parametrize("text", ["{}", "{run: a, gpus: 1}", "{run: a, resources: {gpus: 0}}", "{run: ''}"])
def test_wrong_files_are_invalid(text: str) -> None:
    assert not jsonschema_rs.is_valid(json.loads(SHIPPED), yaml.safe_load(text))
