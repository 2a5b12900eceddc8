//! Authorization at the endpoint: the permission that a request needs, as a SubjectAccessReview
//! about this node.

use proto_api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use proto_client::serving::access::{self, Question};

use super::routes::Permission;
use super::tls::Certified;

pub use proto_client::serving::access::{Anonymous, Authorization, Refused, Reviews, Tokens};

/// Authentication and authorization of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRules {
    /// Name of the node in reviews.
    pub node: String,
    /// Whether unauthenticated clients act as `system:anonymous` (`--anonymous-auth`).
    pub anonymous: Anonymous,
    /// How bearer tokens are authenticated (`--authentication-token-webhook`).
    pub tokens: Tokens,
    /// How requests are authorized (`--authorization-mode`).
    pub authorization: Authorization,
}

/// Authenticates and authorizes requests.
pub struct Access {
    node: String,
    access: access::Access<OnNode>,
}

/// A permission on this node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OnNode {
    node: String,
    permission: Permission,
}

impl Question for OnNode {
    fn attributes(&self) -> SubjectAccessReviewSpec {
        SubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: self.permission.verb.to_owned(),
                version: "v1".to_owned(),
                resource: "nodes".to_owned(),
                subresource: self.permission.subresource.to_owned(),
                name: self.node.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        }
    }

    fn denial(&self, user: &str) -> String {
        let Permission { verb, subresource } = self.permission;
        format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource={subresource})")
    }
}

impl Access {
    /// `reviews` decides what the rules leave to the API server.
    pub fn new(rules: AccessRules, reviews: Box<dyn Reviews>) -> Self {
        let AccessRules { node, anonymous, tokens, authorization } = rules;
        let rules = access::AccessRules { anonymous, tokens, authorization };
        Self { node, access: access::Access::new(rules, reviews) }
    }

    /// Authorizes a request. `certified` is the identity of the client certificate, `authorization`
    /// the header of that name.
    pub async fn check(
        &self,
        certified: &Certified,
        authorization: Option<&str>,
        permission: Permission,
    ) -> Result<(), Refused> {
        let question = OnNode { node: self.node.clone(), permission };
        self.access.check(certified, authorization, &question).await
    }

    /// Whether an authorized request with this header had a token that the API server
    /// authenticated.
    pub fn knows_by_token(&self, authorization: Option<&str>) -> bool {
        self.access.knows_by_token(authorization)
    }
}

#[cfg(test)]
mod tests;
