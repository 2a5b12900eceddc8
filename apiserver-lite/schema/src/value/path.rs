//! Where a walk over a tree stands: a chain of steps on the stack, turned into text only when a message needs it.

use std::fmt;

/// One step below `parent`; the root has none.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The top of an object.
    pub(crate) const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    /// The field `name` below.
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Field(name) }
    }

    /// The entry `key` of a map below, written in brackets.
    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    /// The item at `index` of a list below.
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Key(key) => write!(f, "[{key}]"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Field(name) if self.parent.is_none_or(|p| matches!(p.step, Step::Root)) => {
                f.write_str(name)
            }
            Step::Field(name) => write!(f, ".{name}"),
        }
    }
}
