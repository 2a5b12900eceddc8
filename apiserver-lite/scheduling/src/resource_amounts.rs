//! Amounts of resources, and their sums.

use std::collections::BTreeMap;

use proto_api::Quantity;

/// Amounts by resource: CPU in millicores, all others in bytes or units.
pub type Amounts = BTreeMap<String, i64>;

/// CPU, in millicores.
pub const CPU: &str = "cpu";
/// Memory, in bytes.
pub const MEMORY: &str = "memory";
/// The number of pods.
pub const PODS: &str = "pods";

/// The amount of a resource in its unit, at least zero.
pub fn amount(resource: &str, quantity: &Quantity) -> i64 {
    let amount = if resource == CPU { quantity.as_milli() } else { quantity.value() };
    amount.max(0)
}

/// Adds with saturation, so that a request beyond the range is infeasible instead of negative.
pub fn add(sum: &mut i64, amount: i64) {
    *sum = sum.saturating_add(amount);
}
