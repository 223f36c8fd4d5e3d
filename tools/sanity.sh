#!/usr/bin/env bash
# ansible-test sanity on what users get: the built tarball, unpacked, without containers. Arguments go to ansible-test.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=$root/.build/venv/bin
work=$root/.build/sanity
home=$root/.build/home       # ansible-test keeps its environments and cache below HOME
mkdir -p "$work" "$home/.ansible/test/cache"
rm -rf "$work/ansible_collections" "$work"/*.tar.gz
export PATH=$bin:/usr/sbin:/usr/bin:/sbin:/bin      # no shims of pyenv: ansible-test takes them for interpreters
ansible-galaxy collection build --force --output-path "$work" . >/dev/null
mkdir -p "$work/ansible_collections/motley/inference"
tar -xzf "$work"/motley-inference-*.tar.gz -C "$work/ansible_collections/motley/inference"

# ansible-test would download a get-pip script for its environments. A script of the same effect takes pip from the package index.
pip_version=$("$bin/python" - <<'P'
import os, re, ansible_test
text = open(os.path.join(os.path.dirname(ansible_test.__file__), "_internal", "python_requirements.py")).read()
print(re.search(r"pip='([0-9.]+)'", text)[1])
P
)
[ -e "$work/pip/pip-$pip_version-py3-none-any.whl" ] || "$bin/python" -m pip download -q --no-deps -d "$work/pip" "pip==$pip_version" 2>/dev/null
cat > "$home/.ansible/test/cache/get_pip_${pip_version//./_}.py" <<P
import runpy, sys
wheel = "$work/pip/pip-$pip_version-py3-none-any.whl"
sys.path.insert(0, wheel)
sys.argv = ["pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
P
cd "$work/ansible_collections/motley/inference"
git init -q . && git add -A      # ansible-test lists files by git, and .build/ is ignored by the clone's
HOME=$home ansible-test sanity --color no --python "$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" "$@"
echo "sanity: passed on $(ls "$work"/*.tar.gz | xargs -n1 basename)"
