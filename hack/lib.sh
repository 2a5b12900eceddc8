# Sourced by the scripts beside it: where they build, and how.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# One target directory a machine, outside the checkout, so that dependencies are built once for all clones.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/orch/target}"
cd "$root"
