//! Boolean expressions over named values, outside of schemas: the match conditions of webhooks. They are CEL as rules are, and run within a budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_schema::Value;

use crate::cel::cost::CALL_MAX;
use crate::cel::program::{CompileError, Program, Variable};
use crate::cel::types::{Access, REQUEST_MAX, SizedType, Ty};
use crate::eval::{AccessInput, AccessQuestion, Fail, Run, Val};
use crate::pattern::Patterns;

/// Longest expression, in bytes.
const LENGTH_MAX: usize = 64 * 1024;

/// What is known of a variable's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Nothing.
    Any,
    Bool,
    Text,
    /// A list of texts.
    Texts,
    /// A map of lists of texts.
    TextLists,
    /// The variable `authorizer`; its value is an [`AccessInput`].
    Authorizer,
    /// A map with these fields and no others.
    Fields(&'static [(&'static str, ValueType)]),
}

/// Maps with fields that have a type already: those with the same fields share it, so that they can be compared.
type KnownFields = Vec<(&'static [(&'static str, ValueType)], SizedType)>;

impl ValueType {
    fn declare(self, known: &mut KnownFields) -> SizedType {
        let max = REQUEST_MAX;
        let text = || SizedType::new(Ty::Text, max, 2);
        match self {
            ValueType::Any => SizedType::plain(Ty::Dyn),
            ValueType::Bool => SizedType::new(Ty::Bool, 1, 4),
            ValueType::Authorizer => SizedType::plain(Ty::Access(Access::Authorizer)),
            ValueType::Text => text(),
            ValueType::Texts => SizedType::list(text(), max),
            ValueType::TextLists => {
                let values = SizedType::list(text(), max);
                SizedType::new(Ty::Map(Arc::new(text()), Arc::new(values)), max, 2)
            }
            ValueType::Fields(fields) => {
                if let Some((_, decl)) = known.iter().find(|(have, _)| *have == fields) {
                    return decl.clone();
                }
                let named = fields.iter().map(|(name, ty)| ((*name).to_owned(), ty.declare(known)));
                let named: BTreeMap<String, SizedType> = named.collect();
                let count = named.len() as u64;
                let decl = SizedType::new(Ty::Object(Arc::new(named)), count, 2);
                known.push((fields, decl.clone()));
                decl
            }
        }
    }
}

/// An expression that decides.
#[derive(Debug)]
pub struct Expression {
    text: String,
    program: Program,
}

/// Why a text is no expression that decides. Its author must change it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// More bytes than are compiled.
    #[error("must have at most {LENGTH_MAX} bytes")]
    TooLong,
    /// It is no truth value. The words are Kubernetes'.
    #[error("must evaluate to bool")]
    NoDecision,
    /// It cannot be compiled.
    #[error("{0}")]
    Compile(String),
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The budget of all expressions is used up. The words are Kubernetes'.
    #[error(
        "validation failed due to running out of cost budget, no further validation rules will be run"
    )]
    OutOfBudget,
    /// It asks what a user may do, and has no answer yet.
    #[error("no answer whether a user may {}", .0.verb)]
    Unanswered(Box<AccessQuestion>),
    /// It cannot be computed. The words are Kubernetes'.
    #[error("expression '{text}' resulted in error: {why}")]
    Failed {
        /// The expression.
        text: String,
        /// The reason.
        why: String,
    },
}

