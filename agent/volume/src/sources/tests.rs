use proto_api::core::v1::{ConfigMap, Container, Secret};
use proto_api::yaml;

use super::*;

struct Fixed {
    config_maps: BTreeMap<String, ConfigMap>,
    secrets: BTreeMap<String, Secret>,
}

impl EnvObjects for Fixed {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)
    }
}

fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_value(yaml::parse(text).unwrap()).unwrap()
}

fn objects() -> Fixed {
    let mut config = ConfigMap::default();
    config.data.insert("a".into(), "1".into());
    config.data.insert("b.conf".into(), "2".into());
    config.binary_data.insert("c".into(), vec![0, 255]);
    let mut secret = Secret::default();
    secret.data.insert("password".into(), b"x".to_vec());
    Fixed {
        config_maps: [("config".to_owned(), config)].into(),
        secrets: [("secret".to_owned(), secret)].into(),
    }
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "web".into();
    pod.metadata.namespace = "default".into();
    pod.metadata.uid = "u1".into();
    pod.metadata.labels = [("app".into(), "web".into()), ("a/b".into(), "q\"".into())].into();
    let mut container = Container { name: "main".into(), ..Container::default() };
    container.resources.limits.insert("memory".into(), Quantity::from_bytes(3 << 20));
    container.resources.requests.insert("cpu".into(), Quantity::from_milli(1500));
    pod.spec.containers.push(container);
    pod
}

/// Reads one volume as written in a pod and compares its files, as `path mode content`, or the error.
fn check(volume: &str, expect: &[&str]) {
    let source: ApiVolume = from_yaml(volume);
    let shown = match super::volume(&Pod::default(), &source) {
        Ok(Volume { kind: VolumeKind::Projected(projected), .. }) => {
            let want = TokenWant { audience: String::new(), expiration_secs: 3607 };
            let inputs = PayloadInputs {
                pod: &pod(),
                objects: &objects(),
                tokens: &[(want, "ey.token".to_owned())].into(),
                allocatable: &[("cpu".to_owned(), Quantity::from_units(4))].into(),
                budget: &Budget::default(),
            };
            match projected.payload(&inputs) {
                Ok(payload) => payload
                    .files()
                    .map(|(path, file)| {
                        let text = String::from_utf8_lossy(&file.data);
                        format!("{path} {:o} {}", file.mode, text.escape_debug())
                    })
                    .collect(),
                Err(error) => vec![error.to_string()],
            }
        }
        Ok(other) => vec![format!("{:?}", other.kind)],
        Err(error) => vec![error.to_string()],
    };
    assert_eq!(shown, expect, "{volume}");
}

