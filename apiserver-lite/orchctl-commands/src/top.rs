//! `top`: what nodes and pods use now, from the metrics API where a cluster has one.

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::columns::{Layout, Row};
use orchctl_printers::objects;
use proto_api::Quantity;
use proto_client::ListParams;
use proto_client::request::{self, Collection};
use serde_json::Value;

const MIB: i64 = 1 << 20;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// CPU and memory of nodes
    #[command(alias = "nodes", alias = "no")]
    Node(Flags),
    /// CPU and memory of pods
    #[command(alias = "pods", alias = "po")]
    Pod(Flags),
}

#[derive(clap::Args, Debug)]
struct Flags {
    /// One of them
    name: Option<String>,
    /// Those with these labels
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
    /// Pods of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Each container of pods
    #[arg(long)]
    containers: bool,
    /// Order: the largest first
    #[arg(long, value_parser = ["cpu", "memory"])]
    sort_by: Option<String>,
    /// Leave out the names of columns
    #[arg(long)]
    no_headers: bool,
}

/// Thousandths of a CPU, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    cpu_millis: i64,
    memory: i64,
}

/// Runs the command.
///
/// # Errors
/// When the cluster has no metrics API.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let group = session.names().await?.group("metrics");
    let discovery = session.discovery().await?;
    let version = discovery.groups.iter().find(|known| known.name == group);
    let version = version.and_then(|group| group.versions.first());
    let version = version.ok_or_else(|| CommandError::said("Metrics API not available"))?.clone();
    let rows = match &args.what {
        What::Node(flags) => nodes(session, flags, group, version).await?,
        What::Pod(flags) => pods(session, flags, group, version).await?,
    };
    output.out.write_all(Layout::default().render(&rows).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn list(
    session: &Session,
    flags: &Flags,
    collection: Collection,
) -> Result<Vec<Value>, CommandError> {
    let request = match &flags.name {
        Some(name) => request::get(collection.item(name, None)),
        None => request::list(collection.path(), &ListParams::labels(flags.selector.clone())),
    };
    let answer = session.call_json(request).await?;
    let mut items = objects::into_items(answer);
    items.sort_by(|a, b| {
        let usages = (total(a), total(b));
        let by_name = (objects::namespace(a), objects::name(a))
            .cmp(&(objects::namespace(b), objects::name(b)));
        match flags.sort_by.as_deref() {
            Some("cpu") => usages.1.cpu_millis.cmp(&usages.0.cpu_millis).then(by_name),
            Some(_) => usages.1.memory.cmp(&usages.0.memory).then(by_name),
            None => by_name,
        }
    });
    Ok(items)
}

async fn nodes(
    session: &Session,
    flags: &Flags,
    group: String,
    version: String,
) -> Result<Vec<Row>, CommandError> {
    let collection = Collection { group, version, plural: "nodes".to_owned(), namespace: None };
    let items = list(session, flags, collection).await?;
    let capacities = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "nodes".to_owned(),
        namespace: None,
    };
    let known = session.get_json(&capacities.path()).await?;
    let mut rows = Vec::new();
    if !flags.no_headers {
        let heads = ["NAME", "CPU(cores)", "CPU%", "MEMORY(bytes)", "MEMORY%"];
        rows.push(heads.map(str::to_owned).to_vec());
    }
    for item in &items {
        let name = objects::name(item);
        let node =
            objects::list_at(&known, "/items").iter().find(|node| objects::name(node) == name);
        let all = node.map(|node| usage(node, "/status/allocatable")).unwrap_or_default();
        let used = total(item);
        rows.push(vec![
            name.to_owned(),
            format!("{}m", used.cpu_millis),
            percent(used.cpu_millis, all.cpu_millis),
            format!("{}Mi", used.memory / MIB),
            percent(used.memory, all.memory),
        ]);
    }
    Ok(rows)
}

async fn pods(
    session: &Session,
    flags: &Flags,
    group: String,
    version: String,
) -> Result<Vec<Row>, CommandError> {
    let namespace = Some(session.namespace()?.to_owned()).filter(|_| !flags.all_namespaces);
    let collection = Collection { group, version, plural: "pods".to_owned(), namespace };
    let items = list(session, flags, collection).await?;
    let mut rows = Vec::new();
    if !flags.no_headers {
        let heads: &[&str] = if flags.containers { &["POD", "NAME"] } else { &["NAME"] };
        let namespace = flags.all_namespaces.then_some("NAMESPACE");
        let heads = namespace.into_iter().chain(heads.iter().copied());
        rows.push(heads.chain(["CPU(cores)", "MEMORY(bytes)"]).map(str::to_owned).collect());
    }
    for item in &items {
        let mut add = |container: Option<&str>, used: Usage| {
            let namespace = flags.all_namespaces.then(|| objects::namespace(item));
            let names = namespace.into_iter().chain([objects::name(item)]).chain(container);
            let numbers = [format!("{}m", used.cpu_millis), format!("{}Mi", used.memory / MIB)];
            rows.push(names.map(str::to_owned).chain(numbers).collect());
        };
        if flags.containers {
            for container in objects::list_at(item, "/containers") {
                add(Some(objects::text_at(container, "/name")), usage(container, "/usage"));
            }
        } else {
            add(None, total(item));
        }
    }
    Ok(rows)
}

/// What a node uses, or all containers of a pod.
fn total(item: &Value) -> Usage {
    let mut sum = usage(item, "/usage");
    for container in objects::list_at(item, "/containers") {
        let one = usage(container, "/usage");
        sum.cpu_millis = sum.cpu_millis.saturating_add(one.cpu_millis);
        sum.memory = sum.memory.saturating_add(one.memory);
    }
    sum
}

fn usage(object: &Value, pointer: &str) -> Usage {
    let quantity = |name: &str| -> Option<Quantity> {
        objects::text_at(object, &format!("{pointer}/{name}")).parse().ok()
    };
    Usage {
        cpu_millis: quantity("cpu").map_or(0, |cpu| cpu.as_milli()),
        memory: quantity("memory").map_or(0, |memory| memory.value()),
    }
}

fn percent(used: i64, all: i64) -> String {
    match used.saturating_mul(100).checked_div(all) {
        Some(percent) => format!("{percent}%"),
        None => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_uses_what_its_containers_use() {
        let pod = json!({"containers": [{"usage": {"cpu": "1500000n", "memory": "1Mi"}}, {"usage": {"cpu": "3m", "memory": "1024Ki"}}]});
        assert_eq!(total(&pod), Usage { cpu_millis: 5, memory: 2 * MIB });
        assert_eq!(percent(5, 0), "<unknown>");
        assert_eq!(percent(5, 10), "50%");
    }
}
