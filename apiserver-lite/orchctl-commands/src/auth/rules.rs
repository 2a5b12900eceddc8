//! `auth can-i --list`: rules that allow the user something in a namespace.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::columns::ColumnWidths;
use orchctl_printers::{objects, rules};
use serde_json::{Value, json};

use super::review;

/// Prints the rules.
pub(super) async fn list(
    session: &Session,
    no_headers: bool,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let spec = json!({"namespace": session.namespace()?});
    let answer =
        review(session, "authorization", "selfsubjectrulesreviews", "SelfSubjectRulesReview", spec);
    let answer = answer.await?;
    if answer.pointer("/status/incomplete") == Some(&Value::Bool(true)) {
        let why = objects::text_at(&answer, "/status/evaluationError");
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        writeln!(output.err, "warning: the list may be incomplete{why}")?;
    }
    let mut rows = Vec::new();
    if !no_headers {
        let heads = ["Resources", "Non-Resource URLs", "Resource Names", "Verbs"];
        rows.push(heads.map(str::to_owned).to_vec());
    }
    let of = |part: &str| objects::list_at(&answer, part);
    rows.extend(rules::rows(of("/status/resourceRules"), of("/status/nonResourceRules")));
    output.out.write_all(ColumnWidths::default().render(&rows).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
