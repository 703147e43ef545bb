"""The OpenAPI document as rows for the page `/docs`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class ApiField:
    """A parameter of an operation, or a field of a body."""

    name: str
    place: str  # path, query, header or body
    kind: str
    is_required: bool
    text: str


@dataclass(frozen=True)
class ApiOperation:
    """One operation of the API."""

    method: str
    path: str
    text: str
    fields: list[ApiField]
    answer: list[ApiField]
    statuses: str


def list_operations(document: dict[str, Any]) -> dict[str, list[ApiOperation]]:
    """Return the operations by tag, in the order of the document."""
    groups: dict[str, list[ApiOperation]] = {}
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                operation = item[method]
                for tag in operation.get("tags", ["other"])[:1]:
                    groups.setdefault(tag, []).append(_build_operation(document, method, path, operation))
    return groups


def _build_operation(
    document: dict[str, Any], method: str, path: str, operation: dict[str, Any]
) -> ApiOperation:
    fields = [
        ApiField(
            one["name"],
            one["in"],
            _name_type(one.get("schema", {})),
            one.get("required", False),
            one.get("description", "") or one.get("schema", {}).get("description", ""),
        )
        for one in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    fields += _list_properties(document, body, "body")
    good: dict[str, Any] = next(
        (operation["responses"][code] for code in operation["responses"] if code.startswith("2")), {}
    )
    answer = good.get("content", {}).get("application/json", {}).get("schema")
    return ApiOperation(
        method.upper(),
        path,
        operation.get("description", ""),
        fields,
        _list_properties(document, answer, "answer"),
        ", ".join(operation["responses"]),
    )


def _list_properties(document: dict[str, Any], schema: dict[str, Any] | None, place: str) -> list[ApiField]:
    if not schema:
        return []
    schema = _resolve(document, schema)
    required = schema.get("required", [])
    return [
        ApiField(name, place, _name_type(one), name in required, one.get("description", ""))
        for name, one in schema.get("properties", {}).items()
    ]


def _resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    if not reference:
        return schema
    found: dict[str, Any] = document["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return found


def _name_type(schema: dict[str, Any]) -> str:
    """Return the type of a field in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_name_type(one) for one in schema["anyOf"]))
    kind = str(schema.get("type", "any"))
    return f"list of {_name_type(schema.get('items', {}))}" if kind == "array" else kind
