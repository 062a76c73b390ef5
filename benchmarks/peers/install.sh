#!/usr/bin/env bash
# One virtual environment for each peer, with pinned versions, from the package index that pip is set up with.
#
#     benchmarks/peers/install.sh [FOLDER] [PEER ...]
#
# FOLDER: ~/.cache/chronofed-peers unless told; PEER: naive pfl fedjax flower (all unless told).
# Run it again at any time: an environment that is complete is left alone. PYTHON chooses the interpreter.
set -euo pipefail

folder="${1:-$HOME/.cache/chronofed-peers}"
[ $# -gt 0 ] && shift
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(naive pfl fedjax flower)
python="${PYTHON:-python3}"

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

# What each environment holds. Torch always comes first and alone, so that no peer chooses another build of it.
pins() {
  case "$1" in
    naive) echo "torch==2.13.0 numpy==2.4.6" ;;
    pfl) echo "torch==2.13.0 numpy==2.4.6 pfl==0.6.0" ;;
    # FedJAX asks for jax>=0.4.4 only, but calls jax.tree_map, which jax 0.6 has dropped: 0.5.3 is the last with it.
    fedjax) echo "jax==0.5.3 jaxlib==0.5.3 numpy==2.4.6 dm-haiku==0.0.14 optax==0.2.5 fedjax==0.0.17" ;;
    flower) echo "torch==2.13.0 numpy==2.4.6 flwr[simulation]==1.41.0" ;;
    *) fail "no peer '$1': choose from naive, pfl, fedjax, flower" ;;
  esac
}

# A line to run, to see that an environment works.
proof() {
  case "$1" in
    naive) echo "import torch" ;;
    pfl) echo "import pfl.model.pytorch, pfl.algorithm.federated_averaging" ;;
    fedjax) echo "import fedjax, jax; fedjax.tree_util.tree_zeros_like(jax.numpy.ones(1)); jax.tree_map" ;;
    flower) echo "import flwr.simulation, ray, torch" ;;
  esac
}

# A build of torch for graphics cards brings gigabytes that no peer here uses: see it before it is fetched.
refuse_cuda() {
  local plan
  plan="$("$1" -m pip install --quiet --dry-run --report - torch==2.13.0 2>/dev/null)" ||
    fail "pip finds no torch==2.13.0"
  if grep -qE '"name": "nvidia|"name": "cuda' <<<"$plan"; then
    fail "torch==2.13.0 resolves to a CUDA build here: give pip the CPU build first (PIP_FIND_LINKS or an index)"
  fi
}

install_one() {
  local peer="$1" home="$folder/$1" wanted log
  wanted="$(pins "$peer")" || exit 1
  if [ "$(cat "$home/.complete" 2>/dev/null)" = "$wanted" ]; then
    echo "$peer: there already ($home)"
    return
  fi
  log="$home/install.log"
  echo "$peer: $wanted -> $home"
  [ -x "$home/bin/python" ] || "$python" -m venv "$home" || fail "$peer: '$python -m venv $home' failed"
  if [[ "$wanted" == torch==* ]]; then
    refuse_cuda "$home/bin/python"
    "$home/bin/python" -m pip install torch==2.13.0 >"$log" 2>&1 || fail "$peer: torch not installed, see $log"
  fi
  # shellcheck disable=SC2086  # the pins are words
  "$home/bin/python" -m pip install $wanted >>"$log" 2>&1 || fail "$peer: not installed, see $log"
  (cd / && "$home/bin/python" -W ignore -c "$(proof "$peer")") >>"$log" 2>&1 ||
    fail "$peer: installed, but it does not work, see $log"
  echo "$wanted" >"$home/.complete"
  echo "$peer: done"
}

for peer in "${peers[@]}"; do
  install_one "$peer"
done
