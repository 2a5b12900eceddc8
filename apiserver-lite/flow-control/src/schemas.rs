//! The flow schemas of a server in matching order: the mandatory ones are the first and the last, whatever is stored.

use std::sync::Arc;

use crate::flow_schema::{
    Distinguisher, FlowSchema, FlowSchemaRule, PathRule, RequestDigest, ResourceRule, Subject,
};
use crate::objects::{CATCH_ALL, EXEMPT};

/// Most flow schemas besides the mandatory ones.
pub const FLOW_SCHEMAS_MAX: usize = 500;
/// Most terms of all schemas: they bound the cost of matching a request.
const TERMS_MAX: usize = 20_000;
/// Precedence of the schema of what no other takes.
const LAST: i64 = 10_000;

/// Flow schemas, by precedence and then by name, between the mandatory ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSchemas {
    ordered: Vec<Arc<FlowSchema>>,
}

impl FlowSchemas {
    /// Orders those of `schemas` whose level is used, and adds the mandatory ones. Gives the names of those that are left out because there are too many,
    /// too. Those that every server has are the last to be left out; of a mandatory one only the identity counts.
    #[must_use]
    pub fn new(
        schemas: impl IntoIterator<Item = Arc<FlowSchema>>,
        has_level: impl Fn(&str) -> bool,
        is_built_in: impl Fn(&str) -> bool,
    ) -> (Self, Vec<String>) {
        let (mut first, mut last) = (exempt(), catch_all());
        let mut usable = Vec::new();
        for schema in schemas {
            match schema.name.as_str() {
                EXEMPT => first.uid.clone_from(&schema.uid),
                CATCH_ALL => last.uid.clone_from(&schema.uid),
                _ if has_level(&schema.level) => usable.push(schema),
                _ => {}
            }
        }
        let mut ordered = Vec::with_capacity(usable.len().min(FLOW_SCHEMAS_MAX));
        let (mut left_out, mut terms) = (Vec::new(), 0_usize);
        let rank = |schema: &FlowSchema| (!is_built_in(&schema.name), schema.precedence);
        usable.sort_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
        for schema in usable {
            let more = terms.saturating_add(schema.terms());
            if more <= TERMS_MAX && ordered.len() < FLOW_SCHEMAS_MAX {
                terms = more;
                ordered.push(schema);
            } else {
                left_out.push(schema.name.clone());
            }
        }
        ordered.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        ordered.insert(0, Arc::new(first));
        ordered.push(Arc::new(last));
        (Self { ordered }, left_out)
    }

    /// All, in order.
    #[must_use]
    pub fn ordered(&self) -> &[Arc<FlowSchema>] {
        &self.ordered
    }

    /// Which of [`FlowSchemas::ordered`] takes the request.
    #[must_use]
    pub fn find(&self, request: &RequestDigest<'_>) -> usize {
        let taken = self.ordered.iter().position(|schema| schema.matches(request));
        // Every user is in one of the groups of the last; this is for one who is in none.
        taken.unwrap_or_else(|| self.ordered.len().saturating_sub(1))
    }
}

fn exempt() -> FlowSchema {
    mandatory(EXEMPT, 1, Distinguisher::None, &["system:masters"])
}

fn catch_all() -> FlowSchema {
    let groups = ["system:unauthenticated", "system:authenticated"];
    mandatory(CATCH_ALL, LAST, Distinguisher::User, &groups)
}

