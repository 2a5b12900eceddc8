//! Which writes quotas admit, and what they are charged.

use proto_api::Quantity;
use proto_api::core::v1::{
    Container, PersistentVolumeClaim, Pod, PodAffinity, PodAffinityTerm, Service, ServicePort,
};
use proto_api::names::Profile;

use super::*;
use crate::{QuotaUsage, with_growth};

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn amounts(list: &str) -> ResourceList {
    let pair = |text: &str| {
        let (name, amount) = text.split_once('=').expect("name=amount");
        (name.to_owned(), amount.parse().expect("a quantity"))
    };
    list.split(',').filter(|text| !text.is_empty()).map(pair).collect()
}

/// A quota that has been counted.
fn quota(hard: &str, used: &str) -> ResourceQuota {
    let mut quota = ResourceQuota::default();
    quota.metadata.name = "q".into();
    quota.spec.hard = amounts(hard);
    quota.status.hard = amounts(hard);
    quota.status.used = amounts(used);
    quota
}

fn container(name: &str, requests: &str, limits: &str) -> Container {
    let mut container = Container { name: name.into(), ..Container::default() };
    container.resources.requests = amounts(requests);
    container.resources.limits = amounts(limits);
    container
}

fn pod(containers: &[(&str, &str)], initial: &[(&str, &str)]) -> Pod {
    let all = |list: &[(&str, &str)], prefix: &str| -> Vec<Container> {
        let named = list.iter().enumerate();
        named.map(|(at, (r, l))| container(&format!("{prefix}{at}"), r, l)).collect()
    };
    let mut pod = Pod::default();
    pod.spec.containers = all(containers, "c");
    pod.spec.init_containers = all(initial, "i");
    pod
}

/// The new `used` of one quota, or why not; empty if nothing is charged.
fn charged(quota: &ResourceQuota, new: Counted<'_>, old: Option<Counted<'_>>) -> String {
    match charge(&[quota], new, old, names(), Time::from_unix(1000)) {
        Ok(charges) => charges.iter().map(|charge| resource_amounts::list(&charge.used)).collect(),
        Err(refusal) => refusal.to_string(),
    }
}

fn of_pod(hard: &str, used: &str, pod: &Pod) -> String {
    charged(&quota(hard, used), Counted::Pod(pod), None)
}

#[test]
fn pods_are_charged_by_the_largest_of_sum_and_initial_container_and_by_overhead() {
    let mut one = pod(
        &[("cpu=1,memory=1Gi", "cpu=2"), ("cpu=500m", "memory=2Gi")],
        &[("cpu=3", ""), ("memory=512Mi", "cpu=1")],
    );
    one.spec.overhead = amounts("cpu=250m");
    for (name, used) in [
        ("pods", "1"),
        ("count/pods", "1"),
        ("cpu", "3250m"),
        ("requests.cpu", "3250m"),
        ("limits.cpu", "2250m"),
        ("memory", "1Gi"),
        ("limits.memory", "2Gi"),
    ] {
        assert_eq!(one_amount(&one, name), used, "{name}");
    }
}

fn one_amount(pod: &Pod, name: &str) -> String {
    let all = Counted::Pod(pod).amounts(names(), Time::from_unix(1000));
    all.get(name).map(Quantity::to_string).unwrap_or_default()
}

#[test]
fn refusals_have_kubernetes_texts() {
    let small = pod(&[("cpu=1", "")], &[]);
    for (hard, used, pod, text) in [
        (
            "pods=2",
            "pods=2",
            &small,
            "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (
            "cpu=1,pods=1",
            "cpu=500m,pods=1",
            &small,
            "exceeded quota: q, requested: cpu=1,pods=1, used: cpu=500m,pods=1, limited: cpu=1,pods=1",
        ),
        ("cpu=1,pods=1", "pods=0", &small, "status unknown for quota: q, resources: cpu,pods"),
        (
            "memory=1Gi,limits.cpu=1",
            "memory=0,limits.cpu=0",
            &pod(&[("cpu=1", ""), ("memory=1", "cpu=1")], &[("", "cpu=1")]),
            "failed quota: q: must specify limits.cpu for: c0; memory for: c0,i0",
        ),
        ("pods=1", "pods=0", &small, "pods=1"),
        ("requests.cpu=1", "requests.cpu=0", &small, "requests.cpu=1"),
        ("services=1", "services=1", &small, ""),
    ] {
        assert_eq!(of_pod(hard, used, pod), text, "{hard} {used}");
    }
}