/// Compiles expressions. The regular expressions of those that one compiler makes are bounded together.
#[derive(Debug)]
pub struct ExpressionCompiler {
    variables: Vec<(&'static str, SizedType)>,
    patterns: Patterns,
}

impl ExpressionCompiler {
    /// A compiler of expressions over variables of these types.
    #[must_use]
    pub fn new(variables: &[(&'static str, ValueType)]) -> Self {
        let mut known = KnownFields::new();
        let variables = variables.iter().map(|(name, ty)| (*name, ty.declare(&mut known)));
        let variables = variables.collect();
        Self { variables, patterns: Patterns::default() }
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// It is too long, no CEL, or has no truth value.
    pub fn compile(&mut self, text: &str) -> Result<Expression, ExpressionError> {
        if text.len() > LENGTH_MAX {
            return Err(ExpressionError::TooLong);
        }
        let variables = self.variables.iter().map(|(name, decl)| Variable { name, decl });
        let variables: Vec<Variable<'_>> = variables.collect();
        let program =
            Program::compile_condition(text, &variables, &mut self.patterns).map_err(|error| {
                match error {
                    CompileError::NotABool => ExpressionError::NoDecision,
                    error => ExpressionError::Compile(error.to_string()),
                }
            })?;
        Ok(Expression { text: text.to_owned(), program })
    }
}

impl Expression {
    /// The text of which it was made.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it holds for these values. Its steps are taken from `budget`.
    ///
    /// # Errors
    /// It cannot be computed, the budget does not suffice, or it asks a question that `access` has no answer to.
    pub fn holds(
        &self,
        values: &[(&str, &Value)],
        access: Option<&AccessInput>,
        budget: &mut u64,
    ) -> Result<bool, EvaluationError> {
        let mut run = Run::new(&self.program, CALL_MAX).with_access(access);
        let found = run.run_with(values);
        // An expression that is only a literal takes its time too.
        let spent = run.spent().max(1);
        if spent > *budget {
            *budget = 0;
            return Err(EvaluationError::OutOfBudget);
        }
        *budget = budget.saturating_sub(spent);
        let why = match found {
            Ok(Val::Bool(holds)) => return Ok(holds),
            Ok(_) => ExpressionError::NoDecision.to_string(),
            Err(Fail::Limit) => "operation cancelled: actual cost limit exceeded".to_owned(),
            Err(Fail::Unanswered(question)) => return Err(EvaluationError::Unanswered(question)),
            Err(Fail::Error(why)) => why,
        };
        Err(EvaluationError::Failed { text: self.text.clone(), why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::value;

    const REQUEST: ValueType = ValueType::Fields(&[
        ("namespace", ValueType::Text),
        ("groups", ValueType::Texts),
        ("extra", ValueType::TextLists),
        ("dry", ValueType::Bool),
        ("kind", KIND),
        ("requestKind", KIND),
    ]);
    const KIND: ValueType = ValueType::Fields(&[("kind", ValueType::Text)]);

    fn compiler() -> ExpressionCompiler {
        ExpressionCompiler::new(&[("object", ValueType::Any), ("request", REQUEST)])
    }

    /// What an expression says of an object and a request.
    fn holds(text: &str, budget: &mut u64) -> Result<bool, EvaluationError> {
        let object =
            value(r#"{"metadata":{"namespace":"n","labels":{"a.b/c":"d"}},"spec":{"n":3}}"#);
        let request = value(
            r#"{"namespace":"n","groups":["g"],"extra":{"k":["v"]},"dry":false,"kind":{"kind":"A"},"requestKind":{"kind":"A"}}"#,
        );
        let values = [("object", &object), ("request", &request), ("none", &Value::Null)];
        compiler().compile(text).expect(text).holds(&values, None, budget)
    }

    #[test]
    fn expressions_decide_about_named_values() {
        for text in [
            "object.spec.n == 3",
            "object.metadata.namespace == request.namespace",
            "object.metadata.labels['a.b/c'] == 'd' && !('z' in object.metadata.labels)",
            "'g' in request.groups && request.extra['k'][0] == 'v' && !request.dry",
            "!has(object.status) && !request.groups.exists(g, g.startsWith('system:'))",
            "has(object.spec.n) ? object.spec.n > 2 : true",
            "request.kind == request.requestKind",
        ] {
            assert_eq!(holds(text, &mut 1_000), Ok(true), "{text}");
            assert_eq!(holds(&format!("!({text})"), &mut 1_000), Ok(false), "{text}");
        }
    }

    #[test]
    fn what_does_not_decide_is_refused_when_it_is_compiled() {
        for (text, expected) in [
            ("1", "must evaluate to bool"),
            ("object.spec.on", "must evaluate to bool"),
            ("request.zz == 1", "undefined field 'zz'"),
            ("authorizer.requestResource.check('get').allowed()", "undeclared reference to"),
            ("oldSelf == 1", "undeclared reference to 'oldSelf'"),
            ("request.namespace == 1", "found no matching overload for '_==_'"),
            ("true ||", "Syntax error"),
        ] {
            let error = compiler().compile(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = format!("true{}", " ".repeat(LENGTH_MAX));
        assert_eq!(compiler().compile(&long).map(drop), Err(ExpressionError::TooLong));
    }

    #[test]
    fn what_cannot_be_computed_says_why_and_costs() {
        let mut budget = 1_000;
        let error = holds("object.spec.zz > 1", &mut budget).expect_err("no such field");
        let words = "expression 'object.spec.zz > 1' resulted in error: no such key: zz";
        assert_eq!(error.to_string(), words);
        assert!(budget < 1_000);
        assert_eq!(holds("object.spec.n == 3", &mut 2), Err(EvaluationError::OutOfBudget));
        let endless = "[1,2,3,4,5,6,7,8,9,10]";
        let text =
            (0..6).fold("true".to_owned(), |text, at| format!("{endless}.all(x{at}, {text})"));
        let mut budget = 10_000_000;
        let error = holds(&text, &mut budget).expect_err("too long").to_string();
        assert!(error.contains("actual cost limit exceeded"), "{error}");
        assert!((8_000_000..=9_000_000).contains(&budget), "{budget}");
    }
}
