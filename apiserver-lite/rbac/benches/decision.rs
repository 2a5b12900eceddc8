//! What a decision costs in a cluster with 10,000 bindings: it is that of the user's own bindings. Each sample is the mean of many decisions.

#![allow(clippy::expect_used, reason = "a bench that cannot go on has failed")]

#[path = "../../../tests/bench/figures.rs"]
mod figures;

use std::hint::black_box;
use std::time::{Duration, Instant};

use apiserver_rbac::{
    Access, Binding, BindingSubject, RbacDecision, RbacPolicy, Requester, RoleKey, Rule,
};

use figures::{Figure, Group, Unit};

const BINDINGS: usize = 10_000;
const NAMESPACES: usize = 100;
/// Rules of the role that all bindings give.
const RULES: usize = 20;
/// Bindings of one user in one namespace, as many as a busy service account has.
const OWN: usize = 50;
/// Decisions of a sample.
const BATCH: u32 = 1_000;
const SAMPLES: usize = 200;

fn policy() -> RbacPolicy {
    let mut policy = RbacPolicy::new("rbac.authorization.k8s.io");
    let role = RoleKey { namespace: String::new(), name: "edit".to_owned() };
    let rule = |nth: usize| Rule {
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        groups: vec![String::new()],
        resources: vec![format!("resources-{nth}"), format!("others-{nth}")],
        ..Rule::default()
    };
    policy.set_role(role.clone(), (0..RULES).map(rule).collect());
    let mut bind = |nth: usize, user: String, namespace: String| {
        let subjects = vec![BindingSubject::User(user)];
        policy.set_binding(Binding {
            namespace,
            name: format!("b-{nth}"),
            role: role.clone(),
            subjects,
        });
    };
    for nth in 0..BINDINGS {
        bind(nth, format!("user-{nth}"), format!("ns-{}", nth % NAMESPACES));
    }
    for nth in 0..OWN {
        bind(BINDINGS + nth, "busy".to_owned(), "ns-1".to_owned());
    }
    policy
}

fn measure(policy: &RbacPolicy, what: &str, user: &str, resource: &str, allowed: bool) {
    let groups = ["system:authenticated".to_owned(), "developers".to_owned()];
    let who = Requester { name: user, groups: &groups };
    let request = Access::Resource {
        verb: "watch",
        group: "",
        resource,
        subresource: "",
        namespace: "ns-1",
        name: "",
    };
    let decided = policy.decide(who, &request);
    assert_eq!(matches!(decided, RbacDecision::Allowed(_)), allowed, "{what}");
    let times = (0..SAMPLES).map(|_| {
        let began = Instant::now();
        for _ in 0..BATCH {
            black_box(policy.decide(black_box(who), black_box(&request)));
        }
        began.elapsed() / BATCH
    });
    let times: Vec<Duration> = times.collect();
    let what = format!("RBAC decision, {what}");
    Figure::of_times(Group::Engine, what, Unit::Nanos, times)
        .at(BINDINGS, "bindings")
        .tell()
        .expect("told");
}

fn main() {
    let policy = policy();
    measure(&policy, "allowed by the user's binding", "user-1", "resources-19", true);
    measure(&policy, "denied without a binding", "nobody", "resources-0", false);
    measure(&policy, "denied after 50 bindings of the user", "busy", "secrets", false);
}
