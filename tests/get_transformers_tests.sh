#!/usr/bin/env bash
# Fetch the tests of the installed version of transformers (Apache License 2.0) into a folder:
#   tests/get_transformers_tests.sh FOLDER
# Then: LONGSPAN_TRANSFORMERS_TESTS=FOLDER/tests pytest -m slow tests/models/test_transformers_common.py
set -euo pipefail
folder=${1:?usage: tests/get_transformers_tests.sh FOLDER}
version=$(python -c 'import transformers; print(transformers.__version__)')
if git clone --quiet --depth 1 --branch "v$version" https://github.com/huggingface/transformers "$folder"; then
  exit
fi
echo "GitHub cannot be reached: taking PyPI's source distribution, without tests of export and generation"
mkdir -p "$folder"
python -m pip download --quiet --no-deps --no-binary :all: --dest "$folder" "transformers==$version"
tar --extract --gzip --strip-components 1 --directory "$folder" --file "$folder/transformers-$version.tar.gz"
