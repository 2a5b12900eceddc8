use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::{
    ConfigMap, ConfigMapEnvSource, ConfigMapKeySelector, Container, EnvFromSource, EnvVar,
    EnvVarSource, LocalObjectReference, ObjectFieldSelector, Pod, ResourceFieldSelector, Secret,
    SecretKeySelector,
};

use proptest::prelude::Strategy as _;

use super::*;

#[derive(Default)]
struct Store {
    config_maps: BTreeMap<String, ConfigMap>,
    secrets: BTreeMap<String, Secret>,
}

impl EnvObjects for Store {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)
    }
}

fn store() -> Store {
    let mut store = Store::default();
    let map = store.config_maps.entry("map".into()).or_default();
    for (key, value) in [("A", "map-a"), ("1BAD", "x"), ("b.c", "map-bc")] {
        map.data.insert(key.into(), value.into());
    }
    let secret = store.secrets.entry("secret".into()).or_default();
    secret.data.insert("TOKEN".into(), b"s3cret".to_vec());
    secret.data.insert("binary".into(), vec![0xff]);
    store
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "p".into();
    pod.metadata.namespace = "ns".into();
    pod.metadata.labels.insert("app".into(), "web".into());
    pod.spec.node_name = "n1".into();
    pod
}

fn literal(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: value.into(), ..EnvVar::default() }
}

fn from(name: &str, source: EnvVarSource) -> EnvVar {
    EnvVar { name: name.into(), value_from: Some(source), ..EnvVar::default() }
}

fn reference(name: &str) -> LocalObjectReference {
    LocalObjectReference { name: name.into() }
}

fn map_key(name: &str, key: &str, optional: Option<bool>) -> EnvVarSource {
    let local_object_reference = reference(name);
    let key = ConfigMapKeySelector { local_object_reference, key: key.into(), optional };
    EnvVarSource { config_map_key_ref: Some(key), ..EnvVarSource::default() }
}

fn secret_key(name: &str, key: &str) -> EnvVarSource {
    let local_object_reference = reference(name);
    let key = SecretKeySelector { local_object_reference, key: key.into(), optional: None };
    EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() }
}

fn field(path: &str) -> EnvVarSource {
    let field = ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() };
    EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }
}

fn run(container: &Container, services: &[ServiceEnv]) -> Result<Vec<(String, String)>, EnvError> {
    let (pod, store, allocatable) = (pod(), store(), BTreeMap::new());
    environment(
        container,
        &EnvInputs {
            pod: &pod,
            containers: ContainersByName::from_pod(&pod),
            host_ips: &["10.0.0.1".into()],
            pod_ips: &["10.1.0.2".into(), "fd00::2".into()],
            objects: &store,
            services,
            allocatable: &allocatable,
        },
    )
}

fn check(container: Container, store: &Store) -> Result<(), EnvError> {
    let (name, mut pod) = (container.name.clone(), pod());
    pod.spec.containers = vec![container];
    check_environments(&pod, store).remove(&name).map_or(Ok(()), Err)
}

fn whole_map(name: &str, prefix: &str) -> EnvFromSource {
    let local_object_reference = reference(name);
    EnvFromSource {
        prefix: prefix.into(),
        config_map_ref: Some(ConfigMapEnvSource { local_object_reference, optional: None }),
        ..EnvFromSource::default()
    }
}

fn store_of(maps: &[(&str, &[(&str, &str)])]) -> Store {
    let mut store = Store::default();
    for (name, data) in maps {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let map = ConfigMap { data: data.collect(), ..ConfigMap::default() };
        store.config_maps.insert((*name).to_owned(), map);
    }
    store
}

fn values(container: &Container, store: &Store) -> Result<BTreeMap<String, String>, EnvError> {
    let (pod, allocatable) = (pod(), BTreeMap::new());
    let inputs = EnvInputs {
        pod: &pod,
        containers: ContainersByName::from_pod(&pod),
        host_ips: &[],
        pod_ips: &[],
        objects: store,
        services: &[],
        allocatable: &allocatable,
    };
    environment(container, &inputs).map(|list| list.into_iter().collect())
}

