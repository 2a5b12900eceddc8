//! Defaults of flow schemas and priority levels. As in Kubernetes a number that is 0 is one that is not set.

use crate::value::Map;

pub(super) fn default_flow_schema(spec: &mut Map) {
    set_number(spec, "matchingPrecedence", 1000);
}

pub(super) fn default_priority_level(spec: &mut Map) {
    let Some(limited) = spec.map_mut("limited") else { return };
    set_number(limited, "assuredConcurrencyShares", 30);
    let response = limited.map_mut("limitResponse");
    if let Some(queuing) = response.and_then(|response| response.map_mut("queuing")) {
        for (field, number) in [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)] {
            set_number(queuing, field, number);
        }
    }
}

fn set_number(map: &mut Map, field: &'static str, number: i64) {
    if map.int(field).unwrap_or_default() == 0 {
        map.insert(field, number);
    }
}
