# SPDX-License-Identifier: Apache-2.0
"""A simulated nvidia-smi: a shell script in the driver root of a simulated node. It supports the calls of this driver.

It supports `compute-policy` and the persistence mode (-pm, --query-gpu) with the options that this driver gives, and a
few options that print something. It refuses all others. Its texts and exit codes are from
kubernetes-sigs/dra-driver-nvidia-gpu issue 41 (code 3 for a GPU without time-slice settings) and from nvidia-smi(1).
The output of --list is invented, because it is not documented.

The state is a folder of text files, because a shell script can read them:

gpus              one line per GPU: UUID, index, whether its time-slice can be set, PCI address
levels/UUID       the time-slice level, 0 to 3
persistence/UUID  the persistence mode, 0 or 1
calls             the arguments of each call, one call per line
fail              if it exists, calls fail: the exit code, and then the text to print
hang              if it exists, calls hang
"""

from collections.abc import Mapping
from pathlib import Path

from ..nvml import Architecture
from .description import GpuDescription

_SCRIPT = r"""#!/bin/sh
state=${0%%/usr/bin/nvidia-smi}/../state
smi=$state/nvidia-smi
case $1 in ''|-L|-q|--version) echo 'nvidia-smi, simulated, driver %s'; exit 0 ;; esac
[ -d "$smi" ] || { echo 'Failed to initialize NVML: Driver Not Loaded'; exit 9; }
echo "$*" >> "$smi/calls"
[ -e "$smi/hang" ] && { sleep 3600 & wait; }
[ -e "$smi/fail" ] && { { read -r code; cat; } < "$smi/fail"; exit "$code"; }
grep -q '"absent": null' "$state/system.json" || { echo 'Failed to initialize NVML: Driver Not Loaded'; exit 9; }
usage() { echo "$1"; exit 2; }
if [ "$1" = -i ] && { [ "$3" = -pm ] || [ "$3" = --query-gpu=persistence_mode ]; }; then
    line=$(grep -e "^$2 " -e " $2\$" "$smi/gpus") || { echo 'No devices were found'; exit 6; }
    file=$smi/persistence/${line%%%% *}
    case $3$4 in
    -pm[01]) echo "$4" > "$file.new" && mv "$file.new" "$file"; echo 'All done.' ;;
    *--format=csv,noheader) [ "$(cat "$file")" = 1 ] && echo Enabled || echo Disabled ;;
    *) usage "Invalid option: $4" ;;
    esac
    exit 0
fi
[ "$1 $2" = 'compute-policy -i' ] || usage "Option $1 is not recognized. Please run 'nvidia-smi -h'."
given="$# $4" level=$5
line=$(grep "^$3 " "$smi/gpus") || { echo 'No devices were found'; exit 6; }
set -- $line
name() { case $1 in 0) echo Default ;; 1) echo Short ;; 2) echo Medium ;; 3) echo Long ;; esac; }
if [ "$given" = '4 --list' ]; then
    if [ "$3" = True ]; then
        echo "GPU $2: Timeslice: $(name "$(cat "$smi/levels/$1")")"
    else
        echo "GPU $2: Timeslice: Not Supported"
    fi
    exit 0
fi
[ "$given" = '5 --set-timeslice' ] || usage 'Invalid compute-policy options'
case $level in [0-3]) ;; *) usage "Invalid timeslice value: $level" ;; esac
if [ "$3" != True ]; then
    echo "Failed to set timeslice policy with value $(name "$level") for GPU $2 : Not Supported"
    echo 'Failed to set timeslice for requested devices : Not Supported'
    exit 3
fi
echo "$level" > "$smi/levels/$1.new" && mv "$smi/levels/$1.new" "$smi/levels/$1"
echo "Successfully set timeslice config for GPU $2"
"""


def nvidia_smi_script(version: str) -> str:
    """The script for this driver version. Write it to usr/bin of a driver root whose parent folder contains `state`."""
    return _SCRIPT % version


def create_smi(folder: Path, gpus: Mapping[str, GpuDescription]) -> None:
    """Create the state for these GPUs, in the order of their indexes. Time-slices can be set from Turing on."""
    for name in ("levels", "persistence"):
        (folder / name).mkdir(parents=True)
    lines = (
        f"{uuid} {index} {gpu.board.architecture >= Architecture.TURING} {gpu.pci_address}\n"
        for index, (uuid, gpu) in enumerate(gpus.items())
    )
    (folder / "gpus").write_text("".join(lines), encoding="ascii")
    for uuid in gpus:
        reset_smi(folder, uuid)


def reset_smi(folder: Path, uuid: str) -> None:
    """Restore the state of a GPU to which the driver has just been bound."""
    for name in ("levels", "persistence"):
        (folder / name / uuid).write_text("0\n", encoding="ascii")
