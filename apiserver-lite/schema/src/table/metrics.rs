//! Table rows of NodeMetrics and PodMetrics.

use proto_api::Quantity;

use super::Cells;
use crate::object::Object;
use crate::value::Map;

pub(super) fn cells(object: &Object, cells: &mut Cells) {
    let fields = &object.fields;
    for resource in ["cpu", "memory"] {
        let used = |usage: &Map| usage.str(resource).parse::<Quantity>().ok();
        let of_containers = || {
            let used = fields.maps("containers").filter_map(|c| c.map("usage").and_then(used));
            used.reduce(|a, b| a + b)
        };
        let total = fields.map("usage").and_then(used).or_else(of_containers);
        cells.set(resource, total.map(|total| total.to_string()).unwrap_or_default());
    }
    cells.set("Window", fields.str("window"));
}
