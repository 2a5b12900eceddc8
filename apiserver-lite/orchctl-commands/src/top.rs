//! `top`: what nodes and pods use now, from the metrics API where a cluster has one.

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::columns::{ColumnWidths, Row};
use orchctl_printers::objects;
use proto_api::{Collection, Quantity, Time};
use proto_client::ListParams;
use proto_client::request;
use serde_json::Value;

use crate::time;

const MIB: i64 = 1 << 20;
/// Seconds after which a pod has metrics, as kubectl assumes.
const METRICS_DUE_SECS: i64 = 120;

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
    Node(NodeFlags),
    /// CPU and memory of pods
    #[command(alias = "pods", alias = "po")]
    Pod(PodFlags),
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
    /// Order: the largest first
    #[arg(long, value_name = "COLUMN", value_parser = ["cpu", "memory"])]
    sort_by: Option<String>,
    /// Leave out the names of columns
    #[arg(long)]
    no_headers: bool,
}

#[derive(clap::Args, Debug)]
struct NodeFlags {
    #[command(flatten)]
    common: Flags,
    /// Per cent of what nodes have instead of what pods may use
    #[arg(long)]
    show_capacity: bool,
}

#[derive(clap::Args, Debug)]
struct PodFlags {
    #[command(flatten)]
    common: Flags,
    /// Those with these fields
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    field_selector: String,
    /// Pods of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Each container of pods
    #[arg(long)]
    containers: bool,
    /// With the sum of all
    #[arg(long)]
    sum: bool,
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
    let version =
        version.ok_or_else(|| CommandError::with_text("Metrics API not available"))?.clone();
    let metrics = Collection { group, version, plural: String::new(), namespace: None };
    let rows = match &args.what {
        What::Node(flags) => nodes(session, flags, metrics).await?,
        What::Pod(flags) => pods(session, flags, metrics, output).await?,
    };
    output.out.write_all(ColumnWidths::default().render(&rows).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The object of a name, or those of a list.
async fn read(
    session: &Session,
    name: Option<&str>,
    params: &ListParams,
    collection: &Collection,
) -> Result<Vec<Value>, CommandError> {
    let request = match name {
        Some(name) => request::get(collection.item(name, None)),
        None => request::list(collection.path(), params),
    };
    Ok(objects::into_items(session.call_json(request).await?))
}

fn sort(items: &mut [Value], by: Option<&str>) {
    items.sort_by(|a, b| {
        let usages = (total(a), total(b));
        let by_name = (objects::namespace(a), objects::name(a))
            .cmp(&(objects::namespace(b), objects::name(b)));
        match by {
            Some("cpu") => usages.1.cpu_millis.cmp(&usages.0.cpu_millis).then(by_name),
            Some(_) => usages.1.memory.cmp(&usages.0.memory).then(by_name),
            None => by_name,
        }
    });
}

async fn nodes(
    session: &Session,
    flags: &NodeFlags,
    metrics: Collection,
) -> Result<Vec<Row>, CommandError> {
    let NodeFlags { common, show_capacity } = flags;
    if common.name.is_some() && !common.selector.is_empty() {
        return Err(CommandError::with_text("only one of NAME or --selector can be provided"));
    }
    let name = common.name.as_deref();
    let params = ListParams::labels(common.selector.clone());
    let metrics = Collection { plural: "nodes".to_owned(), ..metrics };
    let mut items = read(session, name, &params, &metrics).await?;
    if items.is_empty() {
        return Err(CommandError::with_text("metrics not available yet"));
    }
    sort(&mut items, common.sort_by.as_deref());
    let core = Collection { group: String::new(), version: "v1".to_owned(), ..metrics };
    let known = read(session, name, &params, &core).await?;
    let mut rows = Vec::new();
    if !common.no_headers {
        let heads = ["NAME", "CPU(cores)", "CPU%", "MEMORY(bytes)", "MEMORY%"];
        rows.push(heads.map(str::to_owned).to_vec());
    }
    let part = if *show_capacity { "/status/capacity" } else { "/status/allocatable" };
    for item in &items {
        let name = objects::name(item);
        let node = known.iter().find(|node| objects::name(node) == name);
        let all = node.map(|node| usage(node, part)).unwrap_or_default();
        let used = total(item);
        rows.push(vec![
            name.to_owned(),
            format!("{}m", used.cpu_millis),
            percent(used.cpu_millis, all.cpu_millis),
            format!("{}Mi", used.memory / MIB),
            percent(used.memory, all.memory),
        ]);
    }
    // Nodes whose kubelet does not answer.
    let has_metrics =
        |node: &&Value| items.iter().any(|item| objects::name(item) == objects::name(node));
    for node in known.iter().filter(|node| !has_metrics(node)) {
        let unknown = std::iter::repeat_n("<unknown>", 4);
        rows.push(std::iter::once(objects::name(node)).chain(unknown).map(str::to_owned).collect());
    }
    Ok(rows)
}

async fn pods(
    session: &Session,
    flags: &PodFlags,
    metrics: Collection,
    output: &mut Output,
) -> Result<Vec<Row>, CommandError> {
    let common = &flags.common;
    let selects = !common.selector.is_empty() || !flags.field_selector.is_empty();
    if common.name.is_some() && selects {
        return Err(CommandError::with_text("only one of NAME or selector can be provided"));
    }
    let name = common.name.as_deref();
    let namespace = Some(session.namespace()?.to_owned()).filter(|_| !flags.all_namespaces);
    let params = ListParams {
        label_selector: common.selector.clone(),
        field_selector: flags.field_selector.clone(),
        ..ListParams::default()
    };
    let metrics = Collection { plural: "pods".to_owned(), namespace, ..metrics };
    let mut items = read(session, name, &params, &metrics).await?;
    if items.is_empty() {
        let core = Collection { group: String::new(), version: "v1".to_owned(), ..metrics };
        let now = time::now();
        let is_old = |pod: &&Value| age_secs(pod, now).is_some_and(|age| age > METRICS_DUE_SECS);
        if let Some(pod) = read(session, name, &params, &core).await?.iter().find(is_old) {
            return Err(CommandError::with_text(format!(
                "Metrics not available for pod {}/{}, age: {}s",
                objects::namespace(pod),
                objects::name(pod),
                age_secs(pod, now).unwrap_or_default()
            )));
        }
        match core.namespace {
            Some(namespace) => {
                writeln!(output.err, "No resources found in {namespace} namespace.")?;
            }
            None => writeln!(output.err, "No resources found")?,
        }
        return Ok(Vec::new());
    }
    sort(&mut items, common.sort_by.as_deref());
    Ok(pod_rows(flags, &items))
}

/// Seconds since an object was made.
fn age_secs(object: &Value, now: i64) -> Option<i64> {
    let made: Time = objects::text_at(object, "/metadata/creationTimestamp").parse().ok()?;
    Some(now.saturating_sub(made.unix()?))
}

fn pod_rows(flags: &PodFlags, items: &[Value]) -> Vec<Row> {
    let mut rows = Vec::new();
    let numbers =
        |used: Usage| [format!("{}m", used.cpu_millis), format!("{}Mi", used.memory / MIB)];
    if !flags.common.no_headers {
        let heads: &[&str] = if flags.containers { &["POD", "NAME"] } else { &["NAME"] };
        let namespace = flags.all_namespaces.then_some("NAMESPACE");
        let heads = namespace.into_iter().chain(heads.iter().copied());
        rows.push(heads.chain(["CPU(cores)", "MEMORY(bytes)"]).map(str::to_owned).collect());
    }
    let mut sum = Usage::default();
    for item in items {
        sum.add(total(item));
        let mut add = |container: Option<&str>, used: Usage| {
            let namespace = flags.all_namespaces.then(|| objects::namespace(item));
            let names = namespace.into_iter().chain([objects::name(item)]).chain(container);
            rows.push(names.map(str::to_owned).chain(numbers(used)).collect());
        };
        if flags.containers {
            for container in objects::list_at(item, "/containers") {
                add(Some(objects::text_at(container, "/name")), usage(container, "/usage"));
            }
        } else {
            add(None, total(item));
        }
    }
    if flags.sum {
        let names = 1 + usize::from(flags.all_namespaces) + usize::from(flags.containers);
        let empty = || std::iter::repeat_n(String::new(), names);
        rows.push(empty().chain(["________", "________"].map(str::to_owned)).collect());
        rows.push(empty().chain(numbers(sum)).collect());
    }
    rows
}

/// What a node uses, or all containers of a pod.
fn total(item: &Value) -> Usage {
    let mut sum = usage(item, "/usage");
    for container in objects::list_at(item, "/containers") {
        sum.add(usage(container, "/usage"));
    }
    sum
}

impl Usage {
    fn add(&mut self, more: Self) {
        self.cpu_millis = self.cpu_millis.saturating_add(more.cpu_millis);
        self.memory = self.memory.saturating_add(more.memory);
    }
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
