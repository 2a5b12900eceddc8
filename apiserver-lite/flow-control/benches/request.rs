//! What a request costs that finds a seat: classified by the built-in flow schemas, seated, and its seat given back. Each sample is the mean of many requests.

#![allow(clippy::expect_used, reason = "a bench that cannot go on has failed")]

#[path = "../../../tests/bench/figures.rs"]
mod figures;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_flow_control::{
    Arrival, DigestTarget, FLOW_SCHEMAS, FlowSchemas, GROUP, LimitResponse, QueueSet, Queuing,
    RequestDigest, Seat, VERSION, built_in_objects, read_flow_schema,
};
use apiserver_schema::{Engine, Format, Strictness};
use proto_api::names::{Names, Profile};

use figures::{Figure, Group, Unit};

/// Requests of a sample.
const BATCH: u32 = 1_000;
const SAMPLES: usize = 200;

fn schemas() -> FlowSchemas {
    let names = Names::new(Profile::Kubernetes);
    let engine = Engine::new(names);
    let kind = engine.resource(&names.group(GROUP), VERSION, FLOW_SCHEMAS).expect("a kind");
    let objects = built_in_objects(names).into_iter().filter(|of| of.resource == FLOW_SCHEMAS);
    let schemas = objects.map(|of| {
        let text = of.object.to_string();
        let decoded = engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
        Arc::new(read_flow_schema(&decoded.expect("valid").object))
    });
    FlowSchemas::new(schemas, |_| true, |_| true).0
}

fn seat_of(arrival: Arrival) -> Option<Seat> {
    match arrival {
        Arrival::Executing(seat) => Some(seat),
        Arrival::Queued(_) | Arrival::Rejected(_) => None,
    }
}

fn measure(schemas: &FlowSchemas, what: &str, user: &str, groups: &[&str]) {
    let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    let target =
        DigestTarget::Resource { group: "", resource: "pods", subresource: "", namespace: "ns-1" };
    let request = RequestDigest { user, groups: &groups, verb: "list", target };
    let mut level = QueueSet::<()>::new(100, LimitResponse::Queue(Queuing::new(128, 6, 50)));
    let times = (0..SAMPLES).map(|_| {
        let began = Instant::now();
        for _ in 0..BATCH {
            let request = black_box(&request);
            let schema = schemas.ordered().get(schemas.find(request)).expect("a schema");
            let seat = seat_of(level.arrive(schema.flow(request), began.elapsed(), || ()))
                .expect("a free seat");
            black_box(level.finish(seat, began.elapsed()));
        }
        began.elapsed() / BATCH
    });
    let times: Vec<Duration> = times.collect();
    let what = format!("flow control of a request, {what}");
    Figure::of_times(Group::Engine, what, Unit::Nanos, times)
        .at(schemas.ordered().len(), "flow schemas")
        .tell()
        .expect("told");
}

fn main() {
    let schemas = schemas();
    measure(&schemas, "of an administrator", "admin", &["system:masters", "system:authenticated"]);
    measure(
        &schemas,
        "of a user, whom the last one takes",
        "jane",
        &["developers", "system:authenticated"],
    );
}
