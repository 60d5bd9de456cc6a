from __future__ import annotations

import enum


class synDeviceType(enum.Enum):
    synDeviceGaudi = 1
    synDeviceGaudi2 = 4
    synDeviceGaudi3 = 5


def _get_device_type() -> synDeviceType:
    return synDeviceType.synDeviceGaudi2
