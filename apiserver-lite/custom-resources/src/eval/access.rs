//! Questions of expressions about what a user may do. Their answers come from outside: a run that asks a question without an answer ends with the question.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::run::Run;
use super::value::{Fail, Val};
use crate::cel::types::Access;

/// May the user of the request, or a service account, do something with a path or resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessQuestion {
    /// Namespace and name of the service account that is asked about; `None` for the user of the request.
    pub service_account: Option<(String, String)>,
    pub verb: String,
    pub subject: AccessSubject,
}

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessSubject {
    Path(String),
    Resource(AccessResource),
}

/// A resource that a question is about; empty for none or all, as in an access review.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessResource {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

/// The answer to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessAnswer {
    pub allowed: bool,
    pub reason: String,
    /// Why no authorizer could decide; empty if one did.
    pub error: String,
}

/// What the variable `authorizer` knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessInput {
    /// What the request is about: `authorizer.requestResource`.
    pub requested: AccessResource,
    /// Questions of earlier runs.
    pub answers: BTreeMap<AccessQuestion, AccessAnswer>,
}

impl Default for AccessSubject {
    fn default() -> Self {
        Self::Path(String::new())
    }
}

/// A question that is being put together, or its answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AccessVal {
    pub(crate) access: Access,
    question: AccessQuestion,
    answer: AccessAnswer,
}

impl AccessVal {
    /// The value of the variable `authorizer`.
    pub(crate) fn authorizer<'a>() -> Val<'a> {
        let (question, answer) = Default::default();
        Val::Access(Rc::new(Self { access: Access::Authorizer, question, answer }))
    }

    /// Bytes of its texts.
    pub(crate) fn size(&self) -> u64 {
        let AccessQuestion { service_account, verb, subject } = &self.question;
        let account = service_account
            .as_ref()
            .map_or(0, |(namespace, name)| namespace.len().saturating_add(name.len()));
        let subject = match subject {
            AccessSubject::Path(path) => path.len(),
            AccessSubject::Resource(of) => {
                [&of.group, &of.resource, &of.subresource, &of.namespace, &of.name]
                    .iter()
                    .fold(0, |sum: usize, text| sum.saturating_add(text.len()))
            }
        };
        account.saturating_add(verb.len()).saturating_add(subject).max(1) as u64
    }

    /// The field `requestResource` of the variable.
    pub(crate) fn field<'a>(&self, name: &str, input: &AccessInput) -> Option<Val<'a>> {
        let is_known = self.access == Access::Authorizer && name == "requestResource";
        is_known.then(|| self.about(Access::Resource, input.requested.clone()))
    }

    fn about<'a>(&self, access: Access, resource: AccessResource) -> Val<'a> {
        let subject = AccessSubject::Resource(resource);
        let question = AccessQuestion { subject, ..self.question.clone() };
        Val::Access(Rc::new(Self { access, question, answer: AccessAnswer::default() }))
    }

    /// Calls a method; its cost is charged.
    pub(crate) fn call<'a>(
        &self,
        run: &Run<'a>,
        name: &str,
        args: &[Val<'a>],
    ) -> Result<Val<'a>, Fail> {
        match (self.access, args) {
            (Access::Decision, []) => self.read_answer(name),
            (Access::Authorizer, [Val::Text(namespace), Val::Text(account)])
                if name == "serviceAccount" =>
            {
                for (what, text) in [("namespace", namespace), ("name", account)] {
                    if text.is_empty() {
                        return Err(Fail::error(format!("invalid service account {what}")));
                    }
                }
                let service_account = Some((namespace.to_string(), account.to_string()));
                let question = AccessQuestion { service_account, ..AccessQuestion::default() };
                Ok(Val::Access(Rc::new(Self { question, ..self.clone() })))
            }
            (_, [Val::Text(text)]) => self.add(run, name, text),
            _ => Err(Fail::no_overload()),
        }
    }

    /// Adds a text to the question; the verb completes it.
    fn add<'a>(&self, run: &Run<'a>, name: &str, text: &str) -> Result<Val<'a>, Fail> {
        let is_empty = |what: &str| match text {
            "" => Err(Fail::error(format!("{what} must not be empty"))),
            text => Ok(text.to_owned()),
        };
        let mut made = self.clone();
        match (self.access, &mut made.question.subject, name) {
            (Access::Authorizer, subject, "path") => {
                *subject = AccessSubject::Path(is_empty("path")?);
                made.access = Access::Path;
            }
            (Access::Authorizer, _, "group") => {
                let group = text.to_owned();
                return Ok(
                    self.about(Access::Group, AccessResource { group, ..Default::default() })
                );
            }
            (Access::Group, AccessSubject::Resource(of), "resource") => {
                of.resource = is_empty("resource")?;
                made.access = Access::Resource;
            }
            (Access::Resource, AccessSubject::Resource(of), "subresource") => {
                text.clone_into(&mut of.subresource)
            }
            (Access::Resource, AccessSubject::Resource(of), "namespace") => {
                text.clone_into(&mut of.namespace)
            }
            (Access::Resource, AccessSubject::Resource(of), "name") => {
                text.clone_into(&mut of.name)
            }
            (Access::Path | Access::Resource, _, "check") => {
                text.clone_into(&mut made.question.verb);
                let answer = run.answer(&made.question)?;
                made =
                    Self { access: Access::Decision, answer, question: AccessQuestion::default() };
            }
            _ => return Err(Fail::no_overload()),
        }
        Ok(Val::Access(Rc::new(made)))
    }

    fn read_answer<'a>(&self, name: &str) -> Result<Val<'a>, Fail> {
        let AccessAnswer { allowed, reason, error } = &self.answer;
        Ok(match name {
            "allowed" => Val::Bool(*allowed),
            "reason" => Val::text(reason.as_str()),
            "errored" => Val::Bool(!error.is_empty()),
            "error" => Val::text(error.as_str()),
            _ => return Err(Fail::no_overload()),
        })
    }
}
