"""JSON Schema of a job file, shipped as `job.schema.json` for editors.

python -m wattline.jobfile.json_schema > src/wattline/jobfile/job.schema.json
"""

from __future__ import annotations

import json

from wattline.jobfile.schema import JobFile


def build_schema() -> str:
    """Return the schema of `JobFile` as JSON text."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **JobFile.model_json_schema(),
        "title": "Wattline job file",
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(build_schema(), end="")
