from habana_frameworks.torch import core, hpu  # noqa: F401
