//! The flow schemas of a server in the order in which they are asked.

use crate::flow_schema::{
    Distinguisher, FlowSchema, PathRule, Request, ResourceRule, Rule, Subject,
};
use crate::objects::{CATCH_ALL, EXEMPT};

/// Most flow schemas that are asked.
pub const FLOW_SCHEMAS_MAX: usize = 500;
/// Most terms of all schemas that are asked: they bound what a request costs.
const TERMS_MAX: usize = 20_000;
/// Precedence of the schema of what no other takes.
const LAST: i64 = 10_000;

/// Flow schemas, by precedence and then by name; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSchemas {
    ordered: Vec<FlowSchema>,
    /// Where the one of what no other takes is.
    catch_all: usize,
}

impl FlowSchemas {
    /// Orders those of `schemas` whose level exists, and adds the mandatory ones that are missing. Gives the names of those that are left out because there
    /// are too many, too.
    #[must_use]
    pub fn new(
        schemas: impl IntoIterator<Item = FlowSchema>,
        has_level: impl Fn(&str) -> bool,
    ) -> (Self, Vec<String>) {
        let mut usable: Vec<FlowSchema> =
            schemas.into_iter().filter(|schema| has_level(&schema.level)).collect();
        usable.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let has = |name: &str| usable.iter().any(|schema| schema.name == name);
        let (has_exempt, has_catch_all) = (has(EXEMPT), has(CATCH_ALL));
        if !has_exempt {
            usable.insert(0, mandatory(EXEMPT, 1, Distinguisher::None, &["system:masters"]));
        }
        if !has_catch_all {
            let groups = ["system:unauthenticated", "system:authenticated"];
            usable.push(mandatory(CATCH_ALL, LAST, Distinguisher::User, &groups));
        }
        let (mut ordered, mut left_out, mut terms) = (Vec::new(), Vec::new(), 0_usize);
        for schema in usable {
            let more = terms.saturating_add(schema.terms());
            let fits = more <= TERMS_MAX && ordered.len() < FLOW_SCHEMAS_MAX;
            if fits || [EXEMPT, CATCH_ALL].contains(&schema.name.as_str()) {
                terms = more;
                ordered.push(schema);
            } else {
                left_out.push(schema.name);
            }
        }
        let catch_all = ordered.iter().position(|schema| schema.name == CATCH_ALL);
        (Self { ordered, catch_all: catch_all.unwrap_or_default() }, left_out)
    }

    /// All, in order.
    #[must_use]
    pub fn ordered(&self) -> &[FlowSchema] {
        &self.ordered
    }

    /// Which of [`FlowSchemas::ordered`] takes the request.
    #[must_use]
    pub fn find(&self, request: &Request<'_>) -> usize {
        let taken = self.ordered.iter().position(|schema| schema.matches(request));
        // Every user is in one of the groups of the last; this is for one who is in none.
        taken.unwrap_or(self.catch_all)
    }
}

fn mandatory(
    name: &str,
    precedence: i64,
    distinguisher: Distinguisher,
    groups: &[&str],
) -> FlowSchema {
    let all = || vec!["*".to_owned()];
    let rule = Rule {
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
    use crate::flow_schema::Target;

    fn schema(name: &str, precedence: i64, user: &str) -> FlowSchema {
        let mut schema = mandatory(name, precedence, Distinguisher::User, &[]);
        schema.level = "low".to_owned();
        for rule in &mut schema.rules {
            rule.subjects = vec![Subject::User(user.to_owned())];
        }
        schema
    }

    fn names(schemas: &FlowSchemas) -> Vec<&str> {
        schemas.ordered().iter().map(|schema| schema.name.as_str()).collect()
    }

    fn taken_by<'a>(schemas: &'a FlowSchemas, user: &str, group: &str) -> &'a str {
        let groups = [group.to_owned()];
        let request =
            Request { user, groups: &groups, verb: "get", target: Target::Path("/version") };
        &schemas.ordered()[schemas.find(&request)].name
    }

    #[test]
    fn the_least_precedence_takes_a_request_and_names_break_ties() {
        let given =
            [schema("z", 9, "a"), schema("y", 9, "a"), schema("x", 10, "a"), schema("w", 10, "b")];
        let (schemas, left_out) = FlowSchemas::new(given, |_| true);
        assert_eq!(names(&schemas), [EXEMPT, "y", "z", "w", "x", CATCH_ALL]);
        assert!(left_out.is_empty());
        assert_eq!(taken_by(&schemas, "a", "system:authenticated"), "y");
        assert_eq!(taken_by(&schemas, "b", "system:authenticated"), "w");
        assert_eq!(taken_by(&schemas, "c", "system:authenticated"), CATCH_ALL);
        assert_eq!(taken_by(&schemas, "c", "of no schema"), CATCH_ALL);
        assert_eq!(taken_by(&schemas, "a", "system:masters"), EXEMPT);
    }

    #[test]
    fn a_schema_without_its_level_is_not_asked() {
        let (schemas, _) = FlowSchemas::new([schema("a", 9, "a")], |level| level != "low");
        assert_eq!(names(&schemas), [EXEMPT, CATCH_ALL]);
    }

    #[test]
    fn stored_mandatory_schemas_are_used() {
        let mut stored = mandatory(EXEMPT, 1, Distinguisher::None, &["system:masters"]);
        stored.uid = "u".to_owned();
        let (schemas, _) = FlowSchemas::new([stored], |_| true);
        assert_eq!(names(&schemas), [EXEMPT, CATCH_ALL]);
        assert_eq!(schemas.ordered()[0].uid, "u");
    }

    #[test]
    fn what_a_request_costs_is_bounded() {
        let many = (0..1000).map(|nth| schema(&format!("s{nth:04}"), 5, "a"));
        let (schemas, left_out) = FlowSchemas::new(many, |_| true);
        assert_eq!(schemas.ordered().len(), FLOW_SCHEMAS_MAX + 1, "and the one of all others");
        assert_eq!(left_out.len(), 501);
        assert_eq!(left_out[0], "s0499");
        let mut large = schema("large", 5, "a");
        large.rules[0].subjects =
            (0..TERMS_MAX).map(|nth| Subject::User(nth.to_string())).collect();
        let (schemas, left_out) = FlowSchemas::new([large, schema("small", 6, "a")], |_| true);
        assert_eq!(names(&schemas), [EXEMPT, "small", CATCH_ALL]);
        assert_eq!(left_out, ["large"]);
    }
}
