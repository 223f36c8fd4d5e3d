#!/usr/bin/env bash
# Makes what `make` needs: a Python environment per lock file (kept in the cache, shared by clones), the collection link.
# usage: tools/setup.sh [main|oldest|lab]...   main: newest suitable Python; oldest: Python 3.11 with ansible-core 2.19;
# lab: the lab's packages of the system and its engine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cache=${MOTLEY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/motley}
say() { printf '\033[1msetup\033[0m %s\n' "$*"; }
die() { printf 'setup: %s\n  what to do: %s\n' "$1" "$2" >&2; exit 1; }

find_python() {     # find_python VERSION -> path of a Python of that version that can make environments
  local candidate
  for candidate in "$(command -v "python$1" 2>/dev/null || true)" "$HOME"/.pyenv/versions/"$1".*/bin/python /usr/bin/"python$1"; do
    [ -x "$candidate" ] && "$candidate" -c "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != tuple(map(int, '$1'.split('.'))))" 2>/dev/null \
      && { echo "$candidate"; return 0; }
  done
  return 1
}

environment() {     # environment LINK PYTHON LOCK: .build/LINK -> an environment of exactly the lock file
  local link=.build/$1 python=$2 lock=$3 key place
  key=$("$python" -c 'import hashlib,sys; print("%d.%d" % sys.version_info[:2] + "-" + hashlib.sha256(open(sys.argv[1],"rb").read()).hexdigest()[:12])' "$lock")
  place=$cache/env-$key
  if [ ! -e "$place/.complete" ]; then
    say "$1: installing $lock for $("$python" -V) into $place"
    rm -rf "$place"; mkdir -p "$cache"
    "$python" -m venv "$place"
    "$place/bin/python" -m pip install -q --disable-pip-version-check -r "$lock" 2>"$place/pip.log" \
      || { grep -v WARNING "$place/pip.log" | tail -5 >&2; die "the packages of $lock could not be installed" "see $place/pip.log; is a package index reachable?"; }
    touch "$place/.complete"
  fi
  rm -rf "$link"; ln -s "$place" "$link"
  say "$1: $("$place/bin/python" -V), ansible-core $("$place/bin/python" -c 'from importlib.metadata import version; print(version("ansible-core"))')"
}

debian_python() {      # a Debian without python3-venv gets it
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  find_python 3.13 >/dev/null || find_python 3.12 >/dev/null || find_python 3.11 >/dev/null && return 0
  say "installing python3-venv"
  apt-get install -y -qq python3 python3-venv >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq python3 python3-venv >/dev/null; }
}

main_environment() {
  local python
  debian_python
  for version in 3.13 3.12; do
    if python=$(find_python $version); then environment venv "$python" requirements/dev.txt; return; fi
  done
  python=$(find_python 3.11) || die "no Python 3.11, 3.12 or 3.13 with venv was found" "apt-get install python3 python3-venv"
  environment venv "$python" requirements/dev-oldest.txt
}

oldest_environment() {
  local python
  python=$(find_python 3.11) || die "no Python 3.11 was found (the oldest supported pair is tested with it)" "apt-get install python3.11 python3.11-venv"
  environment venv-oldest "$python" requirements/dev-oldest.txt
}

lab_parts() {
  local missing=()
  command -v bwrap >/dev/null || missing+=(bubblewrap)
  command -v ip >/dev/null || missing+=(iproute2)
  command -v nsenter >/dev/null || missing+=(util-linux)
  if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || die "the lab needs ${missing[*]}" "install: ${missing[*]}"
    say "lab: installing ${missing[*]}"
    apt-get install -y -qq "${missing[@]}" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "${missing[@]}" >/dev/null; }
  fi
  PYTHONPATH=lab .build/venv/bin/python -m motley_lab.engine.setup
}

mkdir -p .build/collections/ansible_collections/motley
ln -sfn "../../../.." .build/collections/ansible_collections/motley/inference
for part in "${@:-main}"; do
  case $part in
    main) main_environment ;;
    oldest) oldest_environment ;;
    lab) lab_parts ;;
    *) die "unknown part $part" "one of main, oldest, lab" ;;
  esac
done
say "ready in $root/.build"