fn mandatory(
    name: &str,
    precedence: i64,
    distinguisher: Distinguisher,
    groups: &[&str],
) -> FlowSchema {
    let all = || vec!["*".to_owned()];
    let rule = FlowSchemaRule {
        subjects: groups.iter().map(|group| Subject::Group((*group).to_owned())).collect(),
        resources: vec![ResourceRule {
            verbs: all(),
            groups: all(),
            resources: all(),
            cluster_scope: true,
            namespaces: all(),
        }],
        paths: vec![PathRule { verbs: all(), paths: all() }],
    };
    FlowSchema {
        name: name.to_owned(),
        uid: String::new(),
        precedence,
        level: name.to_owned(),
        distinguisher,
        rules: vec![rule],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_schema::DigestTarget;

    fn schema(name: &str, precedence: i64, user: &str) -> FlowSchema {
        let mut schema = mandatory(name, precedence, Distinguisher::User, &[]);
        schema.level = "low".to_owned();
        for rule in &mut schema.rules {
            rule.subjects = vec![Subject::User(user.to_owned())];
        }
        schema
    }

    fn ordered(given: impl IntoIterator<Item = FlowSchema>) -> (FlowSchemas, Vec<String>) {
        FlowSchemas::new(given.into_iter().map(Arc::new), |_| true, |_| false)
    }

    fn names(schemas: &FlowSchemas) -> Vec<&str> {
        schemas.ordered().iter().map(|schema| schema.name.as_str()).collect()
    }

    fn taken_by<'a>(schemas: &'a FlowSchemas, user: &str, group: &str) -> &'a str {
        let groups = [group.to_owned()];
        let request = RequestDigest {
            user,
            groups: &groups,
            verb: "get",
            target: DigestTarget::Path("/version"),
        };
        &schemas.ordered()[schemas.find(&request)].name
    }

    #[test]
    fn the_least_precedence_takes_a_request_and_names_break_ties() {
        let given =
            [schema("z", 9, "a"), schema("y", 9, "a"), schema("x", 10, "a"), schema("w", 10, "b")];
        let (schemas, left_out) = ordered(given);
        assert_eq!(names(&schemas), [EXEMPT, "y", "z", "w", "x", CATCH_ALL]);
        assert!(left_out.is_empty());
        assert_eq!(taken_by(&schemas, "a", "system:authenticated"), "y");
        assert_eq!(taken_by(&schemas, "b", "system:authenticated"), "w");
        assert_eq!(taken_by(&schemas, "c", "system:authenticated"), CATCH_ALL);
        assert_eq!(taken_by(&schemas, "c", "of no schema"), CATCH_ALL);
        assert_eq!(taken_by(&schemas, "a", "system:masters"), EXEMPT);
    }

    #[test]
    fn a_flow_schema_without_its_priority_level_is_ignored() {
        let given = [Arc::new(schema("a", 9, "a"))];
        let (schemas, _) = FlowSchemas::new(given, |level| level != "low", |_| false);
        assert_eq!(names(&schemas), [EXEMPT, CATCH_ALL]);
    }

    #[test]
    fn the_mandatory_schemas_are_the_first_and_the_last_whatever_is_stored() {
        let mut stored = schema(CATCH_ALL, -1, "a");
        stored.uid = "c".to_owned();
        let mut exempt = schema(EXEMPT, 10_000, "a");
        exempt.uid = "e".to_owned();
        let (schemas, _) =
            ordered([stored, exempt, schema("a", i64::MIN, "a"), schema("z", i64::MAX, "z")]);
        assert_eq!(names(&schemas), [EXEMPT, "a", "z", CATCH_ALL]);
        assert_eq!(
            (schemas.ordered()[0].uid.as_str(), schemas.ordered()[3].uid.as_str()),
            ("e", "c")
        );
        assert_eq!(taken_by(&schemas, "a", "system:masters"), EXEMPT);
        assert_eq!(taken_by(&schemas, "a", "system:authenticated"), "a");
        assert_eq!(taken_by(&schemas, "b", "system:authenticated"), CATCH_ALL);
        assert_eq!(schemas.ordered()[3].level, CATCH_ALL);
    }

    #[test]
    fn the_flow_schemas_checked_for_a_request_are_bounded() {
        let many = (0..1000).map(|nth| schema(&format!("s{nth:04}"), 5, "a"));
        let (schemas, left_out) = ordered(many);
        assert_eq!(schemas.ordered().len(), FLOW_SCHEMAS_MAX + 2, "and the mandatory ones");
        assert_eq!((left_out.len(), left_out[0].as_str()), (500, "s0500"));
        let mut large = schema("large", 5, "a");
        large.rules[0].subjects =
            (0..TERMS_MAX).map(|nth| Subject::User(nth.to_string())).collect();
        let (schemas, left_out) = ordered([large, schema("small", 6, "a")]);
        assert_eq!(names(&schemas), [EXEMPT, "small", CATCH_ALL]);
        assert_eq!(left_out, ["large"]);
    }

    #[test]
    fn built_in_schemas_are_the_last_to_be_left_out() {
        let many = (0..1000).map(|nth| schema(&format!("s{nth:04}"), 5, "a"));
        let of_server = schema("probes", 7, "a");
        let all = many.chain([of_server]).map(Arc::new);
        let (schemas, left_out) = FlowSchemas::new(all, |_| true, |name| name == "probes");
        assert_eq!(left_out[0], "s0499");
        let names = names(&schemas);
        assert_eq!(names.get(names.len() - 2), Some(&"probes"), "its precedence is what it was");
    }
}
