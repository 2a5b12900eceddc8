//! `orchctl` with containers of a whole cluster: commands and their input, files, ports, pods of its own.

use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::context::{Context, PATIENCE};
use crate::pods::pod;

struct Orchctl<'a>(&'a Context);

impl Orchctl<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let spec = &self.0.spec;
        let mut command = Command::new(spec.bin_dir.join("orchctl"));
        command.arg("--kubeconfig").arg(spec.client_config("admin")).args(["-n", "ctl"]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
    }

    /// Runs a command that reads `input` to its end.
    async fn ended(&self, args: &[&str], input: &[u8]) -> Result<Output> {
        let mut child = self.command(args).spawn()?;
        let mut stdin = child.stdin.take().context("a pipe")?;
        let feed = async {
            // A command that ends early does not read it all.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let both = async { tokio::join!(child.wait_with_output(), feed).0 };
        let output = tokio::time::timeout(PATIENCE, both).await;
        Ok(output.with_context(|| format!("orchctl {args:?} hangs"))??)
    }

    /// What a command that must succeed says.
    async fn says(&self, args: &[&str], input: &[u8]) -> Result<String> {
        let output = self.ended(args, input).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(
            output.status.success(),
            "orchctl {args:?}: {}{}",
            output.status,
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }
}

pub async fn orchctl_streams_with_containers(c: &Context) -> Result<()> {
    let ctl = Orchctl(c);
    ctl.says(&["create", "namespace", "ctl"], b"").await?;
    let script =
        "mkdir /www; echo forwarded > /www/index.html; exec busybox httpd -f -p 8080 -h /www";
    let made = ctl.says(&["apply", "-f", "-"], pod("ctl", "web", script).as_bytes()).await?;
    ensure!(made == "pod/web created\n", "apply said {made:?}");
    until("the pod runs", PATIENCE, async || {
        let phase = ctl.says(&["get", "pod", "web", "-o", "jsonpath={.status.phase}"], b"").await;
        match phase {
            Ok(phase) if phase == "Running" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    run_commands(&ctl).await.context("exec")?;
    copy_files(&ctl).await.context("cp")?;
    forward_port(&ctl).await.context("port-forward")?;
    run_pods(&ctl).await.context("run")?;
    ctl.says(&["delete", "namespace", "ctl"], b"").await?;
    Ok(())
}

async fn run_commands(ctl: &Orchctl<'_>) -> Result<()> {
    let said = ctl.says(&["exec", "web", "--", "/bin/echo", "from inside"], b"").await?;
    ensure!(said == "from inside\n", "exec said {said:?}");
    let failed =
        ctl.ended(&["exec", "web", "--", "/bin/sh", "-c", "echo no >&2; exit 7"], b"").await?;
    ensure!(failed.status.code() == Some(7), "{failed:?}");
    ensure!(failed.stderr == b"no\ncommand terminated with exit code 7\n", "{failed:?}");
    // The command sees the end of its input, and all of it.
    let input = vec![b'x'; 1 << 20];
    let counted =
        ctl.says(&["exec", "-i", "web", "--", "/bin/sh", "-c", "busybox wc -c; echo end"], &input);
    let counted = counted.await?;
    ensure!(counted == "1048576\nend\n", "wc said {counted:?}");
    let missing = ctl.ended(&["exec", "web", "--", "/no/such"], b"").await?;
    ensure!(!missing.status.success(), "{missing:?}");
    Ok(())
}

async fn copy_files(ctl: &Orchctl<'_>) -> Result<()> {
    let local = tempfile::tempdir()?;
    let path = |name: &str| local.path().join(name).display().to_string();
    let large: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::create_dir_all(local.path().join("tree/sub"))?;
    std::fs::write(path("tree/large"), &large)?;
    std::fs::write(path("tree/sub/small"), "small\n")?;
    ctl.says(&["cp", &path("tree"), "web:/tmp/copied"], b"").await?;
    let said = ctl.says(&["exec", "web", "--", "/bin/cat", "/tmp/copied/sub/small"], b"").await?;
    ensure!(said == "small\n", "the copy says {said:?}");
    // A link in the container is not followed here.
    ctl.says(
        &["exec", "web", "--", "/bin/busybox", "ln", "-s", "/etc/passwd", "/tmp/copied/link"],
        b"",
    )
    .await?;
    ctl.says(&["cp", "ctl/web:/tmp/copied", &path("back")], b"").await?;
    ensure!(std::fs::read(path("back/large"))? == large, "the large file came back otherwise");
    ensure!(std::fs::read_to_string(path("back/sub/small"))? == "small\n");
    ensure!(!Path::new(&path("back/link")).exists(), "a link came back");
    let absent = ctl.ended(&["cp", "web:/no/such", &path("absent")], b"").await?;
    ensure!(!absent.status.success(), "{absent:?}");
    Ok(())
}

async fn forward_port(ctl: &Orchctl<'_>) -> Result<()> {
    let mut child = ctl.command(&["port-forward", "pod/web", ":8080"]).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let first = tokio::time::timeout(PATIENCE, lines.next_line()).await.context("it hangs")??;
    let first = first.context("it ended")?;
    let address = first.split(' ').nth(2).context("no address")?.parse()?;
    let ask = async || {
        until("the forwarded port", PATIENCE, async || {
            cluster::demo::http_get(address, "/").await.map_err(|error| format!("{error:#}"))
        })
        .await
    };
    let (one, two, three) = tokio::try_join!(ask(), ask(), ask())?;
    for answer in [one, two, three, ask().await?] {
        ensure!(answer == "forwarded\n", "the forwarded port said {answer:?}");
    }
    Ok(())
}

async fn run_pods(ctl: &Orchctl<'_>) -> Result<()> {
    let script = "read word; echo got $word; exit 3";
    let args =
        ["run", "once", "-iq", "--rm", "--restart=Never", "--image=orch.local/demo:1", "--command"];
    let args = args.into_iter().chain(["--", "/bin/sh", "-c", script]).collect::<Vec<_>>();
    let ended = ctl.ended(&args, b"hello\n").await?;
    ensure!(ended.status.code() == Some(3), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(said.contains("got hello"), "the pod said {ended:?}");
    let left = ctl.says(&["get", "pods", "-o", "name"], b"").await?;
    ensure!(left == "pod/web\n", "{left:?} are left");
    Ok(())
}
