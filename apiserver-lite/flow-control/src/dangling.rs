//! The condition `Dangling` of a flow schema: whether its priority level is missing, or one of both is not used as there are too many.

/// Type of the condition.
pub const DANGLING: &str = "Dangling";

/// What a server makes of a flow schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSchemaUsage {
    Used,
    /// Its level does not exist.
    NoLevel,
    /// Its level is not used: it contradicts itself, or there are too many.
    LevelLeftOut,
    /// There are too many flow schemas, or this one is too large.
    LeftOut,
}

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

/// The condition of a flow schema of the priority level `level`. The words are Kubernetes', except of what is left out.
#[must_use]
pub fn dangling(level: &str, usage: FlowSchemaUsage) -> Dangling {
    let (status, reason, end) = match usage {
        FlowSchemaUsage::Used => ("False", "Found", "and it exists"),
        FlowSchemaUsage::NoLevel => ("True", "NotFound", "but there is no such object"),
        FlowSchemaUsage::LevelLeftOut => (
            "True",
            "LeftOut",
            "but it is not used: its spec contradicts itself, or there are too many",
        ),
        FlowSchemaUsage::LeftOut => (
            "True",
            "LeftOut",
            "but this FlowSchema is not used: there are too many, or it is too large",
        ),
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
    fn the_dangling_condition_names_the_priority_level() {
        let missing = dangling("low", FlowSchemaUsage::NoLevel);
        assert_eq!((missing.status, missing.reason), ("True", "NotFound"));
        assert_eq!(
            missing.message,
            "This FlowSchema references the PriorityLevelConfiguration object named \"low\" but there is no such object"
        );
        for (usage, end) in [
            (FlowSchemaUsage::LeftOut, "or it is too large"),
            (FlowSchemaUsage::LevelLeftOut, "or there are too many"),
        ] {
            let said = dangling("low", usage);
            assert_eq!((said.status, said.reason), ("True", "LeftOut"));
            assert!(said.message.ends_with(end), "{}", said.message);
        }
        let found = dangling("low", FlowSchemaUsage::Used);
        assert_eq!((found.status, found.reason), ("False", "Found"));
        assert!(found.message.ends_with("named \"low\" and it exists"), "{}", found.message);
    }
}
