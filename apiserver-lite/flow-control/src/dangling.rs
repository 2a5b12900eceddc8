//! The condition `Dangling` of a flow schema: whether its priority level is missing.

/// Type of the condition.
pub const DANGLING: &str = "Dangling";

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dangling {
    /// `True` or `False`.
    pub status: &'static str,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why.
    pub message: String,
}

/// The condition of a flow schema of the priority level `level`. The words are Kubernetes'.
#[must_use]
pub fn dangling(level: &str, exists: bool) -> Dangling {
    let (status, reason, end) = match exists {
        true => ("False", "Found", "and it exists"),
        false => ("True", "NotFound", "but there is no such object"),
    };
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {level:?} {end}"
    );
    Dangling { status, reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_level() {
        let missing = dangling("low", false);
        assert_eq!((missing.status, missing.reason), ("True", "NotFound"));
        assert_eq!(
            missing.message,
            "This FlowSchema references the PriorityLevelConfiguration object named \"low\" but there is no such object"
        );
        let found = dangling("low", true);
        assert_eq!((found.status, found.reason), ("False", "Found"));
        assert!(found.message.ends_with("named \"low\" and it exists"), "{}", found.message);
    }
}