#[test]
fn a_quota_limits_what_its_status_names() {
    let small = pod(&[("cpu=1", "")], &[]);
    let unknown = "status unknown for quota: q, resources: pods";
    for (hard, used, scope, text) in [
        ("", "", None, ""),
        ("configmaps=1", "configmaps=1", None, ""),
        ("pods=2", "pods=1", None, "pods=2"),
        ("configmaps=1,pods=2", "configmaps=1", None, unknown),
        ("pods=2", "", Some("NotBestEffort"), unknown),
        ("pods=2", "", Some("BestEffort"), ""),
    ] {
        let mut quota = quota(hard, used);
        quota.spec.hard = amounts("pods=0,memory=0");
        quota.spec.scopes = scope.into_iter().map(str::to_owned).collect();
        assert_eq!(charged(&quota, Counted::Pod(&small), None), text, "{hard} {scope:?}");
    }
    let service = Service::default();
    let counted = || Counted::Service(&service);
    let refused = charged(&quota("services=1", ""), counted(), Some(counted()));
    assert_eq!(refused, "status unknown for quota: q, resources: services", "without growth too");
}

#[test]
fn resources_with_domains_and_huge_pages_are_counted_by_request() {
    let gpu = pod(&[("example.com/gpu=2,hugepages-2Mi=4Mi", "")], &[]);
    let of = |name: &str| of_pod(&format!("{name}=8Mi"), &format!("{name}=0"), &gpu);
    assert_eq!(of("requests.example.com/gpu"), "requests.example.com/gpu=2");
    assert_eq!(of("hugepages-2Mi"), "hugepages-2Mi=4Mi");
    assert_eq!(of("requests.hugepages-2Mi"), "requests.hugepages-2Mi=4Mi");
    assert_eq!(of("example.com/gpu"), "", "no such resource of a quota");
}

#[test]
fn scopes_select_pods() {
    let effort = pod(&[("cpu=1", "")], &[]);
    let best_effort = pod(&[("example.com/gpu=1", "")], &[]);
    let mut deadline = pod(&[("", "")], &[]);
    deadline.spec.active_deadline_seconds = Some(0);
    let mut high = pod(&[("", "")], &[]);
    high.spec.priority_class_name = "high".into();
    let mut beyond = pod(&[("", "")], &[]);
    let term = PodAffinityTerm { namespaces: vec!["other".into()], ..PodAffinityTerm::default() };
    beyond.spec.affinity.get_or_insert_default().pod_affinity = Some(PodAffinity {
        required_during_scheduling_ignored_during_execution: vec![term],
        ..PodAffinity::default()
    });
    for (scope, within, without) in [
        ("BestEffort", &best_effort, &effort),
        ("NotBestEffort", &effort, &best_effort),
        ("Terminating", &deadline, &effort),
        ("NotTerminating", &effort, &deadline),
        ("PriorityClass", &high, &effort),
        ("CrossNamespacePodAffinity", &beyond, &effort),
    ] {
        let mut quota = quota("pods=5,services=5", "pods=0,services=0");
        quota.spec.scopes = vec![scope.into()];
        assert_eq!(charged(&quota, Counted::Pod(within), None), "pods=1,services=0", "{scope}");
        assert_eq!(charged(&quota, Counted::Pod(without), None), "", "{scope}");
        let service = Service::default();
        assert_eq!(charged(&quota, Counted::Service(&service), None), "", "{scope}");
    }
    for (operator, values, of_high, of_none) in [
        ("In", vec!["high"], true, false),
        ("In", vec!["low"], false, false),
        ("NotIn", vec!["high"], false, true),
        ("NotIn", vec!["low"], true, true),
        ("Exists", vec![], true, false),
        ("DoesNotExist", vec![], false, true),
    ] {
        let mut quota = quota("pods=5", "pods=0");
        let selector = quota.spec.scope_selector.get_or_insert_default();
        selector.match_expressions.push(proto_api::core::v1::ScopedResourceSelectorRequirement {
            scope_name: "PriorityClass".into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        });
        let is_charged = |pod: &Pod| !charged(&quota, Counted::Pod(pod), None).is_empty();
        assert_eq!(
            (is_charged(&high), is_charged(&effort)),
            (of_high, of_none),
            "{operator} {values:?}"
        );
    }
}

#[test]
fn pods_that_have_ended_count_as_objects_only() {
    let mut ended = pod(&[("cpu=1", "")], &[]);
    ended.status.phase = "Succeeded".into();
    let mut lost = pod(&[("cpu=1", "")], &[]);
    lost.metadata.deletion_timestamp = Some(Time::from_unix(900));
    lost.metadata.deletion_grace_period_seconds = Some(30);
    let mut going = lost.clone();
    going.metadata.deletion_grace_period_seconds = Some(300);
    for (pod, pods) in [(&ended, ""), (&lost, ""), (&going, "1")] {
        assert_eq!(
            (one_amount(pod, "count/pods").as_str(), one_amount(pod, "pods").as_str()),
            ("1", pods)
        );
    }
    let spec = quota("pods=1,count/pods=9,nothing=1", "").spec;
    let mut usage = QuotaUsage::new(&spec, names(), Time::from_unix(1000));
    usage.add_pods(&[ended, lost, going]);
    // Its grace period ends at 1200, and it is counted through that second.
    assert_eq!(usage.changes_in(), Some(std::time::Duration::from_secs(201)));
    let status = usage.status(|name| name != "nothing");
    assert_eq!(resource_amounts::list(&status.used), "count/pods=3,pods=1");
    assert_eq!(status.hard, spec.hard);
    // While it was counted five pods were charged and one quota had too much before.
    let grown =
        with_growth(&status, &amounts("pods=7,count/pods=1"), &amounts("pods=12,count/pods=1"));
    assert_eq!(resource_amounts::list(&grown.used), "count/pods=3,pods=6");
}

