#!/usr/bin/env bash
# nvidia-cuda-nvcc 13.0.88: `pip install nvidia-cuda-nvcc==13.0.88` gives a compiler that cannot compile an empty kernel.
#
# nvcc runs cicc and includes headers, which are packages of their own. One would expect that pip installs those of the same
# release. nvidia-cuda-nvcc does not limit their versions, so pip takes the newest ones, and nvcc 13.0 fails with them.
# With all parts pinned to 13.0 the same kernel compiles.
#
# Seen with pip 23.2.1, Python 3.11 and g++ 12, where 13.5.37 was the newest release of the parts:
#   plain: fails: ptxas ...; fatal   : Unsupported .version 9.5; current version is '9.0'
#   pinned: compiles
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo '__global__ void empty() {}' > "$folder/empty.cu"

# compile ENVIRONMENT: prints the releases of the parts, and the outcome.
compile() {
  local nvcc
  nvcc=$(echo "$folder/$1"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
  "$folder/$1/bin/python" -m pip list 2> /dev/null | grep -E '^nvidia' || true
  if "$nvcc" -c -arch=sm_80 -o "$folder/empty.o" "$folder/empty.cu" > "$folder/log" 2>&1; then
    echo "$1: compiles"
  else
    echo "$1: fails: $(grep -m 1 -iE 'error|fatal|unsupported' "$folder/log" || head -n 1 "$folder/log")"
  fi
}

python3 -m venv "$folder/plain"
"$folder/plain/bin/python" -m pip install -q nvidia-cuda-nvcc==13.0.88
python3 -m venv "$folder/pinned"
"$folder/pinned/bin/python" -m pip install -q nvidia-cuda-{nvcc,crt,runtime,cccl}==13.0.* nvidia-nvvm==13.0.*
found=$(compile plain; compile pinned)
echo "$found"
grep -q '^plain: fails' <<< "$found" && grep -q '^pinned: compiles' <<< "$found" || {
  echo "the behaviour has changed"
  exit 1
}
