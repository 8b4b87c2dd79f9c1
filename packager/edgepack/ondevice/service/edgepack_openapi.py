"""What the service answers, as OpenAPI 3.1 describes it.

Written by hand, because bodies are tensors and files, and because errors are the same everywhere.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

if __package__:
    from . import edgepack_protocol as protocol
else:  # a bundle's
    import edgepack_protocol as protocol  # type: ignore[import-not-found,no-redef]

Document = Dict[str, Any]

_TEXT: Document = {"type": "string"}
_TRUE: Document = {"const": True}
_BINARY: Document = {"type": "string", "format": "binary"}
_SIZES: Document = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_DATATYPE: Document = {"enum": list(protocol.DTYPES)}
_FREE: Document = {"type": "object"}


def _make_object(needed: Mapping[str, Any], more: Optional[Mapping[str, Any]] = None) -> Document:
    return {
        "type": "object",
        "properties": {**needed, **(more or {})},
        "required": list(needed),
    }


def _refer(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Document, **more: int) -> Document:
    return {"type": "array", "items": items, **more}


_METADATA = _make_object(
    {"name": _TEXT, "datatype": _DATATYPE, "shape": _list({"type": "integer"})}
)
_SCHEMAS: Document = {
    "Error": _make_object({"error": {"type": "string", "minLength": 1}}),
    "Live": _make_object({"live": _TRUE}),
    "Ready": _make_object({"ready": _TRUE}),
    "ModelReady": _make_object({"name": _TEXT, "ready": _TRUE}),
    "Server": _make_object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "Model": _make_object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(_METADATA),
            "outputs": _list(_METADATA),
            "parameters": _make_object(
                {
                    "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
                    "variant": _TEXT,
                    "passed_over": _list(_make_object({"variant": _TEXT, "reason": _TEXT})),
                    "refused_release": _TEXT,
                }
            ),
        }
    ),
    "InferRequest": _make_object(
        {
            "inputs": _list(
                _make_object(
                    {"name": _TEXT, "datatype": _DATATYPE, "shape": _SIZES},
                    {
                        "data": {"type": "array", "description": "values, flat or in rows"},
                        "parameters": _make_object({}, {"binary_data_size": {"type": "integer"}}),
                    },
                ),
                minItems=1,
            )
        },
        {
            "id": _TEXT,
            "parameters": _make_object(
                {},
                {
                    "binary_data_output": {"type": "boolean"},
                    "timeout": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "microseconds that it waits at most; 0: the service's",
                    },
                },
            ),
            "outputs": _list(
                _make_object(
                    {"name": _TEXT},
                    {"parameters": _make_object({}, {"binary_data": {"type": "boolean"}})},
                )
            ),
        },
    ),
    "InferResponse": _make_object(
        {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "outputs": _list(
                _make_object(
                    {"name": _TEXT, "datatype": _DATATYPE, "shape": _SIZES},
                    {
                        "data": {"type": "array"},
                        "parameters": _make_object({"binary_data_size": {"type": "integer"}}),
                    },
                )
            ),
        },
        {"id": _TEXT},
    ),
    "Answers": _make_object(
        {"model_name": _TEXT, "model_version": _TEXT, "variant": _TEXT, "answers": _FREE}
    ),
}
_ERRORS = {
    400: "The request is wrong.",
    401: "A token is needed.",
    404: "There is no such model or version.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is of another type or encoded.",
    429: "The queue is full.",
    500: "The model failed.",
    503: "It is not ready, stops, has no memory, or the request waited too long.",
}
_POSTED = (400, 408, 413, 415, 429, 500)
_LENGTH_HEADER: Document = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "bytes of JSON in front of the values",
    "schema": {"type": "integer", "minimum": 0},
}
_OPTIONS: Sequence[Document] = [
    {"name": name, "in": "query", "schema": schema}
    for name, schema in {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "iou": {"type": "number", "minimum": 0, "maximum": 1},
        "most": {"type": "integer", "minimum": 1},
        "top": {"type": "integer", "minimum": 1},
    }.items()
]
_EXTENSION = {"application/octet-stream": {"schema": _BINARY}}
"""JSON and values behind it, with the header :data:`protocol.HEADER_LENGTH`."""


class Described:
    """What a service's document depends on.

    Args:
        models: The models' names and versions, the first for examples.
        media: The content types of files that answers are given to.
        closed: Whether a token is needed.
        example: A request for inference that the first model answers; None without one.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        media: Sequence[str],
        *,
        closed: bool,
        example: Optional[Document] = None,
    ) -> None:
        self._models = models
        self._media = media
        self._closed = closed
        self._example = example

    def make(self) -> Document:
        """Return the document."""
        paths: Document = {
            "/v2/health/live": {"get": self._open("Whether the process runs.", "Live")},
            "/v2/health/ready": {
                "get": self._open("Whether all models are proven here.", "Ready", 503)
            },
            "/v2": {"get": self._get("The service.", "Server")},
            "/metrics": {"get": self._write("Metrics for Prometheus.", "text/plain", _TEXT)},
            "/openapi.json": {"get": self._write("This document.", "application/json", _FREE)},
        }
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            given = self._list_parameters(path)
            infer = self._post("Outputs for inputs.", "InferResponse", self._list_bodies())
            infer["parameters"] = [_LENGTH_HEADER]
            infer["responses"]["200"]["content"].update(_EXTENSION)
            paths[path] = {"parameters": given, "get": self._get("A model.", "Model", 404, 503)}
            paths[f"{path}/ready"] = {
                "parameters": given,
                "get": self._get("Whether a model is proven here.", "ModelReady", 404, 503),
            }
            paths[f"{path}/infer"] = {"parameters": given, "post": infer}
        files = {kind: {"schema": _BINARY} for kind in self._media}
        for path in ("/predict", "/predict/{name}"):
            predict = self._post("Answers to a file.", "Answers", files)
            predict["parameters"] = _OPTIONS
            paths[path] = {"parameters": self._list_parameters(path), "post": predict}
        document: Document = {
            "openapi": "3.1.0",
            "info": {"title": "edgepack", "version": "2"},
            "paths": paths,
            "components": {"schemas": _SCHEMAS},
        }
        if self._closed:
            schemes = {"token": {"type": "http", "scheme": "bearer"}}
            document["components"]["securitySchemes"] = schemes
        return document

    def _list_parameters(self, path: str) -> List[Document]:
        names = [name for name in ("name", "version") if f"{{{name}}}" in path]
        examples = dict(zip(("name", "version"), next(iter(self._models.items()), ())))  # noqa: B905
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": _TEXT,
                **({"example": examples[name]} if name in examples else {}),
            }
            for name in names
        ]

    def _list_bodies(self) -> Document:
        json: Document = {"schema": _refer("InferRequest")}
        if self._example is not None:
            json["example"] = self._example
        return {"application/json": json, **_EXTENSION}

    def _open(self, summary: str, schema: str, *errors: int) -> Document:
        content = {"application/json": {"schema": _refer(schema)}}
        responses: Document = {"200": {"description": "Yes.", "content": content}}
        for status in errors:
            error = {"application/json": {"schema": _refer("Error")}}
            responses[str(status)] = {"description": _ERRORS[status], "content": error}
            if status in (429, 503):
                header = {"schema": {"type": "integer"}, "required": True}
                responses[str(status)]["headers"] = {"Retry-After": header}
            if status == 401:
                header = {"schema": _TEXT, "required": True}
                responses["401"]["headers"] = {"WWW-Authenticate": header}
        return {"summary": summary, "responses": responses}

    def _get(self, summary: str, schema: str, *errors: int) -> Document:
        if not self._closed:
            return self._open(summary, schema, *errors)
        return {**self._open(summary, schema, 401, *errors), "security": [{"token": []}]}

    def _write(self, summary: str, kind: str, schema: Document) -> Document:
        found = self._get(summary, "Error")
        found["responses"]["200"]["content"] = {kind: {"schema": schema}}
        return found

    def _post(self, summary: str, schema: str, bodies: Document) -> Document:
        found = self._get(summary, schema, 404, 503, *_POSTED)
        return {**found, "requestBody": {"required": True, "content": bodies}}
