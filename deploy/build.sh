#!/bin/sh
# Build Penstock from its source into a virtual environment: build.sh SOURCE TARGET EXTRAS
#
# Only what requirements.lock names gets in, in its version and with its hash; nothing is compiled. pip cannot check
# hashes of what it finds by itself as a dependency, so the files are fetched first, then compared, then installed offline.
set -eu

source=$1 target=$2 extras=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

sed -e 's/ *\\$//' -e '/--hash=/d' "$source/requirements.lock" > "$work/constraints.txt"

fetch() { # FOLDER REQUIREMENT…
    folder=$1
    shift
    python -m pip download --quiet --only-binary :all: --constraint "$work/constraints.txt" --dest "$folder" "$@"
    for file in "$folder"/*; do
        case $file in */penstock-*) continue ;; esac
        sum=$(sha256sum "$file" | cut -d ' ' -f 1)
        grep -q -- "--hash=sha256:$sum" "$source/requirements.lock" || {
            echo "$(basename "$file") is not in requirements.lock with the hash $sum" >&2
            exit 1
        }
    done
}

python -m venv "$work/tools"
fetch "$work/hatchling" hatchling
"$work/tools/bin/python" -m pip install --quiet --no-index --find-links "$work/hatchling" hatchling
"$work/tools/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/penstock" "$source"

for wheel in "$work"/penstock/*.whl; do :; done
fetch "$work/wheels" "$wheel[$extras]"
python -m venv --without-pip "$target"
python -m pip --python "$target/bin/python" install --quiet --no-index --find-links "$work/wheels" "$wheel[$extras]"
"$target/bin/penstock" --version
