#!/usr/bin/env bash
# The image of portwright.def as a folder for Charliecloud's ch-run: bash ch_image.sh WHEEL FOLDER [TORCH [PIP_FLAG...]]
#
#     pip wheel --no-deps --wheel-dir dist .
#     bash ch_image.sh dist/portwright-*.whl portwright_image 2.6.0
#     portwright submit mymodel --site SITE --container ch-run --image portwright_image
#
# PIP_FLAG is for another build of PyTorch: --index-url ADDRESS, which PyTorch's page "Get Started" names.
set -euo pipefail

if (($# < 2)); then
    echo "usage: bash ch_image.sh WHEEL FOLDER [TORCH [PIP_FLAG...]]" >&2
    exit 2
fi
wheel=$(realpath -- "$1")
folder=$2
torch=${3:-2.6.0}
pip_flags=("${@:4}")
if [[ ! -f $wheel ]]; then
    echo "There is no wheel $1." >&2
    exit 2
fi
if [[ -e $folder ]]; then
    echo "$folder exists already; name another folder, or remove it." >&2
    exit 2
fi

# Under a name that says so until it is whole.
unfinished=$folder.unfinished
rm -rf -- "$unfinished"
ch-image pull python:3.11-slim
ch-convert python:3.11-slim "$unfinished"

inside() {
    ch-run --write --set-env --bind "$(dirname -- "$wheel"):/mnt/0" "$unfinished" -- "$@"
}

# For torch.compile on CPUs.
inside sh -c 'apt-get update && apt-get install -y --no-install-recommends g++ && rm -r /var/lib/apt/lists'
# PyTorch first and pinned, so that the next line finds its dependency met and changes nothing of it.
inside python -m pip install --no-cache-dir ${pip_flags[@]+"${pip_flags[@]}"} "torch==$torch"
inside python -m pip install --no-cache-dir "/mnt/0/$(basename -- "$wheel")[torch]"
inside portwright --version
printf 'LC_ALL=C.UTF-8\nPYTHONDONTWRITEBYTECODE=1\n' >>"$unfinished/ch/environment"
mv -- "$unfinished" "$folder"
echo "The image is $folder."
