"""The exceptions that quadform raises on purpose."""

from __future__ import annotations


class QuadformError(Exception):
    """Base class of every error that quadform raises on purpose."""


class ArgumentError(QuadformError, ValueError):
    """An argument is wrong: the message names it, what was expected and what came."""

    def __init__(self, name: str, expected: str, got: object) -> None:
        super().__init__(f"{name}: expected {expected}, got {got}")
        self.name, self.expected, self.got = name, expected, got


class Refused(QuadformError, ValueError):
    """A form does not compute this mixer; the message is the reason, in a sentence."""


class NotExact(QuadformError, ValueError):
    """A conversion cannot be exact within the tolerance asked for.

    Attributes:
        error: the measured error, max|y - y*| / max|y*|.
        witness: an input on which the two modules differ by that error.
    """

    def __init__(self, message: str, error: float | None = None, witness: object = None) -> None:
        super().__init__(message)
        self.error, self.witness = error, witness
