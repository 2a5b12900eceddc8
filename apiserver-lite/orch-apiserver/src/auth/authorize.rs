//! The seam of authorization: modules are asked in order, the first that decides ends it, no decision is a denial.

use super::user::{MASTERS, User};

/// What is to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Who asks.
    pub user: &'a User,
    /// Verb of the API for resources, lower-case HTTP method for everything else.
    pub verb: &'a str,
    /// What it is about.
    pub subject: Subject<'a>,
}

/// What a request is about, as the router parsed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A resource.
    Resource {
        /// Empty for the core group.
        group: &'a str,
        /// Version of the group.
        version: &'a str,
        /// Resource in the plural.
        resource: &'a str,
        /// Empty for none.
        subresource: &'a str,
        /// Empty for all namespaces and cluster-scoped resources.
        namespace: &'a str,
        /// Empty for collections.
        name: &'a str,
    },
    /// Any other path.
    Path(&'a str),
}

/// The answer of one module, or of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow,
    /// No, whatever the next module says.
    Deny,
    /// Ask the next module.
    NoOpinion,
}

/// A decision and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// The decision.
    pub decision: Decision,
    /// For people; may be empty.
    pub reason: String,
}

/// A module that decides who may do what, from memory.
pub trait Authorizer: Send + Sync {
    /// Decides.
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization;
}

/// Modules in order.
pub struct Chain(pub Vec<Box<dyn Authorizer>>);

/// Allows everything.
pub struct AlwaysAllow;

/// Denies everything; for tests.
pub struct AlwaysDeny;

/// Allows the administrators' group everything, so that a wrong policy cannot lock everybody out.
pub struct Masters;

impl Authorization {
    fn new(decision: Decision, reason: &str) -> Self {
        Self { decision, reason: reason.to_owned() }
    }
}

impl Authorizer for Chain {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let authorizations = self.0.iter().map(|module| module.authorize(attributes));
        let mut decided =
            authorizations.filter(|authorization| authorization.decision != Decision::NoOpinion);
        decided.next().unwrap_or_else(|| Authorization::new(Decision::NoOpinion, ""))
    }
}

impl Authorizer for AlwaysAllow {
    fn authorize(&self, _: &Attributes<'_>) -> Authorization {
        Authorization::new(Decision::Allow, "")
    }
}

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _: &Attributes<'_>) -> Authorization {
        Authorization::new(Decision::NoOpinion, "Everything is forbidden.")
    }
}

impl Authorizer for Masters {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let member = attributes.user.is_in(MASTERS);
        Authorization::new(if member { Decision::Allow } else { Decision::NoOpinion }, "")
    }
}

impl Attributes<'_> {
    /// The text of a denial, in Kubernetes' words.
    #[must_use]
    pub fn denial(&self, reason: &str) -> String {
        let user = &self.user.name;
        let verb = self.verb;
        let mut text = match self.subject {
            Subject::Path(path) => format!("User {user:?} cannot {verb} path {path:?}"),
            Subject::Resource { group, resource, subresource, namespace, .. } => {
                let slash = if subresource.is_empty() { "" } else { "/" };
                let place = if namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace {namespace:?}")
                };
                format!(
                    "User {user:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?} {place}"
                )
            }
        };
        if !reason.is_empty() {
            text.push_str(": ");
            text.push_str(reason);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(chain: &Chain, user: &User) -> Decision {
        chain.authorize(&Attributes { user, verb: "get", subject: Subject::Path("/x") }).decision
    }

    #[test]
    fn first_decision_ends_it() {
        let nobody = User::anonymous();
        let admin = User { groups: vec![MASTERS.to_owned()], ..User::default() };
        let strict = Chain(vec![Box::new(Masters), Box::new(AlwaysDeny)]);
        assert_eq!(ask(&strict, &nobody), Decision::NoOpinion);
        assert_eq!(ask(&strict, &admin), Decision::Allow);
        assert_eq!(
            ask(&Chain(vec![Box::new(AlwaysDeny), Box::new(AlwaysAllow)]), &nobody),
            Decision::Allow
        );
        assert_eq!(ask(&Chain(Vec::new()), &admin), Decision::NoOpinion);
    }

    #[test]
    fn denials_name_everything() {
        let user = User { name: "alice".into(), ..User::default() };
        let subject = Subject::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "exec",
            namespace: "a",
            name: "p",
        };
        let text = Attributes { user: &user, verb: "create", subject }.denial("");
        assert_eq!(
            text,
            "User \"alice\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"a\""
        );
    }
}
