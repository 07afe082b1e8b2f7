"""The compressor: trajectories brought within a token budget. Its doors, each imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["CompressedTrajectory", "CompressionConfig", "compress_trajectory"]

if TYPE_CHECKING:
    from kiseki.compress.config import CompressionConfig
    from kiseki.compress.library import CompressedTrajectory, compress_trajectory


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'kiseki.compress' has no attribute {name!r}")
    return getattr(
        importlib.import_module("kiseki.compress.config" if name == "CompressionConfig" else "kiseki.compress.library"), name
    )
