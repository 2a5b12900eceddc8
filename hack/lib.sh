# Sourced by the scripts beside it: where they build, and how.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# One target directory a machine, outside the checkout, so that dependencies are built once for all clones.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/orch/target}"
cd "$root"
# What a build is made from, for /version and the metric build_info; the commit's time, so that a build can be repeated. Unknown without git.
if ORCH_COMMIT=$(git rev-parse HEAD 2>/dev/null); then
  ORCH_BUILD_DATE=$(TZ=UTC git show -s --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ HEAD)
  [ -z "$(git status --porcelain 2>/dev/null | head -n 1)" ] && ORCH_TREE_STATE=clean || ORCH_TREE_STATE=dirty
  export ORCH_COMMIT ORCH_BUILD_DATE ORCH_TREE_STATE
else
  unset ORCH_COMMIT
fi
