//! Maintains routes to other nodes' pods: watches Nodes, and compares the kernel's routes after each change and once a
//! minute. Routes stay when the process ends.

use std::collections::BTreeSet;
use std::time::Duration;

use proto_api::core::v1::Node;
use proto_client::{Client, ListParams, Reflector, Store};
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proxy_rules::model::Cidr;
use tokio::sync::watch;

use crate::routes::{RouteError, RouteTable, Routes, plan, plan_routes};

/// Interval of comparing the kernel's routes if nothing changed.
const COMPARE_EVERY: Duration = Duration::from_secs(60);

/// Watches Nodes and maintains routes to their pods within `cluster`, until drained.
pub fn start(
    client: &Client,
    own: &str,
    cluster: Vec<Cidr>,
    status: TaskStatus,
    drain: &DrainWatch,
) {
    let nodes = Reflector::projected(client.all::<Node>(), ListParams::default(), essentials);
    let store = nodes.store();
    let (changed, changes) = watch::channel(());
    // Without a receiver the router has ended, and this ends as well.
    tokio::spawn(nodes.run(drain.clone(), move |_| changed.send_replace(())));
    tokio::spawn(keep(store, own.to_owned(), cluster, changes, status, drain.clone()));
}

/// Fields that the routes depend on; others, above all the images, are dropped.
fn essentials(node: Node) -> Node {
    let mut kept = Node::default();
    kept.metadata.name = node.metadata.name;
    kept.spec.pod_cidr = node.spec.pod_cidr;
    kept.spec.pod_cidrs = node.spec.pod_cidrs;
    kept.status.addresses = node.status.addresses;
    kept
}

async fn keep(
    nodes: Store<Node>,
    own: String,
    cluster: Vec<Cidr>,
    mut changes: watch::Receiver<()>,
    status: TaskStatus,
    drain: DrainWatch,
) {
    // Before the Nodes are synced, routes to unknown ones would be removed. Cancel safe.
    tokio::select! {
        () = drain.asked() => return,
        () = nodes.synced() => {}
    }
    let mut failures: u32 = 0;
    let mut refused = BTreeSet::new();
    loop {
        let _ = changes.borrow_and_update();
        status.started("nodes changed, or periodic");
        let known = nodes.list();
        let wanted = plan_routes(known.iter().map(|(_, node)| &**node), &own, &cluster);
        warn_of_refused(&mut refused, wanted.refused);
        match compare(&wanted.routes).await {
            Ok(len) => {
                failures = 0;
                status.done(format!("{len} routes"));
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::warn!(error = %chain(&error), "cannot sync pod routes; retried");
                status.failed(chain(&error));
            }
        }
        let pause = if failures == 0 { COMPARE_EVERY } else { Backoff::LOOP.delay(failures, 1.0) };
        // All arms are cancel safe. Most node status updates change nothing here; after a failure they wait for the
        // retry.
        tokio::select! {
            () = drain.asked() => return,
            changed = changes.changed(), if failures == 0 => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Adds and removes routes; returns how many there are.
async fn compare(wanted: &Routes) -> Result<usize, RouteError> {
    let kernel = RouteTable::open()?;
    let changes = plan(&kernel.current().await?, wanted);
    kernel.apply(&changes).await?;
    Ok(wanted.len())
}

/// Logs each pod CIDR without a route once, as long as it is refused.
fn warn_of_refused(known: &mut BTreeSet<(String, Cidr)>, now: BTreeSet<(String, Cidr)>) {
    for (node, range) in now.difference(known) {
        tracing::warn!(
            node,
            %range,
            "pod CIDR of a node is not routed: it is outside --cluster-cidr or overlaps this node's pod CIDR"
        );
    }
    *known = now;
}
