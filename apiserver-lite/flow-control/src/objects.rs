//! What the API calls the objects of priority and fairness.

/// Group of both kinds, without its domain.
pub const GROUP: &str = "flowcontrol.apiserver";
/// Their version.
pub const VERSION: &str = "v1beta2";
/// Resource of flow schemas.
pub const FLOW_SCHEMAS: &str = "flowschemas";
/// Resource of priority levels.
pub const PRIORITY_LEVELS: &str = "prioritylevelconfigurations";
/// Name of the flow schema of administrators, and of the level without a limit.
pub const EXEMPT: &str = "exempt";
/// Name of the flow schema of what no other takes, and of its level.
pub const CATCH_ALL: &str = "catch-all";
