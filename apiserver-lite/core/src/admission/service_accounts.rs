//! Service accounts of pods: sets the account of a new pod, checks that it exists, mounts its token into each container, and limits the pod to the
//! account's secrets where the account says so, as Kubernetes' ServiceAccount plugin.

use std::time::Duration;

use apiserver_schema::{Map, Object, Value};
use tokio::time::Instant;

use super::mountable_secrets::{find_foreign, find_foreign_in_ephemeral};
use crate::auth::{ReferencedKind, VOLUME_TOKEN_SECS, refers_to_any};
use crate::context::RequestContext;
use crate::random_suffix::random_suffix;
use crate::status::{ApiError, StatusTarget};

/// How long a create waits for the service account `default`, which a controller makes after the namespace.
const DEFAULT_ACCOUNT_WAIT: Duration = Duration::from_secs(2);
/// Mode of the files of the token volume.
const FILE_MODE: i64 = 0o644;

/// Sets service account, token volume and image pull secrets of a new pod.
///
/// # Errors
/// 403 when the service account does not exist or does not list a secret of the pod, and for a mirror pod with an identity.
pub async fn admit(call: &RequestContext<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let names = call.server.names;
    let annotations = pod.metadata().and_then(|metadata| metadata.map("annotations"));
    if annotations.is_some_and(|all| all.contains(&names.label("config.mirror"))) {
        return check_mirror_pod(call, pod);
    }
    let spec = pod.fields.map_or_insert("spec");
    if spec.str("serviceAccountName").is_empty() {
        spec.insert("serviceAccountName", "default");
    }
    let name = spec.str("serviceAccountName").to_owned();
    spec.insert("serviceAccount", name.as_str());
    let account = account(call, pod, &name).await?;
    let wants_token = automount(pod.spec()).or_else(|| automount(Some(&account))).unwrap_or(true);
    let spec = pod.fields.map_or_insert("spec");
    if wants_token {
        mount_token(
            spec,
            names.token_volume_prefix(),
            names.service_account_dir(),
            names.root_ca_config_map(),
        );
    }
    if spec.list("imagePullSecrets").is_empty() && !account.list("imagePullSecrets").is_empty() {
        spec.insert("imagePullSecrets", account.list("imagePullSecrets").to_vec());
    }
    match find_foreign(&account, spec, names) {
        Some(why) => Err(refuse(call, pod, &why)),
        None => Ok(()),
    }
}

/// Checks the secrets of containers that are added to a running pod.
///
/// # Errors
/// 403 when the service account does not exist, or does not list one of them.
pub async fn admit_ephemeral(call: &RequestContext<'_>, pod: &Object) -> Result<(), ApiError> {
    let Some(spec) = pod.spec() else { return Ok(()) };
    let name = spec.str("serviceAccountName");
    if name.is_empty() {
        let why =
            format!("no service account specified for pod {}/{}", pod.namespace(), pod.name());
        return Err(refuse(call, pod, &why));
    }
    let account = account(call, pod, name).await?;
    match find_foreign_in_ephemeral(&account, spec, call.server.names) {
        Some(why) => Err(refuse(call, pod, &why)),
        None => Ok(()),
    }
}

fn refuse(call: &RequestContext<'_>, pod: &Object, why: &str) -> ApiError {
    ApiError::forbidden(StatusTarget { name: pod.name(), ..call.about() }, why)
}

/// A mirror pod represents a static pod, which has no identity in the cluster.
fn check_mirror_pod(call: &RequestContext<'_>, pod: &Object) -> Result<(), ApiError> {
    let volumes = pod.spec().into_iter().flat_map(|spec| spec.maps("volumes"));
    let mut sources =
        volumes.filter_map(|v| v.map("projected")).flat_map(|all| all.maps("sources"));
    let refused = if refers_to_any(pod, ReferencedKind::ServiceAccount) {
        "a mirror pod may not reference service accounts"
    } else if refers_to_any(pod, ReferencedKind::Secret) {
        "a mirror pod may not reference secrets"
    } else if sources.any(|source| source.contains("serviceAccountToken")) {
        "a mirror pod may not use ServiceAccountToken volume projections"
    } else {
        return Ok(());
    };
    Err(refuse(call, pod, refused))
}

fn automount(of: Option<&Map>) -> Option<bool> {
    of?.get("automountServiceAccountToken")?.as_bool()
}

/// The fields of the service account. Waits up to [`DEFAULT_ACCOUNT_WAIT`] for `default`.
async fn account(call: &RequestContext<'_>, pod: &Object, name: &str) -> Result<Map, ApiError> {
    let until = Instant::now() + DEFAULT_ACCOUNT_WAIT;
    let store = &call.server.store;
    loop {
        let seen = store.revision();
        if let Some(found) = call.server.find_in("", "serviceaccounts", pod.namespace(), name) {
            return Ok(found.object().fields.clone());
        }
        let left = until.saturating_duration_since(Instant::now());
        if name != "default" || left.is_zero() || store.wait_for(seen.next(), left).await.is_err() {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                pod.namespace(),
            );
            return Err(refuse(call, pod, &why));
        }
    }
}