#[test]
fn services_and_claims_are_charged_for_what_an_update_adds() {
    let service = |kind: &str| {
        let mut service = Service::default();
        service.spec.type_ = kind.into();
        service.spec.ports = vec![ServicePort::default(), ServicePort::default()];
        service
    };
    let (plain, node) = (service("ClusterIP"), service("NodePort"));
    let all = "services=1,services.loadbalancers=1,services.nodeports=2";
    let used = |used: &str| quota(all, used);
    let (none, one) = (
        used("services=0,services.loadbalancers=0,services.nodeports=0"),
        used("services=1,services.loadbalancers=0,services.nodeports=0"),
    );
    let create = |service: &Service| charged(&none, Counted::Service(service), None);
    assert_eq!(create(&plain), "services=1,services.loadbalancers=0,services.nodeports=0");
    assert_eq!(
        create(&service("LoadBalancer")),
        "services=1,services.loadbalancers=1,services.nodeports=2"
    );
    let mut bare = service("LoadBalancer");
    for (allocates, given, node_ports) in
        [(Some(false), 0, 0), (Some(false), 30_000, 1), (Some(true), 30_000, 2), (None, 0, 2)]
    {
        bare.spec.allocate_load_balancer_node_ports = allocates;
        bare.spec.ports[0].node_port = given;
        let used = format!("services=1,services.loadbalancers=1,services.nodeports={node_ports}");
        assert_eq!(create(&bare), used, "{allocates:?}, port {given}");
    }
    let update = |new: &Service, old: &Service| {
        charged(&one, Counted::Service(new), Some(Counted::Service(old)))
    };
    assert_eq!(update(&node, &plain), "services=1,services.loadbalancers=0,services.nodeports=2");
    assert_eq!(update(&plain, &node), "", "what is given back is counted later");
    assert_eq!(update(&node, &node), "");

    let claim = |storage: &str, class: Option<&str>| {
        let mut claim = PersistentVolumeClaim::default();
        claim.spec.resources.requests = amounts(&format!("storage={storage}"));
        claim.spec.storage_class_name = class.map(str::to_owned);
        claim
    };
    let fast = "fast.storageclass.storage.k8s.io/";
    let hard =
        format!("requests.storage=10Gi,{fast}requests.storage=5Gi,{fast}persistentvolumeclaims=1");
    let empty =
        format!("requests.storage=0,{fast}requests.storage=0,{fast}persistentvolumeclaims=0");
    let quota = quota(&hard, &empty);
    let of = |claim: &PersistentVolumeClaim| charged(&quota, Counted::Claim(claim), None);
    assert_eq!(
        of(&claim("4Gi", Some("fast"))),
        format!("{fast}persistentvolumeclaims=1,{fast}requests.storage=4Gi,requests.storage=4Gi")
    );
    assert_eq!(
        of(&claim("6Gi", None)),
        format!("{fast}persistentvolumeclaims=0,{fast}requests.storage=0,requests.storage=6Gi")
    );
    let mut shrunk = claim("1Gi", None);
    shrunk.status.allocated_resources = amounts("storage=3Gi");
    assert!(of(&shrunk).ends_with(",requests.storage=3Gi"), "{}", of(&shrunk));
    assert!(of(&claim("6Gi", Some("fast"))).starts_with("exceeded quota: q, requested: fast."));
}

#[test]
fn other_kinds_are_charged_by_number_and_quotas_in_order() {
    let maps = CountedResource::new("", "configmaps");
    let sets = CountedResource::new("apps", "replicasets");
    let quotas =
        [quota("configmaps=3", "configmaps=1"), quota("count/configmaps=2", "count/configmaps=2")];
    let both: Vec<&ResourceQuota> = quotas.iter().collect();
    let error = charge(&both, Counted::Other(&maps), None, names(), Time::from_unix(0));
    assert!(
        matches!(error, Err(QuotaRefusal::Exceeded { used, .. }) if used == "count/configmaps=2")
    );
    let first = charge(&both[..1], Counted::Other(&maps), None, names(), Time::from_unix(0));
    assert_eq!(first, Ok(vec![Charge { quota: 0, used: amounts("configmaps=2") }]));
    let other = quota("count/replicasets.apps=1,replicasets=1", "count/replicasets.apps=0");
    assert_eq!(charged(&other, Counted::Other(&sets), None), "count/replicasets.apps=1");
    // What is used beyond the limit, because the limit was lowered, does not keep other resources out.
    let lowered = quota("pods=1,configmaps=5", "pods=9,configmaps=0");
    assert_eq!(charged(&lowered, Counted::Other(&maps), None), "configmaps=1,pods=9");
}