#[test]
fn of_objects_that_are_named_again_the_last_entry_wins() {
    let store = store_of(&[
        ("a", &[("X", "a"), ("ONLY_A", "a"), ("P_X", "a")]),
        ("b", &[("X", "b"), ("ONLY_B", "b")]),
    ]);
    let entry = |text: &str| match text.split_once(':') {
        Some((name, prefix)) => whole_map(name, prefix),
        None => whole_map(text, ""),
    };
    let table = [
        ("a b", "X=b ONLY_A=a ONLY_B=b P_X=a"),
        ("a b a", "X=a ONLY_A=a ONLY_B=b P_X=a"),
        ("a b a b", "X=b ONLY_A=a ONLY_B=b P_X=a"),
        ("a a:P_", "X=a ONLY_A=a P_ONLY_A=a P_P_X=a P_X=a"),
        ("b:P_ a b:P_", "P_ONLY_B=b P_X=b X=a ONLY_A=a"),
        ("a b:P_ a", "P_ONLY_B=b P_X=a X=a ONLY_A=a"),
    ];
    for (order, expect) in table {
        let env_from = order.split(' ').map(entry).collect();
        let container = Container { env_from, ..Container::default() };
        let expect = expect.split(' ').filter_map(|pair| pair.split_once('='));
        let expect: BTreeMap<_, _> =
            expect.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(values(&container, &store), Ok(expect), "{order}");
    }
    // Whether an object may be missing is said by each entry.
    let mut optional = whole_map("none", "");
    optional.config_map_ref.as_mut().expect("a reference").optional = Some(true);
    for env_from in
        [vec![whole_map("none", ""), optional.clone()], vec![optional, whole_map("none", "")]]
    {
        let container = Container { env_from, ..Container::default() };
        assert_eq!(values(&container, &store), Err(EnvError::NoConfigMap("none".into())));
    }
}

/// A thousand entries of one ConfigMap with 150,000 keys were 70 s of a node's only thread.
#[test]
fn work_on_the_environments_of_a_pod_is_bounded() {
    let keys = |count: usize, first: &str| -> ConfigMap {
        let data = (0..count).map(|n| (format!("{first}{n}"), String::new()));
        ConfigMap { data: data.collect(), ..ConfigMap::default() }
    };
    let mut store = Store::default();
    store.config_maps.insert("most".into(), keys(STEPS_MAX, "K"));
    store.config_maps.insert("more".into(), keys(STEPS_MAX + 1, "K"));
    store.config_maps.insert("invalid".into(), keys(STEPS_MAX + 1, "1"));
    store.config_maps.insert("large".into(), {
        let data = [("K".to_owned(), "x".repeat(1 << 20 >> 1))].into();
        ConfigMap { data, ..ConfigMap::default() }
    });
    let container = |env_from: Vec<EnvFromSource>| Container {
        name: "c".into(),
        env_from,
        ..Container::default()
    };
    let again = |name: &str| container(vec![whole_map(name, ""); 1000]);
    let prefixed = (0..1000).map(|n| whole_map("invalid", &format!("{n}"))).collect();
    let refers = (0..1000).map(|_| from("V", map_key("large", "K", None))).collect();
    let expanded = (0..1000)
        .flat_map(|n| [literal("A", &"x".repeat(100_000)), literal("B", &format!("{n} $(A)"))]);
    let too_many = Err(EnvError::TooManySteps { container: "c".into() });
    let table = [
        ("the same often", again("most"), Ok(())),
        ("more keys", again("more"), too_many.clone()),
        ("invalid names", again("invalid"), too_many.clone()),
        ("invalid prefixes", container(prefixed), too_many.clone()),
        ("one variable", Container { env: refers, ..container(vec![]) }, too_many.clone()),
        ("expanded", Container { env: expanded.collect(), ..container(vec![]) }, too_many),
    ];
    for (what, container, expect) in table {
        let steps = proto_api::steps::count_during(|| {
            assert_eq!(check(container.clone(), &store), expect, "{what}");
            assert_eq!(values(&container, &store).map(drop), expect, "{what}");
        });
        assert!(steps <= 2 * (STEPS_MAX as u64 + 1), "{what}: {steps}");
    }
    // What is enough for one container is shared by those of a pod.
    let mut pod = pod();
    for name in ["a", "b", "d"] {
        let container = Container { name: name.into(), ..again("most") };
        pod.spec.containers.push(container);
    }
    pod.spec.containers.push(Container { name: "nothing".into(), ..Container::default() });
    let steps = proto_api::steps::count_during(|| {
        let failed = check_environments(&pod, &store);
        assert_eq!(failed.into_keys().collect::<Vec<_>>(), ["b", "d"]);
    });
    assert!(steps <= STEPS_MAX as u64 + 3, "{steps}");
}

