"""Reference pages generated from the code: commands, job file, API, Python, policies, metrics."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from markdown_text import build_table, code, sentence
from python_pages import build_python_page

from wattline.cli.command_list import OptionEntry, list_commands
from wattline.cli.simulation.policies import describe_all
from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.metrics.collector import ServiceCollector
from wattline.service.notifications.settings import WebhookSettings
from wattline.service.settings import ServiceSettings
from wattline.service.web.api_document import ApiField, list_operations


def build_pages() -> dict[str, str]:
    """Return the text of all reference pages, by file name."""
    with tempfile.TemporaryDirectory(prefix="wattline-docs-") as folder:
        settings = ServiceSettings(webhooks=WebhookSettings(allow=("http://127.0.0.1:1",)))
        controller = Controller(Path(folder), gpus="simulated:1xa100", settings=settings)
        controller.start()
        try:
            controller.submit(read_job("run: 'true'", "job.yaml"), "", folder)
            while controller.view().step is None:  # its first decision, after which all metrics exist
                time.sleep(0.01)
            app = create_app(controller)
            pages = {"api.md": build_api_page(app), "metrics.md": build_metrics_page(controller)}
        finally:
            controller.stop()
    return pages | {
        "commands.md": build_commands_page(),
        "job-file.md": build_job_file_page(),
        "policies.md": build_policies_page(),
        "python.md": build_python_page(),
    }


def build_commands_page() -> str:
    """Return all commands with their options."""
    parts = ["# Command line\n", "Generated from the parsers of the commands; `--help` prints the same.\n"]
    for entry in list_commands():
        level = "##" if len(entry.words) == 1 else "###"
        parts += [f"{level} wattline {' '.join(entry.words)}\n", f"{sentence(entry.summary)}\n"]
        parts.append(f"```text\n{entry.usage}\n```\n")
        options = [one for one in (*entry.arguments, *entry.options) if "--help" not in one.flags]
        if options:
            parts.append(build_table(("option", "meaning"), [_describe_option(one) for one in options]))
    return "\n".join(parts)


def _describe_option(option: OptionEntry) -> tuple[str, str]:
    name = ", ".join(option.flags) or option.value
    return code(f"{name} {option.value}" if option.flags and option.value else name), sentence(option.help)


def build_job_file_page() -> str:
    """Return the keys of the job file, as its JSON Schema has them."""
    schema = json.loads(files("wattline.jobfile").joinpath("job.schema.json").read_text(encoding="utf-8"))
    parts = [
        "# Job file\n",
        "Generated from the JSON Schema, which `wattline schema job` prints.",
        "[The service](../service.md#the-job-file) explains each key.\n",
        build_table(("key", "value", "default"), _list_keys(schema["properties"], schema["required"])),
    ]
    for name, section in schema["properties"].items():
        for definition in _find_definitions(schema, section):
            parts += [f"## {name}\n", f"{definition['description']}\n"]
            rows = _list_keys(definition["properties"], definition.get("required", []), f"{name}.")
            parts.append(build_table(("key", "value", "default"), rows))
    return "\n".join(parts)


def _find_definitions(schema: dict[str, Any], section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in (section, *section.get("anyOf", ())):
        if "$ref" in one:
            yield schema["$defs"][one["$ref"].rpartition("/")[2]]


def _list_keys(
    properties: dict[str, Any], required: Sequence[str], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    for name, one in properties.items():
        default = one.get("default")
        text = "required" if name in required else code(json.dumps(default)) if default else ""
        yield code(prefix + name), sentence(one.get("description", "")), "" if "$ref" in one else text


def build_api_page(app: FastAPI) -> str:
    """Return all operations of the API, as its OpenAPI document has them."""
    parts = ["# API\n", "Generated from the OpenAPI document, which the service has at"]
    parts.append("`/api/v1/openapi.json`. [The service](../service.md#the-api) explains it.\n")
    for tag, operations in list_operations(app.openapi()).items():
        parts.append(f"## {tag}\n")
        for one in operations:
            parts += [f"### {one.method} {one.path}\n", f"{one.text}\n", f"Answers: {one.statuses}.\n"]
            if one.fields:
                parts.append(
                    build_table(("field", "in", "type", "meaning"), map(_describe_field, one.fields))
                )
            if one.answer:
                names = ", ".join(code(field.name) for field in one.answer)
                parts.append(f"The answer has {names}.\n")
    return "\n".join(parts)


def _describe_field(field: ApiField) -> tuple[str, str, str, str]:
    required = " (required)" if field.is_required else ""
    return (
        code(field.name),
        field.place + required,
        sentence(field.kind).removesuffix("."),
        sentence(field.text),
    )


def build_metrics_page(controller: Controller) -> str:
    """Return the metrics that a service of this version exposes."""
    rows = []
    for family in ServiceCollector(controller).collect():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ", ".join(map(code, getattr(family, "_labelnames", ())))
        rows.append((code(family.name + suffix), family.type, labels, sentence(family.documentation)))
    parts = ["# Metrics\n", "Generated from what a service exposes at `/metrics`;"]
    parts.append("[monitoring](../monitoring.md#metrics) explains them.\n")
    return "\n".join((*parts, build_table(("metric", "type", "labels", "meaning"), sorted(rows))))


def build_policies_page() -> str:
    """Return the stages of policies and the placers, with their knobs."""
    parts = ["# Policies and placers\n", "Generated from the code; `wattline policies` prints the same."]
    parts.append("Stages are joined by `+` in `--policy`, and knobs follow `:` as in `las:quantum=10m`.\n")
    for kind, title in (("stage", "Stages"), ("placer", "Placers")):
        rows = [
            (
                code(row["name"]),
                sentence(row["does"]),
                ", ".join(code(f"{key}={value}") for key, value in row["knobs"].items()),
                "yes" if row["holds_budget"] else "",
            )
            for row in describe_all()
            if row["kind"] == kind
        ]
        parts += [f"## {title}\n", build_table(("name", "what it does", "knobs", "holds `--budget`"), rows)]
    return "\n".join(parts)
