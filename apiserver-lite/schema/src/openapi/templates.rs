//! The operations that verbs become, independent of their resource.

/// An operation, independent of its resource.
pub(super) struct OperationTemplate {
    /// The verb that provides it.
    pub verb: &'static str,
    /// The HTTP method.
    pub method: &'static str,
    /// Whether it acts on one object or on the collection.
    pub on_item: bool,
    /// The value of `x-kubernetes-action`.
    pub action: &'static str,
    /// The word with which its id starts.
    pub word: &'static str,
    /// Media types of the body; empty without one.
    pub consumes: &'static [&'static str],
    /// Query parameters: name and type.
    pub query: &'static [(&'static str, &'static str)],
    /// Codes of success.
    pub codes: &'static [&'static str],
}

const WRITE_QUERY: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
/// Of lists and watches.
pub(super) const LIST_QUERY: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITTEN: &[&str] = &["application/json", "application/yaml"];
/// Deletions read their options in any form.
pub(super) const ANY: &[&str] = &["*/*"];

/// All operations of resources.
pub(super) const OPERATIONS: &[OperationTemplate] = &[
    OperationTemplate {
        verb: "list",
        method: "get",
        on_item: false,
        action: "list",
        word: "list",
        consumes: &[],
        query: LIST_QUERY,
        codes: &["200"],
    },
    OperationTemplate {
        verb: "create",
        method: "post",
        on_item: false,
        action: "post",
        word: "create",
        consumes: WRITTEN,
        query: WRITE_QUERY,
        codes: &["200", "201", "202"],
    },
    OperationTemplate {
        verb: "deletecollection",
        method: "delete",
        on_item: false,
        action: "deletecollection",
        word: "delete",
        consumes: ANY,
        query: &[
            ("continue", "string"),
            ("dryRun", "string"),
            ("fieldSelector", "string"),
            ("gracePeriodSeconds", "integer"),
            ("labelSelector", "string"),
            ("limit", "integer"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
            ("resourceVersion", "string"),
            ("resourceVersionMatch", "string"),
            ("timeoutSeconds", "integer"),
        ],
        codes: &["200"],
    },
    OperationTemplate {
        verb: "get",
        method: "get",
        on_item: true,
        action: "get",
        word: "read",
        consumes: &[],
        query: &[],
        codes: &["200"],
    },
    OperationTemplate {
        verb: "update",
        method: "put",
        on_item: true,
        action: "put",
        word: "replace",
        consumes: WRITTEN,
        query: WRITE_QUERY,
        codes: &["200", "201"],
    },
    OperationTemplate {
        verb: "patch",
        method: "patch",
        on_item: true,
        action: "patch",
        word: "patch",
        consumes: &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ],
        query: &[
            ("dryRun", "string"),
            ("fieldManager", "string"),
            ("fieldValidation", "string"),
            ("force", "boolean"),
        ],
        codes: &["200", "201"],
    },
    OperationTemplate {
        verb: "delete",
        method: "delete",
        on_item: true,
        action: "delete",
        word: "delete",
        consumes: ANY,
        query: &[
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
        ],
        codes: &["200", "202"],
    },
];
