//! Secrets that a pod may use where its service account has the annotation `enforce-mountable-secrets`: those that the account lists, in the words of
//! Kubernetes' ServiceAccount plugin. Unlike there, secrets of projected volumes count as those of other volumes do.

use std::collections::BTreeSet;

use apiserver_schema::Map;
use proto_api::names::Names;

/// What Go's `strconv.ParseBool` takes for true.
const TRUE: &[&str] = &["1", "t", "T", "true", "TRUE", "True"];

/// The first secret of a new pod that its account does not list, as a refusal.
pub fn find_foreign(account: &Map, pod_spec: &Map, names: &Names) -> Option<String> {
    let allowed = AllowedSecrets::from_account(account, names)?;
    let volumes = pod_spec.maps("volumes").find_map(|volume| allowed.refuse_volume(volume));
    volumes
        .or_else(|| allowed.refuse_containers(pod_spec, "initContainers", "init container"))
        .or_else(|| allowed.refuse_containers(pod_spec, "containers", "container"))
        .or_else(|| allowed.refuse_pull_secrets(pod_spec))
}

/// The same of the containers that are added to a running pod.
pub fn find_foreign_in_ephemeral(account: &Map, pod_spec: &Map, names: &Names) -> Option<String> {
    let allowed = AllowedSecrets::from_account(account, names)?;
    allowed.refuse_containers(pod_spec, "ephemeralContainers", "ephemeral container")
}

/// What an account allows.
struct AllowedSecrets<'a> {
    name: &'a str,
    secrets: BTreeSet<&'a str>,
    pull_secrets: BTreeSet<&'a str>,
}

impl<'a> AllowedSecrets<'a> {
    /// `None` for an account that does not limit its pods.
    fn from_account(account: &'a Map, names: &Names) -> Option<Self> {
        let metadata = account.map("metadata")?;
        let annotation = names.label("enforce-mountable-secrets");
        let limits = TRUE.contains(&metadata.map("annotations")?.str(&annotation));
        let listed = |list: &str| {
            let all = account.maps(list).inspect(|_| proto_api::count_steps!(1));
            all.map(|listed| listed.str("name")).collect()
        };
        limits.then(|| Self {
            name: metadata.str("name"),
            secrets: listed("secrets"),
            pull_secrets: listed("imagePullSecrets"),
        })
    }

    /// `<what> is not allowed`, unless the account lists the secret.
    fn refuse(&self, secret: &str, what: impl FnOnce() -> String) -> Option<String> {
        let refusal = || {
            let (what, account) = (what(), self.name);
            format!(
                "{what}secret.secretName=\"{secret}\" is not allowed because service account {account} does not reference that secret"
            )
        };
        (!self.secrets.contains(secret)).then(refusal)
    }

    fn refuse_volume(&self, volume: &Map) -> Option<String> {
        let refuse = |name: &str| self.refuse(name, || "volume with ".to_owned());
        let of_volume = volume.map("secret").map(|secret| secret.str("secretName"));
        let sources = volume.map("projected").into_iter().flat_map(|all| all.maps("sources"));
        let projected = sources.filter_map(|source| Some(source.map("secret")?.str("name")));
        of_volume.into_iter().chain(projected).find_map(refuse)
    }

    fn refuse_containers(&self, spec: &Map, list: &str, kind: &str) -> Option<String> {
        spec.maps(list).find_map(|container| {
            let name = container.str("name");
            let variable = |variable: &Map| {
                let secret = variable.map("valueFrom")?.map("secretKeyRef")?.str("name");
                let what =
                    || format!("{kind} {name} with envVar {} referencing ", variable.str("name"));
                self.refuse(secret, what)
            };
            let all = |source: &Map| {
                let secret = source.map("secretRef")?.str("name");
                self.refuse(secret, || format!("{kind} {name} with envFrom referencing "))
            };
            let first = container.maps("env").find_map(variable);
            first.or_else(|| container.maps("envFrom").find_map(all))
        })
    }