/// Of a pod without addresses, in a namespace without Services.
fn without_addresses<'a>(
    pod: &'a Pod,
    objects: &'a Store,
    allocatable: &'a BTreeMap<String, Quantity>,
) -> EnvInputs<'a> {
    let containers = ContainersByName::from_pod(pod);
    EnvInputs { pod, containers, host_ips: &[], pod_ips: &[], objects, services: &[], allocatable }
}

#[test]
fn a_container_is_found_by_the_name_in_a_resource_field() {
    let named = |name: &str, cpu: &str| {
        let mut container = Container { name: name.into(), ..Container::default() };
        container.resources.limits.insert("cpu".into(), cpu.parse().expect("quantity"));
        container
    };
    let mut pod = pod();
    pod.spec.containers = vec![named("a", "1"), named("a", "2"), named("b", "3")];
    pod.spec.init_containers = vec![named("b", "4"), named("i", "5")];
    let (store, allocatable) = (Store::default(), BTreeMap::new());
    for (name, expect) in [("", "6"), ("a", "1"), ("b", "3"), ("i", "5")] {
        let inputs = without_addresses(&pod, &store, &allocatable);
        let field = ResourceFieldSelector {
            container_name: name.into(),
            resource: "limits.cpu".into(),
            ..ResourceFieldSelector::default()
        };
        let source = EnvVarSource { resource_field_ref: Some(field), ..EnvVarSource::default() };
        let own = Container { env: vec![from("V", source)], ..named("own", "6") };
        assert_eq!(environment(&own, &inputs), Ok(vec![("V".into(), expect.into())]), "{name}");
    }
}

#[test]
fn later_sources_win_and_references_see_what_came_before() {
    let service = ServiceEnv { name: "a".into(), cluster_ip: "10.2.0.1".into(), ports: vec![] };
    let container = Container {
        env_from: vec![EnvFromSource {
            config_map_ref: Some(ConfigMapEnvSource {
                local_object_reference: reference("map"),
                optional: None,
            }),
            ..EnvFromSource::default()
        }],
        env: vec![
            literal("X", "$(A) $(LATER) $(A_SERVICE_HOST)"),
            literal("A", "env"),
            literal("LATER", "$$(A)=$(A)"),
        ],
        ..Container::default()
    };
    let expect = [
        ("A_SERVICE_HOST", "10.2.0.1"),
        ("A", "env"),
        ("b.c", "map-bc"),
        ("X", "map-a $(LATER) 10.2.0.1"),
        ("LATER", "$(A)=env"),
    ];
    let expect: Vec<(String, String)> =
        expect.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    assert_eq!(run(&container, &[service]), Ok(expect));
}

#[test]
fn single_values() {
    let cases = [
        (map_key("map", "A", None), Ok(Some("map-a"))),
        (map_key("map", "Z", Some(true)), Ok(None)),
        (map_key("none", "A", Some(true)), Ok(None)),
        (map_key("none", "A", None), Err("configmap \"none\" not found")),
        (map_key("map", "Z", None), Err("couldn't find key Z in ConfigMap ns/map")),
        (secret_key("secret", "TOKEN"), Ok(Some("s3cret"))),
        (secret_key("none", "TOKEN"), Err("secret \"none\" not found")),
        (secret_key("secret", "binary"), Err("key binary in Secret secret is not valid UTF-8")),
        (field("metadata.name"), Ok(Some("p"))),
        (field("metadata.labels['app']"), Ok(Some("web"))),
        (field("metadata.annotations['none']"), Ok(Some(""))),
        (field("spec.nodeName"), Ok(Some("n1"))),
        (field("status.hostIP"), Ok(Some("10.0.0.1"))),
        (field("status.podIPs"), Ok(Some("10.1.0.2,fd00::2"))),
        (field("spec.nonsense"), Err("unsupported fieldPath: spec.nonsense")),
    ];
    for (source, expect) in cases {
        let container = Container { env: vec![from("V", source.clone())], ..Container::default() };
        let got = run(&container, &[]).map(|list| list.into_iter().next().map(|(_, value)| value));
        let got = got.map_err(|e| e.to_string());
        let expect = expect.map(|v| v.map(str::to_owned)).map_err(str::to_owned);
        assert_eq!(got, expect, "{source:?}");
    }
}

