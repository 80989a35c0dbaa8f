"""Descriptions: small frozen dataclasses that are hashable, printable, parseable and JSON in both directions.

A description never holds a floating-point tensor. `str(d)` is the Python expression that builds it, `parse(str(d)) == d`,
and `from_json(d.to_json()) == d`.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from quadform._errors import ArgumentError

_CLASSES: dict[str, type[Description]] = {}
D = TypeVar("D", bound="type[Description]")


class Description:
    """Base of edges, weights, feature maps and biases."""

    def to_dict(self) -> dict[str, Any]:
        """Returns {"type": class name, field: value, ...} of plain JSON values."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {"type": type(self).__name__} | {f.name: _encode(getattr(self, f.name), f.name) for f in fields}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        """The shortest expression that builds it: fields at their default are left out."""
        shown = []
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value != f.default:
                text = _shown(value)
                required = f.default is dataclasses.MISSING
                shown.append(text if required else f"{f.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _shown(value: object) -> str:
    """A field's value in an expression; a function by its name."""
    if isinstance(value, Description):
        return str(value)
    return str(getattr(value, "__name__", repr(value))) if callable(value) else repr(value)


def description(cls: D) -> D:
    """Registers a frozen dataclass under its name, for `parse` and `from_json`."""
    _CLASSES[cls.__name__] = cls
    return cls


def from_json(text: str) -> Any:
    """The description that `to_json` wrote.

    Errors: ArgumentError for text that is not JSON, an unknown type, an unknown or a missing field, or a bad value.
    """
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ArgumentError("text", "JSON", f"{text[:60]!r} ({error})") from None
    return from_dict(data)


def from_dict(data: Any) -> Any:
    """The description that `to_dict` wrote; errors as `from_json`."""
    if not isinstance(data, Mapping) or "type" not in data:
        raise ArgumentError("description", 'an object with a "type"', repr(data)[:80])
    cls = _CLASSES.get(data["type"]) if isinstance(data["type"], str) else None
    if cls is None:
        raise ArgumentError("type", f"one of {', '.join(sorted(_CLASSES))}", repr(data["type"]))
    return _build(cls, {name: _decode(value) for name, value in data.items() if name != "type"})


def parse(text: str) -> Any:
    """The description that a Python expression such as `Causal() & Window(3, 0)` builds; nothing is evaluated.

    Reference:

        assert parse("Causal() | Global(first=1)") == Causal() | Global(first=1)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArgumentError("description", "an expression such as Causal() or Window(3, 0)", repr(text)) from None
    return _evaluate(tree.body, text)


def _evaluate(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CLASSES:
        cls = _CLASSES[node.func.id]
        names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if len(node.args) > len(names):
            raise ArgumentError(cls.__name__, f"at most {len(names)} arguments", str(len(node.args)))
        values = dict(zip(names, (_evaluate(a, text) for a in node.args), strict=False))
        for keyword in node.keywords:
            if keyword.arg in values:
                raise ArgumentError(keyword.arg, "one value", repr(ast.unparse(node)))
            values[keyword.arg or "**"] = _evaluate(keyword.value, text)
        return _build(cls, values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left, right = _evaluate(node.left, text), _evaluate(node.right, text)
        if isinstance(left, Description) and isinstance(right, Description):
            return left & right if isinstance(node.op, ast.BitAnd) else left | right  # type: ignore[operator]
    if isinstance(node, ast.Attribute) and node.attr == "T":
        inner = _evaluate(node.value, text)
        if hasattr(inner, "T"):
            return inner.T
    try:
        return _decode(ast.literal_eval(node))
    except (ValueError, TypeError):
        known = ", ".join(sorted(_CLASSES))
        raise ArgumentError("description", f"a call of one of {known}, or a literal", repr(ast.unparse(node))) from None


def _build(cls: type[Description], values: dict[str, Any]) -> Any:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [f.name for f in fields]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ArgumentError(cls.__name__, f"fields among {', '.join(names) or 'none'}", ", ".join(unknown))
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise ArgumentError(cls.__name__, f"a value for {', '.join(missing)}", "none")
    return cls(**values)


def _encode(value: Any, name: str) -> Any:
    if isinstance(value, Description):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_encode(v, name) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ArgumentError(name, "a value that JSON can hold", type(value).__name__)


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_dict(value)
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return value


class Checks:
    """Field checks whose messages name the class and the field."""

    @staticmethod
    def integer(owner: object, name: str, minimum: int | None = None) -> None:
        """Refuses a field that is not an int (bool is not one) of at least `minimum`."""
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
            bound = "" if minimum is None else f" of at least {minimum}"
            raise ArgumentError(f"{type(owner).__name__}.{name}", f"an integer{bound}", repr(value))

    @staticmethod
    def choice(owner: object, name: str, allowed: tuple[Any, ...]) -> None:
        value = getattr(owner, name)
        if not any(type(value) is type(a) and value == a for a in allowed):
            wanted = ", ".join(map(repr, allowed))
            raise ArgumentError(f"{type(owner).__name__}.{name}", f"one of {wanted}", repr(value))

    @staticmethod
    def number(owner: object, name: str, accept: Callable[[float], bool], wanted: str) -> None:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not accept(float(value)):
            raise ArgumentError(f"{type(owner).__name__}.{name}", wanted, repr(value))

    @staticmethod
    def instance(owner: object, name: str, kind: type | tuple[type, ...], wanted: str) -> None:
        value = getattr(owner, name)
        if not isinstance(value, kind):
            raise ArgumentError(f"{type(owner).__name__}.{name}", wanted, repr(value))
