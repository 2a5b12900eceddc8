//! The roles and bindings of a cluster, kept as they change, and the decision of a request.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::binding::{Binding, BindingSubject, RoleKey};
use crate::rule::{Access, Rule};

/// The roles and bindings of a cluster.
#[derive(Clone, Debug)]
pub struct RbacPolicy {
    /// API group of roles, domain included, for messages.
    group: String,
    roles: HashMap<RoleKey, Arc<[Rule]>>,
    /// By namespace and name.
    bindings: HashMap<(String, String), Arc<Binding>>,
    /// Names of the bindings of each subject in each namespace, sorted: of several bindings that
    /// allow a request the first one is named.
    by_subject: HashMap<(BindingSubject, String), BTreeSet<String>>,
}

/// Who makes a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// User name.
    pub name: &'a str,
    pub groups: &'a [String],
}

/// The outcome for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RbacDecision {
    /// A binding allows it; the reason names binding, role and subject, in Kubernetes' words.
    Allowed(String),
    /// No binding allows it; the text names roles that bindings of the user refer to and that do not
    /// exist, and is empty if there are none.
    NoOpinion(String),
}

/// Prefix of the user names of service accounts; `namespace:name` follows.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

impl RbacPolicy {
    /// A policy that allows nothing; `group` is the API group of roles, domain included.
    #[must_use]
    pub fn new(group: &str) -> Self {
        Self {
            group: group.to_owned(),
            roles: HashMap::new(),
            bindings: HashMap::new(),
            by_subject: HashMap::new(),
        }
    }

    /// The API group of roles.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Adds or replaces a role.
    pub fn set_role(&mut self, key: RoleKey, rules: Vec<Rule>) {
        self.roles.insert(key, rules.into());
    }

    /// Removes a role. Bindings to it allow nothing then.
    pub fn remove_role(&mut self, key: &RoleKey) {
        self.roles.remove(key);
    }

    /// Adds or replaces a binding.
    pub fn set_binding(&mut self, binding: Binding) {
        self.remove_binding(&binding.namespace, &binding.name);
        for subject in &binding.subjects {
            let key = (subject.clone(), binding.namespace.clone());
            self.by_subject.entry(key).or_default().insert(binding.name.clone());
        }
        let key = (binding.namespace.clone(), binding.name.clone());
        self.bindings.insert(key, Arc::new(binding));
    }

    /// Removes a binding; `namespace` is empty for a ClusterRoleBinding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(binding) = self.bindings.remove(&key) else { return };
        for subject in &binding.subjects {
            let key = (subject.clone(), namespace.to_owned());
            if let Some(names) = self.by_subject.get_mut(&key) {
                names.remove(name);
                if names.is_empty() {
                    self.by_subject.remove(&key);
                }
            }
        }
    }

    /// The rules of a role, if it exists.
    #[must_use]
    pub fn rules(&self, key: &RoleKey) -> Option<&Arc<[Rule]>> {
        self.roles.get(key)
    }

    /// Decides a request: bindings of the cluster first, then those of the request's namespace.
    #[must_use]
    pub fn decide(&self, who: Requester<'_>, request: &Access<'_>) -> RbacDecision {
        let namespace = match *request {
            Access::Resource { namespace, .. } => namespace,
            Access::Path { .. } => "",
        };
        let (mut missing, mut seen) = (BTreeSet::new(), HashSet::new());
        for (binding, subject) in self.bindings_of(who, namespace) {
            // Several bindings to one role allow no more than one of them.
            if !seen.insert(&binding.role) {
                continue;
            }
            let Some(rules) = self.roles.get(&binding.role) else {
                missing.insert(binding.role.clone());
                continue;
            };
            if rules.iter().any(|rule| rule.allows(request)) {
                return RbacDecision::Allowed(format!(
                    "RBAC: allowed by {}",
                    Grant { binding, subject }
                ));
            }
        }
        RbacDecision::NoOpinion(match self.missing_roles(&missing).as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            several => format!("RBAC: [{}]", several.join(", ")),
        })
    }

    /// All rules that a user has in a namespace, and an error text for each role that its bindings refer to and that does not exist.
    #[must_use]
    pub fn rules_of(&self, who: Requester<'_>, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let (mut rules, mut missing, mut seen) = (Vec::new(), BTreeSet::new(), HashSet::new());
        for (binding, _) in self.bindings_of(who, namespace) {
            if !seen.insert(&binding.role) {
                continue;
            }
            match self.roles.get(&binding.role) {
                Some(own) => rules.extend(own.iter().cloned()),
                None => drop(missing.insert(binding.role.clone())),
            }
        }
        (rules, self.missing_roles(&missing))
    }

    /// The bindings of a user that matter in a namespace, each once, with the subject that fits.
    fn bindings_of<'a>(
        &'a self,
        who: Requester<'a>,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Binding, BindingSubject)> {
        let mut namespaces = vec![""];
        namespaces.extend(Some(namespace).filter(|namespace| !namespace.is_empty()));
        let mut seen = BTreeSet::new();
        namespaces
            .into_iter()
            .flat_map(move |namespace| {
                let found = subjects(who).flat_map(move |subject| {
                    let names = self.by_subject.get(&(subject.clone(), namespace.to_owned()));
                    let names = names.into_iter().flatten();
                    names.map(move |name| (name.clone(), subject.clone()))
                });
                let mut found: Vec<(String, BindingSubject)> = found.collect();
                found.sort_by(|(one, _), (other, _)| one.cmp(other));
                found
                    .into_iter()
                    .map(move |(name, subject)| ((namespace.to_owned(), name), subject))
            })
            .filter(move |(key, _)| seen.insert(key.clone()))
            .filter_map(|(key, subject)| Some((&**self.bindings.get(&key)?, subject)))
    }

    /// An error text for each role that does not exist.
    fn missing_roles(&self, missing: &BTreeSet<RoleKey>) -> Vec<String> {
        let text = |role: &RoleKey| {
            let kind = if role.namespace.is_empty() { "clusterrole" } else { "role" };
            format!("{kind}.{} {:?} not found", self.group, role.name)
        };
        missing.iter().map(text).collect()
    }
}