    fn refuse_pull_secrets(&self, spec: &Map) -> Option<String> {
        spec.maps("imagePullSecrets").enumerate().find_map(|(nth, reference)| {
            let (secret, account) = (reference.str("name"), self.name);
            (!self.pull_secrets.contains(secret)).then(|| {
                format!(
                    "imagePullSecrets[{nth}].name=\"{secret}\" is not allowed because service account {account} does not reference that imagePullSecret"
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    fn decoded(json: &serde_json::Value) -> Map {
        let (engine, body) = (Engine::new(Names::new(Profile::Kubernetes)), json.to_string());
        let decoded = engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict);
        decoded.unwrap_or_else(|error| panic!("{body}: {error}")).object.fields
    }

    fn account(annotation: &str) -> Map {
        let annotations = json!({"kubernetes.io/enforce-mountable-secrets": annotation});
        decoded(&json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "sa", "annotations": annotations},
            "secrets": [{"name": "own"}],
            "imagePullSecrets": [{"name": "pull"}],
        }))
    }

    fn refusal(annotation: &str, spec: &serde_json::Value) -> String {
        let names = Names::new(Profile::Kubernetes);
        let pod = decoded(&json!({"apiVersion": "v1", "kind": "Pod", "spec": spec}));
        let (account, spec) = (account(annotation), pod.map("spec").unwrap());
        let found = find_foreign(&account, spec, names);
        found.or_else(|| find_foreign_in_ephemeral(&account, spec, names)).unwrap_or_default()
    }

    fn containers(list: &str, secret: &str) -> serde_json::Value {
        let variable =
            json!({"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}});
        json!({list: [{"name": "c", "env": [{"name": "A", "value": "b"}, variable]}]})
    }

    fn from(list: &str, secret: &str) -> serde_json::Value {
        json!({list: [{"name": "c", "envFrom": [{"secretRef": {"name": secret}}]}]})
    }

    #[test]
    fn every_place_of_a_secret_is_limited_to_those_of_the_account() {
        let end = "secret.secretName=\"other\" is not allowed because service account sa does not reference that secret";
        let volume = |source: serde_json::Value| json!({"volumes": [source]});
        let secret = |name: &str| volume(json!({"name": "v", "secret": {"secretName": name}}));
        let projected = |name: &str| {
            let sources = json!([{"configMap": {"name": "other"}}, {"secret": {"name": name}}]);
            volume(json!({"name": "v", "projected": {"sources": sources}}))
        };
        let of_env = |kind: &str| format!("{kind} c with envVar V referencing {end}");
        let of_all = |kind: &str| format!("{kind} c with envFrom referencing {end}");
        type Place<'a> = (&'a dyn Fn(&str) -> serde_json::Value, String);
        let places: [Place<'_>; 8] = [
            (&secret, format!("volume with {end}")),
            (&projected, format!("volume with {end}")),
            (&|name| containers("initContainers", name), of_env("init container")),
            (&|name| containers("containers", name), of_env("container")),
            (&|name| containers("ephemeralContainers", name), of_env("ephemeral container")),
            (&|name| from("initContainers", name), of_all("init container")),
            (&|name| from("containers", name), of_all("container")),
            (&|name| from("ephemeralContainers", name), of_all("ephemeral container")),
        ];
        for (spec, refused) in places {
            assert_eq!(refusal("true", &spec("other")), refused);
            assert_eq!(refusal("true", &spec("own")), "");
            assert_eq!(refusal("false", &spec("other")), "");
        }
    }

    #[test]
    fn pull_secrets_have_a_list_of_their_own() {
        let pulls =
            |names: [&str; 2]| json!({"imagePullSecrets": names.map(|name| json!({"name": name}))});
        assert_eq!(refusal("true", &pulls(["pull", "pull"])), "");
        assert_eq!(
            refusal("true", &pulls(["pull", "own"])),
            "imagePullSecrets[1].name=\"own\" is not allowed because service account sa does not reference that imagePullSecret"
        );
    }

    #[test]
    fn the_lists_of_an_account_are_read_once() {
        let names = Names::new(Profile::Kubernetes);
        let secrets: Vec<_> = (0..100).map(|nth| json!({"name": format!("s{nth}")})).collect();
        let mut account = account("true");
        let listed =
            decoded(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "secrets": secrets}));
        account.insert("secrets", listed.list("secrets").to_vec());
        let variables: Vec<_> = (0..100)
            .map(|nth| {
                let secret = json!({"name": format!("s{nth}"), "key": "k"});
                json!({"name": format!("V{nth}"), "valueFrom": {"secretKeyRef": secret}})
            })
            .collect();
        let spec = json!({"containers": [{"name": "c", "env": variables}]});
        let pod = decoded(&json!({"apiVersion": "v1", "kind": "Pod", "spec": spec}));
        let spec = pod.map("spec").unwrap();
        let steps = proto_api::steps::count_during(|| {
            assert_eq!(find_foreign(&account, spec, names), None);
        });
        assert_eq!(steps, 100 + 1, "the secrets and the pull secret");
    }

    #[test]
    fn the_annotation_is_read_as_go_reads_it() {
        let spec = from("containers", "other");
        for (annotation, limits) in
            [("true", true), ("T", true), ("1", true), ("yes", false), ("tRUE", false), ("", false)]
        {
            assert_eq!(!refusal(annotation, &spec).is_empty(), limits, "{annotation}");
        }
    }
}
