#!/usr/bin/env bash
# install.sh REQUIREMENTS FOLDER: installs the pinned, hash-checked wheels of a requirements file
# into a folder, without root. Does nothing when the folder holds just these already.
set -euo pipefail

requirements=$1
folder=$2
# Postgres may run under another account than the one that installs it.
umask 022

mkdir -p "$(dirname "$folder")"
# Two calls at once must not install into each other's folder.
exec 9>"$folder.lock"
flock 9

want=$(sha256sum <"$requirements" | cut -d' ' -f1)
if [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$want" ]; then
    exit 0
fi

if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "install.sh: python3 with pip is needed (Debian: apt-get install python3-pip)" >&2
    exit 1
fi

# pip never replaces what a target folder holds already, hence a new one that takes the old one's place.
rm -rf "$folder.new"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --root-user-action=ignore -r "$requirements" --target "$folder.new"
echo "$want" >"$folder.new/.installed"
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "installed $(grep -oE '^[a-z0-9-]+==[0-9a-z.]+' "$requirements" | tr '\n' ' ')into $folder"