#[test]
fn config_maps() {
    check(
        "{name: v, configMap: {name: config}}",
        &["a 644 1", "b.conf 644 2", "c 644 \\0\u{fffd}"],
    );
    check(
        "{name: v, configMap: {name: config, defaultMode: 256, items: [{key: a, path: x/y}, {key: a, path: z, mode: 511}]}}",
        &["x/y 400 1", "z 777 1"],
    );
    check("{name: v, configMap: {name: absent}}", &[r#"configmap "absent" not found"#]);
    check("{name: v, configMap: {name: absent, optional: true}}", &[]);
    let missing = "{name: v, configMap: {name: config, items: [{key: absent, path: x}]}}";
    check(missing, &["configmap references non-existent configmap key: absent"]);
    check(
        "{name: v, configMap: {name: config, optional: true, items: [{key: absent, path: x}, {key: a, path: a}]}}",
        &["a 644 1"],
    );
    check(
        "{name: v, configMap: {name: config, items: [{key: a, path: ../x}]}}",
        &[r#"invalid path "../x": must not contain or start with '..'"#],
    );
    check("{name: v, configMap: {name: config, defaultMode: 512}}", &["invalid file mode 512"]);
}

#[test]
fn secrets() {
    check("{name: v, secret: {secretName: secret, defaultMode: 256}}", &["password 400 x"]);
    check("{name: v, secret: {secretName: absent}}", &[r#"secret "absent" not found"#]);
}

#[test]
fn fields_of_the_pod() {
    check(
        "{name: v, downwardAPI: {items: [
          {path: name, fieldRef: {fieldPath: metadata.name}},
          {path: labels, fieldRef: {fieldPath: metadata.labels}},
          {path: label, fieldRef: {fieldPath: \"metadata.labels['app']\"}},
          {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu}},
          {path: request, mode: 256, resourceFieldRef: {containerName: main, resource: requests.cpu, divisor: 1m}},
          {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]}}",
        &[
            "cpu 644 4",
            "label 644 web",
            r#"labels 644 a/b=\"q\\\"\"\napp=\"web\""#,
            "memory 644 3",
            "name 644 web",
            "request 400 1500",
        ],
    );
    let ip = "{name: v, downwardAPI: {items: [{path: ip, fieldRef: {fieldPath: status.podIP}}]}}";
    check(ip, &["unsupported fieldPath: status.podIP"]);
    check(
        "{name: v, downwardAPI: {items: [{path: x, resourceFieldRef: {containerName: absent, resource: limits.cpu}}]}}",
        &["container absent not found"],
    );
}

#[test]
fn projected_volumes_join_their_sources() {
    check(
        "{name: v, projected: {defaultMode: 288, sources: [
          {serviceAccountToken: {path: token, expirationSeconds: 3607}},
          {configMap: {name: config, items: [{key: a, path: ca.crt}]}},
          {secret: {name: secret}},
          {downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}}]}}",
        &["ca.crt 440 1", "namespace 440 default", "password 440 x", "token 440 ey.token"],
    );
    let other =
        "{name: v, projected: {sources: [{serviceAccountToken: {path: token, audience: vault}}]}}";
    check(other, &[r#"no token for audience "vault""#]);
}

#[test]
fn other_kinds() {
    check("{name: v}", &["EmptyDir(Disk)"]);
    check("{name: v, emptyDir: {}}", &["EmptyDir(Disk)"]);
    check(
        "{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}",
        &["EmptyDir(Memory { size_bytes: Some(1048576) })"],
    );
    check(
        "{name: v, hostPath: {path: /dev/null}}",
        &[r#"HostPath { path: "/dev/null", kind: Unset }"#],
    );
    check(
        "{name: v, hostPath: {path: /x, type: Nonsense}}",
        &[r#"volume "v": unknown hostPath type "Nonsense""#],
    );
    check(
        "{name: v, gitRepo: {repository: x}}",
        &[concat!(
            "volume \"v\": gitRepo volumes are not supported by this node agent: it runs programs that a repository brings ",
            "with the agent's rights; clone in an init container"
        )],
    );
}

#[test]
fn needs_are_all_objects() {
    let source = "{name: v, projected: {sources: [{serviceAccountToken: {path: t, expirationSeconds: 5}}, {configMap: {name: c, optional: true}}, {secret: {name: s}}]}}";
    let mut needs = VolumeRequirements::default();
    super::volume(&Pod::default(), &from_yaml(source)).unwrap().add_needs(&mut needs);
    let token = TokenWant { audience: String::new(), expiration_secs: TOKEN_SECS_MIN };
    let expect = VolumeRequirements {
        config_maps: ["c".to_owned()].into(),
        secrets: ["s".to_owned()].into(),
        tokens: [token].into(),
    };
    assert_eq!(needs, expect);
}

#[test]
fn tokens_belong_to_the_user_that_reads_them() {
    let token = "{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}";
    let kind = super::volume(&Pod::default(), &from_yaml(token)).unwrap().kind;
    let VolumeKind::Projected(projected) = kind else { panic!("{kind:?}") };
    let owner = |spec: &str| {
        let mut pod = pod();
        pod.spec = from_yaml(spec);
        let Ownership { uid, gid } = projected.ownership(&pod);
        (uid, gid)
    };
    let one = "{securityContext: {runAsUser: 7}, containers: [{name: a}, {name: b}]}";
    assert_eq!(owner(one), (Some(7), None));
    let two = "{securityContext: {runAsUser: 7}, containers: [{name: a}, {name: b, securityContext: {runAsUser: 8}}]}";
    assert_eq!(owner(two), (None, None));
    assert_eq!(owner("{containers: [{name: a}]}"), (None, None));
    let group = "{securityContext: {runAsUser: 7, fsGroup: 9}, containers: [{name: a}]}";
    assert_eq!(owner(group), (None, Some(9)));
}

/// One ConfigMap, whatever its name.
struct One(proto_api::core::v1::ConfigMap);
impl agent_pod::env::EnvObjects for One {
    fn config_map(&self, _: &str) -> Option<&proto_api::core::v1::ConfigMap> {
        Some(&self.0)
    }
    fn secret(&self, _: &str) -> Option<&proto_api::core::v1::Secret> {
        None
    }
}

/// One object under as many paths as a pod may have, in several volumes.
#[test]
fn the_payload_of_all_volumes_of_a_pod_is_bounded() {
    let mut map = proto_api::core::v1::ConfigMap::default();
    map.data.insert("k".into(), "x".repeat(1 << 20));
    let items = |n: usize| {
        let item = |n| KeyToPath { key: "k".into(), path: format!("p{n}"), mode: None };
        let keys = Keys {
            object: "m".into(),
            items: (0..n).map(item).collect(),
            optional: false,
            mode: 0o644,
        };
        Projected {
            plugin: VolumePlugin::ConfigMap,
            projections: vec![Projection::ConfigMap(keys)],
        }
    };
    let mut pod = pod();
    pod.metadata.annotations.insert("a".into(), "y".repeat(1 << 18));
    let (objects, tokens, nothing) = (One(map), BTreeMap::new(), BTreeMap::new());
    let budget = Budget::default();
    let inputs = PayloadInputs {
        pod: &pod,
        objects: &objects,
        tokens: &tokens,
        allocatable: &nothing,
        budget: &budget,
    };
    let over = SourceError::OverBudget(crate::budget::OverBudget::Bytes);
    assert_eq!(items(20).payload(&inputs).map(|payload| payload.len()), Ok(20));
    assert_eq!(items(2000).payload(&inputs).map(|payload| payload.len()), Err(over.clone()));
    let item = |n| DownwardAPIVolumeFile {
        path: format!("p{n}"),
        field_ref: Some(proto_api::core::v1::ObjectFieldSelector {
            field_path: "metadata.annotations['a']".into(),
            ..Default::default()
        }),
        ..DownwardAPIVolumeFile::default()
    };
    let fields = Projection::DownwardApi { items: (0..2000).map(item).collect(), mode: 0o644 };
    let fields = Projected { plugin: VolumePlugin::DownwardApi, projections: vec![fields] };
    let budget = Budget::default();
    let inputs = PayloadInputs { budget: &budget, ..inputs };
    assert_eq!(fields.payload(&inputs).map(|payload| payload.len()), Err(over));
}

/// One object with as many empty values as it may have, in as many sources as a pod may name.
#[test]
fn the_files_of_a_pod_are_bounded_in_number() {
    let mut map = proto_api::core::v1::ConfigMap::default();
    map.data =
        (0..crate::budget::POD_FILES_MAX).map(|n| (format!("k{n}"), String::new())).collect();
    let times = |n: usize| {
        let keys = Keys { object: "m".into(), items: Vec::new(), optional: false, mode: 0o644 };
        let projections = vec![Projection::ConfigMap(keys); n];
        Projected { plugin: VolumePlugin::Projected, projections }
    };
    let (pod, objects, tokens, nothing) = (pod(), One(map), BTreeMap::new(), BTreeMap::new());
    let files = |n: usize| {
        let inputs = PayloadInputs {
            pod: &pod,
            objects: &objects,
            tokens: &tokens,
            allocatable: &nothing,
            budget: &Budget::default(),
        };
        times(n).payload(&inputs).map(|payload| payload.len())
    };
    assert_eq!(files(1), Ok(crate::budget::POD_FILES_MAX));
    let steps = proto_api::steps::count_during(|| {
        let over = SourceError::OverBudget(crate::budget::OverBudget::Files);
        assert_eq!(files(1000), Err(over));
    });
    assert!(steps <= crate::budget::POD_FILES_MAX as u64 + 1, "{steps}");
}
