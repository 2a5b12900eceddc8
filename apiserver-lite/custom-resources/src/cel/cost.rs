//! Costs of runs, in steps of the same work each, so that none of a rule is free; estimates of rules, before they run, are Kubernetes' (`estimate`).

/// Most steps of one run of a rule.
pub(crate) const CALL_MAX: u64 = 1_000_000;
/// Most steps of all rules of an object.
pub(crate) const OBJECT_MAX: u64 = 10_000_000;
/// Highest estimate of one rule, times the values that it is run for.
pub(crate) const ESTIMATE_MAX: u64 = 10_000_000;
/// Highest estimate of all rules of a schema.
pub(crate) const SCHEMA_MAX: u64 = 100_000_000;

/// Steps of each part of `&&` and `||`, and of a choice with `?`. Kubernetes counts none; but a rule of nothing else must not run for long.
pub(crate) const BRANCH: u64 = 1;
/// Steps to make a list, besides those of its items.
pub(crate) const LIST: u64 = 10;
/// Steps to make a map.
pub(crate) const MAP: u64 = 30;

/// Steps to ask what a user may do, as in Kubernetes.
pub(crate) const CHECK: u64 = 350_000;

/// Bytes that are counted, copied or compared in one step, where nothing else is done with them.
pub(crate) const PASSED: u64 = 1_000;

/// Steps to count or copy the bytes of a text. Kubernetes counts one, however long the text is.
pub(crate) fn pass(size: u64) -> u64 {
    size.div_ceil(PASSED).max(1)
}

/// Steps to walk a text or list of `size`: a tenth.
pub(crate) fn walk(size: u64) -> u64 {
    size.div_ceil(10)
}

/// Steps to search a text for a regular expression.
pub(crate) fn search(text: u64, pattern: u64) -> u64 {
    walk(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4).max(1))
}

/// Steps to go on after a match with `rest` bytes of text: a search may read all of them before it settles on the next match.
pub(crate) fn search_on(rest: u64, pattern: u64) -> u64 {
    (search(rest, pattern) / 25).max(1)
}

/// Steps of a function, besides those of its arguments. `sizes` are those of the target, if there is one, and of the arguments; of what
/// has its number of elements at hand, `size` takes 1.
pub(crate) fn function(name: &str, sizes: &[u64]) -> u64 {
    let size = |at: usize| sizes.get(at).copied().unwrap_or(1);
    match name {
        "size" | "getScheme" | "getHost" | "getHostname" | "getPort" | "getEscapedPath" => {
            pass(size(0))
        }
        "matches" | "find" | "findAll" => search(size(0), size(1)),
        "contains" => walk(size(0)).saturating_mul(walk(size(1)).max(1)).max(1),
        "startsWith" | "endsWith" => walk(size(1)).max(1),
        "string" | "bytes" | "lowerAscii" | "upperAscii" | "trim" | "charAt" | "substring"
        | "url" | "isURL" | "duration" | "timestamp" | "int" | "uint" | "double" | "bool"
        | "ip" | "isIP" | "cidr" | "isCIDR" | "quantity" | "isQuantity" => walk(size(0)).max(1),
        // Each parameter becomes a list.
        "getQuery" => size(0).max(1),
        "ip.isCanonical" => walk(size(0)).saturating_mul(2).max(1),
        "containsIP" | "containsCIDR" => walk(size(1)).saturating_add(1),
        "format.named" => pass(size(0)),
        "validate" => walk(size(1)).saturating_mul(2).max(1),
        // The name of a time zone.
        "getFullYear" | "getMonth" | "getDate" | "getDayOfMonth" | "getDayOfWeek"
        | "getDayOfYear" | "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds" => {
            walk(size(1)).max(1)
        }
        "split" | "replace" => walk(size(0)).saturating_mul(2).max(1),
        "indexOf" | "lastIndexOf" => walk(size(0)).saturating_mul(walk(size(1)).max(1)).max(1),
        "isSorted" | "sum" | "min" | "max" => size(0).max(1),
        "join" => size(0).max(1),
        "check" => CHECK.saturating_add(pass(size(0))).saturating_add(pass(size(1))),
        "path" | "group" | "serviceAccount" | "resource" | "subresource" | "namespace" | "name" => {
            sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(pass(*size)))
        }
        _ => 1,
    }
}
