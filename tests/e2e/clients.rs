//! Clients of other projects.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use orch_tests::runner::Skip;
use orch_tests::wait::until;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::context::{Context, PATIENCE, output};
use crate::pods::pod;

/// A command that takes longer hangs: one with a limit of its own says before that what it waits for.
const HANGS: Duration = PATIENCE.saturating_mul(2);

/// Every kubectl on this machine.
fn kubectls() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_dir = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = std::env::split_paths(&path)
        .flat_map(in_dir)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("kubectl"))
        .map(|entry| entry.path())
        .filter(|path| !path.to_string_lossy().contains("kubectl-"))
        .collect();
    found.sort();
    found.dedup();
    found
}

struct Kubectl<'a> {
    program: &'a PathBuf,
    c: &'a Context,
}

impl Kubectl<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.arg("--kubeconfig").arg(self.c.spec.client_config("admin")).args(args);
        // Its discovery cache must not outlive this cluster.
        command.env("HOME", &self.c.spec.dir).stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> Result<String> {
        let run = output(self.command(args));
        tokio::time::timeout(HANGS, run).await.with_context(|| format!("kubectl {args:?} hangs"))?
    }
}

pub async fn kubectl_does_what_people_do_daily(c: &Context) -> Result<()> {
    if c.spec.naming != "kubernetes" {
        return Err(Skip("kubectl knows one set of names".into()).into());
    }
    let all = kubectls();
    if all.is_empty() {
        return Err(Skip("no kubectl on this machine".into()).into());
    }
    for program in &all {
        daily(&Kubectl { program, c }).await.with_context(|| program.display().to_string())?;
    }
    Ok(())
}

/// A flag of commands that wait.
fn limit() -> String {
    format!("--timeout={}s", PATIENCE.as_secs())
}

async fn daily(kubectl: &Kubectl<'_>) -> Result<()> {
    let manifest = kubectl.c.spec.dir.join("daily.yaml");
    let script = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.2; done";
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: daily}\n---\n";
    let web = pod(
        "daily",
        "web",
        "mkdir /www; echo forwarded > /www/index.html; exec busybox httpd -f -p 8080 -h /www",
    );
    std::fs::write(&manifest, format!("{namespace}{}---\n{web}", pod("daily", "talker", script)))?;
    let file = manifest.to_str().context("a path in UTF-8")?;
    kubectl.run(&["apply", "-f", file]).await?;
    let wait = ["-n", "daily", "wait", "--for=condition=Ready", "pod", "--all", &limit()];
    kubectl.run(&wait).await?;
    let listed = kubectl.run(&["get", "nodes,pods,svc", "-A", "-o", "wide"]).await?;
    for expected in
        ["node/node-1", "pod/talker", "1/1", "Running", "service/kubernetes", "NodePort"]
    {
        ensure!(listed.contains(expected), "{expected} is not in\n{listed}");
    }
    let described = kubectl.run(&["-n", "daily", "describe", "pod", "talker"]).await?;
    for expected in ["Started", "orch.local/demo:1", "QoS Class", "Ready"] {
        ensure!(described.contains(expected), "{expected} is not in\n{described}");
    }
    ensure!(
        kubectl.run(&["-n", "daily", "logs", "talker", "--tail=1"]).await?.starts_with("line ")
    );
    let said =
        kubectl.run(&["-n", "daily", "exec", "talker", "--", "/bin/echo", "from inside"]).await?;
    ensure!(said == "from inside\n", "exec said {said:?}");
    follow_logs(kubectl).await?;
    forward_port(kubectl).await?;
    watch_and_delete(kubectl).await
}

async fn follow_logs(kubectl: &Kubectl<'_>) -> Result<()> {
    let mut follow = kubectl.command(&["-n", "daily", "logs", "-f", "talker"]);
    let mut child = follow.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let read = async {
        let mut last = None;
        for _ in 0..8 {
            let line = lines.next_line().await?.context("the log ended")?;
            let number: u64 = line.strip_prefix("line ").context("a numbered line")?.parse()?;
            if let Some(last) = last {
                ensure!(number == last + 1, "{number} after {last}");
            }
            last = Some(number);
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, read).await.context("logs -f gives nothing")?
}

async fn forward_port(kubectl: &Kubectl<'_>) -> Result<()> {
    let mut forward = kubectl.command(&["-n", "daily", "port-forward", "pod/web", ":8080"]);
    let mut child = forward.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let first =
        tokio::time::timeout(PATIENCE, lines.next_line()).await.context("port-forward hangs")??;
    let first = first.context("port-forward ended")?;
    let address = first.split(' ').nth(2).context("no address")?.parse()?;
    for _ in 0..3 {
        let answer = until("the forwarded port", PATIENCE, async || {
            cluster::demo::http_get(address, "/").await.map_err(|e| format!("{e:#}"))
        })
        .await?;
        ensure!(answer == "forwarded\n", "the forwarded port said {answer:?}");
    }
    Ok(())
}

async fn watch_and_delete(kubectl: &Kubectl<'_>) -> Result<()> {
    let mut watch = kubectl.command(&["-n", "daily", "get", "pods", "-w", "--output-watch-events"]);
    let mut child = watch.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let deleted = async {
        loop {
            let line = lines.next_line().await?.context("the watch ended")?;
            if line.starts_with("DELETED") && line.contains("talker") {
                return anyhow::Ok(());
            }
        }
    };
    let delete = kubectl.run(&["-n", "daily", "delete", "pod", "talker"]);
    let (deleted, answer) = tokio::join!(tokio::time::timeout(PATIENCE, deleted), delete);
    answer?;
    deleted.context("the watch does not show the deletion")??;
    kubectl.run(&["delete", "namespace", "daily", &limit()]).await.map(drop)
}
