//! What the API shows of a node whose agent was started again. Values only.

use proto_api::coordination::v1::Lease;
use proto_api::core::v1::Node;

use crate::poll_until::NotYet;

/// Whether the agent has renewed its lease since a time, in microseconds since 1970: what the Node says may be of the agent before it.
///
/// # Errors
/// What the lease says instead.
pub fn renewed_since(lease: &Lease, since: i64) -> Result<(), NotYet> {
    match lease.spec.renew_time.and_then(|at| at.unix_micros()) {
        Some(at) if at >= since => Ok(()),
        Some(at) => {
            let seconds = since.saturating_sub(at) / 1_000_000;
            Err(NotYet(format!("its lease was renewed last {seconds} s before that")))
        }
        None => Err(NotYet("its lease was never renewed".to_owned())),
    }
}

/// Whether a node is Ready.
///
/// # Errors
/// Why it is not.
pub fn ready(node: &Node) -> Result<(), NotYet> {
    match node.status.conditions.iter().find(|condition| condition.type_ == "Ready") {
        Some(ready) if ready.status == "True" => Ok(()),
        Some(ready) => Err(NotYet(ready.message.clone())),
        None => Err(NotYet("it has no such condition".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proto_api::MicroTime;
    use proto_api::core::v1::NodeCondition;

    use super::*;

    #[test]
    fn a_lease_from_before_the_restart_does_not_show_a_running_agent() {
        let lease = |at: Option<i64>| {
            let mut lease = Lease::default();
            lease.spec.renew_time = at.map(MicroTime::from_unix_micros);
            renewed_since(&lease, 10_000_000)
        };
        assert_eq!(lease(Some(10_000_000)), Ok(()));
        assert!(lease(Some(7_000_000)).unwrap_err().0.contains("3 s before"));
        assert!(lease(None).is_err());
    }

    #[test]
    fn a_node_that_is_not_ready_says_why() {
        let node = |status: &str| {
            let mut node = Node::default();
            node.status.conditions.push(NodeCondition {
                type_: "Ready".into(),
                status: status.into(),
                message: "no network".into(),
                ..NodeCondition::default()
            });
            ready(&node)
        };
        assert_eq!(node("True"), Ok(()));
        assert_eq!(node("Unknown"), Err(NotYet("no network".to_owned())));
        assert!(ready(&Node::default()).is_err());
    }
}
