#!/bin/sh
# Brings real photographs for the picture drills, from the wheels of scikit-image and scikit-learn: fetch_photographs.sh FOLDER.
# Nothing is installed, and nothing of them is committed.
set -eu
: "${1:?usage: fetch_photographs.sh FOLDER}"
mkdir -p "$1"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
pip download --quiet --no-deps --only-binary :all: --dest "$wheels" scikit-image scikit-learn
python3 - "$1" "$wheels"/*.whl <<'PYTHON'
import pathlib, sys, zipfile

WANTED = ("china.jpg", "flower.jpg", "rocket.jpg", "retina.jpg", "astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as held:
        for name in held.namelist():
            if pathlib.PurePosixPath(name).name in WANTED:
                (pathlib.Path(sys.argv[1]) / pathlib.PurePosixPath(name).name).write_bytes(held.read(name))
PYTHON