#[test]
fn amounts_round_up_in_units_of_the_divisor() {
    let mut container = Container::default();
    for (name, amount) in [("cpu", "1500m"), ("memory", "100Mi")] {
        container.resources.limits.insert(name.into(), amount.parse().expect("quantity"));
    }
    container.resources.requests.insert("cpu".into(), "250m".parse().expect("quantity"));
    let allocatable: BTreeMap<String, Quantity> =
        [("ephemeral-storage".to_owned(), "1Gi".parse().expect("quantity"))].into();
    let cases = [
        ("limits.cpu", "0", Some("2")),
        ("limits.cpu", "1m", Some("1500")),
        ("requests.cpu", "1m", Some("250")),
        ("requests.cpu", "1", Some("1")),
        ("limits.memory", "1", Some("104857600")),
        ("limits.memory", "1Gi", Some("1")),
        ("requests.memory", "1Mi", Some("100")),
        ("limits.ephemeral-storage", "1Mi", Some("1024")),
        ("limits.magic", "1", None),
        ("cpu", "1", None),
    ];
    for (resource, divisor, expect) in cases {
        let selector = ResourceFieldSelector {
            resource: resource.into(),
            divisor: divisor.parse().expect("quantity"),
            ..ResourceFieldSelector::default()
        };
        let got = resource_value(&selector, &container, &allocatable).ok();
        assert_eq!(got.as_deref(), expect, "{resource} {divisor}");
    }
}

#[test]
fn resource_field_values_are_rounded_up_and_huge_pages_are_those_of_the_limits() {
    let quantity = |text: &str| text.parse::<Quantity>().expect("quantity");
    let mut container = Container::default();
    container.resources.limits = BTreeMap::from([
        ("memory".to_owned(), quantity("9223372036854775807")),
        ("hugepages-1Gi".to_owned(), quantity("2Gi")),
    ]);
    let huge = |size: &str| (format!("hugepages-{size}"), quantity("4Gi"));
    let allocatable = BTreeMap::from([huge("2Mi"), huge("1Gi")]);
    let table = [
        ("limits.memory", "1", "9223372036854775807"),
        ("limits.memory", "2", "4611686018427387904"),
        ("limits.memory", "9223372036854775807", "1"),
        ("limits.hugepages-1Gi", "1Gi", "2"),
        ("limits.hugepages-2Mi", "1", "0"),
    ];
    for (resource, divisor, expect) in table {
        let (resource, divisor) = (resource.to_owned(), quantity(divisor));
        let selector = ResourceFieldSelector { resource, divisor, ..Default::default() };
        let got = resource_value(&selector, &container, &allocatable);
        assert_eq!(got.as_deref(), Ok(expect), "{selector:?}");
    }
}

