//! Commands of orchadm that people give by themselves once there is a cluster: tokens with all that can be said of them, and phases of init, one alone.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::Node;
use proto_client::{Patch, WriteParams};
use serde_json::{Value, json};

use super::Cluster;
use crate::context::PATIENCE;

impl Cluster {
    pub(super) async fn tokens(&self) -> Result<()> {
        let host = self.one();
        let made =
            host.adm_ok(&["token", "create", "--description=one", "--print-join-command"]).await?;
        ensure!(made.contains(&self.pin) && made.starts_with("orchadm join "), "{made}");
        let id = made.split("--token ").nth(1).and_then(|rest| rest.get(..6)).context("a token")?;
        let list: Value =
            serde_json::from_str(&host.adm_ok(&["token", "list", "-o", "json"]).await?)?;
        let has = |list: &Value| {
            let all = list.as_array().cloned().unwrap_or_default();
            all.iter().any(|one| one["token"].as_str().is_some_and(|token| token.starts_with(id)))
        };
        ensure!(has(&list), "{list}");
        host.adm_ok(&["token", "delete", id]).await?;
        let list: Value =
            serde_json::from_str(&host.adm_ok(&["token", "list", "-o", "json"]).await?)?;
        ensure!(!has(&list), "{list}");
        let one = host.adm_ok(&["token", "generate"]).await?;
        ensure!(one.trim().len() == 23, "{one}");
        self.a_token_is_what_was_given().await
    }

    /// A token with a value, uses and groups of its own is good until it is deleted; one that has ended is removed.
    async fn a_token_is_what_was_given(&self) -> Result<()> {
        let host = self.one();
        let (token, group) = ("fedcba.0123456789abcdef", "system:bootstrappers:e2e");
        let groups = format!("--groups={group}");
        let given = ["token", "create", token, "--ttl=1h", "--usages=authentication", &groups];
        let made = host.adm_ok(&given).await?;
        ensure!(made.trim() == token, "{made}");
        let listed = async |of: &str| -> Result<Option<Value>> {
            let list = host.adm_ok(&["token", "list", "-o", "json"]).await?;
            let list: Value = serde_json::from_str(&list)?;
            let all = list.as_array().cloned().unwrap_or_default();
            Ok(all.into_iter().find(|one| one["token"] == of))
        };
        let one = listed(token).await?.context("the token is not listed")?;
        ensure!(one["usages"] == json!(["authentication"]), "{one}");
        ensure!(one["groups"] == json!([group]) && one["expires"].is_string(), "{one}");
        ensure!(self.is_known(token).await?, "the token is refused");
        let (code, _, error) = host.adm(&given).await?;
        ensure!(code == 1 && error.contains("fedcba"), "made twice: code {code}: {error}");
        host.adm_ok(&["token", "delete", token]).await?;
        until("the deleted token is refused", PATIENCE, async || {
            match self.is_known(token).await {
                Ok(false) => Ok(()),
                Ok(true) => Err("it is accepted".to_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        // It may have ended before the command has.
        let short = "abcfed.0123456789abcdef";
        host.adm_ok(&["token", "create", short, "--ttl=1s"]).await?;
        until("the token has ended and is removed", PATIENCE, async || {
            match (listed(short).await, self.is_known(short).await) {
                (Ok(None), Ok(false)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Each phase of init does its part again and nothing else, with the settings of init.
    pub(super) async fn phases_run_alone(&self) -> Result<()> {
        let host = self.one();
        for wrong in [&["init", "phase", "nonsense"][..], &["init", "phase", "certs", "nonsense"]] {
            let (code, _, error) = host.adm(wrong).await?;
            ensure!(code == 3 && error.contains("must be one of"), "code {code}: {error}");
        }
        let config = format!("/etc/{}", self.names.api_service_name());
        let read = |name: &str| std::fs::read(host.file(&format!("{config}/{name}")));
        let (admin, scheduler) = (read("admin.conf")?, read("scheduler.conf")?);
        std::fs::remove_file(self.admin_file())?;
        host.adm_ok(&["init", "phase", "kubeconfig", "scheduler"]).await?;
        ensure!(!self.admin_file().exists(), "the part scheduler has made admin.conf");
        host.adm_ok(&["init", "phase", "kubeconfig", "admin"]).await?;
        ensure!(read("admin.conf")? != admin, "admin.conf has the old certificate");
        ensure!(read("scheduler.conf")? == scheduler, "scheduler.conf is another");
        self.ready().await?;

        let nodes = self.admin()?.all::<Node>();
        let role = self.names.sub_label("node-role", "control-plane");
        let patch = json!({"metadata": {"labels": {role.clone(): null}}, "spec": {"taints": null}});
        nodes.patch(&host.name, &Patch::Merge(patch), &WriteParams::default()).await?;
        host.adm_ok(&["init", "phase", "mark-control-plane"]).await?;
        let node = nodes.get(&host.name).await?;
        ensure!(node.metadata.labels.contains_key(&role), "no label {role}");
        ensure!(node.spec.taints.iter().any(|taint| taint.key == role), "no taint {role}");

        // Without a flag the programs keep those that init gave them.
        let record = "/var/lib/orchadm/programs.json";
        let before = std::fs::read_to_string(host.file(record))?;
        host.adm_ok(&["init", "phase", "control-plane"]).await?;
        let after = std::fs::read_to_string(host.file(record))?;
        ensure!(after == before, "the programs have changed from {before} to {after}");
        let token = "aaaaaa.0123456789abcdef";
        host.adm_ok(&["init", "phase", "bootstrap-token", "--token", token]).await?;
        let list = host.adm_ok(&["token", "list"]).await?;
        ensure!(list.contains(token), "{list}");
        Ok(())
    }
}
