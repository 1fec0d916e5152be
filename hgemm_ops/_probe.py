"""Prints what the CUDA driver says of this machine's GPUs, as JSON.

:mod:`hgemm_ops._devices` runs this file in a process of its own, without any package. ``cuInit`` is then called there,
and the process that asks can still fork.
"""

import ctypes
import json
import re

# Values of CUdevice_attribute: compute capability (major, minor), SMs, shared memory per block and per SM, L2, and the
# clock in kHz and the width in bits of the memory.
_ATTRIBUTES = (75, 76, 16, 97, 81, 38, 36, 37)


def gpus() -> list[dict[str, object]]:
    """Returns the name and the facts of every visible GPU; an empty list if the driver has none or does not work."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found: list[dict[str, object]] = []
    for ordinal in range(count.value):
        device, value, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetName(name, len(name), device)
        values = []
        for attribute in _ATTRIBUTES:
            if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
                return []
            values.append(value.value)
        major, minor, sms, smem_optin, smem_per_sm, l2_bytes, khz, bits = values
        text = name.value.decode(errors="replace")
        facts = {
            "cc": 10 * major + minor,
            "sm_count": sms,
            "smem_optin": smem_optin,
            "smem_per_sm": smem_per_sm,
            "l2_bytes": l2_bytes,
            # These two as in csrc/kernels/device.cu: double data rate, and Hopper GPUs that are known by name.
            "dram_gbs": khz * 2 * bits // 8 // 1000000,
            "slow_float64": int(major == 9 and re.search("H20(?!0)|H800", text) is not None),
        }
        found.append({"name": text, "facts": facts})
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(gpus()))
    except OSError:  # there is no driver
        print("[]")