#[test]
fn services_show_under_their_names() {
    let web = ServiceEnv {
        name: "my-web".into(),
        cluster_ip: "10.2.0.3".into(),
        ports: vec![("http".into(), "TCP".into(), 80), ("".into(), "UDP".into(), 53)],
    };
    let variables: BTreeMap<String, String> = service_variables(&web).into_iter().collect();
    let cases = [
        ("MY_WEB_SERVICE_HOST", "10.2.0.3"),
        ("MY_WEB_SERVICE_PORT", "80"),
        ("MY_WEB_SERVICE_PORT_HTTP", "80"),
        ("MY_WEB_PORT", "tcp://10.2.0.3:80"),
        ("MY_WEB_PORT_80_TCP", "tcp://10.2.0.3:80"),
        ("MY_WEB_PORT_80_TCP_PROTO", "tcp"),
        ("MY_WEB_PORT_80_TCP_PORT", "80"),
        ("MY_WEB_PORT_80_TCP_ADDR", "10.2.0.3"),
        ("MY_WEB_PORT_53_UDP", "udp://10.2.0.3:53"),
    ];
    for (name, value) in cases {
        assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(variables.len(), 12);
}

#[test]
fn needs_are_listed() {
    let container = Container {
        env: vec![
            from("A", map_key("m1", "k", None)),
            from("B", secret_key("s1", "k")),
            literal("C", "c"),
        ],
        env_from: vec![EnvFromSource {
            config_map_ref: Some(ConfigMapEnvSource {
                local_object_reference: reference("m2"),
                optional: Some(true),
            }),
            ..EnvFromSource::default()
        }],
        ..Container::default()
    };
    let needs = env_requirements(&container);
    assert_eq!(needs.config_maps.into_iter().collect::<Vec<_>>(), ["m1", "m2"]);
    assert_eq!(needs.secrets.into_iter().collect::<Vec<_>>(), ["s1"]);
}

#[test]
fn invalid_environment_variable_names_are_reported() {
    let mut store = store();
    let map = ConfigMap {
        data: [("1st".into(), "x".into()), ("ok".into(), "y".into())].into(),
        ..ConfigMap::default()
    };
    store.config_maps.insert("odd".into(), map);
    let container = Container {
        env_from: vec![EnvFromSource {
            config_map_ref: Some(ConfigMapEnvSource {
                local_object_reference: reference("odd"),
                ..ConfigMapEnvSource::default()
            }),
            ..EnvFromSource::default()
        }],
        ..Container::default()
    };
    let told = "Keys [1st] from the EnvFrom configMap ns/odd were skipped since they are considered \
                invalid environment variable names.";
    assert_eq!(skipped_keys(&container, "ns", &store), [told]);
    let mut prefixed = container;
    prefixed.env_from[0].prefix = "P_".into();
    assert!(skipped_keys(&prefixed, "ns", &store).is_empty());
    // One message of bounded length, however often and with however many keys an object is named.
    let many = (100..STEPS_MAX).map(|n| (n.to_string(), String::new()));
    let map = ConfigMap { data: many.collect(), ..ConfigMap::default() };
    store.config_maps.insert("many".into(), map);
    let entries = [vec![whole_map("many", ""); 1000], vec![whole_map("odd", ""); 1000]].concat();
    let container = Container { env_from: entries, ..Container::default() };
    let messages = skipped_keys(&container, "ns", &store);
    let [long, short] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!(short, told);
    assert!(long.starts_with("Keys [100, 1000, 10000, ") && long.len() < 1200, "{long}");
    let shown = long.split_once("] ").expect("an end").0.matches(", ").count() + 1;
    let others =
        format!(" and {} others] from the EnvFrom configMap ns/many", STEPS_MAX - 100 - shown);
    assert!(long.contains(&others), "{long}");
}

/// `A0` has 64 bytes, each other variable sixteen times the bytes of the one before.
fn doubling(levels: usize) -> Container {
    let mut env = vec![literal("A0", &"x".repeat(64))];
    env.extend(
        (1..=levels).map(|n| literal(&format!("A{n}"), &format!("$(A{})", n - 1).repeat(16))),
    );
    Container { name: "c".into(), env, ..Container::default() }
}

#[test]
fn variables_that_refer_to_each_other_come_to_no_more_than_the_bound() {
    let run = |container: &Container| run(container, &[]);
    assert!(run(&doubling(3)).is_ok());
    for levels in [4, 5, 8, 60] {
        let error = run(&doubling(levels)).expect_err("more than a container may have");
        let expect = EnvError::TooLarge {
            container: "c".into(),
            variable: "A4".into(),
            limit: POD_BYTES_MAX,
        };
        assert_eq!(error, expect, "{levels}");
    }
    let text = run(&doubling(8)).expect_err("too large").to_string();
    assert_eq!(
        text,
        "environment of container \"c\" is more than 1048576 bytes with variable \"A4\""
    );
}

#[test]
fn an_object_that_is_named_often_counts_each_time() {
    let mut store = Store::default();
    let map = store.config_maps.entry("map".into()).or_default();
    map.data.insert("K".into(), "x".repeat(400_000));
    let from = |n: usize| EnvFromSource {
        prefix: format!("P{n}_"),
        config_map_ref: Some(ConfigMapEnvSource {
            local_object_reference: reference("map"),
            optional: None,
        }),
        ..EnvFromSource::default()
    };
    let pod = pod();
    let allocatable = BTreeMap::new();
    let inputs = without_addresses(&pod, &store, &allocatable);
    for (times, fits) in [(1, true), (2, true), (3, false), (1000, false)] {
        let env_from = (0..times).map(from).collect();
        let container = Container { name: "c".into(), env_from, ..Container::default() };
        assert_eq!(environment(&container, &inputs).is_ok(), fits, "{times}");
        assert_eq!(check(container, &store).is_ok(), fits, "{times}");
    }
}

#[test]
fn the_api_server_is_linked_unless_a_service_has_its_name() {
    let service = |name: &str, cluster_ip: &str| ServiceEnv {
        name: name.into(),
        cluster_ip: cluster_ip.into(),
        ports: Vec::new(),
    };
    let (api, shop) = (service("kubernetes", "10.96.0.1"), service("shop", "10.96.0.9"));
    let own = service("kubernetes", "10.96.0.7");
    let linked =
        |own: &[&ServiceEnv], api: Option<&ServiceEnv>| linked_services(own.iter().copied(), api);
    assert_eq!(linked(&[&shop], Some(&api)), [api.clone(), shop.clone()]);
    assert_eq!(linked(&[&own, &shop], Some(&api)), [own, shop.clone()]);
    assert_eq!(linked(&[&shop], None), [shop]);
    let mut pod = Pod::default();
    for (links, expected) in [(None, true), (Some(true), true), (Some(false), false)] {
        pod.spec.enable_service_links = links;
        assert_eq!(links_services(&pod), expected);
    }
}

#[test]
fn services_of_a_namespace_leave_a_pod_its_own_room() {
    let services: Vec<ServiceEnv> = (0..3000)
        .map(|n| ServiceEnv {
            name: format!("service-{n}"),
            cluster_ip: "10.96.0.1".into(),
            ports: vec![("http".into(), "TCP".into(), 80)],
        })
        .collect();
    let container = Container {
        name: "c".into(),
        env: vec![literal("A", &"x".repeat(POD_BYTES_MAX - 1))],
        ..Container::default()
    };
    let env = run(&container, &services).expect("both fit");
    assert!(env.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() > POD_BYTES_MAX + 500_000);
    let more = Container { env: vec![literal("A", &"x".repeat(POD_BYTES_MAX))], ..container };
    assert!(run(&more, &services).is_err());
}

proptest::proptest! {
    /// Whatever the references, the environment stays within the limit and `check` gives the result of `environment`.
    #[test]
    fn the_environment_is_within_the_bound_and_as_checked(
        values in proptest::collection::vec(
            proptest::collection::vec(proptest::prop_oneof![
                4 => (0..6usize).prop_map(|n| format!("$(V{n})")),
                1 => proptest::strategy::Just("$$(V1)$".to_owned()),
                1 => (0..40_000usize).prop_map(|n| "y".repeat(n)),
            ], 0..12),
            0..14,
        )
    ) {
        use proptest::prelude::*;
        let env = values.iter().enumerate();
        let env = env.map(|(n, parts)| literal(&format!("V{}", n % 6), &parts.concat())).collect();
        let container = Container { name: "c".into(), env, ..Container::default() };
        let pod = pod();
        let (store, allocatable) = (Store::default(), BTreeMap::new());
        let inputs = EnvInputs {
            pod: &pod, containers: ContainersByName::from_pod(&pod), host_ips: &[], pod_ips: &[],
            objects: &store, services: &[], allocatable: &allocatable,
        };
        let (made, checked) = (environment(&container, &inputs), check(container, &store));
        prop_assert_eq!(made.as_ref().err(), checked.as_ref().err());
        if let Ok(made) = made {
            prop_assert!(made.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() <= POD_BYTES_MAX);
        }
    }
}
