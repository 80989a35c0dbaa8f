"""A PNG of one colour and 16 opacities, which reads well on a light and on a dark page."""

from __future__ import annotations

import struct
import zlib

SHADES = 16


def png(levels: bytes, side: int, colour: tuple[int, int, int]) -> bytes:
    """A side x side picture from bytes 0 .. 255, rows first; 0 is transparent and 255 opaque."""
    shades = [level * (SHADES - 1) // 255 for level in levels]
    rows = bytearray()
    for start in range(0, side * side, side):
        row = shades[start : start + side] + [0] * (side % 2)
        rows.append(0)
        rows.extend(high << 4 | low for high, low in zip(row[::2], row[1::2], strict=True))
    header = struct.pack(">IIBBBBB", side, side, 4, 3, 0, 0, 0)
    opacity = bytes(255 * shade // (SHADES - 1) for shade in range(SHADES))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", bytes(colour) * SHADES),
            (b"tRNS", opacity),
            (b"IDAT", zlib.compress(bytes(rows), 9)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