/// The subjects that a user is.
fn subjects(who: Requester<'_>) -> impl Iterator<Item = BindingSubject> {
    let account = who.name.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':'));
    let account = account.filter(|(_, name)| !name.contains(':'));
    let account = account.map(|(namespace, name)| {
        BindingSubject::ServiceAccount(namespace.to_owned(), name.to_owned())
    });
    let groups = who.groups.iter().cloned().map(BindingSubject::Group);
    std::iter::once(BindingSubject::User(who.name.to_owned())).chain(account).chain(groups)
}

/// A binding and the subject through which it applies, in Kubernetes' words.
struct Grant<'a> {
    binding: &'a Binding,
    subject: BindingSubject,
}

impl fmt::Display for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding { namespace, name, role, .. } = self.binding;
        match namespace.as_str() {
            "" => write!(f, "ClusterRoleBinding {name:?}")?,
            namespace => write!(f, "RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        let kind = if role.namespace.is_empty() { "ClusterRole" } else { "Role" };
        write!(f, " of {kind} {:?} to ", role.name)?;
        match &self.subject {
            BindingSubject::User(name) => write!(f, "User {name:?}"),
            BindingSubject::Group(name) => write!(f, "Group {name:?}"),
            BindingSubject::ServiceAccount(namespace, name) => {
                write!(f, "ServiceAccount {:?}", format!("{name}/{namespace}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster_role(name: &str) -> RoleKey {
        RoleKey { namespace: String::new(), name: name.to_owned() }
    }

    fn role(namespace: &str, name: &str) -> RoleKey {
        RoleKey { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn binding(namespace: &str, name: &str, role: RoleKey, subject: BindingSubject) -> Binding {
        Binding { namespace: namespace.into(), name: name.into(), role, subjects: vec![subject] }
    }

    fn read_pods() -> Vec<Rule> {
        vec![Rule {
            verbs: vec!["get".into(), "list".into()],
            groups: vec![String::new()],
            resources: vec!["pods".into()],
            ..Rule::default()
        }]
    }

    fn get_pod<'a>(namespace: &'a str) -> Access<'a> {
        Access::Resource {
            verb: "get",
            group: "",
            resource: "pods",
            subresource: "",
            namespace,
            name: "a",
        }
    }

    fn user<'a>(name: &'a str, groups: &'a [String]) -> Requester<'a> {
        Requester { name, groups }
    }

    fn allowed(policy: &RbacPolicy, who: Requester<'_>, namespace: &str) -> Option<String> {
        match policy.decide(who, &get_pod(namespace)) {
            RbacDecision::Allowed(reason) => Some(reason),
            RbacDecision::NoOpinion(_) => None,
        }
    }

    #[test]
    fn a_binding_gives_its_role_where_it_applies() {
        let mut policy = RbacPolicy::new("rbac.authorization.test");
        policy.set_role(cluster_role("view"), read_pods());
        policy.set_role(role("team", "reader"), read_pods());
        policy.set_binding(binding(
            "",
            "all",
            cluster_role("view"),
            BindingSubject::User("root".into()),
        ));
        let group = BindingSubject::Group("devs".into());
        policy.set_binding(binding("team", "devs", cluster_role("view"), group));
        let account = BindingSubject::ServiceAccount("ci".into(), "bot".into());
        policy.set_binding(binding("team", "bot", role("team", "reader"), account));

        let none: &[String] = &[];
        let everywhere = allowed(&policy, user("root", none), "any").expect("allowed");
        assert_eq!(
            everywhere,
            "RBAC: allowed by ClusterRoleBinding \"all\" of ClusterRole \"view\" to User \"root\""
        );
        assert!(allowed(&policy, user("root", none), "").is_some());
        let devs = ["devs".to_owned()];
        let in_team = allowed(&policy, user("jane", &devs), "team").expect("allowed");
        assert_eq!(
            in_team,
            "RBAC: allowed by RoleBinding \"devs/team\" of ClusterRole \"view\" to Group \"devs\""
        );
        assert_eq!(allowed(&policy, user("jane", &devs), "other"), None);
        assert_eq!(allowed(&policy, user("jane", &devs), ""), None);
        let bot = "system:serviceaccount:ci:bot";
        let by_account = allowed(&policy, user(bot, none), "team").expect("allowed");
        assert_eq!(
            by_account,
            "RBAC: allowed by RoleBinding \"bot/team\" of Role \"reader\" to ServiceAccount \"bot/ci\""
        );
        assert_eq!(allowed(&policy, user(bot, none), "ci"), None);
        assert_eq!(allowed(&policy, user("system:serviceaccount:ci", none), "team"), None);
    }

    #[test]
    fn removed_and_replaced_rules_grant_nothing() {
        let mut policy = RbacPolicy::new("rbac.authorization.test");
        let none: &[String] = &[];
        let jane = || BindingSubject::User("jane".into());
        policy.set_binding(binding("", "b", cluster_role("view"), jane()));
        let decision = policy.decide(user("jane", none), &get_pod("x"));
        let missing = "RBAC: clusterrole.rbac.authorization.test \"view\" not found";
        assert_eq!(decision, RbacDecision::NoOpinion(missing.into()));
        policy.set_role(cluster_role("view"), read_pods());
        assert!(allowed(&policy, user("jane", none), "x").is_some());
        policy.set_binding(binding(
            "",
            "b",
            cluster_role("view"),
            BindingSubject::User("joe".into()),
        ));
        assert_eq!(allowed(&policy, user("jane", none), "x"), None);
        assert!(allowed(&policy, user("joe", none), "x").is_some());
        policy.remove_binding("", "b");
        assert_eq!(allowed(&policy, user("joe", none), "x"), None);
        assert!(policy.by_subject.is_empty() && policy.bindings.is_empty());
        policy.set_binding(binding("", "b", cluster_role("view"), jane()));
        policy.remove_role(&cluster_role("view"));
        assert_eq!(allowed(&policy, user("jane", none), "x"), None);
    }

    #[test]
    fn the_rules_of_a_user_are_those_of_all_its_bindings() {
        let mut policy = RbacPolicy::new("rbac.authorization.test");
        policy.set_role(cluster_role("view"), read_pods());
        let devs = ["devs".to_owned(), "staff".to_owned()];
        for (name, subject) in [
            ("b", BindingSubject::Group("devs".into())),
            ("a", BindingSubject::User("jane".into())),
        ] {
            policy.set_binding(binding("", name, cluster_role("view"), subject));
        }
        policy.set_binding(binding(
            "team",
            "c",
            role("team", "none"),
            BindingSubject::Group("staff".into()),
        ));
        let (rules, missing) = policy.rules_of(user("jane", &devs), "team");
        assert_eq!(rules.len(), 1, "two bindings to one role");
        assert_eq!(missing, ["role.rbac.authorization.test \"none\" not found"]);
        assert!(policy.rules_of(user("jane", &devs), "").1.is_empty());
    }
}
