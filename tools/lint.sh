#!/usr/bin/env bash
# Everything that reads the code without running it.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.build/venv/bin
export PATH=$PWD/$bin:$PATH ANSIBLE_CONFIG=$PWD/ansible.cfg
echo "ruff";  $bin/ruff check .
echo "mypy";  $bin/mypy plugins lab/motley_lab
echo "ansible-lint"; $bin/ansible-lint --offline -q
echo "changelog fragments"; $bin/antsibull-changelog lint
lab=$(git ls-files -z 'lab/*.py' | xargs -0 cat | wc -l)
product=$(git ls-files -z 'plugins/*' 'roles/*' | xargs -0 cat | wc -l)
echo "lab: $lab lines of Python, product: $product lines"
# docs/decisions/lab_size.md says why it is this large
if [ "$lab" -gt 14500 ]; then echo "the lab has over 14500 lines: take something out"; exit 1; fi
