//! Both controller managers on the same objects: each kind is created, changed and deleted, and what is there in the end is compared.

mod course;
mod snapshot;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use proto_client::dynamic::get_json;
use proto_client::{Client, ListParams, request};
use serde_json::Value;
use tokio::process::Child;

use crate::plane::{Plane, Side};
use crate::{Programs, Report};
use snapshot::{Difference, Snapshot};

/// Hollow nodes on which the pods run.
const NODES: usize = 3;
/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long nothing may have changed until a stage is over: longer than the back-off of a failed pod.
const REST: Duration = Duration::from_secs(30);
/// How long a stage may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Resources that are compared, by group and version.
const COMPARED: [(&str, &[&str]); 3] = [
    (
        "/api/v1",
        &[
            "namespaces",
            "nodes",
            "pods",
            "services",
            "endpoints",
            "configmaps",
            "serviceaccounts",
            "replicationcontrollers",
            "resourcequotas",
            "persistentvolumeclaims",
        ],
    ),
    (
        "/apis/apps/v1",
        &["deployments", "replicasets", "statefulsets", "daemonsets", "controllerrevisions"],
    ),
    ("/apis/batch/v1", &["jobs"]),
];
/// Why what differs may differ: object, field, reason, each a prefix.
const EXPLAINED: &str = include_str!("controllers/explained.tsv");

/// What is compared.
#[derive(clap::Args)]
pub struct Wanted {
    /// Controller managers are compared with this project's API server only
    #[arg(long)]
    ours_only: bool,
}

/// Each controller manager with each API server.
pub async fn run(wanted: &Wanted, programs: &Programs, dir: &Path) -> Result<Report> {
    programs.theirs()?;
    let servers: &[Side] =
        if wanted.ours_only { &[Side::Ours] } else { &[Side::Ours, Side::Theirs] };
    let (mut text, mut faults) = (String::new(), 0);
    for &server in servers {
        let mut ends = Vec::new();
        for manager in [Side::Ours, Side::Theirs] {
            let dir = dir.join(format!("{manager}-with-{server}"));
            let end = follow_course(server, manager, programs, &dir).await;
            ends.push(end.with_context(|| {
                format!("{manager}-controller-manager with {server}-apiserver")
            })?);
        }
        let [ours, theirs] = ends.as_slice() else { continue };
        let differences = snapshot::compare(ours, theirs);
        let objects: usize = theirs.values().map(Vec::len).sum();
        writeln!(
            text,
            "With {server}-apiserver: {objects} objects, {} differences.\n",
            differences.len()
        )?;
        faults += tell(&mut text, &differences)?;
    }
    Ok(Report { text, faults })
}

/// Adds a table of what differs. Returns how many differences have no reason.
fn tell(text: &mut String, differences: &[Difference]) -> Result<usize> {
    if differences.is_empty() {
        return Ok(0);
    }
    writeln!(text, "| object | field | orch | kube | why |\n|---|---|---|---|---|")?;
    let mut faults = 0;
    for Difference { object, path, ours, theirs } in differences {
        let why = reason(object, path);
        faults += usize::from(why.is_none());
        let (ours, theirs) = (short(ours), short(theirs));
        writeln!(
            text,
            "| {object} | {path} | {ours} | {theirs} | {} |",
            why.unwrap_or("**not explained**")
        )?;
    }
    writeln!(text)?;
    Ok(faults)
}

fn reason(object: &str, path: &str) -> Option<&'static str> {
    EXPLAINED.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let (of, at, why) = (fields.next()?, fields.next()?, fields.next()?);
        (object.starts_with(of) && path.starts_with(at)).then_some(why)
    })
}

fn short(text: &str) -> String {
    let text = text.replace('|', "\\|");
    if text.chars().count() <= 120 {
        text
    } else {
        text.chars().take(117).chain("...".chars()).collect()
    }
}

async fn follow_course(
    server: Side,
    manager: Side,
    programs: &Programs,
    dir: &Path,
) -> Result<Snapshot> {
    let plane = Plane::start(server, programs, dir).await?;
    let mut running = [
        (manager.program("controller-manager"), plane.start_controller_manager(manager)?),
        (server.program("scheduler"), plane.start_scheduler(server)?),
        ("orchlet".to_owned(), plane.start_hollow_nodes(NODES)?),
    ];
    eprintln!("{manager}-controller-manager with {server}-apiserver");
    course::create(&plane.client).await?;
    settle(&plane, &mut running).await?;
    for stage in course::STAGES {
        eprintln!("  {}", stage.name);
        course::change(&plane.client, stage).await?;
        settle(&plane, &mut running).await?;
    }
    let objects = list_all(&plane.client).await?;
    Ok(snapshot::snapshot(&objects))
}

/// Waits until nothing changes any more.
async fn settle(plane: &Plane, running: &mut [(String, Child)]) -> Result<()> {
    let began = Instant::now();
    let (mut last, mut since) = (Snapshot::new(), Instant::now());
    loop {
        for (name, child) in running.iter_mut() {
            ensure!(child.try_wait()?.is_none(), "{name} has ended: {}", plane.end_of_log(name));
        }
        let now = snapshot::snapshot(&list_all(&plane.client).await?);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > REST {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "the objects do not come to rest");
        tokio::time::sleep(LOOK).await;
    }
}

/// All objects that are compared, each with its kind.
async fn list_all(client: &Client) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (group, resources) in COMPARED {
        for resource in resources {
            let path = format!("{group}/{resource}");
            let list = get_json(client, request::list(path, &ListParams::default())).await?;
            let kind =
                list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
            for item in list["items"].as_array().into_iter().flatten() {
                let mut item = item.clone();
                item["kind"] = kind.clone().into();
                objects.push(item);
            }
        }
    }
    Ok(objects)
}