/// Adds the token volume and mounts it in containers that mount nothing at `dir`.
fn mount_token(spec: &mut Map, prefix: &str, dir: &str, root_ca: &str) {
    let existing =
        spec.maps("volumes").map(|volume| volume.str("name")).find(|name| name.starts_with(prefix));
    let (name, is_new) = match existing {
        Some(name) => (name.to_owned(), false),
        None => (format!("{prefix}{}", random_suffix()), true),
    };
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in spec.maps_mut(list) {
            if container.maps("volumeMounts").any(|mount| mount.str("mountPath") == dir) {
                continue;
            }
            let mount: Map = [
                ("name", Value::from(name.as_str())),
                ("readOnly", Value::from(true)),
                ("mountPath", Value::from(dir)),
            ]
            .into_iter()
            .collect();
            let mut mounts = container.list("volumeMounts").to_vec();
            mounts.push(mount.into());
            container.insert("volumeMounts", mounts);
            mounted = true;
        }
    }
    if mounted && is_new {
        let mut volumes = spec.list("volumes").to_vec();
        volumes.push(token_volume(&name, root_ca).into());
        spec.insert("volumes", volumes);
    }
}

fn token_volume(name: &str, root_ca: &str) -> Map {
    let map = |entries: Vec<(&'static str, Value)>| Value::Map(entries.into_iter().collect());
    let item = |key: &str, path: &str| map(vec![("key", key.into()), ("path", path.into())]);
    let token =
        map(vec![("expirationSeconds", VOLUME_TOKEN_SECS.into()), ("path", "token".into())]);
    let field = map(vec![("apiVersion", "v1".into()), ("fieldPath", "metadata.namespace".into())]);
    let sources: Vec<Value> = vec![
        map(vec![("serviceAccountToken", token)]),
        map(vec![(
            "configMap",
            map(vec![("name", root_ca.into()), ("items", vec![item("ca.crt", "ca.crt")].into())]),
        )]),
        map(vec![(
            "downwardAPI",
            map(vec![(
                "items",
                vec![map(vec![("path", "namespace".into()), ("fieldRef", field)])].into(),
            )]),
        )]),
    ];
    let projected = map(vec![("defaultMode", FILE_MODE.into()), ("sources", sources.into())]);
    [("name", Value::from(name)), ("projected", projected)].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(mounts: Vec<Value>) -> Map {
        let container: Map =
            [("name", Value::from("c")), ("volumeMounts", mounts.into())].into_iter().collect();
        [("containers", vec![Value::from(container)])].into_iter().collect()
    }

    #[test]
    fn every_container_gets_the_token_once() {
        let mut pod = spec(Vec::new());
        mount_token(&mut pod, "orch-api-access-", "/run/sa", "orch-root-ca.crt");
        mount_token(&mut pod, "orch-api-access-", "/run/sa", "orch-root-ca.crt");
        assert_eq!(pod.list("volumes").len(), 1);
        let container = pod.maps("containers").next().unwrap();
        assert_eq!(container.list("volumeMounts").len(), 1);
        let volume = pod.maps("volumes").next().unwrap();
        assert!(volume.str("name").starts_with("orch-api-access-"));
        assert_eq!(volume.map("projected").unwrap().int("defaultMode"), Some(420));
    }

    #[test]
    fn own_mount_at_the_path_is_kept() {
        let mount: Map = [("name", "mine"), ("mountPath", "/run/sa")].into_iter().collect();
        let mut pod = spec(vec![mount.into()]);
        mount_token(&mut pod, "orch-api-access-", "/run/sa", "orch-root-ca.crt");
        assert!(pod.list("volumes").is_empty());
    }

    #[test]
    fn the_token_volume_has_token_authority_and_namespace() {
        let volume = token_volume("orch-api-access-x", "orch-root-ca.crt");
        let projected = volume.map("projected").unwrap();
        assert_eq!(projected.int("defaultMode"), Some(420));
        let sources: Vec<&Map> = projected.maps("sources").collect();
        assert_eq!(sources.len(), 3);
        let token = sources[0].map("serviceAccountToken").unwrap();
        assert_eq!((token.int("expirationSeconds"), token.str("path")), (Some(3607), "token"));
        let authority = sources[1].map("configMap").unwrap();
        let item = authority.maps("items").next().unwrap();
        assert_eq!(
            (authority.str("name"), item.str("key"), item.str("path")),
            ("orch-root-ca.crt", "ca.crt", "ca.crt")
        );
        let item = sources[2].map("downwardAPI").unwrap().maps("items").next().unwrap();
        assert_eq!(
            (item.str("path"), item.str_at(&["fieldRef", "fieldPath"])),
            ("namespace", "metadata.namespace")
        );
    }
}
