//! The authorization modules of a server, consulted in order: the first one with an opinion decides, no opinion is a denial.

use crate::authorization::{Attributes, Authorization, Authorizer, Decision, UserRules};
use crate::authorization_webhook::AuthorizationWebhook;
use crate::user::User;

/// One of the modules of a server.
pub enum Module {
    /// Decides from memory.
    Local(Box<dyn Authorizer>),
    /// Calls a remote service.
    Webhook(Box<AuthorizationWebhook>),
}

/// Modules, consulted in order.
pub struct Chain(pub Vec<Module>);

impl<A: Authorizer + 'static> From<A> for Module {
    fn from(local: A) -> Self {
        Self::Local(Box::new(local))
    }
}

impl Chain {
    /// The first decision of a module; without one no opinion, with the reasons and errors of all.
    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for module in &self.0 {
            let authorization = match module {
                Module::Local(module) => module.authorize(attributes),
                Module::Webhook(webhook) => webhook.authorize(attributes).await,
            };
            if authorization.decision != Decision::NoOpinion {
                return authorization;
            }
            reasons.push(authorization.reason);
            errors.push(authorization.error);
        }
        reasons.retain(|reason| !reason.is_empty());
        errors.retain(|error| !error.is_empty());
        Authorization {
            decision: Decision::NoOpinion,
            reason: reasons.join("\n"),
            error: errors.join("; "),
        }
    }

    /// What the modules allow a user in a namespace.
    #[must_use]
    pub fn rules(&self, user: &User, namespace: &str) -> UserRules {
        let mut all = UserRules::default();
        for module in &self.0 {
            let UserRules { rules, incomplete, error } = match module {
                Module::Local(module) => module.rules(user, namespace),
                Module::Webhook(_) => UserRules {
                    incomplete: true,
                    error: "webhook authorizer does not support user rule resolution".to_owned(),
                    ..UserRules::default()
                },
            };
            all.rules.extend(rules);
            all.incomplete |= incomplete;
            if !error.is_empty() {
                all.error = error;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::{AccessTarget, AlwaysAllow, AlwaysDeny, Masters};
    use crate::user::MASTERS;

    async fn ask(chain: &Chain, user: &User) -> Decision {
        let attributes = Attributes { user, verb: "get", subject: AccessTarget::Path("/x") };
        chain.authorize(&attributes).await.decision
    }

    #[tokio::test]
    async fn first_decision_ends_it() {
        let anonymous = User::anonymous();
        let admin = User { groups: vec![MASTERS.to_owned()], ..User::default() };
        let strict = Chain(vec![Masters.into(), AlwaysDeny.into()]);
        assert_eq!(ask(&strict, &anonymous).await, Decision::NoOpinion);
        assert_eq!(ask(&strict, &admin).await, Decision::Allow);
        let lenient = Chain(vec![AlwaysDeny.into(), AlwaysAllow.into()]);
        assert_eq!(ask(&lenient, &anonymous).await, Decision::Allow);
        assert_eq!(ask(&Chain(Vec::new()), &admin).await, Decision::NoOpinion);
    }
}
