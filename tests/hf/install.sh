#!/usr/bin/env bash
# Makes the Python of test_hf, where run.sh finds it by itself: a virtual environment at ${TROUPE_HF:-${XDG_CACHE_HOME:-~/.cache}/troupe-hf}
# with transformers and safetensors from PyPI. PyTorch and NumPy are Debian's: PyTorch from PyPI brings several GB of CUDA's libraries,
# which are not used. About 1 GB on the disk in all. Once; needs the network and, where Debian's packages are missing, root or sudo.
#   tests/hf/install.sh [VERSION of transformers]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${TROUPE_HF:-${XDG_CACHE_HOME:-$HOME/.cache}/troupe-hf}
cmake/install-packages.sh python3-torch python3-numpy python3-venv
/usr/bin/python3 -m venv --system-site-packages "$folder"
"$folder/bin/pip" install --quiet "transformers==${1:-4.46.3}" safetensors
"$folder/bin/python" -c 'import numpy, safetensors, torch, transformers; print(f"test_hf: PyTorch {torch.__version__}, transformers {transformers.__version__}")'
